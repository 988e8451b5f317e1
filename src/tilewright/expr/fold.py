"""Arithmetic on constants: what each node means on integers and truth values, exactly.

Index arithmetic is folded all the time, so integers have this small table; every other dtype is
folded by the interpreter, which defines the meaning. Tests compare the two on integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.dtypes import DType, bool_
from tilewright.expr.nodes import (
    Add,
    And,
    Bitcast,
    Call,
    Cast,
    Const,
    Div,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Neg,
    Not,
    Or,
    Overlap,
    Rem,
    Select,
    Shl,
    Shr,
    Sub,
    Xor,
    const,
)


def wrap(value: int, dtype: DType) -> int:
    """`value` modulo 2**bits, in the range of the integer `dtype`."""
    value &= (1 << dtype.bits) - 1
    if dtype.kind == "int" and value >> (dtype.bits - 1):
        return value - (1 << dtype.bits)
    return value


def truncated_div(a: int, b: int) -> int:
    """`a / b` rounded to zero; 0 if b is 0."""
    if b == 0:
        return 0
    if (a < 0) == (b < 0):
        return a // b
    return -(-a // b)


def remainder(a: int, b: int) -> int:
    """What `truncated_div` leaves: it has the sign of a; 0 if b is 0."""
    if b == 0:
        return 0
    return a - truncated_div(a, b) * b


def _shift_left(a: int, n: int, bits: int) -> int:
    return a << n if 0 <= n < bits else 0


def _shift_right(a: int, n: int, bits: int) -> int:
    if 0 <= n < bits:
        return a >> n
    return -(a < 0)


# Operands are in range; results are wrapped afterwards. Shifts also take the width.
INTEGER: dict[type[Expr], Callable[[int, int], int]] = {
    Add: lambda a, b: a + b,
    Sub: lambda a, b: a - b,
    Mul: lambda a, b: a * b,
    Div: truncated_div,
    FloorDiv: lambda a, b: a // b if b else 0,
    Mod: lambda a, b: a % b if b else 0,
    Rem: remainder,
    Min: min,
    Overlap: min,
    Max: max,
    And: lambda a, b: a & b,
    Or: lambda a, b: a | b,
    Xor: lambda a, b: a ^ b,
}
SHIFTS: dict[type[Expr], Callable[[int, int, int], int]] = {
    Shl: _shift_left,
    Shr: _shift_right,
}
COMPARE: dict[type[Expr], Callable[[int, int], bool]] = {
    Lt: lambda a, b: a < b,
    Le: lambda a, b: a <= b,
    Eq: lambda a, b: a == b,
    Ne: lambda a, b: a != b,
}
LOGICAL: dict[type[Expr], Callable[[int, int], bool]] = {
    Min: lambda a, b: bool(a and b),
    Max: lambda a, b: bool(a or b),
    And: lambda a, b: bool(a and b),
    Or: lambda a, b: bool(a or b),
    Xor: lambda a, b: bool(a) != bool(b),
}


_BY_INTERPRETER = (Call, Cast, Bitcast)


def fold(e: Expr) -> Const | None:
    """The constant an operation on constants equals; None if some operand is not a constant."""
    operands = e.children()
    if not operands or not all(isinstance(x, Const) for x in operands):
        return None
    if type(e) not in _BY_INTERPRETER:
        return compute(type(e), *operands)
    return _interpreted(e)


def compute(kind: type[Expr], *args: Any) -> Const | None:
    """`kind(*args)` as a constant, for a node class without its own fields, on constants."""
    dtype: DType = args[0].type
    value = args[0].value
    if len(args) == 2 and (dtype.is_int or dtype.is_bool):
        return _binary(kind, value, args[1].value, dtype)
    if kind is Neg and dtype.is_int:
        return Const(wrap(-value, dtype), dtype)
    if kind is Not:
        return Const(not value if dtype.is_bool else wrap(~value, dtype), dtype)
    if kind is Select:
        chosen: Const = args[1] if value else args[2]
        return chosen
    return _interpreted(kind(*args))


def _binary(
    kind: type[Expr],
    a: Any,
    b: Any,
    dtype: DType,
) -> Const | None:
    """`kind(a, b)` of two integers or bools of `dtype`."""
    if kind in COMPARE:
        return Const(COMPARE[kind](a, b), bool_)
    if dtype.is_bool:
        if kind in LOGICAL:
            return Const(LOGICAL[kind](a, b), dtype)
        return None
    if kind in SHIFTS:
        found = SHIFTS[kind](a, b, dtype.bits)
    else:
        found = INTEGER[kind](a, b)
    return Const(wrap(found, dtype), dtype)


def _interpreted(e: Expr) -> Const | None:
    from tilewright.expr.interp import evaluate

    operands: Any = e.children()
    if e.dtype.is_string or any(x.dtype.is_string for x in operands):
        return None
    return const(evaluate(e, {}), e.dtype)
