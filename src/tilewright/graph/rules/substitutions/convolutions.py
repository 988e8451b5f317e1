"""Convolutions: several as one, of wider kernels, and with what is added folded in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.conv import geometry
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall
from tilewright.graph.ops.windows import Windows
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    maybe,
    onnx,
    tensors,
)
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.drawing import (
    Drawing,
    drawn,
)
from tilewright.graph.rules.substitutions.rows import (
    REAL,
    ROUNDED,
)
from tilewright.graph.rules.substitutions.siblings import (
    members,
    merge,
    operands,
)

x, w, bias = tensors("x w bias")
conv = onnx.Conv(x, w, maybe(bias)).with_attributes().once()


def windows_of(op: Operation) -> Windows:
    """The geometry of a convolution, `auto_pad` as pads."""
    call = OpCall(op)
    return geometry(call, call.shape(0), call.shape(1))


def group_of(op: Operation) -> int:
    """Its number of groups."""
    return int(op.attributes.get("group", 1))


def attributes_of(shape: Windows, group: int = 1) -> dict[str, Any]:
    """The attributes of a convolution of this geometry."""
    return {
        "strides": list(shape.strides),
        "dilations": list(shape.dilations),
        "pads": [*shape.begin, *shape.end],
        "group": group,
    }


# ----------------------------------------------------------------------------------- the identity


def _center(shape: Windows) -> tuple[int, ...]:
    """The place in the window that reads what stands where the result does."""
    pairs = zip(shape.begin, shape.dilations, strict=True)
    return tuple(before // dilation for before, dilation in pairs)


def _each_in_place(m: Match) -> bool:
    """each window has a place that reads where it writes"""
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
    identity = _zeros(m[w], m[w].extents)
    per_group = m[w].extents[1]
    for channel in range(len(identity)):
        identity[(channel, channel % per_group, *place)] = 1
    weight = f.op("Add", m[w], f.constant(identity))
    return f.apply(op, [m[x], weight, *op.inputs[2:]], op.attributes)


def _zeros(like: Value, shape: Sequence[int]) -> Array:
    """Zeros of the type of a value."""
    assert like.dtype is not None
    return np.zeros(shape, like.dtype.numpy)


def _residual(draw: Drawing) -> list[Value]:
    x, op = _any_convolution(draw)
    pair = [op, x] if draw.maybe() else [x, op]
    return [draw.f.op("Add", *pair)]


def _any_convolution(draw: Drawing) -> tuple[Value, Value]:
    """An image, and a convolution of it that often has its shape."""
    rank = draw.one_of(1, 2)
    group = draw.one_of(1, 1, 2)
    channels = group * draw.extent(1, 2)
    kernel = [draw.one_of(1, 2, 3) for _ in range(rank)]
    dilation = draw.one_of(1, 1, 2)
    stride = draw.one_of(1, 1, 2)
    spatial = [draw.one_of(1, 2, 4)] * rank
    # As much padding as keeps the extent.
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


# ------------------------------------------------------------------------------- several as one


def _no_groups(m: Match) -> bool:
    """group = 1"""
    return all(group_of(op) == 1 for op in members(m))


def _one_stride(m: Match) -> bool:
    """one stride"""
    return len({windows_of(op).strides for op in members(m)}) == 1


def _one_dilation(m: Match) -> bool:
    """one dilation"""
    return len({windows_of(op).dilations for op in members(m)}) == 1


def _lined_up(m: Match) -> bool:
    """kernels grow to one extent where the padding does"""
    shapes = [windows_of(op) for op in members(m)]
    whole = all(
        missing % dilation == 0
        for s in shapes
        for pair, dilation in zip(_missing(s, shapes), s.dilations, strict=True)
        for missing in pair
    )
    return whole and len({_grown_kernel(s, shapes) for s in shapes}) == 1


def _missing(shape: Windows, shapes: Sequence[Windows]) -> list[tuple[int, int]]:
    """The padding before and behind each axis that others have more."""
    begin = zip(_most(shapes, "begin"), shape.begin, strict=True)
    end = zip(_most(shapes, "end"), shape.end, strict=True)
    return [(b - own, e - last) for (b, own), (e, last) in zip(begin, end, strict=True)]


def _growth(shape: Windows, shapes: Sequence[Windows]) -> list[tuple[int, int]]:
    """By how many places a kernel grows before and behind each axis to have that padding."""
    pairs = zip(
        _missing(shape, shapes),
        shape.dilations,
        strict=True,
    )
    return [(begin // d, end // d) for (begin, end), d in pairs]


def _grown_kernel(shape: Windows, shapes: Sequence[Windows]) -> tuple[int, ...]:
    pairs = zip(shape.kernel, _growth(shape, shapes), strict=True)
    return tuple(k + before + behind for k, (before, behind) in pairs)


def _enlarged(
    f: Fragment,
    weight: Value,
    grown: Sequence[tuple[int, int]],
) -> Value:
    """A weight with zeros around it."""
    if all(pair == (0, 0) for pair in grown):
        return weight
    before = [0, 0, *(b for b, _ in grown)]
    behind = [0, 0, *(e for _, e in grown)]
    return f.op("Pad", weight, f.ints(*before, *behind))


def _one_convolution(m: Match, f: Fragment) -> Sequence[Value]:
    """Split(Conv(x, Concat(y...))), smaller kernels with zeros around them"""
    together = members(m)
    shapes = [windows_of(op) for op in together]
    weights = operands(m, 1)
    wide = [
        _enlarged(f, weight, _growth(shape, shapes))
        for weight, shape in zip(weights, shapes, strict=True)
    ]
    inputs = [
        m.root.inputs[0],
        f.op("Concat", *wide, axis=0),
        _biases(f, together),
    ]
    y = f.op("Conv", *inputs, **attributes_of(_padded(shapes)))
    sizes = [v.extents[0] for v in weights]
    return f.pieces("Split", y, f.ints(*sizes), count=len(sizes), axis=1)


def _padded(shapes: Sequence[Windows]) -> Windows:
    """The first with the padding of the largest."""
    return replace(
        shapes[0],
        begin=_most(shapes, "begin"),
        end=_most(shapes, "end"),
    )


def _most(shapes: Sequence[Windows], side: str) -> tuple[int, ...]:
    """The largest padding on one side of each axis."""
    return tuple(
        map(
            max,
            zip(
                *(getattr(s, side) for s in shapes),
                strict=True,
            ),
        )
    )


def _biases(f: Fragment, convolutions: Sequence[Operation]) -> Value | None:
    """Their biases behind one another; zeros for one that is left out, None if all are."""
    given = [op.inputs[2] if len(op.inputs) > 2 else None for op in convolutions]
    if not any(given):
        return None
    found = []
    for op, b in zip(convolutions, given, strict=True):
        weight = op.inputs[1]
        assert weight is not None
        zeros = _zeros(weight, weight.extents[:1])
        found.append(f.constant(zeros) if b is None else b)
    return f.op("Concat", *found, axis=0)


def _convolutions_of_one_image(
    draw: Drawing,
) -> list[Value]:
    rank = draw.one_of(1, 2)
    group = draw.one_of(1, 1, 1, 2)
    channels = group * draw.extent(1, 2)
    image = draw.input(
        draw.extent(1, 2),
        channels,
        *[draw.one_of(4, 6)] * rank,
    )
    dilation = draw.one_of(1, 2)
    stride = draw.one_of(1, 2, 3)
    alike = draw.maybe(0.2)  # in extents: strides hide that they differ
    found = []
    for _ in range(draw.one_of(2, 2, 3)):
        if draw.maybe(0.2):
            dilation = draw.one_of(1, 2)
        if draw.maybe(0.2):
            stride = draw.one_of(1, 2, 3)
        half = draw.one_of(0, 1)
        odd = draw.one_of(0, 0, 0, 1)
        if alike:
            dilation, stride = (
                draw.one_of(1, 2),
                draw.one_of(2, 3, 3),
            )
            half, odd = 1, 0
        out = group * draw.extent(1, 3)
        parameters = [
            draw.weight(
                out,
                channels // group,
                *[2 * half + 1 + odd] * rank,
            )
        ]
        if draw.maybe():
            parameters.append(draw.weight(out))
        pads = [half * dilation] * rank + [(half + odd) * dilation] * rank
        if alike:
            pads = [1 for _ in pads]
        elif draw.maybe(0.2):
            pads = [draw.one_of(0, 1, 2) for _ in pads]
        found.append(
            draw.f.op(
                "Conv",
                image,
                *parameters,
                pads=pads,
                strides=[stride] * rank,
                dilations=[dilation] * rank,
                group=group,
            )
        )
    return found


# ------------------------------------------------------------------- wider, and of fewer groups

plain = onnx.Conv(x, w, maybe(bias)).with_attributes()
LARGEST = 3  # the extent to which kernels grow


def _wider(m: Match, f: Fragment) -> Value | None:
    """the same with a zero more on each side of the kernel"""
    shape = windows_of(m.root)
    if any(k + 2 > LARGEST for k in shape.kernel) or not shape.kernel:
        return None
    begin = tuple(p + d for p, d in zip(shape.begin, shape.dilations, strict=True))
    end = tuple(p + d for p, d in zip(shape.end, shape.dilations, strict=True))
    wide = _enlarged(f, m[w], [(1, 1)] * len(shape.kernel))
    attributes = attributes_of(
        replace(shape, begin=begin, end=end),
        group_of(m.root),
    )
    return f.op("Conv", m[x], wide, m.get(bias), **attributes)


def _even_groups(m: Match) -> bool:
    """the number of groups is even"""
    return group_of(m.root) % 2 == 0


def _half_the_groups(m: Match, f: Fragment) -> Value:
    """the same with pairs of groups as one, with zeros between them"""
    group = group_of(m.root)
    out, depth, *kernel = m[w].extents
    per_group = out // group
    mask = _zeros(m[w], (out, 2 * depth, *[1] * len(kernel)))
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
    """each channel is multiplied with one number"""
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


def _grouped(draw: Drawing) -> list[Value]:
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
    merge(
        "merge-convolutions-of-one-image",
        onnx.Conv,
        0,
        _one_convolution,
        [_no_groups, _one_stride, _one_dilation, _lined_up],
        drawn(_convolutions_of_one_image),
        finite=True,  # zeros around a kernel read what it does not
    ),
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
