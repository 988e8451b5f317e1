"""Convolutions of one image merged into one, with kernels of equal extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.windows import Windows
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    onnx,
)
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
from tilewright.graph.rules.substitutions.siblings import (
    members,
    merge,
    operands,
)


def _no_groups(m: Match) -> bool:
    """group = 1"""
    return all(group_of(op) == 1 for op in members(m))


def _one_stride(m: Match) -> bool:
    """the same stride"""
    return len({windows_of(op).strides for op in members(m)}) == 1


def _one_dilation(m: Match) -> bool:
    """the same dilation"""
    return len({windows_of(op).dilations for op in members(m)}) == 1


def _lined_up(m: Match) -> bool:
    """kernels grow to the same extent as their padding does"""
    shapes = [windows_of(op) for op in members(m)]
    whole = all(
        missing % dilation == 0
        for s in shapes
        for pair, dilation in zip(_missing(s, shapes), s.dilations, strict=True)
        for missing in pair
    )
    return whole and len({_grown_kernel(s, shapes) for s in shapes}) == 1


def _missing(shape: Windows, shapes: Sequence[Windows]) -> list[tuple[int, int]]:
    """How much less padding it has than others, before and after each axis."""
    begin = zip(_most(shapes, "begin"), shape.begin, strict=True)
    end = zip(_most(shapes, "end"), shape.end, strict=True)
    return [(b - own, e - last) for (b, own), (e, last) in zip(begin, end, strict=True)]


def _growth(shape: Windows, shapes: Sequence[Windows]) -> list[tuple[int, int]]:
    """By how many positions a kernel must grow at each side of each axis to have that padding."""
    pairs = zip(
        _missing(shape, shapes),
        shape.dilations,
        strict=True,
    )
    return [(begin // d, end // d) for (begin, end), d in pairs]


def _grown_kernel(shape: Windows, shapes: Sequence[Windows]) -> tuple[int, ...]:
    pairs = zip(shape.kernel, _growth(shape, shapes), strict=True)
    return tuple(k + before + behind for k, (before, behind) in pairs)


def _one_convolution(m: Match, f: Fragment) -> Sequence[Value]:
    """Split(Conv(x, Concat(y...))), smaller kernels with zeros around them"""
    together = members(m)
    shapes = [windows_of(op) for op in together]
    weights = operands(m, 1)
    wide = [
        enlarged(f, weight, _growth(shape, shapes))
        for weight, shape in zip(weights, shapes, strict=True)
    ]
    inputs = [
        m.root.inputs[0],
        f.op("Concat", *wide, axis=0),
        _biases(f, together),
    ]
    y = f.op("Conv", *inputs, **attributes_of(_padded(shapes)))
    sizes = [v.extents[0] for v in weights]
    return f.split(y, sizes, axis=1)


def _padded(shapes: Sequence[Windows]) -> Windows:
    """The first one with the padding of the largest."""
    return replace(
        shapes[0],
        begin=_most(shapes, "begin"),
        end=_most(shapes, "end"),
    )


def _most(shapes: Sequence[Windows], side: str) -> tuple[int, ...]:
    """The largest padding at one side of each axis."""
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
    """Their biases concatenated, with zeros for an omitted one; None if all are omitted."""
    given = [op.inputs[2] if len(op.inputs) > 2 else None for op in convolutions]
    if not any(given):
        return None
    found = []
    for op, b in zip(convolutions, given, strict=True):
        weight = op.inputs[1]
        assert weight is not None
        zeros = zeros_like(weight, weight.extents[:1])
        found.append(f.constant(zeros) if b is None else b)
    return f.op("Concat", *found, axis=0)


def _convolutions_of_one_image(
    draw: RandomGraph,
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
    alike = draw.maybe(0.2)  # difference in extents: strides hide it
    found = []
    for _ in range(draw.one_of(2, 2, 3)):
        if draw.maybe(0.2):
            dilation = draw.one_of(1, 2)
        if draw.maybe(0.2):
            stride = draw.one_of(1, 2, 3)
        half = draw.one_of(0, 1)
        odd = draw.one_of(0, 0, 0, 1)
        if alike:
            dilation = draw.one_of(1, 2)
            stride = draw.one_of(2, 3, 3)
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


MERGED_CONVOLUTIONS = (
    merge(
        "merge-convolutions-of-one-image",
        onnx.Conv,
        0,
        _one_convolution,
        [_no_groups, _one_stride, _one_dilation, _lined_up],
        drawn(_convolutions_of_one_image),
        finite=True,  # zeros added to a kernel read elements that it did not read before
    ),
)
