"""Branches and loops of PyTorch, whose subprograms become subgraphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.base.dtypes import bool_, int64
from tilewright.base.names import fresh
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Graph, Value

_HIGHER = "torch.ops.higher_order"


@rule(f"{_HIGHER}.cond")
def _cond(c: AtenCall) -> list[Value]:
    chosen, first, second, operands = (c[str(n)] for n in range(4))
    then_branch = c.build.body((), lambda: c.run(first, operands))
    else_branch = c.build.body((), lambda: c.run(second, operands))
    condition = c.value(chosen, bool_)
    count = len(then_branch.outputs)
    how: dict[str, Any] = {"then_branch": then_branch, "else_branch": else_branch}
    return c.build.ops("If", condition, count=count, **how)


@rule(f"{_HIGHER}.while_loop")
def _while(c: AtenCall) -> list[Value]:
    """A Loop without a trip count; its body ends with the condition of the next iteration."""
    condition, program, carried, others = (c[str(n)] for n in range(4))
    state = [c.value(v) for v in carried]

    def going(values: Sequence[Value]) -> Value:
        (found,) = c.run(condition, [*values, *others])
        return c.reshape(c.cast(found, bool_), [])

    number = body_input(c, Value("number", int64, ()))
    before = body_input(c, Value("going", bool_, ()))
    inputs = [body_input(c, v) for v in state]

    def iteration() -> list[Value]:
        after = c.run(program, [*inputs, *others])
        return [going(after), *after]

    body = c.build.body([number, before, *inputs], iteration)
    start = going(state)
    return c.build.ops("Loop", None, start, *state, count=len(state), body=body)


@rule(f"{_HIGHER}.scan")
def _scan(c: AtenCall) -> list[Value]:
    program, start, rows, others = (c[str(n)] for n in range(4))
    return _scanned(c, program, start, rows, others)


@rule(f"{_HIGHER}.map_impl")
def _map(c: AtenCall) -> list[Value]:
    program, rows, others = (c[str(n)] for n in range(3))
    return _scanned(c, program, [], rows, others)


def _scanned(
    c: AtenCall,
    program: object,
    start: Sequence[object],
    rows: Sequence[Value],
    others: Sequence[object],
) -> list[Value]:
    """The subprogram on each row of the tensors, with a state that it passes on."""
    state = [c.value(v) for v in start]
    inputs = [body_input(c, v) for v in state]
    for v in rows:
        assert v.shape is not None
        row = replace(v, shape=v.shape[1:])
        inputs.append(body_input(c, row))
    body: Graph = c.build.body(inputs, lambda: c.run(program, [*inputs, *others]))
    operands = [*state, *rows]
    count = len(body.outputs)
    scanned = len(rows)
    return c.build.ops(
        "Scan", *operands, count=count, body=body, num_scan_inputs=scanned
    )


def body_input(c: AtenCall, like: Value) -> Value:
    """A subgraph's input of that type."""
    name = fresh(c.build.names, f"{c.build.prefix}/{like.name}")
    return Value(name, like.dtype, like.shape)
