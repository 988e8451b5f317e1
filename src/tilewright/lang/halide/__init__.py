"""Halide for users: the notation, the schedule verbs, and running.

    from tilewright import halide as hl

    x, y = hl.Var("x"), hl.Var("y")
    f = hl.Func("f")
    f[x, y] = x + y
    f.realize([8, 4])

The names are those of Halide's Python bindings. `f[x, y]` is element `[y, x]` of a NumPy array.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from tilewright.lang.halide.func import Func, ImageParam, Pipeline
from tilewright.lang.halide.levels import MemoryType
from tilewright.lang.halide.verbs import Stage, TailStrategy
from tilewright.notation.halide import boundary
from tilewright.notation.halide.domain import RDom, RVar, Var
from tilewright.notation.halide.expr import Expr, unique
from tilewright.notation.halide.func import Tuple
from tilewright.notation.halide.image import Buffer, Param
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
from tilewright.notation.halide.types import Bool, Float, Int, Type, UInt

BoundaryConditions: Final = SimpleNamespace(
    **{name: partial(f, func=Func) for name, f in boundary.CONDITIONS.items()}
)


def sum(*args: Any, name: str | None = None) -> Expr:
    """`sum([r,] value)`: the sum over the RDom `r`, or the one that the value uses."""
    return reduced("add", *_named(args, name, "sum"))


def product(*args: Any, name: str | None = None) -> Expr:
    """`product([r,] value)`: the product over the RDom `r`, or the one that the value uses."""
    return reduced("mul", *_named(args, name, "product"))


def maximum(*args: Any, name: str | None = None) -> Expr:
    """`maximum([r,] value)`: the greatest over the RDom `r`, or the one that the value uses."""
    return reduced("max", *_named(args, name, "maximum"))


def minimum(*args: Any, name: str | None = None) -> Expr:
    """`minimum([r,] value)`: the least over the RDom `r`, or the one that the value uses."""
    return reduced("min", *_named(args, name, "minimum"))


def argmax(*args: Any, name: str | None = None) -> Tuple:
    """`argmax([r,] value)`: (coordinates of the RDom, value) of the first greatest value."""
    return arg_reduced("argmax", *_named(args, name, "argmax"))


def argmin(*args: Any, name: str | None = None) -> Tuple:
    """`argmin([r,] value)`: (coordinates of the RDom, value) of the first least value."""
    return arg_reduced("argmin", *_named(args, name, "argmin"))


def _named(args: Sequence[Any], name: str | None, default: str) -> tuple[Any, type[Func], str]:
    """The arguments of a reduction without the name, which may be the last of them."""
    if args and isinstance(args[-1], str):
        args, name = args[:-1], args[-1]
    return args, Func, name or unique(default)


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
    "Type",
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
