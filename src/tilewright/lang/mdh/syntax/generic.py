"""Expressions for any types and sizes: `MatMul[float32, M, N, K]`, as on MDH's poster."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.lang.mdh.syntax.parts import size
from tilewright.lang.mdh.syntax.program import Expression


@dataclass(eq=False)
class Generic:
    """A function from types and sizes to an expression, which brackets are applied to.

    The types come first. Trailing sizes that are omitted come from a call, and have the names of
    the function's parameters: `MatMul[float32]` is for matrices of any shapes.
    """

    function: Callable[..., Any]

    @property
    def parameters(self) -> list[str]:
        """Names of the types and sizes, in order."""
        return list(inspect.signature(self.function).parameters)

    def __getitem__(self, given: Any) -> Expression:
        """The expression for these types and sizes. Raises InputError for too many of them."""
        values = given if isinstance(given, tuple) else (given,)
        names = self.parameters
        label = self.function.__name__
        if len(values) > len(names):
            raise InputError(
                f"{len(values)} types and sizes given, {len(names)} expected",
                where=label,
                hint=f"as in {label}[{', '.join(names)}]",
            )
        made = self.function(*values, *map(size, names[len(values) :]))
        if not isinstance(made, Expression):
            raise InputError(
                f"it returns {made!r}, not an expression",
                where=label,
                hint="return out_view[...](...) @ md_hom[...](...) @ inp_view[...](...)",
            )
        return made if made.name != "mdh" else replace(made, name=label)

    def __repr__(self) -> str:
        return f"{self.function.__name__}[{', '.join(self.parameters)}]"


def generic(function: Callable[..., Any]) -> Generic:
    """Decorates a function of types and sizes that returns an expression.

    @generic
    def MatMul(T, M, N, K):
        return (
            out_view[T](C=[lambda i, j, k: (i, j)])
            @ md_hom[M, N, K](mul, (cc, cc, pw(add)))
            @ inp_view[T, T](A=[lambda i, j, k: (i, k)], B=[lambda i, j, k: (k, j)])
        )

    MatMul[float64, 10, 500, 64]      # of these sizes
    MatMul[float32]                   # of all: one function
    """
    return Generic(function)
