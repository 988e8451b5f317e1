"""Fusion: parts of a kernel computed block by block inside of what reads them.

A part that reads another one is cut into blocks of its results; each earlier part stands at the
root or in one of those loops, where the primitives prove that it may. (Halide's `compute_at`, and
the multi-level tiling with fusion of Ansor, Zheng et al., OSDI 2020; the levels further in are
those of each part's own rule.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.loops.nodes import If, Kernel, Store, Update
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sketch.blocks import Part, buffers, computed_at, has_blocks, in_blocks
from tilewright.schedule.sketch.choices import Choices
from tilewright.schedule.sketch.classify import free_dims
from tilewright.schedule.sketch.context import Context, Machine
from tilewright.schedule.sketch.nest import existing, vectorize_inner
from tilewright.schedule.sketch.rows import place
from tilewright.schedule.tree import walk

ROOT = "root"
CACHE_SHARE = 4  # the results that a block reads take at most this part of the L2 cache
BLOCKS_PER_CORE = 2  # at least
MORE_WORK = 1.1  # at most, for results that neighbouring blocks both need


def fused(
    s: Schedule, groups: Sequence[Sequence[Computation]], at: Context, choose: Choices
) -> tuple[Schedule, list[Part]]:
    """Place each group of Computations; the parts that they are then, in order.

    parameters: `fuse.<computation>.<dimension>`, results of a block along a dimension, and
    `fuse.<computation>.<dimension>.inner`, of a block inside of it;
    `at.<buffer>`, the loop over blocks in which an intermediate result is computed, or root;
    `slide.<buffer>`, the loop over blocks along which a map is computed only where earlier blocks
    have not; `stage.<buffer>.<loop>`, whether what a block reads of an input is copied first.
    """
    parts = [Part(list(g)) for g in groups]
    owners: dict[str, Part] = {}
    for n in reversed(range(len(parts))):
        part = parts[n]
        s = _at_a_loop(s, part, owners, at.machine, choose)
        read = part.reads(parts[:n])
        if not part.around and read and has_blocks(part.last):
            s, parts[n] = in_blocks(s, part, _levels(s, part, read, at.machine, choose))
            owners |= dict.fromkeys(parts[n].blocks, parts[n])
    for loop, owner in owners.items():
        inside = [p for p in parts if loop in p.around]
        s = _stage(s, loop, owner, inside, at, choose)
    return s, parts


def _at_a_loop(
    s: Schedule, part: Part, owners: Mapping[str, Part], machine: Machine, choose: Choices
) -> Schedule:
    """Inside of one of the blocks of a part that reads it, if any may hold it."""
    trials = {loop: computed_at(s, part, loop) for loop in owners}
    placed = {loop: trial for loop, trial in trials.items() if trial is not None}
    if not placed:
        return s
    good = [loop for loop, trial in placed.items() if _pays(s, trial, [part], machine)]
    name = part.last.outputs[0].tensor.name
    loop = choose(f"at.{name}", [ROOT, *placed], good[-1] if good else ROOT)
    if loop == ROOT:
        return s
    owner = owners[loop]
    owner.holds.add(loop)
    part.around = owner.up_to(loop)
    return _slide(placed[loop], part, owner, machine, choose)


def _slide(s: Schedule, part: Part, owner: Part, machine: Machine, choose: Choices) -> Schedule:
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
        vectorize_inner(s, first_rows[-1], machine.lanes(out.tensor.dtype))
    return s


def _levels(
    s: Schedule, part: Part, read: Sequence[Part], machine: Machine, choose: Choices
) -> list[dict[Dim, int]]:
    """Sizes of the blocks, and of blocks inside of them, which divide them; by default whole."""
    name = f"fuse.{part.last.name}"
    good = _good_sizes(s, part, read, machine)
    outer = {d: choose(f"{name}.{d.var.name}", _sizes(d.extent), size) for d, size in good.items()}
    if all(size == d.extent for d, size in outer.items()):
        return [outer]
    inner = dict(outer)
    for d, size in outer.items():
        if size > 1:
            fitting = [n for n in _sizes(size) if size % n == 0]
            inner[d] = choose(f"{name}.{d.var.name}.inner", fitting, size)
    return [outer, inner]


def _good_sizes(s: Schedule, part: Part, read: Sequence[Part], machine: Machine) -> dict[Dim, int]:
    """Large blocks in which all that is read of other parts stays in the cache, if any pay.

    They are whole along the inner dimensions, so that vectors and register tiles find room. Of the
    largest that fit and others down to half of them, those that keep all cores busy.
    """
    whole = {d: d.extent for d in free_dims(part.last)}
    if not _leaves_cache(s, read, machine):
        return whole
    single: dict[Dim, int] = {}
    for d, extent in whole.items():
        largest, good = 0, list[dict[Dim, int]]()
        for size in reversed(_sizes(extent)):
            sizes = whole | single | {d: size}
            if _blocks(sizes) < BLOCKS_PER_CORE * machine.cores:
                continue
            if 2 * size < largest:
                break
            apart, cut = in_blocks(s, part, [sizes])
            after = _together(apart, cut, read)
            if after is None:
                return whole
            if _held(after, read) <= machine.l2 // CACHE_SHARE:
                largest = largest or size
            if _pays(apart, after, read, machine):
                good.append(sizes)
        if good:
            return min(good, key=lambda sizes: _uneven(sizes, machine.cores))
        single[d] = 1
    return whole


def _blocks(sizes: Mapping[Dim, int]) -> int:
    return math.prod(-(-d.extent // size) for d, size in sizes.items())


def _uneven(sizes: Mapping[Dim, int], cores: int) -> float:
    """Points that the slowest core computes, for each that it would of equal shares."""
    rounds = -(-_blocks(sizes) // cores)
    return math.prod(size / d.extent for d, size in sizes.items()) * rounds * cores


def _together(s: Schedule, part: Part, read: Sequence[Part]) -> Schedule | None:
    """All that a part in blocks reads of others in the innermost of them."""
    after: Schedule | None = s
    for p in reversed(read):
        after = computed_at(after, p, part.blocks[-1]) if after and part.blocks else None
    return after


def _pays(before: Schedule, after: Schedule, moved: Sequence[Part], machine: Machine) -> bool:
    """Whether results that left the cache now stay in it, for little computed more than once.

    Not where a guard is left, at a border that blocks overlap: it is in the way of tiles.
    """
    fits = _held(after, moved) <= machine.l2 // CACHE_SHARE
    more = _points(after.kernel) <= MORE_WORK * _points(before.kernel)
    guarded = _guards(after.kernel) > _guards(before.kernel)
    return _leaves_cache(before, moved, machine) and fits and more and not guarded


def _leaves_cache(s: Schedule, parts: Sequence[Part], machine: Machine) -> bool:
    return _held(s, parts) > machine.l2


def _held(s: Schedule, parts: Sequence[Part]) -> int:
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
    return [*sorted(n for n in (*powers, *(3 * p for p in powers)) if n < extent), extent]


def _stage(
    s: Schedule, loop: str, owner: Part, inside: Sequence[Part], at: Context, choose: Choices
) -> Schedule:
    """Copies of what a block reads of the inputs, in the cache."""
    read = dict.fromkeys(b for p in inside for c in p.computations for b in c.inputs)
    for b in read:
        if b not in s.kernel.params or b in at.constants or any(b in p.staged for p in inside):
            continue
        trial = s.fork()
        try:
            new = trial.cache_read(b.name, loop)
            place(trial, new)
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
            vectorize_inner(s, nest[-1], at.machine.lanes(b.dtype))
        for p in inside:
            p.staged[b] = new
    return s
