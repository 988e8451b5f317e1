"""Lift as text: Python over the words of `patterns.SCOPE`; `patterns.parse` reads it back.

A | Map(lambda row: Zip(row, v) | Map(mul) | Reduce(add, 0.0)) | Join
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from math import isnan
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import bool_, float32, int64
from tilewright.base.errors import UnsupportedError
from tilewright.expr import python
from tilewright.expr.nodes import Expr
from tilewright.expr.printer import short
from tilewright.expr.printer import show as show_expr
from tilewright.ir.node import postorder
from tilewright.lift import nodes as n
from tilewright.lift.lambdas import pointfree
from tilewright.lift.layout import CallText, Chain, Doc, Scoped, UnbrokenText
from tilewright.lift.patterns import SCOPE
from tilewright.lift.sizes import length_variables
from tilewright.lift.types import show_type


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """Names of the parameters in sight, each once, none of them a word or a length."""

    names: Mapping[n.Param, str]
    taken: frozenset[str]

    def inner(self, params: tuple[n.Param, ...]) -> ParameterNames:
        """With more parameters, renamed where their names are taken."""
        names = dict(self.names)
        for p in params:
            plain = name = re.sub(r"\W", "_", p.name)
            count = 1
            while (
                name in names.values() or name in self.taken or not name.isidentifier()
            ):
                count += 1
                name = f"{plain}{count}" if plain.isidentifier() else f"x{plain}"
            names[p] = name
        return ParameterNames(names, self.taken)


# Patterns whose word is not the name of their class.
_WORDS: Mapping[type[n.Part], str] = {
    n.PadConstant: "Pad",
    n.AsVector: "asVector",
    n.AsScalar: "asScalar",
}
_INFIX: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def show_part(part: n.Part) -> str:
    """A term or a function on one line; only its name where sharing makes the text too long."""
    if _written(part) > python.MAX_WRITTEN:
        return f"{type(part).__name__}(…)"
    return _doc(part, _outermost(part)).flat()


def show_lines(part: n.Part, width: int = 100) -> str:
    """A term or a function in lines of at most `width` columns, where that can be.

    A function that only pipes its arguments is written as a composition, as it is read.
    Raises UnsupportedError where sharing makes the text too long.
    """
    if _written(part) > python.MAX_WRITTEN:
        raise UnsupportedError(
            f"the program is longer than {python.MAX_WRITTEN} nodes in writing",
            where="show",
            hint="name what is used several times: let(x, lambda y: ...)",
        )
    part = pointfree(part)
    doc = _doc(part, _outermost(part))
    if isinstance(doc, Chain) and len(doc.flat()) > width:
        doc = CallText("", (doc,))
    return "\n".join(doc.lines(width))


def _written(part: n.Part) -> int:
    """The nodes of the text: shared parts count as often as they are written."""
    counts: dict[Any, int] = {}
    for node in postorder(part):
        counts[node] = 1 + sum(counts[c] for c in node.children())
    return counts[part]


def _outermost(part: n.Part) -> ParameterNames:
    taken = {*SCOPE, *keyword.kwlist, *(v.name for v in length_variables(part))}
    if any(isinstance(p, n.UserFun) for p in postorder(part)):
        taken |= python.scope().keys()  # words of their bodies
    free = tuple(sorted(n.free_params(part), key=lambda p: p.name))
    return ParameterNames({}, frozenset(taken)).inner(free)


def _doc(part: n.Part, scope: ParameterNames) -> Doc:
    match part:
        case n.Param():
            return UnbrokenText(scope.names[part])
        case n.Literal():
            return UnbrokenText(_literal(part))
        case n.Apply():
            return _apply(part, scope)
        case n.Tuple(items):
            return CallText("Tuple", _docs(items, scope))
        case n.Lambda(params, _):
            types = tuple(
                UnbrokenText(show_type(p.type)) for p in params if p.type is not None
            )
            return CallText("fun", (_lambda(part, scope), *types))
        case n.Compose(funs):
            return Chain(">>", _docs(funs, scope))
        case n.UserFun():
            return _user_fun(part)
        case n.Builtin(name) | n.DeviceOp(name):
            return UnbrokenText(name)
        case n.To(space, f):
            return CallText(f"to{space.capitalize()}", (_field(f, scope),))
    word = _WORDS.get(type(part), type(part).__name__)
    fields = tuple(_field(getattr(part, f), scope) for f in part._fields)
    if isinstance(part, n.Gather | n.Scatter):
        fields = (
            UnbrokenText(repr(part.index.name)),
            *(_field(a, scope) for a in part.index.args),
        )
    if fields:
        return CallText(word, fields)
    return UnbrokenText(word)


def _literal(part: n.Literal) -> str:
    if isinstance(part.value, float) and isnan(part.value):
        text = "nan"
    else:
        text = repr(part.value)
    if part.dtype in (float32, int64, bool_):
        return text
    return f"{short(part.dtype)}({text})"


def _apply(term: n.Apply, scope: ParameterNames) -> Doc:
    f = term.fun
    args = term.args
    if isinstance(f, n.Compose):
        return _doc(n.apply(f, *args), scope)
    if isinstance(f, n.Get):
        operand = _doc(args[0], scope)
        if not isinstance(operand, Chain):
            return UnbrokenText(f"{operand.flat()}[{f.position}]")
    if isinstance(f, n.Builtin) and f.name in _INFIX and len(args) == 2:
        # Python would fold an operator between two literals.
        if not all(isinstance(a, n.Literal) for a in args):
            sign = f" {_INFIX[f.name]} "
            return UnbrokenText(sign.join(_operand(a, scope) for a in args))
    if isinstance(f, n.Lambda) and len(args) == len(f.params) == 1:
        value = _doc(args[0], scope)
        return CallText("let", (value, _lambda(f, scope)))
    if len(args) == 1 and not isinstance(f, n.Lambda | n.ScalarFun):
        before = _doc(args[0], scope)
        first = before.parts if isinstance(before, Chain) else (before,)
        return Chain("|", (*first, _doc(f, scope)))
    return CallText(_tight(f, scope), _docs(args, scope))


def _lambda(f: n.Lambda, scope: ParameterNames) -> Doc:
    inner = scope.inner(f.params)
    names = ", ".join(inner.names[p] for p in f.params)
    return Scoped(f"lambda {names}:" if names else "lambda:", _doc(f.body, inner))


def _user_fun(f: n.UserFun) -> Doc:
    params = [n.argument(i, t) for i, t in enumerate(f.dtypes)]
    names = ", ".join(p.name for p in params)
    body = python.show(f.body, {p: p.name for p in params})
    types = (UnbrokenText(short(t)) for t in f.dtypes)
    return CallText(
        "userfun",
        (UnbrokenText(repr(f.name)), UnbrokenText(f"lambda {names}: {body}"), *types),
    )


def _tight(part: n.Part, scope: ParameterNames) -> str:
    """In parentheses where it would fall apart as an operand."""
    doc = _doc(part, scope)
    if isinstance(doc, Chain):
        return f"({doc.flat()})"
    return doc.flat()


def _operand(part: n.Part, scope: ParameterNames) -> str:
    """In parentheses where it is an operation itself."""
    match part:
        case n.Apply(n.Builtin(name), (_, _)) if name in _INFIX:
            return f"({_doc(part, scope).flat()})"
    return _tight(part, scope)


def _docs(parts: tuple[n.Part, ...], scope: ParameterNames) -> tuple[Doc, ...]:
    return tuple(_doc(p, scope) for p in parts)


def _field(value: Any, scope: ParameterNames) -> Doc:
    if isinstance(value, n.Lambda):
        return _lambda(value, scope)
    if isinstance(value, n.Part):
        return _doc(value, scope)
    return UnbrokenText(show_expr(value) if isinstance(value, Expr) else repr(value))
