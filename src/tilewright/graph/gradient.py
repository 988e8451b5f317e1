"""Derivatives of one value with respect to others, in reverse, in terms of operators.

The definition of each operator (`OpDef.gradient`) gives what flows to each of its inputs from what
flows to its outputs. One without it is differentiated through the operators that it is decomposed
into, else by the adjoint of its Computations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from tilewright.base.errors import CompileError, ModelError, UnsupportedError
from tilewright.graph.nodes import DataDependent, Operation, Value
from tilewright.graph.ops.adjoint import derived
from tilewright.graph.ops.derivative import Backward, filled, summed_to
from tilewright.graph.ops.errors import definition_of_node, place
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import (
    Gradient,
    OpCall,
    definition_of,
    has_trait,
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
    between xs and y that has no derivative, and for shapes that are not known.
    """
    flows = backward(f, operations, {y: filled(f, y, 1)}, xs)
    return [flows[x] if x in flows else filled(f, x, 0) for x in xs]


def backward(
    f: Fragment,
    operations: Sequence[Operation],
    flows: Mapping[Value, Value],
    xs: Sequence[Value],
) -> dict[Value, Value]:
    """What flows to each value that depends on `xs`, from what flows to some; added to `f`.

    Only floats depend on anything: nothing flows through integers. Raises as `gradients`.
    """
    depends = depending(operations, xs)
    found = dict(flows)
    for op in reversed(operations):
        arrived = {v: found[v] for v in op.writes if v in found and v in depends}
        if not arrived:
            continue
        wanted = [i for i, v in enumerate(op.inputs) if v in depends]
        if not wanted:  # what depends is around a subgraph, which reads it
            _refuse(op)
        try:
            parts = _parts(f, op, arrived, wanted)
        except DataDependent as error:
            raise UnsupportedError(
                f"its derivative needs the shape of {str(error)!r}, which is not known",
                where=place(op),
                hint="give the model's inputs shapes",
            ) from None
        for i, part in parts.items():
            v = op.inputs[i]
            assert v is not None
            part = summed_to(f, part, v)
            found[v] = f.op("Add", found[v], part) if v in found else part
    return found


def depending(
    operations: Sequence[Operation],
    xs: Iterable[Value],
) -> set[Value]:
    """The floats among `xs` and what is computed from them."""
    depends = {x for x in xs if _is_float(x)}
    for op in operations:
        if any(v in depends for v in op.reads):
            depends.update(v for v in op.writes if _is_float(v))
    return depends


def _is_float(v: Value) -> bool:
    return v.dtype is None or v.dtype.is_float


def _parts(
    f: Fragment,
    op: Operation,
    flows: Mapping[Value, Value],
    wanted: Sequence[int],
) -> Mapping[int, Value]:
    """What flows to the wanted inputs of one operation: by its own rule, or a derived one.

    That of its parts gives what flows to a value that is several inputs once, to the first of them.
    """
    definition = definition_of(op)
    if definition is None:
        _refuse(op)
    if definition.gradient is not None:
        return _by_rule(f, op, definition.gradient, flows, wanted)
    if definition.decompose is not None:
        start = len(f.operations)
        with definition_of_node(op):
            results = definition.decompose(OpCall(op, f.known), f)
        if results is not None:
            inner = f.operations[start:]
            pairs = zip(op.outputs, results, strict=False)
            there = {
                new: flows[old]
                for old, new in pairs
                if old is not None and old in flows
            }
            first = {op.inputs[i]: i for i in reversed(wanted)}
            xs = [v for v in first if v is not None]
            found = backward(f, inner, there, xs)
            return {first[v]: found[v] if v in found else filled(f, v, 0) for v in xs}
    if definition.compute is None:
        _refuse(op)
    arrived = [None if v is None else flows.get(v) for v in op.outputs]
    try:
        return dict(zip(wanted, derived(f, op, arrived, wanted), strict=True))
    except UnsupportedError as error:
        raise error.at(place(op)) from None


def _by_rule(
    f: Fragment,
    op: Operation,
    rule: Gradient,
    flows: Mapping[Value, Value],
    wanted: Sequence[int],
) -> Mapping[int, Value]:
    y = op.writes[0]
    call = Backward(op, f.known, flows, {0})
    known = len(f.operations)
    try:
        with definition_of_node(op, "its gradient fails", CompileError):
            flow = flows[y] if y in flows else filled(f, y, 0)
            found = list(rule(f, call, op.inputs, y, flow))  # type: ignore[arg-type]
    except ModelError as error:  # of an operator that the rule adds
        raise error.at(f"gradient of {place(op)}") from error.__cause__
    for n, v in enumerate(op.outputs):
        if v is not None and v in flows and n not in call.asked:
            _refuse(op, f"with respect to what flows to output {n}, {v.name!r}")
    _check_operands(op, f.operations[known:])
    parts = {i: found[i] if i < len(found) else None for i in wanted}
    for i, part in parts.items():
        v = op.inputs[i]
        assert v is not None
        if part is None:
            _refuse(op, f"by input {i}, {v.name!r}")
        _check_type(op, v, part)
    return parts  # type: ignore[return-value]


def _check_operands(
    op: Operation,
    added: Sequence[Operation],
) -> None:
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


def _check_type(
    op: Operation,
    v: Value,
    part: Value,
) -> None:
    """Raise CompileError unless what flows to an input has that one's element type."""
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


def _refuse(
    op: Operation,
    of: str = "",
) -> NoReturn:
    raise UnsupportedError(
        " ".join(
            filter(None, ("there is no rule for the derivative of", op.qualified, of))
        ),
        where=f"node {op.label!r}",
        hint="register its OpDef with a gradient=, or compute= by Computations",
    )
