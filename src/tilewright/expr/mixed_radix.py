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
    Var,
    as_expr,
    const,
)

# Of each product of atoms how often it is added; the factors are in one order.
Products = Mapping[tuple[Expr, ...], int]


def inside(index: Expr, extent: Extent, env: Env) -> bool:
    """Whether bounds, including those of mixed-radix indices, prove `0 <= index < extent`."""
    if within(index, extent, env):
        return True
    size = as_expr(extent, INDEX)
    ways = _is_limited, _put_together, _is_behind
    return any(way(index, size, env) for way in ways)


def _is_limited(index: Expr, extent: Expr, env: Env) -> bool:
    """`times * d + s`, where d is below a limit, and all of it at least 0 and below the extent.

    d: the index itself or without terms of the extent, or a digit or variable in it.
    """
    form, whole = affine(index), products(extent)
    inner = Affine(tuple(t for t in form.terms if t[:1] not in whole), 0)
    digits = [t for t in form.terms if isinstance(t[0], FloorDiv | Mod | Var)]
    parts = [(index, 1), (to_expr(inner), 1), *(t for t in digits if t[1] > 0)]
    for d, times in parts:
        start = products(to_expr(form - affine(d).scaled(times)))
        left = _plus(_plus(whole, start, -1), {(): times - 1}, 1)
        from_zero = any(
            _is_at_most({}, _plus(start, least, times), env) for least in _least(d, env)
        )
        if from_zero and any(
            _is_at_most({p: c * times for p, c in limit.items()}, left, env)
            for limit in _limits(d, env)
        ):
            return True
    return False


def _is_at_most(limit: Products, whole: Products, env: Env) -> bool:
    more = _plus(whole, limit, -1)
    least = bounds(_sum(more), env)[0]
    if least is None or least < 0:
        least = bounds(_sum(_without_remainders(more)), env)[0]
    return least is not None and least >= 0


def _without_remainders(e: Products) -> Products:
    """The sum, with `x - x // f * f` for `x % f`: so the parts of x in a tiled loop cancel."""
    found: Products = {}
    for product, times in e.items():
        match product:
            case (Mod(lhs=x, rhs=Const(value=f)),):
                found = _plus(found, products(x), times)
                found = _plus(
                    found, products(FloorDiv(x, const(f, INDEX))), -times * int(f.real)
                )
            case _:
                found = _plus(found, {product: times}, 1)
    return found


def _put_together(index: Expr, extent: Expr, env: Env) -> bool:
    """`q * n + r` for q below p and r below n, where the extent is at least p * n."""
    whole, parts = products(extent), products(index)
    radices = _factors(extent) | _factors(index)
    radices |= {const(n, INDEX): None for n in parts.values() if n > 1}
    for n in radices:
        radix = products(n)
        high, more = _divmod(whole, radix, partly=True)
        if not high or not _is_at_most({}, more, env):
            continue
        quotient, lower = _divmod(parts, radix)
        if not quotient:
            continue
        times = gcd(*quotient.values(), *high.values())
        low = inside(_sum(lower), n, env)
        if low and inside(_sum(quotient, times), _sum(high, times), env):
            return True
    return False


def _is_behind(index: Expr, extent: Expr, env: Env) -> bool:
    """`c + i` for i below n, where the extent is `c + n` and c is at least 0: a place in a part of
    a tensor that lies behind others."""
    parts, whole = products(index), products(extent)
    common = {p: c for p, c in parts.items() if p and whole.get(p) == c}
    if not common or not _is_at_most({}, common, env):
        return False
    inner, left = (_sum(_plus(e, common, -1)) for e in (parts, whole))
    return inside(inner, left, env)


def products(e: Expr) -> Products:
    """An index, multiplied out: a sum of products, in a form that does not depend on their
    order."""
    form = affine(e)
    found: Products = {(): form.const} if form.const else {}
    for atom, times in form.terms:
        found = _plus(found, _multiplied(atom), times)
    return found


def _multiplied(atom: Expr) -> Products:
    if isinstance(atom, Const):
        return {(): int(atom.value.real)}
    if not isinstance(atom, Mul):
        return {(atom,): 1}
    found: Products = {}
    left, right = products(atom.lhs), products(atom.rhs)
    for product, times in left.items():
        found = _plus(found, _moved(right, product), times)
    return found


