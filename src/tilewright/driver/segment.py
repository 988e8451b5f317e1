"""One native function of a model: its kernels, loops and branches, with addresses of buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.driver.built import BuiltControl, BuiltGroup, Native
from tilewright.driver.constants import ConstantPool
from tilewright.driver.prepare import ConstantPacker, place_prepared
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Value
from tilewright.plan.nodes import Branch, Loop, Plan
from tilewright.runtime import abi
from tilewright.runtime.model import KernelRecord, Tensor, ValueSlot
from tilewright.targets.base import (
    Action,
    Argument,
    ByteCopy,
    ConditionalActions,
    KernelCall,
    Repeat,
)


@dataclass(eq=False, slots=True)
class BufferAddresses:
    """The addresses of a plan's buffers.

    base: the offset of its arena in the model's. given: addresses of buffers that belong to another
    plan.
    """

    plan: Plan
    base: int = 0
    given: Mapping[Buffer, Argument] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Segment:
    """Collects the slots, the constants and the kernel records that a function needs.

    arena: bytes of the model's arena; the scratch memory of kernels follows it. first: the number
    of its first kernel. slot: returns the slot of a value that is neither in the arena nor a
    constant. apart: each constant has a slot, as several models share the block of constants.
    """

    plan: Plan
    constants: ConstantPool
    prepared: ConstantPacker
    arena: int
    first: int
    slot: Callable[[Value], ValueSlot]
    apart: bool = False
    values: list[ValueSlot] = field(default_factory=list)
    records: list[KernelRecord] = field(default_factory=list)
    _where: dict[Buffer | ValueSlot, int] = field(default_factory=dict)

    def actions(self, run: Sequence[Native]) -> list[Action]:
        """The actions of the function, in order."""
        return self._actions(run, BufferAddresses(self.plan))

    def _actions(self, run: Sequence[Any], scope: BufferAddresses) -> list[Action]:
        found: list[Action] = []
        for item, placed in zip(run, self._placed(run, scope), strict=True):
            if isinstance(item, BuiltGroup):
                found.append(self._call(item, scope))
            elif isinstance(placed, Loop):
                found.append(self._loop(item, placed, scope))
            else:
                found.append(self._branch(item, placed, scope))
        return found

    def _placed(self, run: Sequence[Any], scope: BufferAddresses) -> Sequence[Any]:
        """The steps with their places; those of the model's own plan are in `run`."""
        if scope.plan is self.plan:
            return [item.stage for item in run]
        return scope.plan.steps

    def _place(self, b: Buffer, scope: BufferAddresses, offset: int = 0) -> Argument:
        """The address of a buffer."""
        plan = scope.plan
        if b in plan.data:
            at = self.constants.place_array(plan.data[b])
            found = self._constant(at, Tensor(b.name, b.dtype.name, b.shape))
            return replace(found, offset=found.offset + offset)
        if b in scope.given:
            found = scope.given[b]
            return replace(found, offset=found.offset + offset)
        assert plan.memory is not None
        if b in plan.memory.places:
            at = scope.base + plan.memory.places[b]
            return Argument(abi.TABLE_ARENA, at + offset)
        if b not in self._where:
            value = next(v for v, known in plan.buffers.items() if known is b)
            self._name(b, self.slot(value))
        return Argument(self._where[b], offset)

    def _constant(self, at: int, tensor: Tensor) -> Argument:
        """The address of a constant at a byte of the block."""
        if not self.apart:
            return Argument(abi.TABLE_CONSTANTS, at)
        slot = ValueSlot("constant", at, tensor)
        if slot not in self._where:
            self._name(slot, slot)
        return Argument(self._where[slot])

    def _name(self, key: Buffer | ValueSlot, slot: ValueSlot) -> None:
        """Append a slot to the table."""
        self._where[key] = abi.TABLE_FIRST_VALUE + len(self.values)
        self.values.append(slot)

    def _call(self, item: BuiltGroup, scope: BufferAddresses) -> KernelCall:
        number = self.first + len(self.records)
        signature = item.signature
        data = [scope.plan.data.get(b) for b in signature.values]
        packed = self._packed(item, data)
        arguments = tuple(
            packed[-1 - k]
            if k < 0
            else self._place(signature.values[k], scope, signature.offsets[k])
            for k in item.code.arguments
        )
        moved = sum(map(_bytes, signature.values))
        stage, symbol = item.stage, item.code.symbol
        self.records.append(
            KernelRecord(number, stage.name, stage.sources, stage.flops, moved, symbol)
        )
        scratch = Argument(abi.TABLE_ARENA, self.arena)
        return KernelCall(symbol, arguments, scratch, number)

    def _packed(
        self, item: BuiltGroup, data: Sequence[np.ndarray[Any, Any] | None]
    ) -> dict[int, Argument]:
        """The addresses of a group's prepared constants, by the number of the preparation.

        Intermediate results of preparations take no space.
        """
        found = place_prepared(self.constants, item.code, data, lambda: self.prepared)
        made = item.code.preparations
        return {
            n: self._constant(at, Tensor(made[n].symbol, made[n].dtype, made[n].shape))
            for n, at in found.items()
        }

    def _inner(
        self,
        scope: BufferAddresses,
        step: Loop | Branch,
        body: Plan,
        outer: Sequence[Argument],
    ) -> BufferAddresses:
        """The addresses of an inner plan's buffers. outer: the addresses of its last inputs."""
        memory = scope.plan.memory
        assert memory is not None
        inputs = [body.buffers[v] for v in body.graph.inputs]
        given = dict(zip(inputs[len(inputs) - len(outer) :], outer, strict=True))
        return BufferAddresses(body, scope.base + memory.inside[step], given)

    def _loop(self, item: BuiltControl, step: Loop, scope: BufferAddresses) -> Repeat:
        def at(b: Buffer) -> Argument:
            return self._place(b, scope)

        states = [at(b) for b in step.states]
        body = step.body
        taken = [at(b) for b in step.taken]
        inner = self._inner(scope, step, body, [*states, *taken])
        number = self._place(body.buffers[body.graph.inputs[0]], inner)
        actions = self._actions(item.bodies[0], inner)
        again, *results = (self._place(b, inner) for b in body.results)
        items = zip(results[len(states) :], step.stacked, strict=True)
        return Repeat(
            number=number,
            trips=at(step.trips),
            going=at(step.going),
            again=again,
            count=at(step.count),
            before=_copies(map(at, step.initial), states, step.states),
            body=tuple(actions),
            after=_copies(results, states, step.states),
            items=tuple(
                ByteCopy(r, at(b), _bytes(b) // max(b.shape[0], 1)) for r, b in items
            ),
            bound=step.bound,
            record=self._noted(step),
        )

    def _branch(
        self, item: BuiltControl, step: Branch, scope: BufferAddresses
    ) -> ConditionalActions:
        taken = [self._place(b, scope) for b in step.taken]
        results = [self._place(b, scope) for b in step.results]
        sides: list[tuple[Action, ...]] = []
        for body, built in zip(step.bodies, item.bodies, strict=True):
            inner = self._inner(scope, step, body, taken)
            actions = self._actions(built, inner)
            made = (self._place(b, inner) for b in body.results)
            sides.append((*actions, *_copies(made, results, step.results)))
        condition = self._place(step.condition, scope)
        return ConditionalActions(condition, sides[0], sides[1], self._noted(step))

    def _noted(self, step: Loop | Branch) -> int:
        """The number of a record for the whole step: its kernels are not timed separately."""
        number = self.first + len(self.records)
        moved = sum(map(_bytes, (*step.reads, *step.writes)))
        self.records.append(KernelRecord(number, step.name, (step.name,), 0, moved))
        return number


def _copies(
    sources: Any, targets: Sequence[Argument], buffers: Sequence[Buffer]
) -> tuple[ByteCopy, ...]:
    """Copies of all buffers whose source and target differ."""
    found = zip(sources, targets, buffers, strict=False)
    return tuple(ByteCopy(a, b, _bytes(c)) for a, b, c in found if a != b)


def _bytes(b: Buffer) -> int:
    return b.size * b.dtype.itemsize
