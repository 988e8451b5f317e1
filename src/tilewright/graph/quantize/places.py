"""Which tensors are bytes: the layers' data, and around them every tensor where bytes are exact.

    layer(data)                       the data are bytes
    data = move(u)                    u is bytes of the same quantization: pooling by maximum,
                                      reshaping, transposing, slicing commute with it
    data = Concat(u, v)               u and v are bytes, all of one quantization
    data = Relu(Add(product, u))      u is bytes; the product that comes last stays real, as the sum
                                      is made where the product is

An average also reads bytes if they are available.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import JOINS, MOVES_DATA, SELECTS
from tilewright.graph.quantize.layers import Layer

_CLIPS = ("Relu", "Clip")
_SUMS = ("Add", "Sum")
_AVERAGES = ("AveragePool", "GlobalAveragePool", "ReduceMean")
Slot = tuple[Operation, int]


@dataclass(eq=False)
class QuantizedPlaces:
    """The quantized tensors, and the operands that read them as bytes.

    reads: operations with an operand number. tied: for each tensor all tensors that share its
    quantization, itself included; they share one list.
    """

    reads: dict[Slot, None] = field(default_factory=dict)
    tied: dict[Value, list[Value]] = field(default_factory=dict)

    def need(
        self,
        v: Value,
    ) -> bool:
        """Quantize it; returns whether that is new."""
        if v in self.tied:
            return False
        self.tied[v] = [v]
        return True

    def tie(
        self,
        a: Value,
        b: Value,
    ) -> None:
        """Give two tensors the same quantization."""
        if self.tied[a] is self.tied[b]:
            return
        joined = [*self.tied[a], *self.tied[b]]
        self.tied.update((v, joined) for v in joined)


def find_places(
    graph: Graph,
    layers: Sequence[Layer],
    among: Collection[Value] | None = None,
) -> QuantizedPlaces:
    """Where to quantize so that these layers read bytes.

    among: the tensors with known ranges, to which quantization is limited. Default: all.
    """
    places = QuantizedPlaces()
    byte_readers = {layer.op for layer in layers}
    work: list[Value] = []
    for layer in layers:
        places.reads[layer.op, 0] = None
        if places.need(layer.data):
            work.append(layer.data)
    while work:
        v = work.pop()
        for slot, u, same in _sources(graph, v, byte_readers):
            if among is not None and u not in among:
                continue
            places.reads[slot] = None
            if places.need(u):
                work.append(u)
            if same:
                places.tie(u, v)
    _let_averages_read(graph, places)
    return places


def _sources(
    graph: Graph,
    v: Value,
    byte_readers: set[Operation],
) -> Iterator[tuple[Slot, Value, bool]]:
    """The operands to quantize if `v` is bytes, and whether they share its quantization."""
    op = graph.producer(v)
    if op is None:
        return
    if has_trait(op, JOINS):
        operands = [u for u in op.inputs if u is not None]
        if all(_is_real(graph, u) for u in operands):
            yield from (((op, n), u, True) for n, u in enumerate(operands))
        return
    if has_trait(op, MOVES_DATA | SELECTS):
        u = op.inputs[0]
        if len(op.writes) == 1 and u is not None and _is_real(graph, u):
            if all(r is op or r in byte_readers for r in graph.users(u)):
                yield (op, 0), u, True
        return
    total = _before_clip(graph, v)
    if total is not None and total.qualified in _SUMS:
        yield from _addends(graph, total, byte_readers)


def _addends(
    graph: Graph,
    op: Operation,
    byte_readers: set[Operation],
) -> Iterator[tuple[Slot, Value, bool]]:
    """The operands of a sum of two that are to be bytes."""
    operands = [u for u in op.inputs if u is not None]
    if len(operands) != 2 or operands[0] is operands[1]:
        return
    if not all(_is_real(graph, u) and u.shape == op.writes[0].shape for u in operands):
        return
    order = {o: n for n, o in enumerate(graph.operations)}
    made = [_product_behind(graph, u, byte_readers) for u in operands]
    last = max((order[o] for o in made if o is not None), default=-1)
    for n, (u, product) in enumerate(zip(operands, made, strict=True)):
        if product is None or order[product] != last:
            yield (op, n), u, False


def _product_behind(
    graph: Graph,
    v: Value,
    byte_readers: set[Operation],
) -> Operation | None:
    """The layer whose result is `v`, possibly after a clip, and is not used elsewhere."""
    if len(graph.users(v)) != 1 or v in graph.outputs:
        return None
    op = _before_clip(graph, v)
    return op if op in byte_readers else None


def _before_clip(
    graph: Graph,
    v: Value,
) -> Operation | None:
    """The operation that makes `v`, or the one before a clip whose input is not read elsewhere."""
    op = graph.producer(v)
    if op is None or op.qualified not in _CLIPS:
        return op
    u = op.inputs[0]
    if u is None or len(graph.users(u)) != 1 or u in graph.outputs:
        return op
    return graph.producer(u)


def _is_real(
    graph: Graph,
    u: Value,
) -> bool:
    return u.dtype is float32 and u.kind == "tensor" and u not in graph.constants


def _let_averages_read(
    graph: Graph,
    places: QuantizedPlaces,
) -> None:
    for v in places.tied:
        for op in graph.users(v):
            if op.qualified in _AVERAGES and op.inputs[0] is v:
                places.reads[op, 0] = None
