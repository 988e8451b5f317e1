"""Reductions along axes: one row per operator, and ArgMax and ArgMin.

Floats narrower than float32 accumulate in float32, integers in their own dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import arg_reducer
from tilewright.expr.nodes import Buffer, Expr, Select, call, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops import derivative
from tilewright.graph.ops.broadcasting import wide, wide_dtype, widened
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.product_gradient import product_gradient
from tilewright.graph.ops.registry import (
    Array,
    Compute,
    Gradient,
    OpCall,
    OpDef,
    Type,
    register,
)

Buffers = Sequence[Buffer]


@dataclass(frozen=True)
class ReductionOperator:
    """A reduction: op over before(x), then after(sum, number of elements).

    arrays: the entire reduction on (array, axes); the result keeps its axes.
    """

    name: str
    op: str
    arrays: Callable[[Array, tuple[int, ...]], Any]
    before: Callable[[Expr], Expr] = lambda x: x
    after: Callable[[Expr, int], Expr] | None = None
    axes_input: int = 18  # since this version the axes are an input
    gradient: Gradient | None = None


def reduced_axes(
    op: OpCall,
    rank: int,
    axes_input: int,
) -> list[int]:
    """The axes to reduce, sorted; all if none is named (unless that means no reduction)."""
    if op.version >= axes_input:
        axes = op.ints(1)
    else:
        axes = op.attr("axes")
    if not axes:
        if op.attr("noop_with_empty_axes", 0):
            return []
        return list(range(rank))
    return sorted({op.axis(a, rank) for a in axes})


def reduced_shape(
    shape: Sequence[int],
    axes: Sequence[int],
    keep: bool,
) -> tuple[int, ...]:
    """The resulting shape, with extents of 1 if `keep`."""
    return tuple(
        1 if n in axes else d for n, d in enumerate(shape) if keep or n not in axes
    )


def point_of(
    axes: Sequence[int],
    rank: int,
    keep: bool,
    i: Sequence[Any],
) -> tuple[Any, ...]:
    """The operand's point, from the result's point followed by the reduced indices."""
    free = iter(i[: rank if keep else rank - len(axes)])
    bound = iter(i[rank if keep else rank - len(axes) :])
    point = []
    for n in range(rank):
        if n in axes:
            point.append(next(bound))
            if keep:
                next(free)
        else:
            point.append(next(free))
    return tuple(point)


def keeps(op: OpCall) -> bool:
    """Whether reduced axes stay with extent 1; only the value 1 says so."""
    return bool(op.attr("keepdims", 1) == 1)


def _row_compute(
    row: ReductionOperator,
) -> Callable[[OpCall, Buffers, Buffers], list[Computation]]:
    def compute(
        op: OpCall,
        inputs: Buffers,
        outputs: Buffers,
    ) -> list[Computation]:
        x = inputs[0]
        out = outputs[0]
        rank = len(x.shape)
        axes = reduced_axes(op, rank, row.axes_input)
        keep = keeps(op)
        if x.dtype.is_bool:
            combine = {"max": "or", "min": "and"}[row.op]
        else:
            combine = row.op

        def value(*i: Any) -> Expr:
            return row.before(wide(x[point_of(axes, rank, keep, i)]))

        if not axes:
            return [
                map_(
                    op.name, out, lambda *i: cast(_after(row, value(*i), 1), out.dtype)
                )
            ]
        over = [x.shape[a] for a in axes]
        if row.after is None:
            return [reduce_(op.name, out, over, combine, value)]
        total = Buffer(f"{op.name}_total", out.shape, wide_dtype(x.dtype))
        count = math.prod(over)
        return [
            reduce_(f"{op.name}_total", total, over, combine, value),
            map_(
                op.name, out, lambda *i: cast(_after(row, total[i], count), out.dtype)
            ),
        ]

    return compute


def _after(row: ReductionOperator, total: Expr, count: int) -> Expr:
    if row.after is None:
        return total
    return row.after(total, count)


def _register(row: ReductionOperator, compute: Compute | None = None) -> None:
    def infer(op: OpCall) -> Sequence[Type]:
        shape = op.shape(0)
        axes = reduced_axes(op, len(shape), row.axes_input)
        return op.result(reduced_shape(shape, axes, keeps(op)))

    def reference(
        op: OpCall,
        x: Array,
        axes: Array | None = None,
    ) -> list[Array]:
        if axes is None:
            given = op.attr("axes")
        else:
            given = axes.reshape(-1).tolist()
        if not given and op.attr("noop_with_empty_axes", 0):
            over: tuple[int, ...] = ()
        elif given:
            over = tuple(sorted({a % x.ndim for a in given}))
        else:
            over = tuple(range(x.ndim))
        found = np.asarray(row.arrays(widened(x), over)).astype(x.dtype)
        return [found if keeps(op) else np.squeeze(found, over)]

    register(
        OpDef(
            row.name,
            infer,
            compute=compute or _row_compute(row),
            reference=reference,
            flops=lambda op: op.size(0),
            gradient=row.gradient,
        )
    )


def _gradient(mean: bool) -> Gradient:
    def rule(
        f: Fragment,
        op: OpCall,
        x: Sequence[Value],
        y: Value,
        g: Value,
    ) -> Sequence[Value]:
        flow = _spread(f, op, g, x[0])
        count = max(op.size(0) // max(math.prod(derivative.extents(y)), 1), 1)
        return [derivative.scaled(f, flow, 1 / count) if mean else flow]

    return rule


def _product_gradient(
    f: Fragment,
    op: OpCall,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value]:
    rank = len(derivative.extents(x[0]))
    return [product_gradient(f, x[0], g, reduced_axes(op, rank, 18))]


def _norm_gradient(
    f: Fragment,
    op: OpCall,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value]:
    """g * x / y; 0 where the norm is 0, as it has a kink there, like a magnitude."""
    norm = f.term(y)
    zero = norm.of(0)
    is_zero = norm.equals(zero)
    flow = is_zero.chosen(zero, g)
    share = flow / is_zero.chosen(1, norm)
    spread = _spread(f, op, share.value, x[0])
    return [f.op("Mul", spread, x[0])]


def _spread(
    f: Fragment,
    op: OpCall,
    reduced: Value,
    x: Value,
) -> Value:
    """A value of the result's shape broadcast to the shape of input `x`."""
    extents = derivative.extents(x)
    axes = op.ints(1) if op.has(1) else op.attr("axes")
    over = {op.axis(a, len(extents)) for a in (axes or range(len(extents)))}
    if not axes and op.attr("noop_with_empty_axes", 0):
        over = set()
    kept = [1 if i in over else n for i, n in enumerate(extents)]
    return derivative.spread(f, derivative.reshaped(f, reduced, kept), x)


