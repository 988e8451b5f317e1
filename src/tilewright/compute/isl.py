"""Quasi-affine expressions as isl text, and isl queries under an operation limit.

The only file that calls isl. A subexpression that isl cannot express (a load, `i*j`) becomes a new
variable with the range of its dtype and bounds: an over-approximation, which `Domain.exact`
reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tilewright.base import limits
from tilewright.expr import nodes as n
from tilewright.expr.bounds import Env, bounds
from tilewright.expr.nodes import INDEX, Const, Expr, Var

if TYPE_CHECKING:
    import islpy

MAX_OPERATIONS = 200_000
_ANSWERS = 2_000  # that are kept, the least recently used out; a question has about 700 letters
# Characters of a subexpression that are written out; a longer one becomes a variable equal to it,
# so that what is shared is not written again and again.
_MAX_TEXT = 400


class Domain:
    """Integer points: named variables, constraints, and expressions over them as isl text."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.constraints: list[str] = []
        self.exact = True

    def variable(
        self,
        lo: int | None = None,
        hi: int | None = None,
    ) -> str:
        """A new variable, within inclusive bounds where given."""
        name = f"x{len(self.names)}"
        self.names.append(name)
        if lo is not None:
            self.constraints.append(f"{name} >= {lo}")
        if hi is not None:
            self.constraints.append(f"{name} <= {hi}")
        return name

    def require(self, text: str) -> None:
        """Keep only the points where an isl condition holds."""
        self.constraints.append(f"({text})")

    def text(self, *conditions: str) -> str:
        """The set as isl reads it, with further conditions."""
        body = " and ".join([*self.constraints, *(f"({c})" for c in conditions)])
        return f"{{ [{', '.join(self.names)}] : {body or 'true'} }}"


class IslTranslator:
    """Expressions over one binding of variables (one iteration of a nest) as isl text."""

    def __init__(
        self,
        domain: Domain,
        names: Mapping[Var, str],
        ranges: Env,
    ) -> None:
        self.domain = domain
        self.names: dict[Expr, str] = {}
        self.names.update(names.items())
        self.ranges = ranges
        self._conditions: dict[tuple[Expr, bool], str | None] = {}

    def expr(self, e: Expr) -> str:
        """The isl text of an int64 expression."""
        name = self.names.get(e)
        if name is not None:
            return name
        if isinstance(e, Const):
            return str(int(e.value.real))
        rule = _INTEGERS.get(type(e))
        if rule is not None and e.dtype is INDEX:
            text = rule(self, e)
        else:
            text = None
        if text is None:
            return self.opaque(e)
        if len(text) > _MAX_TEXT:
            name = self.domain.variable()
            self.domain.require(f"{name} = {text}")
            text = name
        self.names[e] = text
        return text

    def condition(self, e: Expr, holds: bool = True) -> str:
        """The isl text of a bool expression or its negation; what isl cannot say is true."""
        text = self._condition(e, holds)
        if text is None:
            self.domain.exact = False
            return "true"
        return text

    def _condition(self, e: Expr, holds: bool) -> str | None:
        if (e, holds) not in self._conditions:
            self._conditions[e, holds] = self._said(e, holds)
        return self._conditions[e, holds]

    def _said(self, e: Expr, holds: bool) -> str | None:
        if isinstance(e, Const):
            return "true" if bool(e.value) == holds else "false"
        if isinstance(e, n.Not):
            return self._condition(e.value, not holds)
        if isinstance(e, n.And | n.Or):
            both = isinstance(e, n.And) == holds
            parts = [self._condition(e.lhs, holds), self._condition(e.rhs, holds)]
            if None in parts:
                self.domain.exact = False
                if both:
                    return next((p for p in parts if p is not None), None)
                return None
            return f"({parts[0]} {'and' if both else 'or'} {parts[1]})"
        if isinstance(e, n.Compare) and e.lhs.dtype is INDEX:
            return f"({self.expr(e.lhs)} {_COMPARE[type(e)][not holds]} {self.expr(e.rhs)})"
        return None

    def opaque(self, e: Expr) -> str:
        """A new variable for an expression that isl cannot represent."""
        self.domain.exact = False
        name = self.names[e] = self.domain.variable(*bounds(e, self.ranges))
        return name


_COMPARE: Mapping[type[Expr], tuple[str, str]] = {
    n.Lt: ("<", ">="),
    n.Le: ("<=", ">"),
    n.Eq: ("=", "!="),
    n.Ne: ("!=", "="),
}


def _infix(op: str) -> Callable[[IslTranslator, Any], str]:
    return lambda t, e: f"({t.expr(e.lhs)} {op} {t.expr(e.rhs)})"


