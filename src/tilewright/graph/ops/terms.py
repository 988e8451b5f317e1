"""Formulas over tensors: terms whose arithmetic adds operations."""

from __future__ import annotations

from typing import Any, Protocol

from tilewright.base.dtypes import DType
from tilewright.graph.nodes import Value


class TermBuilder(Protocol):
    """What adds the operations of terms: a Fragment, or a rule of a frontend."""

    def op(self, op_type: str, *inputs: Value | None, **attributes: Any) -> Value: ...

    def number(self, x: Any, dtype: DType | None = None) -> Value: ...

    def cast(self, x: Value, dtype: DType) -> Value: ...


class TensorTerm:
    """A tensor in a formula. Numbers beside it are constants of its type."""

    def __init__(self, builder: TermBuilder, value: Value) -> None:
        self.builder = builder
        self.value = value

    def op(self, op_type: str, *others: Operand, **attributes: Any) -> TensorTerm:
        """An operator on this tensor and others."""
        operands = [self.of(x).value for x in others]
        found = self.builder.op(op_type, self.value, *operands, **attributes)
        return TensorTerm(self.builder, found)

    def of(self, x: Operand) -> TensorTerm:
        """An operand; numbers are constants."""
        if isinstance(x, TensorTerm):
            return x
        if isinstance(x, Value):
            return TensorTerm(self.builder, x)
        constant = self.builder.number(x, self.value.dtype)
        return TensorTerm(self.builder, constant)

    def cast(self, dtype: DType) -> TensorTerm:
        """The tensor in another type."""
        return TensorTerm(self.builder, self.builder.cast(self.value, dtype))

    def chosen(self, then: Operand, otherwise: Operand) -> TensorTerm:
        """Where this condition holds, one operand, and the other one elsewhere."""
        like = otherwise if isinstance(then, float | int) else then
        assert isinstance(like, TensorTerm | Value)
        number = self.of(like).of
        return self.op("Where", number(then), number(otherwise))

    def equals(self, other: Operand) -> TensorTerm:
        """Whether elements are equal."""
        return self.op("Equal", other)

    def __add__(self, other: Operand) -> TensorTerm:
        return self.op("Add", other)

    def __sub__(self, other: Operand) -> TensorTerm:
        return self.op("Sub", other)

    def __mul__(self, other: Operand) -> TensorTerm:
        return self.op("Mul", other)

    def __truediv__(self, other: Operand) -> TensorTerm:
        return self.op("Div", other)

    def __neg__(self) -> TensorTerm:
        return self.op("Neg")

    def __abs__(self) -> TensorTerm:
        return self.op("Abs")

    def __radd__(self, other: float) -> TensorTerm:
        return self + other

    def __rsub__(self, other: float) -> TensorTerm:
        return self.of(other) - self

    def __rmul__(self, other: float) -> TensorTerm:
        return self * other

    def __rtruediv__(self, other: float) -> TensorTerm:
        return self.of(other) / self

    def __lt__(self, other: Operand) -> TensorTerm:
        return self.op("Less", other)

    def __le__(self, other: Operand) -> TensorTerm:
        return self.op("LessOrEqual", other)

    def __gt__(self, other: Operand) -> TensorTerm:
        return self.op("Greater", other)

    def __ge__(self, other: Operand) -> TensorTerm:
        return self.op("GreaterOrEqual", other)

    def __and__(self, other: Operand) -> TensorTerm:
        return self.op("And", other)

    def __or__(self, other: Operand) -> TensorTerm:
        return self.op("Or", other)

    def __xor__(self, other: Operand) -> TensorTerm:
        return self.op("Xor", other)

    def __invert__(self) -> TensorTerm:
        return self.op("Not")


Operand = TensorTerm | Value | float
