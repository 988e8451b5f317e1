"""DeformConv: a convolution whose windows read the image at real positions.

The elements of all windows are sampled first, then multiplied by the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr
from tilewright.graph.ops.broadcasting import wide, wide_dtype
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.sample import (
    channels_last,
    linear_weights,
    mixed,
    or_zero,
    turned,
)

Buffers = Sequence[Buffer]


def _deform_type(call: OpCall) -> Sequence[Type]:
    x = call.shape(0)
    w = call.shape(1)
    offset = call.shape(2)
    rank = len(w) - 2
    if len(x) != len(w) or len(offset) != len(x):
        raise call.error(
            f"input {list(x)}, weights {list(w)}, offsets {list(offset)} do not fit"
        )
    taps = math.prod(w[2:])
    offsets = call.attr("offset_group", 1) * taps * rank
    channels = w[1] * call.attr("group", 1)
    if offset[1] != offsets or x[1] != channels:
        raise call.error(f"offsets {list(offset)} do not fit the weights {list(w)}")
    return call.result((x[0], w[0], *offset[2:]))


class _DeformConv:
    """The steps of a DeformConv: its image with channels last, its windows, their products.

    image: [batch, *extents, channels]. windows: [batch, *sizes, *kernel, channels].
    """

    def __init__(
        self,
        call: OpCall,
        inputs: Buffers,
        out: Buffer,
    ) -> None:
        self.call = call
        self.inputs = inputs
        self.out = out
        x, w = inputs[:2]
        self.channels, *kernel = w.shape[1:]
        self.kernel = kernel
        self.rank = len(kernel)
        self.per_group = w.shape[0] // call.attr("group", 1)
        self.per_offset = x.shape[1] // call.attr("offset_group", 1)
        self.work = wide_dtype(out.dtype)
        self.image = channels_last(call, x)
        batch, maps, *sizes = out.shape
        self.windows = Buffer(
            f"{call.name}_windows",
            (batch, *sizes, *kernel, x.shape[1]),
            self.work,
        )
        self.total = Buffer(
            f"{call.name}_sum",
            (batch, *sizes, maps),
            self.work,
        )

    def positions(
        self,
        n: Any,
        o: Sequence[Any],
        k: Sequence[Any],
        tap: Any,
    ) -> list[Expr]:
        """Where the window at `o` reads for its element `k`, by axis."""
        call = self.call
        offset = self.inputs[2]
        strides = call.attr("strides") or [1] * self.rank
        dilations = call.attr("dilations") or [1] * self.rank
        pads = call.attr("pads") or [0] * 2 * self.rank
        found = []
        for a in range(self.rank):
            base = o[a] * strides[a] + k[a] * dilations[a] - pads[a]
            moved = wide(offset[(n, tap * self.rank + a, *o)])
            found.append(moved + cast(base, self.work))
        return found

    def sampled(
        self,
        n: Any,
        *i: Any,
    ) -> Expr:
        """An element of a window."""
        o = i[: self.rank]
        k = i[self.rank : -1]
        channel = i[-1]
        tap = k[0]
        for index, extent in zip(k[1:], self.kernel[1:], strict=True):
            tap = tap * extent + index
        group = channel // self.per_offset
        tap = tap + group * math.prod(self.kernel)
        element = mixed(
            self.image,
            (n,),
            self.positions(n, o, k, tap),
            linear_weights,
            or_zero,
            (channel,),
        )
        found = cast(element, self.work)
        if self.call.has(4):
            mask = self.inputs[4]
            found = found * wide(mask[(n, tap, *o)])
        return found

    def weighted(
        self,
        n: Any,
        *i: Any,
    ) -> Expr:
        """A product of an element of a window with its weight."""
        o = i[: self.rank]
        m = i[self.rank]
        k = i[self.rank + 1 : -1]
        c = i[-1]
        channel = (m // self.per_group) * self.channels + c
        element = self.windows[(n, *o, *k, channel)]
        weight = self.inputs[1][(m, c, *k)]
        return element * cast(weight, self.work)

    def result(
        self,
        n: Any,
        m: Any,
        *o: Any,
    ) -> Expr:
        """An element of the result, with the bias."""
        found: Expr = self.total[(n, *o, m)]
        if self.call.has(3):
            bias = self.inputs[3]
            found = found + wide(bias[m])
        return cast(found, self.out.dtype)


def _deform_conv(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    steps = _DeformConv(call, inputs, outputs[0])
    over = (*steps.kernel, steps.channels)
    return [
        turned(steps.image, inputs[0]),
        map_(steps.windows.name, steps.windows, steps.sampled),
        reduce_(steps.total.name, steps.total, over, "add", steps.weighted),
        map_(call.name, steps.out, steps.result),
    ]


register(
    OpDef(
        "DeformConv",
        _deform_type,
        since=19,
        compute=_deform_conv,
        flops=lambda call: 10 * call.size_out(0) * math.prod(call.shape(1)[1:]),
    )
)
