"""Backward operators of ATen, by the graph's derivatives.

PyTorch has a backward operator for most forward operators. Its rule needs no separate formula: the
forward operator is imported again on the saved tensors and differentiated like any graph. Operators
that the derivative does not read are dropped when the graph is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tilewright.base.names import fresh
from tilewright.frontends.torch.aten.rules import AtenCall, rule_of
from tilewright.graph.gradient import backward
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.derivative import filled
from tilewright.graph.ops.fragment import Fragment


def pulled_back(
    c: AtenCall,
    forward: Any,
    arguments: Mapping[str, Any],
    flow: str,
    wanted: Sequence[str],
    described: Mapping[str, Any] | None = None,
) -> list[Value]:
    """The gradients of the `wanted` arguments of `forward`, an operator with a rule.

    An argument that is the same tensor as another one has its own gradient.

    arguments: of `forward`, without those that have default values. flow: the argument of `c` with
    the gradient of the first result, which has the result's shape and type. described: PyTorch's
    description of arguments that `c` does not have.

    Raises UnsupportedError if a step has no derivative or a shape is unknown.
    """
    given = {**c.given}
    for name, held in (described or {}).items():
        given[name] = SimpleNamespace(meta={"val": held})
    # Constants would be folded at once, leaving nothing to differentiate.
    real = {n: arguments[n] for n in wanted}
    unknown = {
        n: replace(x, name=fresh(c.build.names, x.name)) for n, x in real.items()
    }
    arguments = {**arguments, **unknown}
    typer = c.build.typer
    start = len(typer.operations)
    trains, c.build.trains = c.build.trains, True
    try:
        y = _applied(c, forward, arguments, given, flow)
    finally:
        c.build.trains = trains
    steps = typer.operations[start:]
    del typer.operations[start:]
    prefix = fresh(c.build.names, f"{c.build.prefix}/gradient")
    f = Fragment(prefix, typer.known)
    found = backward(f, steps, {y: c.tensor(flow)}, list(unknown.values()))
    results = [found[u] if u in found else filled(f, u, 0) for u in unknown.values()]
    back = {u: real[n] for n, u in unknown.items()}
    pieces = [_on(back, op) for op in (*steps, *f.operations)]
    new = (
        typer.add(
            pieces,
            f.constants,
        )
        | back
    )
    return [
        new.get(
            v,
            v,
        )
        for v in results
    ]


def _on(real: Mapping[Value, Value], op: Operation) -> Operation:
    """The operation on the tensors that were treated as unknown."""
    inputs = tuple(
        None
        if v is None
        else real.get(
            v,
            v,
        )
        for v in op.inputs
    )
    return replace(op, inputs=inputs)


def _applied(
    c: AtenCall,
    forward: Any,
    arguments: Mapping[str, Any],
    given: Mapping[str, Any],
    flow: str,
) -> Value:
    """The first result of the forward operator."""
    apply = rule_of(forward)
    assert apply is not None, forward
    names = [a.name for a in forward._schema.arguments]
    defaults = {a.name: a.default_value for a in forward._schema.arguments}
    assert set(arguments) <= set(names), (forward, arguments)
    meta = {**c.node.meta, "val": c.of(flow)}
    node = SimpleNamespace(
        meta=meta,
        users={},
        name=c.node.name,
        target=forward,
    )
    call = AtenCall(
        c.build,
        node,
        forward,
        {**defaults, **arguments},
        given,
    )
    found = apply(call)
    if isinstance(found, Value):
        return found
    first = found[0] if found else None
    assert first is not None, forward
    return first
