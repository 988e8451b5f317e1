"""LSTM, GRU and RNN by decomposition: one matrix product computes all that is not recurrent.

The products of the whole sequence with W are a Gemm; the recurrence itself is an internal operator
per direction (`recurrent_steps`), which reads the recurrent weights in panels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import wide_dtype
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.recurrent_panels import DOMAIN, panels
from tilewright.graph.ops.recurrent_steps import activations
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True, slots=True)
class RecurrentSizes:
    """Steps, batch, input width and state units; which directions run backwards."""

    steps: int
    batch: int
    width: int
    units: int
    backwards: tuple[bool, ...]


def _sizes(call: OpCall) -> RecurrentSizes:
    x = call.shape(0)
    r = call.shape(2)
    direction = call.attr("direction", "forward")
    if len(x) != 3 or len(r) != 3 or direction not in DIRECTIONS:
        raise call.error(f"input {list(x)}, weights {list(r)}, direction {direction!r}")
    steps, batch = x[:2]
    if call.attr("layout", 0):
        steps, batch = batch, steps
    found = RecurrentSizes(
        steps,
        batch,
        x[2],
        r[2],
        DIRECTIONS[direction],
    )
    gates = GATES[call.operation.qualified]
    expected = (len(found.backwards), gates * found.units, x[2])
    if call.shape(1) != expected or r != (*expected[:2], found.units):
        raise call.error(
            f"W is {list(call.shape(1))} and R is {list(r)}; W should be {list(expected)}"
        )
    return found


def _types(call: OpCall) -> Sequence[Type]:
    s = _sizes(call)
    dtype = call.dtype(0)
    n = len(s.backwards)
    if call.attr("layout", 0):
        every = (s.batch, s.steps, n, s.units)
        last = (s.batch, n, s.units)
    else:
        every = (s.steps, n, s.batch, s.units)
        last = (n, s.batch, s.units)
    states = 2 if call.operation.qualified == "LSTM" else 1
    return [(dtype, every), *[(dtype, last)] * states]


class _Layer:
    """An LSTM, GRU or RNN being decomposed."""

    def __init__(self, call: OpCall, g: Fragment) -> None:
        self.call = call
        self.g = g
        self.kind = call.operation.qualified
        self.sizes = _sizes(call)
        self.dtype: DType = wide_dtype(call.dtype(0))
        self.gates = GATES[self.kind]

    def const(self, array: Any) -> Value:
        return self.g.constant(np.asarray(array, self.dtype.numpy))

    def to(self, v: Value, dtype: DType) -> Value:
        if v.dtype is dtype:
            return v
        return self.g.cast(v, dtype)

    def part(
        self,
        i: int,
        d: int,
        axis: int = 0,
    ) -> Value:
        """Input `i` of direction `d`, in the accumulator dtype."""
        index = self.g.constant(np.array(d, np.int64))
        found = self.g.op("Gather", self.call.value(i), index, axis=axis)
        return self.to(found, self.dtype)

    def slice(
        self,
        v: Value,
        start: int,
        end: int,
    ) -> Value:
        return self.g.op(
            "Slice",
            v,
            self.g.ints(start),
            self.g.ints(end),
            self.g.ints(0),
        )

    def results(self) -> list[Value]:
        """Y and the last states."""
        x = self.to(self.call.value(0), self.dtype)
        batch_first = bool(self.call.attr("layout", 0))
        if batch_first:
            x = self.g.transpose(x, 1, 0, 2)
        s = self.sizes
        x = self.g.reshape(x, s.steps * s.batch, -1)
        parts = [self.direction(x, d) for d in range(len(s.backwards))]
        found = []
        for n, same in enumerate(zip(*parts, strict=True)):
            every_step = n == 0
            y = self.joined(same, axis=1 if every_step else 0)
            if batch_first:
                perm = [2, 0, 1, 3] if every_step else [1, 0, 2]
                y = self.g.transpose(y, *perm)
            found.append(self.to(y, self.call.dtype(0)))
        return found

    def joined(self, parts: Sequence[Value], axis: int) -> Value:
        """The results of all directions as one tensor."""
        if len(parts) == 1:
            return parts[0]
        return self.g.op("Concat", *parts, axis=axis)

    def direction(self, x: Value, d: int) -> list[Value]:
        """The results of direction `d`. x: every step of every sequence, one per row."""
        s = self.sizes
        bias, inner = self.biases(d)
        gates = self.g.op("Gemm", x, self.part(1, d), bias, transB=1)
        state_axis = 1 if self.call.attr("layout", 0) else 0
        states = []
        for i in (5, 6) if self.kind == "LSTM" else (5,):
            if self.call.has(i):
                states.append(self.part(i, d, state_axis))
            else:
                states.append(self.zeros(s.batch, s.units))
        lengths = self.call.value(4) if self.call.has(4) else None
        extra: list[Value | None] = [inner]
        if self.kind == "LSTM":
            extra = [self.part(7, d) if self.call.has(7) else None]
        each = activations(self.call, len(s.backwards))[d]
        return self.g.ops(
            f"{self.kind}Steps",
            gates,
            lengths,
            *states,
            *extra,
            *self.weights(self.part(2, d)),
            domain=DOMAIN,
            version=1,
            backwards=s.backwards[d],
            activations=each,
            clip=self.call.attr("clip"),
            input_forget=self.call.attr("input_forget", 0),
        )

    def zeros(self, *shape: int) -> Value:
        return self.const(np.zeros(shape))

    def biases(self, d: int) -> tuple[Value | None, Value | None]:
        """The bias of the input's product, and the one that a GRU adds inside its reset gate."""
        inside = self.kind == "GRU" and self.call.attr("linear_before_reset", 0)
        units = self.sizes.units
        rows = self.gates * self.sizes.units
        if not self.call.has(3):
            return None, self.zeros(units) if inside else None
        both = self.part(3, d)
        w = self.slice(both, 0, rows)
        r = self.slice(both, rows, 2 * rows)
        if not inside:
            return self.g.op("Add", w, r), None
        first_gates = self.slice(r, 0, 2 * units)
        outer = self.g.op("Concat", first_gates, self.zeros(units), axis=0)
        return self.g.op("Add", w, outer), self.slice(r, 2 * units, rows)

    def weights(self, r: Value) -> list[Value]:
        """The recurrent weights in panels; a GRU's candidate weights are separate if necessary."""
        units = self.sizes.units
        if self.kind != "GRU" or self.call.attr("linear_before_reset", 0):
            return [panels(self.g, r)]
        return [
            panels(self.g, self.slice(r, 0, 2 * units)),
            panels(self.g, self.slice(r, 2 * units, 3 * units)),
        ]


def _decompose(call: OpCall, g: Fragment) -> list[Value] | None:
    s = _sizes(call)
    if 0 in (s.steps, s.batch, s.units, s.width):
        return None
    return _Layer(call, g).results()


def _flops(call: OpCall) -> int:
    s = _sizes(call)
    rows = GATES[call.operation.qualified] * s.units * len(s.backwards)
    return 2 * s.steps * s.batch * rows * (s.units + s.width)


for _name in GATES:
    register(
        OpDef(
            _name,
            _types,
            since=7,
            decompose=_decompose,
            flops=_flops,
        )
    )
