"""Splitting a deep sum into partial sums.

    y[i] = sum[k] f(i, k)
         = sum[b] p[b, i]   with   p[b, i] = sum[j] f(i, b*size + j)

What one part reads along the results is small enough for a cache to keep; the order of the terms
changes.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.compute.nodes import CC, PW, Computation, Dim, Output
from tilewright.compute.reducer import is_sum
from tilewright.compute.transforms import environment
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder, substitute


def split_sum(
    c: Computation,
    d: Dim,
    parts: int,
) -> tuple[Computation, Computation] | None:
    """The sums of `parts` equal parts along `d`, and their sum, which writes what `c` wrote.

    requires, else None: one output, the reducer a sum over `d` of numbers of its own dtype; `parts`
    divides the extent; no previously written output is read in the value (each part would
    then see an incomplete sum): the tensor is not among the inputs. The output's index is
    arbitrary: only the second Computation uses it, unchanged, and writes the same elements.
    """
    if c.reducer is None or not is_sum(c.reducer) or len(c.outputs) != 1:
        return None
    (out,) = c.outputs
    if d not in c.dims or d.combine != PW:
        return None
    if parts < 2 or d.extent % parts:
        return None
    if out.tensor in c.inputs or out.value.dtype is not c.reducer.dtypes[0]:
        return None
    if any(x.combine not in (CC, PW) for x in c.dims):
        return None
    size = d.extent // parts
    block = Dim(Var(f"{d.var.name}b", INDEX), parts)
    inner = replace(d, size=size)
    free = c.parallel_dims
    shape = (parts, *(x.extent for x in free))
    tensor = Buffer(f"{out.tensor.name}_parts", shape, c.reducer.dtypes[0])
    dims = (block, *(inner if x is d else x for x in c.dims))
    value = _moved(out.value, d, block, size, dims)
    made = Output(
        tensor,
        (block.var, *(x.var for x in free)),
        value,
    )
    before = replace(
        c,
        name=f"{c.name}_parts",
        dims=dims,
        outputs=(made,),
    )
    total = Load(tensor, made.index)
    along = Dim(block.var, parts, PW)
    after = replace(
        c,
        dims=(*free, along),
        outputs=(replace(out, value=total),),
    )
    return before, after


def _moved(
    value: Expr,
    d: Dim,
    block: Dim,
    size: int,
    dims: tuple[Dim, ...],
) -> Expr:
    """The value at the place of a part; indices simplified."""
    bounds = environment(dims)
    env: dict[object, object] = {d.var: block.var * size + d.var}
    moved: Expr = substitute(value, env)
    loads = [n for n in postorder(moved) if isinstance(n, Load)]
    tidy: dict[object, object] = {}
    for load in loads:
        index = tuple(simplify(i, bounds) for i in load.index)
        tidy[load] = Load(load.buffer, index)
    result: Expr = substitute(moved, tidy)
    return result
