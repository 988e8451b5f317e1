"""Formulas of rules: tensors whose arithmetic adds operations."""

from __future__ import annotations

from tilewright.base.dtypes import DType
from tilewright.frontends.torch.aten.rules import AtenCall
from tilewright.graph.nodes import Value


class TensorTerm:
    """A tensor in a formula of a rule. Numbers beside it are constants of its type."""

    def __init__(self, c: AtenCall, value: Value) -> None:
        self.c = c
        self.value = value

    def op(self, op_type: str, *others: Operand, **attributes: int) -> TensorTerm:
        """An operator on this tensor and others."""
        operands = [self.of(x).value for x in others]
        found = self.c.op(op_type, self.value, *operands, **attributes)
        return TensorTerm(self.c, found)

    def of(self, x: Operand) -> TensorTerm:
        """An operand; numbers are constants."""
        if isinstance(x, TensorTerm):
            return x
        constant = self.c.number(x, self.value.dtype)
        return TensorTerm(self.c, constant)

    def cast(self, dtype: DType) -> TensorTerm:
        """The tensor in another type."""
        return TensorTerm(self.c, self.c.cast(self.value, dtype))

    def chosen(self, then: Operand, otherwise: Operand) -> TensorTerm:
        """Where this condition holds, one operand, and the other one elsewhere."""
        like = then if isinstance(then, TensorTerm) else otherwise
        assert isinstance(like, TensorTerm)
        return self.op("Where", like.of(then), like.of(otherwise))

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

    def __and__(self, other: TensorTerm) -> TensorTerm:
        return self.op("And", other)

    def __or__(self, other: TensorTerm) -> TensorTerm:
        return self.op("Or", other)

    def __xor__(self, other: TensorTerm) -> TensorTerm:
        return self.op("Xor", other)

    def __invert__(self) -> TensorTerm:
        return self.op("Not")


Operand = TensorTerm | float


def argument(c: AtenCall, name: str = "self", dtype: DType | None = None) -> TensorTerm:
    """An argument of an operator in a type, or in that of its result."""
    return TensorTerm(c, c.tensor(name, dtype or c.dtype))


def operands(c: AtenCall) -> tuple[TensorTerm, TensorTerm]:
    """Both operands of an operator, in the type of its result."""
    return argument(c), argument(c, "other")