def _prefix(op: str) -> Callable[[IslTranslator, Any], str]:
    return lambda t, e: f"{op}({t.expr(e.lhs)}, {t.expr(e.rhs)})"


def _mul(t: IslTranslator, e: n.Mul) -> str | None:
    for a, b in ((e.lhs, e.rhs), (e.rhs, e.lhs)):
        if isinstance(a, Const):
            return f"({int(a.value.real)} * {t.expr(b)})"
    return None


def _divisor(e: n.Binary) -> int | None:
    """The divisor where it is a positive constant."""
    if isinstance(e.rhs, Const):
        c = int(e.rhs.value.real)
    else:
        c = 0
    return c if c > 0 else None


def _floordiv(t: IslTranslator, e: n.FloorDiv) -> str | None:
    c = _divisor(e)
    return None if c is None else f"floor(({t.expr(e.lhs)}) / {c})"


def _mod(t: IslTranslator, e: n.Mod) -> str | None:
    c = _divisor(e)
    return None if c is None else f"(({t.expr(e.lhs)}) mod {c})"


def _select(t: IslTranslator, e: n.Select) -> str | None:
    yes = t._condition(e.condition, True)
    no = t._condition(e.condition, False)
    if yes is None or no is None:
        return None
    name = t.domain.variable()
    then = t.expr(e.then)
    otherwise = t.expr(e.otherwise)
    t.domain.require(f"({yes} and {name} = {then}) or ({no} and {name} = {otherwise})")
    return name


_INTEGERS: Mapping[type[Expr], Callable[[IslTranslator, Any], str | None]] = {
    n.Add: _infix("+"),
    n.Sub: _infix("-"),
    n.Min: _prefix("min"),
    n.Overlap: _prefix("min"),
    n.Max: _prefix("max"),
    n.Neg: lambda t, e: f"(-{t.expr(e.value)})",
    n.Mul: _mul,
    n.FloorDiv: _floordiv,
    n.Mod: _mod,
    n.Select: _select,
}


# -- questions


def sample(
    domain: Domain,
    conditions: Sequence[str],
    limit: int | None = None,
) -> list[int] | None:
    """One point of the domain where all conditions hold, or None if there is none.

    Raises TooHard when isl needs more than `limit` (default MAX_OPERATIONS) operations.
    """
    text = domain.text(*conditions)
    point: tuple[int, ...] | None = _ask(text, _point, limit)
    if point is None:
        return None
    return list(point)


def _point(s: islpy.Set) -> tuple[int, ...] | None:
    import islpy

    if s.is_empty():
        return None
    p = s.sample_point()
    size = s.dim(islpy.dim_type.set)
    return tuple(
        int(p.get_coordinate_val(islpy.dim_type.set, k).to_python())
        for k in range(size)
    )


class IslLimitReached(Exception):
    """isl did not answer within the operation limit."""


_contexts: list[Any] = []


def _ask(
    text: str,
    question: Callable[[Any], Any],
    limit: int | None,
) -> Any:
    operations = MAX_OPERATIONS if limit is None else limit
    return _answered(text, question, operations)


@lru_cache(maxsize=_ANSWERS)
def _answered(text: str, question: Callable[[Any], Any], operations: int) -> Any:
    """The answer, a function of these three arguments: layers of equal shape repeat queries."""
    import islpy

    limits.check()
    if not _contexts:
        _contexts.append(islpy.Context())
    context = _contexts[0]
    context.reset_operations()
    context.set_max_operations(operations)
    try:
        return question(islpy.Set.read_from_str(context, text))
    except islpy.Error:
        if _used_up(context):
            raise IslLimitReached(text) from None
        raise
    finally:
        context.set_max_operations(0)


def _used_up(context: Any) -> bool:
    """Whether the limit of operations is reached: nothing more is done then.

    While isl reads a long set, it tells of the limit as a syntax error.
    """
    import islpy

    try:
        islpy.Set.read_from_str(context, "{ [x] : 0 <= x < 3 }").is_empty()
    except islpy.Error:
        return True
    return False


def greatest(
    domain: Domain,
    text: str,
    limit: int | None = None,
) -> int | None:
    """The greatest value of an expression over the domain; None if unbounded or never reached.

    Raises TooHard as `sample` does.
    """
    body = " and ".join([f"m = {text}", *domain.constraints])
    bound = f"exists {', '.join(domain.names)} : {body}" if domain.names else body
    value: int | None = _ask(f"{{ [m] : {bound} }}", _top, limit)
    return value


def _top(s: islpy.Set) -> int | None:
    if s.is_empty():
        return None
    value = s.dim_max_val(0)
    if value.is_int():
        return int(value.to_python())
    return None
