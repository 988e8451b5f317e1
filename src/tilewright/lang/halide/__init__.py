"""Halide for users: the notation, the schedule verbs, and running.

    from tilewright import halide as hl

    x, y = hl.Var("x"), hl.Var("y")
    f = hl.Func("f")
    f[x, y] = x + y
    f.realize([8, 4])

The names are those of Halide's Python bindings. `f[x, y]` is element `[y, x]` of a NumPy array.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from tilewright.lang.halide.func import Func, Pipeline
from tilewright.lang.halide.levels import MemoryType
from tilewright.lang.halide.verbs import Stage, TailStrategy
from tilewright.notation.halide import boundary
from tilewright.notation.halide.domain import RDom, RVar, Var
from tilewright.notation.halide.expr import (
    Expr,
)
from tilewright.notation.halide.func import Tuple
from tilewright.notation.halide.image import Buffer, ImageParam, Param
from tilewright.notation.halide.inline_reductions import arg_reduced, reduced
from tilewright.notation.halide.intrinsics import (
    abs,
    absd,
    acos,
    asin,
    atan,
    cast,
    ceil,
    clamp,
    cos,
    cosh,
    erf,
    exp,
    f16,
    f32,
    f64,
    floor,
    i8,
    i16,
    i32,
    i64,
    likely,
    log,
    max,
    min,
    pow,
    round,
    saturating_cast,
    select,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
    u8,
    u16,
    u32,
    u64,
)
from tilewright.notation.halide.types import Bool, Float, Int, UInt

BoundaryConditions: Final = SimpleNamespace(
    **{name: partial(f, func=Func) for name, f in boundary.CONDITIONS.items()}
)


def sum(value: Any) -> Expr:
    """The sum of `value` over the RDom it uses."""
    return reduced("add", value, Func, "sum")


def product(value: Any) -> Expr:
    """The product of `value` over the RDom it uses."""
    return reduced("mul", value, Func, "product")


def maximum(value: Any) -> Expr:
    """The greatest `value` over the RDom it uses."""
    return reduced("max", value, Func, "maximum")


def minimum(value: Any) -> Expr:
    """The least `value` over the RDom it uses."""
    return reduced("min", value, Func, "minimum")


def argmax(domain: RDom, value: Any) -> Tuple:
    """(position, value) of the first greatest `value` over an RDom of one dimension."""
    return arg_reduced("argmax", domain, value, Func)


def argmin(domain: RDom, value: Any) -> Tuple:
    """(position, value) of the first least `value` over an RDom of one dimension."""
    return arg_reduced("argmin", domain, value, Func)


__all__ = [
    "Bool",
    "BoundaryConditions",
    "Buffer",
    "Expr",
    "Float",
    "Func",
    "ImageParam",
    "Int",
    "MemoryType",
    "Param",
    "Pipeline",
    "RDom",
    "RVar",
    "Stage",
    "TailStrategy",
    "Tuple",
    "UInt",
    "Var",
    "abs",
    "absd",
    "acos",
    "argmax",
    "argmin",
    "asin",
    "atan",
    "cast",
    "ceil",
    "clamp",
    "cos",
    "cosh",
    "erf",
    "exp",
    "f16",
    "f32",
    "f64",
    "floor",
    "i8",
    "i16",
    "i32",
    "i64",
    "likely",
    "log",
    "max",
    "maximum",
    "min",
    "minimum",
    "pow",
    "product",
    "round",
    "saturating_cast",
    "select",
    "sin",
    "sinh",
    "sqrt",
    "sum",
    "tan",
    "tanh",
    "trunc",
    "u8",
    "u16",
    "u32",
    "u64",
]
