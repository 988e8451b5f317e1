"""Inclusive bounds of integer expressions by interval arithmetic over linear forms.

An environment maps variables (and other atoms) to intervals. `refine` adds what a condition says;
a condition on a sum of several atoms is kept under the set of its terms, so that a later look-up
of the same sum is exact. An unknown end is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import (
    INDEX,
    Add,
    And,
    Call,
    Cast,
    Compare,
    Const,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Load,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Neg,
    Not,
    Or,
    Overlap,
    Select,
    Shl,
    Shr,
    Sub,
    Var,
)
from tilewright.ir.node import postorder

Interval = tuple[int | None, int | None]
# Keys: a Var, another atom, or the frozenset of a linear form's terms.
Env = Mapping[Any, tuple[int | None, int | None]]

ANY: Interval = (None, None)


def bounds(e: Expr, env: Env) -> Interval:
    """The least and greatest value of an integer (or bool) expression, None where unknown.

    Index arithmetic is taken not to overflow int64; other integers wrap, which the result
    respects. Floats give (None, None).
    """
    if isinstance(e, Const):
        return ANY if _is_real(e) else (int(e.value.real), int(e.value.real))
    if isinstance(e, Var):
        return _known(e, env)
    if e.dtype is INDEX:
        form = affine(e)
        if len(form.terms) != 1 or form.terms[0][0] is not e:
            return _linear(form, env)
    if _is_real(e):
        return ANY
    rule = _RULES.get(type(e))
    found = _within(rule(e, env), e) if rule is not None else _natural(e)
    return _meet(found, env[e]) if e in env else found


def refine(env: Env, condition: Expr, holds: bool = True) -> dict[Any, Interval]:
    """`env` narrowed by what `condition` (or its negation) says about sums of atoms."""
    out = dict(env)
    _assume(out, condition, holds)
    return out


def lasting(env: Env) -> dict[Any, Interval]:
    """The entries that stay true when buffers are written: those on atoms without a load."""
    return {key: interval for key, interval in env.items() if not _reads(key)}


def _reads(key: Any) -> bool:
    atoms = [a for a, _ in key] if isinstance(key, frozenset) else [key]
    return any(isinstance(n, Load) for atom in atoms for n in postorder(atom))


def is_empty(env: Env) -> bool:
    """Whether some interval holds no value: the place it describes is never reached."""
    return any(lo is not None and hi is not None and lo > hi for lo, hi in env.values())


def proves(condition: Expr, env: Env) -> bool | None:
    """True or False where bounds decide a bool expression, else None."""
    lo, hi = bounds(condition, env)
    return bool(lo) if lo == hi else None


# -- intervals


def _is_real(e: Expr) -> bool:
    return not (e.dtype.is_int or e.dtype.is_bool)


def _natural(e: Expr) -> Interval:
    """What the dtype alone says; int64 is the type of indices, whose range says nothing."""
    return ANY if e.dtype is INDEX else (int(e.dtype.min), int(e.dtype.max))


def _known(e: Expr, env: Env) -> Interval:
    found = env.get(e)
    return found if found is not None else (ANY if _is_real(e) else _natural(e))


def _within(found: Interval, e: Expr) -> Interval:
    """`found`, unless it leaves the dtype, whose integers then may have wrapped around."""
    natural = _natural(e)
    return found if _meet(found, natural) == found else natural


def _meet(a: Interval, b: Interval) -> Interval:
    return (_pick(max, a[0], b[0]), _pick(min, a[1], b[1]))


def _join(a: Interval, b: Interval) -> Interval:
    lo = None if a[0] is None or b[0] is None else min(a[0], b[0])
    hi = None if a[1] is None or b[1] is None else max(a[1], b[1])
    return (lo, hi)


def _pick(
    better: Callable[[int, int], int], a: int | None, b: int | None
) -> int | None:
    """The better of two ends, either of which may be unknown."""
    if a is None or b is None:
        return b if a is None else a
    return better(a, b)


def _scale(interval: Interval, c: int) -> Interval:
    lo, hi = interval if c > 0 else (interval[1], interval[0])
    return (None if lo is None else lo * c, None if hi is None else hi * c)


def _sum(terms: tuple[tuple[Expr, int], ...], const: int, env: Env) -> Interval:
    found: Interval = (const, const)
    for atom, c in terms:
        found = _plus(found, _scale(bounds(atom, env), c))
        if found == ANY:
            break
    return found


def _linear(form: Affine, env: Env) -> Interval:
    """Bounds of a linear form: the sum of its terms' and what is known of the sum as a whole."""
    found = _sum(form.terms, form.const, env)
    if len(form.terms) < 2:
        return found
    known = env.get(frozenset(form.terms))
    if known is None:
        flipped = env.get(frozenset((a, -c) for a, c in form.terms))
        known = None if flipped is None else _scale(flipped, -1)
    if known is not None:
        found = _meet(found, _plus(known, (form.const, form.const)))
    for atom, c in form.terms:
        if isinstance(atom, Min | Max):
            found = _meet(found, _through(form, atom, c, env))
    return found


