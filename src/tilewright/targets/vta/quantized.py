"""Quantizing float layers, with weights and biases in the machine's layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import OpCall
from tilewright.graph.ops.windows import windows
from tilewright.graph.quantize.affine import most
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.intrinsics import WGT, elements
from tilewright.targets.vta.layers import Convolution, Requantize
from tilewright.targets.vta.operator import attributes
from tilewright.targets.vta.partition import MATRIX, POOLING, OffloadedPart
from tilewright.targets.vta.requantize import STEPS
from tilewright.targets.vta.scales import quantize, units_of_weights

Array = NDArray[Any]
_BYTE = 128


@dataclass(frozen=True, eq=False, slots=True)
class IntegerProduct:
    """A part in integers: its layer, and its constants in the machine's layout.

    attributes: of the layer as an operation. window: its shape (rows of a matrix are points of an
    image). channels: of the result without padding. requantize: the conversion of sums to bytes,
    None for pooling.
    """

    attributes: Mapping[str, Any]
    window: Convolution
    constants: tuple[Array, ...]
    channels: int
    requantize: Requantize | None = None

    def __str__(self) -> str:
        """Its channels and kernel, and the steps from sums to bytes."""
        c, q = self.window, self.requantize
        text = f"{c.inputs}->{c.outputs} {c.kernel[0]}x{c.kernel[1]}"
        if q is None:
            return text
        if q.factor is None:
            least = self.constants[-1].min()
            most = self.constants[-1].max()
            return (
                f"{text}, shift {q.before}, factors {least} to {most}, shift {q.shift}"
            )
        if q.factor == 1:
            return f"{text}, shift {q.shift}"
        return f"{text}, shift {q.before}, factor {q.factor}, shift {q.shift}"


def product(
    graph: Graph,
    part: OffloadedPart,
    shape: Sequence[int],
    units: dict[Value, float],
    by: str,
    config: VTAConfig,
) -> IntegerProduct | str:
    """A part in integers, for data of shape [C, H, W]; or the reason that this is impossible.

    units: of all tensors. The result's unit becomes larger if sums have fewer bits, and equals the
    data's for pooling. by: the conversion of sums to bytes, a name in `scales.UNITS`.
    """
    op = part.main
    assert op is not None
    data = op.inputs[0]
    assert data is not None
    if op.qualified == POOLING:
        units[part.result] = units[data]
        kernel = op.attributes["kernel_shape"]
        window = _window(op, kernel, (shape[0], *shape), config.BLOCK)
        outside = _outside(graph, data)
        given = attributes("pooling", outside, window=window, config=config)
        return IntegerProduct(given, window, (), shape[0])
    return _sums(graph, part, shape, units, by, config)


def _sums(
    graph: Graph,
    part: OffloadedPart,
    shape: Sequence[int],
    units: dict[Value, float],
    by: str,
    config: VTAConfig,
) -> IntegerProduct | str:
    """A convolution or a product in integers, as `product`."""
    op = part.main
    assert op is not None
    assert op.inputs[0] is not None
    data = units[op.inputs[0]]
    w = _weights_of(graph, op)
    bias = _bias_of(graph, part)
    if not (np.isfinite(w).all() and np.isfinite(bias).all()):
        return "its weights are not finite"
    data_bits, weight_bits = config.operand_bits
    unit = units_of_weights(w, by, weight_bits)
    whole = quantize(w, unit[:, None, None, None], weight_bits)
    sums = data * unit
    out = max(units[part.result], float(sums.max()))
    rounded = np.floor(bias / sums + 0.5)
    magnitudes = np.abs(whole.astype(np.int64)).sum((1, 2, 3))
    reach = (most(data_bits) + 1) * magnitudes + np.abs(rounded)
    more = None if part.residual is None else units[part.residual] / out
    steps = STEPS[by](sums / out, more, reach)
    if steps is None:
        return f"no {by} is safe for its sums, which can reach {int(reach.max())}"
    units[part.result] = out
    window = _window(op, w.shape[2:], (len(w), *shape), config.BLOCK)
    high = int(min(most(data_bits), max(0.0, part.most / out + 0.5)))
    one = steps[0]
    factor = None if by == "channel" else one.factor
    to_bytes = Requantize(
        one.shift, part.relu, True, one.residual, factor, one.before, high
    )
    constants = [_per_channel(rounded + [s.half for s in steps], window, config)]
    if factor is None:
        constants.append(_per_channel([s.factor for s in steps], window, config))
    depth = op.attributes.get("group", 1) > 1
    lay, kind = (_channels, "depthwise") if depth else (_weights, "convolution")
    given = attributes(kind, window=window, requantize=to_bytes, config=config)
    laid = lay(whole, window, config).astype(elements(config)[WGT].dtype.numpy)
    return IntegerProduct(given, window, (laid, *constants), len(w), to_bytes)


def _outside(graph: Graph, data: Value) -> int:
    """The padding value for maxima of windows: zero, if no value is negative."""
    source = next((op for op in graph.operations if data in op.writes), None)
    if source is not None and source.qualified == "Relu":
        return 0
    return -_BYTE


def _weights_of(graph: Graph, op: Operation) -> Array:
    """The weights of a convolution, or of a product as one: [O, I, KH, KW]."""
    v = op.inputs[1]
    assert v is not None
    w = np.asarray(graph.constants[v], np.float64)
    if op.qualified in MATRIX:
        w = (w if op.attributes.get("transB", 0) else w.T)[:, :, None, None]
    return w


def _bias_of(graph: Graph, part: OffloadedPart) -> Array:
    """A number, or one per channel."""
    assert part.main is not None
    total = np.zeros(1)
    for v in (*part.main.inputs[2:], part.bias):
        if v is not None:
            total = total + np.asarray(graph.constants[v], np.float64).reshape(-1)
    return total


def _window(
    op: Operation, kernel: Sequence[int], shape: Sequence[int], block: int
) -> Convolution:
    """The shape of a convolution or pooling of [O, C, H, W] outputs and inputs, in whole blocks."""
    outputs, inputs = (-(-n // block) * block for n in shape[:2])
    rows, columns = shape[2:]
    if op.qualified in MATRIX:
        return Convolution(inputs, outputs, (rows, columns))
    found = windows(OpCall(op), (rows, columns), kernel)
    kernel, stride, pads, dilation = (
        (a[0], a[1])
        for a in (found.kernel, found.strides, found.begin, found.dilations)
    )
    ends = (
        (n - 1) * s + (k - 1) * d + 1 - h - p
        for n, s, k, d, h, p in zip(
            found.outputs, stride, kernel, dilation, found.inputs, pads, strict=True
        )
    )
    above, behind = ends
    return Convolution(
        inputs,
        outputs,
        (rows, columns),
        kernel,
        stride,
        pads,
        (above, behind),
        dilation,
    )


def _channels(
    w: NDArray[np.int8], c: Convolution, config: VTAConfig
) -> NDArray[np.int8]:
    """The weights of a depthwise convolution: [C/B, KH, KW, tile]."""
    full = np.zeros((c.outputs, *c.kernel), np.int8)
    full[: len(w)] = w[:, 0]
    blocks = full.reshape(-1, config.BLOCK, *c.kernel).transpose(0, 2, 3, 1)
    return _rows(blocks, config)


def _weights(
    w: NDArray[np.int8], c: Convolution, config: VTAConfig
) -> NDArray[np.int8]:
    """[O/B, C/B, KH, KW, B, B]."""
    full = np.zeros((c.outputs, c.inputs, *c.kernel), np.int8)
    full[: w.shape[0], : w.shape[1]] = w
    block = config.BLOCK
    tiles = full.reshape(c.outputs // block, block, c.inputs // block, block, *c.kernel)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 5, 1, 3))


def _per_channel(
    numbers: Sequence[int] | Array, c: Convolution, config: VTAConfig
) -> NDArray[np.int32]:
    """[O/B, tile]."""
    full = np.zeros(c.outputs, np.int32)
    full[: len(numbers)] = numbers
    return _rows(full.reshape(-1, config.BLOCK), config)


def _rows(blocks: Array, config: VTAConfig) -> Array:
    """[..., B] as tiles, whose rows are alike."""
    tiles = np.broadcast_to(
        blocks[..., None, :], (*blocks.shape[:-1], config.BATCH, config.BLOCK)
    )
    return np.ascontiguousarray(tiles.reshape(*blocks.shape[:-1], *config.tile))
