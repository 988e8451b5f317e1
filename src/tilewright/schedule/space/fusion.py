"""Fusion: parts of a kernel computed block by block inside their consumers.

A part that reads another one is tiled into blocks of its results; each earlier part is computed at
the root or in one of those loops, if the primitives prove it legal. (Halide's `compute_at`, and the
multi-level tiling with fusion of Ansor, Zheng et al., OSDI 2020; each part's own rule tiles the
inner levels.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import If, Kernel, Store, Update
from tilewright.loops.walk import walk
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.space.blocks import (
    BlockPart,
    buffers,
    computed_at,
    has_blocks,
    in_blocks,
)
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import existing, place, vectorize_inner
from tilewright.schedule.space.patterns import free_dims

ROOT = "root"


@dataclass(frozen=True, slots=True)
class FusionLimits:
    """When fusion is profitable on a target, and what a block may take.

    cache: bytes of results, from which on they leave the cache between kernels. block: bytes of the
    results that a block reads, at most. cores: that share the blocks. blocks: of them at least.
    recomputed: the points of all statements over those before, at most, for results that
    neighboring blocks both need. stack: bytes of a result that may be on the stack. lanes:
    elements of a dtype in a vector.
    """

    cache: int
    block: int
    cores: int
    blocks: int
    recomputed: float
    stack: int
    lanes: Callable[[DType], int]


def fused(
    s: Schedule,
    groups: Sequence[Sequence[Computation]],
    limits: FusionLimits,
    constants: Collection[Buffer],
    choose: Choices,
) -> tuple[Schedule, list[BlockPart]]:
    """Place each group of Computations; the parts that they are then, in order.

    constants: buffers known at compile time, which are not staged.

    parameters: `fuse.<computation>.<dimension>`, results of a block along a dimension, and
    `fuse.<computation>.<dimension>.inner`, of a block inside it;
    `at.<buffer>`, the loop over blocks in which an intermediate result is computed, or root;
    `slide.<buffer>`, the loop over blocks along which a map is computed only where earlier blocks
    have not; `stage.<buffer>.<loop>`, whether what a block reads of an input is copied first.
    """
    parts = [BlockPart(list(g)) for g in groups]
    owners: dict[str, BlockPart] = {}
    for n in reversed(range(len(parts))):
        part = parts[n]
        s = _at_a_loop(s, part, owners, limits, choose)
        read = part.reads(parts[:n])
        if not part.around and read and has_blocks(part.last):
            levels = _levels(s, part, read, limits, choose)
            s, parts[n] = in_blocks(s, part, levels, limits.stack)
            owners |= dict.fromkeys(parts[n].blocks, parts[n])
    for loop, owner in owners.items():
        inside = [p for p in parts if loop in p.around]
        s = _stage(s, loop, owner, inside, limits, constants, choose)
    return s, parts


def _at_a_loop(
    s: Schedule,
    part: BlockPart,
    owners: Mapping[str, BlockPart],
    limits: FusionLimits,
    choose: Choices,
) -> Schedule:
    """Inside one of the blocks of a part that reads it, if any may hold it."""
    trials = {loop: computed_at(s, part, loop, limits.stack) for loop in owners}
    placed = {loop: trial for loop, trial in trials.items() if trial is not None}
    if not placed:
        return s
    good = [
        loop
        for loop, trial in placed.items()
        if _is_profitable(s, trial, [part], limits)
    ]
    name = part.last.outputs[0].tensor.name
    loop = choose(f"at.{name}", [ROOT, *placed], good[-1] if good else ROOT)
    if loop == ROOT:
        return s
    owner = owners[loop]
    owner.holds.add(loop)
    part.around = owner.up_to(loop)
    return _slide(placed[loop], part, owner, limits, choose)


def _slide(
    s: Schedule,
    part: BlockPart,
    owner: BlockPart,
    limits: FusionLimits,
    choose: Choices,
) -> Schedule:
    """Only what earlier blocks have not computed, along a loop over blocks further in."""
    (out, *others), name = part.last.outputs, part.last.outputs[0].tensor.name
    if len(part.computations) > 1 or others or not part.last.is_map:
        return s
    trials: dict[str, tuple[Schedule, list[str]]] = {}
    for loop in owner.blocks[len(part.around) :]:
        trial = s.fork()
        try:
            first = trial.slide(name, loop)
        except ScheduleError:
            continue
        trials[loop] = trial, existing(trial, first)
    taken = choose(f"slide.{name}", [None, *trials], None) if trials else None
    if taken is None:
        return s
    owner.holds.add(taken)
    part.around = owner.up_to(taken)
    s, first_rows = trials[taken]
    if first_rows:
        vectorize_inner(s, first_rows[-1], limits.lanes(out.tensor.dtype))
    return s


def _levels(
    s: Schedule,
    part: BlockPart,
    read: Sequence[BlockPart],
    limits: FusionLimits,
    choose: Choices,
) -> list[dict[Dim, int]]:
    """Sizes of the blocks, and of blocks inside them, which divide them; by default whole."""
    name = f"fuse.{part.last.name}"
    good = _good_sizes(s, part, read, limits)
    outer = {
        d: choose(f"{name}.{d.var.name}", _sizes(d.extent), size)
        for d, size in good.items()
    }
    if all(size == d.extent for d, size in outer.items()):
        return [outer]
    inner = dict(outer)
    for d, size in outer.items():
        if size > 1:
            fitting = [n for n in _sizes(size) if size % n == 0]
            inner[d] = choose(f"{name}.{d.var.name}.inner", fitting, size)
    return [outer, inner]


def _good_sizes(
    s: Schedule, part: BlockPart, read: Sequence[BlockPart], limits: FusionLimits
) -> dict[Dim, int]:
    """Large blocks for which the data read from other parts stays in the cache, if any are
    profitable.

    Blocks span the inner dimensions, to leave room for vectors and register tiles. Of the largest
    that fit, and others down to half their size, those that keep all cores busy are returned.
    """
    whole = {d: d.extent for d in free_dims(part.last)}
    if not _leaves_cache(s, read, limits):
        return whole
    single: dict[Dim, int] = {}
    for d, extent in whole.items():
        largest, good = 0, list[dict[Dim, int]]()
        for size in reversed(_sizes(extent)):
            sizes = whole | single | {d: size}
            if _blocks(sizes) < limits.blocks * limits.cores:
                continue
            if 2 * size < largest:
                break
            apart, cut = in_blocks(s, part, [sizes], limits.stack)
            after = _together(apart, cut, read, limits.stack)
            if after is None:
                return whole
            if _held(after, read) <= limits.block:
                largest = largest or size
            if _is_profitable(apart, after, read, limits):
                good.append(sizes)
        if good:
            return min(good, key=lambda sizes: _uneven(sizes, limits.cores))
        single[d] = 1
    return whole


def _blocks(sizes: Mapping[Dim, int]) -> int:
    return math.prod(-(-d.extent // size) for d, size in sizes.items())


def _uneven(sizes: Mapping[Dim, int], cores: int) -> float:
    """Points that the slowest core computes, for each that it would of equal shares."""
    rounds = -(-_blocks(sizes) // cores)
    return math.prod(size / d.extent for d, size in sizes.items()) * rounds * cores


def _together(
    s: Schedule, part: BlockPart, read: Sequence[BlockPart], stack: int
) -> Schedule | None:
    """All that a part in blocks reads of others in the innermost of them."""
    after: Schedule | None = s
    for p in reversed(read):
        after = (
            computed_at(after, p, part.blocks[-1], stack)
            if after and part.blocks
            else None
        )
    return after


def _is_profitable(
    before: Schedule, after: Schedule, moved: Sequence[BlockPart], limits: FusionLimits
) -> bool:
    """Whether results that left the cache now stay in it, for little computed more than once.

    Not where a guard remains, at a border that blocks overlap: it prevents tiles.
    """
    fits = _held(after, moved) <= limits.block
    more = _points(after.kernel) <= limits.recomputed * _points(before.kernel)
    guarded = _guards(after.kernel) > _guards(before.kernel)
    return _leaves_cache(before, moved, limits) and fits and more and not guarded


def _leaves_cache(
    s: Schedule, parts: Sequence[BlockPart], limits: FusionLimits
) -> bool:
    return _held(s, parts) > limits.cache


def _held(s: Schedule, parts: Sequence[BlockPart]) -> int:
    """Bytes of the parts' results, as much of them as is alive at a time."""
    now = buffers(s)
    made = [now[o.tensor.name] for p in parts for o in p.last.outputs]
    return sum(b.size * b.dtype.itemsize for b in made)


