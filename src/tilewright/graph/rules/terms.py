"""The right side of a rule, built as operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Apply,
    Attribute,
    Computed,
    Number,
    On,
    Operator,
    Pattern,
    Tensor,
)


class NotApplicable(Exception):
    """A value needed by a replacement cannot be computed from this match."""


@dataclass(frozen=True, eq=False)
class FormulaBuilder:
    """Adds the operators of a formula to `f`."""

    m: Match
    f: Fragment

    def value(self, term: Any) -> Value | None:
        """The value of a part; None for an omitted operand."""
        match term:
            case Tensor():
                return self.m.get(term)
            case Number():
                return self.f.constant(term.value, self.m.result.dtype)
            case Computed():
                return self.f.constant(self._computed(term))
            case On(pattern=pattern, operands=operands):
                return again(
                    self.f,
                    self.m.operation(pattern),
                    self._all(operands),
                )
            case Apply(operator=Operator() as operator):
                return self._applied(operator, term)
        raise TypeError(f"{term} cannot stand in a replacement")

    def _applied(self, operator: Operator, term: Apply) -> Value:
        attributes = {k: self._attribute(v) for k, v in term.attributes.items()}
        given = {k: v for k, v in attributes.items() if v is not None}
        operands = self._all(term.operands)
        return self.f.apply(operator, operands, given)

    def _all(self, terms: Sequence[Any]) -> list[Value | None]:
        """The operands; a number takes the type of the first other operand."""
        found = [None if isinstance(t, Number) else self.value(t) for t in terms]
        like = next((v for v in found if v is not None), self.m.result)
        return [
            self.f.constant(t.value, like.dtype) if isinstance(t, Number) else v
            for t, v in zip(terms, found, strict=True)
        ]

    def _attribute(self, given: Any) -> Any:
        if isinstance(given, Computed):
            return self._computed(given)
        if isinstance(given, Attribute):
            return self.m.attribute(given)
        return given

    def _computed(self, term: Computed) -> Any:
        found = term.function(self.m)
        if found is None:
            raise NotApplicable(str(term))
        return found


def again(
    f: Fragment,
    op: Operation,
    operands: Sequence[Value | None],
) -> Value:
    """`op` with its first operands replaced; the others stay."""
    given = (*operands, *op.inputs[len(operands) :])
    result = f.apply(op, given, op.attributes)
    f.operations[-1] = replace(f.operations[-1], name=op.name)
    return result


def built(
    replacement: Any,
    m: Match,
    f: Fragment,
) -> Sequence[Value] | None:
    """The right side of a rule as values; None if it cannot be applied here."""
    try:
        if isinstance(replacement, Pattern | On):
            found = FormulaBuilder(m, f).value(replacement)
        else:
            found = replacement(m, f)
    except NotApplicable:
        return None
    results = (found,) if isinstance(found, Value) else found
    if results is None or (
        isinstance(results, list | tuple) and all(isinstance(v, Value) for v in results)
    ):
        return results
    raise TypeError(
        f"its replacement gives {found!r}, not a value that m[...] or f.op(...) gives"
    )
