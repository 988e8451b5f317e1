"""Networks whose blocks add to a stream: ResNets and their kin, aggregation, many scales."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.nodes import Value
from tilewright.testing.networks.builder import Net, network

Block = Callable[[Net, Value, int, int], Value]


def _stem(n: Net, width: int, size: int, batch: int = 1) -> Value:
    """7x7 with stride 2 and an overlapping pooling, as of ImageNet's networks."""
    x = n.conv(n.input(batch, 3, size, size), width, 7, 2)
    return n.pool(x, 3, 2, 1)


def _shortcut(n: Net, x: Value, out: int, stride: int) -> Value:
    if x.extents[1] == out and stride == 1:
        return x
    return n.conv(x, out, 1, stride, act="")


def _basic(n: Net, x: Value, out: int, stride: int) -> Value:
    y = n.conv(n.conv(x, out, 3, stride), out, 3, act="", gain=0.3)
    return n("Relu", n("Add", y, _shortcut(n, x, out, stride)))


def _bottleneck(n: Net, x: Value, out: int, stride: int, groups: int = 1) -> Value:
    inner = n.conv(n.conv(x, out // 2, 1), out // 2, 3, stride, groups=groups)
    y = n.conv(inner, out, 1, act="", gain=0.3)
    return n("Relu", n("Add", y, _shortcut(n, x, out, stride)))


def _stages(n: Net, x: Value, block: Block, widths: tuple[int, ...], depth: int = 2) -> Value:
    for number, width in enumerate(widths):
        for layer in range(depth):
            x = block(n, x, width, 2 if number and not layer else 1)
    return x


@network
def resnet_basic(n: Net) -> Value:
    """He et al. 2016: two 3x3 convolutions."""
    return n.head(_stages(n, _stem(n, 10, 45), _basic, (10, 20, 36)))


@network
def resnet_bottleneck(n: Net) -> Value:
    """1x1, 3x3, 1x1; two images."""
    return n.head(_stages(n, _stem(n, 16, 37, 2), _bottleneck, (24, 40)))


@network
def resnet_d(n: Net) -> Value:
    """Three 3x3 convolutions for a stem; the shortcut averages before it projects."""

    def block(n: Net, x: Value, out: int, stride: int) -> Value:
        side = n.mean(x, 2, 2, ceil_mode=1, count_include_pad=0) if stride == 2 else x
        y = n.conv(n.conv(x, out, 3, stride), out, 3, act="", gain=0.3)
        return n("Relu", n("Add", y, n.conv(side, out, 1, act="")))

    x = n.conv(n.conv(n.conv(n.input(1, 3, 33, 33), 8, 3, 2), 8), 12)
    return n.head(_stages(n, n.pool(x, 3, 2, 1), block, (12, 24)))


@network
def resnet_preact(n: Net) -> Value:
    """He et al. 2016b: normalized and rectified before each convolution."""

    def block(n: Net, x: Value, out: int, stride: int) -> Value:
        a = n("Relu", n.batch_norm(x))
        y = n("Relu", n.batch_norm(n.conv(a, out, 3, stride, norm=False, act="")))
        y = n.conv(y, out, 3, norm=False, act="", gain=0.3)
        skip = x
        if x.extents[1] != out:
            skip = n.conv(a, out, 1, stride, norm=False, act="")
        return n("Add", y, skip)

    x = n.conv(n.input(1, 3, 17, 17), 10, norm=False, act="")
    x = _stages(n, x, block, (10, 24))
    return n.head(n("Relu", n.batch_norm(x)))


@network
def wide_resnet(n: Net) -> Value:
    """Zagoruyko and Komodakis 2016: few layers, many channels."""
    return n.head(_stages(n, n.conv(n.input(1, 3, 15, 15), 16), _basic, (40, 72), 1))


@network
def resnext(n: Net) -> Value:
    """Xie et al. 2017: the 3x3 convolution in groups, of five and six channels."""

    def block(n: Net, x: Value, out: int, stride: int) -> Value:
        return _bottleneck(n, x, out, stride, groups=4)

    return n.head(_stages(n, _stem(n, 16, 37), block, (40, 48)))


@network
def se_resnet(n: Net) -> Value:
    """Hu et al. 2018: channels are weighted by what a small network makes of their means."""

    def block(n: Net, x: Value, out: int, stride: int) -> Value:
        y = n.conv(n.conv(x, out, 3, stride), out, 3, act="", gain=0.3)
        gate = n.conv(n("GlobalAveragePool", y), out // 4, 1, norm=False)
        gate = n.conv(gate, out, 1, norm=False, act="Sigmoid")
        return n("Relu", n("Add", n("Mul", y, gate), _shortcut(n, x, out, stride)))

    return n.head(_stages(n, n.conv(n.input(2, 3, 17, 17), 12), block, (12, 28)))


@network
def cbam(n: Net) -> Value:
    """Woo et al. 2018: attention by channel, then by place of means and maxima over channels."""
    x = n.conv(n.input(1, 3, 15, 15), 20)
    squeezed = n.add(n("GlobalAveragePool", x), n("GlobalMaxPool", x))
    x = n("Mul", x, n.conv(n.conv(squeezed, 5, 1, norm=False), 20, 1, norm=False, act="Sigmoid"))
    both = n.cat(n("ReduceMean", x, [1]), n("ReduceMax", x, [1]))
    x = n("Mul", x, n.conv(both, 1, 7, norm=False, act="Sigmoid"))
    return n.head(n.conv(x, 24, 3, 2))


@network
def res2net(n: Net) -> Value:
    """Gao et al. 2019: groups of channels go through one another's convolutions."""
    x = n.conv(n.input(1, 3, 15, 15), 24)
    first, *rest = n.split(n.conv(x, 40, 1), 10, 10, 10, 10)
    done, last = [first], None
    for part in rest:
        last = n.conv(part if last is None else n("Add", part, last), 10)
        done.append(last)
    y = n.conv(n.cat(*done), 24, 1, act="", gain=0.3)
    return n.head(n("Relu", n("Add", x, y)))


@network
def dla(n: Net) -> Value:
    """Yu et al. 2018: trees of blocks whose results a root convolution brings together."""

    def tree(x: Value, out: int, stride: int) -> Value:
        first = _basic(n, x, out, stride)
        second = _basic(n, first, out, 1)
        below = n.pool(x, 2, 2) if stride == 2 else x
        return n.conv(n.cat(second, first, below), out, 1)

    x = n.conv(n.input(1, 3, 32, 32), 10, 7)
    for out in (18, 28):
        x = tree(x, out, 2)
    return n.head(x)


@network
def hrnet(n: Net) -> list[Value]:
    """Wang et al. 2019: branches of several resolutions that exchange what they have."""
    high = n.conv(n.input(1, 3, 25, 25), 10, 3, 2)
    low = n.conv(high, 20, 3, 2)
    for _ in range(2):
        high, low = _basic(n, high, 10, 1), _basic(n, low, 20, 1)
        up = n.resize(n.conv(low, 10, 1, act=""), 13, 13)
        down = n.conv(high, 20, 3, 2, act="")
        high, low = n("Relu", n("Add", high, up)), n("Relu", n("Add", low, down))
    lifted = n.resize(low, 13, 13, mode="linear", coordinate_transformation_mode="align_corners")
    return [n.conv(n.cat(high, lifted), 5, 1, norm=False, act=""), n.head(low)]
