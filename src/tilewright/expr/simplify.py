"""Normal forms of expressions: the rules of `expr.rules`, then rules that use bounds."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from math import gcd
from typing import Any

from tilewright.expr import bounds as interval
from tilewright.expr.nodes import (
    INDEX,
    Compare,
    Const,
    Div,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Overlap,
    Rem,
    Select,
    Sub,
    const,
)
from tilewright.expr.patterns import BOOL, is_index
from tilewright.expr.rules import ALGEBRA
from tilewright.expr.sums import Terms, sum_of, terms_of
from tilewright.ir.node import postorder
from tilewright.ir.rewrite import Rewrite, normalize

# Normal forms without bounds, for the process, and under each of some bounds: dropped as a whole
# when they are more. One takes about 240 bytes, with what it keeps alive of expressions. They are
# asked for again within one kernel, hardly in the next: twelve small networks, one after another,
# compile in 9.6 s with up to 200,000 (they leave 10,600), in 9.7 s with 2,000, in 10.3 s with none;
# all of ResNet-50 leaves 4,500.
_memo: dict[Any, Any] = {}
_MEMO_LIMIT = 5_000
_ENVIRONMENTS = 32  # bounds whose normal forms are kept, the least recently used out
# Arms of selects up to this many nodes are simplified by what the condition says: each select looks
# at its arms again, which must not add up in a long chain of selects.
_ARM_NODES = 100


def simplify(
    e: Expr,
    env: interval.Env | None = None,
) -> Expr:
    """An expression equal to `e` for all values of its variables, in normal form (`expr.rules`).

    env: inclusive bounds of variables (or more, see `expr.bounds`); with them `min max % //`,
    comparisons and selects that the bounds decide are dropped, arms of selects are simplified by
    what their condition says, and the result is equal to `e` within those bounds only. int64
    arithmetic on variables is taken not to overflow, as in `expr.bounds`. Any depth will do.
    """
    kept = _memo if env is None else _memo_under(frozenset(env.items()))
    memo = _bounded(kept)
    found: Expr | None = memo.get(e)
    if found is not None:
        return found
    decide = None if env is None else _decider(env)
    return normalize(e, ALGEBRA, memo=memo, decide=decide)  # type: ignore[no-any-return]


def _bounded(memo: dict[Any, Any]) -> dict[Any, Any]:
    if len(memo) > _MEMO_LIMIT:
        memo.clear()
    return memo


@lru_cache(maxsize=_ENVIRONMENTS)
def _memo_under(bounds: frozenset[tuple[Any, Any]]) -> dict[Any, Any]:
    """Normal forms under these bounds: the passes ask about one Computation many times over."""
    return {}


def _decider(env: interval.Env, arms: bool = True) -> Rewrite:
    """What bounds decide about one node in normal form: its replacement, or None."""
    env = interval.CachedEnvironment(env)

    def decide(e: Any) -> Expr | None:
        if isinstance(e, Select):
            return _select(e, env) if arms else None
        rule = _DECISIONS.get(type(e))
        if rule is None and isinstance(e, Compare):
            rule = _compare
        if rule is None:
            return None
        if e.lhs.dtype is INDEX and not is_index(e):
            return None
        return rule(e, env)

    return decide


def _select(e: Select, env: interval.Env) -> Expr | None:
    """Each arm, knowing the condition; an arm that is never chosen is dropped."""
    if (
        not is_index(e.condition)
        or sum(1 for _ in islice(postorder(e), _ARM_NODES)) == _ARM_NODES
    ):
        return None
    inside = interval.refine(env, e.condition)
    outside = interval.refine(env, e.condition, False)
    if interval.is_empty(inside):
        return e.otherwise
    if interval.is_empty(outside):
        return e.then
    then = normalize(e.then, ALGEBRA, decide=_decider(inside, arms=False))
    otherwise = normalize(e.otherwise, ALGEBRA, decide=_decider(outside, arms=False))
    if then is e.then and otherwise is e.otherwise:
        return None
    return Select(e.condition, then, otherwise)


def _compare(e: Any, env: interval.Env) -> Expr | None:
    if not (e.lhs.dtype.is_int or e.lhs.dtype is BOOL):
        return None
    decided = interval.proves(e, env)
    return None if decided is None else const(decided, BOOL)


def _extreme(e: Any, env: interval.Env) -> Expr | None:
    if not e.dtype.is_int:
        return None
    if e.dtype is INDEX:
        lo, hi = interval.bounds(Sub(e.lhs, e.rhs), env)
        left_is_less = hi is not None and hi <= 0
        right_is_less = lo is not None and lo >= 0
    else:
        left_lo, left_hi = interval.bounds(e.lhs, env)
        right_lo, right_hi = interval.bounds(e.rhs, env)
        left_is_less = _are_ordered(left_hi, right_lo)
        right_is_less = _are_ordered(right_hi, left_lo)
    if not (left_is_less or right_is_less):
        return None
    return e.lhs if left_is_less == isinstance(e, Min) else e.rhs  # type: ignore[no-any-return]


def _are_ordered(low: int | None, high: int | None) -> bool:
    """Whether both are known and `low` is not above `high`."""
    return low is not None and high is not None and low <= high


def _divisor(e: Any) -> int | None:
    """The divisor of indices, where it is a positive number."""
    if e.dtype is not INDEX or not isinstance(e.rhs, Const):
        return None
    divisor = int(e.rhs.value.real)
    return divisor if divisor > 0 else None


def _division(e: Any, env: interval.Env) -> Expr | None:
    """`x // d` and `x % d` for a constant d > 1, where x is known to stay in one multiple of d."""
    d = _divisor(e)
    if d is None or d == 1:
        return None
    lo, hi = interval.bounds(e.lhs, env)
    if lo is not None and hi is not None and lo // d == hi // d:
        multiple = lo // d
        if isinstance(e, FloorDiv):
            return const(multiple)
        remainder: Expr = e.lhs + -(multiple * d)
        return remainder
    return _common_factor(e, d, env)


def _common_factor(
    e: Any,
    d: int,
    env: interval.Env,
) -> Expr | None:
    """`(g*x + y) // (g*h)` is `x // h`, and `% (g*h)` is `g * (x % h) + y`, where 0 <= y < g."""
    terms = terms_of(e.lhs)
    factors = {gcd(_factor(t), d) for _, t in terms} - {1, d}
    for g in sorted(factors, reverse=True):
        multiple: Terms = []
        rest: Terms = []
        for sign, t in terms:
            if _factor(t) % g == 0:
                multiple.append((sign, _over(t, g)))
            else:
                rest.append((sign, t))
        small = sum_of(rest, const(0))
        lo, hi = interval.bounds(small, env)
        if lo is None or hi is None or lo < 0 or hi >= g:
            continue
        x = sum_of(multiple, const(0))
        h = const(d // g)
        if isinstance(e, FloorDiv):
            return FloorDiv(x, h)
        return Mod(x, h) * g + small
    return None


def _factor(term: Expr) -> int:
    """The constant factor of a term of a sum; of the constant term, itself."""
    if isinstance(term, Mul) and isinstance(term.rhs, Const):
        return int(term.rhs.value.real)
    if isinstance(term, Const):
        return int(term.value.real)
    return 1


def _over(term: Expr, g: int) -> Expr:
    factor = const(_factor(term) // g)
    if isinstance(term, Mul):
        return Mul(term.lhs, factor)
    return factor


def _truncating(e: Any, env: interval.Env) -> Expr | None:
    """C's division and remainder round down where nothing is negative."""
    if _divisor(e) is None:
        return None
    lo, _ = interval.bounds(e.lhs, env)
    if lo is None or lo < 0:
        return None
    kind = FloorDiv if isinstance(e, Div) else Mod
    return kind(e.lhs, e.rhs)


_DECISIONS = {
    Min: _extreme,
    Overlap: _extreme,
    Max: _extreme,
    FloorDiv: _division,
    Mod: _division,
    Div: _truncating,
    Rem: _truncating,
}
