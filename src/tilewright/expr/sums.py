"""Rules that look at a whole sum at once: like terms at a distance, multiples of a divisor.

A sum in normal form leans left, `((t1 + t2) - t3) + 7`, so its terms are a walk down the left. The
walks are short by limit: a sum of thousands of terms costs no more per term than a short one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.expr.nodes import Add, Const, Expr, FloorDiv, Mod, Mul, Neg, Sub
from tilewright.ir.rewrite import RuleSet

REACH = 24

# (sign, term), in the order of the sum.
Terms = list[tuple[int, Expr]]


def terms_of(e: Expr, limit: int = REACH) -> Terms:
    """The last `limit` terms of a sum; the first of them may be the rest of a longer sum."""
    found: Terms = []
    while isinstance(e, Add | Sub) and len(found) < limit:
        found.append((1 if isinstance(e, Add) else -1, e.rhs))
        e = e.lhs
    found.append((1, e))
    return found[::-1]


def sum_of(terms: Terms, zero: Expr) -> Expr:
    """The sum that leans left; `zero` if there are no terms."""
    total: Expr | None = None
    for sign, term in terms:
        if total is None:
            total = term if sign > 0 else Neg(term)
        elif sign > 0:
            total = Add(total, term)
        else:
            total = Sub(total, term)
    return zero if total is None else total


_SCALED = frozenset({Mul, FloorDiv, Mod})


def _core(e: Any) -> Any:
    """What is left of a term without its constant factors, divisors and moduli."""
    while e.__class__ in _SCALED and e.rhs.__class__ is Const:
        e = e.lhs
    return e


def _occurs(core: Any, e: Any) -> bool:
    """Whether a sum of two terms or more, within reach, has a term of this core."""
    if e.__class__ is not Add and e.__class__ is not Sub:
        return False
    for _ in range(REACH):
        if e.__class__ is not Add and e.__class__ is not Sub:
            return _core(e) is core
        if _core(e.rhs) is core:
            return True
        e = e.lhs
    return False


def collector(pairs: RuleSet) -> Callable[[Any], Expr | None]:
    """A rule that joins the last term of a sum with an earlier one, by the rules of two terms."""

    def collect(e: Any) -> Expr | None:
        core = _core(e.rhs)
        if not _occurs(core, e.lhs):
            return None
        sign = 1 if isinstance(e, Add) else -1
        terms = terms_of(e.lhs)
        for n, (other, term) in enumerate(terms):
            if _core(term) is not core:
                continue
            pair = Add(term, e.rhs) if other == sign else Sub(term, e.rhs)
            joined = pairs.at_root(pair)
            if joined is None and other == sign:
                joined = pairs.at_root(Add(e.rhs, term))
            if joined is not None:
                terms[n] = (other, joined)
                return sum_of(terms, e)
        return None

    return collect


def _quotient(term: Expr, d: int) -> Expr | None:
    """`term / d` where the term is a multiple of d by its constant factor."""
    if not (isinstance(term, Mul) and isinstance(term.rhs, Const)):
        return None
    factor, left_over = divmod(int(term.rhs.value.real), d)
    if left_over:
        return None
    if factor == 1:
        return term.lhs
    return Mul(term.lhs, Const(factor, term.dtype))


def split(e: Expr, d: int) -> tuple[Terms, Terms]:
    """A sum as `d * whole + rest`: the terms of both."""
    whole: Terms = []
    rest: Terms = []
    for sign, term in terms_of(e):
        if isinstance(term, Const):
            value = sign * int(term.value.real)
            for part, into in ((value // d, whole), (value % d, rest)):
                if part:
                    into.append((1, Const(part, term.type)))
            continue
        found = _quotient(term, d)
        if found is None:
            rest.append((sign, term))
        else:
            whole.append((sign, found))
    return whole, rest


def divide_sum(e: Any) -> Expr | None:
    """`(d*whole + rest) // d` as `whole + rest // d`, for a constant d > 0."""
    if not isinstance(e.lhs, Add | Sub) or e.rhs.value <= 1:
        return None
    whole, rest = split(e.lhs, e.rhs.value)
    if not whole:
        return None
    zero = Const(0, e.dtype)
    return Add(
        sum_of(whole, zero),
        FloorDiv(sum_of(rest, zero), e.rhs),
    )


def mod_sum(e: Any) -> Expr | None:
    """`(d*whole + rest) % d` as `rest % d`, for a constant d > 0."""
    if not isinstance(e.lhs, Add | Sub) or e.rhs.value <= 1:
        return None
    whole, rest = split(e.lhs, e.rhs.value)
    if whole:
        return Mod(sum_of(rest, Const(0, e.dtype)), e.rhs)
    return None
