"""The recurrences of LSTM, GRU and RNN in one direction, as Kernels.

    LSTMSteps(gates, lengths?, h, c, peepholes?, panels) -> Y, Y_h, Y_c
    GRUSteps(gates, lengths?, h, inner_bias?, panels, candidate_panels?) -> Y, Y_h
    RNNSteps(gates, lengths?, h, (left out), panels) -> Y, Y_h

gates: float[steps * batch, gates * units], the input's share with the biases; h, c: float[batch,
units]; panels: `recurrent`; Y: float[steps, 1, batch, units]. The state lives in Y_h (and Y_c).
A step at or after a sequence's length leaves its state alone and gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base import dtypes
from tilewright.compute.build import cast
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, Max, Min, Select, call, const
from tilewright.graph.ops.nests import Nests, kernel
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.loops.nodes import Alloc, Kernel, Stmt, Store, Update, block

Buffers = Sequence[Buffer]

DOMAIN = "tilewright"
LANES = 16  # rows of the recurrent weights are padded to a multiple
TILE = 64  # of them lie together in a panel

Activation = Callable[[Expr, float, float], Expr]


def _relu(x: Expr) -> Expr:
    return Max(x, const(0, x.dtype))


def _softplus(x: Expr) -> Expr:
    return _relu(x) + call("log1p", call("exp", -call("abs", x)))


# name -> function of (x, alpha, beta), default alpha, default beta (None: takes none)
_ACTIVATIONS: dict[str, tuple[Activation, float | None, float | None]] = {
    "relu": (lambda x, a, b: _relu(x), None, None),
    "tanh": (lambda x, a, b: call("tanh", x), None, None),
    "sigmoid": (lambda x, a, b: call("sigmoid", x), None, None),
    "affine": (lambda x, a, b: x * a + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: Select(x < 0, x * a, x), 0.01, None),
    "thresholdedrelu": (lambda x, a, b: Select(x > a, x, const(0, x.dtype)), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * call("tanh", x * b), 1.0, 1.0),
    "hardsigmoid": (
        lambda x, a, b: Max(const(0, x.dtype), Min(const(1, x.dtype), x * a + b)),
        0.2,
        0.5,
    ),
    "elu": (lambda x, a, b: Select(x < 0, call("expm1", x) * a, x), 1.0, None),
    "softsign": (lambda x, a, b: x / (1.0 + call("abs", x)), None, None),
    "softplus": (lambda x, a, b: _softplus(x), None, None),
}

_DEFAULT = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
}


def activations(op: OpCall, directions: int) -> list[list[tuple[str, float, float]]]:
    """Per direction the activations as (name, alpha, beta). Raises ModelError for an unknown one.

    activation_alpha and activation_beta hold values only for those that take one, in order.
    """
    default = _DEFAULT[op.operation.qualified]
    names = [n.lower() for n in op.attr("activations") or default * directions]
    if len(names) != len(default) * directions or not all(
        n in _ACTIVATIONS for n in names
    ):
        raise op.error(
            f"activations {names} are not {len(default) * directions} known ones"
        )
    alphas = list(op.attr("activation_alpha") or ())
    betas = list(op.attr("activation_beta") or ())
    found = []
    for name in names:
        _, alpha, beta = _ACTIVATIONS[name]
        a = alphas.pop(0) if alpha is not None and alphas else alpha
        b = betas.pop(0) if beta is not None and betas else beta
        found.append((name, float(a or 0.0), float(b or 0.0)))
    return [found[n : n + len(default)] for n in range(0, len(found), len(default))]


class _Steps:
    """What the three recurrences share: the loops over steps, sequences and units."""

    def __init__(self, op: OpCall, inputs: Buffers, outputs: Buffers) -> None:
        self.nests = Nests()
        self.op = op
        self.gates, self.lengths, self.start = inputs[0], inputs[1], inputs[2]
        self.out, self.state = outputs[0], outputs[1]
        self.ragged = op.has(1)
        _, self.batch, self.units = self.state.shape
        self.steps = self.out.shape[0]
        self.dtype = self.gates.dtype
        self.zero = const(0)

    def function(self, n: int, x: Expr) -> Expr:
        """Activation `n` of the direction, on clipped `x`."""
        clip = self.op.attr("clip")
        if clip:
            x = Max(Min(x, const(clip, x.dtype)), const(-clip, x.dtype))
        return self.plain(n, x)

    def plain(self, n: int, x: Expr) -> Expr:
        """Activation `n` of the direction."""
        name, alpha, beta = self.op.attr("activations")[n]
        return _ACTIVATIONS[name][0](x, alpha, beta)

    def h(self, n: Expr, j: Expr) -> Expr:
        """The state."""
        return self.state[self.zero, n, j]

    def gate(self, t: Expr, n: Expr, at: Expr) -> Expr:
        """The input's share in row `at` of the gates."""
        return self.gates[t * self.batch + n, at]

    def valid(self, t: Expr, n: Expr) -> Expr:
        """Whether step `t` belongs to sequence `n`."""
        if not self.ragged:
            return const(True, dtypes.bool_)
        return t < cast(self.lengths[n], INDEX)

    def begin(self, state: Buffer, start: Buffer) -> Stmt:
        return self.nests.copy(state, lambda _, n, j: start[n, j])

    def over_time(self, body: Callable[[Expr], Stmt]) -> Stmt:
        backwards = self.op.attr("backwards")
        return self.nests.loop(
            self.steps, lambda t: body((self.steps - 1) - t if backwards else t)
        )

    def units_of(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        return self.nests.over((self.batch, self.units), body, vector=True)

    def put(self, t: Expr, n: Expr, j: Expr, h: Expr) -> Stmt:
        """The new state, into Y and then Y_h, which `h` may read."""
        zero = const(0, self.dtype)
        valid = self.valid(t, n)
        plain = not self.ragged
        return block(
            Store(
                self.out, (t, self.zero, n, j), h if plain else Select(valid, h, zero)
            ),
            Store(
                self.state,
                (self.zero, n, j),
                h if plain else Select(valid, h, self.h(n, j)),
            ),
        )

    def product(
        self, out: Buffer, panels: Buffer, left: Callable[[Expr, Expr], Expr]
    ) -> Stmt:
        """out[n, r] = sum over k of left(n, k) * panels[r // tile, k, r % tile].

        Threads may share the panels; rows and vectors of a tile are the schedule's to choose.
        """
        count, inner, tile = panels.shape
        add = reducer("add", self.dtype)

        def element(p: Expr, n: Expr, c: Expr) -> Stmt:
            place = (n, p * tile + c)
            start = Store(out, place, const(0, self.dtype))

            def step(k: Expr) -> Stmt:
                return Update((out,), (place,), (left(n, k) * panels[p, k, c],), add)

            return block(start, self.nests.loop(inner, step))

        extents = (count, self.batch, tile)
        return self.nests.product(extents, math.prod(extents) * inner, element)

    def scratch(self, name: str, panels: Buffer) -> Buffer:
        """Room for the product of every sequence's state with the panels."""
        return Buffer(name, (self.batch, panels.shape[0] * panels.shape[2]), self.dtype)


def _lstm(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    s = _Steps(op, inputs, outputs)
    first_cell, peepholes, panels = inputs[3:6]
    cells, units = outputs[2], s.units
    product = s.scratch("product", panels)

    def update(t: Expr, n: Expr, j: Expr) -> Stmt:
        def gate(k: int, cell: Expr | None = None, peephole: int = 0) -> Expr:
            x = s.gate(t, n, j + k * units) + product[n, j + k * units]
            if op.has(4) and cell is not None:
                x = x + peepholes[j + peephole * units] * cell
            return x

        old = cells[0, n, j]
        enter = s.function(0, gate(0, old, 0))
        forget = (
            1.0 - enter if op.attr("input_forget") else s.function(0, gate(2, old, 2))
        )
        cell = forget * old + enter * s.function(1, gate(3))
        kept = cell if not s.ragged else Select(s.valid(t, n), cell, old)
        new = cells[0, n, j]
        h = s.function(0, gate(1, new, 1)) * s.plain(2, new)
        return block(Store(cells, (s.zero, n, j), kept), s.put(t, n, j, h))

    def step(t: Expr) -> Stmt:
        return block(
            s.product(product, panels, s.h), s.units_of(lambda n, j: update(t, n, j))
        )

    body = block(
        s.begin(s.state, s.start), s.begin(cells, first_cell), s.over_time(step)
    )
    return [kernel("lstm_steps", inputs, outputs, Alloc(product, body), s.nests.notes)]


def _gru(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    s = _Steps(op, inputs, outputs)
    inner, panels = inputs[3:5]
    units = s.units
    product = s.scratch("product", panels)
    if op.has(3):  # the reset gate acts on the product: one product per step

        def update(t: Expr, n: Expr, j: Expr) -> Stmt:
            inside = product[n, j + 2 * units] + inner[j]
            return _mixed(s, t, n, j, product, _gate(s, t, n, j, 1, product) * inside)

        def step(t: Expr) -> Stmt:
            return block(
                s.product(product, panels, s.h),
                s.units_of(lambda n, j: update(t, n, j)),
            )

        body = block(s.begin(s.state, s.start), s.over_time(step))
        return [
            kernel("gru_steps", inputs, outputs, Alloc(product, body), s.nests.notes)
        ]
    candidate = inputs[5]
    second = s.scratch("candidate", candidate)
    reset = Buffer("reset", (s.batch, units), s.dtype)

    def hold(t: Expr, n: Expr, j: Expr) -> Stmt:
        return Store(reset, (n, j), _gate(s, t, n, j, 1, product) * s.h(n, j))

    def two_products(t: Expr) -> Stmt:
        return block(
            s.product(product, panels, s.h),
            s.units_of(lambda n, j: hold(t, n, j)),
            s.product(second, candidate, lambda n, k: reset[n, k]),
            s.units_of(lambda n, j: _mixed(s, t, n, j, product, second[n, j])),
        )

    body = block(s.begin(s.state, s.start), s.over_time(two_products))
    body = Alloc(product, Alloc(second, Alloc(reset, body)))
    return [kernel("gru_steps", inputs, outputs, body, s.nests.notes)]


def _gate(s: _Steps, t: Expr, n: Expr, j: Expr, k: int, product: Buffer) -> Expr:
    """Gate `k` of a GRU: 0 updates, 1 resets."""
    at = j + k * s.units
    return s.function(0, s.gate(t, n, at) + product[n, at])


def _mixed(
    s: _Steps, t: Expr, n: Expr, j: Expr, product: Buffer, recurrent: Expr
) -> Stmt:
    """The new state of a GRU from the candidate's recurrent part."""
    keep = _gate(s, t, n, j, 0, product)
    candidate = s.function(1, s.gate(t, n, j + 2 * s.units) + recurrent)
    return s.put(t, n, j, (1.0 - keep) * candidate + keep * s.h(n, j))


def _rnn(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    s = _Steps(op, inputs, outputs)
    panels = inputs[4]
    product = s.scratch("product", panels)

    def update(t: Expr, n: Expr, j: Expr) -> Stmt:
        return s.put(t, n, j, s.function(0, s.gate(t, n, j) + product[n, j]))

    def step(t: Expr) -> Stmt:
        return block(
            s.product(product, panels, s.h), s.units_of(lambda n, j: update(t, n, j))
        )

    body = block(s.begin(s.state, s.start), s.over_time(step))
    return [kernel("rnn_steps", inputs, outputs, Alloc(product, body), s.nests.notes)]


def _types(op: OpCall) -> Sequence[Type]:
    batch = op.shape(2)[0]
    steps = op.shape(0)[0] // batch
    last: tuple[Any, ...] = (1, *op.shape(2))
    states = 2 if op.operation.qualified == f"{DOMAIN}::LSTMSteps" else 1
    return [(op.dtype(0), (steps, 1, batch, last[-1])), *[(op.dtype(0), last)] * states]


def _flops(op: OpCall) -> int:
    return 2 * op.size(0) * op.shape(2)[1]


for _name, _compute in (("LSTMSteps", _lstm), ("GRUSteps", _gru), ("RNNSteps", _rnn)):
    register(OpDef(_name, _types, domain=DOMAIN, compute=_compute, flops=_flops))
