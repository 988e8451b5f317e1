"""One opset per domain for a graph whose operators come from several.

An operation states the version that it was written for. If one opset has all operators in those
versions, the graph is written unchanged. Otherwise older operators are upgraded to the newest opset
that any operator needs, if their meaning did not change or by a conversion in CONVERT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import DType, float32, int64
from tilewright.base.errors import UnsupportedError
from tilewright.base.names import fresh
from tilewright.frontends.onnx.functions import schema_of
from tilewright.graph.nodes import Graph, Operation, Value, constant
from tilewright.graph.ops.sample import newest_modes

# Runtimes guarantee no support below this opset of ONNX's default domain.
OLDEST: Final = 7

# The operation in a newer opset's form, None if it needs no change.
Converter = Callable[[Operation, int, "ConstantNames"], Operation | None]


class ConstantNames:
    """Constants made by conversions of one graph, with unique names.

    taken: the names of all values, extended here. A name of an enclosing graph, used again, would
    hide its value from captures; ONNX forbids that.
    """

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self.constants: dict[Value, Any] = {}

    def ints(self, name: str, numbers: Any) -> Value:
        """Add an int64 constant: a number, or a vector of numbers."""
        return self.of(name, numbers, int64)

    def of(self, name: str, numbers: Any, dtype: DType) -> Value:
        """Add a constant."""
        name = fresh(self._taken, name)
        array = np.asarray(numbers, dtype.numpy)
        value = constant(name, array)
        self.constants[value] = array
        return value


def common_opsets(graph: Graph) -> tuple[Graph, dict[str, int]]:
    """The graph with every operator in the version of one opset per domain, and those opsets.

    Raises UnsupportedError naming the operators that no conversion can upgrade.
    """
    opsets = _wanted(graph)
    problems: dict[str, None] = {}
    taken = {v.name for g in _every_graph(graph) for v in g.values}
    converted = _convert(graph, opsets, taken, problems)
    if problems:
        raise UnsupportedError(
            f"no single opset has all operators of this graph: {'; '.join(problems)}",
            code="TW-OPSET",
            items=problems,
            hint="Convert the model to that opset first (onnx.version_converter)",
        )
    return converted, opsets


def every_operation(graph: Graph) -> Iterator[Operation]:
    """The operations of a graph and of all subgraphs."""
    return (op for g in _every_graph(graph) for op in g.operations)


def _every_graph(graph: Graph) -> Iterator[Graph]:
    yield graph
    for op in graph.operations:
        for inner in op.subgraphs:
            yield from _every_graph(inner)


def _wanted(graph: Graph) -> dict[str, int]:
    """By domain, the oldest opset that has the newest of the operators."""
    found = {"": OLDEST}
    for op in every_operation(graph):
        found[op.domain] = max(found.get(op.domain, 1), _since(op))
    return found


def _since(op: Operation) -> int:
    """The opset that gave the operator the meaning it has in this operation."""
    schema = schema_of(op.op_type, op.domain, op.version)
    if schema is None:
        return op.version
    return int(schema.since_version)


def _convert(
    graph: Graph,
    opsets: Mapping[str, int],
    taken: set[str],
    problems: dict[str, None],
) -> Graph:
    names = ConstantNames(taken)
    operations = []
    for op in graph.operations:
        bodies = {
            n: _convert(a, opsets, taken, problems) if isinstance(a, Graph) else a
            for n, a in op.attributes.items()
        }
        if op.subgraphs:
            op = replace(op, attributes=bodies)
        operations.append(_converted(op, opsets, names, problems))
    if all(a is b for a, b in zip(operations, graph.operations)):
        return graph
    return replace(
        graph,
        operations=tuple(operations),
        constants={**graph.constants, **names.constants},
    )


def _converted(
    op: Operation,
    opsets: Mapping[str, int],
    names: ConstantNames,
    problems: dict[str, None],
) -> Operation:
    target = opsets[op.domain]
    if op.qualified in REPLACED:
        written, since, replaced = REPLACED[op.qualified]
        op = replaced(op, names) if op.version >= written and target >= since else op
    old = schema_of(op.op_type, op.domain, op.version)
    new = schema_of(op.op_type, op.domain, target)
    if old is None or new is None or old.since_version == new.since_version:
        return op
    if not new.deprecated and not _changed(op, old, new):
        for convert in CONVERT.get(op.qualified, ()):
            moved = convert(op, target, names)
            op = op if moved is None else moved
        if _says_the_same(op, old, new):
            version = int(new.since_version)
            return replace(op, version=version)
    problems[
        f"{op.qualified} of opset {old.since_version} (node {op.label!r}) "
        f"means something else in opset {target}"
    ] = None
    return op


def _changed(op: Operation, old: Any, new: Any) -> bool:
    """Whether the meaning of the operation changed, even if its signature did not."""
    opset, concerns = CHANGED.get(op.qualified, (0, _every))
    return bool(old.since_version < opset <= new.since_version) and concerns(op)


def _says_the_same(op: Operation, old: Any, new: Any) -> bool:
    """Whether the newer schema interprets the operation's inputs and attributes the same way.

    Omitted attributes must have had the same default as now.
    """
    if not new.min_input <= len(op.inputs) <= new.max_input:
        return False
    if not new.min_output <= len(op.outputs) <= new.max_output:
        return False
    if set(op.attributes) - set(new.attributes):
        return False
    return all(
        name in op.attributes
        or name not in new.attributes
        or _default(a) == _default(new.attributes[name])
        for name, a in old.attributes.items()
    )


def _default(attribute: Any) -> bytes:
    return bytes(attribute.default_value.SerializeToString())


def _to_input(attribute: str, since: int) -> Converter:
    """A list attribute that became the second input in some opset."""

    def convert(op: Operation, target: int, names: ConstantNames) -> Operation | None:
        if target < since or op.attributes.get(attribute) is None:
            return None
        rest = {n: a for n, a in op.attributes.items() if n != attribute}
        first = next(v.name for v in op.writes)
        numbers = op.attributes[attribute]
        operand = names.ints(f"{first}_{attribute}", numbers)
        return replace(op, inputs=(*op.inputs[:1], operand), attributes=rest)

    return convert


def _fourier_axis(op: Operation, target: int, names: ConstantNames) -> Operation | None:
    """DFT's axis is an input since opset 20, with another default."""
    if target < 20 or op.version >= 20:
        return None
    given = dict(op.attributes)
    first = next(v.name for v in op.writes)
    numbers = given.pop("axis", 1)
    operand = names.ints(f"{first}_axis", numbers)
    if len(op.inputs) > 1:
        length = op.inputs[1]
    else:
        length = None
    return replace(op, inputs=(op.inputs[0], length, operand), attributes=given)


