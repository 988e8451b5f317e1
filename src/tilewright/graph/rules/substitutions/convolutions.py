"""Convolutions: wider kernels, fewer groups, and added terms folded in."""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.windows import Windows
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
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
    enlarged,
    group_of,
    windows_of,
    zeros_like,
)
from tilewright.graph.rules.substitutions.merged_convolutions import MERGED_CONVOLUTIONS
from tilewright.graph.rules.substitutions.rows import (
    REAL,
    ROUNDED,
)

x, w, bias = tensors("x w bias")
conv = onnx.Conv(x, w, maybe(bias)).with_attributes().once()


# ----------------------------------------------------------------------------------- the identity


def _center(shape: Windows) -> tuple[int, ...]:
    """The position in the window that reads at the result's own position."""
    pairs = zip(shape.begin, shape.dilations, strict=True)
    return tuple(before // dilation for before, dilation in pairs)


def _each_in_place(m: Match) -> bool:
    """each window has a position that reads the element it writes"""
    shape = windows_of(m.operation(conv))
    exact = all(b % d == 0 for b, d in zip(shape.begin, shape.dilations, strict=True))
    places = zip(_center(shape), shape.kernel, strict=True)
    return exact and all(place < kernel for place, kernel in places)


def _no_stride(m: Match) -> bool:
    """the stride is 1"""
    return all(s == 1 for s in windows_of(m.operation(conv)).strides)


def _with_identity(m: Match, f: Fragment) -> Value | None:
    """Conv(x, w + identity, bias)"""
    op = m.operation(conv)
    place = _center(windows_of(op))
    identity = zeros_like(m[w], m[w].extents)
    per_group = m[w].extents[1]
    for channel in range(len(identity)):
        identity[(channel, channel % per_group, *place)] = 1
    weight = f.op("Add", m[w], f.constant(identity))
    return f.apply(op, [m[x], weight, *op.inputs[2:]], op.attributes)


def _residual(draw: RandomGraph) -> list[Value]:
    x, op = _any_convolution(draw)
    pair = [op, x] if draw.maybe() else [x, op]
    return [draw.f.op("Add", *pair)]


def _any_convolution(draw: RandomGraph) -> tuple[Value, Value]:
    """An image, and a convolution of it that often has the same shape."""
    rank = draw.one_of(1, 2)
    group = draw.one_of(1, 1, 2)
    channels = group * draw.extent(1, 2)
    kernel = [draw.one_of(1, 2, 3) for _ in range(rank)]
    dilation = draw.one_of(1, 1, 2)
    stride = draw.one_of(1, 1, 2)
    spatial = [draw.one_of(1, 2, 4)] * rank
    # Padding that keeps the extent.
    spans = [(k - 1) * dilation for k in kernel]
    more = (stride - 1) * (spatial[0] - 1)
    total = [span + more for span in spans]
    before = [int(draw.rng.integers(t + 1)) for t in total]
    after = [t - b for t, b in zip(total, before, strict=True)]
    image = draw.input(draw.extent(1, 2), channels, *spatial)
    parameters = [draw.weight(channels, channels // group, *kernel)]
    if draw.maybe():
        parameters.append(draw.weight(channels))
    op = draw.f.op(
        "Conv",
        image,
        *parameters,
        pads=[*before, *after],
        strides=[stride] * rank,
        dilations=[dilation] * rank,
        group=group,
    )
    return image, op


# ------------------------------------------------------------------- wider, and of fewer groups

plain = onnx.Conv(x, w, maybe(bias)).with_attributes()
LARGEST = 3  # the extent to which kernels may grow


def _wider(m: Match, f: Fragment) -> Value | None:
    """the same with one more zero on each side of the kernel"""
    shape = windows_of(m.root)
    if any(k + 2 > LARGEST for k in shape.kernel) or not shape.kernel:
        return None
    begin = tuple(p + d for p, d in zip(shape.begin, shape.dilations, strict=True))
    end = tuple(p + d for p, d in zip(shape.end, shape.dilations, strict=True))
    wide = enlarged(f, m[w], [(1, 1)] * len(shape.kernel))
    attributes = attributes_of(
        replace(shape, begin=begin, end=end),
        group_of(m.root),
    )
    return f.op("Conv", m[x], wide, m.get(bias), **attributes)


def _even_groups(m: Match) -> bool:
    """the number of groups is even"""
    return group_of(m.root) % 2 == 0


def _half_the_groups(m: Match, f: Fragment) -> Value:
    """the same with pairs of groups merged, padded with zeros"""
    group = group_of(m.root)
    out, depth, *kernel = m[w].extents
    per_group = out // group
    mask = zeros_like(m[w], (out, 2 * depth, *[1] * len(kernel)))
    for n in range(out):
        side = (n // per_group) % 2
        mask[n, side * depth : (side + 1) * depth] = 1
    weight = f.op(
        "Mul",
        f.op("Concat", m[w], m[w], axis=1),
        f.constant(mask),
    )
    attributes = attributes_of(windows_of(m.root), group // 2)
    return f.op("Conv", m[x], weight, m.get(bias), **attributes)


def _one_place_each(m: Match) -> bool:
    """each channel is multiplied by one number"""
    shape = windows_of(m.root)
    alone = {
        m[w].extents[1],
        *shape.kernel,
        *shape.strides,
    } == {1}
    return alone and m[w].extents[0] == m[x].extents[1]


def _scaled_channels(m: Match, f: Fragment) -> Value:
    """x * w + bias, by channels"""
    channels = m[w].extents[0]
    shape = (channels, *[1] * (len(m[x].extents) - 2))
    result = f.op("Mul", m[x], f.reshape(m[w], *shape))
    shift = m.get(bias)
    return result if shift is None else f.op("Add", result, f.reshape(shift, *shape))


def _grouped(draw: RandomGraph) -> list[Value]:
    rank = draw.one_of(1, 2)
    channels = draw.one_of(1, 2, 4)
    group = draw.one_of(1, 2, channels, channels)
    group = group if channels % group == 0 else 1
    kernel = draw.one_of(1, 1, 3)
    image = draw.input(
        draw.extent(1, 2),
        channels,
        *[draw.one_of(1, 3)] * rank,
    )
    out = channels if draw.maybe(0.7) else 2 * group
    operands = [draw.weight(out, channels // group, *[kernel] * rank)]
    if draw.maybe():
        operands.append(draw.weight(out))
    attributes = {
        "group": group,
        "strides": [draw.one_of(1, 1, 2)] * rank,
        "pads": [draw.one_of(0, kernel // 2)] * 2 * rank,
    }
    return [draw.f.op("Conv", image, *operands, **attributes)]


CONVOLUTIONS = (
    Rule(
        "identity-into-convolution",
        conv + x,
        _with_identity,
        when=[_no_stride, _each_in_place],
        exact=False,
        finite=True,
        samples=drawn(_residual),
    ),
    *MERGED_CONVOLUTIONS,
    Rule(
        "wider-kernel",
        plain,
        _wider,
        samples=drawn(_grouped),
        **REAL,
    ),
    Rule(
        "pairs-of-groups",
        plain,
        _half_the_groups,
        [_even_groups],
        samples=drawn(_grouped),
        **REAL,
    ),
    Rule(
        "depthwise-convolution-as-factor",
        plain,
        _scaled_channels,
        [_one_place_each],
        samples=drawn(_grouped),
        **ROUNDED,
    ),
)
