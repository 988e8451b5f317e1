"""Running sums and products along an axis: CumSum, CumProd.

Floats narrower than float32 accumulate in float32 and are rounded once per element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compute.build import reduce_
from tilewright.compute.nodes import PS, Computation
from tilewright.expr.nodes import Buffer, Expr, Select, const
from tilewright.graph.ops.broadcasting import wide, without
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.product_gradient import running_product_gradient
from tilewright.graph.ops.registry import Compute, OpCall, OpDef, register

Buffers = Sequence[Buffer]


def _running(combine: str, identity: int) -> Compute:
    def compute(
        op: OpCall,
        inputs: Buffers,
        outputs: Buffers,
    ) -> list[Computation]:
        x = inputs[0]
        out = outputs[0]
        rank = len(x.shape)
        axis = op.axis(op.int_scalar(1), rank)
        extent = x.shape[axis]
        exclusive = op.attr("exclusive", 0)
        reverse = op.attr("reverse", 0)

        def place(i: Sequence[Any], step: Any) -> tuple[Any, ...]:
            at = (extent - 1) - step if reverse else step
            return (*i[:axis], at, *i[axis : rank - 1])

        def value(*i: Any) -> Expr:
            step = i[-1]
            if not exclusive:
                return wide(x[place(i, step)])
            before = wide(x[place(i, step - 1)])
            return Select(step > 0, before, const(identity, before.dtype))

        return [
            reduce_(
                op.name,
                out,
                (extent,),
                combine,
                value,
                extents=without(x.shape, axis),
                index=lambda *i: place(i, i[-1]),
                combine=PS,
            )
        ]

    return compute


for _name, _combine, _identity, _since, _gradient in (
    ("CumSum", "add", 0, 11, None),
    ("CumProd", "mul", 1, 26, running_product_gradient),
):
    register(
        OpDef(
            _name,
            same_type,
            since=_since,
            compute=_running(_combine, _identity),
            flops=lambda op: op.size(0),
            by_value=(1,),
            gradient=_gradient,
        )
    )
