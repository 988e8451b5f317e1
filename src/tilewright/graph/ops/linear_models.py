"""Linear models and support vector machines of ai.onnx.ml, as matrix products.

Support vector machines compute in float64, as libsvm does. Distances can then be computed as the
difference of two products, without a buffer of rows times vectors times features.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tilewright.base.dtypes import float32, float64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.scores import (
    DOMAIN,
    best,
    class_labels,
    classified,
    labelled,
    post_transform,
    real,
    rows_of,
    single,
    transformed,
    two_sided,
)


def _numbers(
    op: OpCall,
    name: str,
) -> Array:
    return np.asarray(op.attr(name) or (), np.float64)


def _product(
    op: OpCall,
    f: Fragment,
    targets: int,
) -> Value:
    """x @ coefficients.T + intercepts, in float64 if x is float64, else in float32."""
    x = real(op, f)
    features = op.shape(0)[1]
    coefficients = _numbers(op, "coefficients")
    if coefficients.size != targets * features:
        raise op.error(
            f"it has {coefficients.size} coefficients: expected {targets} rows for "
            f"{features} features"
        )
    matrix = coefficients.reshape(targets, features).T
    y = f.op(
        "MatMul",
        x,
        f.constant(matrix, x.dtype),
    )
    intercepts = op.attr("intercepts")
    return f.op("Add", y, f.constant(intercepts, x.dtype)) if intercepts else y


def _regressed(
    op: OpCall,
    f: Fragment,
) -> list[Value]:
    y = _product(op, f, op.attr("targets", 1))
    return [transformed(op, f, single(f, y))]


def _regression_type(op: OpCall) -> Sequence[Type]:
    return [(float32, (rows_of(op), op.attr("targets", 1)))]


def _targets(op: OpCall) -> int:
    """The number of scores per row of a linear classifier."""
    features = op.shape(0)[1]
    return len(op.attr("coefficients") or ()) // features if features else 0


def _classified(
    op: OpCall,
    f: Fragment,
) -> list[Value] | None:
    """None if one score represents one class: the standard does not define the label then."""
    targets = _targets(op)
    classes = len(class_labels(op))
    if targets == 1 and classes == 2:
        y = _product(op, f, 1)
        y = f.op(
            "Concat",
            f.op("Neg", y),
            y,
            axis=1,
        )
    elif targets == classes > 1:
        y = _product(op, f, targets)
    else:
        return None
    return [best(op, f, y), transformed(op, f, single(f, y))]


def _classification_type(op: OpCall) -> Sequence[Type]:
    rows_of(op)
    one = _targets(op) == 1 and len(class_labels(op)) == 2
    return classified(op, 2 if one else _targets(op))


# Support vector machines


def _kernel(
    op: OpCall,
    f: Fragment,
    vectors: Array,
) -> Value:
    """The kernel function of each row and support vector, float64[rows, vectors]."""
    gamma, coef0, degree = (*_numbers(op, "kernel_params"), 0.0, 0.0, 0.0)[:3]
    x = f.op(
        "Cast",
        op.value(0),
        to=number_of("float64"),
    )
    dot = f.op(
        "MatMul",
        x,
        f.constant(vectors.T),
    )

    def number(n: float) -> Value:
        return f.constant(n, float64)

    def scaled() -> Value:
        return f.op("Add", f.op("Mul", dot, number(gamma)), number(coef0))

    match op.attr("kernel_type", "LINEAR"):
        case "LINEAR":
            return dot
        case "POLY":
            return f.op("Pow", scaled(), number(degree))
        case "SIGMOID":
            return f.op("Tanh", scaled())
        case "RBF":
            square = f.op(
                "ReduceSum",
                f.op("Mul", x, x),
                f.ints(1),
                keepdims=1,
            )
            norms = f.constant((vectors**2).sum(1))
            apart = f.op(
                "Add",
                f.op("Sub", square, f.op("Mul", number(2), dot)),
                norms,
            )
            apart = f.op(
                "Max",
                apart,
                number(0),
            )
            return f.op("Exp", f.op("Mul", apart, number(-gamma)))
        case other:
            raise op.error(
                f"kernel_type {other!r} is not one of LINEAR, POLY, RBF, SIGMOID"
            )


def _vectors(
    op: OpCall,
    count: int,
) -> Array:
    found = _numbers(op, "support_vectors")
    features = op.shape(0)[1]
    if found.size != count * features:
        raise op.error(
            f"it has {found.size} numbers in support_vectors: expected {count} vectors of "
            f"{features} features"
        )
    return found.reshape(count, features)


def _svm_regressed(
    op: OpCall,
    f: Fragment,
) -> list[Value]:
    count = op.attr("n_supports", 0)
    coefficients = _numbers(op, "coefficients")
    if count:
        k = _kernel(op, f, _vectors(op, count))
    else:
        k = f.op(
            "Cast",
            op.value(0),
            to=number_of("float64"),
        )
    y = f.op(
        "MatMul",
        k,
        f.constant(coefficients[:, None]),
    )
    y = f.op(
        "Add",
        y,
        f.constant(_numbers(op, "rho")[:1]),
    )
    if op.attr("one_class", 0):
        inside = f.op(
            "Greater",
            y,
            f.constant(0, float64),
        )
        y = f.op(
            "Where",
            inside,
            f.constant(1, float64),
            f.constant(-1, float64),
        )
    return [transformed(op, f, single(f, y))]


def _svm_regression_type(op: OpCall) -> Sequence[Type]:
    return [(float32, (rows_of(op), 1))]


def _pairs(op: OpCall) -> list[tuple[int, int]]:
    return [*combinations(range(len(class_labels(op))), 2)]


def _duels(
    op: OpCall,
    per_class: Sequence[int],
) -> Array:
    """The vote of each support vector on each pair of classes: [vectors, pairs]."""
    ends = np.cumsum([0, *per_class])
    coefficients = _numbers(op, "coefficients").reshape(-1, ends[-1])
    pairs = _pairs(op)
    found = np.zeros((ends[-1], len(pairs)))
    for n, (i, j) in enumerate(pairs):
        for one, row in ((i, j - 1), (j, i)):
            mine = slice(ends[one], ends[one + 1])
            found[mine, n] = coefficients[row, mine]
    return found


def _won(
    op: OpCall,
    f: Fragment,
    scores: Value,
) -> Value:
    """The class that wins the most pairs, the first in a tie: [rows]."""
    pairs = _pairs(op)
    classes = len(class_labels(op))
    first, second = (np.eye(classes)[[p[side] for p in pairs]] for side in (0, 1))
    wins = f.op(
        "Greater",
        scores,
        f.constant(0, float64),
    )
    wins = f.op(
        "Cast",
        wins,
        to=number_of("float64"),
    )
    votes = f.op(
        "MatMul",
        wins,
        f.constant(first - second),
    )
    votes = f.op(
        "Add",
        votes,
        f.constant(second.sum(0)),
    )
    return f.op(
        "ArgMax",
        votes,
        axis=1,
        keepdims=0,
    )


def _svm_classified(
    op: OpCall,
    f: Fragment,
) -> list[Value] | None:
    """None without vectors or with `prob_a`, and for some models of two classes (`odd`)."""
    per_class = op.attr("vectors_per_class") or ()
    positive = min(_numbers(op, "coefficients"), default=0) >= 0
    two = len(_pairs(op)) == 1
    odd = two and (positive or post_transform(op) not in ("NONE", "LOGISTIC"))
    if not per_class or op.attr("prob_a") or odd:
        return None
    k = _kernel(op, f, _vectors(op, sum(per_class)))
    scores = f.op(
        "MatMul",
        k,
        f.constant(_duels(op, per_class)),
    )
    scores = f.op(
        "Add",
        scores,
        f.constant(_numbers(op, "rho")),
    )
    label = labelled(op, f, _won(op, f, scores))
    if two:
        return [label, single(f, two_sided(op, f, scores, False))]
    return [label, transformed(op, f, single(f, scores))]


def _svm_classification_type(op: OpCall) -> Sequence[Type]:
    classes = len(class_labels(op))
    pairs = len(_pairs(op))
    votes = op.attr("vectors_per_class") and not op.attr("prob_a")
    return classified(op, max(pairs, 2) if votes else classes)


_FAMILY: tuple[tuple[str, Any, Any], ...] = (
    ("LinearRegressor", _regression_type, _regressed),
    ("LinearClassifier", _classification_type, _classified),
    ("SVMRegressor", _svm_regression_type, _svm_regressed),
    ("SVMClassifier", _svm_classification_type, _svm_classified),
)
for _name, _infer, _decompose in _FAMILY:
    register(OpDef(_name, _infer, domain=DOMAIN, decompose=_decompose))
