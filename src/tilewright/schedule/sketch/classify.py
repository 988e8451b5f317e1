"""What kind of kernel a group of Computations is: the choice of sketch, read off its structure.

* `map`: no reduction.
* `tiled`: one reduction whose results are contiguous along a free dimension (matrix products,
  convolutions, pooling, column sums), with at most one map behind it.
* `rows`: reductions along the contiguous dimension of their input (softmax, layer normalisation,
  row sums), any number of them over the same leading dimensions.
* `attention`: a contraction, `rows` over its results, and a contraction of what they make.
* `plain`: anything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.compute.nodes import CC, PS, Computation, Dim
from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import Buffer, Expr, Load, Mul, Var
from tilewright.graph.stages import is_contraction
from tilewright.ir.node import postorder


@dataclass(frozen=True, slots=True)
class Kind:
    """The sketch's name and the Computations it schedules.

    reduction, epilogue, vector: for `tiled` the reduction, the map behind it, and the vector
    dimension. parts: for `attention` the scores, the rows and the output, each of its own kind.
    """

    name: str
    computations: tuple[Computation, ...]
    reduction: Computation | None = None
    epilogue: Computation | None = None
    vector: Dim | None = None
    parts: tuple[Kind, Kind, Kind] | None = None


def address(load: Load) -> Affine:
    """The element offset of an access in its buffer, as a linear form."""
    total = Affine((), 0)
    for index, stride in zip(load.index, load.buffer.strides, strict=True):
        total = total + affine(index).scaled(stride)
    return total


def stride(form: Affine, v: Var) -> int | None:
    """Elements moved per step of `v`; None where the address is not linear in `v`."""
    for atom, _ in form.terms:
        if atom is not v and any(n is v for n in postorder(atom)):
            return None
    return form.coefficient(v)


def uses(e: Expr, v: Var) -> bool:
    """Whether `v` occurs in `e`."""
    return any(n is v for n in postorder(e))


def free_dims(computation: Computation) -> list[Dim]:
    """cc dimensions with more than one point, outermost first."""
    return [d for d in computation.dims if d.combine == CC and d.extent > 1]


def reduction_dims(computation: Computation) -> list[Dim]:
    """pw dimensions with more than one point, outermost first."""
    return [d for d in computation.dims if d.combine != CC and d.extent > 1]


def classify(computations: Sequence[Computation]) -> Kind:
    """The kind of kernel these Computations make, in the order given."""
    group = tuple(computations)
    if any(d.combine == PS for c in computations for d in c.dims):
        return Kind("plain", group)
    if all(c.is_map for c in computations):
        return Kind("map" if len(computations) == 1 else "plain", group)
    reductions = [c for c in computations if not c.is_map]
    if len(reductions) == 1 and computations[0] is reductions[0] and len(computations) <= 2:
        r = reductions[0]
        if len(r.outputs) == 1:
            free = free_dims(r)
            epilogue = computations[1] if len(computations) == 2 else None
            alike = epilogue is None or set(free_dims(epilogue)) == set(free)
            if free and alike and _contiguous_result(r, free[-1]):
                return Kind("tiled", group, r, epilogue, free[-1])
    products = [c for c in reductions if _is_product(c)]
    if len(products) == 2 and computations[0] is products[0]:
        return _attention(computations, products[1]) or Kind("plain", group)
    alike = all(_points(p) == _points(c) for p in products for c in reductions)
    if alike and all(_row_reduction(c) for c in reductions):
        return Kind("rows", group)
    return Kind("plain", group)


def _points(reduction: Computation) -> int:
    return math.prod(d.extent for d in free_dims(reduction))


def _is_product(c: Computation) -> bool:
    """A sum of products of two elements, which are not one and the same (a square)."""
    factors = [n for n in postorder(c.outputs[0].value) if isinstance(n, Mul)]
    return is_contraction(c) and any(not _loads(n.lhs) & _loads(n.rhs) for n in factors)


def _loads(e: Expr) -> set[Load]:
    return {n for n in postorder(e) if isinstance(n, Load)}


def _attention(computations: Sequence[Computation], second: Computation) -> Kind | None:
    """Scores, rows, output; None where the rows are not one row of scores for one of output."""
    at = computations.index(second)
    head = 2 if computations[1].is_map else 1
    scores, output = classify(computations[:head]), classify(computations[at:])
    rows = classify(computations[head:at])
    if (scores.name, rows.name, output.name) != ("tiled", "rows", "tiled"):
        return None
    made, used = computations[at - 1], second.outputs[0].value
    reads = [n for n in postorder(used) if isinstance(n, Load) and n.buffer in _written(made)]
    if len(reads) != 1 or not made.is_map:
        return None
    dims = {d.var: d for d in second.dims}
    along = [dims.get(i) for i in reads[0].index if isinstance(i, Var)]
    keys = reduction_dims(second)
    if len(along) != len(reads[0].index) or len(keys) != 1 or along[-1] is not keys[0]:
        return None
    return Kind("attention", tuple(computations), parts=(scores, rows, output))


def _written(c: Computation) -> set[Buffer]:
    return {o.tensor for o in c.outputs}


def _contiguous_result(r: Computation, vector: Dim) -> bool:
    """Whether vectors along `vector` read contiguous or invariant data, or weights to be packed."""
    accesses = list(r.accesses)
    steps = [stride(address(a), vector.var) for a in accesses]
    if any(s is None for s in steps):
        return False
    if any(s == 1 for s in steps):
        return True
    inner = reduction_dims(r)
    return len(accesses) >= 2 and bool(inner) and any(s == 0 for s in steps)


def _row_reduction(c: Computation) -> bool:
    """Whether some input is read contiguously along the last reduced dimension."""
    inner = reduction_dims(c)
    if not inner or len(c.outputs) != 1:
        return False
    return any(stride(address(a), inner[-1].var) == 1 for a in c.accesses)
