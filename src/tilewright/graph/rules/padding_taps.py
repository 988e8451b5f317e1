"""Convolutions without the window positions that reach only padding.

    Conv(x, w)  =  Conv(x, w without its outer positions), with less padding

With wide dilations over small images (the last head of DeepLabV3 has 3x3 windows with dilation 36)
or windows over few frames (3x3x3 over one), some positions read only zeros for every result.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.windows import Windows
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import constants, maybe, onnx, tensors
from tilewright.graph.rules.rule import Rule, Sample, SampleApplication, normals
from tilewright.graph.rules.substitutions.geometry import (
    attributes_of,
    group_of,
    windows_of,
)

x, b = tensors("x b")
(w,) = constants("w")
conv = onnx.Conv(x, w, maybe(b)).with_attributes()

Outer = tuple[int, int]  # window positions at the front and at the end, along an axis


def _of_known_shapes(m: Match) -> bool:
    """x has a known shape, and nothing is empty"""
    known = m[x].static and m.result.static
    return known and 0 not in (*m[x].extents, *m[w].extents, *m.result.extents)


def _some_meet_padding_alone(m: Match) -> bool:
    """some outer positions of the window reach only padding"""
    return any(pair != (0, 0) for pair in _outer(windows_of(m.root)))


def _finite(m: Match) -> bool:
    """w is finite, as 0 times infinity or NaN is not zero"""
    return bool(np.isfinite(m.array(w)).all())


def _outer(s: Windows) -> tuple[Outer, ...]:
    return tuple(_outer_along(s, axis) for axis in range(len(s.kernel)))


def _outer_along(s: Windows, axis: int) -> Outer:
    """How many positions to drop, limited to those whose space is taken from the padding."""
    taps = s.kernel[axis]
    step = s.dilations[axis]
    meets = [_meets_data(s, axis, tap) for tap in range(taps)]
    if not any(meets):
        return (0, 0)
    front = min(meets.index(True), s.begin[axis] // step)
    behind = min(meets[::-1].index(True), s.end[axis] // step)
    return (front, behind)


def _meets_data(s: Windows, axis: int, tap: int) -> bool:
    """Whether a window position is inside the data for some result."""
    first = tap * s.dilations[axis] - s.begin[axis]
    stride = s.strides[axis]
    here = (
        first if first >= 0 else first % stride
    )  # the first one that is not before the data
    last = first + (s.outputs[axis] - 1) * stride
    return here <= min(last, s.inputs[axis] - 1)


def _without(m: Match, f: Fragment) -> Value:
    """Conv(x, w without its outer positions)"""
    s = windows_of(m.root)
    outer = _outer(s)
    kept = tuple(
        slice(front, taps - behind)
        for (front, behind), taps in zip(outer, s.kernel, strict=True)
    )
    weight = f.constant(np.ascontiguousarray(m.array(w)[:, :, *kept]), m[w].dtype)
    pads = [
        tuple(
            pad - pair[side] * step
            for pad, pair, step in zip(side_pads, outer, s.dilations)
        )
        for side, side_pads in enumerate((s.begin, s.end))
    ]
    how = attributes_of(s, group_of(m.root)) | {"pads": [*pads[0], *pads[1]]}
    given = [v for v in (m[x], weight, m.get(b)) if v is not None]
    return f.apply(m.root, given, how)


def _samples(rng: np.random.Generator) -> Sample:
    """A window of 3 positions, 3 apart, over 3 rows, which only the middle one reads."""
    bias = normals(rng, 4)
    return {
        x: normals(rng, 2, 4, 3, 6),
        w: normals(rng, 4, 2, 3, 2),
        b: bias if rng.random() < 0.5 else None,
        conv: SampleApplication(
            {"pads": [3, 0, 3, 1], "dilations": [3, 1], "group": 2}
        ),
    }


PADDING_TAPS = Rule(
    "conv-without-padding-taps",
    conv,
    _without,
    when=[_of_known_shapes, _some_meet_padding_alone, _finite],
    exact=False,
    samples=_samples,
)
