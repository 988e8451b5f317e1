"""Removing operators that return their operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import Apply, Attribute, onnx, tensors
from tilewright.graph.rules.rule import (
    Rule,
    Sample,
    SampleApplication,
    Samples,
    normals,
)

(x,) = tensors("x")
perm = Attribute("perm", examples=([0, 1], [1, 0], [0, 2, 1], [0, 1, 2]))


def _keeps_every_axis(m: Match) -> bool:
    """perm exchanges no axes"""
    found = m.attribute(perm)
    return found is not None and list(found) == list(range(len(found)))


def _at_inference(m: Match) -> bool:
    """it does not train

    Versions 7 and 10 are for inference only; since 12 input 2 says whether it trains. Versions 1
    and 6 train unless is_test is set, as exporters always set it.
    """
    op = m.root
    training = op.inputs[2] if len(op.inputs) > 2 else None
    return training is None and (op.version >= 7 or bool(op.attr("is_test", 0)))


def _one_kind(m: Match) -> bool:
    """x is a tensor if the result is one"""
    return m[x].kind == m.result.kind


def _with(part: Apply, *more: Any, **attributes: Any) -> Samples:
    """Samples in which x keeps its type."""

    def samples(rng: np.random.Generator) -> Sample:
        drawn = normals(rng, 2, 3)
        return {x: drawn, part: SampleApplication(attributes, more)}

    return samples


cast = onnx.Cast(x).with_attributes()
cast_like = onnx.CastLike(x, ...).with_attributes()
reshape = onnx.Reshape(x, ...).with_attributes()
expand = onnx.Expand(x, ...)
flatten = onnx.Flatten(x).with_attributes()
squeeze = onnx.Squeeze(x, ...).with_attributes()
unsqueeze = onnx.Unsqueeze(x, ...).with_attributes()
NO_OPS = (
    Rule("identity", onnx.Identity(x), x, when=[_one_kind], keeps_type=True),
    Rule(
        "dropout-at-inference",
        onnx.Dropout(x, ...).with_attributes(),
        x,
        when=[_at_inference],
        keeps_type=True,
    ),
    Rule(
        "transpose-to-itself",
        onnx.Transpose(x, perm=perm),
        x,
        when=[_keeps_every_axis],
        keeps_type=True,
    ),
    # The same elements in the same row-major order: with equal shapes, each stays in place.
    Rule("cast-to-itself", cast, x, samples=_with(cast, to=1)),
    Rule(
        "cast-like-itself",
        cast_like,
        x,
        samples=_with(cast_like, np.zeros(1, np.float32)),
    ),
    Rule("reshape-to-itself", reshape, x, samples=_with(reshape, np.array([2, -1]))),
    Rule("expand-to-itself", expand, x, samples=_with(expand, np.array([1, 3]))),
    Rule("flatten-to-itself", flatten, x, samples=_with(flatten, axis=1)),
    Rule(
        "squeeze-to-itself", squeeze, x, samples=_with(squeeze, np.zeros(0, np.int64))
    ),
    Rule(
        "unsqueeze-to-itself",
        unsqueeze,
        x,
        samples=_with(unsqueeze, np.zeros(0, np.int64)),
    ),
)
