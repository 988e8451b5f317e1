"""The arguments of operators as terms of formulas."""

from __future__ import annotations

from tilewright.base.dtypes import DType
from tilewright.frontends.torch.aten.rules import AtenCall
from tilewright.graph.ops.terms import TensorTerm


def argument(c: AtenCall, name: str = "self", dtype: DType | None = None) -> TensorTerm:
    """An argument of an operator in a type, or in that of its result."""
    return TensorTerm(c, c.tensor(name, dtype or c.dtype))


def operands(c: AtenCall) -> tuple[TensorTerm, TensorTerm]:
    """Both operands of an operator, in the type of its result."""
    return argument(c), argument(c, "other")
