"""Derivatives of one value with respect to others, in reverse, in terms of operators.

The definition of each operator (`OpDef.gradient`) gives what flows to each of its inputs from what
flows to its output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.base.errors import CompileError, ModelError, UnsupportedError
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.derivative import filled, summed_to
from tilewright.graph.ops.errors import definition_of_node, place
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import (
    Gradient,
    OpCall,
    definition_of,
    has_trait,
    registered,
)
from tilewright.graph.ops.traits import MIXES_TYPES, POINTWISE


def gradients(
    operations: Sequence[Operation],
    y: Value,
    xs: Sequence[Value],
    f: Fragment,
) -> list[Value]:
    """d sum(y) / dx for each of `xs`, added to `f`; 0 where y does not depend on it.

    operations: in order, all that y is computed by. Raises UnsupportedError for an operator
    without a rule between xs and y, and for shapes that are not known.
    """
    depends = set(xs)
    for op in operations:
        if any(v in depends for v in op.reads):
            depends.update(op.writes)
    flows = {y: filled(f, y, 1)}
    for op in reversed(operations):
        if not any(v in flows and v in depends for v in op.writes):
            continue
        inputs = [v for v in op.inputs if v is not None]
        flow = flows[op.writes[0]]
        rule = _rule(op)
        known = len(f.operations)
        try:
            with definition_of_node(op, "its gradient fails", CompileError):
                found = rule(f, OpCall(op, f.known), inputs, op.writes[0], flow)
        except ModelError as error:  # of an operator that the rule adds
            raise error.at(f"gradient of {place(op)}") from error.__cause__
        _check_operands(op, f.operations[known:])
        _check_types(op, inputs, found)
        for v, part in zip(inputs, found, strict=False):
            if v in depends:
                part = summed_to(f, part, v)
                flows[v] = f.op("Add", flows[v], part) if v in flows else part
    return [flows[x] if x in flows else filled(f, x, 0) for x in xs]


def _check_operands(op: Operation, added: Sequence[Operation]) -> None:
    """Raise ModelError unless the floats that each operator of a rule combines are of one type.

    Operators that mix types may combine others.
    """
    for part in added:
        if not has_trait(part, POINTWISE) or has_trait(part, MIXES_TYPES):
            continue
        operands = [v.dtype for v in part.inputs if v is not None]
        types = dict.fromkeys(str(d) for d in operands if d is not None and d.is_float)
        if len(types) > 1:
            raise ModelError(
                f"its operands are {', '.join(types)}, not of one type",
                where=f"gradient of {place(op)}: {place(part)}",
                hint="give constants a type: f.constant(0, x.dtype)",
            )


def _check_types(
    op: Operation, inputs: Sequence[Value], found: Sequence[Value]
) -> None:
    """Raise CompileError unless what flows to each input has that one's element type."""
    for v, part in zip(inputs, found, strict=False):
        if part.dtype != v.dtype:
            raise CompileError(
                f"its gradient is {part.dtype}, its input {v.name!r} {v.dtype}",
                where=place(op),
                hint="give constants a type: f.constant(0, x.dtype)",
            )


def derivatives(
    operations: Sequence[Operation],
    y: Value,
    places: Mapping[Value, Value],
    count: int,
    f: Fragment,
) -> list[Value]:
    """d sum(y) / dx for the first `count` keys of `places`, where each key has its value there.

    Adds to `f`; raises UnsupportedError as `gradients` does.
    """
    moved = {old: new for old, new in places.items() if old is not new}
    env = dict(moved)
    path = []
    for op in operations:
        if any(v in places for v in op.writes):
            continue
        if any(v in env for v in op.reads):
            env |= _again(f, op, env)
            path.append(f.operations[-1])
        else:
            path.append(op)
    xs = list(places.values())[:count]
    return gradients(path, env.get(y, y), xs, f)


def _again(
    f: Fragment,
    op: Operation,
    env: Mapping[Value, Value],
) -> dict[Value, Value]:
    """`op` on other inputs; gives the new result for each of its results."""
    inputs = [None if v is None else env.get(v, v) for v in op.inputs]
    how: dict[str, Any] = {
        "version": op.version,
        "domain": op.domain,
        "count": len(op.outputs),
    }
    results = f.ops(op.op_type, *inputs, **how, **op.attributes)
    return {v: r for v, r in zip(op.outputs, results, strict=True) if v is not None}


def _rule(op: Operation) -> Gradient:
    definition = definition_of(op)
    if definition is None or definition.gradient is None:
        known = {d.qualified for d in registered() if d.gradient is not None}
        raise UnsupportedError(
            f"there is no rule for the derivative of {op.qualified}",
            where=f"node {op.label!r}",
            hint=f"known are {', '.join(sorted(known))}",
        )
    return definition.gradient
