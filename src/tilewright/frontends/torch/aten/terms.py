"""Formulas of rules: tensors whose arithmetic adds operations."""

from __future__ import annotations

from tilewright.base.dtypes import DType
from tilewright.frontends.torch.aten.rules import AtenCall
from tilewright.graph.nodes import Value


class Term:
    """A tensor in a formula of a rule. Numbers beside it are constants of its type."""

    def __init__(self, c: AtenCall, value: Value) -> None:
        self.c = c
        self.value = value

    def op(self, op_type: str, *others: Operand, **attributes: int) -> Term:
        """An operator on this tensor and others."""
        operands = [self.of(x).value for x in others]
        found = self.c.op(op_type, self.value, *operands, **attributes)
        return Term(self.c, found)

    def of(self, x: Operand) -> Term:
        """An operand; numbers are constants."""
        if isinstance(x, Term):
            return x
        constant = self.c.number(x, self.value.dtype)
        return Term(self.c, constant)

    def cast(self, dtype: DType) -> Term:
        """The tensor in another type."""
        return Term(self.c, self.c.cast(self.value, dtype))

    def chosen(self, then: Operand, otherwise: Operand) -> Term:
        """Where this condition holds, one operand, and the other one elsewhere."""
        like = then if isinstance(then, Term) else otherwise
        assert isinstance(like, Term)
        return self.op("Where", like.of(then), like.of(otherwise))

    def equals(self, other: Operand) -> Term:
        """Whether elements are equal."""
        return self.op("Equal", other)

    def __add__(self, other: Operand) -> Term:
        return self.op("Add", other)

    def __sub__(self, other: Operand) -> Term:
        return self.op("Sub", other)

    def __mul__(self, other: Operand) -> Term:
        return self.op("Mul", other)

    def __truediv__(self, other: Operand) -> Term:
        return self.op("Div", other)

    def __neg__(self) -> Term:
        return self.op("Neg")

    def __abs__(self) -> Term:
        return self.op("Abs")

    def __radd__(self, other: float) -> Term:
        return self + other

    def __rsub__(self, other: float) -> Term:
        return self.of(other) - self

    def __rmul__(self, other: float) -> Term:
        return self * other

    def __rtruediv__(self, other: float) -> Term:
        return self.of(other) / self

    def __lt__(self, other: Operand) -> Term:
        return self.op("Less", other)

    def __le__(self, other: Operand) -> Term:
        return self.op("LessOrEqual", other)

    def __gt__(self, other: Operand) -> Term:
        return self.op("Greater", other)

    def __ge__(self, other: Operand) -> Term:
        return self.op("GreaterOrEqual", other)

    def __and__(self, other: Term) -> Term:
        return self.op("And", other)

    def __or__(self, other: Term) -> Term:
        return self.op("Or", other)

    def __xor__(self, other: Term) -> Term:
        return self.op("Xor", other)

    def __invert__(self) -> Term:
        return self.op("Not")


Operand = Term | float


def argument(c: AtenCall, name: str = "self", dtype: DType | None = None) -> Term:
    """An argument of an operator in a type, or in that of its result."""
    return Term(c, c.tensor(name, dtype or c.dtype))


def operands(c: AtenCall) -> tuple[Term, Term]:
    """Both operands of an operator, in the type of its result."""
    return argument(c), argument(c, "other")
