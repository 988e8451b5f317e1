"""Column operators of ai.onnx.ml pipelines: scale, normalize, impute, encode, join."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType, dtype_of, float32, int64, string
from tilewright.graph.nodes import Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.scores import DOMAIN, real, rows_of, single

# The smallest number that a row is divided by when it is normalized.
LEAST = 1e-30


def _same_shape(op: OpCall) -> Sequence[Type]:
    return [(float32, op.shape(0))]


def _columns(
    op: OpCall,
    f: Fragment,
    name: str,
    dtype: DType,
) -> Value:
    """One number per column, or one for all columns."""
    numbers = op.attr(name) or ()
    if len(numbers) not in (1, op.shape(0)[-1]):
        raise op.error(
            f"{name} has {len(numbers)} numbers: expected 1, or {op.shape(0)[-1]}, "
            "one per column"
        )
    return f.constant(numbers, dtype)


def _scaled(
    op: OpCall,
    f: Fragment,
) -> list[Value]:
    x = real(op, f)
    assert x.dtype is not None
    moved = f.op(
        "Sub",
        x,
        _columns(op, f, "offset", x.dtype),
    )
    return [single(f, f.op("Mul", moved, _columns(op, f, "scale", x.dtype)))]


def _normalized(
    op: OpCall,
    f: Fragment,
) -> list[Value]:
    x = real(op, f)
    axis = f.ints(-1)
    norm = op.attr("norm", "MAX")
    if norm == "L2":
        squares = f.op(
            "ReduceSum",
            f.op("Mul", x, x),
            axis,
            keepdims=1,
        )
        size = f.op(
            "Sqrt",
            squares,
        )
    elif norm in ("L1", "MAX"):
        reducer = "ReduceSum" if norm == "L1" else "ReduceMax"
        size = f.op(
            reducer,
            f.op("Abs", x),
            axis,
            keepdims=1,
        )
    else:
        raise op.error(f"norm {norm!r} is not one of MAX, L1, L2")
    size = f.op(
        "Max",
        size,
        f.constant(LEAST, x.dtype),
    )
    return [single(f, f.op("Div", x, size))]


def _imputed(
    op: OpCall,
    f: Fragment,
) -> list[Value]:
    x = op.value(0)
    assert x.dtype is not None
    kind = "float" if op.attr("imputed_value_floats") else "int64"
    values = _columns(op, f, f"imputed_value_{kind}s", x.dtype)
    replaced = op.attr(f"replaced_value_{kind}", 0)
    if kind == "float" and math.isnan(replaced):
        missing = f.op("IsNaN", x) if x.dtype.kind == "float" else None
        return [x if missing is None else f.op("Where", missing, values, x)]
    missing = f.op(
        "Equal",
        x,
        f.constant(replaced, x.dtype),
    )
    return [f.op("Where", missing, values, x)]


def _categories(op: OpCall) -> int:
    found = op.attr("cats_int64s") or op.attr("cats_strings")
    if not found:
        raise op.error("it has no categories")
    return len(found)


def _one_hot_type(op: OpCall) -> Sequence[Type]:
    return [(float32, (*op.shape(0), _categories(op)))]


def _one_hot(
    op: OpCall,
    f: Fragment,
) -> list[Value] | None:
    """None for strings, and if a number that is not a category must stop the run."""
    x = op.value(0)
    if x.dtype == string or not op.attr("cats_int64s") or not op.attr("zeros", 1):
        return None
    cell = f.op(
        "Unsqueeze",
        x,
        f.ints(-1),
    )
    same = f.op(
        "Equal",
        cell,
        f.constant(op.attr("cats_int64s"), x.dtype),
    )
    return [f.cast(same, float32)]


# LabelEncoder's result for other keys, by the suffix of the attribute with its values.
DEFAULTS = {
    "floats": ("float", -0.0),
    "int64s": ("int64", -1),
    "tensor": ("tensor", None),
}
NUMBERS = {"floats": float32, "int64s": int64}


def _table(
    op: OpCall,
    which: str,
) -> tuple[str, Any] | None:
    """The keys or the values: their attribute's suffix and the array; None for strings."""
    for kind in DEFAULTS:
        found = op.attr(f"{which}_{kind}")
        if found is not None and np.size(found):
            dtype = NUMBERS[kind].numpy if kind in NUMBERS else None
            return kind, np.asarray(found, dtype).reshape(-1)
    return None


