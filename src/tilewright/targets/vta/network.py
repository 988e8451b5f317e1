"""A quantized network from a float model: products on the machine, the rest on the CPU.

What the machine makes are bytes. What runs on the CPU is computed by the graph's interpreter on the
numbers that they stand for; its results become bytes where the machine reads them, which is exact
for what moves or selects elements.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.errors import InputError
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.infer import specialize
from tilewright.graph.interp import run
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import MOVES_DATA, SELECTS
from tilewright.graph.passes.simplify import remove_unused
from tilewright.graph.rules.batchnorm import BATCHNORM
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.no_ops import NO_OPS
from tilewright.targets.vta.functional import Counters
from tilewright.targets.vta.layers import Layer
from tilewright.targets.vta.partition import MATRIX, Part, partition
from tilewright.targets.vta.quantized import Product, plain, product
from tilewright.targets.vta.scales import (
    Bytes,
    calibrate,
    dequantize,
    known,
    quantize,
    unit_by,
)
from tilewright.targets.vta.schedules import schedule
from tilewright.targets.vta.target import Program

Array = NDArray[Any]
# Does a layer on its operands and the array of its result, which it writes.
Device = Callable[[Layer, Sequence[Array]], Counters | None]


@dataclass(eq=False, slots=True)
class Step:
    """A part of the model; product: in integers, for those of the machine; why: else.

    counters: of the last run, one for each image.
    """

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
        return self.program(layer)(arrays)

    def program(self, layer: Layer) -> Program:
        """The layer's instructions."""
        if layer not in self._programs:
            self._programs[layer] = Program(schedule(layer, self.threads).kernel)
        return self._programs[layer]


class Network:
    """A quantized model as a function of its float inputs, of the shapes that its samples have."""

    def __init__(
        self,
        graph: Graph,
        samples: Iterable[Mapping[str, Array]],
        scales: Mapping[str, float] | None = None,
        by: str = "shift",
    ) -> None:
        """Quantize a float graph by samples, an array per input; or by `scales` made so before.

        by: how sums become bytes, by "shift", "multiplier" or "channel". Raises InputError
        without samples, and for scales of another model.
        """
        given = list(samples)
        unit = unit_by(by)
        self._fallback = OnnxFallback()
        if given and not all(v.static for v in graph.inputs):
            shapes = {v.name: np.shape(given[0][v.name]) for v in graph.inputs}
            graph = specialize(graph, shapes=shapes, fallback=self._fallback)
        self.graph = graph = remove_unused(rewrite(rewrite(graph, NO_OPS), [BATCHNORM]))
        self.by = by
        self.units = (
            calibrate(graph, given, unit, self._fallback)
            if scales is None
            else known(graph, scales, by)
        )
        self.steps = [self._step(part) for part in partition(graph)]
        self.machine = Simulated()

    def _step(self, part: Part) -> Step:
        if part.main is None:
            (op,) = part.operations
            source = op.inputs[0] if op.inputs else None
            if has_trait(op, MOVES_DATA | SELECTS) and source in self.units:
                self.units[part.result] = self.units[source]  # the same bytes
            return Step(part, None, part.why)
        data = part.main.inputs[0]
        assert data is not None
        shape = data.extents
        rows = part.main.qualified in MATRIX
        points = (shape[-1], prod(shape[:-1]), 1) if rows else shape[1:]
        found = product(self.graph, part, points, self.units, self.by)
        if isinstance(found, str):
            return Step(part, None, found)
        return Step(part, found, "")

    def __call__(
        self, inputs: Mapping[str, Array], device: Device | None = None
    ) -> list[Array]:
        """The outputs; device: what does the products, the simulated machine by default.

        Raises InputError for a missing input, and for one of another dtype or shape.
        """
        tensors = Tensors(self.graph.constants, self.units)
        for v in self.graph.inputs:
            tensors.real[v] = _checked(v, inputs)
        for step in self.steps:
            if step.product is None:
                self._on_cpu(step, tensors)
            else:
                self._on_machine(step, step.product, tensors, device or self.machine)
        return [tensors[v] for v in self.graph.outputs]

    @property
    def scales(self) -> Mapping[str, float]:
        """Tensor -> the number that the unit of its bytes stands for, to make it again."""
        return {v.name: unit for v, unit in self.units.items()}

    @property
    def text(self) -> str:
        """The instructions of every layer of the machine, one after the other."""
        done = ((s.part, s.product) for s in self.steps)
        return "\n".join(
            f"// {part.name} -> {part.result.name}\n{self.machine.program(p.layer).text}"
            for part, p in done
            if p is not None
        )

    def _on_cpu(self, step: Step, tensors: Tensors) -> None:
        for op in step.part.operations:
            values = {v: tensors[v] for v in op.reads}
            for v, array in zip(
                op.outputs, run(op, values, self._fallback), strict=False
            ):
                if v is not None:
                    tensors.real[v] = array

    def _on_machine(
        self, step: Step, p: Product, tensors: Tensors, device: Device
    ) -> None:
        op, more = step.part.main, step.part.residual
        assert op is not None
        assert op.inputs[0] is not None
        x, rows = tensors.whole(op.inputs[0]), op.qualified in MATRIX
        images = _images(x, rows)
        residuals = (
            _images(tensors.whole(more), rows)
            if more is not None
            else [None] * len(images)
        )
        step.counters = []
        made = []
        for image, residual in zip(images, residuals, strict=True):
            y = np.zeros(p.layer.params[-1].shape, np.int8)
            counters = device(p.layer, [*p.operands(image, residual), y])
            if counters is not None:
                step.counters.append(counters)
            made.append(plain(y, p.channels))
        tensors.bytes[step.part.result] = (
            made[0][:, :, 0].T.reshape(*x.shape[:-1], -1) if rows else np.stack(made)
        )

    @property
    def report(self) -> str:
        """What runs where, and why."""
        lines = []
        for step in self.steps:
            where = "vta" if step.product is not None else "cpu"
            text = step.why
            if step.product is not None:
                c = step.product.window
                text = f"{c.inputs}->{c.outputs} {c.kernel[0]}x{c.kernel[1]}"
                text += _arithmetic(step.product)
            lines.append(
                f"{where}  {step.part.name:<14} {step.part.result.name:<16} {text}"
            )
        return "\n".join(lines)


