"""Convolutions: sums of them, and factors, terms and padding folded into weight and bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Attribute,
    constants,
    maybe,
    onnx,
    tensors,
)
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.drawing import (
    RandomGraph,
    drawn,
)
from tilewright.graph.rules.substitutions.geometry import (
    attributes_of,
    group_of,
    windows_of,
)
from tilewright.graph.rules.substitutions.rows import (
    REAL,
    ROUNDED,
)

x, y, w, v, b, d, c = tensors("x y w v b d c")
(pads, zero) = constants("pads zero")
conv = onnx.Conv(x, w, maybe(b)).with_attributes().once()
same = onnx.Conv(x, v, maybe(d)).with_attributes().once()
other = onnx.Conv(y, v, maybe(d)).with_attributes().once()


def _sum(f: Fragment, first: Value | None, second: Value | None) -> Value | None:
    """The sum of two values, each of which may be omitted."""
    if first is None or second is None:
        return first or second
    return f.op("Add", first, second)


# ------------------------------------------------------------------------- sums of convolutions


def _one_geometry(m: Match) -> bool:
    """both have the same kernel size, stride, dilation and padding"""
    second = same if m.has(same) else other
    one, two = (windows_of(m.operation(part)) for part in (conv, second))
    fields = (
        "kernel",
        "strides",
        "dilations",
        "begin",
        "end",
    )
    return all(getattr(one, name) == getattr(two, name) for name in fields)


def _one_grouping(m: Match) -> bool:
    """both have the same number of groups"""
    return group_of(m.operation(conv)) == group_of(m.operation(same))


def _no_groups(m: Match) -> bool:
    """group = 1"""
    return all(group_of(m.operation(p)) == 1 for p in (conv, other))


def _one_batch(m: Match) -> bool:
    """x and y are images of the same shape except for the channels"""
    one = m[x].extents
    two = m[y].extents
    return one[:1] == two[:1] and one[2:] == two[2:]


def _sum_of_weights(m: Match, f: Fragment) -> Value:
    """Conv(x, w + v, b + d)"""
    weight = f.op("Add", m[w], m[v])
    op = m.operation(conv)
    return f.apply(
        op,
        [m[x], weight, _sum(f, m.get(b), m.get(d))],
        op.attributes,
    )


def _joined_channels(m: Match, f: Fragment) -> Value:
    """Conv(Concat(x, y), Concat(w, v), b + d)"""
    image = f.op("Concat", m[x], m[y], axis=1)
    weight = f.op("Concat", m[w], m[v], axis=1)
    op = m.operation(conv)
    return f.apply(
        op,
        [image, weight, _sum(f, m.get(b), m.get(d))],
        op.attributes,
    )


def _convolved(
    draw: RandomGraph,
    image: Value,
    channels: int,
    change: float,
) -> Value:
    """A convolution that occasionally differs in one way from the plain one."""
    group = 2 if draw.maybe(change) else 1
    rank = len(image.extents) - 2
    odd = draw.maybe(change)
    kernel = 1 if odd else 3
    depth = image.extents[1] // group
    operands = [draw.weight(channels, depth, *[kernel] * rank)]
    if draw.maybe():
        operands.append(draw.weight(channels))
    pad = kernel // 2
    low = pad + 1 if draw.maybe(change) else pad
    high = 2 * pad - low if pad else 0
    attributes: dict[str, Any] = {
        "pads": [low] * rank + [max(high, 0)] * rank,
        "strides": [2 if draw.maybe(change) else 1] * rank,
        "dilations": [1] * rank,
        "group": group,
    }
    return draw.f.op("Conv", image, *operands, **attributes)


def _sums_of_one(draw: RandomGraph) -> list[Value]:
    image = draw.input(1, 2, *[draw.one_of(1, 3)] * draw.one_of(1, 2))
    channels = draw.one_of(2, 4)
    terms = [_convolved(draw, image, channels, 0.15) for _ in range(2)]
    return [draw.f.op("Add", *terms)]


def _sums_of_two(draw: RandomGraph) -> list[Value]:
    spatial = [draw.one_of(1, 3)] * draw.one_of(1, 2)
    images = [
        draw.input(
            draw.one_of(1, 1, 2),
            2 * draw.one_of(1, 2),
            *spatial,
        )
        for _ in range(2)
    ]
    terms = [_convolved(draw, image, 2, 0.1) for image in images]
    return [draw.f.op("Add", *terms)]


# ---------------------------------------------------------------------------- factors and terms


def _along_channels(m: Match) -> bool:
    """c is a number, or has one per channel"""
    shape = m[c].extents
    rank = len(m.result.extents)
    if len(shape) > rank:
        return False
    padded = (*[1] * (rank - len(shape)), *shape)
    return all(n == 1 for axis, n in enumerate(padded) if axis != 1)


def _rows(m: Match, f: Fragment, channels: int) -> Value:
    """c as a vector with one number per channel."""
    if len(m[c].extents) < 2 and m[c].extents[:1] in (
        (),
        (1,),
    ):
        return f.op("Expand", m[c], f.ints(channels))
    vector = f.reshape(m[c], -1)
    return f.op("Expand", vector, f.ints(channels))


def _scaled(m: Match, f: Fragment) -> Value:
    """Conv(x, w * c, b * c)"""
    channels = m[w].extents[0]
    factor = _rows(m, f, channels)
    column = f.reshape(factor, channels, *[1] * (len(m[w].extents) - 1))
    operands = [m[x], f.op("Mul", m[w], column)]
    bias = m.get(b)
    if bias is not None:
        operands.append(f.op("Mul", bias, factor))
    op = m.operation(conv)
    return f.apply(op, operands, op.attributes)


def _shifted(m: Match, f: Fragment) -> Value:
    """Conv(x, w, b + c)"""
    term = _rows(m, f, m[w].extents[0])
    op = m.operation(conv)
    return f.apply(
        op,
        [m[x], m[w], _sum(f, m.get(b), term)],
        op.attributes,
    )


def _with_channels(op_type: str) -> Any:
    def draw_graph(draw: RandomGraph) -> list[Value]:
        rank = draw.one_of(1, 2)
        image = draw.input(2, 2, *[draw.one_of(1, 2)] * rank)
        channels = draw.one_of(1, 2)
        result = _convolved(draw, image, 2 * channels, 0.0)
        shapes = [
            (),
            (1,),
            (2 * channels, *[1] * rank),
            (1, 2 * channels, *[1] * rank),
        ]
        odd = [
            (2,),
            (2, *[1] * (rank + 1)),
            (1,) * (rank + 3),
        ]
        shape = draw.one_of(*odd) if draw.maybe(0.4) else draw.one_of(*shapes)
        return [draw.f.op(op_type, result, draw.input(*shape))]

    return drawn(draw_graph)


# -------------------------------------------------------------------------- padding, and no window

mode = Attribute(
    "mode",
    examples=("constant", "reflect", "edge"),
    default="constant",
)
padded = onnx.Pad(x, pads, maybe(zero), mode=mode).once()
conv_of_padded = onnx.Conv(padded, w, maybe(b)).with_attributes()


def _zeros_around(m: Match) -> bool:
    """the padding is zeros"""
    value = m.known(zero)
    return m.attribute(mode) == "constant" and (value is None or not value.any())


def _spatial_alone(m: Match) -> bool:
    """it does not pad the batch or channels"""
    rank = len(m[x].extents)
    numbers = m.array(pads)
    return not numbers[[0, 1, rank, rank + 1]].any()


def _not_cut(m: Match) -> bool:
    """it crops nothing"""
    return bool((m.array(pads) >= 0).all())


def _padding_of_its_own(m: Match, f: Fragment) -> Value:
    """Conv(x, w, b) with that padding too"""
    op = m.operation(conv_of_padded)
    shape = windows_of(op)
    rank = len(shape.kernel)
    numbers = [int(n) for n in m.array(pads)]
    before = numbers[2 : rank + 2]
    behind = numbers[rank + 4 :]
    own = [*shape.begin, *shape.end]
    both = [p + q for p, q in zip(own, [*before, *behind], strict=True)]
    attributes = {
        **attributes_of(shape, group_of(op)),
        "pads": both,
    }
    return f.op("Conv", m[x], m[w], m.get(b), **attributes)


def _paddings(draw: RandomGraph) -> list[Value]:
    rank = draw.one_of(1, 2)
    image = draw.input(2, 2, *[4] * rank)
    numbers = [
        0,
        0,
        *[draw.one_of(0, 1) for _ in range(rank)],
    ] * 2
    if draw.maybe(0.2):
        numbers[draw.one_of(0, 1, 2, rank + 2)] += draw.one_of(-1, 2)
    kinds = (
        "constant",
        "constant",
        "constant",
        "reflect",
        "edge",
    )
    operands = [draw.f.ints(*numbers)]
    if draw.maybe(0.4):
        operands.append(draw.f.constant(draw.one_of(0, 0, 1), draw.dtype))
    wide = draw.f.op("Pad", image, *operands, mode=draw.one_of(*kinds))
    kernel = draw.one_of(1, 3)
    weight = draw.weight(2, wide.extents[1], *[kernel] * rank)
    pad = kernel // 2 if draw.maybe() else 0
    result = draw.f.op("Conv", wide, weight, pads=[pad] * 2 * rank)
    return [result]


pointwise = onnx.Conv(x, w, maybe(b)).with_attributes()


def _one_place(m: Match) -> bool:
    """the kernel has one element, without stride or padding"""
    shape = windows_of(m.root)
    return {*shape.kernel, *shape.strides} == {1} and not any(
        (*shape.begin, *shape.end)
    )


def _no_group(m: Match) -> bool:
    """group = 1"""
    return group_of(m.root) == 1


def _as_product(m: Match, f: Fragment) -> Value:
    """w @ x over the positions of the image, + b"""
    images, channels, *spatial = m[x].extents
    out = m[w].extents[0]
    matrix = f.reshape(m[w], out, channels)
    columns = f.reshape(m[x], images, channels, int(np.prod(spatial)))
    result = f.op("MatMul", matrix, columns)
    bias = m.get(b)
    if bias is not None:
        result = f.op("Add", result, f.reshape(bias, out, 1))
    return f.reshape(result, images, out, *spatial)


def _pointwise(draw: RandomGraph) -> list[Value]:
    rank = draw.one_of(1, 2)
    group = draw.one_of(1, 1, 2)
    kernel = draw.one_of(1, 1, 3)
    image = draw.input(draw.one_of(1, 2), 2, *[draw.one_of(1, 3)] * rank)
    operands = [draw.weight(4, 2 // group, *[kernel] * rank)]
    if draw.maybe():
        operands.append(draw.weight(4))
    attributes = {
        "group": group,
        "strides": [draw.one_of(1, 1, 2)] * rank,
        "pads": [draw.one_of(kernel // 2, kernel // 2, 1)] * 2 * rank,
    }
    return [draw.f.op("Conv", image, *operands, **attributes)]


PADDING_INTO_CONV = Rule(
    "padding-into-convolution",
    conv_of_padded,
    _padding_of_its_own,
    [_zeros_around, _spatial_alone, _not_cut],
    samples=drawn(_paddings),
    **ROUNDED,
)
FILTERS = (
    Rule(
        "sum-of-convolutions-of-one-image",
        conv + same,
        _sum_of_weights,
        [_one_geometry, _one_grouping],
        samples=drawn(_sums_of_one),
        **REAL,
    ),
    Rule(
        "sum-of-convolutions",
        conv + other,
        _joined_channels,
        [_one_geometry, _no_groups, _one_batch],
        samples=drawn(_sums_of_two),
        **ROUNDED,
    ),
    Rule(
        "factor-into-convolution",
        conv * c,
        _scaled,
        [_along_channels],
        samples=_with_channels("Mul"),
        **REAL,
    ),
    Rule(
        "term-into-convolution",
        conv + c,
        _shifted,
        [_along_channels],
        samples=_with_channels("Add"),
        **ROUNDED,
    ),
    PADDING_INTO_CONV,
    Rule(
        "pointwise-convolution-as-product",
        pointwise,
        _as_product,
        [_one_place, _no_group],
        samples=drawn(_pointwise),
        **ROUNDED,
    ),
)