def _moved(e: Products, by: tuple[Expr, ...]) -> Products:
    """The sum times a product."""
    return {tuple(sorted((*p, *by), key=id)): c for p, c in e.items()}


def _plus(e: Products, other: Products, times: int) -> Products:
    found = dict(e)
    for product, c in other.items():
        found[product] = found.get(product, 0) + c * times
    return {p: c for p, c in found.items() if c}


def _factors(e: Expr) -> dict[Expr, None]:
    """The factors of the products in a sum, as they are written."""
    found: dict[Expr, None] = {}
    for atom, _ in affine(e).terms:
        if isinstance(atom, Mul):
            found |= _factors(atom.lhs) | _factors(atom.rhs)
            found |= dict.fromkeys((atom.lhs, atom.rhs))
        else:
            found[atom] = None
    return found


def _divided(e: Products, by: Products) -> Products | None:
    """The sum divided by another one; None if a rest remains."""
    found, rest = _divmod(e, by)
    return None if rest else found


def _divmod(
    e: Products, by: Products, partly: bool = False
) -> tuple[Products, Products]:
    """Quotient and rest of two sums, as polynomials of their atoms, with whole factors.

    partly: of a product of another number, take as many whole times as there are.
    """
    if not by:
        return {}, e
    first = max(by, key=_rank)
    found: Products = {}
    rest: Products = {}
    left = e
    while left:
        product = max(left, key=_rank)
        quotient = _without(product, first)
        times, odd = divmod(left[product], by[first])
        if quotient is None or (odd and not partly):
            odd = left[product]
        else:
            found = _plus(found, {quotient: times}, 1)
            left = _plus(left, _moved(by, quotient), -times)
        rest = _plus(rest, {product: odd}, 1)
        left = _plus(left, {product: odd}, -1)
    return found, rest


def _rank(product: tuple[Expr, ...]) -> tuple[int, ...]:
    """An order that multiplication keeps, so that the first product of a sum times another is the
    product of both first ones."""
    return (len(product), *map(id, product))


def _without(
    product: tuple[Expr, ...], factors: tuple[Expr, ...]
) -> tuple[Expr, ...] | None:
    left = list(product)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _sum(e: Products, divisor: int = 1) -> Expr:
    form = Affine((), e.get((), 0) // divisor)
    for product, times in e.items():
        if product:
            form = form + affine(reduce(mul, product)).scaled(times // divisor)
    return to_expr(form)


def _limits(e: Expr, env: Env) -> Iterator[Products]:
    """Sums of products that a number of at least 0 is known to be below.

    A `k` from 0 on below `n * b`, for an n or a b of at least 0, tells that n is at least 1: then
    `k // n` is below b and `k % n` below n.
    """
    if isinstance(e, FloorDiv | Mod):
        by, least = products(e.rhs), bounds(e.rhs, env)[0]
        from_zero = least is not None and least >= 0
        parts = (_divided(limit, by) for limit in _limits(e.lhs, env))
        known = (
            part
            for part in parts
            if part is not None and (from_zero or _is_at_most({}, part, env))
        )
        if isinstance(e, FloorDiv):
            yield from known
        elif (least or 0) > 0 or next(known, None) is not None:
            yield by
        return
    lowest = bounds(e, env)[0]
    if lowest is not None and lowest >= 0:
        yield from _known_limits(affine(e), env)
        yield from _limits_of_tiles(affine(e), env)


def _least(e: Expr, env: Env) -> Iterator[Products]:
    """Sums of products that a number of at least 0, if it has limits, is at least.

    A `k` of at least `n * b` tells that `k // n` is at least b, for an n of at least 1.
    """
    yield {}
    least = bounds(e.rhs, env)[0] if isinstance(e, FloorDiv) else None
    if not isinstance(e, FloorDiv) or least is None or least < 1:
        return
    terms = {(a, -c) for a, c in affine(e.lhs).terms}
    for key, (_, most) in env.items() if terms else ():
        if isinstance(key, frozenset) and most is not None and terms <= key:
            low = affine(e.lhs).const - most
            start = products(to_expr(Affine(tuple(key - terms), low)))
            quotient, rest = _divmod(start, products(e.rhs))
            if _is_at_most({}, rest, env):
                yield quotient


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
