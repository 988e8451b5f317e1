"""Networks of volumes and films: three axes after the channels."""

from __future__ import annotations

from tilewright.testing.networks.builder import Net, NetTensor, network


@network
def c3d(n: Net) -> NetTensor:
    """Tran et al. 2015: 3x3x3 everywhere."""
    x = n.input(1, 3, 6, 15, 15)
    x = x.conv_bias(10)
    x = x.MaxPool(kernel_shape=[1, 2, 2], strides=[1, 2, 2])
    x = x.conv_bias(18)
    x = x.max_pool(2)
    x = x.Flatten()
    x = x.gemm(24, "Relu")
    return x.gemm(6)


@network
def r2plus1d(n: Net) -> NetTensor:
    """Tran et al. 2018: an image's convolution, then one along time; residuals."""

    def pair(
        x: NetTensor,
        out: int,
        stride: int,
        act: str = "Relu",
    ) -> NetTensor:
        middle = x.conv(out + 5, (1, 3, 3), (1, stride, stride))
        return middle.conv(out, (3, 1, 1), (stride, 1, 1), act=act)

    x = n.input(1, 3, 7, 14, 14)
    x = pair(x, 10, 1)
    for out in (10, 18):
        if out == 10:
            stride = 1
        else:
            stride = 2
        y = pair(x, out, stride)
        y = pair(y, out, 1, act="")
        if stride == 1:
            side = x
        else:
            side = x.conv(out, 1, stride, act="")
        x = y * 0.5 + side
        x = x.Relu()
    return x.head()


@network
def unet_3d(n: Net) -> NetTensor:
    """Cicek et al. 2016."""
    first = n.input(1, 1, 8, 10, 12)
    first = first.conv(8)
    x = first.max_pool(2)
    x = x.conv(14)
    w = n.weight(14, 8, 2, 2, 2, fan=14)
    x = x.ConvTranspose(w, strides=[2, 2, 2])
    x = n.cat(first, x)
    x = x.conv(8)
    return x.project(3, 1)


@network
def slowfast(n: Net) -> NetTensor:
    """Feichtenhofer et al. 2019: few frames with many channels, all frames with few."""
    film = n.input(1, 3, 8, 13, 13)
    slow = film.Slice([0], [8], [2], [4])
    slow = slow.conv(14, (1, 5, 5), (1, 2, 2))
    fast = film.conv(5, (5, 5, 5), (1, 2, 2))
    side = fast.conv(9, (5, 1, 1), (4, 1, 1))
    slow = n.cat(slow, side)
    slow = slow.conv(16, (1, 3, 3))
    slow = slow.GlobalAveragePool()
    fast = fast.GlobalAveragePool()
    x = n.cat(slow.Flatten(), fast.Flatten())
    return x.gemm(7)


@network
def temporal_shift(n: Net) -> NetTensor:
    """Lin et al. 2019: some channels of the frame before and of the one after."""
    x = n.input(5, 3, 15, 15)
    x = x.conv(16, 3, 2)
    y = x.reshape(1, 5, 16, 64)
    back, forth, keep = y.split(3, 3, 10, axis=2)
    back = back.Slice([1], [5], [1])
    back = back.Pad([0, 0, 0, 0, 0, 1, 0, 0])
    forth = forth.Slice([0], [4], [1])
    forth = forth.Pad([0, 1, 0, 0, 0, 0, 0, 0])
    y = n.cat(back, forth, keep, axis=2)
    y = y.reshape(5, 16, 8, 8)
    x = x + y.conv(16, act="")
    x = x.head(6)
    return x.ReduceMean([0])
