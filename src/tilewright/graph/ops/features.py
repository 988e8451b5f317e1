"""Operators of ai.onnx.ml that are plain maps: Binarizer, ArrayFeatureExtractor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compute.build import cast, map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

Buffers = Sequence[Buffer]
DOMAIN = "ai.onnx.ml"


def _binarizer(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]
    limit = const(op.attr("threshold", 0.0), x.dtype)
    one = const(1, out.dtype)
    zero = const(0, out.dtype)
    return [map_(op.name, out, lambda *i: Select(x[i] > limit, one, zero))]


register(
    OpDef(
        "Binarizer",
        same_type,
        domain=DOMAIN,
        compute=_binarizer,
    )
)


def _extracted(op: OpCall) -> Sequence[Type]:
    x = op.shape(0)
    if not x:
        raise op.error("its data has no axis")
    if len(x) > 1:
        lead = x[:-1]
    else:
        lead = (1,)
    return op.result((*lead, op.size(1)))


def _extract(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    """Columns of the last axis; the positions are flattened to one row."""
    x, places = inputs
    if any(n != 1 for n in places.shape[:-1]):
        return None  # `_flattened` turns them into a row

    def at(*i: Any) -> Expr:
        lead = (const(0),) * (len(places.shape) - 1)
        column = cast(places[(*lead, i[-1]) if places.shape else ()], INDEX)
        return x[(*i[:-1], column) if len(x.shape) > 1 else (column,)]

    return [map_(op.name, outputs[0], at)]


def _flattened(op: OpCall, f: Fragment) -> list[Value] | None:
    """The same with the positions as a row; None if they are one already."""
    if all(n == 1 for n in op.shape(1)[:-1]):
        return None
    row = f.reshape(op.value(1), -1)
    return f.ops("ArrayFeatureExtractor", op.value(0), row, domain=DOMAIN, version=1)


register(
    OpDef(
        "ArrayFeatureExtractor",
        _extracted,
        domain=DOMAIN,
        compute=_extract,
        decompose=_flattened,
    )
)
