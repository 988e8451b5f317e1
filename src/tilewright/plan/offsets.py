"""Kernels write tensors from element 0 on; the caller passes the offset.

Kernels that fill different parts of one tensor, such as the layers of a dense block, then become
one kernel called with different pointers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from tilewright.compute.nodes import Computation, Output
from tilewright.compute.transforms import environment
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Buffer, const
from tilewright.expr.simplify import simplify

Offsets = dict[Buffer, int]


def from_zero(
    group: Sequence[Computation], outputs: Collection[Buffer]
) -> tuple[tuple[Computation, ...], Offsets]:
    """The group writing `outputs` from element 0 on, and the byte offset removed from each.

    A tensor that the group also reads is unchanged.
    """
    read = {b for c in group for b in c.inputs}
    starts: dict[Buffer, tuple[int, ...]] = {}
    for tensor in outputs:
        start = () if tensor in read else _start(group, tensor)
        if any(start):
            starts[tensor] = start
    if not starts:
        return tuple(group), {}
    moved = tuple(
        replace(c, outputs=tuple(_moved(o, starts.get(o.tensor)) for o in c.outputs))
        for c in group
    )
    return moved, {b: _bytes(b, start) for b, start in starts.items()}


def in_second_place(group: Sequence[Computation]) -> tuple[Computation, ...]:
    """The group with its results in the second place of each axis, wherever behind the first they
    are: equal for groups that fill different parts of a tensor, but the one at its start.

    A tensor stays as it is if the group also reads it, or fills several parts of it.
    """
    times = Counter(o.tensor for c in group for o in c.outputs)
    fixed = {b for c in group for b in c.inputs}
    fixed.update(b for b, n in times.items() if n > 1)

    def moved(o: Output) -> Output:
        places = _places(o)
        if o.tensor in fixed or max(places, default=0) < 1:
            return o
        forms = zip(map(affine, o.index), places, strict=True)
        index = (to_expr(Affine(f.terms, min(place, 1))) for f, place in forms)
        return replace(o, index=tuple(index))

    return tuple(replace(c, outputs=tuple(map(moved, c.outputs))) for c in group)


def place_of(group: Sequence[Computation], tensor: Buffer) -> int:
    """Bytes from the start of a tensor to the place where the group's last part of it begins, if
    the constants in the index are all that moves it."""
    last = [o for c in group for o in c.outputs if o.tensor is tensor][-1]
    places = _places(last)
    return _bytes(tensor, places) if any(places) else 0


def _places(o: Output) -> list[int]:
    return [affine(i).const for i in o.index]


def _start(group: Sequence[Computation], tensor: Buffer) -> tuple[int, ...]:
    """A lower bound, at least 0, of the index written along each axis.

    Bounds may be wider than what is written; a start before the tensor would put the end outside.
    """
    found: list[int] | None = None
    for c in group:
        env = environment(c.dims)
        for o in c.outputs:
            if o.tensor is tensor:
                low = [max(bounds(i, env)[0] or 0, 0) for i in o.index]
                found = (
                    low if found is None else [min(a, b) for a, b in zip(found, low)]
                )
    return tuple(found or ())


def _moved(o: Output, start: Sequence[int] | None) -> Output:
    if start is None:
        return o
    pairs = zip(o.index, start, strict=True)
    return Output(
        o.tensor, tuple(simplify(i - const(s)) if s else i for i, s in pairs), o.value
    )


def _bytes(tensor: Buffer, start: Sequence[int]) -> int:
    elements = sum(s * n for s, n in zip(start, tensor.strides, strict=True))
    return elements * tensor.dtype.itemsize
