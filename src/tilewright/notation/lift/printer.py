"""Lift as text: Python expressions over the names that `parser` knows.

A | Map(lambda row: Zip(row, v) | Map(mul) | Reduce(add, 0.0)) | Join
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base.dtypes import bool_, float32, int64
from tilewright.expr.nodes import Expr
from tilewright.expr.printer import short
from tilewright.expr.printer import show as show_expr
from tilewright.notation.lift import nodes as n

# A parameter's name in the text: unique among those it is visible with.
Scope = Mapping[n.Param, str]


def show_part(part: n.Part, scope: Scope | None = None) -> str:
    """A term or a function on one line."""
    scope = {p: p.name for p in n.free_params(part)} if scope is None else scope
    match part:
        case n.Param():
            return scope[part]
        case n.Literal(value, dtype):
            plain = dtype in (float32, int64, bool_)
            return repr(value) if plain else f"{short(dtype)}({value!r})"
        case n.Apply():
            return _apply(part, scope)
        case n.Tuple(items):
            return f"({_list(items, scope)}{',' * (len(items) == 1)})"
        case n.Lambda(params, body):
            inner = _bound(params, scope)
            names = ", ".join(inner[p] for p in params)
            return f"fun(lambda {names}: {show_part(body, inner)})"
        case n.Compose(funs):
            return " >> ".join(show_part(f, scope) for f in funs)
        case n.UserFun(name):
            return name
        case n.Builtin(name):
            return name
        case n.DeviceOp(name):
            return name
    fields = [_field(getattr(part, f), scope) for f in part._fields]
    return f"{type(part).__name__}({', '.join(fields)})" if fields else type(part).__name__


def _apply(term: n.Apply, scope: Scope) -> str:
    if len(term.args) == 1 and not isinstance(term.fun, n.Lambda | n.ScalarFun | n.Get):
        return f"{show_part(term.args[0], scope)} | {show_part(term.fun, scope)}"
    if isinstance(term.fun, n.Get):
        return f"{_tight(term.args[0], scope)}[{term.fun.position}]"
    return f"{_tight(term.fun, scope)}({_list(term.args, scope)})"


def _tight(part: n.Part, scope: Scope) -> str:
    """In parentheses where it would fall apart as an operand."""
    text = show_part(part, scope)
    return f"({text})" if " | " in text or isinstance(part, n.Compose) else text


def _list(parts: tuple[n.Part, ...], scope: Scope) -> str:
    return ", ".join(show_part(p, scope) for p in parts)


def _field(value: Any, scope: Scope) -> str:
    show: Callable[..., str] = show_expr
    if isinstance(value, n.Lambda):
        return show_part(value, scope)[len("fun(") : -1]
    if isinstance(value, n.Part):
        return show_part(value, scope)
    if isinstance(value, n.IndexFun):
        return f"{value.name}({', '.join(map(show, value.args))})"
    return show(value) if isinstance(value, Expr) else repr(value)


def _bound(params: tuple[n.Param, ...], scope: Scope) -> dict[n.Param, str]:
    """`scope` with the parameters of a lambda, renamed where a name is taken."""
    inner = dict(scope)
    for p in params:
        name, count = p.name, 1
        while name in inner.values():
            count += 1
            name = f"{p.name}{count}"
        inner[p] = name
    return inner
