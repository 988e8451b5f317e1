"""Kernels of an open plan over units: kernels of a fixed number of units, in loops.

A kernel of fixed sizes has all schedules of its target. Units that are as fast alone as together
are computed one by one. Products, which are faster on many rows, take as many units at a time as
the target's costs say, and the rest in smaller and smaller numbers. Other kernels have schedules
for any size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Final

import numpy as np

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError, UnsupportedError, VerifyError
from tilewright.base.names import fresh
from tilewright.compute.regions import written
from tilewright.driver.ranges.block_counts import block_counts, rereading
from tilewright.driver.ranges.part_assembly import (
    PartAssembly,
    PartedWork,
    decline,
    packed_alike,
    packed_shape,
    scheduled_part,
    tell_fault,
)
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, const
from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.nodes import Alloc, Kernel, Stmt, Store, block, loop
from tilewright.loops.passes.hoist import HoistedKernel
from tilewright.loops.walk import loops_of
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.plan.open_extents import Resized
from tilewright.plan.questions import OpenCosts
from tilewright.plan.units import Units, units
from tilewright.schedule import edit
from tilewright.targets.base import Target

# Contiguous elements: a vector of any machine, or a cache line.
TOGETHER: Final = 16


def by_units(
    kernel: Kernel, group: FusionGroup, constants: Collection[Buffer], target: Target
) -> PartedWork | None:
    """The scheduled kernel of a group as loops over units, with its work on constants separate.

    kernel: unscheduled, with all sizes of the plan. None if the units of the group are not alike,
    if a unit is scattered in memory or cannot be proven to stay within its rows, if the target
    expects kernels of few units to take too long, or if a schedule reshapes a tensor irreversibly.
    """
    found = units(group.computations, kernel.params, constants)
    if found is None:
        decline(kernel, "units", "its units are not alike")
        return None
    of = _Parts(group, kernel.outputs, found, constants, target)
    costs = target.open_costs
    again = rereading(group.computations, constants, costs)
    counts = counts_of(of.work, again, costs)
    sizes = [repr(size) for size in found.sizes]
    events.emit("units", kernel=kernel.name, sizes=sizes, at_a_time=counts)
    why = _why_not(kernel, of, counts)
    if why is not None:
        decline(kernel, "units", why)
        return None
    try:
        return _assembled(kernel, found, of.all_scheduled(counts))
    except (ScheduleError, UnsupportedError, VerifyError) as error:
        tell_fault(error)
        events.emit("kept-whole", kernel=kernel.name, reason=str(error))
        return None


def _why_not(kernel: Kernel, of: _Parts, counts: Sequence[int]) -> str | None:
    """Why so many units at a time are not computed; None if they are."""
    if not counts:
        return "kernels of few units take too long"
    if any(_scattered(of.units, b, counts[0]) for b in kernel.params):
        return "the elements of units are scattered in memory"
    # Scattered results are computed elsewhere and copied whole, so no element may be left out.
    if not all(of.fills(b) for b in kernel.outputs if _scattered(of.units, b, 1)):
        return "it leaves elements of scattered results out"
    return None


def _scattered(found: Units, b: Buffer, count: int) -> bool:
    """Whether the elements of units, which their kernels assume to be contiguous, are scattered."""
    together = found.together(b, count)
    return together is not None and together < TOGETHER


@dataclass(frozen=True, eq=False, slots=True)
class _Parts:
    """The kernels of a group for some of its units."""

    group: FusionGroup
    outputs: Sequence[Buffer]
    units: Units
    constants: Collection[Buffer]
    target: Target
    _works: dict[int, float] = field(default_factory=dict)

    def of(self, count: int) -> tuple[KernelSignature, set[Buffer]]:
        """The kernel to compile for so many units, and its constant parameters."""
        sized = Resized(self.units.of(count), {})
        live = [sized.buffer(b) for b in self.outputs]
        found = kernel_signature(sized.group(self.group), live, parts=False)
        pairs = zip(found.values, found.params, strict=True)
        return found, {p for b, p in pairs if b in self.constants}

    def fills(self, b: Buffer) -> bool:
        """Whether the group writes all elements of a unit's part of a tensor."""
        sized = Resized(self.units.of(1), {})
        here = sized.buffer(b)
        group = sized.group(self.group)
        counts = [written(c, here) for c in group.computations]
        return bool(np.sum(counts, axis=0).all())

    def work(self, count: int) -> float:
        """The nanoseconds that the target expects for the arithmetic of `count` units."""
        if count not in self._works:
            found, constants = self.of(count)
            work = self.target.predicted_work(found.computations, constants)
            self._works[count] = work
        return self._works[count]

    def all_scheduled(self, counts: Sequence[int]) -> dict[int, HoistedKernel]:
        """The kernels of these numbers of units, by number.

        They read the constants as the first one packs them, or unpacked: packing them for each
        number of units would make as many copies.
        """
        first, *others = counts
        found = {first: self.scheduled(first)}
        # Work on constants alone is done once in any case.
        own = not all(c.sizes for c in self.group.computations)
        for count in others:
            made = self.scheduled(count, packed_shape(found[first]))
            if not own and made.prepare and not packed_alike(made, found[first]):
                made = self.scheduled(count, pack=False)
            found[count] = made
        return found

    def scheduled(
        self, count: int, packed: tuple[int, ...] = (), pack: bool = True
    ) -> HoistedKernel:
        found, constants = self.of(count)
        known = constants if pack else set()
        return scheduled_part(found, known, self.target, packed=packed)


