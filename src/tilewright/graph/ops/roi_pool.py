"""MaxRoiPool: the largest element in each cell of a grid over regions of images.

A region is (image, x1, y1, x2, y2), including both corners, scaled and rounded to elements. A cell
covers all elements that it touches, so neighbors may share some; a cell outside the image is 0.
Where the standard says nothing (how corners are rounded, how cells are cut), this follows Fast
R-CNN, the origin of the operator, and ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import INDEX, Buffer, Expr, Le, Lt, Max, Min, Select, const
from tilewright.expr.nodes import call as apply
from tilewright.graph.ops.broadcasting import wide, wide_dtype
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

Buffers = Sequence[Buffer]


def _grid(call: OpCall) -> tuple[int, int]:
    """The number of cells along the height and the width."""
    shape: Sequence[int] = call.attr("pooled_shape") or ()
    if len(shape) != 2 or min(shape) < 1:
        raise call.error(f"pooled_shape {list(shape)} is not a height and a width")
    return int(shape[0]), int(shape[1])


def _type(call: OpCall) -> Sequence[Type]:
    x = call.shape(0)
    rois = call.shape(1)
    if len(x) != 4 or len(rois) != 2 or rois[1] != 5:
        raise call.error(f"input {list(x)} and rois {list(rois)} do not fit together")
    return call.result((rois[0], x[1], *_grid(call)))


def _rounded(v: Expr) -> Expr:
    """The nearest integer; halves round away from zero."""
    size = apply("abs", v)
    whole = apply("floor", size)
    near = Select(
        Le(const(0.5, v.dtype), size - whole),
        whole + 1.0,
        whole,
    )
    return Select(
        Lt(v, const(0, v.dtype)),
        -near,
        near,
    )


def _bounds(
    call: OpCall, rois: Buffer, axis: int, extent: int, cells: int
) -> list[Computation]:
    """The start and end (exclusive) of each cell of each region along an axis."""
    scale = float(call.attr("spatial_scale", 1.0))
    names = [f"{call.name}_{'hw'[axis]}{end}" for end in ("first", "end")]
    first, end = (Buffer(name, (rois.shape[0], cells), INDEX) for name in names)

    def place(n: Any, cell: Any, behind: bool) -> Expr:
        low, high = (
            _rounded(wide(rois[(n, const(c))]) * scale) for c in (2 - axis, 4 - axis)
        )
        size = Max(high - low + 1.0, const(1, low.dtype)) / float(cells)
        edge = cast(cell + 1 if behind else cell, size.dtype) * size
        found = apply("ceil" if behind else "floor", edge) + low
        return cast(
            Max(Min(found, const(extent, low.dtype)), const(0, low.dtype)), INDEX
        )

    return [
        map_(
            first.name,
            first,
            lambda n, cell: place(n, cell, False),
        ),
        map_(
            end.name,
            end,
            lambda n, cell: place(n, cell, True),
        ),
    ]


def _max_roi_pool(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    """The maximum of each row of cells per image column, then of each cell."""
    x = inputs[0]
    rois = inputs[1]
    out = outputs[0]
    if 0 in x.shape[2:]:
        return [
            map_(
                call.name,
                out,
                lambda *i: const(0, out.dtype),
            )
        ]
    _, channels, height, width = x.shape
    rows, columns = out.shape[2:]
    work = wide_dtype(x.dtype)
    count = out.shape[0]
    lowest = const(-math.inf, work)
    bounds = [
        *_bounds(call, rois, 0, height, rows),
        *_bounds(call, rois, 1, width, columns),
    ]
    tops, bottoms, lefts, rights = (c.outputs[0].tensor for c in bounds)
    image = Buffer(f"{call.name}_image", (count,), INDEX)
    slabs = Buffer(f"{call.name}_slabs", (count, channels, rows, width), work)
    best = Buffer(f"{call.name}_best", out.shape, work)

    def slab(n: Any, c: Any, row: Any, w: Any, h: Any) -> Expr:
        inside = Le(tops[(n, row)], h) & Lt(h, bottoms[(n, row)])
        return Select(inside, wide(x[(image[n], c, h, w)]), lowest)

    def cell(n: Any, c: Any, row: Any, column: Any, w: Any) -> Expr:
        inside = Le(lefts[(n, column)], w) & Lt(w, rights[(n, column)])
        return Select(inside, slabs[(n, c, row, w)], lowest)

    def result(n: Any, c: Any, row: Any, column: Any) -> Expr:
        high = Lt(tops[(n, row)], bottoms[(n, row)])
        broad = Lt(lefts[(n, column)], rights[(n, column)])
        return cast(
            Select(
                high & broad,
                best[(n, c, row, column)],
                const(0, work),
            ),
            out.dtype,
        )

    return [
        *bounds,
        map_(
            image.name,
            image,
            lambda n: cast(rois[(n, const(0))], INDEX),
        ),
        reduce_(slabs.name, slabs, (height,), "max", slab),
        reduce_(best.name, best, (width,), "max", cell),
        map_(call.name, out, result),
    ]


register(OpDef("MaxRoiPool", _type, compute=_max_roi_pool))
