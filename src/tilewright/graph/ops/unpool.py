"""Placing values into a larger tensor: MaxUnpool, Col2Im."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.compute.build import cast, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import wide, wide_dtype
from tilewright.graph.ops.derivative import Backward, extents, reshaped, shape
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import Kernel, Stmt, Store, block

Buffers = Sequence[Buffer]


def _pooled_from(call: OpCall) -> tuple[int, ...]:
    """The spatial extents of the input of a pooling with these attributes."""
    spatial = call.shape(0)[2:]
    kernel_shape = call.attr("kernel_shape")
    strides = call.attr("strides") or [1] * len(spatial)
    pads = call.attr("pads") or [0] * 2 * len(spatial)
    return tuple(
        (n - 1) * strides[a] - pads[a] - pads[a + len(spatial)] + kernel_shape[a]
        for a, n in enumerate(spatial)
    )


def _unpool_type(call: OpCall) -> Sequence[Type]:
    asked = call.ints(2)
    if asked is None:
        shape = (*call.shape(0)[:2], *_pooled_from(call))
    else:
        shape = tuple(asked)
    if len(shape) != call.rank(0) or shape[:2] != call.shape(0)[:2]:
        raise call.error(
            f"output_shape {list(shape)} does not fit {list(call.shape(0))}"
        )
    return call.result(shape)


def _unpool(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    """Positions index the tensor that was pooled, which may be smaller."""
    x = inputs[0]
    places = inputs[1]
    out = outputs[0]
    pooled = (*x.shape[:2], *_pooled_from(call))
    nests = LoopNests()

    def put(*i: Expr) -> Stmt:
        flat = cast(places[i], INDEX)
        index = []
        for a in range(len(pooled)):
            below = math.prod(pooled[a + 1 :])
            term = flat // below if below > 1 else flat
            index.append(term if a == 0 else term % pooled[a])
        return Store(out, tuple(index), x[i])

    zero = const(0, out.dtype)
    body = block(
        nests.copy(out, lambda *i: zero),
        nests.over(x.shape, put),
    )
    return [kernel(call.name, inputs[:2], outputs, body)]


def _unpool_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value | None]:
    """An element has the gradient of its place if no later one has replaced it there."""
    sizes = extents(x[0])
    pooled = (*sizes[:2], *_pooled_from(call))
    if any(n < least for n, least in zip(extents(y), pooled, strict=True)):
        call.refuse(f"its output_shape is smaller than {list(pooled)}")
    if extents(y) != pooled:
        g = f.op("Slice", g, shape(f, [0] * len(pooled)), shape(f, pooled))
    places = f.term(reshaped(f, x[1], [-1]))
    numbers = f.constant(np.arange(1, 1 + math.prod(sizes)), int64)
    none = f.constant(np.zeros(math.prod(pooled)), int64)
    last = f.op("ScatterElements", none, places.value, numbers)
    stays = f.term(last).op("GatherElements", places).equals(numbers)
    back = f.term(reshaped(f, g, [-1])).op("GatherElements", places)
    found = reshaped(f, stays.chosen(back, 0).value, sizes)
    return [found, *[None] * (call.arity - 1)]


register(
    OpDef(
        "MaxUnpool",
        _unpool_type,
        since=9,
        compute=_unpool,
        by_value=(2,),
        gradient=_unpool_gradient,
    )
)


def _image(call: OpCall) -> tuple[list[int], list[int]]:
    return call.ints(1) or [], call.ints(2) or []


def _col2im_type(call: OpCall) -> Sequence[Type]:
    image, blocks = _image(call)
    n, rows = call.shape(0)[:2]
    if rows % math.prod(blocks):
        raise call.error(f"{rows} rows are not a multiple of a block of {blocks}")
    return call.result((n, rows // math.prod(blocks), *image))


def _col2im(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    """Each pixel gathers the column entries that came from it, so writes do not conflict."""
    x = inputs[0]
    out = outputs[0]
    image, blocks = _image(call)
    rank = len(image)
    strides = call.attr("strides") or [1] * rank
    dilations = call.attr("dilations") or [1] * rank
    pads = call.attr("pads") or [0] * 2 * rank
    counts = []
    for a in range(rank):
        padded = image[a] + pads[a] + pads[a + rank]
        span = dilations[a] * (blocks[a] - 1) + 1
        counts.append((padded - span) // strides[a] + 1)

    def value(*i: Any) -> Expr:
        pixel = i[2 : 2 + rank]
        offset = i[2 + rank :]
        row = i[1]
        column = const(0)
        inside = None
        for a in range(rank):
            start = pixel[a] + pads[a] - offset[a] * dilations[a]
            window = start // strides[a]
            on_stride = (start % strides[a]).eq(0)
            fits = on_stride & (start >= 0) & (window < counts[a])
            inside = fits if inside is None else inside & fits
            row = row * blocks[a] + offset[a]
            column = column * counts[a] + window
        assert inside is not None
        return Select(
            inside,
            wide(x[i[0], row, column]),
            const(0, wide_dtype(x.dtype)),
        )

    return [reduce_(call.name, out, blocks, "add", value)]


register(
    OpDef(
        "Col2Im",
        _col2im_type,
        since=18,
        compute=_col2im,
        flops=lambda call: call.size(0),
        by_value=(1, 2),
    )
)
