"""The derivative of MaxPool: each element gathers the gradients of the windows that it wins.

    MaxPoolGradient(x, y, dy) -> dx        with the attributes of the MaxPool

The first of a window's equal maxima wins, or its first NaN, so that none is lost. One Computation
finds the position of each window's winner; the adjoint of another, which reads the winners, lets
each element look at the windows that cover it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtypes import int32
from tilewright.compute.adjoint import adjoint
from tilewright.compute.build import cast, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Eq, Expr, Or, Select, const
from tilewright.expr.nodes import call as apply
from tilewright.graph.nodes import Value
from tilewright.graph.ops.adjoint import derived
from tilewright.graph.ops.derivative import Backward
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpCall, OpDef, register
from tilewright.graph.ops.traits import SPATIAL
from tilewright.graph.ops.windows import windows

Buffers = Sequence[Buffer]
GRADIENT, DOMAIN = "MaxPoolGradient", "tilewright"


def max_pool_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value]:
    """The rule of MaxPool; if it returns indices, they name the winners."""
    if call.wants(1):
        return derived(f, call.operation, [g], [0])
    attributes = dict(call.operation.attributes)
    return [f.op(GRADIENT, x[0], y, g, domain=DOMAIN, version=1, **attributes)]


def _gathered(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x, y, flow = inputs
    shape = windows(call, call.spatial(0), call.attr("kernel_shape") or ())
    rank = len(shape.kernel)
    none = const(math.prod(shape.kernel), int32)
    winner = Buffer(f"{call.name}_winner", y.shape, int32)
    won = Buffer(f"{call.name}_won", y.shape, x.dtype)

    def tap(k: Sequence[Any]) -> Expr:
        found: Expr = k[0]
        for extent, at in zip(shape.kernel[1:], k[1:], strict=True):
            found = found * extent + at
        return cast(found, int32)

    def first(*i: Any) -> Expr:
        lead = i[:2]
        o = i[2 : 2 + rank]
        k = i[2 + rank :]
        place = shape.place(o, k)
        element = x[(*lead, *place)]
        greatest = Or(Eq(element, y[(*lead, *o)]), apply("isnan", element))
        found = Select(greatest, tap(k), none)
        inside = shape.inside(place)
        return found if inside is None else Select(inside, found, none)

    def element_won(*i: Any) -> Expr:
        lead = i[:2]
        o = i[2 : 2 + rank]
        k = i[2 + rank :]
        element = shape.read(x, lead, shape.place(o, k), 0)
        wins = Eq(winner[(*lead, *o)], tap(k))
        return Select(wins, element, const(0, x.dtype))

    winners = reduce_(winner.name, winner, shape.kernel, "min", first)
    read = reduce_(won.name, won, shape.kernel, "add", element_won)
    steps = adjoint([read], {won: flow}, {x: outputs[0]}, [won])
    found = [s for s in steps if isinstance(s, Computation)]
    assert len(found) == len(steps), "every window position is a sum of multiples"
    return [winners, *found]


register(
    OpDef(
        GRADIENT,
        same_type,
        domain=DOMAIN,
        compute=_gathered,
        traits=SPATIAL,
    )
)
