"""Constraints on a parameter's values, given earlier parameters.

Declarative constraints narrow a range without testing each value: the divisors in an interval are
enumerated. A predicate, any function of parameters, is called for each value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import ceil_div, divisors, whole
from tilewright.tune.space.formula import BoundFormula, Formula, Given, bind


class Constraint(Protocol):
    """Narrows the values of one parameter."""

    def names(self, own: str) -> tuple[str, ...]:
        """The parameters that it reads, except the constrained one, named `own`."""
        ...

    def narrow(self, own: str, values: Sequence[Any], given: Given) -> Sequence[Any]:
        """The values that satisfy it, in order."""
        ...


@dataclass(frozen=True)
class Predicate:
    """Values for which a function is true; its arguments are named like parameters."""

    function: Callable[..., Any] | BoundFormula

    @cached_property
    def _bound(self) -> BoundFormula:
        return bind(self.function)

    def names(self, own: str) -> tuple[str, ...]:
        """All arguments except the constrained parameter."""
        return tuple(name for name in self._bound.names if name != own)

    def narrow(self, own: str, values: Sequence[Any], given: Given) -> Sequence[Any]:
        """Call the function for each value."""
        names, function = self._bound.names, self._bound.formula
        assert callable(function)
        arguments = [given.get(name) for name in names]
        if own not in names:
            return values if function(*arguments) else ()
        place = names.index(own)
        before, after = arguments[:place], arguments[place + 1 :]
        return [v for v in values if function(*before, v, *after)]


@dataclass(frozen=True)
class _ByFormula(ABC):
    """A constraint with a number given by a formula."""

    number: Formula

    @cached_property
    def _bound(self) -> BoundFormula:
        return bind(self.number)

    def names(self, own: str) -> tuple[str, ...]:
        """The parameters that the number depends on."""
        return self._bound.names

    def narrow(self, own: str, values: Sequence[Any], given: Given) -> Sequence[Any]:
        """The values that satisfy it."""
        return self._narrow(values, self._bound(given))

    @abstractmethod
    def _narrow(self, values: Sequence[Any], number: Any) -> Sequence[Any]: ...


class Divides(_ByFormula):
    """Values that divide a number."""

    def _narrow(self, values: Sequence[Any], number: Any) -> Sequence[Any]:
        numbers = isinstance(values, range) and len(values) > 0
        if numbers and min(values[0], values[-1]) > 0 and whole(number, 1) is not None:
            found = [d for d in divisors(number) if d in values]
            return found if values[0] <= values[-1] else found[::-1]
        return [v for v in values if v and number % v == 0]


class MultipleOf(_ByFormula):
    """Values that are multiples of a number."""

    def _narrow(self, values: Sequence[Any], number: Any) -> Sequence[Any]:
        every = isinstance(values, range) and values.step == 1
        if every and whole(number, 1) is not None:
            assert isinstance(values, range)
            return range(ceil_div(values.start, number) * number, values.stop, number)
        return [v for v in values if v % number == 0]


class AtMost(_ByFormula):
    """Values that are at most a number."""

    def _narrow(self, values: Sequence[Any], number: Any) -> Sequence[Any]:
        if isinstance(values, range) and values.step > 0:
            return values[: bisect_right(values, number)]
        return [v for v in values if v <= number]


class AtLeast(_ByFormula):
    """Values that are at least a number."""

    def _narrow(self, values: Sequence[Any], number: Any) -> Sequence[Any]:
        if isinstance(values, range) and values.step > 0:
            return values[bisect_left(values, number) :]
        return [v for v in values if v >= number]
