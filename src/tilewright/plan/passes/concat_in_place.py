"""Storing the operands of a concatenation directly in its result.

Fusion lets a producer write its part of a concatenation directly if nothing else reads that part.
Tensors with other readers would still be copied: in a dense block every layer appends to the
results of all previous ones. Such a tensor is placed inside the larger one, where all its writers
and readers access it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Computation, Output
from tilewright.compute.transforms import map_loads
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Buffer, Expr, Load, Var, const
from tilewright.expr.simplify import simplify
from tilewright.plan.decisions import COPIED, IN_PLACE, Choose, estimated
from tilewright.plan.nodes import DefUse, FusionGroup, Step

Readers = dict[Buffer, Callable[[Load], Expr]]


@dataclass(frozen=True, slots=True)
class ConcatPart:
    """Where a tensor is stored: its element `index` is element `index + at` of a larger tensor."""

    tensor: Buffer
    at: tuple[int, ...]

    def inside(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """Translate an index into the tensor to one into the larger tensor."""
        moved = []
        for i, offset in zip(index, self.at, strict=True):
            if offset:
                i = simplify(i + const(offset))
            moved.append(i)
        return tuple(moved)

    def within(self, outer: ConcatPart) -> ConcatPart:
        """The tensor's place in the tensor that contains the larger one."""
        sums = tuple(a + b for a, b in zip(self.at, outer.at, strict=True))
        return ConcatPart(outer.tensor, sums)


def concat_in_place(
    steps: Sequence[Step],
    keep: Collection[Buffer],
    side_by_side: int,
    choose: Choose = estimated,
) -> list[Step]:
    """The steps without copies of a whole tensor into another; those in `keep` stay separate.

    choose: who decides that a tensor is copied after all; see `plan.decisions`.

    If a step only does `u[i + at] = t[i]` for all i in t, t becomes that part of u, provided that

        neither is in `keep`: inputs, constants, results, tensors of host fallbacks
        some group writes t, and neither is stored in a third tensor yet
        only Computations write and read t, u, and tensors already stored in them, and no group
        both writes and reads these: its kernel would have the same memory as operand and result
        no group looks up a place in t: only the extent of t bounds it
        at least `side_by_side` elements of t are contiguous in u
    """
    flow = DefUse(steps)
    found: dict[Buffer, ConcatPart] = {}
    gone: set[FusionGroup] = set()
    for step in steps:
        copy = _copied(step)
        if copy is None or not isinstance(step, FusionGroup):
            continue
        tensor, place = copy
        larger = place.tensor
        if _run(tensor, larger) < side_by_side:
            continue
        if any(b in found or b in keep for b in (tensor, larger)):
            continue
        family = {tensor, larger}
        for b, p in found.items():
            if p.tensor in (tensor, larger):
                family.add(b)
        if not _free(flow, family, tensor, {*gone, step}):
            continue
        users = (*flow.writers[tensor], *flow.readers[tensor])
        if any(group.looks_up(tensor) for group in users):
            continue
        groups = _around(steps, flow, tensor, larger)
        if choose(groups, IN_PLACE, tensor) == COPIED:
            continue
        events.emit("placed", tensor=tensor.name, inside=larger.name, at=place.at)
        gone.add(step)
        for b, p in found.items():
            if p.tensor is tensor:
                found[b] = p.within(place)
        found[tensor] = place
    readers = {b: reader(p) for b, p in found.items()}
    return [placed(s, found, readers) for s in steps if s not in gone]


def _around(
    steps: Sequence[Step], flow: DefUse, tensor: Buffer, larger: Buffer
) -> list[FusionGroup]:
    """The groups that write or read a tensor or the larger one, in order."""
    near = {
        g
        for b in (tensor, larger)
        for g in (*flow.writers[b], *flow.readers.get(b, ()))
    }
    return [s for s in steps if isinstance(s, FusionGroup) and s in near]


def _copied(step: Step) -> tuple[Buffer, ConcatPart] | None:
    """The tensor that a pure copy step copies, and its target; None for any other step."""
    if not isinstance(step, FusionGroup) or not step.is_map:
        return None
    c = step.computations[0]
    if len(c.outputs) != 1:
        return None
    (o,) = c.outputs
    if not isinstance(o.value, Load):
        return None
    if len(o.index) != len(o.value.index):
        return None
    source = o.value.buffer
    extents = {d.var: d.extent for d in c.dims}
    at = []
    axes = zip(o.value.index, o.index, source.shape, strict=True)
    for read, written, extent in axes:
        offset = _offset(read, written, extent, extents)
        if offset is None:
            return None
        at.append(offset)
    if not extents.keys() <= {*o.value.index}:
        return None
    return source, ConcatPart(o.tensor, tuple(at))


def _offset(
    read: Expr, written: Expr, extent: int, extents: Mapping[Var, int]
) -> int | None:
    """The offset of an axis of `extent` elements that is copied as a whole, or None."""
    form = affine(written)
    if extent == 1 and form.is_const and affine(read).is_const:
        return form.const
    whole = isinstance(read, Var) and extents.get(read) == extent
    if not whole or form.terms != ((read, 1),):
        return None
    return form.const


def _run(inner: Buffer, outer: Buffer) -> int:
    """The number of elements of the inner tensor that are contiguous in the outer one."""
    size = 1
    for a, b in zip(reversed(inner.shape), reversed(outer.shape), strict=True):
        size *= a
        if a != b:
            break
    return size


def _free(
    flow: DefUse, family: set[Buffer], tensor: Buffer, gone: set[FusionGroup]
) -> bool:
    """Whether only Computations write and read the family, and no group does both."""
    if not flow.writers.get(tensor):
        return False
    writers: set[FusionGroup] = set()
    readers: set[FusionGroup] = set()
    for b in family:
        writers.update(flow.writers.get(b, ()))
        readers.update(flow.readers.get(b, ()))
    writers -= gone
    readers -= gone
    plain = all(s.kernel is None for s in writers | readers)
    return plain and writers.isdisjoint(readers)


def placed(step: Step, found: dict[Buffer, ConcatPart], readers: Readers) -> Step:
    if not isinstance(step, FusionGroup):
        return step
    if found.keys().isdisjoint((*step.reads, *step.writes)):
        return step
    moved = [_moved(c, found, readers) for c in step.computations]
    return replace(step, computations=tuple(moved))


def _moved(
    c: Computation, found: dict[Buffer, ConcatPart], readers: Readers
) -> Computation:
    outputs = []
    for o in c.outputs:
        index = tuple(map_loads(i, readers) for i in o.index)
        value = map_loads(o.value, readers)
        place = found.get(o.tensor)
        if place is None:
            outputs.append(Output(o.tensor, index, value))
        else:
            outputs.append(Output(place.tensor, place.inside(index), value))
    return replace(c, outputs=tuple(outputs))


def reader(place: ConcatPart) -> Callable[[Load], Expr]:
    return lambda load: Load(place.tensor, place.inside(load.index))
