"""Definitions other than an Expr: several values (Tuple), or an undefined value (undef)."""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import DType
from tilewright.base.errors import UnsupportedError
from tilewright.expr import nodes
from tilewright.lang.halide.syntax.expr import Expr, as_expr
from tilewright.lang.halide.syntax.types import Type, plain


class Tuple:
    """Several values of one definition: `f[x] = Tuple(a, b)`, read as `f[x][0]`, `f[x][1]`."""

    def __init__(self, *values: Any) -> None:
        if len(values) == 1 and isinstance(values[0], list | tuple):
            found = values[0]
        else:
            found = values
        self.values = tuple(as_expr(v) for v in found)

    def __getitem__(self, n: int) -> Expr:
        return self.values[n]

    def __len__(self) -> int:
        return len(self.values)


class Undef(Expr):
    """Any value: a pure definition that later definitions write over."""

    __slots__ = ()

    @property
    def node(self) -> nodes.Expr:
        """None: raises UnsupportedError."""
        raise UnsupportedError(
            "undef inside an expression or an update",
            hint="only a whole pure definition; in an update select(condition, value, f[x])",
        )


def undef(type: Type | DType) -> Expr:
    """No particular value, for a pure definition: `f[x] = undef(UInt(8))`."""
    return Undef(nodes.const(0, plain(type)))
