"""Networks of depthwise and grouped convolutions: MobileNets and what came of them."""

from __future__ import annotations

from functools import partial

from tilewright.testing.networks.builder import Net, NetTensor, network


def _gate(
    x: NetTensor,
    inner: int,
    act: str = "Relu",
    end: str = "Sigmoid",
) -> NetTensor:
    """Squeeze and excite."""
    channels = x.shape[1]
    g = x.GlobalAveragePool()
    g = g.conv_bias(inner, 1, act=act)
    return x * g.conv_bias(channels, 1, act=end)


def _inverted(
    x: NetTensor,
    out: int,
    stride: int = 1,
    *,
    expand: int = 3,
    size: int = 3,
    act: str = "Relu6",
    gate: str = "",
) -> NetTensor:
    """Expand, depthwise, a gate, project; a shortcut if the shapes agree."""
    channels = x.shape[1]
    y = x.conv(channels * expand, 1, act=act)
    y = y.depthwise(size, stride, act=act)
    if gate:
        inner = "Relu" if gate == "HardSigmoid" else act
        y = _gate(y, 6, inner, gate)
    if stride == 1 and channels == out:
        return x + y.conv(out, 1, act="", gain=0.3)
    return y.conv(out, 1, act="")


def _shuffled(x: NetTensor, groups: int) -> NetTensor:
    """Interleaves the channels of all groups."""
    b, c, h, w = x.shape
    each = c // groups
    y = x.reshape(b, groups, each, h, w)
    y = y.transpose(0, 2, 1, 3, 4)
    return y.reshape(b, c, h, w)


@network
def mobilenet_v1(n: Net) -> NetTensor:
    """Howard et al. 2017: depthwise and 1x1 convolutions."""
    x = n.input(1, 3, 33, 33)
    x = x.conv(10, 3, 2)
    layers = (
        (18, 1),
        (26, 2),
        (26, 1),
        (40, 2),
    )
    for out, stride in layers:
        x = x.depthwise(3, stride)
        x = x.conv(out, 1)
    return x.head()


@network
def mobilenet_v2(n: Net) -> NetTensor:
    """Sandler et al. 2018: linear bottlenecks."""
    x = n.input(1, 3, 33, 33)
    x = x.conv(12, 3, 2, act="Relu6")
    layers = (
        (10, 1),
        (14, 2),
        (14, 1),
        (22, 2),
    )
    for out, stride in layers:
        x = _inverted(x, out, stride)
    x = x.conv(48, 1, act="Relu6")
    return x.head()


@network
def mobilenet_v3(n: Net) -> NetTensor:
    """Howard et al. 2019: windows of 5x5, gates, hard swish."""
    x = n.input(2, 3, 27, 27)
    x = x.conv(12, 3, 2, act="HardSwish")
    x = _inverted(x, 12, act="Relu", gate="HardSigmoid")
    x = _inverted(x, 20, 2, size=5, act="HardSwish", gate="HardSigmoid")
    x = _inverted(x, 20, size=5, act="HardSwish", gate="HardSigmoid")
    x = x.GlobalAveragePool()
    x = x.conv_bias(36, 1, act="HardSwish")
    x = x.Flatten()
    return x.gemm(10)


@network
def mnasnet(n: Net) -> NetTensor:
    """Tan et al. 2019."""
    x = n.input(1, 3, 31, 31)
    x = x.conv(16, 3, 2)
    x = x.depthwise()
    x = x.conv(10, 1, act="")
    layers = (
        (14, 2, 3),
        (14, 1, 3),
        (22, 2, 5),
    )
    for out, stride, size in layers:
        x = _inverted(x, out, stride, size=size, act="Relu")
    x = x.conv(30, 1)
    return x.head()


@network
def efficientnet(n: Net) -> NetTensor:
    """Tan and Le 2019: swish and gates."""
    x = n.input(1, 3, 29, 29)
    x = x.conv(14, 3, 2, act="Silu")
    gated = partial(_inverted, act="Silu", gate="Sigmoid")
    x = gated(x, 14)
    x = gated(x, 20, 2, size=5)
    x = gated(x, 20)
    x = x.conv(44, 1, act="Silu")
    return x.head()


@network
def efficientnet_v2(n: Net) -> NetTensor:
    """Tan and Le 2021: expansion and depthwise convolution fused into one."""
    x = n.input(1, 3, 21, 21)
    x = x.conv(12, 3, 2, act="Silu")
    for _ in range(2):
        y = x.conv(36, act="Silu")
        y = y.conv(12, 1, act="", gain=0.3)
        x = x + y
    x = _inverted(x, 20, 2, act="Silu", gate="Sigmoid")
    return x.head()


