"""The values of a parameter before constraints: intervals, sets, divisors, powers.

Bounds may be formulas of earlier parameters, so a chain of tiles is enumerated directly: the
divisors of what earlier tiles leave. (Ranges as in ATF, Rasch et al., TACO 2021, which enumerates
them completely and filters.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor
from typing import Any, Protocol

import numpy as np

from tilewright.base.errors import InputError
from tilewright.base.numbers import divisors, whole
from tilewright.tune.space.formula import BoundFormula, Formula, Given, bind

SLACK = 1e-9  # in steps: tolerance for rounding at the end of an interval of floats


class Range(Protocol):
    """The values of one parameter; `names` are the earlier parameters that they depend on."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def values(self, given: Given) -> Sequence[Any]:
        """The values in order, given earlier parameters."""
        ...


@dataclass(frozen=True)
class Interval:
    """Numbers from `start` to `end` inclusive, in steps of `step`; or a function of each.

    Raises InputError for a step of 0.
    """

    start: Formula
    end: Formula
    step: int | float = 1
    generator: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if not self.step:
            raise InputError(
                "the step is 0", where="Interval", hint="use a nonzero step"
            )

    @cached_property
    def _bounds(self) -> tuple[BoundFormula, BoundFormula]:
        return bind(self.start), bind(self.end)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters that the bounds depend on."""
        start, end = self._bounds
        return *start.names, *end.names

    def values(self, given: Given) -> Sequence[Any]:
        """A `range` for integers, else a tuple."""
        start, end = (bound(given) for bound in self._bounds)
        numbers = _numbers(start, end, self.step)
        if self.generator is None:
            return numbers
        return tuple(map(self.generator, numbers))


def _numbers(start: Any, end: Any, step: Any) -> Sequence[Any]:
    if all(isinstance(n, int) for n in (start, end, step)):
        return range(start, end + (1 if step > 0 else -1), step)
    count = floor((end - start) / step + SLACK) + 1
    return tuple(start + n * step for n in range(count))


@dataclass(frozen=True, init=False)
class Set:
    """These values: numbers, strings, booleans, None, tuples of them, or NumPy scalars.

    Raises InputError for duplicates and for other types, which could not be stored.
    """

    given: tuple[Any, ...]
    names: tuple[str, ...] = ()

    def __init__(self, *values: Any) -> None:
        made = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
        object.__setattr__(self, "given", made)
        object.__setattr__(self, "names", ())
        strange = [v for v in made if not _is_plain(v)]
        if strange:
            raise InputError(
                f"{strange[0]!r} cannot be stored",
                where="Set",
                hint="use numbers, strings, or tuples of them instead of lists and objects",
            )
        if len(set(made)) < len(made):
            raise InputError(
                "a value occurs twice", where=f"Set{values}", hint="give each once"
            )

    def values(self, given: Given) -> Sequence[Any]:
        """The values."""
        return self.given


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


@dataclass(frozen=True)
class _UpTo:
    """Values derived from a number and limited by `at_most`."""

    of: Formula
    at_most: Formula | None

    @cached_property
    def _bounds(self) -> tuple[BoundFormula, BoundFormula]:
        return _with_limit(self.of, self.at_most)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters that the number and the limit depend on."""
        of, limit = self._bounds
        return *of.names, *limit.names


@dataclass(frozen=True)
class Divisors(_UpTo):
    """The divisors of a number in ascending order, up to `at_most`."""

    at_most: Formula | None = None

    def values(self, given: Given) -> Sequence[int]:
        """The divisors."""
        of, limit = (bound(given) for bound in self._bounds)
        return tuple(d for d in divisors(of) if d <= limit)


@dataclass(frozen=True)
class Multiples(_UpTo):
    """The multiples of a number, from itself up to `at_most`."""

    at_most: Formula

    def values(self, given: Given) -> Sequence[int]:
        """The multiples."""
        of, limit = (bound(given) for bound in self._bounds)
        return range(of, limit + 1, of)


@dataclass(frozen=True)
class Powers:
    """The powers of `base` from 1 up to `at_most`. Raises InputError for a base below 2."""

    at_most: Formula
    base: int = 2

    def __post_init__(self) -> None:
        if whole(self.base, 2) is None:
            raise InputError(
                f"powers of {self.base!r}",
                where="Powers",
                hint="use a base of at least 2",
            )

    @cached_property
    def _limit(self) -> BoundFormula:
        return bind(self.at_most)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters that the limit depends on."""
        return self._limit.names

    def values(self, given: Given) -> Sequence[int]:
        """The powers."""
        limit = self._limit(given)
        found: list[int] = []
        power = 1
        while power <= limit:
            found.append(power)
            power *= self.base
        return tuple(found)


def _with_limit(
    of: Formula, limit: Formula | None
) -> tuple[BoundFormula, BoundFormula]:
    first = bind(of)
    return first, first if limit is None else bind(limit)
