"""Backpropagation through time for LSTM, GRU and RNN: Kernels next to those of `recurrent_steps`.

    LSTMStepsGradient(<inputs of LSTMSteps>, back_panels, dY?, dY_h?, dY_c?)
        -> gates, h, c, product, states, peepholes?
    GRUStepsGradient(<inputs of GRUSteps>, back_panels, back_candidate?, dY?, dY_h?)
        -> gates, h, product, states, inner_bias | candidate, resets
    RNNStepsGradient(<inputs of RNNSteps>, back_panels, dY?, dY_h?) -> gates, h, product, states

back_panels: the panels of R transposed. The results are the gradients of the gates, of the initial
states and of the products of the state with R, and the states before each step. Results without a
state's shape have a row per step and sequence, to be summed for operands that all steps share. The
kernel recomputes the steps forward, then goes through them backward with the derivatives of their
formulas (`expr/partials.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from tilewright.expr.nodes import And, Buffer, Expr, Load, Select, const
from tilewright.expr.partials import partials
from tilewright.graph.ops.recurrent_panels import DOMAIN, INPUTS, STATES
from tilewright.graph.ops.recurrent_steps import (
    Buffers,
    Gate,
    RecurrentSteps,
    gru_output,
    lstm_cell,
    lstm_output,
)
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.loops.nests import kernel
from tilewright.loops.nodes import Alloc, Kernel, Stmt, Store, block

# (the gradient of a value, the value)
Flows = Sequence[tuple[Expr, Expr]]
# (what a step loads, where its gradient goes)
Leaves = Sequence[tuple[Expr, Buffer, Expr]]


def flow_to(load: Expr, flows: Flows) -> Expr:
    """The gradient of one element that values load."""
    assert isinstance(load, Load)
    none = const(0.0, load.dtype)
    total: Expr = none
    for flow, value in flows:
        for conditions, slope in partials(value, load).items():
            term = flow * slope
            total += Select(reduce(And, conditions), term, none) if conditions else term
    return total


class _Undone:
    """The shared part of the three: buffers for the states and for their gradients."""

    def __init__(
        self, kind: str, op: OpCall, inputs: Buffers, outputs: Buffers
    ) -> None:
        start = inputs[2]
        self.batch, self.units = start.shape
        self.gates = inputs[0]
        self.dtype = self.gates.dtype
        shape = (self.gates.shape[0] // self.batch, 1, *start.shape)
        y = Buffer("y", shape, self.dtype)
        self.state = Buffer("state", (1, *start.shape), self.dtype)
        self.s = RecurrentSteps(op, inputs, (y, self.state))
        given = [*inputs, *[None] * 4][INPUTS[kind] + 1 :]
        self.back = inputs[INPUTS[kind]]
        self.back_candidate = given.pop(0) if kind == "GRU" else None
        self.dy = given[0]
        self.last = given[1 : 1 + STATES[kind]]
        self.d_gates, *rest = outputs
        self.flows = rest[: STATES[kind]]
        self.d_product, self.states, *self.rest = rest[STATES[kind] :]
        self.rooms: list[Buffer] = [self.state]
        self.returned = self.room("returned", start.shape)

    def room(self, name: str, shape: Sequence[int]) -> Buffer:
        """Allocate local memory of the kernel."""
        found = Buffer(name, tuple(shape), self.dtype)
        self.rooms.append(found)
        return found

    def rows(self, name: str, columns: int) -> Buffer:
        """Memory with a row per step and sequence."""
        return self.room(name, (self.gates.shape[0], columns))

    def of_panels(self, name: str, panels: Buffer) -> Buffer:
        """Memory for the product with panels in every step."""
        count, _, tile = panels.shape
        return self.rows(name, count * tile)

    def row(self, t: Expr) -> Callable[[Expr], Expr]:
        return lambda n: t * self.batch + n

    def kept(self, t: Expr, n: Expr, value: Expr, behind: Expr) -> Expr:
        """`value` during the steps of a sequence, `behind` after its end."""
        return Select(self.s.valid(t, n), value, behind) if self.s.ragged else value

    def remember(self, t: Expr, into: Buffer, state: Buffer) -> Stmt:
        """Save the state before step `t`."""
        row = self.row(t)
        return self.s.units_of(
            lambda n, j: Store(into, (row(n), j), state[self.s.zero, n, j])
        )

    def advance(self, t: Expr, n: Expr, j: Expr, state: Buffer, value: Expr) -> Stmt:
        place = (self.s.zero, n, j)
        return Store(state, place, self.kept(t, n, value, state[place]))

    def undo(
        self,
        t: Expr,
        n: Expr,
        flows: Flows,
        leaves: Leaves,
    ) -> list[Stmt]:
        """The gradient of each leaf, 0 after the end of the sequence."""
        none = const(0.0, self.dtype)
        return [
            Store(out, (self.row(t)(n), at), self.kept(t, n, flow_to(x, flows), none))
            for x, out, at in leaves
        ]

    def carry(
        self, t: Expr, n: Expr, j: Expr, old: Buffer, flows: Flows, flow: Buffer
    ) -> Stmt:
        """Pass on the old state's gradient that does not go through products."""
        value = flow_to(old[self.row(t)(n), j], flows)
        return Store(flow, (n, j), self.kept(t, n, value, flow[n, j]))

    def through(
        self,
        t: Expr,
        panels: Buffer,
        product: Buffer,
        then: Callable[[Expr, Expr, Expr], Stmt],
    ) -> Stmt:
        """Run `then(n, j, flow)` with the state's gradient through its product with R."""
        count, _, tile = panels.shape
        room = Buffer("through", (self.batch, count * tile), self.dtype)
        row = self.row(t)
        found = self.s.product(room, panels, lambda n, r: product[row(n), r])
        after = self.s.units_of(lambda n, j: then(n, j, room[n, j]))
        return Alloc(room, block(found, after))

    def add(self, n: Expr, j: Expr, flow: Expr) -> Stmt:
        """Add to the gradient of the state."""
        total = self.flows[0]
        return Store(total, (n, j), total[n, j] + flow)

    def arrive(self, t: Expr) -> list[Stmt]:
        """Add the gradient of a step's result to that of the state after it."""
        dy = self.dy
        if dy is None:
            return []
        none = const(0.0, self.dtype)
        return [
            self.s.units_of(
                lambda n, j: self.add(n, j, self.kept(t, n, dy[t, 0, n, j], none))
            )
        ]

    def kernel(
        self,
        name: str,
        inputs: Buffers,
        outputs: Buffers,
        start: Sequence[tuple[Buffer, Buffer]],
        again: Callable[[Expr], Stmt],
        undone: Callable[[Expr], Stmt],
    ) -> list[Kernel]:
        """All steps forward, then backward. start: each state and its initial value."""
        none = const(0.0, self.dtype)
        ends = [
            self.s.nests.copy(
                flow,
                lambda n, j, last=last: none if last is None else last[0, n, j],
            )
            for flow, last in zip(self.flows, self.last, strict=True)
        ]
        body = block(
            *(self.s.begin(state, first) for state, first in start),
            self.s.over_time(again),
            *ends,
            self.s.over_time(undone, undone=True),
        )
        for room in self.rooms:
            body = Alloc(room, body)
        return [kernel(name, inputs, outputs, body, self.s.nests.notes)]


