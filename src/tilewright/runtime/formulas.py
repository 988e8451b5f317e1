"""Extents that depend on sizes, as data: `["+", ["*", 4, "n"], 2]` is 4 n + 2.

A formula is a number, the name of a size, or an operation on two formulas.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

Formula = Any  # int | str | list[Any]
OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
}
_DEEPEST: Final = 64


def value(formula: Formula, sizes: Mapping[str, int]) -> int:
    """What a formula is at these sizes. Raises KeyError for a size without a value."""
    if isinstance(formula, int):
        return formula
    if isinstance(formula, str):
        return sizes[formula]
    name, a, b = formula
    return OPERATIONS[name](value(a, sizes), value(b, sizes))


def on(formula: Formula, names: Mapping[str, Formula]) -> Formula:
    """A formula with formulas in the place of some sizes."""
    if isinstance(formula, int):
        return formula
    if isinstance(formula, str):
        return names.get(formula, formula)
    name, a, b = formula
    return [name, on(a, names), on(b, names)]


def check(formula: Formula, sizes: Mapping[str, Any], depth: int = 0) -> None:
    """Raise ValueError unless it is a formula of these sizes without possible division by 0."""
    match formula:
        case bool():
            pass
        case int() if abs(formula) < 1 << 62:
            return
        case str() if formula in sizes:
            return
        case [str() as name, a, b] if name in OPERATIONS and depth < _DEEPEST:
            check(a, sizes, depth + 1)
            if name not in ("//", "%"):
                return check(b, sizes, depth + 1)
            if type(b) is int and b > 0:
                return None
    raise ValueError(f"{str(formula)[:60]!r} is not an extent")
