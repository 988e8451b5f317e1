"""The normal form of lengths: sums of products of variables over one denominator."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache, reduce
from math import lcm

from tilewright.base.errors import InputError
from tilewright.expr.nodes import Add, Const, Expr, FloorDiv, Mul, Neg, Sub, Var, const
from tilewright.expr.printer import show

# Atoms with their powers, which may be negative, sorted; the empty one is 1.
Monomial = tuple[tuple[Expr, int], ...]
Polynomial = dict[Monomial, Fraction]


@lru_cache(maxsize=4096)
def normal(e: Expr) -> Expr:
    """The one expression of its value; two lengths are equal if their normal forms are one."""
    if isinstance(e, Const | Var):
        return e
    return _to_expr(polynomial(e))


def polynomial(e: Expr) -> Polynomial:
    """The terms of a length; every division in it is exact."""
    match e:
        case Const():
            return _clean({(): Fraction(int(e.value.real))})
        case Add(lhs, rhs):
            return _sum(polynomial(lhs), polynomial(rhs), 1)
        case Sub(lhs, rhs):
            return _sum(polynomial(lhs), polynomial(rhs), -1)
        case Neg(value):
            return _sum({}, polynomial(value), -1)
        case Mul(lhs, rhs):
            return _reduced(_product(polynomial(lhs), polynomial(rhs)))
        case FloorDiv(lhs, rhs):
            return _quotient(polynomial(lhs), polynomial(rhs))
    return {((e, 1),): Fraction(1)}


def _clean(p: Polynomial) -> Polynomial:
    return {k: v for k, v in p.items() if v}


def _sum(p: Polynomial, q: Polynomial, sign: int) -> Polynomial:
    total = dict(p)
    for k, v in q.items():
        total[k] = total.get(k, Fraction(0)) + sign * v
    return _clean(total)


def _product(p: Polynomial, q: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for j, v in p.items():
        for k, w in q.items():
            key = _times(j, k, 1)
            total[key] = total.get(key, Fraction(0)) + v * w
    return _clean(total)


def _times(j: Monomial, k: Monomial, sign: int) -> Monomial:
    powers = dict(j)
    for atom, power in k:
        powers[atom] = powers.get(atom, 0) + sign * power
    return _monomial(powers)


def _monomial(powers: Mapping[Expr, int]) -> Monomial:
    nonzero = [(atom, power) for atom, power in powers.items() if power]
    return tuple(sorted(nonzero, key=_name))


def _name(power: tuple[Expr, int]) -> tuple[str, int]:
    return show(power[0]), id(power[0])


def _quotient(p: Polynomial, q: Polynomial) -> Polynomial:
    if not q:
        raise InputError(
            "a length is divided by 0",
            code="TW-LIFT-LENGTH",
            where="length",
            hint="choose sizes that make no divisor 0",
        )
    if len(q) == 1:
        ((k, v),) = q.items()
        return {_times(j, k, -1): w / v for j, w in p.items()}
    exact = _long_division(p, q)
    if exact is not None:
        return exact
    return _product(p, {((_to_expr(q), -1),): Fraction(1)})


def _long_division(p: Polynomial, q: Polynomial) -> Polynomial | None:
    """p / q where q has several terms and nothing is left over."""
    lead = max(q, key=_degree)
    quotient: Polynomial = {}
    # The leading term falls with every step, as long as the division is exact.
    for _ in range(16):
        if not p:
            return quotient
        top = max(p, key=_degree)
        ratio = _times(top, lead, -1)
        if any(power < 0 for _, power in ratio):
            return None
        step = {ratio: p[top] / q[lead]}
        quotient = _sum(quotient, step, 1)
        p = _sum(p, _product(step, q), -1)
    return None


def _degree(k: Monomial) -> tuple[int, list[str]]:
    total = sum(power for _, power in k)
    names = [f"{show(atom)}^{power}" for atom, power in k]
    return total, names


def _reduced(p: Polynomial) -> Polynomial:
    """Sums in denominators canceled where the terms over them allow it."""
    sums: set[Expr] = set()
    for k in p:
        sums.update(a for a, e in k if e < 0 and not isinstance(a, Var))
    for atom in sums:
        over = {k: v for k, v in p.items() if dict(k).get(atom, 0) < 0}
        numerator = _product(over, {((atom, 1),): Fraction(1)})
        exact = _long_division(numerator, polynomial(atom))
        if exact is not None:
            others = {k: v for k, v in p.items() if k not in over}
            p = _sum(others, exact, 1)
    return p


def _to_expr(p: Polynomial) -> Expr:
    """One numerator over one denominator: only the whole is known to be exact."""
    number = reduce(lcm, (v.denominator for v in p.values()), 1)
    powers: dict[Expr, int] = {}
    for k in p:
        for atom, e in k:
            powers[atom] = max(powers.get(atom, 0), -e)
    below = _monomial(powers)
    numerator = [(_times(k, below, 1), v * number) for k, v in p.items()]
    total: Expr | None = None
    for k, v in sorted(numerator, key=_order):
        term = _term(k, abs(int(v)))
        if total is None:
            total = term if v > 0 else _term(k, int(v))
        else:
            total = Add(total, term) if v > 0 else Sub(total, term)
    if total is None:
        return const(0)
    if number == 1 and not below:
        return total
    return FloorDiv(total, _term(below, number))


def _order(term: tuple[Monomial, Fraction]) -> tuple[bool, int, list[str]]:
    """Positive terms first, then by falling degree, then by name."""
    degree, names = _degree(term[0])
    return term[1] < 0, -degree, names


def _term(k: Monomial, factor: int) -> Expr:
    total: Expr | None = None if factor == 1 and k else const(factor)
    for atom, e in k:
        for _ in range(e):
            total = atom if total is None else Mul(total, atom)
    assert total is not None
    return total