def _count_parts(op: Operation, target: int, names: ConstantNames) -> Operation | None:
    """Since opset 18 Split needs the number of equal parts if no sizes are given."""
    if target < 18 or len(op.inputs) > 1 or "num_outputs" in op.attributes:
        return None
    return replace(op, attributes={**op.attributes, "num_outputs": len(op.outputs)})


def _explicit(attribute: str, value: Any, since: int) -> Converter:
    """Spell out an attribute's former default, as the default or its absence changed meaning."""

    def convert(op: Operation, target: int, names: ConstantNames) -> Operation | None:
        if target < since or attribute in op.attributes:
            return None
        return replace(op, attributes={**op.attributes, attribute: value})

    return convert


def _only_axis(op: Operation, target: int, names: ConstantNames) -> Operation | None:
    """Softmax's default was axis 1 before opset 13; here it is a single one, see CHANGED."""
    if target < 13 or op.version >= 13:
        return None
    return replace(op, attributes={**op.attributes, "axis": _axis_of_all(op)})


def _limits(op: Operation, target: int, names: ConstantNames) -> Operation | None:
    """Clip's limits are inputs since opset 11; the greatest float32 was one by default."""
    if target < 11 or op.version >= 11:
        return None
    x = op.reads[0]
    assert x.dtype is not None
    most = float(np.finfo(np.float32).max)
    given = {"min": -most, "max": most, **op.attributes}
    with np.errstate(over="ignore"):
        limits = [
            names.of(f"{op.writes[0].name}_{n}", given[n], x.dtype)
            for n in ("min", "max")
        ]
    return replace(op, inputs=(x, *limits), attributes={})


def _borders(op: Operation, target: int, names: ConstantNames) -> Operation | None:
    """Pad's borders and their value are inputs since opset 11; `paddings` are `pads` since 2."""
    if op.version >= min(target, 11):
        return None
    rest = dict(op.attributes)
    borders = rest.pop("pads" if op.version >= 2 else "paddings")
    if target < 11:
        return replace(op, attributes={**rest, "pads": borders})
    x = op.reads[0]
    assert x.dtype is not None
    first = op.writes[0].name
    pads = names.ints(f"{first}_pads", borders)
    value = names.of(f"{first}_value", rest.pop("value", 0.0), x.dtype)
    return replace(op, inputs=(x, pads, value), attributes=rest)


def _ends(op: Operation, target: int, names: ConstantNames) -> Operation | None:
    """Slice's ends are inputs since opset 10."""
    if target < 10 or op.version >= 10:
        return None
    given = [op.attributes.get(n) for n in ("starts", "ends", "axes")]
    ends = [
        names.ints(f"{op.writes[0].name}_ends", numbers)
        for numbers in given
        if numbers is not None
    ]
    return replace(op, inputs=(*op.inputs[:1], *ends), attributes={})


def _count(op: Operation, target: int, names: ConstantNames) -> Operation | None:
    """TopK's number of elements is an input since opset 10."""
    if target < 10 or op.version >= 10:
        return None
    rest = dict(op.attributes)
    count = names.ints(f"{op.writes[0].name}_k", [rest.pop("k")])
    return replace(op, inputs=(*op.inputs[:1], count), attributes=rest)


