"""Operands of two dtypes, converted to one as by TVM's operators.

Of two floats, or two integers, the wider one counts; a float counts beside an integer, a signed
integer beside an unsigned one of its width, and all beside bool. An expression of indices counts as
int32, which TVM's indices are: `A[i] + i` is int32 where A is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from tilewright.base.dtypes import DType, float32, int32
from tilewright.base.errors import InputError
from tilewright.expr.nodes import INDEX, Expr, Load, as_expr, const
from tilewright.ir.node import postorder


def matched(value: Expr, other: Any) -> tuple[Expr, Expr]:
    """Two operands of one dtype, of an expression and another or a number.

    A number takes the expression's dtype; a Python float beside an integer is float32.
    """
    if not isinstance(other, Expr):
        if not (isinstance(other, float) and value.dtype.is_int):
            return value, as_expr(other, value.dtype)
        other = const(other, float32)
    if value.dtype is other.dtype:
        return value, other
    to = common_dtype((value, other))
    if to is None:
        return value, other
    return value.astype(to), other.astype(to)


def alike(where: str, values: Sequence[Any]) -> tuple[Expr, ...]:
    """Values, one of them an expression, as expressions of one dtype; numbers as of `matched`.

    Raises InputError where there is none that all can be converted to.
    """
    typed = [v for v in values if isinstance(v, Expr)]
    if all(v.dtype.is_int for v in typed):
        typed += [const(v, float32) for v in values if isinstance(v, float)]
    to = common_dtype(typed)
    if to is None:
        kinds = ", ".join(f"{v!r} is {v.dtype}" for v in typed)
        raise InputError(kinds, where=where, hint="convert one: .astype('float32')")
    return tuple(as_expr(v, to).astype(to) for v in values)


def common_dtype(values: Sequence[Expr]) -> DType | None:
    """The dtype that values of several are converted to; None where there is none."""
    found = {v.dtype for v in values}
    if len(found) == 1:
        return values[0].dtype
    if not all(map(_is_known, found)):
        return None
    return reduce(_wider, map(_counted, values))


def _is_known(t: DType) -> bool:
    return t.is_float or t.is_int or t.is_bool


def _counted(value: Expr) -> DType:
    return int32 if _is_index(value) else value.dtype


def _is_index(value: Expr) -> bool:
    """Whether it is made of coordinates and numbers alone."""
    if value.dtype is not INDEX:
        return False
    return not any(isinstance(n, Load) for n in postorder(value))


def _wider(a: DType, b: DType) -> DType:
    if _rank(b) > _rank(a):
        return b
    return a


def _rank(t: DType) -> tuple[bool, bool, int, bool]:
    """What counts more has the greater one."""
    signed = t.is_int and t.min < 0
    return t.is_float, not t.is_bool, t.bits, signed
