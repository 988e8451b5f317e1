"""Joining axes whose indices are the terms of one mixed-radix split.

What a reshape leaves in an epilogue, `y[i // 8, i % 8, j]`, is a plain walk through memory: y seen
with its first two axes as one is `y[i, j]`. It is the view that changes, not the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.compute.nodes import Computation, Output
from tilewright.compute.transforms import map_loads
from tilewright.expr.nodes import Buffer, Const, Expr, FloorDiv, Load, Mod, const

Views = dict[Buffer, Buffer]
Index = tuple[Expr, ...]


def join_axes(group: Sequence[Computation]) -> tuple[tuple[Computation, ...], Views]:
    """The group on views of its tensors, and the view of each tensor that changed shape."""
    views: Views = {}
    current = tuple(group)
    while (found := _candidate(current)) is not None:
        tensor, axis = found
        shape = tensor.shape
        both = shape[axis] * shape[axis + 1]
        joined = (*shape[:axis], both, *shape[axis + 2 :])
        view = Buffer(tensor.name, joined, tensor.dtype, tensor.scope)
        current = tuple(_moved(c, tensor, view, axis) for c in current)
        if tensor in views.values():
            views = {b: view if v is tensor else v for b, v in views.items()}
        else:
            views[tensor] = view
    return current, views


def _candidate(group: Sequence[Computation]) -> tuple[Buffer, int] | None:
    """A tensor and the first of two axes, long A and B, that are one in all accesses, reads and
    writes: with any number n of its own, each indexes them by

        n // B and n % B             which is n on the axis of length A * B, or
        n // B % A and n % B         which is n % (A * B) there

    for // and % that round down, n below 0 included. The element is the same, (n // B) * B + n % B
    from the first, and is inside the one view where it is inside the other. Two indices that
    both are terms of splits, of different numbers or for other lengths, are two axes.
    """
    found: dict[Buffer, list[Index]] = {}
    for c in group:
        for a in c.accesses:
            found.setdefault(a.buffer, []).append(a.index)
        for o in c.outputs:
            found.setdefault(o.tensor, []).append(o.index)
    for tensor, accesses in found.items():
        for axis in range(len(tensor.shape) - 1):
            if all(_joined(tensor, index, axis) is not None for index in accesses):
                return tensor, axis
    return None


def _joined(
    tensor: Buffer,
    index: Index,
    axis: int,
) -> Expr | None:
    """The index whose mixed-radix split yields the indices of `axis` and the next one, or None."""
    high = index[axis]
    low = index[axis + 1]
    base = tensor.shape[axis + 1]
    if not isinstance(low, Mod) or not _is(low.rhs, base):
        return None
    if isinstance(high, FloorDiv) and high.lhs is low.lhs and _is(high.rhs, base):
        return low.lhs
    if isinstance(high, Mod) and _is(high.rhs, tensor.shape[axis]):
        quotient = high.lhs
        if (
            isinstance(quotient, FloorDiv)
            and quotient.lhs is low.lhs
            and _is(quotient.rhs, base)
        ):
            return low.lhs % const(base * tensor.shape[axis])
    return None


def _is(e: Expr, value: int) -> bool:
    return isinstance(e, Const) and e.value == value


def _moved(
    c: Computation,
    tensor: Buffer,
    view: Buffer,
    axis: int,
) -> Computation:
    def place(index: Index) -> Index:
        number = _joined(tensor, index, axis)
        assert number is not None
        return (*index[:axis], number, *index[axis + 2 :])

    table = {tensor: lambda load: Load(view, place(load.index))}
    outputs = tuple(
        Output(
            view if o.tensor is tensor else o.tensor,
            place(o.index) if o.tensor is tensor else o.index,
            map_loads(o.value, table),
        )
        for o in c.outputs
    )
    return replace(c, outputs=outputs)
