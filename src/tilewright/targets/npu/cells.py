"""The steps of LSTM and GRU as Lift terms, for one sequence.

A layer arrives as one product for the input of all steps, and its recurrence (`LSTMSteps`,
`GRUSteps` of graph/ops/recurrent_steps.py). Every state is named, since several gates read it: the
term is made from the outside in, and what comes after a step is a function of its states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.graph.ops.recurrent_panels import DOMAIN
from tilewright.lift.patterns import SCOPE, At, Map, Split, Take, let
from tilewright.targets.npu import layers
from tilewright.targets.npu.layers import (
    Join,
    Term,
    plus,
    product,
    sigmoid,
    tanh,
    times,
)
from tilewright.targets.npu.terms import OperationTerm

Then = Callable[[Sequence[Term]], Term]
State = Term | None  # None: zeros
_CONCAT = SCOPE["Concat"]


@dataclass(frozen=True, slots=True)
class RecurrentCell:
    """A recurrence: the input's share of the gates, a row for each step."""

    layer: OperationTerm
    gates: Term
    units: int

    def given(self, t: int, i: int) -> Term:
        """The input's share of gate `i` at step `t`."""
        return self.gates | At(t) | Split(self.units) | At(i)

    def matrix(self, panels: int, i: int) -> Term:
        """The matrix of gate `i`, from the panels that input `panels` has."""
        rows = layers.transpose(self.layer.x(panels), (0, 2, 1)) | Join
        count = self.layer.call.shape(panels)
        whole = count[0] * count[2] // self.units * self.units
        return rows | Take(whole) | Split(self.units) | At(i)

    def gate(self, t: int, i: int, h: State, panels: int) -> Term:
        """The argument of its activation."""
        share = self.given(t, i)
        if h is None:
            return share
        return plus(share, product(self.matrix(panels, i), h))


def _cell(layer: OperationTerm, states: int, activations: Sequence[str]) -> list[State]:
    """The initial states. Raises Refused unless it is a plain cell on one sequence."""
    call = layer.call
    _, batch, _ = call.out(1).extents
    layer.require(batch == 1, f"it has a batch of {batch}")
    layer.require(not call.has(1), "it is given the lengths of sequences")
    names = [name for name, *_ in call.attr("activations")]
    layer.require(names == list(activations), f"its activations are {', '.join(names)}")
    layer.plain(clip=None, input_forget=0)
    found: list[State] = []
    for i in range(2, 2 + states):
        known = call.constant(i)
        zero = known is not None and not known.any()
        found.append(None if zero else layer.x(i) | At(0))
    return found


def _over_time(
    layer: OperationTerm,
    states: Sequence[State],
    step: Callable[[RecurrentCell, int, Sequence[State], Then], Term],
    then: Then,
) -> Term:
    """All steps; `then` gets the states of all of them as one array, and the last ones."""
    count, _, _, units = layer.call.out(0).extents
    order = list(range(count))
    if layer.call.attr("backwards"):
        order.reverse()

    def run(
        cell: RecurrentCell, n: int, states: Sequence[State], made: Mapping[int, Term]
    ) -> Term:
        if n < count:
            t = order[n]
            return step(
                cell, t, states, lambda now: run(cell, n + 1, now, {**made, t: now[0]})
            )
        if count > 1:
            every = _CONCAT(*(made[t] for t in range(count)))
        else:
            every = made[0]
        last = [layers.reshape(s, (units,), (1, 1, units)) for s in states]
        return then(
            [layers.reshape(every, (count * units,), (count, 1, 1, units)), *last]
        )

    return let(
        layer.x(0), lambda gates: run(RecurrentCell(layer, gates, units), 0, states, {})
    )


def lstm(layer: OperationTerm, then: Then) -> Term:
    """Gates in the order of ONNX: input, output, forget, cell."""
    states = _cell(layer, 2, ("sigmoid", "tanh", "tanh"))
    layer.require(not layer.call.has(4), "it has peepholes")

    def step(cell: RecurrentCell, t: int, states: Sequence[State], after: Then) -> Term:
        h, c = states
        i, o, f, g = (cell.gate(t, n, h, 5) for n in range(4))
        fresh = times(i | Map(sigmoid), g | Map(tanh))
        kept = [] if c is None else [times(f | Map(sigmoid), c)]

        def shown(now: Term) -> Term:
            return let(
                times(o | Map(sigmoid), now | Map(tanh)), lambda h1: after([h1, now])
            )

        return let(plus(*kept, fresh), lambda c1: shown(c1))

    return _over_time(layer, states, step, then)


def gru(layer: OperationTerm, then: Then) -> Term:
    """Gates in the order of ONNX: update, reset, hidden."""
    states = _cell(layer, 1, ("sigmoid", "tanh"))
    inside = layer.call.has(
        3
    )  # the reset gate is applied after the product, with its bias

    def hidden(cell: RecurrentCell, t: int, h: State) -> Term:
        share = cell.given(t, 2)
        reset = cell.gate(t, 1, h, 4) | Map(sigmoid)
        if inside:
            bias = layer.x(3)
            if h is None:
                part = bias
            else:
                part = plus(product(cell.matrix(4, 2), h), bias)
            return plus(share, times(reset, part)) | Map(tanh)
        if h is None:
            return share | Map(tanh)
        kept = let(times(reset, h), lambda part: product(cell.matrix(5, 0), part))
        return plus(share, kept) | Map(tanh)

    def step(cell: RecurrentCell, t: int, states: Sequence[State], after: Then) -> Term:
        (h,) = states

        def mixed(z: Term) -> Term:
            fresh = times(z | Map(lambda e: layers.sub(1.0, e)), hidden(cell, t, h))
            return let(
                fresh if h is None else plus(times(z, h), fresh), lambda h1: after([h1])
            )

        return let(cell.gate(t, 0, h, 4) | Map(sigmoid), lambda z: mixed(z))

    return _over_time(layer, states, step, then)


CELLS: Mapping[str, Callable[[OperationTerm, Then], Term]] = {
    f"{DOMAIN}::LSTMSteps": lstm,
    f"{DOMAIN}::GRUSteps": gru,
}
