"""Tensors generated from few inputs: Range, EyeLike, Trilu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.compute.build import cast, map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Le, Max, Min, Select, const
from tilewright.graph.ops.broadcasting import wide_dtype
from tilewright.graph.ops.casts import dtype_attribute
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

Buffers = Sequence[Buffer]


def _length(start: Any, limit: Any, delta: Any) -> int:
    numbers = [np.asarray(v).reshape(-1)[0].item() for v in (start, limit, delta)]
    first, last, step = numbers
    if not step:
        return 0
    length: int = math.ceil((last - first) / step)
    return max(0, length)


def _range_type(call: OpCall) -> Sequence[Type]:
    values = [np.asarray(call.need(n)) for n in range(3)]
    if values[2].astype(np.float64).reshape(-1)[0] == 0:
        raise call.error("a step of 0")
    return call.result((_length(*values),))


def _range(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    out = outputs[0]
    dtype = wide_dtype(out.dtype)
    start, delta = (const(call.need(n).reshape(-1)[0], dtype) for n in (0, 2))
    return [
        map_(call.name, out, lambda i: cast(start + cast(i, dtype) * delta, out.dtype))
    ]


def _range_arrays(
    _: OpCall,
    start: Array,
    limit: Array,
    delta: Array,
) -> list[Array]:
    count = np.arange(_length(start, limit, delta))
    is_float = dtypes.dtype_of(start.dtype).is_float
    wider = np.float64 if is_float else np.int64
    first, step = (v.reshape(-1)[0].astype(wider) for v in (start, delta))
    return [(first + count * step).astype(start.dtype)]


register(
    OpDef(
        "Range",
        _range_type,
        since=11,
        compute=_range,
        reference=_range_arrays,
    )
)


def _eye_dtype(call: OpCall) -> DType:
    return dtype_attribute(call, "dtype", call.dtype(0))


def _eye(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    out = outputs[0]
    k = call.attr("k", 0)
    one = const(1, out.dtype)
    zero = const(0, out.dtype)
    return [map_(call.name, out, lambda i, j: Select((i + k).eq(j), one, zero))]


def _eye_type(call: OpCall) -> Sequence[Type]:
    if call.rank(0) != 2:
        raise call.error(f"expected a matrix, got {call.rank(0)} dimensions")
    return [(_eye_dtype(call), call.shape(0))]


register(
    OpDef(
        "EyeLike",
        _eye_type,
        since=9,
        compute=_eye,
        reference=lambda call, x: [
            np.eye(x.shape[0], x.shape[1], call.attr("k", 0)).astype(
                dtype_attribute(call, "dtype", dtypes.dtype_of(x.dtype)).numpy
            )
        ],
    )
)


def _trilu(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]
    upper = call.attr("upper", 1)
    k: Expr = const(0)
    if call.has(1):
        known = call.constant(1)
        given = inputs[1]
        if known is None:
            k = given[(0,) * len(given.shape)]
        else:
            k = const(int(known.reshape(-1)[0]))
        # Diagonals beyond the matrix are equivalent; clamping avoids overflow when a row is added.
        k = Max(const(-x.shape[-2]), Min(const(x.shape[-1]), k))

    def at(*i: Any) -> Expr:
        row = i[-2] + k
        column = i[-1]
        inside = Le(row, column) if upper else Le(column, row)
        return Select(inside, x[i], const(0, x.dtype))

    return [map_(call.name, out, at)]


register(
    OpDef(
        "Trilu",
        same_type,
        since=14,
        compute=_trilu,
        reference=lambda call, x, k=None: [
            (np.triu if call.attr("upper", 1) else np.tril)(
                x, 0 if k is None else int(k.reshape(-1)[0])
            )
        ],
    )
)
