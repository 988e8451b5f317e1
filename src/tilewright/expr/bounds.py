"""Inclusive bounds of integer expressions by interval arithmetic over linear forms.

An environment maps variables (and other atoms) to intervals. `refine` adds what a condition says;
a condition on a sum of several atoms is kept under the set of its terms, so that a later look-up
of the same sum is exact. An unknown end is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bound_rules import RULES
from tilewright.expr.difference import apart
from tilewright.expr.intervals import (
    ANY,
    Interval,
    hull,
    intersection,
    is_above,
    is_below,
    is_real,
    maximum,
    minimum,
    natural,
    plus,
    scaled,
    unless_wrapped,
)
from tilewright.expr.nodes import (
    INDEX,
    And,
    Compare,
    Const,
    Eq,
    Expr,
    Extent,
    Le,
    Load,
    Lt,
    Max,
    Min,
    Ne,
    Not,
    Or,
    Select,
    Sub,
    Var,
)
from tilewright.ir.node import has_nodes, postorder

# Keys: a Var, another atom, or the frozenset of a linear form's terms.
Env = Mapping[Any, tuple[int | None, int | None]]

# Cases that one question distinguishes: the arms of a select, the operands of a min or max in a
# sum. Each looks again at what is below it, which doubles the work at each level of a deep term.
MAX_CASES = 32
# Terms of this many nodes are answered from below, and their cases are not distinguished: a
# question follows no more calls in one another than so many nodes ask for, and looks again at no
# more.
MANY_NODES = 128


_LEAVES = (Const, Var)
_VARIABLES = frozenset((Var,))


class _Question(dict[Any, Interval]):
    """The environment of one question: answers found so far, and the cases that are left.

    answers: of this environment. cases: one counter for it and those refined from it.
    """

    __slots__ = ("answers", "cases")

    def __init__(self, env: Env, cases: Iterator[int]) -> None:
        super().__init__(env)
        self.answers: dict[Expr, Interval] = {}
        self.cases = cases


class CachedEnvironment(dict[Any, Interval]):
    """An environment that does not change during many queries, so that answers are cached.

    Those of a question whose cases ran out are not, except its own: they may be wider than those
    of another one, and what is answered shall not depend on what was asked before.
    """

    __slots__ = ("answers",)

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.answers: dict[Expr, Interval] = {}

    def ask(self, e: Expr) -> Interval:
        """The bounds of an expression."""
        answers = self.answers
        known = len(answers)
        cases = iter(range(MAX_CASES))
        question = _Question(self, cases)
        question.answers = answers
        _answer_below(e, question)
        found = bounds(e, question)
        if next(cases, None) is None:
            for other in list(islice(reversed(answers), len(answers) - known)):
                del answers[other]
            answers[e] = found
        return found


def bounds(e: Expr, env: Env) -> Interval:
    """The least and greatest value of an integer (or bool) expression, None where unknown.

    Index arithmetic is taken not to overflow int64; other integers wrap, which the result
    respects. Floats give (None, None); what is cast from one has the bounds of `real_bounds`.
    Takes time linear in the distinct nodes of `e`: beyond MAX_CASES and in terms of MANY_NODES,
    cases are not distinguished, and the interval may be wider than it could be. Any depth will do.
    """
    if isinstance(e, _LEAVES):
        return _bounds(e, env)
    if isinstance(env, CachedEnvironment):
        return env.ask(e)
    if not isinstance(env, _Question):
        if e.dtype is INDEX and _of_variables(form := affine(e)):
            return _linear(form, env)
        env = _Question(env, iter(range(MAX_CASES)))
        _answer_below(e, env)
    found = env.answers.get(e)
    if found is None:
        found = env.answers[e] = _bounds(e, env)
    return found


def linear_bounds(form: Affine, env: Env) -> Interval:
    """`bounds` of a linear form."""
    return _linear(form, env) if _of_variables(form) else bounds(to_expr(form), env)


def _of_variables(form: Affine) -> bool:
    """Whether a form has bounds without distinguishing any cases: all its atoms are variables."""
    return {type(atom) for atom, _ in form.terms} <= _VARIABLES


def _answer_below(e: Expr, question: _Question) -> None:
    """Answers for the parts of a term of many nodes, the lowest first."""
    known = question.answers
    if all(isinstance(c, _LEAVES) or c in known for c in e.children()):
        return
    if has_nodes(e, MANY_NODES):
        for part in postorder(e):
            if isinstance(part, Expr):
                bounds(part, question)


def _tells_apart(env: Env) -> bool:
    """Whether one more case may be distinguished in this question, which counts as one."""
    return not isinstance(env, _Question) or next(env.cases, None) is not None


def _bounds(e: Expr, env: Env) -> Interval:
    if isinstance(e, Const):
        if is_real(e.dtype):
            return ANY
        value = int(e.value.real)
        return (value, value)
    if isinstance(e, Var):
        return _known(e, env)
    if e.dtype is INDEX:
        form = affine(e)
        if len(form.terms) != 1 or form.terms[0][0] is not e:
            return _linear(form, env)
    if is_real(e.dtype):
        return ANY
    asks = _ASKED.get(type(e))
    rule = RULES.get(type(e))
    if asks is not None:
        found = unless_wrapped(asks(e, env), e.dtype)
    elif rule is not None:
        found = unless_wrapped(rule(e, lambda x: bounds(x, env)), e.dtype)
    else:
        found = natural(e.dtype)
    if e in env:
        return intersection(found, env[e])
    return found


def refine(
    env: Env,
    condition: Expr,
    holds: bool = True,
) -> dict[Any, Interval]:
    """`env` narrowed by what `condition` (or its negation) says about sums of atoms."""
    out = dict(env)
    _assume(out, condition, holds)
    return out


def lasting(env: Env) -> dict[Any, Interval]:
    """The entries that stay true when buffers are written: those on atoms without a load."""
    return {key: interval for key, interval in env.items() if not _reads(key)}


def _reads(key: Any) -> bool:
    if isinstance(key, frozenset):
        atoms = [a for a, _ in key]
    else:
        atoms = [key]
    return any(isinstance(n, Load) for atom in atoms for n in postorder(atom))


def less_than(v: Var, extent: Expr) -> dict[Any, Interval]:
    """That a variable is below an extent without loads, as an entry about their difference.

    Unlike `refine`, it states nothing about the extent alone, so that it remains valid where the
    variable is gone.
    """
    form = affine(v) - affine(extent)
    return {frozenset(form.terms): (None, -1 - form.const)}


def is_empty(env: Env) -> bool:
    """Whether some interval holds no value: the place it describes is never reached."""
    known = ((lo, hi) for lo, hi in env.values() if lo is not None and hi is not None)
    return any(lo > hi for lo, hi in known)


def proves(condition: Expr, env: Env) -> bool | None:
    """True or False where bounds decide a bool expression, else None."""
    lo, hi = bounds(condition, env)
    return bool(lo) if lo == hi else None


def within(index: Expr, extent: Extent, env: Env) -> bool:
    """Whether bounds prove `0 <= index < extent`."""
    lo, hi = bounds(index, env)
    if lo is None or lo < 0:
        return False
    if isinstance(extent, int):
        return hi is not None and hi < extent
    return is_below(bounds(Sub(index, extent), env)[1], 0)


def _known(e: Expr, env: Env) -> Interval:
    found = env.get(e)
    if found is not None:
        return found
    return ANY if is_real(e.dtype) else natural(e.dtype)


def _sum(
    terms: tuple[tuple[Expr, int], ...],
    const: int,
    env: Env,
) -> Interval:
    found: Interval = (const, const)
    for atom, c in terms:
        found = plus(found, scaled(bounds(atom, env), c))
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
        negated = frozenset((a, -c) for a, c in form.terms)
        flipped = env.get(negated)
        known = None if flipped is None else scaled(flipped, -1)
    if known is not None:
        whole = plus(known, (form.const, form.const))
        found = intersection(found, whole)
    for atom, c in form.terms:
        if isinstance(atom, Min | Max) and _tells_apart(env):
            found = intersection(found, _through(form, atom, c, env))
        if c > 0 and not isinstance(atom, Var | Load):
            found = intersection(found, _beside(form, atom, c, env))
    return found


def _beside(form: Affine, atom: Expr, c: int, env: Env) -> Interval:
    """`c * (a - b) + rest`, where a and b are built alike: `(i + 1) // 2 - i // 2`."""
    found = ANY
    for other, d in form.terms:
        if c + d or isinstance(other, Var | Load):
            continue
        between = scaled(apart(atom, other, lambda x: bounds(x, env)), c)
        rest = form - Affine(((atom, c), (other, d)), 0)
        if between != ANY:
            found = intersection(found, plus(between, _linear(rest, env)))
    return found


def _through(
    form: Affine,
    atom: Min | Max,
    c: int,
    env: Env,
) -> Interval:
    """`c * min(a, b) + rest` is at most (least) each of `c*a + rest` and `c*b + rest`."""
    rest = form - Affine(((atom, c),), 0)
    a = _linear(rest + affine(atom.lhs).scaled(c), env)
    b = _linear(rest + affine(atom.rhs).scaled(c), env)
    if isinstance(atom, Min) == (c > 0):
        return minimum(a, b)
    return maximum(a, b)


# -- nodes whose bounds follow from more than those of their parts


def _select(e: Select, env: Env) -> Interval:
    decided = proves(e.condition, env)
    if decided is not None:
        return bounds(e.then if decided else e.otherwise, env)
    if has_nodes(e, MANY_NODES) or not _tells_apart(env):
        return hull(bounds(e.then, env), bounds(e.otherwise, env))
    yes = _narrowed(env, e.condition, True)
    no = _narrowed(env, e.condition, False)
    if is_empty(yes):
        return bounds(e.otherwise, no)
    if is_empty(no):
        return bounds(e.then, yes)
    then = bounds(e.then, yes)
    otherwise = bounds(e.otherwise, no)
    return hull(then, otherwise)


def _narrowed(env: Env, condition: Expr, holds: bool) -> Env:
    """As `refine`, within the same question."""
    if not isinstance(env, _Question):
        return refine(env, condition, holds)
    narrowed = _Question(env, env.cases)
    _assume(narrowed, condition, holds)
    narrowed.answers.clear()  # those were found before all of it was known
    return narrowed


def _difference(e: Compare, env: Env) -> Interval:
    """Bounds of `lhs - rhs`, exact about what cancels; unknown for floats."""
    if e.lhs.dtype is INDEX:
        return _linear(affine(e.lhs) - affine(e.rhs), env)
    return plus(
        bounds(e.lhs, env),
        scaled(bounds(e.rhs, env), -1),
    )


def _lt(e: Lt, env: Env) -> Interval:
    lo, hi = _difference(e, env)
    always = is_below(hi, 0)
    never = is_above(lo, -1)
    return (int(always), int(not never))


def _le(e: Le, env: Env) -> Interval:
    lo, hi = _difference(e, env)
    always = is_below(hi, 1)
    never = is_above(lo, 0)
    return (int(always), int(not never))


def _eq(e: Compare, env: Env) -> Interval:
    lo, hi = _difference(e, env)
    always = lo == hi == 0
    never = is_above(lo, 0) or is_below(hi, 0)
    return (int(always), int(not never))


def _ne(e: Compare, env: Env) -> Interval:
    lo, hi = _eq(e, env)
    return (1 - (hi or 0), 1 - (lo or 0))


_ASKED: Mapping[type[Expr], Callable[[Any, Env], Interval]] = {
    Select: _select,
    Lt: _lt,
    Le: _le,
    Eq: _eq,
    Ne: _ne,
}


# -- conditions


def _assume(
    env: dict[Any, Interval],
    condition: Expr,
    holds: bool,
) -> None:
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


def _at_most(
    env: dict[Any, Interval],
    lhs: Expr,
    rhs: Expr,
    slack: int,
) -> None:
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
        _sum_at_most(env, form, top)
    for n, (atom, c) in enumerate(form.terms):
        others = form.terms[:n] + form.terms[n + 1 :]
        least, _ = _sum(others, 0, env)
        if least is None:
            continue
        room = top - least
        limit: Interval = (None, room // c)
        if c < 0:
            limit = (-(room // -c), None)
        env[atom] = intersection(bounds(atom, env), limit)


def _sum_at_most(
    env: dict[Any, Interval],
    form: Affine,
    top: int,
) -> None:
    """Assume that the terms of `form` together are at most `top`."""
    key = frozenset(form.terms)
    found = intersection(env.get(key, ANY), (None, top))
    flipped = frozenset((a, -c) for a, c in form.terms)
    if flipped in env:
        found = intersection(found, scaled(env.pop(flipped), -1))
    env[key] = found
