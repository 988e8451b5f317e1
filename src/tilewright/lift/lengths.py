"""Lengths as symbolic arithmetic: sums of products of variables over one denominator.

Every division is exact. `Split(m)` of a length n makes `n // m` under the condition `m | n`, so
that `(n // m) * m` is n; what cannot be decided from the text is kept as a Condition and checked
once sizes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.expr.nodes import Const, Expr, FloorDiv, Sub, Var
from tilewright.expr.printer import show
from tilewright.ir.node import postorder
from tilewright.lift.polynomials import Monomial, polynomial
from tilewright.lift.polynomials import normal as normal
from tilewright.lift.types import Length
from tilewright.lift.types import array as array
from tilewright.lift.types import length as length

Sizes = Mapping[Var, int]


@dataclass(frozen=True, slots=True)
class Condition:
    """`left | right` ("divides") or `left <= right` ("at most"), asked for by `pattern`."""

    kind: Literal["divides", "at most"]
    left: Length
    right: Length
    pattern: str

    def __str__(self) -> str:
        sign = "|" if self.kind == "divides" else "<="
        return f"{show(self.left)} {sign} {show(self.right)} ({self.pattern})"


def divide(n: Length, m: Length) -> Length:
    """The exact quotient in normal form."""
    return normal(FloorDiv(n, m))


@lru_cache(maxsize=4096)
def decide(c: Condition) -> bool | None:
    """Whether the condition holds for all sizes (True), for none (False), or for some."""
    if c.kind == "divides":
        return _decide_divides(c.left, c.right)
    rest = polynomial(Sub(c.right, c.left))
    if all(k == () for k in rest):
        return all(v >= 0 for v in rest.values())
    # Lengths are never negative.
    no_divisors = all(map(_has_no_divisor, rest))
    if no_divisors and all(v >= 0 for v in rest.values()):
        return True
    return None


def _decide_divides(m: Length, n: Length) -> bool | None:
    """No negative number counts as a divisor: it is the length of something."""
    if isinstance(m, Const) and m.value.real < 0:
        return False
    quotient = polynomial(FloorDiv(n, m))
    integral = all(v.denominator == 1 for v in quotient.values())
    if integral and all(map(_has_no_divisor, quotient)):
        return True
    if all(k == () for k in quotient):
        return False
    return None


def _has_no_divisor(k: Monomial) -> bool:
    return all(power > 0 for _, power in k)


def evaluate(n: Length, sizes: Sizes) -> int:
    """The number. Raises InputError for a variable without a size and a division with a rest."""
    total = Fraction(0)
    for monomial, factor in polynomial(n).items():
        for atom, power in monomial:
            factor *= Fraction(_atom(atom, n, sizes)) ** power
        total += factor
    if total.denominator != 1:
        raise InputError(
            f"the length {show(n)} is {total}, not a whole number",
            code="TW-LIFT-LENGTH",
            hint="choose sizes that the splits divide",
            where=f"length {show(n)}",
        )
    return int(total)


def _atom(atom: Expr, n: Length, sizes: Sizes) -> int:
    if isinstance(atom, Var):
        if atom not in sizes:
            raise InputError(
                f"the length {atom.name} has no size",
                code="TW-LIFT-SIZE",
                where=f"length {show(n)}",
                hint=f"give sizes={{'{atom.name}': ...}}",
            )
        return sizes[atom]
    value = evaluate(atom, sizes)
    if value == 0:
        raise InputError(
            f"{show(n)} divides by 0",
            code="TW-LIFT-LENGTH",
            where=f"length {show(n)}",
            hint="choose sizes that make no divisor 0",
        )
    return value


def holds(c: Condition, sizes: Sizes) -> bool:
    """Whether the condition holds at these sizes."""
    left = evaluate(c.left, sizes)
    right = evaluate(c.right, sizes)
    if c.kind == "at most":
        return left <= right
    return left > 0 and right % left == 0


def variables(lengths: Iterable[Length]) -> tuple[Var, ...]:
    """The variables in the lengths, each once, in order of appearance."""
    found = (v for n in lengths for v in postorder(n) if isinstance(v, Var))
    return tuple(dict.fromkeys(found))
