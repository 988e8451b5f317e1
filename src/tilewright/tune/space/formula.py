"""Numbers that depend on earlier parameters: a constant, a parameter's name, or a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError

Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BoundFormula:
    """A formula with the names of the parameters that it reads, in order.

    Construct it directly if parameter names are not valid argument names.
    """

    formula: int | float | str | Callable[..., Any]
    names: tuple[str, ...]

    def __call__(self, given: Given) -> Any:
        """Its value for these values of the parameters."""
        if isinstance(self.formula, str):
            return given[self.formula]
        if callable(self.formula):
            return self.formula(*[given[name] for name in self.names])
        return self.formula

    def __str__(self) -> str:
        return described(self.formula)


Formula = int | float | str | Callable[..., Any] | BoundFormula


def bind(formula: Formula) -> BoundFormula:
    """Bind a formula to the names that it reads: for a function, its arguments.

    An argument with a default is not a parameter. Raises InputError for a function whose arguments
    cannot be passed by name.
    """
    if isinstance(formula, BoundFormula):
        return formula
    if isinstance(formula, str):
        return BoundFormula(formula, (formula,))
    if callable(formula):
        return BoundFormula(formula, _arguments(formula))
    if isinstance(formula, bool) or not isinstance(formula, int | float):
        raise InputError(
            f"{formula!r} is not a formula",
            where="parameter",
            hint="give a number, a parameter's name, or a function of parameters",
        )
    return BoundFormula(formula, ())


def described(formula: Any) -> str:
    """A formula for display."""
    if callable(formula):
        return getattr(formula, "__name__", "function")
    return str(formula)


def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        found = ()  # type: ignore[assignment]
    needed = [p for p in found if p.default is p.empty]
    if not found or any(p.kind not in _PLAIN for p in needed):
        raise InputError(
            f"the arguments of {described(function)} are not names of parameters",
            where="parameter",
            hint="as in lambda WPT, LS: WPT % LS == 0",
        )
    return tuple(p.name for p in needed)


_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)
