"""Decomposed root mean square normalization as RMSNormalization.

`x / sqrt(mean(x^2) + eps) * scale` over the last axis, spelled out in six or seven operators,
becomes one operator and thus one kernel. Source: Zhang and Sennrich 2019, "Root Mean Square Layer
Normalization".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.rules.layer_norm import (
    EPSILON,
    ONES,
    eps,
    mean_over,
    one_epsilon,
    over_the_last_axis,
    per_column,
    scale,
    x,
)
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import Apply, constants, either, onnx
from tilewright.graph.rules.rule import Condition, Rule, Sample, normals

square = mean_over(either(x * x, x**2))
shifted = square + eps
root = onnx.Sqrt(shifted)
(one,) = constants("one")


def _is_one(m: Match) -> bool:
    """one is 1"""
    return bool(np.all(m.array(one) == 1)) and m.array(one).size == 1


# For each form, by name: the pattern and its condition.
FORMS: dict[str, tuple[Apply, tuple[Condition, ...]]] = {
    "divided": (x / root, ()),
    "multiplied": (x * either(onnx.Reciprocal(root), shifted**-0.5), ()),
    "by-one-over-it": (x * (one / root), (_is_one,)),
}


def _rms_norm(weights: Any) -> Apply:
    return onnx.RMSNormalization(x, weights, axis=-1, epsilon=EPSILON)


def _samples(rng: np.random.Generator) -> Sample:
    rank = int(rng.integers(2, 4))
    shape = tuple(int(n) for n in rng.integers(2, 6, rank))
    axes = square.operands[1]
    found: dict[Any, Any] = {
        x: normals(rng, *shape),
        eps: np.float32(rng.uniform(1e-5, 1e-2)),
        scale: normals(rng, shape[-1]),
        one: np.float32(1),
        getattr(axes, "part", axes): np.array([-1]),
    }
    return found


def _rule(
    name: str,
    pattern: Apply,
    replacement: Apply,
    *conditions: Condition,
) -> Rule:
    when = [one_epsilon, over_the_last_axis(square), *conditions]
    return Rule(name, pattern, replacement, when, exact=False, samples=_samples)


def _scaled(name: str, form: Apply, *conditions: Condition) -> Rule:
    pattern = form.once() * scale
    return _rule(name, pattern, _rms_norm(scale), per_column(scale), *conditions)


RMS_NORM = (
    *(_scaled(f"rms-norm-{n}-and-scaled", p, *when) for n, (p, when) in FORMS.items()),
    *(
        _rule(f"rms-norm-{n}", p, _rms_norm(ONES), *when)
        for n, (p, when) in FORMS.items()
    ),
)
