"""Storing the operands of a concatenation directly in its result.

Fusion lets a producer write its part of a concatenation where nothing else reads it. What others
read too is still copied: in a dense block every layer appends to what all before it made. Such a
tensor is given its place inside of the larger one, and everybody who writes or reads it does so
there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from tilewright.base import events
from tilewright.compute.nodes import Computation, Output
from tilewright.compute.transforms import map_loads
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Buffer, Expr, Load, Var, const
from tilewright.expr.simplify import simplify
from tilewright.plan.nodes import DefUse, FusionGroup, Step

Readers = dict[Buffer, Callable[[Load], Expr]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lives: its element `index` is the element `index + at` of a larger one."""

    tensor: Buffer
    at: tuple[int, ...]

    def inside(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """An index into the tensor as one into the larger."""
        pairs = zip(index, self.at, strict=True)
        return tuple(simplify(i + const(a)) if a else i for i, a in pairs)

    def within(self, outer: Place) -> Place:
        """The place in the tensor that the larger one lives in itself."""
        sums = tuple(a + b for a, b in zip(self.at, outer.at, strict=True))
        return Place(outer.tensor, sums)


def concat_in_place(
    steps: Sequence[Step], keep: Collection[Buffer], side_by_side: int
) -> list[Step]:
    """The steps without copies of a whole tensor into another; those in `keep` stay apart.

    A tensor t of which a step is `u[i + at] = t[i]` for all i in t, and does nothing else, becomes
    that part of u, where

        neither is in `keep`: inputs, constants, results, what host fallbacks use
        some group writes t, and neither lives in a third tensor yet
        only Computations write and read t, u, and what lives in them already, and no group writes
        one of these and reads one: its kernel would have the same memory as operand and result
        at least `side_by_side` elements of t lie side by side in u
    """
    flow = DefUse(steps)
    found: dict[Buffer, Place] = {}
    gone: set[FusionGroup] = set()
    for step in steps:
        copy = _copied(step)
        if copy is None or not isinstance(step, FusionGroup):
            continue
        tensor, place = copy
        if _run(tensor, place.tensor) < side_by_side:
            continue
        if any(b in found or b in keep for b in (tensor, place.tensor)):
            continue
        inner = {b for b, p in found.items() if p.tensor in (tensor, place.tensor)}
        if not _free(flow, {*inner, tensor, place.tensor}, tensor, {*gone, step}):
            continue
        events.emit("placed", tensor=tensor.name, inside=place.tensor.name, at=place.at)
        gone.add(step)
        found |= {b: p.within(place) for b, p in found.items() if p.tensor is tensor}
        found[tensor] = place
    readers = {b: _reader(p) for b, p in found.items()}
    return [_placed(s, found, readers) for s in steps if s not in gone]


def _copied(step: Step) -> tuple[Buffer, Place] | None:
    """The tensor that the step does nothing but copy, and where to; None for any other step."""
    if (
        not isinstance(step, FusionGroup)
        or not step.is_map
        or len(step.computations[0].outputs) != 1
    ):
        return None
    c, (o,) = step.computations[0], step.computations[0].outputs
    if not isinstance(o.value, Load) or len(o.index) != len(o.value.index):
        return None
    extents = {d.var: d.extent for d in c.dims}
    at: list[int] = []
    for read, written, extent in zip(
        o.value.index, o.index, o.value.buffer.shape, strict=True
    ):
        form = affine(written)
        first = extent == 1 and form.is_const and affine(read).is_const
        along = isinstance(read, Var) and extents.get(read) == extent
        if not first and not (along and form.terms == ((read, 1),)):
            return None
        at.append(form.const)
    if len({*o.value.index} & extents.keys()) < len(extents):
        return None
    return o.value.buffer, Place(o.tensor, tuple(at))


def _run(inner: Buffer, outer: Buffer) -> int:
    """The elements of the inner tensor that lie side by side in the outer."""
    size = 1
    for a, b in zip(reversed(inner.shape), reversed(outer.shape), strict=True):
        size *= a
        if a != b:
            break
    return size


def _free(
    flow: DefUse, family: set[Buffer], tensor: Buffer, gone: set[FusionGroup]
) -> bool:
    """Whether Computations alone write and read the family, and no group does both."""
    writers = {s for b in family for s in flow.writers.get(b, ())} - gone
    readers = {s for b in family for s in flow.readers.get(b, ())} - gone
    plain = all(s.kernel is None for s in writers | readers)
    return plain and bool(flow.writers.get(tensor)) and not writers & readers


def _placed(step: Step, found: dict[Buffer, Place], readers: Readers) -> Step:
    if not isinstance(step, FusionGroup) or found.keys().isdisjoint(
        (*step.reads, *step.writes)
    ):
        return step
    return replace(
        step, computations=tuple(_moved(c, found, readers) for c in step.computations)
    )


def _moved(c: Computation, found: dict[Buffer, Place], readers: Readers) -> Computation:
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


def _reader(place: Place) -> Callable[[Load], Expr]:
    return lambda load: Load(place.tensor, place.inside(load.index))
