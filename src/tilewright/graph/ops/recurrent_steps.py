"""The recurrences of LSTM, GRU and RNN in one direction, as Kernels.

    LSTMSteps(gates, lengths?, h, c, peepholes?, panels) -> Y, Y_h, Y_c
    GRUSteps(gates, lengths?, h, inner_bias?, panels, candidate_panels?) -> Y, Y_h
    RNNSteps(gates, lengths?, h, (left out), panels) -> Y, Y_h

gates: float[steps * batch, gates * units], the input's share with the biases; h, c: float[batch,
units]; panels: `recurrent`; Y: float[steps, 1, batch, units]. The state lives in Y_h (and Y_c).
Steps at or after a sequence's length leave its state unchanged and output 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tilewright.base import dtypes
from tilewright.compute.build import cast
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, Max, Min, Select, call, const
from tilewright.graph.ops.recurrent_flows import steps_gradient
from tilewright.graph.ops.recurrent_panels import DOMAIN
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import Kernel, Stmt, Store, Update, block
from tilewright.loops.sorting import allocated

Buffers = Sequence[Buffer]


def _relu(x: Expr) -> Expr:
    return Max(x, const(0, x.dtype))


def _softplus(x: Expr) -> Expr:
    return _relu(x) + call("log1p", call("exp", -call("abs", x)))


class _Activation(NamedTuple):
    """function: of (x, alpha, beta). alpha, beta: defaults, None if it takes none."""

    function: Callable[[Expr, float, float], Expr]
    alpha: float | None = None
    beta: float | None = None


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    below_one = Min(const(1, x.dtype), x * alpha + beta)
    return Max(const(0, x.dtype), below_one)


_ACTIVATIONS = {
    "relu": _Activation(lambda x, a, b: _relu(x)),
    "tanh": _Activation(lambda x, a, b: call("tanh", x)),
    "sigmoid": _Activation(lambda x, a, b: call("sigmoid", x)),
    "affine": _Activation(lambda x, a, b: x * a + b, 1.0, 0.0),
    "leakyrelu": _Activation(lambda x, a, b: Select(x < 0, x * a, x), 0.01),
    "thresholdedrelu": _Activation(
        lambda x, a, b: Select(x > a, x, const(0, x.dtype)),
        alpha=1.0,
    ),
    "scaledtanh": _Activation(lambda x, a, b: a * call("tanh", x * b), 1.0, 1.0),
    "hardsigmoid": _Activation(_hard_sigmoid, 0.2, 0.5),
    "elu": _Activation(
        lambda x, a, b: Select(x < 0, call("expm1", x) * a, x),
        alpha=1.0,
    ),
    "softsign": _Activation(lambda x, a, b: x / (1.0 + call("abs", x))),
    "softplus": _Activation(lambda x, a, b: _softplus(x)),
}

_DEFAULT = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
}


def activations(op: OpCall, directions: int) -> list[list[tuple[str, float, float]]]:
    """The activations per direction as (name, alpha, beta). Raises ModelError for an unknown one.

    activation_alpha and activation_beta hold values, in order, only for activations that take one.
    """
    default = _DEFAULT[op.operation.qualified]
    each = len(default)
    count = each * directions
    given = op.attr("activations") or default * directions
    names = [name.lower() for name in given]
    if len(names) != count or any(name not in _ACTIVATIONS for name in names):
        raise op.error(f"activations {names} are not {count} known ones")
    alphas = list(op.attr("activation_alpha") or ())
    betas = list(op.attr("activation_beta") or ())
    found = []
    for name in names:
        activation = _ACTIVATIONS[name]
        alpha = _next_or_default(alphas, activation.alpha)
        beta = _next_or_default(betas, activation.beta)
        found.append((name, alpha, beta))
    return [found[first : first + each] for first in range(0, count, each)]


def _next_or_default(given: list[float], default: float | None) -> float:
    """The next of the given numbers, for an activation that takes one; else the default."""
    if default is None:
        return 0.0
    return float(given.pop(0) if given else default)


class RecurrentSteps:
    """The common part of the three recurrences: the loops over steps, sequences and units."""

    def __init__(
        self,
        op: OpCall,
        inputs: Buffers,
        outputs: Buffers,
    ) -> None:
        self.nests = LoopNests()
        self.op = op
        self.gates = inputs[0]
        self.lengths = inputs[1]
        self.start = inputs[2]
        self.out = outputs[0]
        self.state = outputs[1]
        self.ragged = op.has(1)
        _, self.batch, self.units = self.state.shape
        self.steps = self.out.shape[0]
        self.dtype = self.gates.dtype
        self.zero = const(0)

    def function(self, n: int, x: Expr) -> Expr:
        """Activation `n` of the direction, on clipped `x`."""
        clip = self.op.attr("clip")
        if clip:
            x = Max(
                Min(x, const(clip, x.dtype)),
                const(-clip, x.dtype),
            )
        return self.plain(n, x)

    def plain(self, n: int, x: Expr) -> Expr:
        """Activation `n` of the direction."""
        name, alpha, beta = self.op.attr("activations")[n]
        return _ACTIVATIONS[name].function(x, alpha, beta)

    def h(self, n: Expr, j: Expr) -> Expr:
        """The state."""
        return self.state[self.zero, n, j]

    def gate(
        self,
        t: Expr,
        n: Expr,
        at: Expr,
    ) -> Expr:
        """The input's share in row `at` of the gates."""
        return self.gates[t * self.batch + n, at]

    def valid(self, t: Expr, n: Expr) -> Expr:
        """Whether step `t` belongs to sequence `n`."""
        if not self.ragged:
            return const(True, dtypes.bool_)
        return t < cast(self.lengths[n], INDEX)

    def begin(self, state: Buffer, start: Buffer) -> Stmt:
        return self.nests.copy(state, lambda _, n, j: start[n, j])

    def over_time(self, body: Callable[[Expr], Stmt], undone: bool = False) -> Stmt:
        """Every step in the order of the recurrence. undone: from the last to the first."""
        if bool(self.op.attr("backwards")) == undone:
            return self.nests.loop(self.steps, body)
        return self.nests.loop(self.steps, lambda t: body((self.steps - 1) - t))

    def units_of(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        return self.nests.over((self.batch, self.units), body, vector=True)

    def put(
        self,
        t: Expr,
        n: Expr,
        j: Expr,
        h: Expr,
    ) -> Stmt:
        """The new state, into Y and then Y_h, which `h` may read."""
        result = state = h
        if self.ragged:
            valid = self.valid(t, n)
            result = Select(valid, h, const(0, self.dtype))
            state = Select(valid, h, self.h(n, j))
        return block(
            Store(self.out, (t, self.zero, n, j), result),
            Store(self.state, (self.zero, n, j), state),
        )

    def product(
        self,
        out: Buffer,
        panels: Buffer,
        left: Callable[[Expr, Expr], Expr],
        row: Callable[[Expr], Expr] = lambda n: n,
    ) -> Stmt:
        """out[row(n), r] = sum over k of left(n, k) * panels[r // tile, k, r % tile].

        The panels may be divided among threads; the schedule chooses rows and vectors of a tile.
        """
        count, inner, tile = panels.shape
        add = reducer("add", self.dtype)

        def element(p: Expr, n: Expr, c: Expr) -> Stmt:
            place = (row(n), p * tile + c)
            start = Store(out, place, const(0, self.dtype))

            def step(k: Expr) -> Stmt:
                term = left(n, k) * panels[p, k, c]
                return Update((out,), (place,), (term,), add)

            return block(start, self.nests.loop(inner, step))

        extents = (count, self.batch, tile)
        products = math.prod(extents) * inner
        return self.nests.product(extents, products, element)

    def scratch(self, name: str, panels: Buffer) -> Buffer:
        """A buffer for the product of every sequence's state with the panels."""
        count, _, tile = panels.shape
        return Buffer(name, (self.batch, count * tile), self.dtype)

    def product_and_update(
        self,
        product: Buffer,
        panels: Buffer,
        update: Callable[[Expr, Expr, Expr], Stmt],
    ) -> Callable[[Expr], Stmt]:
        """A step: the product of the state with the panels, then `update(t, n, j)` everywhere."""

        def step(t: Expr) -> Stmt:
            return block(
                self.product(product, panels, self.h),
                self.units_of(lambda n, j: update(t, n, j)),
            )

        return step


# The input of a gate, by its number; the weight of a peephole by its number, if present.
Gate = Callable[[int], Expr]
Peephole = Callable[[int], Expr | None]


def _peeped(x: Expr, weight: Expr | None, cell: Expr) -> Expr:
    return x if weight is None else x + weight * cell


def lstm_cell(s: RecurrentSteps, gate: Gate, peephole: Peephole, old: Expr) -> Expr:
    """The new cell of an LSTM."""
    enter = s.function(0, _peeped(gate(0), peephole(0), old))
    if s.op.attr("input_forget"):
        forget = 1.0 - enter
    else:
        forget = s.function(0, _peeped(gate(2), peephole(2), old))
    return forget * old + enter * s.function(1, gate(3))


def lstm_output(s: RecurrentSteps, gate: Gate, peephole: Peephole, cell: Expr) -> Expr:
    """The new state of an LSTM from its new cell."""
    output = s.function(0, _peeped(gate(1), peephole(1), cell))
    return output * s.plain(2, cell)


def gru_output(s: RecurrentSteps, update: Expr, candidate: Expr, old: Expr) -> Expr:
    """The new state of a GRU from the inputs of its update gate and its candidate."""
    keep = s.function(0, update)
    return (1.0 - keep) * s.function(1, candidate) + keep * old


def _lstm(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    s = RecurrentSteps(op, inputs, outputs)
    first_cell, peepholes, panels = inputs[3:6]
    cells = outputs[2]
    units = s.units
    product = s.scratch("product", panels)

    def update(t: Expr, n: Expr, j: Expr) -> Stmt:
        def gate(k: int) -> Expr:
            row = j + k * units
            return s.gate(t, n, row) + product[n, row]

        def peephole(k: int) -> Expr | None:
            return peepholes[j + k * units] if op.has(4) else None

        old = cells[0, n, j]
        cell = lstm_cell(s, gate, peephole, old)
        if not s.ragged:
            kept = cell
        else:
            kept = Select(s.valid(t, n), cell, old)
        h = lstm_output(s, gate, peephole, cells[0, n, j])
        store_cell = Store(cells, (s.zero, n, j), kept)
        return block(store_cell, s.put(t, n, j, h))

    step = s.product_and_update(product, panels, update)
    start = s.begin(cells, first_cell)
    return [_kernel(s, "lstm_steps", inputs, outputs, step, [product], start)]


def _gru(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    s = RecurrentSteps(op, inputs, outputs)
    product = s.scratch("product", inputs[4])
    if op.has(3):
        scratch = [product]
        step = _gru_step_with_one_product(s, inputs, product)
    else:
        second = s.scratch("candidate", inputs[5])
        reset = Buffer("reset", (s.batch, s.units), s.dtype)
        scratch = [reset, second, product]
        step = _gru_step_with_two_products(s, inputs, product, second, reset)
    return [_kernel(s, "gru_steps", inputs, outputs, step, scratch)]


def _gru_step_with_one_product(
    s: RecurrentSteps,
    inputs: Buffers,
    product: Buffer,
) -> Callable[[Expr], Stmt]:
    """The reset gate acts on the state's product."""
    inner, panels = inputs[3:5]

    def update(t: Expr, n: Expr, j: Expr) -> Stmt:
        inside = product[n, j + 2 * s.units] + inner[j]
        reset = _reset(s, t, n, j, product)
        return _mixed(s, t, n, j, product, reset * inside)

    return s.product_and_update(product, panels, update)


def _gru_step_with_two_products(
    s: RecurrentSteps,
    inputs: Buffers,
    product: Buffer,
    second: Buffer,
    reset: Buffer,
) -> Callable[[Expr], Stmt]:
    """The reset gate acts on the state, before the candidate's product."""
    panels, candidate_panels = inputs[4:6]

    def hold(t: Expr, n: Expr, j: Expr) -> Stmt:
        state = _reset(s, t, n, j, product) * s.h(n, j)
        return Store(reset, (n, j), state)

    def step(t: Expr) -> Stmt:
        def mix(n: Expr, j: Expr) -> Stmt:
            return _mixed(s, t, n, j, product, second[n, j])

        return block(
            s.product(product, panels, s.h),
            s.units_of(lambda n, j: hold(t, n, j)),
            s.product(second, candidate_panels, lambda n, k: reset[n, k]),
            s.units_of(mix),
        )

    return step


def _reset(s: RecurrentSteps, t: Expr, n: Expr, j: Expr, product: Buffer) -> Expr:
    """The reset gate of a GRU."""
    row = j + s.units
    return s.function(0, s.gate(t, n, row) + product[n, row])


def _mixed(
    s: RecurrentSteps,
    t: Expr,
    n: Expr,
    j: Expr,
    product: Buffer,
    recurrent: Expr,
) -> Stmt:
    """The new state of a GRU from the candidate's recurrent part."""
    update = s.gate(t, n, j) + product[n, j]
    candidate = s.gate(t, n, j + 2 * s.units) + recurrent
    return s.put(t, n, j, gru_output(s, update, candidate, s.h(n, j)))


def _rnn(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    s = RecurrentSteps(op, inputs, outputs)
    panels = inputs[4]
    product = s.scratch("product", panels)

    def update(t: Expr, n: Expr, j: Expr) -> Stmt:
        gate = s.gate(t, n, j) + product[n, j]
        h = s.function(0, gate)
        return s.put(t, n, j, h)

    step = s.product_and_update(product, panels, update)
    return [_kernel(s, "rnn_steps", inputs, outputs, step, [product])]


def _kernel(
    s: RecurrentSteps,
    name: str,
    inputs: Buffers,
    outputs: Buffers,
    step: Callable[[Expr], Stmt],
    scratch: Sequence[Buffer],
    *more: Stmt,
) -> Kernel:
    """All steps, from the first state on. more: what else is initialized."""
    start = s.begin(s.state, s.start)
    body = block(start, *more, s.over_time(step))
    return kernel(name, inputs, outputs, allocated(scratch, body), s.nests.notes)


def _types(op: OpCall) -> Sequence[Type]:
    state = op.shape(2)
    batch, units = state
    steps = op.shape(0)[0] // batch
    every: Type = (op.dtype(0), (steps, 1, batch, units))
    last: Type = (op.dtype(0), (1, *state))
    states = 2 if op.operation.qualified == f"{DOMAIN}::LSTMSteps" else 1
    return [every, *[last] * states]


def _flops(op: OpCall) -> int:
    return 2 * op.size(0) * op.shape(2)[1]


for _kind, _compute in (("LSTM", _lstm), ("GRU", _gru), ("RNN", _rnn)):
    register(
        OpDef(
            f"{_kind}Steps",
            _types,
            domain=DOMAIN,
            compute=_compute,
            flops=_flops,
            gradient=steps_gradient(_kind),
        )
    )