def _gates(u: _Undone, t: Expr, n: Expr, j: Expr, product: Buffer) -> Gate:
    """The input of each gate: the sum of the input's share and the state's."""
    row = u.row(t)(n)

    def gate(k: int) -> Expr:
        at = j + k * u.units
        return u.gates[row, at] + product[row, at]

    return gate


def _leaves(
    u: _Undone, t: Expr, n: Expr, j: Expr, product: Buffer, gates: Sequence[int]
) -> Leaves:
    """Both shares of some gates."""
    row = u.row(t)(n)
    places = [j + k * u.units for k in gates]
    return [
        *((u.gates[row, at], u.d_gates, at) for at in places),
        *((product[row, at], u.d_product, at) for at in places),
    ]


def _lstm(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    u = _Undone("LSTM", op, inputs, outputs)
    first_cell, peepholes, panels = inputs[3:6]
    product = u.of_panels("product", panels)
    cells = u.rows("cells", u.units)
    cell = u.room("cell", u.state.shape)

    def values(t: Expr, n: Expr, j: Expr) -> tuple[Expr, Expr]:
        gate = _gates(u, t, n, j, product)

        def peephole(k: int) -> Expr | None:
            return peepholes[j + k * u.units] if op.has(4) else None

        new = lstm_cell(u.s, gate, peephole, cells[u.row(t)(n), j])
        return lstm_output(u.s, gate, peephole, new), new

    def step(t: Expr, n: Expr, j: Expr) -> Stmt:
        h, new = values(t, n, j)
        both = u.advance(t, n, j, u.state, h), u.advance(t, n, j, cell, new)
        return block(*both)

    def again(t: Expr) -> Stmt:
        return block(
            u.remember(t, u.states, u.state),
            u.remember(t, cells, cell),
            u.s.product(product, panels, u.s.h, u.row(t)),
            u.s.units_of(lambda n, j: step(t, n, j)),
        )

    def undone(t: Expr) -> Stmt:
        def body(n: Expr, j: Expr) -> Stmt:
            pairs = zip(u.flows, values(t, n, j), strict=True)
            flows = [(flow[n, j], value) for flow, value in pairs]
            leaves = list(_leaves(u, t, n, j, product, range(4)))
            for k in range(3) if op.has(4) else ():
                at = j + k * u.units
                leaves.append((peepholes[at], u.rest[0], at))
            return block(
                *u.undo(t, n, flows, leaves),
                u.carry(t, n, j, cells, flows, u.flows[1]),
                u.carry(t, n, j, u.states, flows, u.flows[0]),
            )

        return block(
            *u.arrive(t),
            u.s.units_of(body),
            u.through(t, u.back, u.d_product, u.add),
        )

    start = [(u.state, inputs[2]), (cell, first_cell)]
    return u.kernel("lstm_gradient", inputs, outputs, start, again, undone)


def _one_product(
    name: str,
    u: _Undone,
    inputs: Buffers,
    outputs: Buffers,
    gates: int,
    value: Callable[[Gate, Buffer, Expr, Expr, Expr], Expr],
    shared: Callable[[Expr], Leaves] = lambda j: (),
) -> list[Kernel]:
    """An RNN, or a GRU whose reset gate acts on the product. value(gate, product, row, j, old)."""
    panels = inputs[4]
    product = u.of_panels("product", panels)

    def new(t: Expr, n: Expr, j: Expr) -> Expr:
        row = u.row(t)(n)
        return value(_gates(u, t, n, j, product), product, row, j, u.states[row, j])

    def again(t: Expr) -> Stmt:
        return block(
            u.remember(t, u.states, u.state),
            u.s.product(product, panels, u.s.h, u.row(t)),
            u.s.units_of(lambda n, j: u.advance(t, n, j, u.state, new(t, n, j))),
        )

    def undone(t: Expr) -> Stmt:
        def body(n: Expr, j: Expr) -> Stmt:
            flows = [(u.flows[0][n, j], new(t, n, j))]
            leaves = [*_leaves(u, t, n, j, product, range(gates)), *shared(j)]
            return block(
                *u.undo(t, n, flows, leaves),
                u.carry(t, n, j, u.states, flows, u.flows[0]),
            )

        return block(
            *u.arrive(t),
            u.s.units_of(body),
            u.through(t, u.back, u.d_product, u.add),
        )

    return u.kernel(name, inputs, outputs, [(u.state, inputs[2])], again, undone)


def _rnn(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    u = _Undone("RNN", op, inputs, outputs)
    return _one_product(
        "rnn_gradient",
        u,
        inputs,
        outputs,
        1,
        lambda gate, product, row, j, old: u.s.function(0, gate(0)),
    )


def _gru(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    u = _Undone("GRU", op, inputs, outputs)
    if not op.has(3):
        return _gru_of_two_products(u, inputs, outputs)
    inner = inputs[3]

    def value(gate: Gate, product: Buffer, row: Expr, j: Expr, old: Expr) -> Expr:
        at = j + 2 * u.units
        inside = product[row, at] + inner[j]
        candidate = u.gates[row, at] + u.s.function(0, gate(1)) * inside
        return gru_output(u.s, gate(0), candidate, old)

    return _one_product(
        "gru_gradient",
        u,
        inputs,
        outputs,
        3,
        value,
        lambda j: [(inner[j], u.rest[0], j)],
    )


def _gru_of_two_products(u: _Undone, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    """The reset gate acts on the state, before the candidate's product."""
    panels, candidate_panels = inputs[4:6]
    product = u.of_panels("product", panels)
    second = u.of_panels("candidate", candidate_panels)
    d_candidate, resets = u.rest

    def value(t: Expr, n: Expr, j: Expr) -> Expr:
        row, at = u.row(t)(n), j + 2 * u.units
        candidate = u.gates[row, at] + second[row, j]
        update = _gates(u, t, n, j, product)(0)
        return gru_output(u.s, update, candidate, u.states[row, j])

    def reset(t: Expr, n: Expr, j: Expr) -> Expr:
        gate = u.s.function(0, _gates(u, t, n, j, product)(1))
        return gate * u.states[u.row(t)(n), j]

    def again(t: Expr) -> Stmt:
        row = u.row(t)
        return block(
            u.remember(t, u.states, u.state),
            u.s.product(product, panels, u.s.h, row),
            u.s.units_of(lambda n, j: Store(resets, (row(n), j), reset(t, n, j))),
            u.s.product(second, candidate_panels, lambda n, k: resets[row(n), k], row),
            u.s.units_of(lambda n, j: u.advance(t, n, j, u.state, value(t, n, j))),
        )

    def undone(t: Expr) -> Stmt:
        def body(n: Expr, j: Expr) -> Stmt:
            row, at = u.row(t)(n), j + 2 * u.units
            flows = [(u.flows[0][n, j], value(t, n, j))]
            leaves = [
                *_leaves(u, t, n, j, product, [0]),
                (u.gates[row, at], u.d_gates, at),
                (second[row, j], d_candidate, j),
            ]
            return block(
                *u.undo(t, n, flows, leaves),
                u.carry(t, n, j, u.states, flows, u.flows[0]),
            )

        def to_reset(n: Expr, j: Expr, flow: Expr) -> Stmt:
            flows = [(flow, reset(t, n, j))]
            none = const(0.0, u.dtype)
            old = flow_to(u.states[u.row(t)(n), j], flows)
            leaves = _leaves(u, t, n, j, product, [1])
            return block(
                *u.undo(t, n, flows, leaves), u.add(n, j, u.kept(t, n, old, none))
            )

        assert u.back_candidate is not None
        return block(
            *u.arrive(t),
            u.s.units_of(body),
            u.through(t, u.back_candidate, d_candidate, to_reset),
            u.through(t, u.back, u.d_product, u.add),
        )

    start = [(u.state, inputs[2])]
    return u.kernel("gru_gradient", inputs, outputs, start, again, undone)


def _types(op: OpCall) -> Sequence[Type]:
    kind = op.operation.op_type.removesuffix("StepsGradient")
    dtype = op.dtype(0)
    rows, columns = op.shape(0)
    state = op.shape(2)
    each = (rows, state[1])
    two = kind == "GRU" and not op.has(3)
    product = (rows, 2 * state[1]) if two else (rows, columns)
    shapes = [(rows, columns), *[state] * STATES[kind], product, each]
    if two:
        shapes += [each, each]
    elif kind == "GRU":
        shapes += [each]
    elif kind == "LSTM" and op.has(4):
        shapes += [(rows, 3 * state[1])]
    return [(dtype, shape) for shape in shapes]


def _flops(op: OpCall) -> int:
    return 4 * op.size(0) * op.shape(2)[1]


for _kind, _compute in (("LSTM", _lstm), ("GRU", _gru), ("RNN", _rnn)):
    register(
        OpDef(
            f"{_kind}StepsGradient",
            _types,
            domain=DOMAIN,
            compute=_compute,
            flops=_flops,
        )
    )