def counts_of(
    work: Callable[[int], float], again: float, costs: OpenCosts
) -> list[int]:
    """The numbers of units per kernel, descending to 1; empty if units do not pay.

    work: the nanoseconds that the target expects for so many units. again: those that each kernel
    takes to read the constants.
    """
    most, few = costs.many_units, costs.few_units
    one = work(1)
    if one * most <= work(most) * costs.unit_gain:
        return [1]
    if one * few > work(min(most, few**2)):
        return []
    wished = [1 << n for n in reversed(range(most.bit_length()))]
    counts = [most, *(n for n in wished if n < most)]
    ends = 1, most * most
    gain = costs.block_gain
    found = block_counts(*ends, counts, lambda n: work(n) + again, gain, exact=True)
    return list(found.counts)


def _assembled(
    kernel: Kernel, found: Units, parts: Mapping[int, HoistedKernel]
) -> PartedWork:
    """A loop for each number of units: as many iterations as fit; the next loop takes the rest."""
    loops = _Loops(kernel, found)
    done: Expr = const(0, INDEX)
    left = whole = found.sizes[-1]
    for count, work in parts.items():
        size = const(count, INDEX)
        loops.add(work, count, done, left // size)
        done, left = whole // size * size, whole % size
    return loops.work()


class _Loops:
    """Builds one kernel of loops over units, with unique names."""

    def __init__(self, kernel: Kernel, found: Units) -> None:
        self._assembly = PartAssembly(kernel)
        self._units = found
        self._around = [self._assembly.variable("units") for _ in found.sizes[:-1]]
        self._env: Env = dict.fromkeys((*self._around, *kernel.sizes), (0, None))
        self._nests: list[Stmt] = []

    def add(self, work: HoistedKernel, count: int, done: Expr, times: Expr) -> None:
        """Add a loop that runs the kernel of `count` units `times` times, from unit `done` on."""
        suffix = "" if count == 1 else f".{count}"
        part = work.kernel
        stmt = self._assembly.body(part, suffix)
        unit = self._assembly.variable(f"units.{count}")
        starts = [*self._around, done + unit * const(count, INDEX)]
        first = dict(zip(self._units.sizes, starts, strict=True))
        packed = self._assembly.packed(work.prepare, suffix)
        moves = {b: self._move(b, first, packed) for b in part.params}
        env = {**environment(stmt), **self._env, unit: (0, None)}
        apart = [b for b in part.outputs if _scattered(self._units, self._whole(b), 1)]
        staged = {b: self._staged(b, moves[b]) for b in apart}
        moves |= {b: edit.onto(local) for b, (local, _) in staged.items()}
        body = edit.rewrite(stmt, env, moves=moves)
        for local, copy in staged.values():
            body = Alloc(local, block(body, copy))
        # If the kernel itself is parallel, the loop over units is serial; else threads share the
        # units.
        shared = any(f.kind == "parallel" for f in loops_of(body))
        self._nests.append(loop(unit, times, body, "serial" if shared else "parallel"))

    def work(self) -> PartedWork:
        """All loops as one kernel."""
        body = block(*self._nests)
        pairs = zip(self._around, self._units.sizes[:-1], strict=True)
        for unit, size in reversed(list(pairs)):
            body = loop(unit, size, body)
        return self._assembly.work(body)

    def _move(
        self, b: Buffer, first: Mapping[Expr, Expr], packed: Mapping[Buffer, Buffer]
    ) -> edit.Move:
        if b in packed:
            return lambda index: (packed[b], index)
        whole = self._whole(b)
        return lambda index: (whole, self._units.from_(whole, index, first))

    def _whole(self, b: Buffer) -> Buffer:
        return next(w for w in self._assembly.kernel.params if w.name == b.name)

    def _staged(self, b: Buffer, move: edit.Move) -> tuple[Buffer, Stmt]:
        """A local tensor for a result of some units, and the statement that copies it to the whole.

        In the whole tensor, strides depend on sizes, but instructions on tensors need constants.
        """
        name = fresh(self._assembly.taken, f"{b.name}.units")
        local = Buffer(name, b.extents, b.dtype, "stack")
        place = [self._assembly.variable(f"{name}.{n}") for n in range(len(b.shape))]
        whole, index = move(tuple(place))
        copy: Stmt = Store(whole, index, Load(local, tuple(place)))
        kinds = ["serial"] * (len(place) - 1) + ["vector"]
        for v, extent, kind in reversed([*zip(place, b.shape, kinds, strict=True)]):
            copy = loop(v, extent, copy, kind)
        return local, copy
