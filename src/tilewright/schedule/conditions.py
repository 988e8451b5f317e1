"""Conditions as text, over the loops and buffers of a program: `mm.i == 0 and flag[0] < 3`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from tilewright.base import dtypes
from tilewright.base.errors import InputError
from tilewright.expr.nodes import (
    INDEX,
    Add,
    And,
    Buffer,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Lt,
    Mod,
    Mul,
    Ne,
    Neg,
    Not,
    Or,
    Sub,
    Var,
    as_expr,
    const,
)

_BINARY: Mapping[type[ast.operator], type[Any]] = {
    ast.Add: Add,
    ast.Sub: Sub,
    ast.Mult: Mul,
    ast.FloorDiv: FloorDiv,
    ast.Mod: Mod,
}

_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Expr]] = {
    ast.Lt: Lt,
    ast.LtE: Le,
    ast.Gt: lambda a, b: Lt(b, a),
    ast.GtE: lambda a, b: Le(b, a),
    ast.Eq: Eq,
    ast.NotEq: Ne,
}


def parse_condition(text: str, names: Mapping[str, Var | Buffer]) -> Expr:
    """The bool expression that `text` says in Python's words.

    Comparisons (chains too), `and`, `or`, `not`, `+ - * // %`, whole numbers, the words of
    `names` (dots are part of a word) and elements of buffers. Raises InputError (TW-SYNTAX) for
    anything else.
    """
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
        found = _Reader(names).expr(parsed)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise InputError(
            f"{text!r} is not a condition: {error}", code="TW-SYNTAX"
        ) from None
    if not isinstance(found, Expr) or found.dtype is not dtypes.bool_:
        raise InputError(f"{text!r} is not a condition, but a value", code="TW-SYNTAX")
    return found


class _Reader:
    def __init__(self, names: Mapping[str, Var | Buffer]) -> None:
        self.names = names

    def expr(self, e: ast.expr) -> Any:
        """The Expr, Buffer or number that a Python expression denotes."""
        match e:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return value
            case ast.Name() | ast.Attribute():
                return self._named(_word(e))
            case ast.BoolOp(op=op, values=values):
                connective = And if isinstance(op, ast.And) else Or
                return reduce(connective, map(self._truth, values))
            case ast.UnaryOp(op=ast.Not(), operand=x):
                return Not(self._truth(x))
            case ast.UnaryOp(op=ast.USub(), operand=x):
                value = self.expr(x)
                if isinstance(value, int):
                    return -value
                return Neg(_scalar(value))
            case ast.BinOp(left=a, op=op, right=b) if type(op) in _BINARY:
                return _BINARY[type(op)](*_alike(self.expr(a), self.expr(b)))
            case ast.Compare(left=left, ops=ops, comparators=rights):
                return self._chain([left, *rights], ops)
            case ast.Subscript(value=buffer, slice=index):
                return self._element(self.expr(buffer), index)
        raise ValueError(f"{ast.unparse(e)!r} is not understood")

    def _truth(self, e: ast.expr) -> Expr:
        found = self.expr(e)
        if not isinstance(found, Expr) or found.dtype is not dtypes.bool_:
            raise ValueError(f"{ast.unparse(e)!r} is neither true nor false")
        return found

    def _named(self, word: str) -> Var | Buffer:
        if word not in self.names:
            raise ValueError(f"there is no loop or buffer {word!r} around")
        return self.names[word]

    def _chain(self, terms: list[ast.expr], ops: list[ast.cmpop]) -> Expr:
        values = [self.expr(t) for t in terms]
        total: Expr | None = None
        for op, a, b in zip(ops, values, values[1:]):
            if type(op) not in _COMPARE:
                raise ValueError(f"{type(op).__name__} is not a comparison of numbers")
            part = _COMPARE[type(op)](*_alike(a, b))
            total = part if total is None else And(total, part)
        assert total is not None
        return total

    def _element(self, buffer: Any, index: ast.expr) -> Expr:
        if not isinstance(buffer, Buffer):
            raise ValueError("only buffers have elements")
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        place = [as_expr(self.expr(p), INDEX) for p in parts]
        return buffer[tuple(place)]


def _word(e: ast.expr) -> str:
    if isinstance(e, ast.Attribute):
        return f"{_word(e.value)}.{e.attr}"
    if isinstance(e, ast.Name):
        return e.id
    raise ValueError(f"{ast.unparse(e)!r} is not a name")


def _alike(a: Any, b: Any) -> tuple[Expr, Expr]:
    """Two operands of one dtype; a number takes the other's."""
    if isinstance(a, int) and isinstance(b, int):
        return const(a), const(b)
    if isinstance(a, int):
        return const(a, _scalar(b).dtype), b
    return _scalar(a), b if isinstance(b, Expr) else const(b, a.dtype)


def _scalar(x: Any) -> Expr:
    if not isinstance(x, Expr):
        raise ValueError(f"{x!r} is not a number")
    return x
