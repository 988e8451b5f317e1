"""Groups that do the same for each unit of an open size: one image of a batch, one row of a table.

Along a size `n` a group is n times its form for n = 1, and may be computed some units at a time,
where nothing in it depends on how many units there are, or on which one it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.compute.nodes import CC, Computation
from tilewright.expr.affine import affine
from tilewright.expr.nodes import INDEX, Buffer, Expr, Extent, Load, Var, const, fixed
from tilewright.expr.reads import reads_memory
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, substitute, transform

Step = tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True)
class Units:
    """A group that is the same for all units of a size.

    steps: the axis and the rows by which a tensor moves on from unit to unit; others all units
    share.
    """

    size: Var
    computations: tuple[Computation, ...]
    steps: Mapping[Buffer, Step]

    def together(self, tensor: Buffer) -> int | None:
        """The elements of a unit that follow one another in memory; None: all of them do."""
        axis, rows = self.steps.get(tensor, (0, 1))
        if all(e == 1 for e in tensor.extents[:axis]):
            return None
        behind = [fixed(e, f"tensor {tensor.name}") for e in tensor.extents[axis + 1 :]]
        return rows * prod(behind)

    def from_(
        self, tensor: Buffer, index: tuple[Expr, ...], first: Expr
    ) -> tuple[Expr, ...]:
        """An index in a tensor of some units as one in that of all, which has `first` in front."""
        if tensor not in self.steps:
            return index
        axis, rows = self.steps[tensor]
        moved = index[axis] + first * const(rows, INDEX)
        return (*index[:axis], moved, *index[axis + 1 :])


def units(
    computations: Sequence[Computation],
    params: Collection[Buffer],
    constants: Collection[Buffer],
) -> Units | None:
    """The units of a group along the only size that it has, or None where it is not so many times
    the same.

    For a size n, the forms for some units do what the whole does, one after another, where

        every tensor either has no size, or one axis of k*n rows
        a Computation without a size is the same for all units, and makes of `constants` what no
        other kernel sees
        every other one has one dimension d of m*n points, whose results are kept apart (cc)
        with d + m for d, each index and value is what it was, but that each tensor of k*n rows
        is read and written k rows further on, in rows that no memory names
        n stands nowhere else

    What one unit reads is then inside of its rows if it is so for n = 1, which is for the verifier
    of kernels to show. params: the tensors that others see.
    """
    sizes = {v for c in computations for v in (*c.sizes, *c.free)}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    written = [o.tensor for c in computations for o in c.outputs]
    tensors = dict.fromkeys([*written, *(b for c in computations for b in c.inputs)])
    found = {b: _step(b, size) for b in tensors if not b.static}
    steps = {b: step for b, step in found.items() if step is not None}
    if len(steps) < len(found):
        return None
    known = set(constants)
    for c in computations:
        if c.sizes or c.free:
            if not _repeats(c, size, steps):
                return None
            continue
        made = {o.tensor for o in c.outputs}
        if not known.issuperset(c.inputs) or made.intersection(params):
            return None
        known |= made
    return Units(size, tuple(computations), steps)


def _times(extent: Extent, size: Var) -> int | None:
    """k of an extent that is k times the size, k at least 1."""
    if isinstance(extent, int):
        return None
    form = affine(extent)
    if form.const or len(form.terms) != 1:
        return None
    atom, times = form.terms[0]
    return times if atom is size and times > 0 else None


def _step(b: Buffer, size: Var) -> Step | None:
    """The axis along which the tensor has its units, and the rows of one."""
    (axis, *others) = (n for n, e in enumerate(b.extents) if not isinstance(e, int))
    rows = _times(b.extents[axis], size)
    return None if others or rows is None else (axis, rows)


def _repeats(c: Computation, size: Var, steps: Mapping[Buffer, Step]) -> bool:
    """Whether the Computation does the same for each unit."""
    along = [d for d in c.dims if not d.static]
    if len(along) != 1 or along[0].combine != CC or size in c.free:
        return False
    (d,) = along
    points = _times(d.size, size)
    indices = (a.index[steps[a.buffer][0]] for a in c.accesses if a.buffer in steps)
    if points is None or any(map(reads_memory, indices)):
        return False
    later: dict[Any, Any] = {d.var: d.var + const(points, d.var.dtype)}
    env = {x.var: (0, x.extent - 1) for x in c.dims if x.static}

    def moves(e: Any, rows: int = 0) -> bool:
        there = simplify(substitute(e, later), env)
        here = transform(e, lambda node: _moved(node, steps))
        return there is simplify(here + const(rows, e.dtype) if rows else here, env)

    for o in c.outputs:
        axis, rows = steps.get(o.tensor, (-1, 0))
        if not rows or not moves(o.value):
            return False
        if not all(moves(i, rows * (n == axis)) for n, i in enumerate(o.index)):
            return False
    return True


def _moved(node: Node, steps: Mapping[Buffer, Step]) -> Node:
    """A read of the unit behind: its own indices have been moved already."""
    if not isinstance(node, Load) or node.buffer not in steps:
        return node
    axis, rows = steps[node.buffer]
    index = node.index[axis] + const(rows, INDEX)
    return Load(node.buffer, (*node.index[:axis], index, *node.index[axis + 1 :]))
