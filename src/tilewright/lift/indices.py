"""Index functions by name: the permutations of Gather and Scatter, the boundaries of Pad."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.expr.nodes import Expr, FloorDiv, Max, Min, Mod, Select, const
from tilewright.lift.nodes import IndexFun


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A permutation `at(i, n, *args)` of 0..n-1, and the function that undoes it.

    divisors: how many of `args` must divide n.
    """

    arity: int
    at: Callable[..., Expr]
    inverse: Callable[..., Expr]
    divisors: int = 0


def _reverse(i: Expr, n: Expr) -> Expr:
    return n - 1 - i


def _stride(i: Expr, n: Expr, s: Expr) -> Expr:
    """Column by column through n/s rows of s: 0, s, 2s, ..., 1, s+1, ..."""
    rows = FloorDiv(n, s)
    return FloorDiv(i, rows) + s * Mod(i, rows)


def _unstride(i: Expr, n: Expr, s: Expr) -> Expr:
    return _stride(i, n, FloorDiv(n, s))


def _rotate(i: Expr, n: Expr, by: Expr) -> Expr:
    return Mod(i + by, n)


def _unrotate(i: Expr, n: Expr, by: Expr) -> Expr:
    return Mod(i - by, n)


INDEX_FUNCTIONS: Mapping[str, IndexRow] = {
    "reverse": IndexRow(0, _reverse, _reverse),
    "stride": IndexRow(1, _stride, _unstride, divisors=1),
    "rotate": IndexRow(1, _rotate, _unrotate),
}


def row(f: IndexFun) -> IndexRow:
    """The row of an index function. Raises InputError for an unknown name or wrong arguments."""
    found = INDEX_FUNCTIONS.get(f.name)
    if found is None:
        known = ", ".join(INDEX_FUNCTIONS)
        raise InputError(
            f"there is no index function {f.name!r}",
            hint=f"known: {known}",
            where="Gather, Scatter",
        )
    if len(f.args) != found.arity:
        raise InputError(
            f"index function {f.name} takes {found.arity} numbers, not {len(f.args)}",
            where="Gather, Scatter",
            hint="as in Gather('reverse') or Gather('stride', 4)",
        )
    return found


def _clamp(i: Expr, n: Expr) -> Expr:
    return Max(Min(i, n - 1), const(0))


def _wrap(i: Expr, n: Expr) -> Expr:
    return Mod(i, n)


def _mirror(i: Expr, n: Expr) -> Expr:
    folded = Mod(i, n * 2)
    return Select(folded < n, folded, n * 2 - 1 - folded)


# i may leave 0..n-1 on both sides; mirror repeats the element at the edge.
BOUNDARY: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "clamp": _clamp,
    "mirror": _mirror,
    "wrap": _wrap,
}
