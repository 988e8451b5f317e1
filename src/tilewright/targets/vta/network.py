"""A float model as a network of bytes: products on the machine, the rest on the CPU.

Between the two, tensors are bytes. What runs on the CPU is computed by the operator's reference on
the numbers that the bytes stand for, and becomes bytes again: exact for what moves or selects
elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.errors import UnsupportedError
from tilewright.graph.infer import run_operation
from tilewright.graph.interp import steps
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.passes.integers import SELECTING
from tilewright.graph.passes.simplify import fold_batchnorm, remove_no_ops, remove_unused
from tilewright.targets.vta.functional import Counters
from tilewright.targets.vta.layers import Layer
from tilewright.targets.vta.partition import MATRIX, Part, partition
from tilewright.targets.vta.quantised import (
    Product,
    calibrate,
    dequantise,
    known,
    plain,
    product,
    quantise,
)
from tilewright.targets.vta.schedules import schedule
from tilewright.targets.vta.target import Program

Array = NDArray[Any]
Bytes = NDArray[np.int8]
# Does a layer on its operands and the array of its result, which it writes.
Device = Callable[[Layer, Sequence[Array]], Counters | None]


@dataclass(eq=False, slots=True)
class Step:
    """A part of the model; product: in integers, for those of the machine; why: else."""

    part: Part
    product: Product | None
    why: str
    counters: list[Counters] = field(default_factory=list)


class Simulated:
    """The machine as a device: a layer is scheduled and translated the first time it is met."""

    def __init__(self, threads: int = 2) -> None:
        self.threads = threads
        self._programs: dict[Layer, Program] = {}

    def __call__(self, layer: Layer, arrays: Sequence[Array]) -> Counters:
        """Run a layer; what the machine did."""
        if layer not in self._programs:
            self._programs[layer] = Program(schedule(layer, self.threads).kernel)
        return self._programs[layer](arrays)


class Network:
    """A quantised model as a function of its float inputs."""

    def __init__(
        self,
        graph: Graph,
        samples: Iterable[Mapping[str, Array]],
        scales: Mapping[str, int] | None = None,
    ) -> None:
        """Quantise a float graph by samples, an array per input; or by `scales` made so before.

        Raises InputError without samples, and for scales of another model.
        """
        given = list(samples)
        self.graph = graph = remove_unused(fold_batchnorm(remove_no_ops(graph)))
        self.exponents = calibrate(graph, given) if scales is None else known(graph, scales)
        shapes = _shapes(graph, given)
        self.steps = [self._step(part, shapes) for part in partition(graph)]

    def _step(self, part: Part, shapes: Mapping[Value, tuple[int, ...]]) -> Step:
        if part.main is None:
            (op,) = part.operations
            source = op.inputs[0] if op.inputs else None
            if op.op_type in SELECTING and source in self.exponents:
                self.exponents[part.result] = self.exponents[source]  # the same bytes
            return Step(part, None, part.why)
        data = part.main.inputs[0]
        assert data is not None
        shape = shapes[data]
        rows = part.main.op_type in MATRIX
        if not rows and shape[0] != 1:
            return Step(part, None, f"it has a batch of {shape[0]}")
        points = (shape[-1], prod(shape[:-1]), 1) if rows else shape[1:]
        found = product(self.graph, part, points, self.exponents)
        if isinstance(found, str):
            return Step(part, None, found)
        return Step(part, found, "")

    def __call__(self, inputs: Mapping[str, Array], device: Device | None = None) -> list[Array]:
        """The outputs; device: what does the products, the simulated machine by default."""
        does = device or Simulated()
        values: dict[Value, Array] = {}
        for v in self.graph.inputs:
            values[v] = self._bytes(v, inputs[v.name])
        for step in self.steps:
            if step.product is None:
                self._on_cpu(step, values)
            else:
                values[step.part.result] = self._on_machine(step, step.product, values, does)
        return [self._real(v, values[v]) for v in self.graph.outputs]

    @property
    def scales(self) -> Mapping[str, int]:
        """Tensor -> its exponent, to make the same network again."""
        return {v.name: e for v, e in self.exponents.items()}

    @property
    def text(self) -> str:
        """The instructions of every layer of the machine, one after the other."""
        done = ((s.part, s.product) for s in self.steps)
        return "\n".join(
            f"// {part.name} -> {part.result.name}\n{Program(schedule(p.layer).kernel).text}"
            for part, p in done
            if p is not None
        )

    def _bytes(self, v: Value, array: Array) -> Array:
        return quantise(array, self.exponents[v]) if v in self.exponents else array

    def _real(self, v: Value, array: Array) -> Array:
        return dequantise(array, self.exponents[v]) if v in self.exponents else array

    def _on_cpu(self, step: Step, values: dict[Value, Array]) -> None:
        for op in step.part.operations:
            given = [
                None
                if v is None
                else self.graph.constants[v]
                if v in self.graph.constants
                else self._real(v, values[v])
                for v in op.inputs
            ]
            found = run_operation(op, given, None)
            if found is None:
                raise UnsupportedError(f"{op.qualified} has no reference", where=op.label)
            for v, array in zip(op.outputs, found, strict=False):
                if v is not None:
                    values[v] = self._bytes(v, array)

    def _on_machine(
        self, step: Step, p: Product, values: Mapping[Value, Array], device: Device
    ) -> Bytes:
        op = step.part.main
        assert op is not None
        assert op.inputs[0] is not None
        x, rows = values[op.inputs[0]], op.op_type in MATRIX
        more = step.part.residual
        residual = None if more is None else _image(values[more], rows)
        y = np.zeros(p.layer.params[-1].shape, np.int8)
        counters = device(p.layer, [*p.operands(_image(x, rows), residual), y])
        if counters is not None:
            step.counters.append(counters)
        made = plain(y, p.channels)
        return made[:, :, 0].T.reshape(*x.shape[:-1], -1) if rows else made[None]

    @property
    def report(self) -> str:
        """What runs where, and why."""
        lines = []
        for step in self.steps:
            where = "vta" if step.product is not None else "cpu"
            text = step.why
            if step.product is not None:
                c, shift = step.product.window, step.product.shift
                text = f"{c.inputs}->{c.outputs} {c.kernel[0]}x{c.kernel[1]}, shift {shift}"
            lines.append(f"{where}  {step.part.name:<14} {step.part.result.name:<16} {text}")
        return "\n".join(lines)


def _image(a: Bytes, rows: bool) -> Bytes:
    """[C, H, W]: without the batch; or, of a matrix, columns as channels and rows as points."""
    return a.reshape(-1, a.shape[-1]).T[:, :, None] if rows else a[0]


def _shapes(graph: Graph, samples: Sequence[Mapping[str, Array]]) -> dict[Value, tuple[int, ...]]:
    """The shapes of all tensors, as a sample makes them."""
    return {v: np.shape(a) for v, a in steps(graph, samples[0])}
