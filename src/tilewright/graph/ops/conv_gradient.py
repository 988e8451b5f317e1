"""The derivatives of Conv and ConvTranspose, each in terms of the other.

With respect to the data, the derivative of one is the other. With respect to the weights, the
derivative is a convolution whose weights are the result's gradient: batch and channels are
exchanged, and so are strides and dilations.

    dw[m, c, k] = sum over n and o of x[n, c, s*o + d*k - begin] * g[n, m, o]
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import Backward, extents, reshaped, shape
from tilewright.graph.ops.fragment import Fragment


@dataclass(frozen=True)
class ConvolutionTaps:
    """A convolution over some data: per spatial axis its strides, dilations and front padding."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    group: int

    def end(
        self, data: Sequence[int], out: Sequence[int], kernel: Sequence[int]
    ) -> list[int]:
        """The end padding that yields exactly the results `out`; a negative one crops the data."""
        axes = zip(
            data, out, kernel, self.strides, self.dilations, self.begin, strict=True
        )
        return [(o - 1) * s + (k - 1) * d + 1 - n - b for n, o, k, s, d, b in axes]

    def convolved(
        self, f: Fragment, data: Value, w: Value, out: Sequence[int]
    ) -> Value:
        """The convolution of `data`, with spatial extents `out`."""
        end = self.end(extents(data)[2:], out, extents(w)[2:])
        return f.op(
            "Conv",
            data,
            w,
            strides=list(self.strides),
            dilations=list(self.dilations),
            pads=[*self.begin, *end],
            group=self.group,
        )

    def transposed(
        self, f: Fragment, flow: Value, w: Value, data: Sequence[int]
    ) -> Value:
        """The gradient of data with spatial extents `data`, from that of the results."""
        end = self.end(data, extents(flow)[2:], extents(w)[2:])
        return f.op(
            "ConvTranspose",
            flow,
            w,
            strides=list(self.strides),
            dilations=list(self.dilations),
            pads=[*self.begin, *(max(e, 0) for e in end)],
            output_padding=[max(-e, 0) for e in end],
            group=self.group,
        )

    def by_weights(
        self, f: Fragment, data: Value, flow: Value, kernel: Sequence[int]
    ) -> Value:
        """The gradient of weights [m, c, *kernel], from that of the results on `data`."""
        turned = ConvolutionTaps(self.dilations, self.strides, self.begin, self.group)
        x = _by_group(f, data, self.group, channels_first=True)
        g = _by_group(f, flow, self.group, channels_first=False)
        found = turned.convolved(f, x, g, kernel)
        axes = range(2, 2 + len(kernel))
        return f.transpose(found, 1, 0, *axes)


def _by_group(f: Fragment, v: Value, group: int, channels_first: bool) -> Value:
    """[n, group * c, ...] as [c, group * n, ...], or as [group * c, n, ...]."""
    n, channels, *spatial = extents(v)
    axes = range(3, 3 + len(spatial))
    if group == 1:
        return f.transpose(v, 1, 0, *(a - 1 for a in axes))
    c = channels // group
    split = reshaped(f, v, (n, group, c, *spatial))
    if channels_first:
        turned = f.transpose(split, 2, 1, 0, *axes)
        return reshaped(f, turned, (c, group * n, *spatial))
    turned = f.transpose(split, 1, 2, 0, *axes)
    return reshaped(f, turned, (channels, n, *spatial))


def conv_gradient(
    f: Fragment, call: Backward, taps: ConvolutionTaps, g: Value
) -> list[Value | None]:
    """The gradients of the data, the weights and the bias of a Conv."""
    x = call.value(0)
    w = call.value(1)
    return [
        taps.transposed(f, g, w, call.shape(0)[2:]),
        taps.by_weights(f, x, g, call.shape(1)[2:]),
        _by_bias(f, g),
    ]


def conv_transpose_gradient(
    f: Fragment, call: Backward, taps: ConvolutionTaps, g: Value
) -> list[Value | None]:
    """The gradients of the data, the weights and the bias of a ConvTranspose."""
    x = call.value(0)
    w = call.value(1)
    return [
        taps.convolved(f, g, w, call.shape(0)[2:]),
        taps.by_weights(f, g, x, call.shape(1)[2:]),
        _by_bias(f, g),
    ]


def _by_bias(f: Fragment, g: Value) -> Value:
    axes = [a for a in range(len(extents(g))) if a != 1]
    return f.op(
        "ReduceSum",
        g,
        shape(f, axes),
        keepdims=0,
    )
