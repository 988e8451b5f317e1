"""The least and greatest value of an index over coordinates whose ends are expressions of sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.expr import nodes
from tilewright.expr.affine import affine, quotient, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import INDEX, MAX_SIZE, Expr, Extent, as_expr
from tilewright.ir.node import postorder

# A first or last value: a number, an expression of sizes, or not known.
End = Extent | None
Ends = tuple[End, End]


def tidy(e: Extent) -> Extent:
    """An end in linear form, as a number where it is one."""
    form = affine(as_expr(e, INDEX))
    return form.const if form.is_const else to_expr(form)


def same(a: Extent, b: Extent) -> bool:
    """Whether two ends are equal for all sizes."""
    return tidy(b - a) == 0


def least(a: Extent, b: Extent) -> Extent:
    """The smaller end; as an expression where sizes decide which it is."""
    return _pick(a, b, nodes.Min, -1)


def most(a: Extent, b: Extent) -> Extent:
    """The larger end; as an expression where sizes decide which it is."""
    return _pick(a, b, nodes.Max, 1)


def _pick(a: Extent, b: Extent, node: type[nodes.Binary], sign: int) -> Extent:
    low, high = known(tidy((a - b) * sign))
    if low is not None and low >= 0:
        return a
    if high is not None and high <= 0:
        return b
    return node(as_expr(a, INDEX), as_expr(b, INDEX))


def known(e: Extent) -> tuple[int | None, int | None]:
    """What is known of an end for all sizes."""
    if isinstance(e, int):
        return e, e
    sizes = {n: (0, MAX_SIZE - 1) for n in postorder(e) if isinstance(n, nodes.Var)}
    return bounds(e, sizes)


def ends(e: Expr, env: Mapping[Any, Ends]) -> Ends:
    """The ends of an integer expression, given the ends of its variables in `env`."""
    if e in env:
        return env[e]
    form = affine(e)
    if e.dtype is INDEX and not (len(form.terms) == 1 and form.terms[0][0] is e):
        total: Ends = (form.const, form.const)
        for atom, c in form.terms:
            low, high = ends(atom, env)
            pair = (low, high) if c > 0 else (high, low)
            total = _both(partial(_add, c), total, pair)
        return total
    rule = _RULES.get(type(e))
    if rule is not None:
        return rule(e, env)
    return bounds(e, {})


def _add(times: int, a: Extent, b: Extent) -> Extent:
    return tidy(a + b * times)


def _both(combine: Callable[[Any, Any], Extent], a: Ends, b: Ends) -> Ends:
    """Combine the ends of two intervals; unknown if either is unknown."""
    low, high = (
        None if x is None or y is None else combine(x, y)
        for x, y in zip(a, b, strict=True)
    )
    return low, high


def _extreme(e: Any, env: Mapping[Any, Ends]) -> Ends:
    """A minimum is below both upper ends, and above the smaller of the lower ends."""
    pick = least if isinstance(e, nodes.Min) else most
    a = ends(e.lhs, env)
    b = ends(e.rhs, env)
    low, high = _both(pick, a, b)
    if isinstance(e, nodes.Min) and high is None:
        high = b[1] if a[1] is None else a[1]
    if isinstance(e, nodes.Max) and low is None:
        low = b[0] if a[0] is None else a[0]
    return low, high


def _select(e: Any, env: Mapping[Any, Ends]) -> Ends:
    a = ends(e.then, env)
    b = ends(e.otherwise, env)
    return _both(least, a, b)[0], _both(most, a, b)[1]


def _floordiv(e: Any, env: Mapping[Any, Ends]) -> Ends:
    divisor = affine(e.rhs)
    if not divisor.is_const or divisor.const <= 0:
        return None, None

    def divided(end: End) -> End:
        if end is None:
            return None
        form = quotient(affine(as_expr(end, INDEX)), divisor.const)
        return tidy(to_expr(form))

    low, high = ends(e.lhs, env)
    return divided(low), divided(high)


def _mod(e: Any, env: Mapping[Any, Ends]) -> Ends:
    divisor = affine(e.rhs)
    if not divisor.is_const or divisor.const <= 0:
        return None, None
    return 0, divisor.const - 1


_RULES: Mapping[type[Expr], Callable[[Any, Mapping[Any, Ends]], Ends]] = {
    nodes.Min: _extreme,
    nodes.Max: _extreme,
    nodes.Select: _select,
    nodes.FloorDiv: _floordiv,
    nodes.Mod: _mod,
}
