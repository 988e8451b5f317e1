"""Conditions that the extents of a model's inputs must satisfy together, such as `n > m`.

    term = 3 | 0.5 | "n" | AppliedFunction("+", (term, ...))

A name is the extent of a dimension. The functions are those of Python: the condition of a model
means what its source says, also where integers are divided or become floats.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError

DEEPEST: Final = 100  # calls in one another; deeper terms are refused
_LONGEST: Final = 4096  # bits of a power


@dataclass(frozen=True, slots=True)
class AppliedFunction:
    """A function of `FUNCTIONS` applied to terms."""

    function: str
    operands: tuple[Term, ...]


Term = int | float | str | AppliedFunction


def _power(base: Any, exponent: Any) -> Any:
    """Raises OverflowError for an integer that would take long to compute."""
    if isinstance(base, int) and isinstance(exponent, int):
        if base.bit_length() * abs(exponent) > _LONGEST:
            raise OverflowError
    return base**exponent


def _rounded(number: Any, digits: Any = None) -> Any:
    """Raises OverflowError for an integer that would take long to compute."""
    if digits is not None and abs(digits) > _LONGEST:
        raise OverflowError
    return round(number, digits)


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "/": operator.truediv,
    "**": _power,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "and": lambda *terms: all(terms),
    "or": lambda *terms: any(terms),
    "not": operator.not_,
    "neg": operator.neg,
    "abs": abs,
    "min": min,
    "max": max,
    "float": float,
    "round": _rounded,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "sqrt": math.sqrt,
}
_PREFIX: Final = {"not": "not ", "neg": "-"}
# The operand that decides, after which the others have no value.
_DECIDING: Final = {"and": False, "or": True}


@dataclass(frozen=True, slots=True)
class ExtentCondition:
    """A term that is true at the extents for which a model is made."""

    term: Term

    @property
    def names(self) -> tuple[str, ...]:
        """The dimensions that it is about, in order, each once."""
        return tuple(dict.fromkeys(_names(self.term)))

    def holds(self, extents: Mapping[str, int]) -> bool:
        """Whether it holds at extents by name. One without a value there, `n % 0`, does not."""
        try:
            return bool(_value(self.term, extents))
        except (ArithmeticError, ValueError, TypeError):
            return False

    def at(self, extents: Mapping[str, int]) -> ExtentCondition:
        """The condition on the other dimensions, where these are known."""
        return ExtentCondition(_at(self.term, extents))

    def to_json(self) -> Any:
        """For artifacts: numbers, names, and lists of a function and its operands."""
        return _encoded(self.term)

    @staticmethod
    def of_json(data: Any) -> ExtentCondition:
        """The inverse of `to_json`. Raises ValueError for other data."""
        return ExtentCondition(_decoded(data, 0))

    def __str__(self) -> str:
        return _shown(self.term, False)


def check_conditions(
    conditions: Iterable[ExtentCondition], extents: Mapping[str, int]
) -> None:
    """Raise InputError (TW-SIZE) unless all of them hold at extents by name."""
    for c in conditions:
        if not c.holds(extents):
            given = ", ".join(f"{name} is {extents[name]}" for name in c.names)
            raise InputError(
                f"{given}, and the model is made for {c}",
                code="TW-SIZE",
                hint="give others, or export the model with example inputs of such extents",
            )


def remaining(
    conditions: Iterable[ExtentCondition], extents: Mapping[str, int]
) -> tuple[ExtentCondition, ...]:
    """The conditions on other dimensions than these. Raises InputError as `check_conditions`."""
    decided: list[ExtentCondition] = []
    others: list[ExtentCondition] = []
    for c in conditions:
        (decided if extents.keys() >= {*c.names} else others).append(c)
    check_conditions(decided, extents)
    return tuple(c.at(extents) for c in others)


def multiples(condition: ExtentCondition) -> tuple[str, int] | None:
    """What must divide an extent, if the condition says this of one, as `3*n % 6 == 0` does.

    `n % -4 <= 0` says nothing.
    """
    match condition.term:
        case AppliedFunction(
            "==" | "<=" as how, (AppliedFunction("%", (what, int(divisor))), 0)
        ) if divisor > 0 or (divisor and how == "=="):
            match what:
                case str(name):
                    return name, abs(divisor)
                case AppliedFunction("*", (int(factor), str(name))):
                    return name, abs(divisor) // math.gcd(divisor, factor)
    return None


def _names(term: Term) -> Iterator[str]:
    match term:
        case str():
            yield term
        case AppliedFunction():
            for part in term.operands:
                yield from _names(part)


def _value(term: Term, extents: Mapping[str, int]) -> Any:
    match term:
        case str():
            return extents[term]
        case AppliedFunction(function, operands) if function in _DECIDING:
            known = _DECIDING[function]
            values = (bool(_value(part, extents)) for part in operands)
            return known if any(v is known for v in values) else not known
        case AppliedFunction(function, operands):
            return FUNCTIONS[function](*[_value(part, extents) for part in operands])
    return term


def _at(term: Term, extents: Mapping[str, int]) -> Term:
    match term:
        case str():
            return extents.get(term, term)
        case AppliedFunction(function, operands):
            return AppliedFunction(
                function, tuple(_at(part, extents) for part in operands)
            )
    return term


def _encoded(term: Term) -> Any:
    if isinstance(term, AppliedFunction):
        return [term.function, *map(_encoded, term.operands)]
    return term


def _decoded(data: Any, depth: int) -> Term:
    if type(data) in (int, float, str):
        return data  # type: ignore[no-any-return]
    if depth > DEEPEST:
        raise ValueError("a condition is nested too deep")
    if not isinstance(data, list) or len(data) < 2:
        raise ValueError(f"a condition has the part {reprlib.repr(data)}")
    function, *operands = data
    if not isinstance(function, str) or function not in FUNCTIONS:
        raise ValueError(f"a condition has the function {reprlib.repr(function)}")
    return AppliedFunction(
        function, tuple(_decoded(part, depth + 1) for part in operands)
    )


def _shown(term: Term, inner: bool) -> str:
    if not isinstance(term, AppliedFunction):
        return str(term)
    if term.function.isalpha() and term.function not in (*_DECIDING, *_PREFIX):
        given = ", ".join(_shown(part, False) for part in term.operands)
        return f"{term.function}({given})"
    first, *others = term.operands
    # a + b + c means (a + b) + c
    again = isinstance(first, AppliedFunction) and first.function == term.function
    parts = [_shown(first, not again), *(_shown(part, True) for part in others)]
    if term.function in _PREFIX:
        text = _PREFIX[term.function] + parts[0]
    else:
        text = f" {term.function} ".join(parts)
    return f"({text})" if inner else text