def _through(form: Affine, atom: Min | Max, c: int, env: Env) -> Interval:
    """`c * min(a, b) + rest` is at most (least) each of `c*a + rest` and `c*b + rest`."""
    rest = form - Affine(((atom, c),), 0)
    arms = [_linear(rest + affine(arm).scaled(c), env) for arm in (atom.lhs, atom.rhs)]
    union = _join(*arms)
    if isinstance(atom, Min) == (c > 0):
        return (union[0], _pick(min, arms[0][1], arms[1][1]))
    return (_pick(max, arms[0][0], arms[1][0]), union[1])


# -- one rule per node that is not linear


def _arith(
    combine: Callable[[Interval, Interval], Interval],
) -> Callable[[Any, Env], Interval]:
    return lambda e, env: combine(bounds(e.lhs, env), bounds(e.rhs, env))


def _product(a: Interval, b: Interval) -> Interval:
    (least, most), (low, high) = a, b
    if least is None or most is None or low is None or high is None:
        at_least_zero = all(x[0] is not None and x[0] >= 0 for x in (a, b))
        return (0, None) if at_least_zero else ANY
    corners = [x * y for x in (least, most) for y in (low, high)]
    return (min(corners), max(corners))


def _plus(a: Interval, b: Interval) -> Interval:
    lo = None if a[0] is None or b[0] is None else a[0] + b[0]
    hi = None if a[1] is None or b[1] is None else a[1] + b[1]
    return (lo, hi)


