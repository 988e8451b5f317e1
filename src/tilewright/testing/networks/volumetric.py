"""Networks of volumes and films: three axes behind the channels."""

from __future__ import annotations

from tilewright.graph.nodes import Value
from tilewright.testing.networks.builder import Net, network


@network
def c3d(n: Net) -> Value:
    """Tran et al. 2015: 3x3x3 everywhere."""
    x = n.conv(n.input(1, 3, 6, 15, 15), 10, norm=False)
    x = n("MaxPool", x, kernel_shape=[1, 2, 2], strides=[1, 2, 2])
    x = n.pool(n.conv(x, 18, norm=False), 2)
    return n.gemm(n.gemm(n("Flatten", x), 24, "Relu"), 6)


@network
def r2plus1d(n: Net) -> Value:
    """Tran et al. 2018: an image's convolution, then one along time; residuals."""

    def pair(x: Value, out: int, stride: int, act: str = "Relu") -> Value:
        middle = n.conv(x, out + 5, (1, 3, 3), (1, stride, stride))
        return n.conv(middle, out, (3, 1, 1), (stride, 1, 1), act=act)

    x = pair(n.input(1, 3, 7, 14, 14), 10, 1)
    for out in (10, 18):
        stride = 1 if out == 10 else 2
        y = pair(pair(x, out, stride), out, 1, act="")
        side = x if stride == 1 else n.conv(x, out, 1, stride, act="")
        x = n("Relu", n("Add", n("Mul", y, 0.5), side))
    return n.head(x)


@network
def unet_3d(n: Net) -> Value:
    """Cicek et al. 2016."""
    first = n.conv(n.input(1, 1, 8, 10, 12), 8)
    x = n.conv(n.pool(first, 2), 14)
    w = n.weight(14, 8, 2, 2, 2, fan=14)
    x = n("ConvTranspose", x, w, strides=[2, 2, 2])
    return n.conv(n.conv(n.cat(first, x), 8), 3, 1, norm=False, act="")


@network
def slowfast(n: Net) -> Value:
    """Feichtenhofer et al. 2019: few frames with many channels, all frames with few."""
    film = n.input(1, 3, 8, 13, 13)
    slow = n("Slice", film, [0], [8], [2], [4])
    slow = n.conv(slow, 14, (1, 5, 5), (1, 2, 2))
    fast = n.conv(film, 5, (5, 5, 5), (1, 2, 2))
    side = n.conv(fast, 9, (5, 1, 1), (4, 1, 1))
    slow = n.conv(n.cat(slow, side), 16, (1, 3, 3))
    both = [n("Flatten", n("GlobalAveragePool", x)) for x in (slow, fast)]
    return n.gemm(n.cat(*both), 7)


@network
def temporal_shift(n: Net) -> Value:
    """Lin et al. 2019: some channels of the frame before and of the one after."""
    x = n.conv(n.input(5, 3, 15, 15), 16, 3, 2)
    y = n.shape(x, 1, 5, 16, 64)
    back, forth, keep = n.split(y, 3, 3, 10, axis=2)
    back = n("Pad", n("Slice", back, [1], [5], [1]), [0, 0, 0, 0, 0, 1, 0, 0])
    forth = n("Pad", n("Slice", forth, [0], [4], [1]), [0, 1, 0, 0, 0, 0, 0, 0])
    y = n.shape(n.cat(back, forth, keep, axis=2), 5, 16, 8, 8)
    x = n("Add", x, n.conv(y, 16, act=""))
    return n("ReduceMean", n.head(x, 6), [0])