def _real(function: str) -> Callable[[Expr, int], Expr]:
    """A function of the sum; integers are computed in float64."""

    def after(total: Expr, _: int) -> Expr:
        if total.dtype.is_float:
            real = total
        else:
            real = cast(total, dtypes.float64)
        return call(function, real)

    return after


def _abs(x: Expr) -> Expr:
    return call("abs", x) if x.dtype.is_signed else x


def _mean(total: Expr, count: int) -> Expr:
    return total / count


def mean_of(x: Array, axes: tuple[int, ...]) -> Any:
    """The means over some axes, which stay; of no elements it is 0 / 0, as in kernels."""
    if not x.size:  # np.mean would warn
        with np.errstate(invalid="ignore"):
            return np.sum(x, axes, keepdims=True) / np.zeros((), x.dtype)
    return np.mean(x, axes, keepdims=True)


def _keep(
    f: Callable[..., Any], **options: Any
) -> Callable[[Array, tuple[int, ...]], Any]:
    def arrays(x: Array, axes: tuple[int, ...]) -> Any:
        return f(x, axis=axes, keepdims=True, **options)

    return arrays


def _extreme(name: str, worst: float) -> Callable[[Array, tuple[int, ...]], Any]:
    def arrays(x: Array, axes: tuple[int, ...]) -> Any:
        if x.dtype.kind == "b":
            return (np.any if worst < 0 else np.all)(x, axes, keepdims=True)
        if x.dtype.kind == "f":
            return getattr(np, name)(x, axes, keepdims=True, initial=worst)
        limits = np.iinfo(x.dtype)
        return getattr(np, name)(
            x, axes, keepdims=True, initial=limits.min if worst < 0 else limits.max
        )

    return arrays


