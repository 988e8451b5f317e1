"""Bounds of mixed-radix indices whose radices are symbolic sizes.

`i * n + j` is below `b * n` if i is below b and j below n. Conversely, if k is below `b * n`, then
`k // n` is below b and `k % n` is below n. These bounds are products of sizes, so linear analysis
does not find them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from math import gcd
from operator import mul

from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import Env, bounds, within
from tilewright.expr.nodes import (
    INDEX,
    Const,
    Expr,
    Extent,
    FloorDiv,
    Mod,
    Mul,
    as_expr,
)

# Of each product of atoms how often it is added; the factors are in one order.
Products = Mapping[tuple[Expr, ...], int]


def inside(index: Expr, extent: Extent, env: Env) -> bool:
    """Whether bounds, including those of mixed-radix indices, prove `0 <= index < extent`."""
    if within(index, extent, env):
        return True
    size = as_expr(extent, INDEX)
    if isinstance(index, FloorDiv | Mod):
        whole = products(size)
        return any(products(_sum(limit)) == whole for limit in _limits(index, env))
    return _put_together(index, size, env)


def _put_together(index: Expr, extent: Expr, env: Env) -> bool:
    """`q * n + r` for q below p and r below n, where the extent is p * n."""
    whole, parts = products(extent), products(index)
    for n in {factor: None for product in whole for factor in product}:
        high = _divided(whole, {(n,): 1})
        if high is None:
            continue
        upper = {p: c for p, c in parts.items() if n in p}
        lower = {p: c for p, c in parts.items() if n not in p}
        quotient = _divided(upper, {(n,): 1})
        if not upper or quotient is None:
            continue
        times = gcd(*quotient.values(), *high.values())
        low = inside(_sum(lower), n, env)
        if low and inside(_sum(quotient, times), _sum(high, times), env):
            return True
    return False


def products(e: Expr) -> Products:
    """An index as a sum of products, in a form that does not depend on their order."""
    form = affine(e)
    found: dict[tuple[Expr, ...], int] = {(): form.const} if form.const else {}
    for atom, times in form.terms:
        factors, number = _factors(atom)
        key = tuple(sorted(factors, key=id))
        found[key] = found.get(key, 0) + times * number
    return {p: c for p, c in found.items() if c}


def _factors(atom: Expr) -> tuple[list[Expr], int]:
    if isinstance(atom, Const):
        return [], int(atom.value.real)
    if not isinstance(atom, Mul):
        return [atom], 1
    (some, n), (others, m) = _factors(atom.lhs), _factors(atom.rhs)
    return some + others, n * m


def _divided(e: Products, by: Products) -> Products | None:
    """The sum divided by a product that is a factor of each term; None if it is not."""
    if len(by) != 1:
        return None
    ((factors, number),) = by.items()
    found = {}
    for product, times in e.items():
        left = list(product)
        for factor in factors:
            if factor not in left:
                return None
            left.remove(factor)
        if times % number:
            return None
        found[tuple(left)] = times // number
    return found


def _sum(e: Products, divisor: int = 1) -> Expr:
    form = Affine((), e.get((), 0) // divisor)
    for product, times in e.items():
        if product:
            form = form + affine(reduce(mul, product)).scaled(times // divisor)
    return to_expr(form)


def _limits(e: Expr, env: Env) -> Iterator[Products]:
    """Sums of products that a number of at least 0 is known to be below.

    A `k` from 0 on below `n * b`, for an n of at least 0, tells that n is at least 1: then `k // n`
    is below b and `k % n` below n.
    """
    if isinstance(e, FloorDiv | Mod):
        by, least = products(e.rhs), bounds(e.rhs, env)[0]
        if least is None or least < 0:
            return
        if len(by) > 1:  # a radix that is a sum is one factor of the extent
            by = {(e.rhs,): 1}
        parts = (_divided(limit, by) for limit in _limits(e.lhs, env))
        known = (part for part in parts if part is not None)
        if isinstance(e, FloorDiv):
            yield from known
        elif least > 0 or next(known, None) is not None:
            yield by
        return
    lowest = bounds(e, env)[0]
    if lowest is not None and lowest >= 0:
        yield from _known_limits(affine(e), env)
        yield from _limits_of_tiles(affine(e), env)


def _known_limits(form: Affine, env: Env) -> Iterator[Products]:
    """Those that a known bound of a sum says: of this sum with others."""
    terms = set(form.terms)
    for key, (_, most) in env.items() if terms else ():
        if isinstance(key, frozenset) and most is not None and terms <= key:
            others = tuple((a, -c) for a, c in key - terms)
            yield products(to_expr(Affine(others, most + 1 + form.const)))


def _limits_of_tiles(form: Affine, env: Env) -> Iterator[Products]:
    """Those of `t * f + r`, element r of tile t of f: below `p * f` where t is below p."""
    for tile, size in form.terms:
        rest = to_expr(form - Affine(((tile, size),), 0))
        if size > 1 and within(rest, size, env):
            for limit in _known_limits(affine(tile), env):
                yield _without_floors({p: c * size for p, c in limit.items()})


def _without_floors(e: Products) -> Products:
    """The sum, or a greater one: `x // f * f` is at most x."""
    form = Affine((), 0)
    for product, times in e.items():
        match product:
            case (FloorDiv(lhs=whole, rhs=Const(value=by)),) if (
                times > 0 and times % int(by.real) == 0
            ):
                part = affine(whole).scaled(times // int(by.real))
            case _:
                part = affine(_sum({product: times}))
        form = form + part
    return products(to_expr(form))