@network
def ghostnet(n: Net) -> NetTensor:
    """Han et al. 2020: cheap convolutions make half of the channels from the other half."""

    def ghost(
        x: NetTensor,
        out: int,
        act: str,
    ) -> NetTensor:
        first = x.conv(out // 2, 1, act=act)
        cheap = first.depthwise(act=act)
        return n.cat(first, cheap)

    x = n.input(1, 3, 25, 25)
    x = x.conv(12, 3, 2)
    y = ghost(x, 28, "Relu")
    y = _gate(y, 7)
    y = ghost(y, 12, "")
    x = x + y * 0.4
    y = ghost(x, 36, "Relu")
    y = y.depthwise(3, 2, act="")
    y = ghost(y, 18, "")
    side = x.depthwise(3, 2, act="")
    side = side.conv(18, 1, act="")
    x = y + side
    return x.head()


@network
def shufflenet_v1(n: Net) -> NetTensor:
    """Zhang et al. 2018: 1x1 convolutions in groups, channels shuffled between them."""
    x = n.input(1, 3, 41, 41)
    x = x.conv(12, 3, 2)
    x = x.max_pool(3, 2, 1)
    for stride, out in ((2, 36), (1, 36)):
        if stride == 2:
            made = out - 12
        else:
            made = out
        y = x.conv(18, 1, groups=3)
        y = _shuffled(y, 3)
        y = y.depthwise(3, stride, act="")
        y = y.conv(made, 1, groups=3, act="", gain=0.5)
        if stride == 2:
            means = x.average_pool(3, 2, 1)
            y = n.cat(means, y)
        else:
            y = x + y
        x = y.Relu()
    return x.head()


@network
def shufflenet_v2(n: Net) -> NetTensor:
    """Ma et al. 2018: half of the channels go around, then all are shuffled."""

    def branch(
        x: NetTensor,
        out: int,
        stride: int,
    ) -> NetTensor:
        x = x.conv(out, 1)
        x = x.depthwise(3, stride, act="")
        return x.conv(out, 1)

    x = n.input(1, 3, 41, 41)
    x = x.conv(12, 3, 2)
    x = x.max_pool(3, 2, 1)
    left = x.depthwise(3, 2, act="")
    left = left.conv(14, 1)
    right = branch(x, 14, 2)
    x = n.cat(left, right)
    x = _shuffled(x, 2)
    for _ in range(2):
        keep, y = x.split(14, 14)
        y = branch(y, 14, 1)
        x = n.cat(keep, y)
        x = _shuffled(x, 2)
    x = x.conv(40, 1)
    return x.head()


@network
def regnet(n: Net) -> NetTensor:
    """Radosavovic et al. 2020: groups of a fixed width, gates."""
    x = n.input(1, 3, 21, 21)
    x = x.conv(16, 3, 2)
    for out in (24, 40):
        y = x.conv(out, 1)
        y = y.conv(out, 3, 2, groups=out // 8)
        y = _gate(y, 5)
        y = y.conv(out, 1, act="", gain=0.3)
        side = x.conv(out, 1, 2, act="")
        x = (y + side).Relu()
    return x.head()


@network
def xception(n: Net) -> NetTensor:
    """Chollet 2017: separable convolutions, rectified first, and poolings with overlap."""
    x = n.input(1, 3, 35, 35)
    x = x.conv(10, 3, 2, pads=0)
    x = x.conv(18)
    for out in (26, 38):
        y = x
        for _ in range(2):
            y = y.Relu()
            y = y.depthwise(norm=False, act="")
            y = y.conv(out, 1, act="", gain=1.5)
        y = y.max_pool(3, 2, 1)
        x = y + x.conv(out, 1, 2, act="")
    return x.head()


@network
def convnext(n: Net) -> NetTensor:
    """Liu et al. 2022: patches, 7x7 depthwise, layer normalization over channels last."""
    x = n.input(1, 3, 28, 28)
    x = x.project(20, 4, 4, pads=0)
    for width in (20, 36):
        if width != 20:
            y = x.transpose(0, 2, 3, 1)
            y = y.layer_norm()
            y = y.transpose(0, 3, 1, 2)
            x = y.project(width, 2, 2, pads=0)
        y = x.depthwise(7, norm=False, act="")
        y = y.transpose(0, 2, 3, 1)
        y = y.layer_norm()
        y = y.linear(3 * width, "Gelu")
        y = y.linear(width, gain=0.5)
        y = y * n.near(0.7, width)
        x = x + y.transpose(0, 3, 1, 2)
    x = x.GlobalAveragePool()
    x = x.Flatten()
    x = x.layer_norm()
    return x.gemm(10)


@network
def mobileone(n: Net) -> NetTensor:
    """Vasu et al. 2023 before its branches are joined: three next to one another, summed."""
    x = n.input(1, 3, 17, 17)
    x = x.conv(14, 3, 2)
    for out in (14, 14):
        wide = x.depthwise(act="")
        narrow = x.depthwise(1, act="")
        same = x.batch_norm()
        y = n.add(wide, narrow, same)
        y = (y * 0.6).Relu()
        mixed = y.conv(out, 1, act="")
        same = y.batch_norm()
        x = (mixed + same).Relu()
    return x.head()