for _row in (
    ReductionOperator(
        "ReduceSum", "add", _keep(np.sum), axes_input=13, gradient=_gradient(mean=False)
    ),
    ReductionOperator("ReduceProd", "mul", _keep(np.prod), gradient=_product_gradient),
    ReductionOperator("ReduceMax", "max", _extreme("max", -math.inf)),
    ReductionOperator("ReduceMin", "min", _extreme("min", math.inf)),
    ReductionOperator(
        "ReduceMean", "add", mean_of, after=_mean, gradient=_gradient(mean=True)
    ),
    ReductionOperator(
        "ReduceL1", "add", lambda x, a: np.sum(np.abs(x), a, keepdims=True), before=_abs
    ),
    ReductionOperator(
        "ReduceL2",
        "add",
        lambda x, a: np.sqrt(np.sum(np.square(x), a, keepdims=True)),
        before=lambda x: x * x,
        after=_real("sqrt"),
        gradient=_norm_gradient,
    ),
    ReductionOperator(
        "ReduceLogSum",
        "add",
        lambda x, a: np.log(np.sum(x, a, keepdims=True)),
        after=_real("log"),
    ),
    ReductionOperator(
        "ReduceSumSquare",
        "add",
        lambda x, a: np.sum(np.square(x), a, keepdims=True),
        before=lambda x: x * x,
    ),
):
    _register(_row)


def finite(x: Expr) -> Expr:
    """`x`, or 0 if it is infinite: a shift that keeps exp(x - shift) from being NaN."""
    return Select(call("isinf", x), const(0, x.dtype), x)


def _log_sum_exp(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    x = inputs[0]
    out = outputs[0]
    if not x.dtype.is_float:
        return None
    rank = len(x.shape)
    keep = keeps(op)
    axes = reduced_axes(op, rank, 18)
    over = [x.shape[a] for a in axes]
    accumulator = wide_dtype(x.dtype)
    top = Buffer(f"{op.name}_max", out.shape, accumulator)
    total = Buffer(f"{op.name}_sum", out.shape, accumulator)

    def value(*i: Any) -> Expr:
        return wide(x[point_of(axes, rank, keep, i)])

    if not axes:
        return [map_(op.name, out, lambda *i: x[i])]
    free = len(out.shape)
    return [
        reduce_(f"{op.name}_max", top, over, "max", value),
        reduce_(
            f"{op.name}_sum",
            total,
            over,
            "add",
            lambda *i: call("exp", value(*i) - finite(top[i[:free]])),
        ),
        map_(
            op.name,
            out,
            lambda *i: cast(call("log", total[i]) + finite(top[i]), out.dtype),
        ),
    ]


def _log_sum_exp_arrays(x: Array, axes: tuple[int, ...]) -> Any:
    if not axes:
        return x
    if x.dtype.kind != "f":
        x = x.astype(np.float64)
    top = np.max(x, axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isinf(top), 0, top)
    total = np.sum(np.exp(x - shift), axes, keepdims=True)
    return np.log(total) + shift


_register(
    ReductionOperator("ReduceLogSumExp", "add", _log_sum_exp_arrays), _log_sum_exp
)


def _arg_type(op: OpCall) -> Sequence[Type]:
    shape = op.shape(0)
    axis = op.own_axis(len(shape), 0)
    return [(dtypes.int64, reduced_shape(shape, [axis], keeps(op)))]


def _arg(name: str) -> Callable[[OpCall, Buffers, Buffers], list[Computation]]:
    def compute(
        op: OpCall,
        inputs: Buffers,
        outputs: Buffers,
    ) -> list[Computation]:
        x = inputs[0]
        out = outputs[0]
        rank = len(x.shape)
        keep = keeps(op)
        axis = op.own_axis(rank, 0)
        best = Buffer(f"{op.name}_value", out.shape, _comparable(x.dtype))
        last = bool(op.attr("select_last_index", 0))
        reducer = arg_reducer(name, best.dtype, dtypes.int64, last)

        def value(*i: Any) -> tuple[Expr, Expr]:
            return cast(x[point_of([axis], rank, keep, i)], best.dtype), i[-1]

        return [
            reduce_(
                op.name,
                (best, out),
                (x.shape[axis],),
                reducer,
                value,
            )
        ]

    return compute


def _comparable(dtype: DType) -> DType:
    return dtypes.uint8 if dtype.is_bool else wide_dtype(dtype)


def _arg_arrays(f: Callable[..., Any]) -> Callable[..., list[Array]]:
    def reference(op: OpCall, x: Array) -> list[Array]:
        axis = op.attr("axis", 0)
        if op.attr("select_last_index", 0):
            found = x.shape[axis] - 1 - f(np.flip(x, axis), axis=axis)
        else:
            found = f(x, axis=axis)
        if keeps(op):
            found = np.expand_dims(found, axis)
        return [np.asarray(found, np.int64)]

    return reference


for _name, _op, _function in (
    ("ArgMax", "argmax", np.argmax),
    ("ArgMin", "argmin", np.argmin),
):
    register(
        OpDef(
            _name,
            _arg_type,
            compute=_arg(_op),
            reference=_arg_arrays(_function),
            flops=lambda op: op.size(0),
        )
    )
