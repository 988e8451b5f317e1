"""Convolutions without the results that a Slice cuts off.

    Slice(Conv(x, w))  =  Conv(x, w) with less padding

Causal convolutions (temporal ones, and those of state space models) are padded on both sides and
then cut behind, and windows of an even size make one result too many, which is cut. What follows
the Slice, such as an activation, joins the convolution.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import constants, maybe, onnx, tensors
from tilewright.graph.rules.rule import Rule, Sample, SampleApplication, normals
from tilewright.graph.rules.substitutions.geometry import (
    attributes_of,
    group_of,
    windows_of,
)
from tilewright.graph.rules.substitutions.slices import sliced

x, w, b = tensors("x w b")
starts, ends, axes, steps = constants("starts ends axes steps")
conv = onnx.Conv(x, w, maybe(b)).with_attributes().once()
cropped = onnx.Slice(conv, starts, ends, maybe(axes), maybe(steps))


def _not_empty(m: Match) -> bool:
    """the result is not empty"""
    return 0 not in m.result.extents


def _kept(m: Match) -> dict[int, range]:
    """The places of the convolution's result that remain, by axis."""
    made = m.operation(conv).outputs[0]
    assert made is not None
    whole = {n: range(extent) for n, extent in enumerate(made.extents)}
    return sliced(m, (starts, ends, axes, steps), whole)


def _side_by_side(m: Match) -> bool:
    """no step is left out or reversed"""
    return all(r.step == 1 for r in _kept(m).values())


def _padding(m: Match) -> tuple[list[int], list[int]]:
    """What padding is left in front, negative where data would be cut, and behind.

    Behind, data that is cut stays: with all its results, the other side has another type.
    """
    shape = windows_of(m.operation(conv))
    kept = _kept(m)
    front, behind = [], []
    for n, stride in enumerate(shape.strides):
        places = kept[n + 2]
        span = (shape.kernel[n] - 1) * shape.dilations[n] + 1
        reach = places[-1] * stride + span - shape.begin[n]
        front.append(shape.begin[n] - places[0] * stride)
        behind.append(max(reach - shape.inputs[n], 0))
    return front, behind


def _padding_in_front(m: Match) -> bool:
    """what is cut in front is padding"""
    front, _ = _padding(m)
    return min(front) >= 0


def _of_less_padding(m: Match, f: Fragment) -> Value:
    """Conv(x, w, b) with less padding"""
    op = m.operation(conv)
    front, behind = _padding(m)
    how = attributes_of(windows_of(op), group_of(op)) | {"pads": [*front, *behind]}
    given = [v for v in (m[x], m[w], m.get(b)) if v is not None]
    return f.apply(op, given, how)


def _samples(rng: np.random.Generator) -> Sample:
    """A window of three positions, two apart, of which the last results are cut."""
    cut = int(rng.integers(0, 5))
    return {
        x: normals(rng, 2, 4, 9, 5),
        w: normals(rng, 4, 2, 3, 2),
        b: normals(rng, 4) if rng.random() < 0.5 else None,
        conv: SampleApplication(
            {"pads": [4, 1, 4, 1], "dilations": [2, 1], "group": 2}
        ),
        starts: np.array([int(rng.integers(0, 5)), 0]),
        ends: np.array([13 - cut, 6 - int(rng.integers(0, 2))]),
        axes: np.array([2, -1]),
        steps: np.array([1, 1]) if rng.random() < 0.5 else None,
    }


CROPPED_CONV = Rule(
    "conv-without-what-is-cut",
    cropped,
    _of_less_padding,
    when=[_not_empty, _side_by_side, _padding_in_front],
    exact=False,
    samples=_samples,
)
