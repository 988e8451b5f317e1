"""Groups that do the same for each unit of an open size: one image of a batch, one row of a table.

Along a size `n` a group is n times its form for n = 1, and may be computed some units at a time,
where nothing in it depends on how many units there are, or on which one it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.compute.nodes import CC, Computation, sizes_of
from tilewright.expr.affine import affine
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Expr,
    Extent,
    Load,
    Mul,
    Var,
    as_expr,
    const,
    fixed,
)
from tilewright.expr.reads import reads_memory
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, postorder, substitute, transform

Step = tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True)
class Units:
    """A group that is the same for all units of each of its sizes.

    sizes: outermost first; a product of several if they only occur together. steps: by tensor
    and size the axis and the rows by which it moves on from unit to unit; others all units share.
    """

    sizes: tuple[Expr, ...]
    computations: tuple[Computation, ...]
    steps: Mapping[Buffer, Mapping[Expr, Step]]

    def of(self, count: int) -> dict[Var, int]:
        """The sizes of which the innermost has so many units, and the others one."""
        found = dict.fromkeys(sizes_of(self.sizes), 1)
        found[sizes_of(self.sizes[-1:])[-1]] = count
        return found

    def together(self, tensor: Buffer, count: int = 1) -> int | None:
        """The elements of units that follow one another in memory; None: all of them do.

        count: units of the innermost size.
        """
        steps = self.steps.get(tensor, {})
        axes = [axis for axis, _ in steps.values()]
        if not axes:
            return None
        last, rows = steps.get(self.sizes[-1], max(steps.values()))
        if last < max(axes):
            return 1
        before = (e for n, e in enumerate(tensor.extents[:last]) if n not in axes)
        if all(e == 1 for e in before):
            return None
        behind = [fixed(e, f"tensor {tensor.name}") for e in tensor.extents[last + 1 :]]
        many = count if self.sizes[-1] in steps else 1
        return many * rows * prod(behind)

    def from_(
        self, tensor: Buffer, index: tuple[Expr, ...], first: Mapping[Expr, Expr]
    ) -> tuple[Expr, ...]:
        """An index in a tensor of some units as one in that of all; first: the first of them, by
        size."""
        found = list(index)
        for size, (axis, rows) in self.steps.get(tensor, {}).items():
            found[axis] += first[size] * const(rows, INDEX)
        return tuple(found)


def units(
    computations: Sequence[Computation],
    params: Collection[Buffer],
    constants: Collection[Buffer],
) -> Units | None:
    """The units of a group along its sizes, or None where it is not so many times the same.

    For a size n, the forms for some units do what the whole does, one after another, where

        every tensor either does not have the size, or one axis of k*n rows, and no size next to
        a Computation without sizes is the same for all units, and makes of `constants` what no
        other kernel sees
        every other one has one dimension d of m*n points, whose results are concatenated (cc)
        with d + m for d, each index and value is what it was, but that each tensor of k*n rows
        is read and written k rows further on, in rows that no memory names
        n occurs nowhere else

    For several sizes this holds for each. A product of them is one size if none of them occurs
    elsewhere. What one unit reads is then inside its rows if it is so for n = 1, which is for the
    verifier of kernels to show. params: the tensors that others see.
    """
    made = [o.tensor for c in computations for o in c.outputs]
    tensors = dict.fromkeys([*made, *(b for c in computations for b in c.inputs)])
    found = {b: _steps(b) for b in tensors}
    steps = {b: step for b, step in found.items() if step is not None}
    sizes = tuple(steps.get(made[-1], ()))
    variables = [v for size in sizes for v in sizes_of([size])]
    if not sizes or len(steps) < len(found) or len(set(variables)) < len(variables):
        return None
    if any(step.keys() - {*sizes} for step in steps.values()):
        return None
    known = set(constants)
    for c in computations:
        if c.sizes or c.free:
            if not all(_repeats(c, sizes, size, steps) for size in sizes):
                return None
            continue
        results = {o.tensor for o in c.outputs}
        if not known.issuperset(c.inputs) or results.intersection(params):
            return None
        known |= results
    return Units(sizes, tuple(computations), steps)


def _times(extent: Extent) -> tuple[Expr, int] | None:
    """A size, or a product of some, and how many times it an extent is, at least once."""
    form = affine(as_expr(extent, INDEX))
    if form.const or len(form.terms) != 1:
        return None
    atom, times = form.terms[0]
    plain = all(isinstance(node, Var | Mul) for node in postorder(atom))
    return (atom, times) if plain and times > 0 else None


def _steps(b: Buffer) -> dict[Expr, Step] | None:
    """By size the axis along which the tensor has its units, and the rows of one."""
    found: dict[Expr, Step] = {}
    for axis, extent in enumerate(b.extents):
        if isinstance(extent, int):
            continue
        step = _times(extent)
        if step is None or step[0] in found:
            return None
        found[step[0]] = axis, step[1]
    return found


def _repeats(
    c: Computation,
    sizes: Collection[Expr],
    size: Expr,
    steps: Mapping[Buffer, Mapping[Expr, Step]],
) -> bool:
    """Whether the Computation does the same for each unit of a size."""
    along = {_times(d.size): d for d in c.dims if not d.static}
    mine = [(step[1], d) for step, d in along.items() if step and step[0] is size]
    open_dims = [d for d in c.dims if not d.static]
    if c.free or len(mine) != 1 or len(open_dims) != len(sizes):
        return False
    ((points, d),) = mine
    own = {b: of[size] for b, of in steps.items() if size in of}
    indices = (a.index[own[a.buffer][0]] for a in c.accesses if a.buffer in own)
    if d.combine != CC or any(map(reads_memory, indices)):
        return False
    later: dict[Any, Any] = {d.var: d.var + const(points, d.var.dtype)}
    env = {x.var: (0, x.extent - 1) for x in c.dims if x.static}

    def moves(e: Any, rows: int = 0) -> bool:
        there = simplify(substitute(e, later), env)
        here = transform(e, lambda node: _moved(node, own))
        return there is simplify(here + const(rows, e.dtype) if rows else here, env)

    for o in c.outputs:
        axis, rows = own.get(o.tensor, (-1, 0))
        if not rows or not moves(o.value):
            return False
        if not all(moves(i, rows * (n == axis)) for n, i in enumerate(o.index)):
            return False
    return True


def _moved(node: Node, steps: Mapping[Buffer, Step]) -> Node:
    """A read of the unit after: its own indices have been moved already."""
    if not isinstance(node, Load) or node.buffer not in steps:
        return node
    axis, rows = steps[node.buffer]
    index = node.index[axis] + const(rows, INDEX)
    return Load(node.buffer, (*node.index[:axis], index, *node.index[axis + 1 :]))
