"""Kernels of an open plan over units: kernels of a fixed number of units, in loops.

A kernel of fixed sizes has all schedules of its target. Units that are as fast alone as together
are computed one by one. Products, which are faster on many rows, take as many units at a time as
the target's costs say, and the rest in smaller and smaller numbers. Other kernels have schedules
for any size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tilewright.base import events
from tilewright.base.errors import ScheduleError, UnsupportedError, VerifyError
from tilewright.base.names import fresh
from tilewright.compute.regions import written
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var, const
from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.analysis.effects import reads
from tilewright.loops.nodes import SIZE, Alloc, For, Kernel, Stmt, Store, block, loop
from tilewright.loops.passes.hoist import HoistedKernel, hoist
from tilewright.loops.passes.on_buffers import on_buffers
from tilewright.loops.verify import verify
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


@dataclass(frozen=True, eq=False, slots=True)
class PartedWork:
    """A scheduled kernel. prepare: the work on constants, as independent sequences of kernels.

    form: which of the forms of its group it computes, counted from the end; -1: the group itself.
    """

    kernel: Kernel
    prepare: tuple[tuple[Kernel, ...], ...] = ()
    form: int = -1


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
        return None
    of = _Parts(group, kernel.outputs, found, constants, target)
    costs = target.open_costs
    counts = counts_of(of.work, costs.many_units, costs)
    sizes = [repr(size) for size in found.sizes]
    events.emit("units", kernel=kernel.name, sizes=sizes, at_a_time=counts)
    if not counts or any(_scattered(found, b, counts[0]) for b in kernel.params):
        return None
    # Scattered results are computed elsewhere and copied whole, so no element may be left out.
    if not all(of.fills(b) for b in kernel.outputs if _scattered(found, b, 1)):
        return None
    # Packing weights for each number of units would make as many copies.
    pack = len(counts) == 1 or not all(c.sizes for c in group.computations)
    try:
        parts = {count: of.scheduled(count, pack) for count in counts}
        return _assembled(kernel, found, parts)
    except (ScheduleError, UnsupportedError, VerifyError) as error:
        events.emit("kept-whole", kernel=kernel.name, reason=str(error))
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
        here, group = sized.buffer(b), sized.group(self.group)
        counts = [written(c, here) for c in group.computations]
        return bool(np.sum(counts, axis=0).all())

    def work(self, count: int) -> float:
        """The nanoseconds that the target expects for the arithmetic of `count` units."""
        found, constants = self.of(count)
        return self.target.predicted_work(found.computations, constants)

    def scheduled(self, count: int, pack: bool) -> HoistedKernel:
        """The kernel of `count` units. pack: pack constants at compile time."""
        found, constants = self.of(count)
        return scheduled_part(found, constants if pack else set(), self.target)


def scheduled_part(
    found: KernelSignature, constants: Collection[Buffer], target: Target
) -> HoistedKernel:
    """The kernel of fixed sizes in its default schedule, on tensors of their own shapes.

    constants: the parameters that are packed at compile time.
    """
    plain = found.plain()
    verify(plain)
    made = target.default_schedule(plain, found.computations, constants)
    for b, p in zip(found.values, found.params, strict=True):
        if p is not b:
            made.reshape(p.name, *b.shape)
    of_name = {b.name: b for b in made.kernel.params}
    return hoist(made.kernel, {of_name[p.name] for p in constants})


def counts_of(work: Callable[[int], float], most: int, costs: OpenCosts) -> list[int]:
    """The numbers of units per kernel, from `most` down to 1; empty if units do not pay.

    work: the nanoseconds that the target expects for so many units.
    """
    gain = costs.unit_gain
    one, many = work(1), work(most)
    if one * most <= many * gain:
        return [1]
    if one * costs.few_units > many:
        return []
    counts, last = [1], one
    few = 2
    while few < most:
        taken = work(few)
        if taken / few * gain < last / counts[-1]:
            counts.append(few)
            last = taken
        few *= 2
    return [most, *reversed(counts)]


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
        self._kernel = kernel
        self._units = found
        self._taken = {b.name for b in kernel.params} | {v.name for v in kernel.sizes}
        self._around = [
            Var(fresh(self._taken, "units"), INDEX) for _ in found.sizes[:-1]
        ]
        self._env: Env = dict.fromkeys((*self._around, *kernel.sizes), (0, None))
        self._nests: list[Stmt] = []
        self._notes: dict[str, Mapping[str, object]] = {}
        self._prepare: list[tuple[Kernel, ...]] = []

    def add(self, work: HoistedKernel, count: int, done: Expr, times: Expr) -> None:
        """Add a loop that runs the kernel of `count` units `times` times, from unit `done` on."""
        suffix = "" if count == 1 else f".{count}"
        part = work.kernel
        stmt, names = edit.renamed(part.body, self._taken, suffix)
        self._notes |= {names.get(n, n): said for n, said in part.notes.items()}
        unit = Var(fresh(self._taken, f"units.{count}"), INDEX)
        starts = [*self._around, done + unit * const(count, INDEX)]
        first = dict(zip(self._units.sizes, starts, strict=True))
        packed = self._packed(work.prepare, suffix)
        moves = {b: self._move(b, first, packed) for b in part.params}
        env = {**environment(stmt), **self._env, unit: (0, None)}
        apart = [b for b in part.outputs if _scattered(self._units, self._whole(b), 1)]
        staged = {b: self._staged(b, moves[b]) for b in apart}
        moves |= {b: _onto(local) for b, (local, _) in staged.items()}
        body = edit.rewrite(stmt, env, moves=moves)
        for local, copy in staged.values():
            body = Alloc(local, block(body, copy))
        # If the kernel itself is parallel, the loop over units is serial; else threads share the
        # units.
        shared = any(f.kind == "parallel" for f in loops_of(body))
        self._nests.append(loop(unit, times, body, "serial" if shared else "parallel"))

    def work(self) -> PartedWork:
        """All loops as one kernel."""
        old = self._kernel
        body = block(*self._nests)
        pairs = zip(self._around, self._units.sizes[:-1], strict=True)
        for unit, size in reversed(list(pairs)):
            body = loop(unit, size, body)
        read = reads(body)
        made = [k.outputs[0] for kernels in self._prepare for k in kernels]
        params = [b for b in (*old.inputs, *made) if b in read]
        whole = Kernel(
            name=old.name,
            params=(*params, *old.outputs),
            outputs=old.outputs,
            body=_sized(old.body, body),
            notes=self._notes,
        )
        return PartedWork(whole, tuple(self._prepare))

    def _packed(self, prepare: Sequence[Kernel], suffix: str) -> dict[Buffer, Buffer]:
        """New buffers for the results of work on constants, by the part's own."""
        own: dict[Buffer, Buffer] = {}
        for b in (k.outputs[0] for k in prepare):
            own[b] = Buffer(fresh(self._taken, b.name + suffix), b.extents, b.dtype)
        if own:
            self._prepare.append(tuple(on_buffers(k, own) for k in prepare))
        return own

    def _move(
        self, b: Buffer, first: Mapping[Expr, Expr], packed: Mapping[Buffer, Buffer]
    ) -> edit.Move:
        if b in packed:
            return lambda index: (packed[b], index)
        whole = self._whole(b)
        return lambda index: (whole, self._units.from_(whole, index, first))

    def _whole(self, b: Buffer) -> Buffer:
        return next(w for w in self._kernel.params if w.name == b.name)

    def _staged(self, b: Buffer, move: edit.Move) -> tuple[Buffer, Stmt]:
        """A local tensor for a result of some units, and the statement that copies it to the whole.

        In the whole tensor, strides depend on sizes, but instructions on tensors need constants.
        """
        name = fresh(self._taken, f"{b.name}.units")
        local = Buffer(name, b.extents, b.dtype, "stack")
        place = [
            Var(fresh(self._taken, f"{name}.{n}"), INDEX) for n in range(len(b.shape))
        ]
        whole, index = move(tuple(place))
        copy: Stmt = Store(whole, index, Load(local, tuple(place)))
        kinds = ["serial"] * (len(place) - 1) + ["vector"]
        for v, extent, kind in reversed([*zip(place, b.shape, kinds, strict=True)]):
            copy = loop(v, extent, copy, kind)
        return local, copy


def _onto(local: Buffer) -> edit.Move:
    return lambda index: (local, index)


def _sized(old: Stmt, body: Stmt) -> Stmt:
    """Replace the body inside the loops over sizes."""
    if not (isinstance(old, For) and old.kind == SIZE):
        return body
    return For(old.var, old.extent, SIZE, _sized(old.body, body))
