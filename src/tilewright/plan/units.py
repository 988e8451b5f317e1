"""Groups that do the same for each unit of an open size: an image of a batch, a row of a table.

Along a size `n` a group equals n repetitions of its form for n = 1, and can be computed some units
at a time, if nothing in it depends on the number of units or on which unit it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

from tilewright.base.dataclass import dataclass
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
    """A group that does the same for all units of each of its sizes.

    sizes: outermost first; a product of several if they only occur together. steps: by tensor and
    size, the axis and the number of rows between successive units; other tensors are shared by all
    units.
    """

    sizes: tuple[Expr, ...]
    computations: tuple[Computation, ...]
    steps: Mapping[Buffer, Mapping[Expr, Step]]

    def of(self, count: int) -> dict[Var, int]:
        """The sizes with `count` units for the innermost one and one for the others."""
        found = dict.fromkeys(sizes_of(self.sizes), 1)
        found[sizes_of(self.sizes[-1:])[-1]] = count
        return found

    def together(self, tensor: Buffer, count: int = 1) -> int | None:
        """The elements of units that are contiguous in memory; None: all of them are.

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
        """Translate an index from a tensor of some units to all. first: the first unit, by size."""
        found = list(index)
        for size, (axis, rows) in self.steps.get(tensor, {}).items():
            found[axis] += first[size] * const(rows, INDEX)
        return tuple(found)


def units(
    computations: Sequence[Computation],
    params: Collection[Buffer],
    constants: Collection[Buffer],
) -> Units | None:
    """The units of a group along its sizes, or None if it is not such a repetition.

    For a size n, the forms for some units, run in sequence, do the same as the whole, if

        every tensor either does not have the size, or one axis of k*n rows, and no size next to
        a Computation without sizes is the same for all units, and computes from `constants`
        values that no other kernel sees
        every other one has one dimension d of m*n points, whose results are concatenated (cc)
        with d + m for d, each index and value is unchanged, except that each tensor of k*n rows
        is read and written k rows further on, at rows that do not depend on memory
        n occurs nowhere else

    For several sizes this holds for each. A product of them is one size if none of them occurs
    elsewhere. A unit then reads only inside its rows if that holds for n = 1, which the kernel
    verifier shows. params: the tensors that others see.
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
    """A size or product of sizes of which an extent is a multiple, and the factor, at least 1."""
    form = affine(as_expr(extent, INDEX))
    if form.const or len(form.terms) != 1:
        return None
    atom, times = form.terms[0]
    plain = all(isinstance(node, Var | Mul) for node in postorder(atom))
    return (atom, times) if plain and times > 0 else None


def _steps(b: Buffer) -> dict[Expr, Step] | None:
    """By size, the axis along which the tensor has its units, and the rows per unit."""
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
    """A read shifted to the next unit; its own indices have already been shifted."""
    if not isinstance(node, Load) or node.buffer not in steps:
        return node
    axis, rows = steps[node.buffer]
    index = node.index[axis] + const(rows, INDEX)
    return Load(node.buffer, (*node.index[:axis], index, *node.index[axis + 1 :]))
