"""DepthToSpace and SpaceToDepth: blocks of channels to blocks of pixels, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Program, Type, register
from tilewright.graph.ops.traits import MOVES_DATA, SPATIAL


def _block(call: OpCall, rank: int) -> int:
    """The side of a block. Raises ModelError if it is missing or below 1, or the rank is not 4."""
    size = int(call.attr("blocksize", 0))
    if size < 1:
        raise call.error(f"blocksize is {size}, expected at least 1")
    if rank != 4:
        raise call.error(f"its input has {rank} dimensions, expected [N, C, H, W]")
    return size


def _rows_first(call: OpCall) -> bool:
    mode = call.attr("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise call.error(f"mode {mode!r}, expected DCR or CRD")
    return bool(mode == "DCR")


def _to_space_type(call: OpCall) -> Sequence[Type]:
    b = _block(call, call.rank(0))
    _rows_first(call)
    n, c, h, w = call.shape(0)
    if c % (b * b):
        raise call.error(
            f"{c} channels are not a multiple of blocksize squared, {b * b}"
        )
    return call.result((n, c // (b * b), h * b, w * b))


def _to_space(
    call: OpCall,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> Program:
    b = _block(call, len(inputs[0].shape))
    x = inputs[0]
    depth = outputs[0].shape[1]

    def value(
        n: Any,
        c: Any,
        h: Any,
        w: Any,
    ) -> Any:
        place = h % b * b + w % b
        if _rows_first(call):
            channel = place * depth + c
        else:
            channel = c * (b * b) + place
        return x[n, channel, h // b, w // b]

    return [map_(call.name, outputs[0], value)]


def _to_space_reference(call: OpCall, x: Array) -> list[Array]:
    b = _block(call, x.ndim)
    n, c, h, w = x.shape
    depth = c // (b * b)
    if _rows_first(call):
        blocks = x.reshape(n, b, b, depth, h, w)
        parts = blocks.transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, depth, b, b, h, w)
        parts = blocks.transpose(0, 1, 4, 2, 5, 3)
    return [parts.reshape(n, depth, h * b, w * b)]


register(
    OpDef(
        "DepthToSpace",
        _to_space_type,
        compute=_to_space,
        reference=_to_space_reference,
        traits=SPATIAL | MOVES_DATA,
    )
)


def _to_depth_type(call: OpCall) -> Sequence[Type]:
    b = _block(call, call.rank(0))
    _rows_first(call)
    n, c, h, w = call.shape(0)
    if h % b or w % b:
        raise call.error(f"{h} x {w} pixels are not divisible by blocksize {b}")
    return call.result((n, c * b * b, h // b, w // b))


def _to_depth(
    call: OpCall,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> Program:
    b = _block(call, len(inputs[0].shape))
    x = inputs[0]
    depth = x.shape[1]

    def value(
        n: Any,
        c: Any,
        h: Any,
        w: Any,
    ) -> Any:
        rows_first = _rows_first(call)
        place = c // depth if rows_first else c % (b * b)
        channel = c % depth if rows_first else c // (b * b)
        return x[n, channel, h * b + place // b, w * b + place % b]

    return [map_(call.name, outputs[0], value)]


def _to_depth_reference(call: OpCall, x: Array) -> list[Array]:
    b = _block(call, x.ndim)
    n, c, h, w = x.shape
    if _rows_first(call):
        order = (0, 3, 5, 1, 2, 4)
    else:
        order = (0, 1, 3, 5, 2, 4)
    rows = h // b
    columns = w // b
    blocks = x.reshape(n, c, rows, b, columns, b)
    parts = np.ascontiguousarray(blocks.transpose(order))
    return [parts.reshape(n, c * b * b, rows, columns)]


register(
    OpDef(
        "SpaceToDepth",
        _to_depth_type,
        compute=_to_depth,
        reference=_to_depth_reference,
        traits=SPATIAL | MOVES_DATA,
    )
)
