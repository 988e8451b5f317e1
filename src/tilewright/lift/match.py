"""Patterns over Lift's terms: matched up to names of bound variables, eta, and arity.

A pattern is an ordinary term with holes. A `TermHole` matches any term, a `FunHole` any function; a
hole matches nothing with variables bound by the pattern's lambdas, so a rule cannot let a variable
escape. A `FunHole` applied to bound variables, as in `lambda x: e(x)`, matches every term over them
and becomes the function of them (Miller's higher-order patterns). Lengths, widths and the like are
variables (`expr.nodes.Var`). Holes have types, made of `TypeHole`s, and bind these and the lengths
in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, TypeAlias

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import TilewrightError
from tilewright.expr.nodes import INDEX, Const, Expr, Var, as_expr, const
from tilewright.ir.node import Node, postorder, substitute
from tilewright.lift import lengths
from tilewright.lift.lambdas import (
    abstraction,
    beta,
    key,
    opened,
    put,
    refreshed,
    same,
    spread,
)
from tilewright.lift.nodes import (
    Apply,
    Builtin,
    Compose,
    DeviceOp,
    Fun,
    IndexFun,
    Lambda,
    Param,
    Part,
    Term,
    free_params,
)
from tilewright.lift.types import Array, Scalar, TupleType, Type, Vector

# The types of holes are data of their fields, not children.
Sort: TypeAlias = Type
Sorts: TypeAlias = tuple[Type, ...]
TypeOf = Callable[[Term], Type]
ResultOf = Callable[[Fun, tuple[Type, ...]], Type]


class TypeHole(Type):
    """Any type; of kind "scalar" a scalar only."""

    name: str
    kind: Literal["any", "scalar"]

    def __repr__(self) -> str:
        return f"?{self.name}"


class TermHole(Param, intern=False):
    """Any term of its type."""


class FunHole(Fun):
    """Any function from `args` to `result`."""

    name: str
    args: Sorts
    result: Sort


class PatternMismatch(Exception):
    """The pattern does not match; the text, put together when asked for, says where it differs."""

    def __str__(self) -> str:
        return "".join(a if isinstance(a, str) else _show(a) for a in self.args)


@dataclass(slots=True)
class Bindings:
    """What the holes of a pattern took: terms and functions, types, lengths and numbers."""

    parts: dict[Part, Part] = field(default_factory=dict)
    types: dict[TypeHole, Type] = field(default_factory=dict)
    sizes: dict[Expr, Expr] = field(default_factory=dict)
    # How the program calls what the pattern's lambdas bind.
    names: dict[str, str] = field(default_factory=dict)

    def size(self, e: Expr) -> Expr:
        """A length over size holes as one of the program; Mismatch if a hole is not bound."""
        free = [
            v.name for v in postorder(e) if isinstance(v, Var) and v not in self.sizes
        ]
        if free:
            raise PatternMismatch(f"{' and '.join(free)} is not given")
        return lengths.normal(substitute(e, self.sizes))


def type_holes(
    names: str, kind: Literal["any", "scalar"] = "any"
) -> tuple[TypeHole, ...]:
    """One per name."""
    return tuple(TypeHole(name, kind) for name in names.split())


def size_holes(names: str) -> tuple[Var, ...]:
    """One per name."""
    return tuple(Var(name, INDEX) for name in names.split())


def match(pattern: Part, part: Part, found: Bindings) -> None:
    """Extends `found` so that the pattern becomes `part`; raises Mismatch if it cannot."""
    matcher = _Matcher(found)
    matcher.part(pattern, part)
    matcher.finish()


def match_types(
    pattern: Part, found: Bindings, type_of: TypeOf, result_of: ResultOf
) -> None:
    """Binds what the types of the holes of `pattern` say; raises Mismatch if they do not fit."""
    matcher = _Matcher(found)
    holes = [h for h in postorder(pattern) if isinstance(h, TermHole | FunHole)]
    functions = []
    for hole in holes:
        if isinstance(hole, FunHole):
            functions.append(hole)
        else:
            matcher.type(_sort(hole), _typed(type_of, found.parts[hole]), hole.name)
    # A function is known when its arguments are: the result of another, perhaps.
    while functions:
        ready = [f for f in functions if is_known(f.args, found)]
        if not ready:
            raise PatternMismatch(
                f"the arguments of {functions[0].name} have no known type"
            )
        for f in ready:
            args = tuple(fill_type(a, found) for a in f.args)
            matcher.type(f.result, _typed(result_of, found.parts[f], args), f.name)
        functions = [f for f in functions if f not in ready]
    matcher.finish()


def _sort(hole: Param) -> Type:
    assert hole.type is not None
    return hole.type


def _typed(of: Callable[..., Type], *args: Any) -> Type:
    try:
        return of(*args)
    except TilewrightError as error:
        raise PatternMismatch(str(error)) from error


class _Matcher:
    def __init__(self, found: Bindings) -> None:
        self.found = found
        # The pattern's bound variables, and the variables that they match.
        self.scope: dict[Param, Param] = {}
        self.later: list[tuple[Expr, Expr]] = []

    def part(self, pattern: Any, part: Any) -> None:
        """A term or function against one."""
        match pattern:
            case TermHole() | FunHole():
                self._bind(pattern, part)
            case Param():
                _require(self.scope.get(pattern, pattern) is part, pattern, part)
            case Lambda(params, body):
                _require(isinstance(part, Fun), pattern, part)
                own, inner = opened(part, len(params))
                outer = dict(self.scope)
                for p, o in zip(params, own, strict=True):
                    self.scope[p] = o
                    self.found.names[p.name] = o.name
                self.part(body, inner)
                self.scope = outer
            case Apply(FunHole() as hole, args) if self._bound(args):
                self._abstract(hole, args, part)
            case Fun() if isinstance(part, Lambda | Compose):
                arity = len(part.params) if isinstance(part, Lambda) else 1
                own, body = opened(part, arity)
                self.part(Apply(pattern, own), body)
            case DeviceOp(name, sizes):
                _require(isinstance(part, DeviceOp), pattern, part)
                _require(part.name == device_name(name, part.sizes), pattern, part)
                self._field(sizes, part.sizes, part)
            case _:
                _require(type(pattern) is type(part), pattern, part)
                for name in pattern._fields:
                    self._field(getattr(pattern, name), getattr(part, name), part)

    def type(self, pattern: Type, actual: Type, what: str) -> None:
        """A type against one; `what` has it."""
        match pattern, actual:
            case TypeHole(kind="scalar"), _ if not isinstance(actual, Scalar):
                raise PatternMismatch(f"{what} has {actual!r}, no scalar")
            case TypeHole(), _:
                known = self.found.types.setdefault(pattern, actual)
                if known is not actual:
                    raise PatternMismatch(f"{what} has {actual!r}, expected {known!r}")
            case Array(item, n), Array(own, m):
                self.type(item, own, what)
                self._length(n, m)
            case TupleType(items), TupleType(own) if len(items) == len(own):
                for a, b in zip(items, own, strict=True):
                    self.type(a, b, what)
            case Vector(), Vector():
                scalar: Any = pattern.dtype
                self.type(scalar, Scalar(actual.dtype), what)
                self._field(pattern.width, actual.width, actual)
            case _ if pattern is not actual:
                raise PatternMismatch(
                    f"{what} has {actual!r}, which is not of the form wanted"
                )

    def finish(self) -> None:
        """Lengths over several holes, once these are known."""
        for pattern, actual in self.later:
            holes = [v for v in postorder(pattern) if type(v) is Var]
            if all(v in self.found.sizes for v in holes):
                same_size = self.found.size(pattern) is lengths.normal(actual)
                _require(same_size, pattern, actual)

    def _bind(self, hole: Part, part: Part) -> None:
        _require(isinstance(part, Term) == isinstance(hole, Term), hole, part)
        inside = free_params(part) & set(self.scope.values())
        if inside:
            names = ", ".join(sorted(p.name for p in inside))
            raise PatternMismatch(part, f" depends on {names}")
        if isinstance(part, Lambda):
            part = abstraction(part.params, part.body)
        known = self.found.parts.setdefault(hole, part)
        if not same(known, part):
            raise PatternMismatch(known, " and ", part, " differ")

    def _bound(self, args: tuple[Term, ...]) -> bool:
        return all(a in self.scope for a in args) and len(set(args)) == len(args)

    def _abstract(
        self,
        hole: FunHole,
        args: tuple[Any, ...],
        part: Part,
    ) -> None:
        own = tuple(self.scope[a] for a in args)
        fresh = tuple(Param(p.name, p.type) for p in own)
        body = put(part, dict(zip(own, fresh, strict=True)))
        self._bind(hole, abstraction(fresh, body))

    def _field(self, pattern: Any, value: Any, at: object) -> None:
        if isinstance(pattern, tuple):
            if len(pattern) != len(value):
                raise PatternMismatch(
                    at, f": {len(value)} operands, expected {len(pattern)}"
                )
            for p, v in zip(pattern, value, strict=True):
                self._field(p, v, at)
        elif isinstance(pattern, Part):
            self.part(pattern, value)
        elif isinstance(pattern, Expr):
            self._length(pattern, value if isinstance(value, Expr) else const(value))
        elif isinstance(pattern, IndexFun):
            self._field((pattern.name, *pattern.args), (value.name, *value.args), at)
        elif pattern != value:
            raise PatternMismatch(at, ": ", value, ", expected ", pattern)

    def _length(self, pattern: Expr, actual: Expr) -> None:
        if isinstance(pattern, Var):
            known = self.found.sizes.setdefault(pattern, lengths.normal(actual))
            _require(known is lengths.normal(actual), known, actual)
        else:
            self.later.append((pattern, actual))


def _require(condition: bool, expected: object, found: object) -> None:
    if not condition:
        raise PatternMismatch(found, " does not match ", expected)


def device_name(name: str, sizes: tuple[Any, ...]) -> str:
    """`VVAdd32`, `MVMul64x128`, `MVMul128` where all sizes are one."""
    texts = list(map(repr, sizes))
    return name + "x".join(texts[:1] if len(set(texts)) == 1 else texts)


def show(pattern: Part) -> str:
    """A pattern as text, its holes by name."""
    holes = (h for h in postorder(pattern) if isinstance(h, FunHole))
    return repr(substitute(pattern, {h: Builtin(h.name) for h in holes}))


def _show(value: object) -> str:
    if isinstance(value, Part):
        return show(value)
    return repr(value)


# -- filling


def is_known(types: Sequence[Type], found: Bindings) -> bool:
    """Whether all holes in the types are bound."""
    try:
        for t in types:
            fill_type(t, found)
    except PatternMismatch:
        return False
    return True


def fill_type(t: Type, found: Bindings) -> Type:
    """A type with its holes filled."""
    match t:
        case TypeHole():
            if t not in found.types:
                raise PatternMismatch(f"type {t.name} is not known")
            return found.types[t]
        case Array(item, n):
            return Array(fill_type(item, found), found.size(n))
        case TupleType(items):
            return TupleType(tuple(fill_type(i, found) for i in items))
        case Vector():
            hole: Any = t.dtype
            scalar = (
                fill_type(hole, found) if isinstance(hole, TypeHole) else Scalar(hole)
            )
            lanes = found.size(as_expr(t.width, INDEX))
            assert isinstance(scalar, Scalar) and isinstance(lanes, Const)
            return Vector(scalar.dtype, int(lanes.value.real))
    return t


def fill(template: Any, found: Bindings) -> Any:
    """The template with its holes filled: new bound variables, redexes of holes reduced."""
    return _Filler(found).part(template, {})


class _Filler:
    def __init__(self, found: Bindings) -> None:
        self.found = found
        self.used: set[Part] = set()

    def part(self, t: Any, scope: Mapping[Param, Param]) -> Any:
        match t:
            case TermHole() | FunHole():
                return self._taken(t)
            case Param():
                return scope.get(t, t)
            case Apply(FunHole() as hole, args):
                return beta(self._taken(hole), tuple(self.part(a, scope) for a in args))
            case Lambda(params, body):
                fresh = {}
                for p in params:
                    name = self.found.names.get(p.name, p.name)
                    fresh[p] = Param(name, self._type(p.type))
                inner = self.part(body, {**scope, **fresh})
                return abstraction(tuple(fresh.values()), inner)
            case DeviceOp(name, sizes, meaning):
                numbers = tuple(self._one(n, "int", scope) for n in sizes)
                filled = key(self.part(meaning, {}))
                return DeviceOp(device_name(name, numbers), numbers, filled)
        made = type(t)(*(self._value(t, name, scope) for name in t._fields))
        if isinstance(made, Term):
            return spread(made)
        return made

    def _type(self, t: Type | None) -> Type | None:
        if t is None:
            return None
        return fill_type(t, self.found)

    def _taken(self, hole: Part) -> Any:
        """What the hole took; its second use gets its own bound variables."""
        if hole not in self.found.parts:
            raise PatternMismatch(f"{hole.name} is not given")  # type: ignore[attr-defined]
        part = self.found.parts[hole]
        if hole in self.used and isinstance(part, Fun):
            return refreshed(part)
        self.used.add(hole)
        return part

    def _value(
        self,
        t: Node,
        name: str,
        scope: Mapping[Param, Param],
    ) -> Any:
        value = getattr(t, name)
        if isinstance(value, tuple):
            return tuple(self._one(v, t._fields[name], scope) for v in value)
        return self._one(value, t._fields[name], scope)

    def _one(
        self,
        value: Any,
        kind: str,
        scope: Mapping[Param, Param],
    ) -> Any:
        if isinstance(value, Part):
            return self.part(value, scope)
        if isinstance(value, IndexFun):
            return IndexFun(value.name, tuple(map(self.found.size, value.args)))
        if not isinstance(value, Expr):
            return value
        size = self.found.size(value)
        if kind != "int":
            return size
        if not isinstance(size, Const):
            raise PatternMismatch(f"{size!r} is not a number")
        return int(size.value.real)
