"""The windows of a convolution as the columns of a matrix: `tilewright::Im2Col`.

    Im2Col(x: T[n, c, spatial...]) -> T[c, kernel..., n, outputs...]

Attributes: kernel_shape, strides, dilations and pads, as for Conv. Padding is 0. A convolution
is the product of its weights [m, c * kernel] with this as a matrix [c * kernel, n * outputs].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.windows import Windows, windows

IM2COL, DOMAIN = "Im2Col", "tilewright"


def _windows(call: OpCall) -> Windows:
    kernel = call.attr("kernel_shape") or ()
    return windows(call, call.shape(0)[2:], kernel)


def _type(call: OpCall) -> Sequence[Type]:
    n, c, *_ = call.shape(0)
    shape = _windows(call)
    return call.result((c, *shape.kernel, n, *shape.outputs))


def _im2col(
    call: OpCall,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> list[Computation]:
    x = inputs[0]
    shape = _windows(call)
    rank = len(shape.kernel)

    def value(*i: Any) -> Expr:
        c = i[0]
        n = i[1 + rank]
        taps = zip(i[1 : 1 + rank], shape.kernel, strict=True)
        k = [const(0) if extent == 1 else v for v, extent in taps]
        return shape.read(x, (n, c), shape.place(i[2 + rank :], k), 0)

    return [map_(call.name, outputs[0], value)]


register(OpDef(IM2COL, _type, domain=DOMAIN, compute=_im2col))