def _dropped(op: Operation, target: int, names: ConstantNames) -> Operation | None:
    """Dropout's ratio is an input since opset 12. A mask was no bool before opset 10."""
    if target < 12 or op.version >= 12 or len(op.writes) > 1:
        return None
    ratio = op.attributes.get("ratio", 0.5)
    operand = names.of(f"{op.writes[0].name}_ratio", ratio, float32)
    return replace(op, inputs=(*op.inputs[:1], operand), attributes={})


def _places(op: Operation, target: int, names: ConstantNames) -> Operation | None:
    """Resize has modes, and a region before the scales, since opset 11."""
    if target < 11 or op.version >= 11:
        return None
    x, scales = op.inputs
    region = names.of(f"{op.writes[0].name}_roi", [], float32)
    modes = {
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return replace(
        op, inputs=(x, region, scales), attributes={**op.attributes, **modes}
    )


def _by_channel(op: Operation, target: int, names: ConstantNames) -> Operation | None:
    """BatchNormalization always is by channel since opset 9."""
    if target < 9 or op.attributes.get("spatial") != 1:
        return None
    rest = {n: a for n, a in op.attributes.items() if n != "spatial"}
    return replace(op, attributes=rest)


def _upsampled(op: Operation, names: ConstantNames) -> Operation:
    """Upsample as Resize of opset 10. Its scales were an attribute in opset 7."""
    rest = dict(op.attributes)
    inputs = op.inputs
    if "scales" in rest:
        scales = names.of(f"{op.writes[0].name}_scales", rest.pop("scales"), float32)
        inputs = (*inputs, scales)
    return replace(op, op_type="Resize", inputs=inputs, attributes=rest, version=10)


def _scattered(op: Operation, names: ConstantNames) -> Operation:
    return replace(op, op_type="ScatterElements", version=11)


def _sample_modes(op: Operation, target: int, names: ConstantNames) -> Operation | None:
    """GridSample's modes have other names since opset 20."""
    if target < 20 or op.version >= 20:
        return None
    return newest_modes(op)


_REDUCTIONS: Final = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod")

# Operator -> conversions that upgrade an operation of an older opset.
CONVERT: Final[Mapping[str, tuple[Converter, ...]]] = {
    "Squeeze": (_to_input("axes", 13),),
    "Unsqueeze": (_to_input("axes", 13),),
    "Split": (_to_input("split", 13), _count_parts),
    "ReduceSum": (_to_input("axes", 13),),
    **{f"Reduce{n}": (_to_input("axes", 18),) for n in (*_REDUCTIONS, "SumSquare")},
    "Softmax": (_only_axis,),
    "LogSoftmax": (_only_axis,),
    "Hardmax": (_only_axis,),
    "BatchNormalization": (_by_channel,),
    "Clip": (_limits,),
    "Dropout": (_dropped,),
    "Pad": (_borders,),
    "Resize": (_places,),
    "Slice": (_ends,),
    "TopK": (_count,),
    "DFT": (_fourier_axis,),
    "GridSample": (_sample_modes,),
    "RoiAlign": (_explicit("coordinate_transformation_mode", "output_half_pixel", 16),),
}

# Operator -> the oldest opset of it that is understood here, the opset in which another took its
# place, and the operation in terms of that.
REPLACED: Final[
    Mapping[str, tuple[int, int, Callable[[Operation, ConstantNames], Operation]]]
] = {
    "Scatter": (9, 11, _scattered),
    "Upsample": (7, 10, _upsampled),  # before, its scales were two attributes
}


def _every(op: Operation) -> bool:
    return True


def _over_several_axes(op: Operation) -> bool:
    """Softmax ran over all axes from its own on; over just one of them nothing changed."""
    return _axis_of_all(op) is None


def _axis_of_all(op: Operation) -> int | None:
    """The axis along which there is more than one element, of those from Softmax's own on.

    -1 for the last one, None if there may be several such axes.
    """
    shape = op.reads[0].shape
    if not shape:
        return None
    first = int(op.attributes.get("axis", 1)) % len(shape)
    long = [n for n in range(first, len(shape)) if shape[n] != 1]
    if len(long) > 1:
        return None
    axis = long[0] if long else first
    return -1 if axis == len(shape) - 1 else axis


def _ceils_with_padding(op: Operation) -> bool:
    """The window part beyond the padding no longer counts as padding."""
    return bool(
        op.attributes.get("ceil_mode") and op.attributes.get("count_include_pad")
    )


# Operator -> opset in which its meaning changed, and for which operations.
CHANGED: Final[Mapping[str, tuple[int, Callable[[Operation], bool]]]] = {
    "AveragePool": (19, _ceils_with_padding),
    "BatchNormalization": (7, _every),  # it trained by default
    "Dropout": (7, _every),  # as BatchNormalization
    "GroupNormalization": (21, _every),  # a scale per group, then per channel
    "Hardmax": (13, _over_several_axes),
    "LogSoftmax": (13, _over_several_axes),
    "PRelu": (7, _every),  # one slope per channel; now by broadcasting
    "Scan": (9, _every),
    "Softmax": (13, _over_several_axes),
    "Split": (2, _every),
    "Tile": (6, _every),
}
