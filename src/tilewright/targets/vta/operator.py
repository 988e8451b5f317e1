"""A layer of the machine as an operator of graphs, in the machine's layout and in integers.

    Layer(x, w?, bias?, factors?, residual?) -> y        domain vta

Its attributes are those of `layers.Convolution` and `layers.Requantize`, and the kind of layer. Its
operands and result are those of the layer, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from math import prod
from typing import Any, Final

from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import relayout
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Operation
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import CHANGES_AXES
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.layers import (
    Convolution,
    LayerProgram,
    Requantize,
    convolution,
    depthwise,
    pooling,
)

DOMAIN: Final = "vta"
OPERATOR: Final = "Layer"
_PARTS: Final = {"window": Convolution, "requantize": Requantize, "config": VTAConfig}


def attributes(
    kind: str, outside: int = 0, **parts: Convolution | Requantize | VTAConfig | None
) -> dict[str, Any]:
    """The attributes of a layer: convolution, depthwise or pooling; parts: as in `_PARTS`."""
    found: dict[str, Any] = {"kind": kind, "outside": outside}
    for name, part in parts.items():
        if part is not None:
            values = asdict(part).items()
            found |= {f"{name}_{k}": v for k, v in values if v is not None}
    return found


def layer_of(op: Operation) -> LayerProgram:
    """The layer that an operation is."""
    given = op.attributes
    window, requantize, config = (_part(name, given) for name in _PARTS)
    if given["kind"] == "pooling":
        return pooling(window, outside=given["outside"], config=config)
    make = depthwise if given["kind"] == "depthwise" else convolution
    return make(window, requantize, config=config)


def _part(name: str, given: Mapping[str, Any]) -> Any:
    """One of the parts, without the fields that are None."""
    kind: Any = _PARTS[name]
    found = {}
    for f in fields(kind):
        value = given.get(f"{name}_{f.name}")
        found[f.name] = tuple(value) if isinstance(value, list | tuple) else value
    if any(v is not None for v in found.values()):
        return kind(**found)
    return None


def _infer(call: OpCall) -> Sequence[Type]:
    result = layer_of(call.operation).params[-1]
    return [(result.dtype, result.shape)]


def _compute(
    call: OpCall, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
) -> list[Computation]:
    layer = layer_of(call.operation)
    given = zip(layer.params, (*inputs, *outputs), strict=True)
    stored = {p: (b, tuple(range(len(b.shape)))) for p, b in given}
    return [relayout(c, stored) for c in layer.computations]


def _reference(call: OpCall, *arrays: Any) -> list[Any]:
    layer = layer_of(call.operation)
    given = dict(zip(layer.params, arrays, strict=False))
    return [evaluate(layer.computations, given)[layer.params[-1]]]


def _flops(call: OpCall) -> int:
    """Multiplications and additions of products; nothing for pooling."""
    if call.attr("kind") == "pooling":
        return 0
    sums = (c for c in layer_of(call.operation).computations if c.reducer is not None)
    return 2 * sum(prod(d.extent for d in c.dims) for c in sums)


register(
    OpDef(
        OPERATOR,
        domain=DOMAIN,
        infer=_infer,
        compute=_compute,
        reference=_reference,
        flops=_flops,
        traits=CHANGES_AXES,
    )
)
