"""Loop and If whose bodies are closed graphs of bounded tensors, which a Plan runs natively.

Operators of the domain `tilewright`, with which `graph/bounded` replaces ONNX's.

    Loop(trips, going, *states, *taken) -> count, *states, *stacked      states, bound, body
    If(condition, *taken) -> *results                                    then_branch, else_branch

`body(number, *states, *taken) -> going, *states, *items` runs while `going` holds and `number` is
below `trips`, which is at most `bound`. Item n of each kind is stored in row n of a buffer of
`bound` rows; rows past the count are 0. A branch takes `taken` as inputs. Bodies capture nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import int64
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.ops.open_extents import DOMAIN
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

LOOP = f"{DOMAIN}::Loop"
IF = f"{DOMAIN}::If"


def _type_of(v: Value) -> Type:
    assert v.dtype is not None
    return v.dtype, v.extents


def _loop_types(call: OpCall) -> Sequence[Type]:
    body: Graph = call.attr("body")
    count = call.attr("states")
    bound = call.attr("bound")
    states = list(map(_type_of, body.outputs[1 : 1 + count]))
    stacked: list[Type] = []
    for v in body.outputs[1 + count :]:
        dtype, _ = _type_of(v)
        stacked.append((dtype, (bound, *v.extents)))
    return [(int64, ()), *states, *stacked]


def _if_types(call: OpCall) -> Sequence[Type]:
    branch: Graph = call.attr("then_branch")
    return list(map(_type_of, branch.outputs))


register(OpDef("Loop", _loop_types, domain=DOMAIN))
register(OpDef("If", _if_types, domain=DOMAIN))
