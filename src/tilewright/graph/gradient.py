"""Reverse-mode derivatives of one value with respect to others, as operators.

An operator's definition (`OpDef.gradient`) maps the gradients of its outputs to those of its
inputs. An operator without a gradient is differentiated through its decomposition, else by the
adjoint of its Computations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from tilewright.base.errors import CompileError, ModelError, UnsupportedError
from tilewright.graph.nodes import DataDependent, Graph, Operation, Value
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
from tilewright.graph.unroll import MAX_TRIPS, copied


def gradients(
    operations: Sequence[Operation],
    y: Value,
    xs: Sequence[Value],
    f: Fragment,
) -> list[Value]:
    """d sum(y) / dx for each of `xs`, added to `f`; 0 if y does not depend on it.

    operations: everything that computes y, in order. Raises UnsupportedError for an operator
    between xs and y that has no derivative, and for unknown shapes.
    """
    flows = backward(f, operations, {y: filled(f, y, 1)}, xs)
    return [flows[x] if x in flows else filled(f, x, 0) for x in xs]


def backward(
    f: Fragment,
    operations: Sequence[Operation],
    flows: Mapping[Value, Value],
    xs: Sequence[Value],
) -> dict[Value, Value]:
    """The gradient of each value that depends on `xs`, from those of some values; added to `f`.

    Only floats have gradients; none flow through integers. Raises as `gradients`.
    """
    depends = depending(operations, xs)
    found = dict(flows)
    for op in reversed(operations):
        arrived = {v: found[v] for v in op.writes if v in found and v in depends}
        if not arrived:
            continue
        try:
            parts = _flowing(f, op, arrived, depends)
        except DataDependent as error:
            raise UnsupportedError(
                f"its derivative needs the shape of {str(error)!r}, which is not known",
                where=place(op),
                hint="give the model's inputs shapes",
            ) from None
        for v, part in parts:
            part = summed_to(f, part, v)
            found[v] = f.op("Add", found[v], part) if v in found else part
    return found


def _flowing(
    f: Fragment,
    op: Operation,
    flows: Mapping[Value, Value],
    depends: Collection[Value],
) -> list[tuple[Value, Value]]:
    """The gradients of the values that an operation reads, one for each operand."""
    if op.qualified == "If":
        return _through_if(f, op, flows, [v for v in op.reads if v in depends])
    if op.subgraphs:
        refuse_loop(op)
    wanted = {i: v for i, v in enumerate(op.inputs) if v in depends}
    parts = _parts(f, op, flows, list(wanted))
    return [(v, parts[i]) for i, v in wanted.items() if v is not None and i in parts]


def refuse_loop(op: Operation) -> NoReturn:
    """Raise UnsupportedError for a Loop or Scan that was not unrolled."""
    raise UnsupportedError(
        f"{op.qualified} has no derivative: its number of iterations is unknown or too large",
        where=place(op),
        hint=f"at most {MAX_TRIPS} iterations, whose number is a constant, have one",
    )


def _through_if(
    f: Fragment,
    op: Operation,
    flows: Mapping[Value, Value],
    xs: Sequence[Value],
) -> list[tuple[Value, Value]]:
    """An If like `op` whose branches recompute the originals and return the gradients of `xs`."""
    name = f"{f.prefix}/{op.op_type}_{len(f.operations)}"
    branches = {
        key: _back_through(f, copied(branch, f"{name}/{key}"), op, flows, xs)
        for key, branch in op.attributes.items()
        if isinstance(branch, Graph)
    }
    results = tuple(Value(f"{name}.{n}", x.dtype, x.shape) for n, x in enumerate(xs))
    f.operations.append(replace(op, outputs=results, attributes=branches, name=name))
    return list(zip(xs, results, strict=True))


def _back_through(
    f: Fragment,
    branch: Graph,
    op: Operation,
    flows: Mapping[Value, Value],
    xs: Sequence[Value],
) -> Graph:
    """The gradients of `xs` through one branch of `op`, from the gradients of its results."""
    inner = Fragment(branch.name, {**f.known, **branch.constants})
    ends = [
        Operation(
            "Identity", (v,), (Value(f"{branch.name}/result.{n}", v.dtype, v.shape),)
        )
        for n, v in enumerate(branch.outputs)
    ]
    arrived = {
        end.writes[0]: flows[y]
        for end, y in zip(ends, op.outputs, strict=True)
        if y is not None and y in flows
    }
    operations = [*branch.operations, *ends]
    found = backward(inner, operations, arrived, xs)
    outputs = [
        inner.op("Identity", found[x]) if x in found else filled(inner, x, 0)
        for x in xs
    ]
    return Graph(
        branch.name,
        (),
        tuple(outputs),
        tuple(needed_for([*operations, *inner.operations], outputs)),
        {**branch.constants, **inner.constants},
    )


def needed_for(
    operations: Sequence[Operation],
    outputs: Sequence[Value],
) -> list[Operation]:
    """The operations that the outputs need, in order."""
    needed = set(outputs)
    kept = []
    for op in reversed(operations):
        if not needed.isdisjoint(op.writes):
            needed.update(op.reads)
            kept.append(op)
    return kept[::-1]


def depending(
    operations: Sequence[Operation],
    xs: Iterable[Value],
) -> set[Value]:
    """The floats among `xs` and those computed from them."""
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
    """The gradients of one operation's wanted inputs: by its own rule or a derived one.

    A derived rule returns the total gradient of a value that is several inputs once, for the first
    of them.
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
            raise UnsupportedError(
                f"the rule of {op.qualified} ignores the gradient of output {n}, {v.name!r}",
                where=f"node {op.label!r}",
                hint=f"the rule reads it by call.flow({n})",
            )
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
    """Raise ModelError unless the floats that each operator of a rule combines have the same type.

    Operators that mix types may combine others.
    """
    for part in added:
        if not has_trait(part, POINTWISE) or has_trait(part, MIXES_TYPES):
            continue
        operands = [v.dtype for v in part.inputs if v is not None]
        types = dict.fromkeys(str(d) for d in operands if d is not None and d.is_float)
        if len(types) > 1:
            raise ModelError(
                f"its operands are {', '.join(types)}, not of the same type",
                where=f"gradient of {place(op)}: {place(part)}",
                hint="give constants a type: f.constant(0, x.dtype)",
            )


def _check_type(
    op: Operation,
    v: Value,
    part: Value,
) -> None:
    """Raise CompileError unless an input's gradient has the input's element type."""
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
    """d sum(y) / dx for the first `count` keys of `places`, which maps each key to its value.

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
    """Copy `op` with other inputs; returns the new result for each of its results."""
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
