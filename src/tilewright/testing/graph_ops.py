"""The pieces of random graphs: each adds an operator, or a few that belong together.

A piece picks operands in the Builder and adds to it. It raises Rejected if they do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.graph.nodes import Value
from tilewright.testing.conditioning import far, varied
from tilewright.testing.graph_images import (
    batch_norm,
    conv,
    conv_transpose,
    depth,
    global_pool,
    instance_norm,
    pool,
)
from tilewright.testing.graphs import (
    FLOATS,
    MAX_ELEMENTS,
    OperatorRejected,
    RandomGraphBuilder,
)

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
CASTS = {
    dtypes.float32: 1,
    dtypes.int32: 6,
    dtypes.int64: 7,
    dtypes.bool_: 9,
    dtypes.float16: 10,
    dtypes.float64: 11,
    dtypes.uint8: 2,
    dtypes.int8: 3,
}


def unary(b: RandomGraphBuilder) -> None:
    x = b.floating(0)
    b.op(b.rng.choice(UNARY), x)


def jump(b: RandomGraphBuilder) -> None:
    x = b.floating(0)
    name = b.rng.choice(list(JUMPS))
    distance = JUMPS[name](b.truth[x])
    far(distance, x.dtype)
    b.op(name, x)


def guarded(b: RandomGraphBuilder) -> None:
    """Log, Sqrt, Reciprocal after what keeps them in their domain."""
    x = b.floating(0)
    name = b.one_of("Sqrt", "Log", "Reciprocal")
    least = b.truth[x].min(initial=np.inf)
    if name == "Log" or least < 0.05 or not b.truth[x].size:
        size = b.op("Abs", x)
        half = b.scalar(0.5, x)
        x = b.op("Add", size, half)
    b.op(name, x)


NUMBERS = (*FLOATS, dtypes.int32, dtypes.int64)


def clip(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: v.dtype in NUMBERS)
    fixed = b.chance(0.8)
    low = b.scalar(-1, x, fixed)
    fixed = b.chance(0.8)
    high = b.scalar(1, x, fixed)
    limits = b.one_of((low, high), (low,), (None, high))
    b.op("Clip", x, *limits)


def binary(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: v.dtype is not dtypes.bool_)
    name = b.one_of(
        "Add", "Add", "Mul", "Mul", "Sub", "Max", "Min", "Sum", "Mean", "PRelu"
    )
    y = b.partner(x)
    if name in ("Sum", "Mean") and b.chance(0.5):
        b.op(name, x, y, b.partner(x))
    elif name != "PRelu" and b.chance(0.5):
        b.op(name, y, x)
    else:
        b.op(name, x, y)


def divide(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: v.dtype is not dtypes.bool_)
    y = b.partner(x)
    near = np.abs(b.truth[y]) < 0.1
    if near.any():
        size = b.op("Abs", y)
        one = b.scalar(1, y)
        y = b.op("Add", size, one)
    if x.dtype in (dtypes.int32, dtypes.int64) and b.chance(0.5):
        name = "Mod"
    else:
        name = "Div"
    b.op(name, x, y)


def power(b: RandomGraphBuilder) -> None:
    x = b.floating(0)
    number = b.one_of(2, 3, 1)
    exponent = b.scalar(number, x)
    b.op("Pow", x, exponent)


def compare(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: v.dtype in NUMBERS)
    y = b.partner(x)
    if x.dtype in FLOATS:
        difference = b.truth[x] - b.truth[y]
        far(difference, x.dtype)
    name = b.one_of("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal")
    b.op(name, x, y)


def logic(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: v.dtype is dtypes.bool_)
    if b.chance(0.3):
        b.op("Not", x)
    else:
        name = b.one_of("And", "Or", "Xor")
        b.op(name, x, b.partner(x))


def where(b: RandomGraphBuilder) -> None:
    x = b.pick()
    try:
        c = b.pick(lambda v: v.dtype is dtypes.bool_ and fits(v, x))
    except OperatorRejected:
        first = b.rng.randint(0, len(x.extents))
        c = b.leaf(x.extents[first:], dtypes.bool_)
    choices = b.rng.sample([x, b.partner(x)], 2)
    b.op("Where", c, *choices)


def cast(b: RandomGraphBuilder) -> None:
    x = b.pick()
    to = b.rng.choice(list(CASTS))
    values = b.truth[x]
    if x.dtype in FLOATS and to not in FLOATS:
        if to is dtypes.bool_:
            rounding = "Sign"
        else:
            rounding = "Floor"
        distance = JUMPS[rounding](values)
        far(distance, x.dtype)
    if to.is_int and values.size:
        info = np.iinfo(to.numpy)
        if values.min() < info.min or values.max() > info.max:
            raise OperatorRejected
    b.op("Cast", x, to=CASTS[to])


def reduction(b: RandomGraphBuilder) -> None:
    if b.chance(0.9):
        x = b.floating(1)
    else:
        x = b.pick(lambda v: v.dtype is dtypes.int64)
    name = b.rng.choice(REDUCTIONS)
    keep = b.bit()
    if b.chance(0.1):
        b.op(name, x, keepdims=keep)
        return
    count = b.one_of(1, 1, 2, 3)
    axes = _axes(b, x, count)
    if name in ("ReduceMax", "ReduceMin", "ReduceMean") and 0 in x.extents:
        raise OperatorRejected
    b.op(name, x, b.ints(*axes), keepdims=keep)


def arg(b: RandomGraphBuilder) -> None:
    x = b.floating(1, 4)
    [axis] = _axes(b, x, 1)
    a = np.sort(b.truth[x], axis=axis)
    distance = np.diff(a, axis=axis)
    far(distance, x.dtype)
    name = b.one_of("ArgMax", "ArgMin")
    keepdims = b.bit()
    b.op(name, x, axis=axis, keepdims=keepdims)


def cumsum(b: RandomGraphBuilder) -> None:
    x = b.floating(1, 4)
    [axis] = _axes(b, x, 1)
    along = b.given(np.array(axis, np.int64))
    exclusive = b.bit()
    reverse = b.bit()
    b.op("CumSum", x, along, exclusive=exclusive, reverse=reverse)


def matmul(b: RandomGraphBuilder) -> None:
    x = b.floating(1)
    if not x.extents:
        raise OperatorRejected
    n = b.one_of(*b.extents, 1)
    k = x.extents[-1]
    form = b.one_of("weights", "weights", "batched", "left", "self", "vector")
    if form == "weights":
        y = b.leaf((k, n), x.dtype)
    elif form == "batched":
        batch = [e if b.chance(0.7) else 1 for e in x.extents[:-2]]
        y = b.leaf((*batch, k, n), x.dtype)
    elif form == "left":
        *_, rows, _ = (k, *x.extents)
        y = x
        x = b.leaf((n, rows), x.dtype)
    elif form == "vector":
        y = b.leaf((k,), x.dtype)
    else:
        if len(x.extents) < 2:
            raise OperatorRejected
        y = _transposed(b, x)
    b.op("MatMul", x, y)


def _transposed(b: RandomGraphBuilder, x: Value) -> Value:
    """The last two axes exchanged."""
    rank = len(x.extents)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    return b.op("Transpose", x, perm=perm)


def gemm(b: RandomGraphBuilder) -> None:
    x = b.floating(2, 2)
    ta = b.bit()
    tb = b.bit()
    m, k = x.extents
    if ta:
        m, k = k, m
    n = b.one_of(*b.extents, 1)
    if tb:
        shape = (n, k)
    else:
        shape = (k, n)
    weights = b.leaf(shape, x.dtype)
    operands = [x, weights]
    attrs: dict[str, Any] = {"transA": ta, "transB": tb}
    if b.chance(0.4):
        attrs |= {"alpha": 0.5, "beta": 2.0}
    bias = b.one_of((), (n,), (1, n), (m, 1), (m, n), (1,), None)
    if bias is not None:
        operands.append(b.leaf(bias, x.dtype))
    b.op("Gemm", *operands, **attrs)


def softmax(b: RandomGraphBuilder) -> None:
    x = b.floating(1)
    name = b.one_of("Softmax", "Softmax", "LogSoftmax")
    [axis] = _axes(b, x, 1)
    b.op(name, x, axis=axis)


def layer_norm(b: RandomGraphBuilder) -> None:
    x = b.floating(1)
    if b.chance(0.6):
        axis = -1
    else:
        axis = b.rng.randrange(len(x.extents))
    tail = x.extents[axis:]
    axes = tuple(range(len(x.extents)))
    array = b.truth[x]
    varied(array, axes[axis:])
    bias = []
    if b.chance(0.7):
        bias.append(b.leaf(tail, x.dtype))
    scale = b.leaf(tail, x.dtype)
    b.op("LayerNormalization", x, scale, *bias, axis=axis)


def transpose(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: len(v.extents) > 1)
    perm = list(range(len(x.extents)))
    b.rng.shuffle(perm)
    b.op("Transpose", x, perm=perm)


def reshape(b: RandomGraphBuilder) -> None:
    x = b.pick()
    shape = [e for e in x.extents if e != 1]
    for _ in range(b.rng.randint(0, 3)):
        if len(shape) > 1 and b.chance(0.5):
            n = b.rng.randrange(len(shape) - 1)
            shape[n : n + 2] = [shape[n] * shape[n + 1]]
        elif shape and b.chance(0.6):
            n = b.rng.randrange(len(shape))
            extent = shape[n]
            divisors = [d for d in range(1, extent + 1) if extent % d == 0]
            factor = b.rng.choice(divisors or [1])
            shape[n : n + 1] = [factor, extent // factor]
        else:
            shape.insert(b.rng.randint(0, len(shape)), 1)
    if len(shape) > 5:
        raise OperatorRejected
    empty = 0 in shape
    if shape and not empty and b.chance(0.3):
        inferred = b.rng.randrange(len(shape))
        shape[inferred] = -1
    b.op("Reshape", x, b.ints(*shape), allowzero=int(empty))


def squeeze(b: RandomGraphBuilder) -> None:
    x = b.pick()
    ones = [n for n, e in enumerate(x.extents) if e == 1]
    form = b.one_of("Squeeze", "Unsqueeze", "Flatten")
    rank = len(x.extents)
    if form == "Squeeze" and ones:
        count = b.rng.randint(1, len(ones))
        axes = b.rng.sample(ones, count)
        b.op("Squeeze", x, b.ints(*axes))
    elif form == "Flatten":
        axis = b.rng.randint(0, rank)
        b.op("Flatten", x, axis=axis)
    elif rank < 5:
        axis = b.rng.randint(0, rank)
        b.op("Unsqueeze", x, b.ints(axis))


def expand(b: RandomGraphBuilder) -> None:
    x = b.pick()
    shape = [b.one_of(*b.extents) if e == 1 else e for e in x.extents]
    if len(shape) < 5 and b.chance(0.4):
        first = b.rng.choice(b.extents)
        shape.insert(0, first)
    if math.prod(shape) > MAX_ELEMENTS:
        raise OperatorRejected
    b.op("Expand", x, b.ints(*shape))


def concat(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: len(v.extents) > 0)
    axis = b.rng.randrange(len(x.extents))
    parts = [x]
    for _ in range(b.rng.randint(0, 2)):
        try:
            other = b.pick(lambda v: v.dtype is x.dtype and _matches(v, x, axis))
            parts.append(other)
        except OperatorRejected:
            shape = list(x.extents)
            shape[axis] = b.one_of(1, 2, 3, *b.extents)
            parts.append(b.leaf(shape, x.dtype))
    b.rng.shuffle(parts)
    if b.chance(0.3):
        axis -= len(x.extents)
    b.op("Concat", *parts, axis=axis)


def split(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: max(v.extents, default=0) > 1)
    long = [n for n, e in enumerate(x.extents) if e > 1]
    axis = b.rng.choice(long)
    extent = x.extents[axis]
    at = b.rng.randint(1, extent - 1)
    sizes = b.ints(at, extent - at)
    b.op("Split", x, sizes, axis=axis, outputs=2)


def slices(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: len(v.extents) > 0)
    count = b.one_of(1, 1, 2)
    axes = _axes(b, x, count)
    starts = []
    ends = []
    steps = []
    for axis in axes:
        e = x.extents[axis]
        step = b.one_of(1, 1, 1, 2, 3, -1, -2)
        ends_of = [b.rng.randint(0, e) for _ in range(2)]
        low, high = sorted(ends_of)
        if low == high and b.chance(0.9):
            low = 0
            high = e
        if step > 0:
            starts.append(low)
            ends.append(high if high < e else b.one_of(e, 2**31))
        else:
            starts.append(high - 1 if high else -1)
            ends.append(low - 1 if low else -(2**31))
        steps.append(step)
    given = [b.ints(*numbers) for numbers in (starts, ends, axes, steps)]
    b.op("Slice", x, *given)


def pad(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: len(v.extents) > 0 and v.dtype is not dtypes.bool_)
    mode = b.one_of("constant", "constant", "edge", "reflect", "wrap")
    low = -1 if mode == "constant" else 0
    pads = []
    for e in (*x.extents, *x.extents):
        if mode == "constant":
            high = 2
        else:
            high = min(2, max(e - 1, 0))
        by = 0
        if e > 2:
            by = b.one_of(0, b.rng.randint(low, high))
        pads.append(by)
    value = []
    if mode == "constant":
        number = b.one_of(0, 1, 3)
        value.append(b.scalar(number, x))
    b.op("Pad", x, b.ints(*pads), *value, mode=mode)


def gather(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: len(v.extents) > 0 and 0 not in v.extents)
    axis = b.rng.randrange(len(x.extents))
    e = x.extents[axis]
    own = (b.extents[1],)
    shape: tuple[int, ...] = b.one_of((), (1,), (3,), (2, 3), own)
    name = "Gather"
    if b.chance(0.3):
        name = "GatherElements"
        before = tuple(min(s, 5) for s in x.extents[:axis])
        shape = (*before, 3, *x.extents[axis + 1 :])
    drawn = b.noise.integers(-e, e, shape)
    chosen = np.asarray(drawn)
    fixed = b.chance(0.5)
    indices = b.given(chosen, fixed)
    b.op(name, x, indices, axis=axis)


def tile(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: len(v.extents) > 0)
    repeats = [b.one_of(1, 1, 2, 3) for _ in x.extents]
    size = math.prod(x.extents)
    if math.prod(repeats) * size > MAX_ELEMENTS:
        raise OperatorRejected
    b.op("Tile", x, b.ints(*repeats))


def trilu(b: RandomGraphBuilder) -> None:
    x = b.pick(lambda v: len(v.extents) > 1)
    diagonal = b.rng.randint(-2, 2)
    k = b.given(np.array(diagonal, np.int64))
    upper = b.bit()
    b.op("Trilu", x, k, upper=upper)


def attention(b: RandomGraphBuilder) -> None:
    """softmax(x y^T / s) z over the last two axes."""
    x = b.floating(2, 4)
    if b.chance(0.5):
        y = b.leaf(x.extents, x.dtype)
    else:
        y = x
    if b.chance(0.5):
        z = b.leaf(x.extents, x.dtype)
    else:
        z = x
    scores = b.op("MatMul", x, _transposed(b, y))
    scaled = b.op("Mul", scores, b.scalar(0.25, x))
    weights = b.op("Softmax", scaled, axis=-1)
    b.op("MatMul", weights, z)


def residual(b: RandomGraphBuilder) -> None:
    """x + f(g(x)): the same value on two paths."""
    x = b.floating(1)
    outer = b.rng.choice(UNARY)
    name = b.rng.choice(UNARY)
    inner = b.op(name, x)
    y = b.op(outer, inner)
    b.op("Add", x, y)


def source(b: RandomGraphBuilder) -> None:
    dtype = b.one_of(dtypes.float32, dtypes.int32, dtypes.int64, dtypes.bool_)
    shape = b.shape()
    b.leaf(shape, dtype, fixed=False)


def _axes(
    b: RandomGraphBuilder,
    x: Value,
    count: int,
) -> list[int]:
    rank = len(x.extents)
    if not rank:
        raise OperatorRejected
    count = min(count, rank)
    found = b.rng.sample(range(rank), count)
    return [a - rank if b.chance(0.3) else a for a in found]


def fits(v: Value, x: Value) -> bool:
    """Whether `v` broadcasts to the shape of `x`."""
    try:
        return np.broadcast_shapes(v.extents, x.extents) == x.extents
    except ValueError:
        return False


def _matches(
    v: Value,
    x: Value,
    axis: int,
) -> bool:
    own = list(v.extents)
    other = list(x.extents)
    if len(own) != len(other):
        return False
    del own[axis], other[axis]
    return own == other


Piece = Callable[[RandomGraphBuilder], None]
PIECES: dict[str, tuple[Piece, float]] = {
    f.__name__: (f, weight)
    for f, weight in (
        (unary, 5),
        (jump, 1),
        (guarded, 1),
        (clip, 1),
        (binary, 6),
        (divide, 1),
        (power, 1),
        (compare, 1),
        (logic, 1),
        (where, 2),
        (cast, 2),
        (reduction, 4),
        (arg, 1),
        (cumsum, 0.3),
        (matmul, 4),
        (gemm, 2),
        (conv, 4),
        (conv_transpose, 1),
        (pool, 2),
        (global_pool, 1),
        (softmax, 2),
        (layer_norm, 2),
        (batch_norm, 1),
        (instance_norm, 0.7),
        (transpose, 3),
        (reshape, 3),
        (squeeze, 2),
        (expand, 1),
        (concat, 2),
        (split, 2),
        (slices, 3),
        (pad, 2),
        (gather, 2),
        (tile, 0.7),
        (trilu, 0.5),
        (depth, 0.7),
        (attention, 1),
        (residual, 1),
        (source, 1),
    )
}
