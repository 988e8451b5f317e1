"""The sketches of a sequence of Computations, best first, and the default schedule from them.

A group of one of the patterns that `classify` knows has the sketch of that pattern. Any other
sequence is cut into such `parts`, each scheduled by its own rule in the one kernel. `plain` always
applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.hidden_keys import seen_share
from tilewright.compute.nodes import Computation
from tilewright.loops.nodes import Kernel
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.space.blocks import local
from tilewright.schedule.space.choices import IMPOSSIBLE, Choices, Sketch
from tilewright.schedule.space.fusion import FusionLimits, fused
from tilewright.schedule.space.inlining import inlined
from tilewright.schedule.space.merging import Merged, merged
from tilewright.schedule.space.nest import spread
from tilewright.schedule.space.patterns import (
    KernelPattern,
    are_rows,
    classify,
    parts,
)
from tilewright.schedule.space.selection import default_point
from tilewright.targets.cpu.sketches.attention import attention, block_rows
from tilewright.targets.cpu.sketches.block_scaled import block_scaled
from tilewright.targets.cpu.sketches.blocked import blocked, has_depth
from tilewright.targets.cpu.sketches.columns import by_rows, columns
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.given import given
from tilewright.targets.cpu.sketches.groups import joined_groups, joining_pays
from tilewright.targets.cpu.sketches.joint_reductions import joint, joint_rows
from tilewright.targets.cpu.sketches.maps import maps
from tilewright.targets.cpu.sketches.plain import plain
from tilewright.targets.cpu.sketches.pooled import pooled
from tilewright.targets.cpu.sketches.rows import are_separate, rows, streams
from tilewright.targets.cpu.sketches.scans import scans
from tilewright.targets.cpu.sketches.sized import sized
from tilewright.targets.cpu.sketches.streaming import streamed
from tilewright.targets.cpu.sketches.streaming_attention import (
    streamed_rows,
    streaming_attention,
)
from tilewright.targets.cpu.sketches.tiled_reduction import tiled
from tilewright.targets.cpu.sketches.traffic import products
from tilewright.targets.cpu.sketches.windows import (
    combined,
    windows,
    windows_are_profitable,
)
from tilewright.targets.cpu.sketches.winograd import (
    winograd,
    winograd_cycles,
    winograd_is_profitable,
)

Profitable = Callable[[KernelPattern, Context], bool]
Cycles = Callable[[KernelPattern, Context], float]


def _always(pattern: KernelPattern, at: Context) -> bool:
    return True


def _points(pattern: KernelPattern, at: Context) -> float:
    """Cycles of each point once."""
    return _issued(
        sum(math.prod(d.extent for d in c.dims) for c in pattern.computations),
        pattern,
        at,
    )


def _seen_points(pattern: KernelPattern, at: Context) -> float:
    """Of attention over blocks of keys: each point of those that no mask hides, and their means."""
    rows = streamed_rows(pattern, at.costs)
    seen = seen_share(pattern.computations[-2], rows)
    keys = pattern.computations[0].outputs[0].tensor.shape[-1]
    return _points(pattern, at) * seen * (1 + at.costs.mean_keys / keys)


def _combined(pattern: KernelPattern, at: Context) -> float:
    return _issued(combined(pattern), pattern, at)


def _pooled(pattern: KernelPattern, at: Context) -> float | None:
    """Of a convolution and its pooling in blocks; None for other groups."""
    found = pooled(pattern.computations, at)
    if found is None:
        return None
    first, last = map(classify, (found.producer, found.pooling))
    made = RULES[first.name].cycles(first, at) * found.again - found.saved
    return made + RULES[last.name].cycles(last, at)


def _issued(operations: float, pattern: KernelPattern, at: Context) -> float:
    """Cycles of operations on elements that are done in vectors, two per cycle as products are."""
    last = pattern.reduction or pattern.computations[-1]
    return operations / (
        at.costs.multiply_adds * at.machine.lanes(last.outputs[0].value.dtype)
    )


@dataclass(frozen=True, slots=True)
class SketchRule:
    """How Computations of one pattern are scheduled.

    regroups: it changes the order of reductions, which exact arithmetic forbids. is_profitable:
    whether one kernel of them is expected to be faster than kernels of parts. cycles: what that
    kernel takes, of all cores together.
    """

    schedule: Callable[[Schedule, KernelPattern, Context, Choices], Schedule]
    regroups: bool = False
    is_profitable: Profitable = _always
    cycles: Cycles = _points


RULES: Mapping[str, SketchRule] = {
    "map": SketchRule(maps),
    "tiled": SketchRule(
        tiled, cycles=lambda pattern, at: products(pattern, at) or _points(pattern, at)
    ),
    "groups": SketchRule(tiled),
    "blocked": SketchRule(blocked),
    "block_scaled": SketchRule(block_scaled),
    "rows": SketchRule(rows, regroups=True, is_profitable=are_separate),
    "columns": SketchRule(columns),
    "attention": SketchRule(
        attention,
        regroups=True,
        is_profitable=lambda pattern, at: (
            not at.exact and block_rows(pattern, at.costs) > 0
        ),
    ),
    "streaming_attention": SketchRule(
        streaming_attention,
        regroups=True,
        is_profitable=lambda pattern, at: (
            not at.exact and streamed_rows(pattern, at.costs) > 0
        ),
        cycles=_seen_points,
    ),
    "scan": SketchRule(scans),
    "joint": SketchRule(joint),
    "joint_rows": SketchRule(joint_rows, regroups=True),
    "windows": SketchRule(
        windows,
        is_profitable=lambda pattern, at: windows_are_profitable(pattern, at.costs),
        cycles=_combined,
    ),
    "winograd": SketchRule(
        winograd,
        regroups=True,
        is_profitable=lambda pattern, at: (
            not at.exact and winograd_is_profitable(pattern, at.costs)
        ),
        cycles=lambda pattern, at: winograd_cycles(pattern, at.costs),
    ),
    "plain": SketchRule(
        plain,
        is_profitable=lambda pattern, at: (
            all(c.is_map for c in pattern.computations)
            or pooled(pattern.computations, at) is not None
        ),
        cycles=lambda pattern, at: _pooled(pattern, at) or _points(pattern, at),
    ),
}


def is_profitable(computations: Sequence[Computation], at: Context) -> bool:
    """Whether a rule is good at these as one kernel."""
    pattern = classify(computations)
    return RULES[pattern.name].is_profitable(pattern, at)


def estimated_cost(computations: Sequence[Computation], at: Context) -> float | None:
    """Expected nanoseconds of these as one kernel, of all cores together.

    None where its rule is not good at them. Each rule has its own model that leaves out what
    is the same in the forms it chooses from: compare forms of one thing.
    """
    pattern = classify(computations)
    rule = RULES[pattern.name]
    return (
        rule.cycles(pattern, at) / at.machine.clock
        if rule.is_profitable(pattern, at)
        else None
    )


def sketches(
    kernel: Kernel, computations: Sequence[Computation], at: Context
) -> list[Sketch]:
    """The sketches of a kernel that is the plain nest of `computations`, best first.

    A kernel without Computations, written by an operator, has the sketch `kernel`. One with sizes
    known only at run time has the sketch `sized`. A sketch may still raise a ScheduleError when it
    runs: then the next one is used.
    """
    if not computations:
        return [Sketch("kernel", partial(given, kernel, at))]
    if kernel.sizes:
        return [Sketch("sized", partial(sized, kernel, computations, at))]
    seen = merged(kernel, computations)
    at = replace(at, reshaped=bool(seen.views))
    pattern = classify(seen.computations)
    found = [] if pattern.name == "plain" else [[pattern]]
    if pattern.name == "tiled" and streams(pattern, at):
        found.insert(0, [KernelPattern("rows", pattern.computations)])
    if pattern.name == "tiled" and by_rows(pattern, at):
        found.insert(0, [replace(pattern, name="columns")])
    whole = _possible(seen, [k for (k,) in found], at)
    whole = _with_groups(seen, pattern, at, whole)
    met = [k.name for (k,) in found]
    others = _possible(seen, _alternatives(pattern, met), at)
    plainly = Sketch(
        "plain", partial(_run, seen, KernelPattern("plain", seen.computations), at)
    )
    if len(computations) == 1:
        return [*whole, *others, plainly]
    cut = Sketch("parts", partial(_run_parts, seen, at))
    return [*whole, cut, *others, plainly]


def _with_groups(
    seen: Merged, pattern: KernelPattern, at: Context, others: list[Sketch]
) -> list[Sketch]:
    """The sketches of a kernel as it is, and that along several groups: the first if that pays."""
    joined = None if seen.views else joined_groups(pattern, at)
    if joined is None:
        return others
    found = replace(seen, computations=joined.pattern.computations, views=joined.views)
    along = _possible(found, [joined.pattern], replace(at, reshaped=True))
    return (
        along + others if joining_pays(pattern, joined.pattern, at) else others + along
    )


def _possible(
    seen: Merged, patterns: Iterable[KernelPattern], at: Context
) -> list[Sketch]:
    """Sketches of the patterns but for those that exact arithmetic forbids."""
    return [
        Sketch(k.name, partial(_run, seen, k, at))
        for k in patterns
        if not at.exact or not RULES[k.name].regroups
    ]


def _alternatives(
    pattern: KernelPattern, met: Sequence[str]
) -> Iterator[KernelPattern]:
    """Alternatives to register tiles, which no rule selects by default."""
    if pattern.name != "tiled":
        return
    if has_depth(pattern):
        yield replace(pattern, name="blocked")
    if "rows" not in met and are_rows(pattern.computations):
        yield KernelPattern("rows", pattern.computations)


def default(
    kernel: Kernel, computations: Sequence[Computation], at: Context
) -> Schedule:
    """The schedule of a kernel without tuning: the first sketch that no primitive refuses."""
    return default_point(kernel.name, sketches(kernel, computations, at)).schedule


def _run(
    seen: Merged, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    s = RULES[pattern.name].schedule(seen.start(), pattern, at, choose)
    return streamed(seen.finish(s), at, choose)


def _run_parts(seen: Merged, at: Context, choose: Choices) -> Schedule:
    """Inline maps into their readers if profitable, compute parts in blocks of their readers, then
    schedule each part by its own rule."""
    s, rest = inlined(seen.start(), seen.computations, choose)
    groups = [pattern.computations for pattern in parts(rest)]
    s, found = fused(s, groups, _fusion_limits(at), at.constants, choose)
    for part in found:
        here = replace(at, around=part.around)
        for pattern in parts(local(s, part)):
            s = _by_rule(s, pattern, here, choose)
    for part in found:
        if part.blocks:
            inside = [p for p in found if set(p.around) & set(part.blocks)]
            work = sum(
                math.prod(d.extent for d in c.dims)
                for p in inside
                for c in p.computations
            )
            good = at.costs.worth_sharing(work * at.costs.product_ns)
            if at.threads(choose, part.last.name, good):
                spread(s, part.nested)
    return streamed(seen.finish(s), at, choose)


def _fusion_limits(at: Context) -> FusionLimits:
    m, costs = at.machine, at.costs
    block = m.l2 // costs.quarter
    return FusionLimits(
        cache=m.l2,
        block=block,
        cores=m.cores,
        blocks=costs.blocks,
        recomputed=costs.recomputed,
        stack=costs.stack,
        lanes=m.lanes,
    )


def _by_rule(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """The rule of a pattern; `plain` if a primitive refuses: the event `kept-plain` says why."""
    if not (at.exact and RULES[pattern.name].regroups):
        trial = s.fork()
        try:
            return RULES[pattern.name].schedule(trial, pattern, at, choose)
        except ScheduleError as error:
            if error.code == IMPOSSIBLE:
                raise
            name = pattern.computations[-1].name
            events.emit(
                "kept-plain", kernel=s.kernel.name, part=name, reason=str(error)
            )
    return RULES["plain"].schedule(s, pattern, at, choose)