def _floordiv(e: FloorDiv, env: Env) -> Interval:
    if not isinstance(e.rhs, Const) or int(e.rhs.value.real) <= 0:
        return ANY
    c = int(e.rhs.value.real)
    lo, hi = bounds(e.lhs, env)
    return (None if lo is None else lo // c, None if hi is None else hi // c)


def _mod(e: Mod, env: Env) -> Interval:
    if not isinstance(e.rhs, Const) or int(e.rhs.value.real) <= 0:
        return ANY
    c = int(e.rhs.value.real)
    lo, hi = bounds(e.lhs, env)
    if lo is not None and hi is not None and lo // c == hi // c:
        return (lo % c, hi % c)
    return (0, c - 1)


def _min(a: Interval, b: Interval) -> Interval:
    return (_join(a, b)[0], _pick(min, a[1], b[1]))


def _max(a: Interval, b: Interval) -> Interval:
    return (_pick(max, a[0], b[0]), _join(a, b)[1])


def _select(e: Select, env: Env) -> Interval:
    decided = proves(e.condition, env)
    if decided is not None:
        return bounds(e.then if decided else e.otherwise, env)
    yes, no = refine(env, e.condition), refine(env, e.condition, False)
    if is_empty(yes) or is_empty(no):
        return bounds(
            e.otherwise if is_empty(yes) else e.then, no if is_empty(yes) else yes
        )
    return _join(bounds(e.then, yes), bounds(e.otherwise, no))


def _difference(e: Compare, env: Env) -> Interval:
    """Bounds of `lhs - rhs`, exact about what cancels; unknown for floats."""
    if e.lhs.dtype is INDEX:
        return _linear(affine(e.lhs) - affine(e.rhs), env)
    return _plus(bounds(e.lhs, env), _scale(bounds(e.rhs, env), -1))


def _lt(e: Lt, env: Env) -> Interval:
    lo, hi = _difference(e, env)
    return (int(hi is not None and hi < 0), int(not (lo is not None and lo >= 0)))


def _le(e: Le, env: Env) -> Interval:
    lo, hi = _difference(e, env)
    return (int(hi is not None and hi <= 0), int(not (lo is not None and lo > 0)))


def _eq(e: Compare, env: Env) -> Interval:
    lo, hi = _difference(e, env)
    apart = (lo is not None and lo > 0) or (hi is not None and hi < 0)
    return (int(lo == hi == 0), int(not apart))


def _ne(e: Compare, env: Env) -> Interval:
    lo, hi = _eq(e, env)
    return (1 - (hi or 0), 1 - (lo or 0))


def _and(e: And, env: Env) -> Interval:
    a, b = bounds(e.lhs, env), bounds(e.rhs, env)
    if e.dtype.is_bool:
        return _min(a, b)
    tops = [x[1] for x in (a, b) if x[0] is not None and x[0] >= 0]
    return (
        (0, min((t for t in tops if t is not None), default=None))
        if tops
        else _natural(e)
    )


def _or(e: Or, env: Env) -> Interval:
    if not e.dtype.is_bool:
        return _natural(e)
    return _max(bounds(e.lhs, env), bounds(e.rhs, env))


def _shl(e: Shl, env: Env) -> Interval:
    amount = _amount(e)
    return _natural(e) if amount is None else _scale(bounds(e.lhs, env), 1 << amount)


def _shr(e: Shr, env: Env) -> Interval:
    amount = _amount(e)
    if amount is None:
        return _natural(e)
    lo, hi = bounds(e.lhs, env)
    return (None if lo is None else lo >> amount, None if hi is None else hi >> amount)


def _amount(e: Shl | Shr) -> int | None:
    """How far a shift moves the bits, where that is a number below the width."""
    if not isinstance(e.rhs, Const):
        return None
    amount = int(e.rhs.value.real)
    return amount if 0 <= amount < e.dtype.bits else None


def _not(e: Not, env: Env) -> Interval:
    lo, hi = bounds(e.value, env)
    base = 1 if e.dtype.is_bool else -1
    if e.dtype.kind == "uint":
        return _natural(e)
    return (None if hi is None else base - hi, None if lo is None else base - lo)


def _cast(e: Cast, env: Env) -> Interval:
    if _is_real(e.value):
        return _natural(e)
    if e.dtype.is_bool:
        lo, hi = bounds(e.value, env)
        if lo == hi == 0:
            return (0, 0)
        return (int((lo is not None and lo > 0) or (hi is not None and hi < 0)), 1)
    found = bounds(e.value, env)
    wraps = found[1] is not None and found[1] > int(INDEX.max)  # an uint64
    return ANY if e.dtype is INDEX and wraps else found


def _call(e: Call, env: Env) -> Interval:
    if e.function != "abs":
        return _natural(e)
    lo, hi = bounds(e.args[0], env)
    if lo is None or hi is None:
        return (0, None)
    return (max(lo, -hi, 0), max(-lo, hi))


_RULES: Mapping[type[Expr], Callable[[Any, Env], Interval]] = {
    Add: _arith(_plus),
    Sub: _arith(lambda a, b: _plus(a, _scale(b, -1))),
    Mul: _arith(_product),
    Neg: lambda e, env: _scale(bounds(e.value, env), -1),
    FloorDiv: _floordiv,
    Mod: _mod,
    Min: _arith(_min),
    Overlap: _arith(_min),
    Max: _arith(_max),
    Select: _select,
    Lt: _lt,
    Le: _le,
    Eq: _eq,
    Ne: _ne,
    And: _and,
    Or: _or,
    Shl: _shl,
    Shr: _shr,
    Not: _not,
    Cast: _cast,
    Call: _call,
}


# -- conditions


def _assume(env: dict[Any, Interval], condition: Expr, holds: bool) -> None:
    if isinstance(condition, Not) and condition.dtype.is_bool:
        _assume(env, condition.value, not holds)
    elif isinstance(condition, And if holds else Or):
        _assume(env, condition.lhs, holds)
        _assume(env, condition.rhs, holds)
    elif isinstance(condition, Lt | Le) and condition.lhs.dtype is INDEX:
        strict = isinstance(condition, Lt)
        if holds:
            _at_most(env, condition.lhs, condition.rhs, -1 if strict else 0)
        else:
            _at_most(env, condition.rhs, condition.lhs, 0 if strict else -1)
    elif isinstance(condition, Eq if holds else Ne) and condition.lhs.dtype is INDEX:
        _at_most(env, condition.lhs, condition.rhs, 0)
        _at_most(env, condition.rhs, condition.lhs, 0)
    elif isinstance(condition, Const) and bool(condition.value) != holds:
        env[condition] = (1, 0)


def _at_most(env: dict[Any, Interval], lhs: Expr, rhs: Expr, slack: int) -> None:
    """Assume `lhs <= rhs + slack`; a min on the right or a max on the left says two things."""
    if isinstance(rhs, Min):
        _at_most(env, lhs, rhs.lhs, slack)
        _at_most(env, lhs, rhs.rhs, slack)
        return
    if isinstance(lhs, Max):
        _at_most(env, lhs.lhs, rhs, slack)
        _at_most(env, lhs.rhs, rhs, slack)
        return
    form = affine(lhs) - affine(rhs)
    top = slack - form.const
    if not form.terms:
        if top < 0:
            env[frozenset()] = (1, 0)
        return
    if len(form.terms) > 1:
        key = frozenset(form.terms)
        env[key] = _meet(env.get(key, ANY), (None, top))
        flipped = frozenset((a, -c) for a, c in form.terms)
        if flipped in env:
            env[key] = _meet(env[key], _scale(env[flipped], -1))
            del env[flipped]
    for n, (atom, c) in enumerate(form.terms):
        rest = _sum(form.terms[:n] + form.terms[n + 1 :], 0, env)[0]
        if rest is None:
            continue
        room = top - rest
        limit = (None, room // c) if c > 0 else (-(room // -c), None)
        env[atom] = _meet(bounds(atom, env), limit)
