"""The meaning of a plan: its steps in order, on arrays that mark uninitialized elements.

The reference that passes are checked against: slow, and independent of the generated code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import ExecutionError, InputError
from tilewright.compute import interp as computations
from tilewright.expr.nodes import Buffer
from tilewright.graph import interp as operators
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Operation, Value
from tilewright.loops import interp as loops
from tilewright.plan.nodes import (
    Branch,
    DeviceCall,
    DeviceCopy,
    HostFallback,
    Loop,
    OpenExtent,
    Plan,
    Step,
)
from tilewright.plan.open_extents import Resized, input_sizes, source_text

Array = np.ndarray[Any, Any]
UNWRITTEN: Final = 12345.0  # contents of unwritten memory


@dataclass(eq=False, slots=True)
class PlanState:
    """The state of a running plan: an array per buffer, and other results of host fallbacks."""

    plan: Plan
    memory: dict[Buffer, Array]
    fallback: FallbackProvider | None = None
    objects: dict[Value, Any] = field(default_factory=dict)

    def step(
        self,
        step: Step,
    ) -> None:
        """Run one step.

        Raises ExecutionError for an index out of range, or an operator that cannot be run.
        """
        if isinstance(step, HostFallback):
            self._host(step.operation)
        elif isinstance(step, DeviceCall):
            self._call(step)
        elif isinstance(step, DeviceCopy):
            self.memory[step.target][...] = self.memory[step.source]
        elif isinstance(step, Branch):
            taken = bool(self.memory[step.condition].reshape(-1)[0])
            body = step.then if taken else step.other
            given = [self.memory[b] for b in step.taken]
            made = self._inside(body, given)
            for b, a in zip(step.results, made, strict=True):
                self.memory[b][...] = a
        elif isinstance(step, Loop):
            self._loop(step)
        elif step.kernel is None:
            computations.run(step.computations, self.memory)
        else:
            loops.run(step.kernel, self.memory)

    def _inside(self, body: Plan, given: Sequence[Array]) -> list[Array]:
        """The results of a nested plan, given one array per input."""
        names = (v.name for v in body.graph.inputs)
        found = evaluate(
            body,
            dict(zip(names, given, strict=True)),
            self.fallback,
        )
        return [np.array(a) for a in found]

    def _loop(self, loop: Loop) -> None:
        """A loop, whose iterations only see the states and the captured values."""
        taken = [self.memory[b] for b in loop.taken]
        states = [np.array(self.memory[b]) for b in loop.initial]
        trips, going = (
            int(self.memory[b].reshape(-1)[0]) for b in (loop.trips, loop.going)
        )
        for b in loop.stacked:
            self.memory[b][...] = 0
        n = 0
        while going and n < trips:
            if loop.bound is not None and n == loop.bound:
                raise ExecutionError(
                    f"there are more than {loop.bound} iterations",
                    code="TW-INDEX",
                    where=loop.name,
                )
            given = [np.array(n, np.int64), *states, *taken]
            again, *made = self._inside(loop.body, given)
            going = int(again.reshape(-1)[0])
            states = made[: len(states)]
            for b, item in zip(loop.stacked, made[len(states) :], strict=True):
                self.memory[b][n] = item
            n += 1
        self.memory[loop.count][...] = n
        for b, a in zip(loop.states, states, strict=True):
            self.memory[b][...] = a

    def value(
        self,
        v: Value,
    ) -> Any:
        """The current value of a graph value in its own shape. Raises InputError if it has none."""
        b = self.plan.buffers.get(v)
        if b is not None:
            found = self.memory[b]
            return found.reshape(v.extents) if v.static else found
        for known in (self.objects, self.plan.graph.constants):
            if v in known:
                return known[v]
        raise InputError(
            f"{v!r} has no value yet", where=f"plan {self.plan.graph.name}"
        )

    def _call(
        self,
        call: DeviceCall,
    ) -> None:
        """Run an operator on tensors of a device."""
        op = call.operation
        values = {}
        for v, b in zip(op.reads, call.reads, strict=True):
            found = self.memory[b]
            values[v] = found.reshape(v.extents) if v.static else found
        results = operators.run(op, values, self.fallback)
        pairs = zip(op.outputs, results, strict=False)
        made = [np.asarray(a) for v, a in pairs if v is not None]
        for b, a in zip(call.writes, made, strict=True):
            self.memory[b][...] = a.reshape(b.shape)

    def _host(
        self,
        op: Operation,
    ) -> None:
        values = {v: self.value(v) for v in op.reads}
        results = operators.run(op, values, self.fallback)
        for v, made in zip(op.outputs, results, strict=False):
            if v is None:
                continue
            if v in self.plan.buffers:
                self.memory[self.plan.buffers[v]][...] = np.asarray(made)
            else:
                self.objects[v] = made


def evaluate(
    plan: Plan, inputs: Mapping[str, Any], fallback: FallbackProvider | None = None
) -> list[Any]:
    """The outputs of a plan by name, given one array per input.

    fallback: runs host fallbacks of operators without a reference. Raises like `State.step`, and
    InputError for a missing array, one of another shape, or a constant without contents.
    """
    if plan.open:
        return _evaluate_open(plan, inputs, fallback)
    state = start(plan, inputs, fallback)
    for step in plan.steps:
        state.step(step)
    return [state.value(v) for v in plan.graph.outputs]


def _evaluate_open(
    plan: Plan, inputs: Mapping[str, Any], fallback: FallbackProvider | None
) -> list[Any]:
    """As `evaluate`: each step at the sizes known so far, a count as soon as it is written."""
    shapes = {name: np.shape(a) for name, a in inputs.items()}
    resized = Resized(input_sizes(plan, shapes), {})
    counts = {e.source: e for e in plan.open if isinstance(e.source, Buffer)}
    now = replace(plan, data={}, steps=())
    given = start(
        _at_inputs(now, resized),
        inputs,
        fallback,
    )
    state = PlanState(plan, {**plan.data}, fallback, given.objects)
    for v in plan.graph.inputs:
        if v in plan.buffers:
            b = plan.buffers[v]
            state.memory[b] = given.memory[resized.buffer(b)]
    for step in plan.steps:
        made = resized.step(step)
        for b in (*step.reads, *step.writes):
            here = resized.buffer(b)
            state.memory.setdefault(b, unwritten(here))
            # Map both names, as Python's operators use the plan's own buffer.
            state.memory[here] = state.memory[b]
        state.step(made)
        for b in step.writes:
            if b in counts:
                resized.sizes[counts[b].size] = _count(counts[b], state.memory[b])
    return [state.value(v) for v in plan.graph.outputs]


def _at_inputs(
    plan: Plan,
    resized: Resized,
) -> Plan:
    """The inputs of an open plan at known sizes, without steps."""
    pairs = [(v, plan.buffers.get(v)) for v in plan.graph.inputs]
    values = {
        v if b is None else replace(v, shape=resized.buffer(b).shape): b
        for v, b in pairs
    }
    graph = replace(plan.graph, inputs=tuple(values), outputs=(), constants={})
    buffers = {v: resized.buffer(b) for v, b in values.items() if b is not None}
    return replace(plan, graph=graph, buffers=buffers, open=())


def _count(
    extent: OpenExtent,
    array: Array,
) -> int:
    """The value of a count. Raises ExecutionError if it is out of bounds."""
    found = int(array.reshape(-1)[0])
    if not extent.least <= found <= extent.most:
        raise ExecutionError(
            f"the count {extent.size.name} is {found}, and may be {extent.least} to "
            f"{extent.most}",
            code="TW-INDEX",
            where=source_text(extent),
        )
    return found


def start(
    plan: Plan, inputs: Mapping[str, Any], fallback: FallbackProvider | None = None
) -> PlanState:
    """Every buffer before the first step: inputs and constants; others are marked unwritten."""
    memory = {b: np.asarray(a).reshape(b.shape) for b, a in plan.data.items()}
    objects: dict[Value, Any] = {}
    for v in plan.graph.inputs:
        b = plan.buffers.get(v)
        given = inputs.get(v.name)
        if given is None:
            raise InputError(
                f"no array for the input {v!r}", where=f"plan {plan.graph.name}"
            )
        if b is None:
            objects[v] = given
        elif np.shape(given) != b.shape:
            where = f"plan {plan.graph.name}"
            raise InputError(
                f"{v!r} was given an array of shape {np.shape(given)}", where=where
            )
        else:
            memory[b] = np.array(given, b.dtype.numpy)
    for b in (*_used(plan), *plan.results):
        if b in plan.given and b not in memory:
            raise InputError(
                f"the constant {b!r} has no contents", where=f"plan {plan.graph.name}"
            )
        if b not in memory:
            memory[b] = unwritten(b)
    return PlanState(plan, memory, fallback, objects)


def _used(
    plan: Plan,
) -> Sequence[Buffer]:
    return [b for step in plan.steps for b in (*step.reads, *step.writes)]


def unwritten(
    b: Buffer,
) -> Array:
    """Unwritten memory for a buffer."""
    return np.full(b.shape, _mark(b.dtype), b.dtype.numpy)


def _mark(
    dtype: DType,
) -> Any:
    if dtype.is_float:
        return UNWRITTEN
    if dtype.is_bool:
        return True
    return min(int(UNWRITTEN), int(dtype.max))
