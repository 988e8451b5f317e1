"""Patterns over operations, written as the formula that they match.

    Pattern   = Tensor(name, known, real) | Number(value) | Apply(operator, operands, attributes)
              | Result(Apply, place) | Either(patterns)
    Operand   = Pattern | Maybe(Pattern)          Maybe: may be left out
    Attribute = literal | LeftOut(default) | Attribute(examples, default)

    x, y = tensors("x y")
    onnx.Relu(x) * 2 + y

Operators are referred to by their definitions (`onnx.Relu`, `operators("com.acme").Relu`), so a
pattern cannot match another domain's operator. Using the same object twice in a pattern means the
same value twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import EllipsisType
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.text import did_you_mean
from tilewright.graph.nodes import Operation
from tilewright.graph.ops.registry import (
    OpDef,
    Trait,
    definitions,
    has_trait,
    registered,
)

LATEST = 21  # the ONNX version of operators in replacements


class Pattern:
    """Anything that can match a value; arithmetic on patterns makes ONNX operators."""

    def __add__(self, other: Part) -> Apply:
        return onnx.Add(self, other)

    def __radd__(self, other: Part) -> Apply:
        return onnx.Add(other, self)

    def __sub__(self, other: Part) -> Apply:
        return onnx.Sub(self, other)

    def __rsub__(self, other: Part) -> Apply:
        return onnx.Sub(other, self)

    def __mul__(self, other: Part) -> Apply:
        return onnx.Mul(self, other)

    def __rmul__(self, other: Part) -> Apply:
        return onnx.Mul(other, self)

    def __truediv__(self, other: Part) -> Apply:
        return onnx.Div(self, other)

    def __rtruediv__(self, other: Part) -> Apply:
        return onnx.Div(other, self)

    def __pow__(self, other: Part) -> Apply:
        return onnx.Pow(self, other)

    def __matmul__(self, other: Part) -> Apply:
        return onnx.MatMul(self, other)

    def __neg__(self) -> Apply:
        return onnx.Neg(self)


Part = Pattern | int | float


@dataclass(frozen=True, eq=False)
class Tensor(Pattern):
    """Any value; with `known`, one whose elements are known at compile time.

    real: of floating-point elements.
    """

    name: str
    known: bool = False
    real: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Number(Pattern):
    """A known value whose elements all equal this number; in a replacement, a scalar."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True, eq=False)
class Either(Pattern):
    """One of several equivalent forms, tried in order."""

    forms: tuple[Pattern, ...]

    def __str__(self) -> str:
        return f"({' | '.join(map(str, self.forms))})"


@dataclass(frozen=True, eq=False)
class Maybe:
    """An operand that may be omitted."""

    part: Pattern

    def __str__(self) -> str:
        return f"{self.part}?"


@dataclass(frozen=True, eq=False)
class LeftOut:
    """An attribute with this value, or omitted, which means the same."""

    default: Any

    def __str__(self) -> str:
        return str(self.default)


@dataclass(frozen=True, eq=False)
class Attribute:
    """Any attribute. examples: values to try; default: its value if omitted."""

    name: str
    examples: tuple[Any, ...] = ()
    default: Any = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Operator:
    """An operator that has a definition; calling it with operands makes a pattern."""

    op_type: str
    domain: str = ""

    @property
    def qualified(self) -> str:
        """As `Operation.qualified`."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    @property
    def names(self) -> frozenset[str]:
        """The qualified names of the operators that it matches."""
        return frozenset([self.qualified])

    @property
    def definitions(self) -> Sequence[OpDef]:
        """Its definitions, the newest first."""
        found = definitions(self.op_type, self.domain)
        return sorted(found, key=lambda d: -d.since)

    @property
    def version(self) -> int:
        """The version that replacements use."""
        newest = self.definitions[0]
        if self.domain:
            version = newest.since
        else:
            version = max(newest.since, LATEST)
        if newest.until is None:
            return version
        return min(version, newest.until)

    def covers(self, op: Operation) -> bool:
        """Whether `op` applies this operator, in any version."""
        return op.qualified == self.qualified

    def __call__(self, *operands: Any, **attributes: Any) -> Apply:
        return _applied(self, operands, attributes)

    def __str__(self) -> str:
        return self.qualified


@dataclass(frozen=True)
class AnyOf:
    """One of several operators: those of a list, or all with one of some traits.

    text: how to print a long list.
    """

    operators: tuple[Operator, ...] = ()
    traits: Trait = Trait.NONE
    text: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The qualified names of the operators that it matches."""
        named = frozenset(o.qualified for o in self.operators)
        traits = (
            self.traits.value
        )  # comparing integers is several times as fast as comparing flags
        if not traits:
            return named
        with_trait = (d.qualified for d in registered() if d.traits.value & traits)
        return named.union(with_trait)

    def covers(self, op: Operation) -> bool:
        """Whether `op` applies one of them."""
        if self.traits and has_trait(op, self.traits):
            return True
        return any(o.covers(op) for o in self.operators)

    def __call__(self, *operands: Any, **attributes: Any) -> Apply:
        return _applied(self, operands, attributes)

    def __str__(self) -> str:
        if self.text:
            return self.text
        words = [str(o) for o in self.operators]
        words += [str(t.name).lower() for t in Trait if t & self.traits]
        return "|".join(words)


