"""Assembles a model: memory offsets, calls in order, one native function per segment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from tilewright import __version__
from tilewright.base import limits
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import MemoryLimitError
from tilewright.driver.built import (
    BuiltControl,
    BuiltGroup,
    BuiltProgram,
    BuiltStep,
    Native,
    built_inside,
)
from tilewright.driver.constants import ConstantPool
from tilewright.driver.prepare import ConstantPacker
from tilewright.driver.segment import Segment
from tilewright.driver.sources import tensor_of
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.plan.nodes import (
    HOST,
    Branch,
    DeviceCopy,
    FusionGroup,
    HostFallback,
    Loop,
    MemoryPlan,
    Plan,
)
from tilewright.runtime import abi
from tilewright.runtime.model import (
    CompiledModel,
    CopyStep,
    DeviceCopyStep,
    HostFallbackStep,
    LaunchStep,
    NativeStep,
    Step,
    Tensor,
    ValueSlot,
    constants_on,
)
from tilewright.targets.base import Target

HostKernel = Any  # (Operation) -> (provider, JSON-able attributes, captured values)


@dataclass(eq=False)
class Assembler:
    """Collects constants, slots and programs while it writes the steps.

    plan: with places in memory. steps: the model in order. host: describes a host fallback for the
    runtime. limit: bytes that a running call may need; None: no limit. aliases: results in the
    memory of an input. constants: where several models place theirs; the model has none then until
    all of them are assembled.
    """

    plan: Plan
    steps: Sequence[BuiltStep]
    target: Target
    host: HostKernel
    limit: int | None = None
    aliases: Mapping[Buffer, Buffer] = field(default_factory=dict)
    constants: ConstantPool | None = None
    _objects: dict[Value, int] = field(default_factory=dict)
    _places: Mapping[Buffer, int] = field(default_factory=dict)
    _programs: dict[bytes, int] = field(default_factory=dict)
    _ends: dict[str, int] = field(default_factory=dict)  # of the tensors on each device

    def model(self, meta: Mapping[str, Any]) -> CompiledModel:
        """The compiled model.

        Raises MemoryLimitError, before constants are made, if a call would need too much.
        """
        graph = self.plan.graph
        self._pool = ConstantPool() if self.constants is None else self.constants
        self._value_of = {b: v for v, b in self.plan.buffers.items()}
        self._inputs = {v: n for n, v in enumerate(graph.inputs)}
        self._outputs: dict[Value, int] = {}
        for n, v in enumerate(graph.outputs):
            if v not in self._inputs and v not in graph.constants:
                self._outputs.setdefault(v, n)
        memory = self.plan.memory
        assert memory is not None, "the plan's buffers have no places yet"
        self._places, arena = memory.places, memory.total
        built = list(built_inside(self.steps))
        workspace = max((b.code.workspace for b in built), default=0)
        devices = self._devices(memory)
        steps, segments = self._write(arena)
        objects = dict.fromkeys(b.code.code for b in built)
        steps += self._copies(graph)
        needed = {d: n + constants_on(d, steps) for d, n in devices.items()}
        self._check_limit(graph, arena + workspace, needed)
        made = CompiledModel(
            inputs=tuple(tensor_of(v) for v in graph.inputs),
            outputs=tuple(tensor_of(v) for v in graph.outputs),
            steps=tuple(steps),
            objects=(*objects, *segments),
            support=tuple(self.target.support()) if built else (),
            arena_bytes=arena,
            workspace=_round(workspace),
            thread_workspace=max((b.code.thread_workspace for b in built), default=0),
            object_slots=len(self._objects),
            requirements=self.target.requirements if built else {},
            programs=tuple(self._programs),
            devices=devices,
            aliases=tuple(self._aliases()),
            meta={"name": graph.name, "version": __version__, **meta},
        )
        if self.constants is not None:
            return made
        return made.with_constants(self._pool.held())

    def _aliases(self) -> Iterator[tuple[int, int]]:
        """The indices of outputs, and of the inputs whose memory they take."""
        for out, given in self.aliases.items():
            yield (
                self._outputs[self._value_of[out]],
                self._inputs[self._value_of[given]],
            )

    def _check_limit(
        self, graph: Graph, scratch: int, devices: Mapping[str, int]
    ) -> None:
        """Raise MemoryLimitError if calls need more memory, over all devices, than the limit."""
        ends = [
            v
            for v in (*graph.inputs, *graph.outputs)
            if v.kind == "tensor" and v.static
        ]
        given = sum(
            math.prod(v.extents) * v.dtype.itemsize for v in ends if v.dtype is not None
        )
        total = scratch + self._pool.size + given + sum(devices.values())
        elsewhere = "".join(f", {n:,} on {name}" for name, n in devices.items())
        if self.limit is not None and total > self.limit:
            raise MemoryLimitError(
                f"a call needs {total:,} bytes ({scratch:,} between kernels, "
                f"{self._pool.size:,} of constants, {given:,} of inputs and outputs"
                f"{elsewhere}), over the memory limit of {self.limit:,} bytes",
                where=f"graph {graph.name!r}",
                hint=limits.MORE_MEMORY,
            )

    def _write(self, arena: int) -> tuple[list[Step], list[bytes]]:
        prepared = ConstantPacker([b.code for b in built_inside(self.steps)])
        steps: list[Step] = []
        segments: list[bytes] = []
        run: list[Native] = []
        count = 0

        def close() -> None:
            nonlocal count
            if not run:
                return
            apart = self.constants is not None
            made = Segment(
                self.plan, self._pool, prepared, arena, count, self._slot, apart
            )
            symbol = f"segment_{len(segments)}"
            segments.append(self.target.segment(symbol, made.actions(run)))
            steps.append(NativeStep(symbol, tuple(made.values), tuple(made.records)))
            count += len(made.records)
            run.clear()

        for s, placed in zip(self.steps, self.plan.steps, strict=True):
            if isinstance(s, BuiltGroup):
                run.append(s)
                continue
            if isinstance(s, BuiltControl):
                assert isinstance(placed, Loop | Branch)
                run.append(replace(s, stage=placed))
                continue
            close()
            match s:
                case HostFallback():
                    steps.append(self._host(s.operation, steps))
                case DeviceCopy():
                    steps.append(self._device_copy(s))
                case BuiltProgram():
                    steps.append(self._launch(s))
        close()
        return steps, segments

    def _devices(self, memory: MemoryPlan) -> dict[str, int]:
        """Every device that runs something, with the bytes of its arena.

        Programs run one after another: their workspaces share the end of it.
        """
        found: dict[str, int] = {}
        for s in self.steps:
            if isinstance(s, BuiltProgram):
                device = s.stage.device
                self._ends[device] = _round(memory.elsewhere.get(device, 0))
                needed = self._ends[device] + sum(map(_round, s.workspace))
                found[device] = max(found.get(device, 0), needed)
        return found

    def _device_copy(self, copy: DeviceCopy) -> DeviceCopyStep:
        inward = self.plan.device_of(copy.target) != HOST
        there, here = (
            (copy.target, copy.source) if inward else (copy.source, copy.target)
        )
        device = self._on_device(there)
        host = self._on_host(here)
        # One tensor, of the value's own shape, on both sides.
        device = replace(device, tensor=host.tensor)
        ends = (host, device) if inward else (device, host)
        return DeviceCopyStep(self.plan.device_of(there), *ends)

    def _launch(self, item: BuiltProgram) -> LaunchStep:
        group = item.stage
        number = self._programs.setdefault(item.program, len(self._programs))
        return LaunchStep(
            group.device,
            number,
            (*map(self._on_device, item.operands), *self._workspace(item)),
            group.name,
            group.sources if isinstance(group, FusionGroup) else (group.name,),
            group.flops if isinstance(group, FusionGroup) else 0,
            sum(map(_bytes, item.operands)),
        )

    def _workspace(self, item: BuiltProgram) -> Iterator[ValueSlot]:
        """Where a program's buffers besides its operands are."""
        at = self._ends[item.stage.device]
        for nbytes in item.workspace:
            tensor = Tensor("workspace", "uint8", (nbytes,))
            yield ValueSlot("device", at, tensor)
            at += _round(nbytes)

    def _on_device(self, b: Buffer) -> ValueSlot:
        """The slot of a buffer as a device sees it: in its arena, or a constant."""
        tensor = Tensor(b.name, b.dtype.name, b.shape)
        if b in self.plan.data:
            at = self._pool.place_array(self.plan.data[b])
            return ValueSlot("constant", at, tensor)
        return ValueSlot("device", self._places[b], tensor)

    def _on_host(self, b: Buffer) -> ValueSlot:
        """The slot of a buffer on the host, which need not be a value of the graph."""
        if b in self._value_of:
            return self._slot(self._value_of[b])
        return ValueSlot(
            "arena", self._places[b], Tensor(b.name, b.dtype.name, b.shape)
        )

    def _host(self, op: Operation, steps: list[Step]) -> HostFallbackStep:
        provider, attributes, extra = self.host(op)
        inputs = tuple(
            None if v is None else self._read(v, steps) for v in (*op.inputs, *extra)
        )
        outputs = tuple(None if v is None else self._slot(v) for v in op.outputs)
        return HostFallbackStep(
            provider, op.op_type, attributes, inputs, outputs, op.label
        )

    def _read(self, v: Value, steps: list[Step]) -> ValueSlot:
        """The slot of a host operand; a constant without a native form is made by a step."""
        constants = self.plan.graph.constants
        if v in constants and v not in self.plan.buffers and v not in self._objects:
            made = Operation(
                "Constant", (), (v,), {"value": constants[v]}, "", 13, v.name
            )
            provider, attributes, _ = self.host(made)
            steps.append(
                HostFallbackStep(
                    provider, "Constant", attributes, (), (self._slot(v),), v.name
                )
            )
        return self._slot(v)

    def _slot(self, v: Value) -> ValueSlot:
        tensor = tensor_of(v)
        if v in self._inputs:
            return ValueSlot("input", self._inputs[v], tensor)
        if v in self._outputs:
            return ValueSlot("output", self._outputs[v], tensor)
        b = self.plan.buffers.get(v)
        if b is not None and b in self.plan.data:
            return ValueSlot(
                "constant", self._pool.place_array(self.plan.data[b]), tensor
            )
        if b is not None and b in self._places:
            return ValueSlot("arena", self._places[b], tensor)
        if v not in self._objects:
            self._objects[v] = len(self._objects)
        return ValueSlot("object", self._objects[v], tensor)

    def _copies(self, graph: Graph) -> list[Step]:
        """Copies to outputs that are also inputs, constants, or other outputs."""
        steps: list[Step] = []
        for n, v in enumerate(graph.outputs):
            if self._outputs.get(v) == n:
                continue
            source = self._read(v, steps)
            steps.append(CopyStep(source, ValueSlot("output", n, tensor_of(v))))
        return steps


def _bytes(b: Buffer) -> int:
    return b.size * b.dtype.itemsize


def _round(size: int) -> int:
    return -(-size // abi.ALIGNMENT) * abi.ALIGNMENT
