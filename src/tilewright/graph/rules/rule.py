"""A rule: a pattern, a replacement and a condition.

    Rule("twice", x + x, 2 * x)
    Rule("transpose-to-itself", onnx.Transpose(x, perm=perm), x, when=[keeps_every_axis])

A rule applies only if both sides have the same type. It is checked on random instances of its
pattern (`check.py`) and prints as one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.graph.nodes import DataDependent, Graph, Operation, Value
from tilewright.graph.ops.errors import place
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.match import Match, matches
from tilewright.graph.rules.patterns import (
    Apply,
    Attribute,
    On,
    Operator,
    Pattern,
    Tensor,
    parts,
)

Condition = Callable[[Match], bool]
# The replacement of the root's result, or of each of the results (`Match.results`).
Made = Value | Sequence[Value] | None
# Adds operators to the fragment and returns its result; None if the rule cannot be applied.
Build = Callable[[Match, Fragment], Made]


@dataclass(frozen=True)
class SampleApplication:
    """How a part of a pattern is applied in a sample. more: operands after those of the pattern.

    operator: which one, if the pattern allows several.
    """

    attributes: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[Any, ...] = ()
    operator: Operator | None = None


# Operands to try a rule on: an array for a tensor (None: omitted) or a Value with its type; a value
# for an attribute; a Given for an applied operator.
Sample = Mapping[Any, Any]
# Of a random generator. As text: `np.random` would be loaded by it.
Samples = Callable[["np.random.Generator"], Sample | Graph]


class RegionPattern(Protocol):
    """Matches more than a formula can say: any number of operations."""

    @property
    def names(self) -> frozenset[str]:
        """The qualified names of the operators at which to look for a match."""
        ...

    def matches(self, graph: Graph, op: Operation) -> Iterator[Match]:
        """Every place around `op` where it matches."""
        ...


@dataclass(frozen=True, eq=False)
class Rule:
    """One rewrite.

    pattern: its top operator is replaced; other matched operations disappear with it if nothing
    else reads them. replacement: a formula, or a function that adds operators to a Fragment. when:
    conditions on the match, each a function with a docstring. exact: both sides agree bit by bit;
    otherwise within rounding, and `math="exact"` disables the rule; overflow on one side only
    counts as rounding. finite: both sides agree for finite operands, but may differ for infinities
    and NaN; `"exact"` disables these rules, too. keeps_type: both sides have the same type even if
    it is unknown, as in `Identity(x) => x`. samples: operands to try if random ones are not enough:
    arrays for tensors, or a whole graph.
    """

    name: str
    pattern: Apply | RegionPattern
    replacement: Pattern | On | Build
    when: Sequence[Condition] = ()
    exact: bool = True
    finite: bool = False
    keeps_type: bool = False
    samples: Samples | None = None

    def __post_init__(self) -> None:
        if callable(self.when):
            raise self.error("when is one function", "give a list of them: when=[...]")
        if not isinstance(self.pattern, Apply):
            if isinstance(self.pattern, Pattern):
                raise self.error(f"its pattern {self.pattern} applies no operator")
            return
        if not isinstance(self.replacement, Pattern | On):
            return
        bound = set(map(id, parts(self.pattern)))
        for part in parts(self.replacement):
            if isinstance(part, Tensor | Attribute) and id(part) not in bound:
                raise self.error(
                    f"{part} of its replacement is not in its pattern {self.pattern}"
                )
            if isinstance(part, On) and id(part.pattern) not in bound:
                raise self.error(
                    f"{part.pattern} of its replacement is not in its pattern"
                )

    @property
    def same_bits(self) -> bool:
        """Whether both sides yield the same bits for all operands."""
        return self.exact and not self.finite

    def allowed(self, math: str) -> bool:
        """Whether a mode of arithmetic (`base.modes.MATH`) allows it."""
        if math == "exact":
            return self.same_bits
        return math == "fast" or not self.finite

    @property
    def names(self) -> frozenset[str]:
        """The qualified names of the operators that a match can start at."""
        if isinstance(self.pattern, Apply):
            return self.pattern.operator.names
        return self.pattern.names

    def matches(self, graph: Graph, op: Operation) -> Iterator[Match]:
        """The ways to apply it at `op`."""
        if isinstance(self.pattern, Apply):
            found = matches(self.pattern, graph, op)
        else:
            found = self.pattern.matches(graph, op)
        return (m for m in found if self._applies(m))

    def _applies(self, m: Match) -> bool:
        try:
            return fulfilled(self.when, m)
        except (
            AttributeError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            why = (
                f"a condition fails at {place(m.root)}: {type(error).__name__}: {error}"
            )
            raise self.error(why) from error

    def error(self, message: str, hint: str = "") -> InputError:
        """The error to raise for a wrong rule."""
        return InputError(
            message, code="TW-RULE", where=f"rule {self.name!r}", hint=hint
        )

    def __str__(self) -> str:
        right: object = self.replacement
        if not isinstance(self.replacement, Pattern | On):
            right = _first_line(self.replacement)
        conditions = "; ".join(_first_line(c) for c in self.when)
        text = f"{self.name}: {_bare(self.pattern)} => {_bare(right)}"
        return f"{text}  where {conditions}" if conditions else text


def normals(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    """A float32 sample of the standard normal distribution."""
    return rng.standard_normal(shape).astype("float32")


def fulfilled(conditions: Iterable[Condition], m: Match) -> bool:
    """Whether a match satisfies conditions. A condition that needs values known only at run time,
    such as extents of NonZero's result, is not satisfied.
    """
    try:
        return all(condition(m) for condition in conditions)
    except DataDependent:
        return False


def _bare(side: Any) -> str:
    """Without enclosing parentheses."""
    text = str(side)
    signed = isinstance(side, Apply) and text.startswith("(")
    return text[1:-1] if signed else text


def _first_line(function: Any) -> str:
    doc = (function.__doc__ or "").strip().splitlines()
    name = getattr(function, "__name__", type(function).__name__)
    if doc:
        return doc[0].rstrip(".")
    return name.strip("_").replace("_", " ")
