"""Decomposed layer normalization as LayerNormalization.

`(x - mean) / sqrt(var + eps) * scale + bias` over the last axis, spelled out in eight or nine
operators, becomes one operator and thus one kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Apply,
    Attribute,
    Computed,
    LeftOut,
    Pattern,
    constants,
    either,
    maybe,
    onnx,
    tensors,
)
from tilewright.graph.rules.rule import Condition, Rule, Sample, normals


def mean_over(of: Pattern) -> Apply:
    """The mean of a pattern over some axes, which stay as axes of extent 1."""
    axes = constants("axes")[0]
    named = Attribute("axes")
    anything = Attribute("noop")
    over_axes = onnx.ReduceMean(
        of, maybe(axes), axes=named, keepdims=LeftOut(1), noop_with_empty_axes=anything
    )
    return over_axes.named(f"mean({of})")


(x,) = tensors("x")
eps, scale, bias = constants("eps scale bias")
mean = mean_over(x)
centered = x - mean
squared = x - mean
powered = x - mean
variance = mean_over(either(squared * squared, powered**2))
normalized = centered / onnx.Sqrt(variance + eps)


def over_the_last_axis(*means: Apply) -> Condition:
    """The condition that means are over the last axis of x."""

    def condition(m: Match) -> bool:
        shape = m[x].shape
        if shape is None or not m[x].static:
            return False
        return all(_axes(m, part) == [len(shape) - 1] for part in means)

    every = "both means are" if len(means) > 1 else "the mean is"
    condition.__doc__ = f"{every} over the last axis of x, whose shape is known"
    return condition


def _axes(m: Match, part: Apply) -> list[int] | None:
    """The axes of a mean, counted from the front."""
    op = m.operation(part)
    x_shape = m[x].extents
    axes: Any = op.attr("axes")
    if axes is None and len(op.inputs) > 1 and op.inputs[1] is not None:
        axes = m.graph.constants[op.inputs[1]]
    if axes is None:
        return None
    return [int(a) % len(x_shape) for a in np.ravel(axes)]


def one_epsilon(m: Match) -> bool:
    """eps is one number"""
    return m.array(eps).size == 1


def per_column(part: Any) -> Condition:
    """The condition that a part has a number for each column of x."""

    def condition(m: Match) -> bool:
        return m[part].shape == m[x].extents[-1:]

    condition.__doc__ = f"{part} has a number for each column of x"
    return condition


def _ones(m: Match) -> Any:
    dtype = m[x].dtype
    return np.ones(
        m[x].extents[-1],
        np.float32 if dtype is None else dtype.numpy,
    )


ONES = Computed("1", _ones)
EPSILON = Computed("eps", lambda m: float(m.array(eps).reshape(())))


def _layer_norm(*parameters: Any) -> Apply:
    return onnx.LayerNormalization(x, *parameters, axis=-1, epsilon=EPSILON)


def _samples(rng: np.random.Generator) -> Sample:
    rank = int(rng.integers(2, 4))
    shape = tuple(int(n) for n in rng.integers(2, 6, rank))

    found: dict[Any, Any] = {
        x: normals(rng, *shape),
        eps: np.float32(rng.uniform(1e-5, 1e-2)),
        scale: normals(rng, shape[-1]),
        bias: normals(rng, shape[-1]),
    }
    for part in (mean, variance):
        axes = part.operands[1]
        found[getattr(axes, "part", axes)] = np.array([-1])
    return found


def _rule(
    name: str,
    pattern: Apply,
    replacement: Apply,
    *conditions: Any,
) -> Rule:
    when = [one_epsilon, over_the_last_axis(mean, variance), *conditions]
    return Rule(name, pattern, replacement, when, exact=False, samples=_samples)


once = normalized.once()
LAYER_NORM = (
    _rule(
        "layer-norm-scaled-and-shifted",
        (once * scale).once() + bias,
        _layer_norm(scale, bias),
        per_column(scale),
        per_column(bias),
    ),
    _rule(
        "layer-norm-shifted",
        once + bias,
        _layer_norm(ONES, bias),
        per_column(bias),
    ),
    _rule("layer-norm-scaled", once * scale, _layer_norm(scale), per_column(scale)),
    _rule("layer-norm", normalized, _layer_norm(ONES)),
)
