"""What random graphs are made of: each piece adds an operator, or a few that go together.

A piece picks operands in the Builder and adds to it. It raises Rejected where they do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.graph.nodes import Value
from tilewright.testing.graphs import FLOATS, MAX_ELEMENTS, Builder, Rejected

UNARY = (
    "Relu Tanh Sigmoid Neg Abs Erf Softplus LeakyRelu HardSigmoid HardSwish Elu Selu Identity "
    "Sin Cos Softsign Mish Celu Gelu Exp Atan Sinh"
).split()
JUMPS = {  # unary operators with jumps: where
    "Floor": lambda a: a - np.round(a),
    "Ceil": lambda a: a - np.round(a),
    "Round": lambda a: a - 0.5 - np.round(a - 0.5),
    "Sign": lambda a: a,
    "ThresholdedRelu": lambda a: a - 1.0,
    "Shrink": lambda a: np.abs(a) - 0.5,
}
REDUCTIONS = (
    "ReduceSum ReduceSum ReduceMean ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 "
    "ReduceSumSquare ReduceLogSumExp"
).split()
CASTS = {dtypes.float32: 1, dtypes.int32: 6, dtypes.int64: 7, dtypes.bool_: 9}
CASTS |= {dtypes.float16: 10, dtypes.float64: 11, dtypes.uint8: 2, dtypes.int8: 3}


def far(distance: Any, dtype: DType | None) -> None:
    """Raise Rejected where some distance from a jump is within what rounding could bridge."""
    limit = 0.05 if dtype is dtypes.float16 else 1e-3
    if distance.size and np.abs(distance).min() < limit:
        raise Rejected


def varied(array: Any, axes: tuple[int, ...]) -> None:
    """Raise Rejected where values to normalize hardly differ: only rounding would be left."""
    if array.size and (np.ptp(array, axis=axes) < 0.05).any():
        raise Rejected


def unary(b: Builder) -> None:
    x = b.floating(0)
    b.op(b.rng.choice(UNARY), x)


def jump(b: Builder) -> None:
    x = b.floating(0)
    name = b.rng.choice(list(JUMPS))
    far(JUMPS[name](b.truth[x]), x.dtype)
    b.op(name, x)


def guarded(b: Builder) -> None:
    """Log, Sqrt, Reciprocal behind what keeps them in their domain."""
    x = b.floating(0)
    name = b.rng.choice(("Sqrt", "Log", "Reciprocal"))
    if name == "Log" or b.truth[x].size == 0 or b.truth[x].min() < 0.05:
        y = b.op("Add", b.op("Abs", x), b.given(np.array(0.5, _numpy(x))))
    else:
        y = x
    b.op(name, y)


def clip(b: Builder) -> None:
    x = b.pick(lambda v: v.dtype in (*FLOATS, dtypes.int32, dtypes.int64))
    low, high = (b.given(np.array(n, _numpy(x)), b.rng.random() < 0.8) for n in (-1, 1))
    b.op("Clip", x, *b.rng.choice(((low, high), (low,), (None, high))))


def binary(b: Builder) -> None:
    x = b.pick(lambda v: v.dtype is not dtypes.bool_)
    name = b.rng.choice(
        ("Add", "Add", "Mul", "Mul", "Sub", "Max", "Min", "Sum", "Mean", "PRelu")
    )
    y = b.partner(x)
    if name in ("Sum", "Mean") and b.rng.random() < 0.5:
        b.op(name, x, y, b.partner(x))
    elif name != "PRelu" and b.rng.random() < 0.5:
        b.op(name, y, x)
    else:
        b.op(name, x, y)


def divide(b: Builder) -> None:
    x = b.pick(lambda v: v.dtype is not dtypes.bool_)
    y = b.partner(x)
    if (np.abs(b.truth[y]) < 0.1).any():
        y = b.op("Add", b.op("Abs", y), b.given(np.array(1, _numpy(y))))
    name = (
        "Mod"
        if x.dtype in (dtypes.int32, dtypes.int64) and b.rng.random() < 0.5
        else "Div"
    )
    b.op(name, x, y)


def power(b: Builder) -> None:
    x = b.floating(0)
    b.op("Pow", x, b.given(np.array(b.rng.choice((2, 3, 1)), _numpy(x))))


def compare(b: Builder) -> None:
    x = b.pick(lambda v: v.dtype in (*FLOATS, dtypes.int32, dtypes.int64))
    y = b.partner(x)
    if x.dtype in FLOATS:
        far(b.truth[x] - b.truth[y], x.dtype)
    b.op(
        b.rng.choice(("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal")),
        x,
        y,
    )


def logic(b: Builder) -> None:
    x = b.pick(lambda v: v.dtype is dtypes.bool_)
    if b.rng.random() < 0.3:
        b.op("Not", x)
    else:
        b.op(b.rng.choice(("And", "Or", "Xor")), x, b.partner(x))


def where(b: Builder) -> None:
    x = b.pick()
    try:
        c = b.pick(lambda v: v.dtype is dtypes.bool_ and fits(v, x))
    except Rejected:
        c = b.leaf(x.extents[b.rng.randint(0, len(x.extents)) :], dtypes.bool_)
    b.op("Where", c, *b.rng.sample([x, b.partner(x)], 2))


def cast(b: Builder) -> None:
    x = b.pick()
    to = b.rng.choice(list(CASTS))
    if x.dtype in FLOATS and to not in FLOATS:
        far(JUMPS["Sign" if to is dtypes.bool_ else "Floor"](b.truth[x]), x.dtype)
    values = b.truth[x]
    if to.is_int and values.size:
        info = np.iinfo(to.numpy)
        if values.min() < info.min or values.max() > info.max:
            raise Rejected
    b.op("Cast", x, to=CASTS[to])


def reduction(b: Builder) -> None:
    x = (
        b.floating(1)
        if b.rng.random() < 0.9
        else b.pick(lambda v: v.dtype is dtypes.int64)
    )
    name = b.rng.choice(REDUCTIONS)
    keep = b.rng.randint(0, 1)
    if b.rng.random() < 0.1:
        b.op(name, x, keepdims=keep)
        return
    axes = _axes(b, x, b.rng.choice((1, 1, 2, 3)))
    if name in ("ReduceMax", "ReduceMin", "ReduceMean") and 0 in x.extents:
        raise Rejected
    b.op(name, x, b.ints(*axes), keepdims=keep)


def arg(b: Builder) -> None:
    x = b.floating(1, 4)
    [axis] = _axes(b, x, 1)
    a = np.sort(b.truth[x], axis=axis)
    far(np.diff(a, axis=axis), x.dtype)
    b.op(b.rng.choice(("ArgMax", "ArgMin")), x, axis=axis, keepdims=b.rng.randint(0, 1))


def cumsum(b: Builder) -> None:
    x = b.floating(1, 4)
    axis = b.given(np.array(_axes(b, x, 1)[0], np.int64))
    b.op("CumSum", x, axis, exclusive=b.rng.randint(0, 1), reverse=b.rng.randint(0, 1))


def matmul(b: Builder) -> None:
    x = b.floating(1)
    if not x.extents:
        raise Rejected
    n = b.rng.choice((*b.extents, 1))
    k = x.extents[-1]
    form = b.rng.choice(("weights", "weights", "batched", "left", "self", "vector"))
    if form == "weights":
        b.op("MatMul", x, b.leaf((k, n), x.dtype))
    elif form == "batched":
        batch = [e if b.rng.random() < 0.7 else 1 for e in x.extents[:-2]]
        b.op("MatMul", x, b.leaf((*batch, k, n), x.dtype))
    elif form == "left":
        b.op(
            "MatMul",
            b.leaf((n, x.extents[-2] if len(x.extents) > 1 else k), x.dtype),
            x,
        )
    elif form == "vector":
        b.op("MatMul", x, b.leaf((k,), x.dtype))
    else:
        rank = len(x.extents)
        if rank < 2:
            raise Rejected
        perm = [*range(rank - 2), rank - 1, rank - 2]
        b.op("MatMul", x, b.op("Transpose", x, perm=perm))


def gemm(b: Builder) -> None:
    x = b.floating(2, 2)
    ta, tb = b.rng.randint(0, 1), b.rng.randint(0, 1)
    m, k = reversed(x.extents) if ta else x.extents
    n = b.rng.choice((*b.extents, 1))
    w = b.leaf((n, k) if tb else (k, n), x.dtype)
    attrs: dict[str, Any] = {"transA": ta, "transB": tb}
    if b.rng.random() < 0.4:
        attrs |= {"alpha": 0.5, "beta": 2.0}
    bias = b.rng.choice(((), (n,), (1, n), (m, 1), (m, n), (1,), None))
    b.op("Gemm", x, w, *([] if bias is None else [b.leaf(bias, x.dtype)]), **attrs)


def _image(b: Builder, spatial: tuple[int, ...] = (1, 2, 2, 2)) -> Value:
    """A value [N, C, spatial...], reshaped to that rank if need be."""
    rank = 2 + b.rng.choice(spatial)
    x = b.floating(2, 5)
    while len(x.extents) < rank:
        x = b.op("Unsqueeze", x, b.ints(b.rng.randint(0, len(x.extents))))
    if len(x.extents) > rank:
        raise Rejected
    return x


def _window(b: Builder, x: Value, dilate: bool = True) -> dict[str, Any]:
    kernel = [
        b.rng.choice([n for n in (1, 2, 3, 3, 5) if n <= max(e, 1)])
        for e in x.extents[2:]
    ]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if b.rng.random() < 0.5:
        attrs["strides"] = [b.rng.choice((1, 2, 3)) for _ in kernel]
    if dilate and b.rng.random() < 0.3:
        attrs["dilations"] = [b.rng.choice((1, 2)) for _ in kernel]
    way = b.rng.random()
    if way < 0.5:
        attrs["pads"] = [b.rng.randint(0, k // 2) for _ in range(2) for k in kernel]
    elif way < 0.7:
        attrs["auto_pad"] = b.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    return attrs


def conv(b: Builder) -> None:
    x = _image(b)
    channels = x.extents[1]
    group = b.rng.choice(
        [g for g in (1, 1, 1, 2, max(channels, 1)) if channels % g == 0]
    )
    out = group * b.rng.choice((1, 2, 3, 8, 16) if group == 1 else (1, 1, 2))
    attrs = _window(b, x)
    w = b.leaf((out, channels // group, *attrs["kernel_shape"]), x.dtype)
    bias = [b.leaf((out,), x.dtype)] if b.rng.random() < 0.5 else []
    b.op("Conv", x, w, *bias, group=group, **attrs)


def conv_transpose(b: Builder) -> None:
    x = _image(b)
    channels = x.extents[1]
    group = b.rng.choice([g for g in (1, 1, 2) if channels % g == 0])
    attrs = _window(b, x)
    attrs.pop("auto_pad", None)
    w = b.leaf((channels, b.rng.choice((1, 2, 3, 8)), *attrs["kernel_shape"]), x.dtype)
    b.op("ConvTranspose", x, w, group=group, **attrs)


def pool(b: Builder) -> None:
    x = _image(b)
    attrs = _window(b, x)
    name = b.rng.choice(("MaxPool", "AveragePool", "AveragePool", "LpPool"))
    if name == "LpPool":  # the reference is wrong about uneven pads
        attrs = {k: a for k, a in attrs.items() if k in ("kernel_shape", "strides")}
    elif b.rng.random() < 0.3 and "auto_pad" not in attrs:
        attrs["ceil_mode"] = 1
    if name == "AveragePool" and b.rng.random() < 0.5:
        attrs["count_include_pad"] = 1
    b.op(name, x, **attrs)


def global_pool(b: Builder) -> None:
    b.op(b.rng.choice(("GlobalAveragePool", "GlobalMaxPool")), _image(b))


def softmax(b: Builder) -> None:
    x = b.floating(1)
    b.op(b.rng.choice(("Softmax", "Softmax", "LogSoftmax")), x, axis=_axes(b, x, 1)[0])


def layer_norm(b: Builder) -> None:
    x = b.floating(1)
    axis = -1 if b.rng.random() < 0.6 else b.rng.randrange(len(x.extents))
    tail = x.extents[axis:]
    varied(b.truth[x], tuple(range(len(x.extents)))[axis:])
    bias = [b.leaf(tail, x.dtype)] if b.rng.random() < 0.7 else []
    b.op("LayerNormalization", x, b.leaf(tail, x.dtype), *bias, axis=axis)


def batch_norm(b: Builder) -> None:
    x = _image(b, (0, 1, 2, 2))
    c = (x.extents[1],)
    scale, bias, mean = (
        b.leaf(c, x.dtype, fixed=b.rng.random() < 0.8) for _ in range(3)
    )
    variance = b.given(
        (b.noise.random(c) + 0.5).astype(_numpy(x)), b.rng.random() < 0.8
    )
    b.op("BatchNormalization", x, scale, bias, mean, variance)


def instance_norm(b: Builder) -> None:
    x = _image(b)
    c = (x.extents[1],)
    varied(b.truth[x], tuple(range(2, len(x.extents))))
    b.op("InstanceNormalization", x, b.leaf(c, x.dtype), b.leaf(c, x.dtype))


def transpose(b: Builder) -> None:
    x = b.pick(lambda v: len(v.extents) > 1)
    perm = list(range(len(x.extents)))
    b.rng.shuffle(perm)
    b.op("Transpose", x, perm=perm)


def reshape(b: Builder) -> None:
    x = b.pick()
    shape = [e for e in x.extents if e != 1]
    for _ in range(b.rng.randint(0, 3)):
        if len(shape) > 1 and b.rng.random() < 0.5:
            n = b.rng.randrange(len(shape) - 1)
            shape[n : n + 2] = [shape[n] * shape[n + 1]]
        elif shape and b.rng.random() < 0.6:
            n = b.rng.randrange(len(shape))
            f = b.rng.choice(
                [f for f in range(1, shape[n] + 1) if shape[n] % f == 0] or [1]
            )
            shape[n : n + 1] = [f, shape[n] // f]
        else:
            shape.insert(b.rng.randint(0, len(shape)), 1)
    if len(shape) > 5:
        raise Rejected
    if shape and 0 not in shape and b.rng.random() < 0.3:
        shape[b.rng.randrange(len(shape))] = -1
    b.op("Reshape", x, b.ints(*shape), allowzero=int(0 in shape))


def squeeze(b: Builder) -> None:
    x = b.pick()
    ones = [n for n, e in enumerate(x.extents) if e == 1]
    form = b.rng.choice(("Squeeze", "Unsqueeze", "Flatten"))
    if form == "Squeeze" and ones:
        b.op("Squeeze", x, b.ints(*b.rng.sample(ones, b.rng.randint(1, len(ones)))))
    elif form == "Flatten":
        b.op("Flatten", x, axis=b.rng.randint(0, len(x.extents)))
    elif len(x.extents) < 5:
        b.op("Unsqueeze", x, b.ints(b.rng.randint(0, len(x.extents))))


def expand(b: Builder) -> None:
    x = b.pick()
    shape = [b.rng.choice(b.extents) if e == 1 else e for e in x.extents]
    if len(shape) < 5 and b.rng.random() < 0.4:
        shape.insert(0, b.rng.choice(b.extents))
    if math.prod(shape) > MAX_ELEMENTS:
        raise Rejected
    b.op("Expand", x, b.ints(*shape))


def concat(b: Builder) -> None:
    x = b.pick(lambda v: len(v.extents) > 0)
    axis = b.rng.randrange(len(x.extents))
    parts = [x]
    for _ in range(b.rng.randint(0, 2)):
        try:
            parts.append(b.pick(lambda v: v.dtype is x.dtype and _matches(v, x, axis)))
        except Rejected:
            shape = list(x.extents)
            shape[axis] = b.rng.choice((1, 2, 3, *b.extents))
            parts.append(b.leaf(shape, x.dtype))
    b.rng.shuffle(parts)
    b.op("Concat", *parts, axis=axis - len(x.extents) if b.rng.random() < 0.3 else axis)


def split(b: Builder) -> None:
    x = b.pick(lambda v: max(v.extents, default=0) > 1)
    axis = b.rng.choice([n for n, e in enumerate(x.extents) if e > 1])
    at = b.rng.randint(1, x.extents[axis] - 1)
    sizes = [at, x.extents[axis] - at]
    b.op("Split", x, b.ints(*sizes), axis=axis, outputs=2)


def slices(b: Builder) -> None:
    x = b.pick(lambda v: len(v.extents) > 0)
    axes = _axes(b, x, b.rng.choice((1, 1, 2)))
    starts, ends, steps = [], [], []
    for axis in axes:
        e = x.extents[axis]
        step = b.rng.choice((1, 1, 1, 2, 3, -1, -2))
        low, high = sorted((b.rng.randint(0, e), b.rng.randint(0, e)))
        if low == high and b.rng.random() < 0.9:
            low, high = 0, e
        if step > 0:
            starts.append(low)
            ends.append(high if high < e else b.rng.choice((e, 2**31)))
        else:
            starts.append(high - 1 if high else -1)
            ends.append(low - 1 if low else -(2**31))
        steps.append(step)
    b.op("Slice", x, b.ints(*starts), b.ints(*ends), b.ints(*axes), b.ints(*steps))


def pad(b: Builder) -> None:
    x = b.pick(lambda v: len(v.extents) > 0 and v.dtype is not dtypes.bool_)
    mode = b.rng.choice(("constant", "constant", "edge", "reflect", "wrap"))
    low = -1 if mode == "constant" else 0
    most = [2 if mode == "constant" else min(2, max(e - 1, 0)) for e in x.extents]
    pads = [b.rng.choice((0, b.rng.randint(low, m))) if e > 2 else 0
            for _ in range(2) for m, e in zip(most, x.extents, strict=True)]  # fmt: skip
    value = (
        [b.given(np.array(b.rng.choice((0, 1, 3)), _numpy(x)))]
        if mode == "constant"
        else []
    )
    b.op("Pad", x, b.ints(*pads), *value, mode=mode)


def gather(b: Builder) -> None:
    x = b.pick(lambda v: len(v.extents) > 0 and 0 not in v.extents)
    axis = b.rng.randrange(len(x.extents))
    e = x.extents[axis]
    shape: tuple[int, ...] = b.rng.choice(((), (1,), (3,), (2, 3), (b.extents[1],)))
    if b.rng.random() < 0.3:
        shape = (
            tuple(min(s, 5) for s in x.extents[:axis]) + (3,) + x.extents[axis + 1 :]
        )
        indices = b.given(b.noise.integers(-e, e, shape), b.rng.random() < 0.5)
        b.op("GatherElements", x, indices, axis=axis)
    else:
        indices = b.given(
            np.asarray(b.noise.integers(-e, e, shape)), b.rng.random() < 0.5
        )
        b.op("Gather", x, indices, axis=axis)


def tile(b: Builder) -> None:
    x = b.pick(lambda v: len(v.extents) > 0)
    repeats = [b.rng.choice((1, 1, 2, 3)) for _ in x.extents]
    if math.prod(repeats) * math.prod(x.extents) > MAX_ELEMENTS:
        raise Rejected
    b.op("Tile", x, b.ints(*repeats))


def trilu(b: Builder) -> None:
    x = b.pick(lambda v: len(v.extents) > 1)
    k = b.given(np.array(b.rng.randint(-2, 2), np.int64))
    b.op("Trilu", x, k, upper=b.rng.randint(0, 1))


def depth(b: Builder) -> None:
    x = b.floating(4, 4)
    if x.extents[1] % 4 == 0 and b.rng.random() < 0.6:
        b.op("DepthToSpace", x, blocksize=2, mode=b.rng.choice(("DCR", "CRD")))
    elif x.extents[2] % 2 == 0 and x.extents[3] % 2 == 0:
        b.op("SpaceToDepth", x, blocksize=2)


def attention(b: Builder) -> None:
    """softmax(x y^T / s) z over the last two axes."""
    x = b.floating(2, 4)
    rank = len(x.extents)
    y, z = (b.leaf(x.extents, x.dtype) if b.rng.random() < 0.5 else x for _ in range(2))
    scores = b.op(
        "MatMul", x, b.op("Transpose", y, perm=[*range(rank - 2), rank - 1, rank - 2])
    )
    scaled = b.op("Mul", scores, b.given(np.array(0.25, _numpy(x))))
    b.op("MatMul", b.op("Softmax", scaled, axis=-1), z)


def residual(b: Builder) -> None:
    """x + f(g(x)): the same value on two paths."""
    x = b.floating(1)
    b.op("Add", x, b.op(b.rng.choice(UNARY), b.op(b.rng.choice(UNARY), x)))


def source(b: Builder) -> None:
    dtype = b.rng.choice((dtypes.float32, dtypes.int32, dtypes.int64, dtypes.bool_))
    b.leaf(b.shape(), dtype, fixed=False)


def _axes(b: Builder, x: Value, count: int) -> list[int]:
    rank = len(x.extents)
    if not rank:
        raise Rejected
    found = b.rng.sample(range(rank), min(count, rank))
    return [a - rank if b.rng.random() < 0.3 else a for a in found]


def fits(v: Value, x: Value) -> bool:
    """Whether `v` broadcasts to the shape of `x`."""
    try:
        return np.broadcast_shapes(v.extents, x.extents) == x.extents
    except ValueError:
        return False


def _matches(v: Value, x: Value, axis: int) -> bool:
    own, other = list(v.extents), list(x.extents)
    if len(own) != len(other):
        return False
    del own[axis], other[axis]
    return own == other


def _numpy(x: Value) -> Any:
    assert x.dtype is not None
    return x.dtype.numpy


Piece = Callable[[Builder], None]
PIECES: dict[str, tuple[Piece, float]] = {
    f.__name__: (f, weight)
    for f, weight in (
        (unary, 5), (jump, 1), (guarded, 1), (clip, 1), (binary, 6), (divide, 1), (power, 1),
        (compare, 1), (logic, 1), (where, 2), (cast, 2), (reduction, 4), (arg, 1), (cumsum, 0.3),
        (matmul, 4), (gemm, 2), (conv, 4), (conv_transpose, 1), (pool, 2), (global_pool, 1),
        (softmax, 2), (layer_norm, 2), (batch_norm, 1), (instance_norm, 0.7), (transpose, 3),
        (reshape, 3), (squeeze, 2), (expand, 1), (concat, 2), (split, 2), (slices, 3), (pad, 2),
        (gather, 2), (tile, 0.7), (trilu, 0.5), (depth, 0.7), (attention, 1), (residual, 1),
        (source, 1),
    )
}  # fmt: skip