class Tensors:
    """The tensors of one run: as bytes, as the numbers that those stand for, or both."""

    def __init__(
        self, constants: Mapping[Value, Array], units: Mapping[Value, float]
    ) -> None:
        self.units = units
        self.bytes: dict[Value, Bytes] = {}
        self.real: dict[Value, Any] = {}
        self._all = ChainMap(self.real, dict(constants))

    def __getitem__(self, v: Value) -> Any:
        """A tensor in numbers, or whatever else an operator makes."""
        if v not in self._all:
            self.real[v] = dequantize(self.bytes[v], self.units[v])
        return self._all[v]

    def whole(self, v: Value) -> Bytes:
        """A tensor in bytes."""
        if v not in self.bytes:
            self.bytes[v] = quantize(self.real[v], self.units[v])
        return self.bytes[v]


def _checked(v: Value, inputs: Mapping[str, Array]) -> Array:
    where = f"input {v.name!r}"
    if v.name not in inputs:
        raise InputError("it is missing", where=where)
    array = np.asarray(inputs[v.name])
    if v.static and (array.shape != v.extents or array.dtype != v.dtype.numpy):  # type: ignore[union-attr]
        found = f"{array.dtype}{list(array.shape)}"
        raise InputError(f"expected {v.type_text}, found {found}", where=where)
    return array


def _arithmetic(p: Product) -> str:
    q = p.requantize
    if q is None:
        return ""
    if q.factor is None:
        factors = p.constants[-1]
        return f", shift {q.before}, factors {factors.min()} to {factors.max()}, shift {q.shift}"
    if q.factor == 1:
        return f", shift {q.shift}"
    return f", shift {q.before}, factor {q.factor}, shift {q.shift}"


def _images(a: Bytes, rows: bool) -> list[Bytes]:
    """Images [C, H, W]; a matrix is one, columns as channels and rows as points."""
    return [a.reshape(-1, a.shape[-1]).T[:, :, None]] if rows else list(a)