@dataclass(frozen=True, eq=False)
class Apply(Pattern):
    """An operator applied. `...` after its operands allows more operands; `more` among the
    attributes allows others. Without these, an operation that has more does not match.

    once: only the surrounding pattern reads it, and it is not an output of the model.
    """

    operator: Operator | AnyOf
    operands: tuple[Pattern | Maybe, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    rest: bool = False
    open: bool = False
    read_once: bool = False
    text: str = ""

    def once(self) -> Apply:
        """The same, if nothing else reads it, so that the operation disappears with the match."""
        return replace(self, read_once=True)

    def named(self, text: str) -> Apply:
        """The same, printed as `text`."""
        return replace(self, text=text)

    def with_attributes(self) -> Apply:
        """The same with any further attributes."""
        return replace(self, open=True)

    def results(self, count: int) -> tuple[RuleResult, ...]:
        """Its results one by one, if it has several, like a Split."""
        return tuple(RuleResult(self, n, count) for n in range(count))

    def on(self, *operands: Pattern | Computed) -> On:
        """In a replacement: the matched operation with other operands."""
        return On(self, operands)

    def __str__(self) -> str:
        if self.text:
            return self.text
        words = [*map(str, self.operands), *(["..."] if self.rest else [])]
        words += [f"{k}={v}" for k, v in self.attributes.items()]
        words += ["**"] if self.open else []
        sign = _SIGNS.get(str(self.operator))
        if sign is not None and len(words) == 2:
            return f"({words[0]} {sign} {words[1]})"
        return f"{self.operator}({', '.join(words)})"


@dataclass(frozen=True, eq=False)
class RuleResult(Pattern):
    """One of several results of an operator. place: its index; count: the number of results."""

    of: Apply
    place: int
    count: int

    def __str__(self) -> str:
        return f"{self.of}[{self.place}]"


@dataclass(frozen=True, eq=False)
class On:
    """The operation that `pattern` matched, with other operands; the rest is unchanged."""

    pattern: Apply
    operands: tuple[Pattern | Computed, ...]

    def __str__(self) -> str:
        words = [*map(str, self.operands), *(["..."] if self.pattern.rest else [])]
        return f"{self.pattern.operator}({', '.join(words)})"


@dataclass(frozen=True, eq=False)
class Computed:
    """A constant operand or attribute of a replacement that a function computes from the match.

    function: returns an array or the attribute; None if the rule cannot be applied.
    """

    text: str
    function: Any

    def __str__(self) -> str:
        return self.text


Term = Pattern | On
_SIGNS = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Pow": "**", "MatMul": "@"}


def _applied(
    operator: Operator | AnyOf,
    operands: Sequence[Any],
    attributes: Mapping[str, Any],
) -> Apply:
    rest = bool(operands) and isinstance(operands[-1], EllipsisType)
    given = operands[:-1] if rest else operands
    parts = tuple(part_of(x) for x in given)
    return Apply(operator, parts, dict(attributes), rest)


def part_of(x: Any) -> Any:
    """An operand of a pattern or replacement. Raises InputError if `x` cannot be one."""
    if isinstance(x, int | float):
        return Number(float(x))
    if isinstance(x, Pattern | Maybe | Computed | On):
        return x
    raise InputError(
        f"{x!r} is not an operand of a pattern",
        hint="Give a tensor, a number, another pattern, maybe(...), or ... after the last",
    )


class Operators:
    """The operators of a domain as attributes: `onnx.Conv`. Raises InputError for unknown ones."""

    def __init__(self, domain: str = "") -> None:
        self._domain = "" if domain == "ai.onnx" else domain

    def __getattr__(self, name: str) -> Operator:
        if name.startswith("__"):
            raise AttributeError(name)
        if not definitions(name, self._domain):
            known = [d.op_type for d in registered() if d.domain == self._domain]
            where = f"domain {self._domain!r}" if self._domain else "ONNX"
            raise InputError(
                f"no operator {name!r} of {where} has a definition",
                hint=did_you_mean(name, known)
                or "Register it first: see docs/operators.md",
            )
        found = Operator(name, self._domain)
        setattr(self, name, found)  # found at once the next time
        return found


onnx = Operators()


def operators(domain: str) -> Operators:
    """The operators of a domain that have a definition, as attributes."""
    return Operators(domain)


def tensors(names: str) -> Sequence[Tensor]:
    """One tensor per word. (A single word also yields a sequence.)"""
    return [Tensor(name) for name in names.split()]


def reals(names: str) -> Sequence[Tensor]:
    """As `tensors`, for values with floating-point elements."""
    return [Tensor(name, real=True) for name in names.split()]


def constants(names: str) -> Sequence[Tensor]:
    """As `tensors`, for values known at compile time."""
    return [Tensor(name, known=True) for name in names.split()]


def maybe(part: Pattern) -> Maybe:
    """An operand that may be omitted."""
    return Maybe(part)


def either(*forms: Pattern) -> Either:
    """One of several forms."""
    return Either(forms)


def one_of(*choices: Operator) -> AnyOf:
    """One of several operators."""
    return AnyOf(choices)


def having(traits: Trait) -> AnyOf:
    """Every operator that has one of these traits."""
    return AnyOf(traits=traits)


def parts(pattern: Any) -> Iterator[Any]:
    """The pattern and all its parts, outermost first."""
    yield pattern
    match pattern:
        case Apply() | On():
            inner: Sequence[Any] = [*pattern.operands]
            if isinstance(pattern, Apply):
                inner = [*inner, *pattern.attributes.values()]
        case Maybe():
            inner = [pattern.part]
        case RuleResult():
            inner = [pattern.of]
        case Either():
            inner = pattern.forms
        case _:
            inner = ()
    for x in inner:
        yield from parts(x)