def _points(kernel: Kernel) -> int:
    """How often all statements run, guarded ones included."""
    leaves = (p for p in walk(kernel.body) if isinstance(p.stmt, Store | Update))
    return sum(math.prod(f.trips or 1 for f in p.loops) for p in leaves)


def _guards(kernel: Kernel) -> int:
    return sum(isinstance(p.stmt, If) for p in walk(kernel.body))


def _sizes(extent: int) -> list[int]:
    """Sizes of blocks, powers of two and three times these, up to the whole."""
    powers = [1 << n for n in range(extent.bit_length())]
    return [
        *sorted(n for n in (*powers, *(3 * p for p in powers)) if n < extent),
        extent,
    ]


def _stage(
    s: Schedule,
    loop: str,
    owner: BlockPart,
    inside: Sequence[BlockPart],
    limits: FusionLimits,
    constants: Collection[Buffer],
    choose: Choices,
) -> Schedule:
    """Copies, in the cache, of the inputs that a block reads."""
    read = dict.fromkeys(b for p in inside for c in p.computations for b in c.inputs)
    for b in read:
        if (
            b not in s.kernel.params
            or b in constants
            or any(b in p.staged for p in inside)
        ):
            continue
        trial = s.fork()
        try:
            new = trial.cache_read(b.name, loop)
            place(trial, new, limits.stack)
        except ScheduleError:
            continue
        if buffers(trial)[new].size == b.size or not choose(
            f"stage.{b.name}.{loop}", (True, False), False
        ):
            continue
        s = trial
        owner.holds.add(loop)
        nest = existing(s, [f"{new}.r{n}" for n in range(len(b.shape))])
        if nest:
            vectorize_inner(s, nest[-1], limits.lanes(b.dtype))
        for p in inside:
            p.staged[b] = new
    return s
