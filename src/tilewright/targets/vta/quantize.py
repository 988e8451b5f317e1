"""Quantization as a pass over a Graph: what the machine can do becomes layers of integers.

What the machine makes are bytes. What it does not do stays unchanged, in floats: its results become
bytes where a layer reads them, by QuantizeLinear, and bytes become floats where anything else reads
them, by DequantizeLinear. Padding to whole tiles and back, and the order of elements, are operators
too, which the rest of the compiler treats as any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from math import prod

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import MOVES_DATA, SELECTS
from tilewright.graph.passes.simplify import remove_unused
from tilewright.graph.rules.batchnorm import BATCHNORM
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.no_ops import NO_OPS
from tilewright.ir.passes import Pass
from tilewright.targets.base import Calibration, Placement
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.intrinsics import INP, elements
from tilewright.targets.vta.operator import DOMAIN, OPERATOR
from tilewright.targets.vta.partition import MATRIX, OffloadedPart, partition
from tilewright.targets.vta.quantized import IntegerProduct, product
from tilewright.targets.vta.scales import calibrate, known, unit_by

_PREFIX = "vta"


@dataclass(frozen=True)
class Quantize(Pass[Graph]):
    """Replace the parts that the machine can do by layers; the others stay.

    report, scales: filled with the placement of parts and its reasons, and with the value of one
    unit of each tensor's bytes.
    """

    config: VTAConfig
    calibration: Calibration
    fallback: FallbackProvider = field(repr=False)
    report: list[Placement] = field(default_factory=list, repr=False)
    scales: dict[str, float] = field(default_factory=dict, repr=False)

    def run(self, program: Graph) -> Graph:
        """Raises InputError without samples, and for scales of another model."""
        graph = remove_unused(rewrite(rewrite(program, NO_OPS), [BATCHNORM]))
        units = self._units(graph)
        writer = _Writer(graph, units, self.config)
        for part in partition(graph, self.config):
            made = self._product(graph, part, units)
            if isinstance(made, IntegerProduct):
                writer.layer(part, made)
                note = str(made)
            else:
                writer.keep(part)
                note = made
            if isinstance(made, IntegerProduct):
                device = "vta"
            else:
                device = "host"
            name = part.result.name
            self.report.append(
                Placement(
                    device=device,
                    operators=part.name,
                    tensor=name,
                    note=note,
                )
            )
        self.scales.update((v.name, unit) for v, unit in units.items())
        return writer.graph()

    def _units(self, graph: Graph) -> dict[Value, float]:
        given = self.calibration
        unit = unit_by(given.by, self.config.operand_bits[0])
        if given.scales is not None:
            return known(graph, given.scales, given.by)
        if not given.samples:
            raise InputError(
                "there are no samples to quantize the model by",
                where=f"graph {graph.name}",
                hint="give samples=[{input: array}], or scales= of a file that `quantize` wrote",
            )
        return calibrate(graph, given.samples, unit, self.fallback, given.method)

    def _product(
        self, graph: Graph, part: OffloadedPart, units: dict[Value, float]
    ) -> IntegerProduct | str:
        """The part in integers; or why it stays."""
        if part.main is None:
            (op,) = part.operations
            source = op.inputs[0] if op.inputs else None
            if has_trait(op, MOVES_DATA | SELECTS) and source in units:
                units[part.result] = units[source]  # the same bytes
            return part.why
        data = part.main.inputs[0]
        assert data is not None
        shape = data.extents
        points: tuple[int, ...] = shape[1:]
        if part.main.qualified in MATRIX:
            points = (shape[-1], prod(shape[:-1]), 1)
        by = self.calibration.by
        config = self.config
        return product(graph, part, points, units, by, config)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """A tensor in the machine's layout, a value for each group of BATCH images."""

    groups: tuple[Value, ...]
    rows: bool


