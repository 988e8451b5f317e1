"""Side conditions of rules, as rows: their text, and how they are decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Const, Expr, Sub, const
from tilewright.lift import laws, lengths
from tilewright.lift.lambdas import is_identity
from tilewright.lift.match import (
    Bindings,
    FunHole,
    PatternMismatch,
    TermHole,
    TypeHole,
    fill,
    fill_type,
)
from tilewright.lift.memory import is_result, resident
from tilewright.lift.nodes import Apply, DeviceOp, Fun, Part, ScalarFun, Term, To
from tilewright.lift.sites import Site
from tilewright.lift.types import Type


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """The context of a condition: the bindings of holes, the site, known facts on lengths."""

    found: Bindings
    site: Site
    given: tuple[lengths.Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class SideCondition:
    """A row of KINDS on parts of a rule: `divides(m, n)` is `m | n`."""

    kind: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return KINDS[self.kind].text.format(*(_text(a) for a in self.args))

    def refusal(self, at: RuleMatch) -> str | None:
        """Why it fails there, None if it holds."""
        return KINDS[self.kind].refusal(at, *self.args)


@dataclass(frozen=True, slots=True)
class ConditionKind:
    """What a condition of this kind says, and the reason why it does not hold, if so."""

    text: str
    refusal: Callable[..., str | None]


def _text(arg: Any) -> str:
    if isinstance(arg, FunHole | TypeHole):
        return arg.name
    if isinstance(arg, tuple):
        return ", ".join(map(_text, arg))
    if isinstance(arg, type):
        return arg.__name__
    if isinstance(arg, str):
        return arg
    return repr(arg)


def _make(kind: str) -> Callable[..., SideCondition]:
    return lambda *args: SideCondition(kind, args)


# -- lengths


def _decided(
    at: RuleMatch,
    kind: Any,
    left: Expr,
    right: Expr,
) -> str | None:
    condition = lengths.Condition(kind, at.found.size(left), at.found.size(right), "")
    found = lengths.decide(condition)
    if found or (found is None and _is_given(condition, at.given)):
        return None
    sign = {"divides": "divide", "at most": "be at most"}[kind]
    verb = "does not" if found is False else "is not known to"
    return f"{condition.left!r} {verb} {sign} {condition.right!r}"


def _is_given(c: lengths.Condition, given: tuple[lengths.Condition, ...]) -> bool:
    wanted = (c.kind, c.left, c.right)
    return any((g.kind, g.left, g.right) == wanted for g in given)


def _divides(at: RuleMatch, m: Expr, n: Expr) -> str | None:
    if at.found.size(m) is const(0):
        return f"0 does not divide {at.found.size(n)!r}"
    return _decided(at, "divides", m, n)


def _at_most(at: RuleMatch, m: Expr, n: Expr) -> str | None:
    return _decided(at, "at most", m, n)


def _positive(at: RuleMatch, n: Expr) -> str | None:
    return _decided(at, "at most", const(1), n)


def _equal(at: RuleMatch, a: Expr, b: Expr) -> str | None:
    left = at.found.size(a)
    right = at.found.size(b)
    if left is right or lengths.normal(Sub(left, right)) is const(0):
        return None
    return f"{left!r} is not {right!r}"


def _power(
    at: RuleMatch,
    n: Expr,
    base: Expr,
    times: Expr,
) -> str | None:
    sizes = [at.found.size(e) for e in (n, base, times)]
    numbers = [int(s.value.real) for s in sizes if isinstance(s, Const)]
    if len(numbers) == 3 and numbers[1] > 0 and numbers[2] >= 0:
        if numbers[0] == numbers[1] ** numbers[2]:
            return None
    return f"{sizes[0]!r} is not {sizes[1]!r} to the power {sizes[2]!r}"


def _number(at: RuleMatch, n: Expr) -> str | None:
    size = at.found.size(n)
    return None if isinstance(size, Const) else f"{size!r} is not a number"


def _among(at: RuleMatch, n: Expr, numbers: tuple[int, ...]) -> str | None:
    size = at.found.size(n)
    if isinstance(size, Const) and int(size.value.real) in numbers:
        return None
    return f"{size!r} is not one of {', '.join(map(str, numbers))}"


# -- operators


def _associative(at: RuleMatch, f: FunHole, t: Type) -> str | None:
    op = fill(f, at.found)
    held = laws.associative(op, fill_type(t, at.found))
    return None if held else f"{op!r} is not known to be associative"


def _commutative(at: RuleMatch, f: FunHole, t: Type) -> str | None:
    op = fill(f, at.found)
    held = laws.commutative(op, fill_type(t, at.found))
    return None if held else f"{op!r} is not known to be commutative"


def _neutral(
    at: RuleMatch,
    z: Term,
    f: FunHole,
    t: Type,
) -> str | None:
    value = fill(z, at.found)
    op = fill(f, at.found)
    held = laws.neutral(value, op, fill_type(t, at.found))
    return None if held else f"{value!r} is not known to be neutral for {op!r}"


def _neutral_of(
    at: RuleMatch,
    w: TermHole,
    f: FunHole,
    t: Type,
) -> str | None:
    """Finds the neutral element, for the right side to use."""
    op = fill(f, at.found)
    value = laws.neutral_of(op, fill_type(t, at.found))
    if value is None:
        return f"no neutral element of {op!r} is known"
    at.found.parts[w] = value
    return None


def _computes(at: RuleMatch, f: FunHole) -> str | None:
    op = fill(f, at.found)
    return f"{op!r} is the identity" if is_identity(op) else None


def _scalar_fun(at: RuleMatch, f: FunHole) -> str | None:
    op = fill(f, at.found)
    return (
        None
        if isinstance(op, ScalarFun)
        else f"{op!r} is not a function of scalars by name"
    )


# -- nesting


def _contains(part: Part, kinds: tuple[type[Fun], ...], dim: int | None = None) -> bool:
    own = isinstance(part, kinds) and (dim is None or getattr(part, "dim", dim) == dim)
    return own or any(
        _contains(c, kinds, dim) for c in part.children() if isinstance(c, Part)
    )


def _names(kinds: tuple[type[Fun], ...], dim: int | None) -> str:
    return " or ".join(k.__name__ for k in kinds) + ("" if dim is None else f"({dim})")


def _dim(at: RuleMatch, dim: Expr | None) -> int | None:
    if dim is None:
        return None
    size = at.found.size(dim)
    if not isinstance(size, Const):
        raise PatternMismatch(f"{size!r} is not a dimension")
    return int(size.value.real)


def _holds_no(
    at: RuleMatch, f: FunHole, kinds: tuple[type[Fun], ...], dim: Expr | None = None
) -> str | None:
    body = fill(f, at.found)
    d = _dim(at, dim)
    return f"{body!r} holds a {_names(kinds, d)}" if _contains(body, kinds, d) else None


def _holds(at: RuleMatch, f: FunHole, kinds: tuple[type[Fun], ...]) -> str | None:
    body = fill(f, at.found)
    return (
        None if _contains(body, kinds) else f"{body!r} holds no {_names(kinds, None)}"
    )


def _around(at: RuleMatch, kinds: tuple[type[Fun], ...], dim: int | None) -> bool:
    return any(
        isinstance(p, kinds) and (dim is None or getattr(p, "dim", dim) == dim)
        for p in at.site.above
    )


def _outside(
    at: RuleMatch, kinds: tuple[type[Fun], ...], dim: Expr | None = None
) -> str | None:
    d = _dim(at, dim)
    if _around(at, kinds, d):
        return f"the place is inside a {_names(kinds, d)}"
    return None


def _inside(
    at: RuleMatch, kinds: tuple[type[Fun], ...], dim: Expr | None = None
) -> str | None:
    d = _dim(at, dim)
    if _around(at, kinds, d):
        return None
    return f"the place is not inside a {_names(kinds, d)}"


# -- memory


def _read(at: RuleMatch, spaces: str) -> str | None:
    if is_result(at.site):
        return f"the result of the program must not stay in {spaces} memory"
    return None


def _result(at: RuleMatch) -> str | None:
    return (
        None
        if is_result(at.site)
        else "the value is read by other parts of the program"
    )


def _fits(at: RuleMatch, space: str, limit: int) -> str | None:
    """The capacity of a memory, with the value at the place in it as well."""
    node = at.site.node
    assert isinstance(node, Apply)
    needed = resident(at.site.replaced(Apply(To(space, node.fun), node.args)), space)
    return (
        f"{needed} bytes are needed in {space}, it has {limit}"
        if needed > limit
        else None
    )


def _instruction(at: RuleMatch, f: FunHole) -> str | None:
    op = fill(f, at.found)
    return (
        None
        if isinstance(op, DeviceOp)
        else f"{op!r} is not an instruction of a device"
    )


KINDS: Mapping[str, ConditionKind] = {
    "divides": ConditionKind("{0} | {1}", _divides),
    "at most": ConditionKind("{0} <= {1}", _at_most),
    "positive": ConditionKind("{0} > 0", _positive),
    "equal": ConditionKind("{0} = {1}", _equal),
    "power": ConditionKind("{0} = {1}^{2}", _power),
    "number": ConditionKind("{0} is a number", _number),
    "among": ConditionKind("{0} is one of {1}", _among),
    "associative": ConditionKind("{0} associative", _associative),
    "commutative": ConditionKind("{0} commutative", _commutative),
    "neutral": ConditionKind("{0} neutral for {1}", _neutral),
    "neutral of": ConditionKind("{0} the neutral element of {1}", _neutral_of),
    "computes": ConditionKind("{0} is not the identity", _computes),
    "scalar": ConditionKind("{0} a scalar function", _scalar_fun),
    "holds": ConditionKind("{0} holds a {1}", _holds),
    "holds no": ConditionKind("{0} holds no {1}", _holds_no),
    "read": ConditionKind("read by others, so that it may be {0}", _read),
    "result": ConditionKind("the program's result", _result),
    "fits": ConditionKind("fits into the {1} bytes of {0}", _fits),
    "instruction": ConditionKind("{0} an instruction", _instruction),
    "outside": ConditionKind("not inside {0}", _outside),
    "inside": ConditionKind("inside {0}", _inside),
}

divides, at_most, positive, equal = map(
    _make, ("divides", "at most", "positive", "equal")
)
number, among, scalar_fun = map(_make, ("number", "among", "scalar"))
power = _make("power")
associative, commutative, neutral = map(
    _make, ("associative", "commutative", "neutral")
)
neutral_of, computes = map(_make, ("neutral of", "computes"))
holds, holds_no, outside, inside = map(
    _make, ("holds", "holds no", "outside", "inside")
)
read, result, fits, instruction = map(_make, ("read", "result", "fits", "instruction"))
