"""The derivative rule of LSTM, GRU and RNN steps: a backward kernel, and products for R.

The gradient of R is one product over all steps: of the gradients of its products with the states
that it was multiplied by.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import Backward, extents, turned
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.recurrent_panels import (
    DOMAIN,
    INPUTS,
    STATES,
    from_panels,
    panels,
)
from tilewright.graph.ops.registry import Gradient


def steps_gradient(kind: str) -> Gradient:
    """The rule of `<kind>Steps`."""

    def rule(
        f: Fragment,
        call: Backward,
        x: Sequence[Value | None],
        y: Value,
        g: Value,
    ) -> Sequence[Value | None]:
        units = extents(call.value(2))[1]
        inputs = [*x, *[None] * (INPUTS[kind] - len(x))]
        gru = kind == "GRU"
        two = gru and inputs[5] is not None
        rows = 2 * units if two else extents(call.value(0))[1]
        back = [_turned(f, inputs[4 if gru else -1], rows)]
        if gru:
            back.append(_turned(f, inputs[5], units))
        states = STATES[kind]
        flows = [call.flow(i) for i in range(1 + states)]
        shares = kind != "RNN" and inputs[3 if gru else 4] is not None
        gates, *rest = f.ops(
            f"{kind}StepsGradient",
            *inputs,
            *back,
            *flows,
            domain=DOMAIN,
            version=1,
            count=3 + states + (2 if two else shares),
            **call.operation.attributes,
        )
        firsts = rest[:states]
        product, before, *own = rest[states:]
        weights = [_weights(f, product, before)]
        shared: Value | None = None
        if two:
            weights.append(_weights(f, own[0], own[1]))
        elif own:
            shared = f.op("ReduceSum", own[0], f.ints(0), keepdims=0)
        return [gates, None, *firsts, shared, *weights]

    return rule


def _turned(f: Fragment, p: Value | None, rows: int) -> Value | None:
    """The panels of R transposed, from the panels of R."""
    return None if p is None else panels(f, turned(f, from_panels(f, p, rows)))


def _weights(f: Fragment, product: Value, states: Value) -> Value:
    """The gradient of the panels of R."""
    return panels(f, f.op("MatMul", turned(f, product), states))
