"""The sketches of a sequence of Computations, best first, and the default schedule from them.

A group of one of the kinds that `classify` knows has the sketch of that kind. Any other sequence is
cut into such `parts`, each scheduled by its own rule in the one kernel. `plain` always applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.base import events
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation
from tilewright.loops.nodes import Kernel
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sketch.attention import attention, block_rows
from tilewright.schedule.sketch.blocks import local
from tilewright.schedule.sketch.choices import IMPOSSIBLE, Choices, Sketch
from tilewright.schedule.sketch.classify import Kind, classify, streams_rows
from tilewright.schedule.sketch.columns import columns, memory_order
from tilewright.schedule.sketch.context import Context
from tilewright.schedule.sketch.fused import fused
from tilewright.schedule.sketch.inlined import inlined
from tilewright.schedule.sketch.maps import maps
from tilewright.schedule.sketch.nest import spread
from tilewright.schedule.sketch.plain import plain
from tilewright.schedule.sketch.rows import rows
from tilewright.schedule.sketch.scans import scans
from tilewright.schedule.sketch.sharing import PRODUCTS
from tilewright.schedule.sketch.tiled import tiled
from tilewright.schedule.sketch.traffic import products
from tilewright.schedule.sketch.windows import combined, windows
from tilewright.schedule.sketch.windows import pays as windows_pay
from tilewright.schedule.sketch.winograd import cycles, pays, winograd

Pays = Callable[[Kind, Context], bool]
Cycles = Callable[[Kind, Context], float]


def _always(kind: Kind, at: Context) -> bool:
    return True


def _points(kind: Kind, at: Context) -> float:
    """Cycles of each point once."""
    return _issued(sum(math.prod(d.extent for d in c.dims) for c in kind.computations), kind, at)


def _combined(kind: Kind, at: Context) -> float:
    return _issued(combined(kind), kind, at)


def _issued(operations: float, kind: Kind, at: Context) -> float:
    """Cycles of operations on elements that are done in vectors, two per cycle as products are."""
    last = kind.reduction or kind.computations[-1]
    return operations / (2 * at.machine.lanes(last.outputs[0].value.dtype))


@dataclass(frozen=True, slots=True)
class Rule:
    """How Computations of one kind are scheduled.

    regroups: it changes the order of reductions, which exact arithmetic forbids. pays: whether one
    kernel of them is expected to be faster than kernels of parts. cycles: what that kernel takes,
    of all cores together.
    """

    schedule: Callable[[Schedule, Kind, Context, Choices], Schedule]
    regroups: bool = False
    pays: Pays = _always
    cycles: Cycles = _points


RULES: Mapping[str, Rule] = {
    "map": Rule(maps),
    "tiled": Rule(tiled, cycles=lambda kind, at: products(kind, at) or _points(kind, at)),
    "rows": Rule(rows, regroups=True),
    "columns": Rule(columns),
    "attention": Rule(
        attention,
        regroups=True,
        pays=lambda kind, at: not at.exact and block_rows(kind, at.machine) > 0,
    ),
    "scan": Rule(scans),
    "windows": Rule(
        windows,
        pays=lambda kind, at: windows_pay(kind, at.machine),
        cycles=_combined,
    ),
    "winograd": Rule(
        winograd,
        regroups=True,
        pays=lambda kind, at: not at.exact and pays(kind, at.machine),
        cycles=lambda kind, at: cycles(kind, at.machine),
    ),
    "plain": Rule(plain, pays=lambda kind, at: all(c.is_map for c in kind.computations)),
}


def covers(computations: Sequence[Computation], at: Context) -> bool:
    """Whether a rule is good at these as one kernel."""
    kind = classify(computations)
    return RULES[kind.name].pays(kind, at)


def effort(computations: Sequence[Computation], at: Context) -> float | None:
    """Expected nanoseconds of these as one kernel, of all cores together.

    None where its rule is not good at them. Each rule has a model of its own that leaves out what
    is the same in the forms it chooses from: compare forms of one thing.
    """
    kind = classify(computations)
    rule = RULES[kind.name]
    return rule.cycles(kind, at) / at.machine.clock if rule.pays(kind, at) else None


def sketches(kernel: Kernel, computations: Sequence[Computation], at: Context) -> list[Sketch]:
    """The sketches of a kernel that is the plain nest of `computations`, best first.

    A sketch may still meet a ScheduleError when it runs: then the next one is taken.
    """
    kind = classify(computations)
    found = [] if kind.name == "plain" else [[kind]]
    if kind.name == "tiled" and streams_rows(kind, at.constants):
        found.insert(0, [Kind("rows", kind.computations)])
    if kind.name == "tiled" and memory_order(kind, at.machine) is not None:
        found.insert(0, [replace(kind, name="columns")])
    possible = [k for (k,) in found if not at.exact or not RULES[k.name].regroups]
    whole = [Sketch(k.name, partial(_run, kernel, k, at)) for k in possible]
    plainly = Sketch("plain", partial(_run, kernel, Kind("plain", tuple(computations)), at))
    if len(computations) == 1:
        return [*whole, plainly]
    cut = Sketch("parts", partial(_run_parts, kernel, tuple(computations), at))
    return [*whole, cut, plainly]


def default(kernel: Kernel, computations: Sequence[Computation], at: Context) -> Schedule:
    """The schedule of a kernel without tuning: the first sketch that no primitive refuses.

    The event `sketch-refused` carries the reason of each that was, `sketch-chosen` the name of the
    one that was taken.
    """
    *first, last = sketches(kernel, computations, at)
    for sketch in first:
        try:
            made = sketch.default().schedule
        except ScheduleError as error:
            events.emit("sketch-refused", kernel=kernel.name, sketch=sketch.name, reason=str(error))
            continue
        events.emit("sketch-chosen", kernel=kernel.name, sketch=sketch.name)
        return made
    events.emit("sketch-chosen", kernel=kernel.name, sketch=last.name)
    return last.default().schedule


def parts(computations: Sequence[Computation]) -> Iterator[Kind]:
    """The sequence cut into runs of a kind of their own, the longest first ones first."""
    start = 0
    while start < len(computations):
        ends = range(len(computations), start, -1)
        kinds = (classify(computations[start:end]) for end in ends)
        kind = next(k for k in kinds if k.name != "plain" or len(k.computations) == 1)
        start += len(kind.computations)
        yield kind


def _run(kernel: Kernel, kind: Kind, at: Context, choose: Choices) -> Schedule:
    return RULES[kind.name].schedule(Schedule(kernel), kind, at, choose)


def _run_parts(
    kernel: Kernel, computations: Sequence[Computation], at: Context, choose: Choices
) -> Schedule:
    """Maps into their readers where that is worth it, parts into blocks of what reads them, then
    each part by its own rule."""
    s, rest = inlined(Schedule(kernel), computations, choose)
    s, found = fused(s, [kind.computations for kind in parts(rest)], at, choose)
    for part in found:
        here = replace(at, around=part.around)
        for kind in parts(local(s, part)):
            s = _by_rule(s, kind, here, choose)
    for part in found:
        if part.blocks:
            inside = [p for p in found if set(p.around) & set(part.blocks)]
            work = sum(math.prod(d.extent for d in c.dims) for p in inside for c in p.computations)
            if at.threads(choose, part.last.name, work >= PRODUCTS):
                spread(s, part.nested)
    return s


def _by_rule(s: Schedule, kind: Kind, at: Context, choose: Choices) -> Schedule:
    """The rule of a kind; `plain` where a primitive refuses, which the event `kept-plain` tells."""
    if not (at.exact and RULES[kind.name].regroups):
        trial = s.fork()
        try:
            return RULES[kind.name].schedule(trial, kind, at, choose)
        except ScheduleError as error:
            if error.code == IMPOSSIBLE:
                raise
            name = kind.computations[-1].name
            events.emit("kept-plain", kernel=s.kernel.name, part=name, reason=str(error))
    return RULES["plain"].schedule(s, kind, at, choose)
