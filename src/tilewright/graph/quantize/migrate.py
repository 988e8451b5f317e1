"""Moving a per-channel factor from a layer's data into its weights, which changes no result.

    layer(x, W)  =  layer(x / s, s * W)      s > 0, one number per channel of x

x / s is free if the producer of x can fold the factor into its constants. `ChannelDivision`
decides:

    (a + c) / s  =  a / s + c / s            c is constant, or its channels are
    (a * c) / s  =  a * (c / s)
    f(a) / s     =  f(a / s)                 f is positively homogeneous and does not mix channels:
                                             Relu, LeakyRelu, pooling, but not Clip, Gelu, Sigmoid
    (a @ W) / s  =  a @ (W / s)              likewise for convolutions
    norm(a)      =  (...) * c + d            as a product and a sum

Nothing else may read the divided tensor: neither another operation nor the model's caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.graph.nodes import Graph, Operation, Value, constant
from tilewright.graph.quantize.affine import along
from tilewright.graph.quantize.layers import Layer
from tilewright.graph.renaming import names_in

Array = NDArray[Any]
Slot = tuple[Operation, int]
MOST = 2.0**20  # a factor, or its inverse


@dataclass(eq=False)
class ChannelDivision:
    """A tensor divided by a factor per channel.

    edits: new arrays for constant operands. root: the product that makes the tensor, or None. why:
    why it cannot be divided; empty if it can.
    """

    graph: Graph
    factor: Array
    edits: dict[Slot, Array] = field(default_factory=dict)
    root: Operation | None = None
    why: str = ""

    def of(
        self,
        v: Value,
        axis: int,
        readers: int = 1,
    ) -> ChannelDivision:
        """Divide `v`, which `readers` operations read, along an axis counted from the front."""
        op = self.graph.producer(v)
        if op is None:
            return self._fail(f"{v.name} is an input")
        if v in self.graph.outputs:
            return self._fail(f"{v.name} is an output of the model")
        if len(self.graph.users(v)) != readers:
            return self._fail(f"others read {v.name}")
        rule = _RULES.get(op.qualified)
        if rule is None or len(op.writes) != 1:
            return self._fail(f"{op.label} takes no factor")
        rule(self, op, axis)
        return self

    def _fail(
        self,
        why: str,
    ) -> ChannelDivision:
        self.why = self.why or why
        return self

    # ------------------------------------------------------------------------------ the rules

    def homogeneous(
        self,
        op: Operation,
        axis: int,
    ) -> None:
        """f(a / s)."""
        self.of(_first(op), axis)

    def spatial(
        self,
        op: Operation,
        axis: int,
    ) -> None:
        """Pooling, channel by channel."""
        if axis != 1:
            self._fail(f"{op.label} mixes the axis")
        else:
            self.of(_first(op), axis)

    def total(
        self,
        op: Operation,
        axis: int,
    ) -> None:
        """a + c or a - c."""
        place = self._constant_operand(op)
        if place is None:
            self._fail(f"{op.label} adds a computed operand")
            return
        self._scale(op, place, axis, 1 / self.factor)
        other = op.inputs[1 - place]
        assert other is not None
        if _shape_of(other) != _shape_of(op.writes[0]):
            self._fail(f"{op.label} broadcasts")
        else:
            self.of(other, axis)

    def scaled(
        self,
        op: Operation,
        axis: int,
    ) -> None:
        """a * c, or a / c."""
        place = self._constant_operand(op)
        if place is None or (op.qualified == "Div" and place == 0):
            self._fail(f"{op.label} has no constant factor")
            return
        divides = op.qualified == "Div"
        self._scale(op, place, axis, self.factor if divides else 1 / self.factor)

    def normalized(
        self,
        op: Operation,
        axis: int,
    ) -> None:
        """A normalization over the last axis only, with its scale and bias."""
        rank = len(op.writes[0].shape or ())
        over = op.attr("axis", -1) % max(rank, 1)
        known = all(v is None or v in self.graph.constants for v in op.inputs[1:])
        if axis != rank - 1 or over != axis or not known:
            self._fail(f"{op.label} has no constant scale along the axis")
            return
        for n, v in enumerate(op.inputs):
            if n and v is not None:
                self.edits[op, n] = self.graph.constants[v] / self.factor

    def product(
        self,
        op: Operation,
        axis: int,
    ) -> None:
        """The weights, and the bias, of a layer."""
        layer = self.layers.get(op)
        rank = len(op.writes[0].shape or ())
        if layer is None or axis != layer.data_axis % max(rank, 1):
            self._fail(f"{op.label} is not a layer with constant weights")
            return
        bias = layer.bias
        if bias is not None:
            b = self.graph.constants.get(bias)
            if b is None or b.shape != self.factor.shape:
                self._fail(f"the bias of {op.label} is not a vector of constants")
                return
            self.edits[op, 2] = b / self.factor
        w = self.graph.constants[layer.weight]
        shape = along(layer.channels, w.ndim)
        self.edits[op, 1] = w / self.factor.reshape(shape)
        self.root = op

    layers: Mapping[Operation, Layer] = field(default_factory=dict)

    def _constant_operand(
        self,
        op: Operation,
    ) -> int | None:
        places = [n for n, v in enumerate(op.inputs) if v in self.graph.constants]
        return places[0] if len(op.inputs) == 2 and len(places) == 1 else None

    def _scale(
        self,
        op: Operation,
        place: int,
        axis: int,
        by: Array,
    ) -> None:
        """Multiply a constant operand along the result's axis."""
        v = op.inputs[place]
        assert v is not None
        c = self.graph.constants[v]
        rank = len(op.writes[0].shape or ())
        if c.ndim > rank:
            self._fail(f"{op.label} broadcasts")
            return
        wide = c.reshape((1,) * (rank - c.ndim) + c.shape)
        self.edits[op, place] = wide * by.reshape(along(axis, rank))