class _Writer:
    """Writes the new operations; every form of a tensor is made once, where it is first read."""

    def __init__(
        self, graph: Graph, units: dict[Value, float], config: VTAConfig
    ) -> None:
        self.old = graph
        self.units = units
        self.config = config
        self.out = Fragment(_PREFIX, graph.constants)
        self._data = elements(config)[INP].dtype.numpy
        self._tiles: dict[Value, _Tiles] = {}
        self._channels: dict[Value, int] = {}  # of what the machine makes
        self._bytes: dict[Value, Value] = {}
        self._real = {*graph.inputs, *graph.constants}

    def graph(self) -> Graph:
        """The graph, with its outputs in floats."""
        for v in self.old.outputs:
            self._float(v)
        constants = {**self.old.constants, **self.out.constants}
        return self.old.with_operations(self.out.operations, constants)

    def keep(self, part: OffloadedPart) -> None:
        """Operations unchanged."""
        for op in part.operations:
            for v in op.reads:
                self._float(v)
            self.out.operations.append(op)
            self._real.update(op.writes)

    def layer(self, part: OffloadedPart, p: IntegerProduct) -> None:
        """A part as layers, one for each group of images."""
        op = part.main
        result = part.result
        assert op is not None
        assert op.inputs[0] is not None
        rows = op.qualified in MATRIX
        fixed = [self.out.constant(a) for a in p.constants]
        data = self._tiled(op.inputs[0], p.window.inputs, rows)
        operands = [data.groups]
        if part.residual is not None:
            operands.append(self._tiled(part.residual, p.window.outputs, rows).groups)
        made = []
        for n, (x, *more) in enumerate(zip(*operands, strict=True)):
            (y,) = self.out.ops(
                OPERATOR, x, *fixed, *more, version=1, domain=DOMAIN, **p.attributes
            )
            name = f"{part.name} -> {result.name}" + (f" {n}" if n else "")
            self.out.operations[-1] = replace(self.out.operations[-1], name=name)
            made.append(y)
        self._tiles[result] = _Tiles(tuple(made), rows)
        self._channels[result] = p.channels

    # ------------------------------------------------------------------ the forms of a tensor

    def _float(self, v: Value) -> None:
        """The tensor itself, where the machine made its bytes."""
        if v in self._real:
            return
        self._real.add(v)
        found = self._plain(v)
        unit = self.out.constant(np.float32(self.units[v]))
        op = Operation(
            "DequantizeLinear", (found, unit), (v,), {}, "", 21, f"{_PREFIX}/{v.name}"
        )
        self.out.operations.append(op)

    def _plain(self, v: Value) -> Value:
        """The tensor in bytes."""
        if v not in self._bytes:
            if v in self._tiles:
                self._bytes[v] = self._untiled(v)
            else:
                unit = self.out.constant(np.float32(self.units[v]))
                zero = self.out.constant(np.zeros((), self._data))
                self._bytes[v] = self.out.op("QuantizeLinear", v, unit, zero)
        return self._bytes[v]

    def _tiled(self, v: Value, channels: int, rows: bool) -> _Tiles:
        """The tensor in bytes and in tiles of this many channels."""
        found = self._tiles.get(v)
        if found is None or found.rows != rows:
            groups = self._groups(self._images(self._plain(v), rows))
            made = tuple(self._tile(g, channels) for g in groups)
            found = self._tiles[v] = _Tiles(made, rows)
        return found

    def _images(self, x: Value, rows: bool) -> Value:
        """Images [N, C, H, W]; a matrix is one, columns as channels and rows as points."""
        if not rows:
            return x
        *lead, columns = x.extents
        matrix = self._shaped(x, (prod(lead), columns))
        turned = self.out.op("Transpose", matrix, perm=[1, 0])
        return self._shaped(turned, (1, columns, prod(lead), 1))

    def _groups(self, x: Value) -> Sequence[Value]:
        """The images, BATCH at a time; those that the last group lacks are zeros."""
        images = x.extents[0]
        batch = self.config.BATCH
        count = -(-images // batch)
        x = self._padded(x, 0, count * batch)
        if count == 1:
            return [x]
        return self.out.ops("Split", x, count=count, axis=0, num_outputs=count)

    def _tile(self, x: Value, channels: int) -> Value:
        """[BATCH, C, H, W] as [C/B, H, W, tile]."""
        batch, _, height, width = x.extents
        block = self.config.BLOCK
        full = self._padded(x, 1, channels)
        parts = self._shaped(full, (batch, channels // block, block, height, width))
        turned = self.out.op("Transpose", parts, perm=[1, 3, 4, 0, 2])
        shape = (channels // block, height, width, *self.config.tile)
        return self._shaped(turned, shape)

    def _untiled(self, v: Value) -> Value:
        """What the machine made as the model has it: images, or rows of a matrix."""
        found = self._tiles[v]
        channels = self._channels[v]
        images = [self._untile(y) for y in found.groups]
        whole = images[0]
        if len(images) > 1:
            whole = self.out.op("Concat", *images, axis=0)
        if found.rows:
            count = 1
        else:
            count = v.extents[0]
        whole = self._cut(self._cut(whole, 1, channels), 0, count)
        if not found.rows:
            return whole
        points = whole.extents[2]
        turned = self._shaped(whole, (channels, points))
        return self._shaped(self.out.op("Transpose", turned, perm=[1, 0]), v.extents)

    def _untile(self, y: Value) -> Value:
        """The inverse of `_tile`."""
        blocks, height, width, *_ = y.extents
        batch = self.config.BATCH
        block = self.config.BLOCK
        parts = self._shaped(y, (blocks, height, width, batch, block))
        turned = self.out.op("Transpose", parts, perm=[3, 0, 4, 1, 2])
        return self._shaped(turned, (batch, blocks * block, height, width))

    def _shaped(self, x: Value, shape: Sequence[int]) -> Value:
        if x.extents == tuple(shape):
            return x
        return self.out.op("Reshape", x, self.out.constant(np.array(shape, np.int64)))

    def _padded(self, x: Value, axis: int, extent: int) -> Value:
        """With zeros after, up to an extent along an axis."""
        more = extent - x.extents[axis]
        if not more:
            return x
        pads = np.zeros((2, len(x.extents)), np.int64)
        pads[1, axis] = more
        return self.out.op("Pad", x, self.out.constant(pads.reshape(-1)))

    def _cut(self, x: Value, axis: int, extent: int) -> Value:
        """The first `extent` along an axis."""
        if x.extents[axis] == extent:
            return x
        ends = ([0], [extent], [axis])
        given = [self.out.constant(np.array(n, np.int64)) for n in ends]
        return self.out.op("Slice", x, *given)
