"""The context of rules for operators on open extents, and the table of these rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.graph.bounded.builder import BoundedBuilder
from tilewright.graph.bounded.contents import KnownContents
from tilewright.graph.bounded.extents import Dim, Dims
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.registry import OpCall


@dataclass(frozen=True)
class BoundedContext:
    """The graph under construction. A rule takes bounded operands and returns bounded results."""

    builder: BoundedBuilder
    contents: KnownContents

    def call(
        self,
        op: Operation,
    ) -> OpCall:
        """The operator as its definition sees it, with the extents of the memory."""
        return OpCall(op, self.builder.typer.known)

    def dims(
        self,
        op: Operation,
        n: int = 0,
    ) -> Dims:
        """The extents of an operand."""
        return self.builder.dims(self.call(op).value(n))

    def ints(
        self,
        op: Operation,
        n: int,
    ) -> list[Dim] | None:
        """The numbers in an operand; None if it is omitted or they are known only at run time."""
        return self.contents.ints(op.inputs[n]) if n < len(op.inputs) else None

    def numbers(
        self,
        op: Operation,
        n: int,
    ) -> list[int] | None:
        """The numbers in an operand that are the same in every run; None if some are not."""
        found = self.ints(op, n)
        if found is None or not all(isinstance(d, int) for d in found):
            return None
        return [int(d) for d in found if isinstance(d, int)]

    def on_memory(
        self,
        op: Operation,
        dims: Sequence[Dim] | None = None,
    ) -> Results:
        """Apply the operator to the memory of its operands. dims: of each result, if open."""
        found = self.builder.typer.apply(op)
        for v in found:
            if v is not None and dims is not None:
                self.builder.sized(v, dims)
        return list(found)

    def axis(
        self,
        op: Operation,
        default: int = 0,
        name: str = "axis",
    ) -> int:
        """An attribute that names an axis of operand 0, counted from the front."""
        call = self.call(op)
        return call.axis(call.attr(name, default), call.rank(0))


Results = list[Value | None]
# Returns the results, or None if there is no bounded form and the operator needs true shapes.
Rule = Callable[[BoundedContext, Operation], Results | None]
RULES: dict[str, Rule] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of some operators, by their qualified names."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return add
