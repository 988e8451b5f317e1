"""Reductions whose length is read from a tensor, as of the rows of a sparse matrix.

    k = reduce_axis((indptr[i], indptr[i + 1]))          made inside the function of a compute

They are not homomorphisms over a box, and so become statements of the loop IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import INDEX, Add, Expr, Load, Var, as_expr, const
from tilewright.ir.node import Node, postorder, substitute
from tilewright.lang.te.syntax.nodes import Axis, Script, Tensor
from tilewright.loops.nodes import For, Stmt, Store, Update, block


def is_ragged(axis: Axis) -> bool:
    """Whether where it begins or ends depends on data or on other axes."""
    ends = (e for e in (axis.low, axis.extent) if isinstance(e, Expr))
    return any(isinstance(n, Load | Axis) for e in ends for n in postorder(e))


def ragged(
    name: str,
    axis: Sequence[Axis],
    reduced: Sequence[Axis],
    values: Sequence[Expr],
    reducer: Reducer,
    outputs: Sequence[Tensor],
) -> Script:
    """The nest of a reduction: each element begins with the neutral one, then the loops."""
    loops = {a: Var(f"{name}.{a.name}", INDEX) for a in (*axis, *reduced)}
    env: dict[Node, Node] = {a: loops[a] for a in axis}
    extents: dict[Axis, Expr] = {}
    for a in reduced:
        extents[a] = substitute(as_expr(a.extent, INDEX), env)
        low = substitute(as_expr(a.low, INDEX), env)
        env[a] = loops[a] if low is const(0) else Add(low, loops[a])
    place = tuple(loops[a] for a in axis)
    buffers = tuple(t.buffer for t in outputs)
    found = tuple(substitute(v, env) for v in values)
    body: Stmt = Update(buffers, (place,) * len(buffers), found, reducer)
    for a in reversed(reduced):
        body = For(loops[a], extents[a], "serial", body)
    pairs: Any = zip(buffers, reducer.identity, strict=True)
    body = block(*(Store(b, place, neutral) for b, neutral in pairs), body)
    for a in reversed(axis):
        body = For(loops[a], as_expr(a.extent, INDEX), "serial", body)
    names = tuple(v.name for v in loops.values())
    return Script(name, body, tuple(axis), tuple(reduced), names, tuple(outputs))
