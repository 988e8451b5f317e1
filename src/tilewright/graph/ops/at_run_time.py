"""A constant that is not folded: `tilewright::AtRunTime`, the identity.

What is computed from it is then computed in each call. Code for a range of sizes needs that for an
array that no constant of all sizes contains.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import LATE, POINTWISE

DOMAIN = "tilewright"
AT_RUN_TIME = "AtRunTime"


def _types(op: OpCall) -> Sequence[Type]:
    return [(op.dtype(0), op.shape(0))]


def _compute(
    op: OpCall, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
) -> list[Computation]:
    return [map_(op.name, outputs[0], lambda *i: inputs[0][i])]


register(
    OpDef(
        AT_RUN_TIME,
        _types,
        domain=DOMAIN,
        compute=_compute,
        reference=lambda op, x: [x],
        traits=LATE | POINTWISE,
    )
)
