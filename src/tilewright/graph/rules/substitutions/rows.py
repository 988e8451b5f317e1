"""Writing substitutions: pairs of rules, and the types to try them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Apply,
    Tensor,
    one_of,
    onnx,
)
from tilewright.graph.rules.rule import (
    Condition,
    Rule,
    Sample,
    Samples,
)
from tilewright.graph.rules.substitutions.drawing import (
    RandomGraph,
)

# How closely the two sides of a rule agree.
ROUNDED: Mapping[str, Any] = {"exact": False}
REAL: Mapping[str, Any] = {"exact": False, "finite": True}

UNARY = replace(
    one_of(
        onnx.Abs,
        onnx.Ceil,
        onnx.Elu,
        onnx.Erf,
        onnx.Exp,
        onnx.Floor,
        onnx.HardSigmoid,
        onnx.LeakyRelu,
        onnx.Neg,
        onnx.Relu,
        onnx.Sigmoid,
        onnx.Softplus,
        onnx.Sqrt,
        onnx.Tanh,
    ),
    text="Unary",
)
BINARY = replace(
    one_of(onnx.Add, onnx.Sub, onnx.Mul, onnx.Div),
    text="Binary",
)


def both(
    there: str,
    back: str,
    left: Apply,
    right: Apply,
    when: Sequence[Condition] = (),
    samples: Samples | None = None,
    agree: Mapping[str, Any] = ROUNDED,
) -> tuple[Rule, Rule]:
    """An equation as two rules with these names, one per direction."""
    return (
        Rule(
            there,
            left,
            right,
            when,
            samples=samples,
            **agree,
        ),
        Rule(
            back,
            right,
            left,
            when,
            samples=samples,
            **agree,
        ),
    )


def typed(
    draw: Callable[[RandomGraph], Mapping[Any, Any]],
) -> Samples:
    """Samples from a function that returns attributes and a shape (tuple) or array per tensor."""

    def samples(rng: np.random.Generator) -> Sample:
        drawing = RandomGraph(rng)
        given = draw(drawing)
        shapes = {t: s for t, s in given.items() if isinstance(s, tuple)}
        others = {k: v for k, v in given.items() if k not in shapes}
        return {**drawing.typed(shapes), **others}

    return samples


NUMBER = "number"


def meaning(condition: Condition, means: Mapping[Any, str]) -> Condition:
    """The condition, annotated for proofs with what it says of attributes and tensors (NUMBER)."""
    vars(condition)["means"] = {id(part): what for part, what in means.items()}
    return condition


def same_rank(*parts: Tensor) -> Condition:
    """The condition that tensors have the same rank."""

    def condition(m: Match) -> bool:
        return len({len(m[p].extents) for p in parts}) == 1

    condition.__doc__ = f"{' and '.join(map(str, parts))} have the same rank"
    return condition


def rank(number: int, *parts: Tensor) -> Condition:
    """The condition that tensors have a rank."""

    def condition(m: Match) -> bool:
        return all(len(m[p].extents) == number for p in parts)

    condition.__doc__ = f"{' and '.join(map(str, parts))} of rank {number}"
    return condition
