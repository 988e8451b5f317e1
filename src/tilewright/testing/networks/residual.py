"""Networks whose blocks add to a stream: ResNets and their kin, aggregation, many scales."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.testing.networks.builder import Net, NetTensor, network

Block = Callable[[NetTensor, int, int], NetTensor]


def _stem(
    n: Net,
    width: int,
    size: int,
    batch: int = 1,
) -> NetTensor:
    """7x7 with stride 2 and an overlapping pooling, as of ImageNet's networks."""
    x = n.input(batch, 3, size, size)
    x = x.conv(width, 7, 2)
    return x.max_pool(3, 2, 1)


def _shortcut(
    x: NetTensor,
    out: int,
    stride: int,
) -> NetTensor:
    if x.shape[1] == out and stride == 1:
        return x
    return x.conv(out, 1, stride, act="")


def _basic(
    x: NetTensor,
    out: int,
    stride: int,
) -> NetTensor:
    y = x.conv(out, 3, stride)
    y = y.conv(out, 3, act="", gain=0.3)
    y = y + _shortcut(x, out, stride)
    return y.Relu()


def _bottleneck(
    x: NetTensor,
    out: int,
    stride: int,
    groups: int = 1,
) -> NetTensor:
    inner = x.conv(out // 2, 1)
    inner = inner.conv(out // 2, 3, stride, groups=groups)
    y = inner.conv(out, 1, act="", gain=0.3)
    y = y + _shortcut(x, out, stride)
    return y.Relu()


def _stages(
    x: NetTensor,
    block: Block,
    widths: tuple[int, ...],
    depth: int = 2,
) -> NetTensor:
    for number, width in enumerate(widths):
        for layer in range(depth):
            stride = 2 if number and not layer else 1
            x = block(x, width, stride)
    return x


@network
def resnet_basic(n: Net) -> NetTensor:
    """He et al. 2016: two 3x3 convolutions."""
    x = _stem(n, 10, 45)
    x = _stages(x, _basic, (10, 20, 36))
    return x.head()


@network
def resnet_bottleneck(n: Net) -> NetTensor:
    """1x1, 3x3, 1x1; two images."""
    x = _stem(n, 16, 37, 2)
    x = _stages(x, _bottleneck, (24, 40))
    return x.head()


@network
def resnet_d(n: Net) -> NetTensor:
    """Three 3x3 convolutions for a stem; the shortcut averages before it projects."""

    def block(
        x: NetTensor,
        out: int,
        stride: int,
    ) -> NetTensor:
        if stride == 2:
            side = x.average_pool(2, 2, ceil_mode=1, count_include_pad=0)
        else:
            side = x
        y = x.conv(out, 3, stride)
        y = y.conv(out, 3, act="", gain=0.3)
        y = y + side.conv(out, 1, act="")
        return y.Relu()

    x = n.input(1, 3, 33, 33)
    x = x.conv(8, 3, 2)
    x = x.conv(8)
    x = x.conv(12)
    x = x.max_pool(3, 2, 1)
    x = _stages(x, block, (12, 24))
    return x.head()


@network
def resnet_preact(n: Net) -> NetTensor:
    """He et al. 2016b: normalized and rectified before each convolution."""

    def block(
        x: NetTensor,
        out: int,
        stride: int,
    ) -> NetTensor:
        a = x.norm_relu()
        y = a.project(out, 3, stride)
        y = y.norm_relu()
        y = y.project(out, 3, gain=0.3)
        skip = x
        if x.shape[1] != out:
            skip = a.project(out, 1, stride)
        return y + skip

    x = n.input(1, 3, 17, 17)
    x = x.project(10)
    x = _stages(x, block, (10, 24))
    x = x.norm_relu()
    return x.head()


@network
def wide_resnet(n: Net) -> NetTensor:
    """Zagoruyko and Komodakis 2016: few layers, many channels."""
    x = n.input(1, 3, 15, 15)
    x = x.conv(16)
    x = _stages(x, _basic, (40, 72), 1)
    return x.head()


@network
def resnext(n: Net) -> NetTensor:
    """Xie et al. 2017: the 3x3 convolution in groups, of five and six channels."""

    def block(
        x: NetTensor,
        out: int,
        stride: int,
    ) -> NetTensor:
        return _bottleneck(x, out, stride, groups=4)

    x = _stem(n, 16, 37)
    x = _stages(x, block, (40, 48))
    return x.head()


@network
def se_resnet(n: Net) -> NetTensor:
    """Hu et al. 2018: a small network computes weights of channels from their means."""

    def block(
        x: NetTensor,
        out: int,
        stride: int,
    ) -> NetTensor:
        y = x.conv(out, 3, stride)
        y = y.conv(out, 3, act="", gain=0.3)
        gate = y.GlobalAveragePool()
        gate = gate.conv_bias(out // 4, 1)
        gate = gate.conv_bias(out, 1, act="Sigmoid")
        y = y * gate
        y = y + _shortcut(x, out, stride)
        return y.Relu()

    x = n.input(2, 3, 17, 17)
    x = x.conv(12)
    x = _stages(x, block, (12, 28))
    return x.head()


@network
def cbam(n: Net) -> NetTensor:
    """Woo et al. 2018: attention by channel, then by place of means and maxima over channels."""
    x = n.input(1, 3, 15, 15)
    x = x.conv(20)
    squeezed = x.GlobalAveragePool() + x.GlobalMaxPool()
    gate = squeezed.conv_bias(5, 1)
    x = x * gate.conv_bias(20, 1, act="Sigmoid")
    mean = x.ReduceMean([1])
    most = x.ReduceMax([1])
    both = n.cat(mean, most)
    x = x * both.conv_bias(1, 7, act="Sigmoid")
    x = x.conv(24, 3, 2)
    return x.head()


@network
def res2net(n: Net) -> NetTensor:
    """Gao et al. 2019: groups of channels go through one another's convolutions."""
    x = n.input(1, 3, 15, 15)
    x = x.conv(24)
    y = x.conv(40, 1)
    first, *rest = y.split(10, 10, 10, 10)
    done = [first]
    for part in rest:
        if len(done) == 1:
            whole = part
        else:
            whole = part + done[-1]
        done.append(whole.conv(10))
    y = n.cat(*done)
    y = y.conv(24, 1, act="", gain=0.3)
    x = (x + y).Relu()
    return x.head()


@network
def dla(n: Net) -> NetTensor:
    """Yu et al. 2018: trees of blocks whose results a root convolution brings together."""

    def tree(
        x: NetTensor,
        out: int,
        stride: int,
    ) -> NetTensor:
        first = _basic(x, out, stride)
        second = _basic(first, out, 1)
        if stride == 2:
            below = x.max_pool(2, 2)
        else:
            below = x
        x = n.cat(second, first, below)
        return x.conv(out, 1)

    x = n.input(1, 3, 32, 32)
    x = x.conv(10, 7)
    for out in (18, 28):
        x = tree(x, out, 2)
    return x.head()


@network
def hrnet(n: Net) -> list[NetTensor]:
    """Wang et al. 2019: branches of several resolutions that exchange their features."""
    high = n.input(1, 3, 25, 25)
    high = high.conv(10, 3, 2)
    low = high.conv(20, 3, 2)
    for _ in range(2):
        high = _basic(high, 10, 1)
        low = _basic(low, 20, 1)
        up = low.conv(10, 1, act="")
        up = up.resize(13, 13)
        down = high.conv(20, 3, 2, act="")
        high = (high + up).Relu()
        low = (low + down).Relu()
    corners = {"coordinate_transformation_mode": "align_corners"}
    lifted = low.resize(13, 13, mode="linear", **corners)
    both = n.cat(high, lifted)
    return [both.project(5, 1), low.head()]
