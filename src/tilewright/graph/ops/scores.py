"""How models of ai.onnx.ml turn scores into results: post transforms and labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.dtypes import DType, float32, float64, int64, string
from tilewright.base.errors import UnsupportedError
from tilewright.graph.nodes import Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpCall, Type

DOMAIN = "ai.onnx.ml"

# The constant of Winitzki's approximation of the inverse error function (2008).
WINITZKI = 0.147


def _softmax_zero(
    f: Fragment,
    y: Value,
) -> Value:
    """Softmax over nonzero elements; zeros stay zero."""
    zero = f.constant(0, y.dtype)
    axis = f.ints(1)
    none = f.op(
        "Equal",
        y,
        zero,
    )
    e = f.op(
        "Exp",
        f.op("Sub", y, f.op("ReduceMax", y, axis, keepdims=1)),
    )
    e = f.op(
        "Where",
        none,
        zero,
        e,
    )
    total = f.op(
        "ReduceSum",
        e,
        axis,
        keepdims=1,
    )
    return f.op("Where", none, zero, f.op("Div", e, total))


def _probit(
    f: Fragment,
    y: Value,
) -> Value:
    """sqrt(2) * erfinv(2 y - 1), by Winitzki's formula as in ONNX's reference."""

    def number(n: float) -> Value:
        return f.constant(n, y.dtype)

    x = f.op(
        "Sub",
        f.op("Mul", number(2), y),
        number(1),
    )
    one = number(1)
    product = f.op(
        "Mul",
        f.op("Sub", one, x),
        f.op("Add", one, x),
    )
    log = f.op(
        "Log",
        product,
    )
    v = f.op(
        "Mul",
        log,
        number(0.5),
    )
    v = f.op(
        "Add",
        v,
        number(2 / (math.pi * WINITZKI)),
    )
    inner = f.op(
        "Mul",
        log,
        number(1 / WINITZKI),
    )
    root = f.op(
        "Sqrt",
        f.op("Sub", f.op("Mul", v, v), inner),
    )
    size = f.op(
        "Sqrt",
        f.op("Sub", root, v),
    )
    negative = f.op(
        "Less",
        x,
        number(0),
    )
    signed = f.op(
        "Where",
        negative,
        f.op("Neg", size),
        size,
    )
    return f.op("Mul", number(math.sqrt(2)), signed)


TRANSFORMS: dict[str, Callable[[Fragment, Value], Value]] = {
    "NONE": lambda f, y: y,
    "SOFTMAX": lambda f, y: f.op("Softmax", y, axis=1),
    "LOGISTIC": lambda f, y: f.op("Sigmoid", y),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


def post_transform(op: OpCall) -> str:
    """The transform given by the attribute, as a name or (since TreeEnsemble) a number."""
    how = op.attr("post_transform", "NONE")
    names = [*TRANSFORMS]
    if isinstance(how, int) and 0 <= how < len(names):
        return names[how]
    if how not in TRANSFORMS:
        raise UnsupportedError(
            f"post_transform {how!r} of {op.operation.op_type}: "
            f"expected one of {', '.join(names)}"
        )
    return str(how)


def transformed(
    op: OpCall,
    f: Fragment,
    y: Value,
) -> Value:
    """The scores, [rows, targets], after the node's post transform."""
    return TRANSFORMS[post_transform(op)](f, y)


def two_sided(
    op: OpCall,
    f: Fragment,
    score: Value,
    positive: bool,
) -> Value:
    """Both scores of a model with a single score, [rows, 1]; the other class comes first.

    positive: the score is a probability, as nonnegative weights indicate. Only the transform
    LOGISTIC is applied, as in ONNX Runtime.
    """
    if positive and post_transform(op) != "LOGISTIC":
        other = f.op(
            "Sub",
            f.constant(1, score.dtype),
            score,
        )
        return f.op(
            "Concat",
            other,
            score,
            axis=1,
        )
    both = f.op(
        "Concat",
        f.op("Neg", score),
        score,
        axis=1,
    )
    return f.op("Sigmoid", both) if post_transform(op) == "LOGISTIC" else both


def class_labels(op: OpCall) -> list[Any]:
    """The labels of a classifier: numbers or strings. Raises ModelError if there are none."""
    names = ("classlabels_int64s", "classlabels_ints", "classlabels_strings")
    found = next((labels for n in names if (labels := op.attr(n))), None)
    if not found:
        raise op.error("it has no class labels")
    return list(found)


def label_dtype(op: OpCall) -> DType:
    """The type of the labels."""
    return string if op.attr("classlabels_strings") else int64


def labelled(
    op: OpCall,
    f: Fragment,
    index: Value,
) -> Value:
    """The labels with the given indices, [rows]."""
    labels = class_labels(op)
    if labels == list(range(len(labels))):
        return index
    return f.op("Gather", f.constant(labels, label_dtype(op)), index)


def best(
    op: OpCall,
    f: Fragment,
    scores: Value,
) -> Value:
    """The label of each row's highest score, the first in a tie."""
    return labelled(op, f, f.op("ArgMax", scores, axis=1, keepdims=0))


def above(
    op: OpCall,
    f: Fragment,
    score: Value,
    limit: float,
) -> Value:
    """The second label if the score, [rows, 1], is above the limit, else the first."""
    over = f.op(
        "Greater",
        score,
        f.constant(limit, score.dtype),
    )
    index = f.op(
        "Cast",
        over,
        to=number_of("int64"),
    )
    return labelled(op, f, f.reshape(index, -1))


def rows_of(op: OpCall) -> int:
    """The number of rows of the input. Raises ModelError if it is not a matrix."""
    if op.rank(0) != 2:
        raise op.error(f"expected a matrix, got {list(op.shape(0))}")
    return op.shape(0)[0]


def classified(
    op: OpCall,
    columns: int,
) -> Sequence[Type]:
    """The types of a classifier's results: labels, and a number of columns of scores."""
    rows = rows_of(op)
    return [(label_dtype(op), (rows,)), (float32, (rows, columns))]


def real(
    op: OpCall,
    f: Fragment,
) -> Value:
    """The input as float64 if it has that type, else as float32."""
    x = op.value(0)
    dtype = float64 if x.dtype == float64 else float32
    return x if x.dtype == dtype else f.cast(x, dtype)


def single(
    f: Fragment,
    y: Value,
) -> Value:
    """`y` as float32, the type of the results of ai.onnx.ml."""
    return y if y.dtype == float32 else f.cast(y, float32)