_Apply = Callable[[ChannelDivision, Operation, int], None]
_RULES: Mapping[str, _Apply] = {
    **dict.fromkeys(("Relu", "LeakyRelu", "Identity"), ChannelDivision.homogeneous),
    **dict.fromkeys(
        ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
        ChannelDivision.spatial,
    ),
    **dict.fromkeys(("Add", "Sub"), ChannelDivision.total),
    **dict.fromkeys(("Mul", "Div"), ChannelDivision.scaled),
    **dict.fromkeys(("Conv", "Gemm", "MatMul"), ChannelDivision.product),
    "LayerNormalization": ChannelDivision.normalized,
}


def _first(op: Operation) -> Value:
    v = op.inputs[0]
    assert v is not None
    return v


def _shape_of(v: Value) -> Any:
    return v.shape


def migrated(
    graph: Graph,
    readers: Sequence[Layer],
    factor: Array,
    layers: Mapping[Operation, Layer],
) -> Graph | str:
    """The graph with the data of `readers` divided by a factor, and their weights multiplied by it.

    readers: all that read one tensor. factor: float64 [channels], within 1 / MOST and MOST. Also
    returns the reason if it is impossible.
    """
    found = division(graph, readers, factor, layers)
    if found.why:
        return found.why
    edits = dict(found.edits)
    for layer in readers:
        w = edits.get((layer.op, 1), graph.constants[layer.weight])
        edits[layer.op, 1] = w * by_input(layer, w, factor)
    return edited(graph, edits)


def division(
    graph: Graph,
    readers: Sequence[Layer],
    factor: Array,
    layers: Mapping[Operation, Layer],
) -> ChannelDivision:
    """Divide the data that `readers`, and nothing else, read."""
    data = readers[0].data
    found = ChannelDivision(graph, factor, layers=layers, why=disagreement(readers))
    if found.why:
        return found
    return found.of(data, _axis(readers[0], data.shape), len(readers))


def disagreement(readers: Sequence[Layer]) -> str:
    """Why the layers that read one tensor have no channels in common; empty if they have."""
    data = readers[0].data
    if data.shape is None:
        return f"the rank of {data.name} is not known"
    if len({_axis(r, data.shape) for r in readers}) > 1:
        return f"the readers of {data.name} disagree on its axis of channels"
    return ""


def _axis(layer: Layer, shape: Sequence[Any] | None) -> int:
    """The axis of the channels in the layer's data, from the front."""
    return layer.data_axis % len(shape or (1,))


def by_input(
    layer: Layer,
    w: Array,
    factor: Array,
) -> Array:
    """A factor per data channel, in the shape that multiplies the weights."""
    if layer.group == 1:
        return factor.reshape(along(layer.inputs, w.ndim))
    per_group = factor.reshape(layer.group, -1)
    rows = np.repeat(per_group, w.shape[0] // layer.group, 0)
    return rows.reshape(*rows.shape, *[1] * (w.ndim - 2))


def edited(
    graph: Graph,
    edits: Mapping[Slot, Array],
) -> Graph:
    """The graph with other constants for these operands, in float32."""
    taken = names_in(graph)
    constants = dict(graph.constants)
    new: dict[Operation, list[Value | None]] = {}
    for (op, n), array in edits.items():
        inputs = new.setdefault(op, list(op.inputs))
        inputs += [None] * (n + 1 - len(inputs))
        old = inputs[n]
        stem = f"{op.label}/{n}" if old is None else old.name
        real = array.astype(np.float32)
        inputs[n] = v = constant(fresh(taken, f"{stem}/scaled", "."), real)
        constants[v] = real
    operations = [
        replace(op, inputs=tuple(new[op])) if op in new else op
        for op in graph.operations
    ]
    return graph.with_operations(operations, constants)
