"""Products with matrices that are chosen at run time: `tilewright::GatheredMatMul`.

    GatheredMatMul(x: T[t, r, k], w: T[g, p, k, n], e: int[t]) -> T[t, r, p, n]

The product of each x[i] and the matrix w[e[i]], whose columns are in p panels. The matrix is read
where it is: MatMul(x, Gather(w, e)) copies it first. A panel is read in the order in which it is
stored. Negative numbers in e count from the end, and others outside of w are an error. Floats
narrower than float32 accumulate in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.compute.build import reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import wide, widened
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.gather import check_indices, wrapped
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

GATHERED_MATMUL, DOMAIN = "GatheredMatMul", "tilewright"


def _type(call: OpCall) -> Sequence[Type]:
    shapes = [list(call.shape(i)) for i in range(3)]
    if [len(s) for s in shapes] != [3, 4, 1]:
        raise call.error(f"shapes {shapes} do not have 3, 4 and 1 axes")
    (t, r, k), (_, panels, depth, n), chosen = shapes
    if k != depth or chosen != [t]:
        raise call.error(f"shapes {shapes} do not multiply")
    return call.result((t, r, panels, n))


def _compute(
    call: OpCall,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> list[Computation]:
    x, w, e = inputs

    def value(t: Any, r: Any, p: Any, n: Any, k: Any) -> Expr:
        own = wrapped(e[t], w.shape[0])
        return wide(x[t, r, k]) * wide(w[own, p, k, n])

    return [reduce_(call.name, outputs[0], (x.shape[2],), "add", value)]


def _arrays(
    call: OpCall,
    x: Array,
    w: Array,
    e: Array,
) -> list[Array]:
    check_indices(call, e, w.shape[0])
    products = np.matmul(widened(x)[:, None], widened(w[e]))
    found: Array = products.swapaxes(1, 2)
    return [found.astype(x.dtype)]


def _flops(call: OpCall) -> int:
    return 2 * call.size_out(0) * call.shape(0)[-1]


def _gradient(
    f: Fragment,
    call: OpCall,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value | None]:
    """The rows times the matrices transposed; for each matrix, the product of all rows with
    gradients, which are 0 where the row has another matrix."""
    rows, w, e = x
    t, r, k = call.shape(0)
    groups, panels, _, n = call.shape(1)
    columns = panels * n
    turned = f.transpose(w, 0, 1, 3, 2)
    turned = f.reshape(turned, groups, 1, columns, k)
    flow = f.reshape(g, t, r, columns)
    to_rows = gathered_matmul(f, flow, turned, e)
    to_rows = f.reshape(to_rows, t, r, k)
    chosen = f.term(f.cast(e, int64))
    chosen = (chosen < 0).chosen(chosen + groups, chosen)
    each = f.constant(np.arange(groups).reshape(-1, 1, 1, 1))
    own = f.op("Equal", f.reshape(chosen.value, 1, t, 1, 1), each)
    flow = f.unsqueeze(flow, 0)
    flow = f.op("Where", own, flow, f.number(0, g.dtype))
    flow = f.reshape(flow, groups, t * r, columns)
    turned = f.transpose(f.reshape(rows, 1, t * r, k), 0, 2, 1)
    to_w = f.op("MatMul", turned, flow)
    to_w = f.reshape(to_w, groups, k, panels, n)
    return to_rows, f.transpose(to_w, 0, 2, 1, 3), None


def gathered_matmul(f: Fragment, x: Value, w: Value, e: Value) -> Value:
    """Apply the operator."""
    [found] = f.ops(GATHERED_MATMUL, x, w, e, domain=DOMAIN, version=1, count=1)
    return found


register(
    OpDef(
        GATHERED_MATMUL,
        _type,
        domain=DOMAIN,
        compute=_compute,
        reference=_arrays,
        flops=_flops,
        gradient=_gradient,
    )
)
