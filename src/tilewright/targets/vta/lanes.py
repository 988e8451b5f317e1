"""Lane operations: an expression over accumulators as a chain of ALU instructions.

The ALU computes in place, `acc[d] = op(acc[d], acc[s] or a constant)`. A value stored to
accumulators starts as a copy of its first operand there; a value stored to DRAM is computed in the
place of its first operand, which is then overwritten, as are second operands that are expressions.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import int32
from tilewright.base.errors import CompileError
from tilewright.expr import nodes as n
from tilewright.expr.nodes import Cast, Const, Expr, Load
from tilewright.expr.reads import variables
from tilewright.ir.node import postorder
from tilewright.targets.vta.fields import AluOp
from tilewright.targets.vta.intrinsics import ACC
from tilewright.targets.vta.kernel import RESET, VtaOperation

IMMEDIATES = range(-(1 << 15), 1 << 15)
_OPERATIONS: Mapping[type[Expr], AluOp] = {
    n.Min: AluOp.MIN,
    n.Max: AluOp.MAX,
    n.Add: AluOp.ADD,
    n.Mul: AluOp.MUL,
    n.Shr: AluOp.SHR,
}
_COMMUTE = (n.Min, n.Max, n.Add, n.Mul)
# A constant second operand of these, as one of another operation.
_NEGATED: Mapping[type[Expr], AluOp] = {n.Sub: AluOp.ADD, n.Shl: AluOp.SHR}


@dataclass(frozen=True, slots=True)
class LaneStep:
    """One instruction: an operation on the lanes of `target`, with those of `source`."""

    operation: VtaOperation
    target: Load
    source: Load | None = None


def loads(e: Expr) -> list[Load]:
    """The distinct loads of an expression."""
    return [x for x in postorder(e) if isinstance(x, Load)]


def update(op: type[Expr], target: Load, value: Expr, where: str) -> list[LaneStep]:
    """`target = op(target, value)`: a step of a reduction. Raises CompileError as `chain`."""
    chain = _Chain(where)
    chain.apply(op, target, value)
    return chain.steps


def chain(value: Expr, target: Load | None, where: str) -> tuple[list[LaneStep], Load]:
    """The instructions that compute a value, in `target` if it is given, and the value's place.

    Raises CompileError for operations that the ALU does not have.
    """
    made = _Chain(where)
    if isinstance(value, Const):
        if target is None:
            raise made.refused(value)
        made.constant(target, value)
        return made.steps, target
    if target is not None and target not in loads(value):
        made.target = target
    home = made.value(value)
    if target is not None and home is not target:
        made.copy(target, home)
        home = target
    return made.steps, home


class _Chain:
    def __init__(self, where: str) -> None:
        self.where = where
        self.steps: list[LaneStep] = []
        self.changed: set[Load] = set()
        # Where the first operand is copied to, so that it is not spent.
        self.target: Load | None = None

    def copy(self, target: Load, source: Load) -> None:
        self.steps.append(LaneStep(RESET, target))
        self.steps.append(LaneStep(VtaOperation(alu=AluOp.ADD), target, source))

    def refused(self, e: Expr) -> CompileError:
        return CompileError(
            f"the ALU does not compute {e!r}",
            code="TW-VTA-ALU",
            where=self.where,
            hint="it does min, max, +, - and * of int32 accumulators and constants of 16 bits, and "
            "shifts; stage other operands with cache_read in vta.acc",
        )

    def constant(self, target: Load, value: Const) -> None:
        """Zero, plus a number of 16 bits, times a power of two: the least int32 is one of these."""
        number = int(value.value.real)
        shift = 0
        while number not in IMMEDIATES and number % 2 == 0:
            number, shift = number // 2, shift + 1
        self.steps.append(LaneStep(RESET, target))
        if number:
            self.immediate(AluOp.ADD, target, number, value)
        if shift:
            self.immediate(AluOp.SHR, target, -shift, value)

    def value(self, e: Expr) -> Load:
        """Compute an expression in the place of its first operand."""
        if isinstance(e, Load) and e.buffer.scope == ACC:
            if e in self.changed:
                raise self.refused(e)
            if self.target is None:
                return e
            home, self.target = self.target, None
            self.copy(home, e)
            return home
        if isinstance(e, Cast) and e.value.dtype is e.dtype is int32:
            return self.value(e.value)
        if isinstance(e, n.Neg):
            home = self.value(e.value)
            self.immediate(AluOp.MUL, home, -1, e)
            return home
        if not isinstance(e, n.Binary) or e.dtype is not int32:
            raise self.refused(e)
        first, second = e.lhs, e.rhs
        if isinstance(e, _COMMUTE) and _spread(first) < _spread(second):
            first, second = second, first
        if isinstance(first, Const):
            raise self.refused(e)
        home = self.value(first)
        self.apply(type(e), home, second)
        return home

    def apply(self, op: type[Expr], home: Load, operand: Expr) -> None:
        """`home = op(home, operand)`."""
        if isinstance(operand, Const):
            value = int(operand.value.real)
            if op in _NEGATED:
                self.immediate(_NEGATED[op], home, -value, operand)
            elif op in _OPERATIONS:
                self.immediate(_OPERATIONS[op], home, value, operand)
            else:
                raise self.refused(operand)
            return
        source = self.value(operand)
        if op is n.Sub:
            self.immediate(AluOp.MUL, source, -1, operand)
            op = n.Add
        same = source.buffer is home.buffer and source is not home
        if op not in _OPERATIONS or op is n.Shr or same:
            raise self.refused(operand)
        self.do(LaneStep(VtaOperation(alu=_OPERATIONS[op]), home, source))

    def immediate(self, op: AluOp, home: Load, value: int, e: Expr) -> None:
        if value not in IMMEDIATES:
            raise self.refused(e)
        self.do(LaneStep(VtaOperation(alu=op, imm=value), home))

    def do(self, step: LaneStep) -> None:
        self.steps.append(step)
        self.changed.add(step.target)


def _spread(e: Expr) -> int:
    """In how many loops a value changes: it is computed in the place of the one with most."""
    if isinstance(e, Const):
        return -1
    return len(set(variables(e)))
