"""Constant folding of integer and bool operations, so that unrolled code decides its conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base.dtypes import DType
from tilewright.expr import nodes
from tilewright.expr.nodes import Expr
from tilewright.targets.llvm.emit_text import LlvmValue, integer
from tilewright.targets.llvm.emit_types import register_type

_FOLDS: Mapping[type[Expr], Callable[[Any, Any], Any]] = {
    nodes.Add: lambda a, b: a + b,
    nodes.Sub: lambda a, b: a - b,
    nodes.Mul: lambda a, b: a * b,
    nodes.FloorDiv: lambda a, b: a // b if b else 0,
    nodes.Mod: lambda a, b: a % b if b else 0,
    nodes.Min: min,
    nodes.Max: max,
    nodes.Lt: lambda a, b: a < b,
    nodes.Le: lambda a, b: a <= b,
    nodes.Eq: lambda a, b: a == b,
    nodes.Ne: lambda a, b: a != b,
    nodes.And: lambda a, b: a & b,
    nodes.Or: lambda a, b: a | b,
    nodes.Xor: lambda a, b: a ^ b,
}


def fold(
    kind: type[Expr], a: LlvmValue, b: LlvmValue, dtype: DType
) -> LlvmValue | None:
    """The result if it is known while generating code, else None."""
    if dtype.is_float or dtype.is_sub_byte:
        return None
    if a.const is not None and b.const is not None:
        return _both(kind, a, b, dtype)
    if a.const is not None:
        return _neutral(kind, b, a.const, dtype, left=True)
    if b.const is not None:
        return _neutral(kind, a, b.const, dtype, left=False)
    return None


def _both(
    kind: type[Expr], a: LlvmValue, b: LlvmValue, dtype: DType
) -> LlvmValue | None:
    f = _FOLDS.get(kind)
    if f is None:
        return None
    x, y = a.const, b.const
    if dtype.kind == "uint":
        mask = (1 << dtype.bits) - 1
        x, y = int(x or 0) & mask, int(y or 0) & mask
    if dtype.is_bool and kind in (nodes.Add, nodes.Mul):
        return integer(int(bool(x or y) if kind is nodes.Add else bool(x and y)), "i1")
    result = f(x, y)
    compared = issubclass(kind, nodes.Compare)
    return integer(int(result), "i1" if compared else register_type(dtype))


def _neutral(
    kind: type[Expr], v: LlvmValue, c: int | float | bool, dtype: DType, left: bool
) -> LlvmValue | None:
    """`v op c` where c decides the result or changes nothing."""
    if kind in (nodes.And, nodes.Or) and dtype.is_bool:
        if bool(c) is (kind is nodes.And):
            return v
        return integer(int(c), "i1")
    if kind is nodes.Add and c == 0 and not dtype.is_bool:
        return v
    if kind is nodes.Mul and c == 1 and not dtype.is_bool:
        return v
    if not left and c == 1 and kind in (nodes.FloorDiv, nodes.Div):
        return v
    if not left and c == 0 and kind is nodes.Sub:
        return v
    return None