def _label_type(op: OpCall) -> Sequence[Type]:
    values = _table(op, "values")
    if op.version < 2:
        dtype = int64 if op.dtype(0) == string else string
    else:
        dtype = dtype_of(values[1].dtype) if values else string
    return [(string if dtype.name == "object" else dtype, op.shape(0))]


def _encoded(
    op: OpCall,
    f: Fragment,
) -> list[Value] | None:
    """Map numbers to numbers; None for strings."""
    keys = _table(op, "keys")
    values = _table(op, "values")
    if keys is None or values is None:
        return None
    if keys[1].dtype.kind not in "fi" or values[1].dtype.kind not in "fi":
        return None
    if len(keys[1]) != len(values[1]):
        raise op.error(f"it has {len(keys[1])} keys and {len(values[1])} values")
    name, default = DEFAULTS[values[0]]
    default = op.attr(f"default_{name}", default)
    other = np.zeros(1) if default is None else np.ravel(default)
    table = dict(zip(keys[1].tolist(), values[1].tolist(), strict=True))
    place = _place_among(f, op.value(0), [*table])
    known = list(table.values())
    with_other = np.append(known, other)
    entries = f.constant(with_other.astype(values[1].dtype))
    found = f.op("Gather", entries, place)
    return [found]


def _place_among(f: Fragment, x: Value, keys: Sequence[float]) -> Value:
    """The position of each element of `x` among the keys; past the last if it is not a key."""
    cell = f.op(
        "Unsqueeze",
        x,
        f.ints(-1),
    )
    known = f.constant(keys, x.dtype)
    same = f.op(
        "Equal",
        cell,
        known,
    )
    hits = f.op(
        "Cast",
        same,
        to=number_of("int32"),
    )
    place = f.op(
        "ArgMax",
        hits,
        axis=-1,
        keepdims=0,
    )
    any_ = f.op(
        "ReduceMax",
        hits,
        f.ints(-1),
        keepdims=0,
    )
    found = f.op(
        "Cast",
        any_,
        to=number_of("bool"),
    )
    return f.op(
        "Where",
        found,
        place,
        f.constant(len(keys), int64),
    )


def _vector_type(op: OpCall) -> Sequence[Type]:
    return [(float32, (op.shape(0)[0], sum(op.attr("inputdimensions") or ())))]


def _vectorized(
    op: OpCall,
    f: Fragment,
) -> list[Value] | None:
    """The matrices side by side, each cut or padded with zeros to its width."""
    widths = op.attr("inputdimensions") or ()
    if len(widths) != op.arity:
        raise op.error(f"it has {op.arity} inputs and {len(widths)} inputdimensions")
    if any(op.rank(n) != 2 for n in range(op.arity)):
        return None
    parts = []
    for n, width in enumerate(widths):
        x = single(f, op.value(n))
        rows, columns = op.shape(n)
        if width < columns:
            x = f.op(
                "Slice",
                x,
                f.ints(0),
                f.ints(width),
                f.ints(1),
            )
        elif width > columns:
            zeros = f.constant(
                np.zeros((rows, width - columns)),
                float32,
            )
            x = f.op(
                "Concat",
                x,
                zeros,
                axis=1,
            )
        parts.append(x)
    return [f.op("Concat", *parts, axis=1)]


def _imputer_type(op: OpCall) -> Sequence[Type]:
    rows_of(op)
    return same_type(op)


for _name, _infer, _decompose in (
    ("Scaler", _same_shape, _scaled),
    ("Normalizer", _same_shape, _normalized),
    ("Imputer", _imputer_type, _imputed),
    ("OneHotEncoder", _one_hot_type, _one_hot),
    ("LabelEncoder", _label_type, _encoded),
    ("FeatureVectorizer", _vector_type, _vectorized),
):
    register(OpDef(_name, _infer, domain=DOMAIN, decompose=_decompose))
