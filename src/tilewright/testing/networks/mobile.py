"""Networks of depthwise and grouped convolutions: MobileNets and what came of them."""

from __future__ import annotations

from tilewright.graph.nodes import Value
from tilewright.testing.networks.builder import Net, network


def _gate(n: Net, x: Value, inner: int, act: str = "Relu", end: str = "Sigmoid") -> Value:
    """Squeeze and excite."""
    g = n.conv(n("GlobalAveragePool", x), inner, 1, norm=False, act=act)
    return n("Mul", x, n.conv(g, x.extents[1], 1, norm=False, act=end))


def _inverted(
    n: Net, x: Value, out: int, stride: int = 1, *, expand: int = 3, size: int = 3,
    act: str = "Relu6", gate: str = "",
) -> Value:  # fmt: skip
    """Expand, depthwise, a gate, project; added where the shapes agree."""
    y = n.conv(x, x.extents[1] * expand, 1, act=act)
    y = n.depthwise(y, size, stride, act=act)
    if gate:
        y = _gate(n, y, 6, "Relu" if gate == "HardSigmoid" else act, gate)
    same = stride == 1 and x.extents[1] == out
    y = n.conv(y, out, 1, act="", gain=0.3 if same else 1.0)
    return n("Add", x, y) if same else y


def _shuffled(n: Net, x: Value, groups: int) -> Value:
    """Channels of all groups, one of each in turn."""
    b, c, h, w = x.extents
    y = n.order(n.shape(x, b, groups, c // groups, h, w), 0, 2, 1, 3, 4)
    return n.shape(y, b, c, h, w)


@network
def mobilenet_v1(n: Net) -> Value:
    """Howard et al. 2017: depthwise and 1x1 convolutions."""
    x = n.conv(n.input(1, 3, 33, 33), 10, 3, 2)
    for out, stride in ((18, 1), (26, 2), (26, 1), (40, 2)):
        x = n.conv(n.depthwise(x, 3, stride), out, 1)
    return n.head(x)


@network
def mobilenet_v2(n: Net) -> Value:
    """Sandler et al. 2018: linear bottlenecks."""
    x = n.conv(n.input(1, 3, 33, 33), 12, 3, 2, act="Relu6")
    for out, stride in ((10, 1), (14, 2), (14, 1), (22, 2)):
        x = _inverted(n, x, out, stride)
    return n.head(n.conv(x, 48, 1, act="Relu6"))


@network
def mobilenet_v3(n: Net) -> Value:
    """Howard et al. 2019: windows of 5x5, gates, hard swish."""
    x = n.conv(n.input(2, 3, 27, 27), 12, 3, 2, act="HardSwish")
    x = _inverted(n, x, 12, act="Relu", gate="HardSigmoid")
    x = _inverted(n, x, 20, 2, size=5, act="HardSwish", gate="HardSigmoid")
    x = _inverted(n, x, 20, size=5, act="HardSwish", gate="HardSigmoid")
    x = n.conv(n("GlobalAveragePool", x), 36, 1, norm=False, act="HardSwish")
    return n.gemm(n("Flatten", x), 10)


@network
def mnasnet(n: Net) -> Value:
    """Tan et al. 2019."""
    x = n.depthwise(n.conv(n.input(1, 3, 31, 31), 16, 3, 2))
    x = n.conv(x, 10, 1, act="")
    for out, stride, size in ((14, 2, 3), (14, 1, 3), (22, 2, 5)):
        x = _inverted(n, x, out, stride, size=size, act="Relu")
    return n.head(n.conv(x, 30, 1))


@network
def efficientnet(n: Net) -> Value:
    """Tan and Le 2019: swish and gates."""
    x = n.conv(n.input(1, 3, 29, 29), 14, 3, 2, act="Silu")
    for out, stride, size in ((14, 1, 3), (20, 2, 5), (20, 1, 3)):
        x = _inverted(n, x, out, stride, size=size, act="Silu", gate="Sigmoid")
    return n.head(n.conv(x, 44, 1, act="Silu"))


@network
def efficientnet_v2(n: Net) -> Value:
    """Tan and Le 2021: expansion and depthwise convolution fused into one."""
    x = n.conv(n.input(1, 3, 21, 21), 12, 3, 2, act="Silu")
    for _ in range(2):
        y = n.conv(n.conv(x, 36, act="Silu"), 12, 1, act="", gain=0.3)
        x = n("Add", x, y)
    return n.head(_inverted(n, x, 20, 2, act="Silu", gate="Sigmoid"))


@network
def ghostnet(n: Net) -> Value:
    """Han et al. 2020: half of the channels are made of the other half by cheap convolutions."""

    def ghost(x: Value, out: int, act: str) -> Value:
        first = n.conv(x, out // 2, 1, act=act)
        return n.cat(first, n.depthwise(first, act=act))

    x = n.conv(n.input(1, 3, 25, 25), 12, 3, 2)
    y = ghost(_gate(n, ghost(x, 28, "Relu"), 7), 12, "")
    x = n("Add", x, n("Mul", y, 0.4))
    y = n.depthwise(ghost(x, 36, "Relu"), 3, 2, act="")
    return n.head(n("Add", ghost(y, 18, ""), n.conv(n.depthwise(x, 3, 2, act=""), 18, 1, act="")))


@network
def shufflenet_v1(n: Net) -> Value:
    """Zhang et al. 2018: 1x1 convolutions in groups, channels shuffled between them."""
    x = n.pool(n.conv(n.input(1, 3, 41, 41), 12, 3, 2), 3, 2, 1)
    for stride, out in ((2, 36), (1, 36)):
        made = out - 12 if stride == 2 else out
        y = _shuffled(n, n.conv(x, 18, 1, groups=3), 3)
        y = n.conv(n.depthwise(y, 3, stride, act=""), made, 1, groups=3, act="", gain=0.5)
        y = n.cat(n.mean(x, 3, 2, 1), y) if stride == 2 else n("Add", x, y)
        x = n("Relu", y)
    return n.head(x)


@network
def shufflenet_v2(n: Net) -> Value:
    """Ma et al. 2018: half of the channels go around, then all are shuffled."""

    def branch(x: Value, out: int, stride: int) -> Value:
        return n.conv(n.depthwise(n.conv(x, out, 1), 3, stride, act=""), out, 1)

    x = n.pool(n.conv(n.input(1, 3, 41, 41), 12, 3, 2), 3, 2, 1)
    left = n.conv(n.depthwise(x, 3, 2, act=""), 14, 1)
    x = _shuffled(n, n.cat(left, branch(x, 14, 2)), 2)
    for _ in range(2):
        keep, y = n.split(x, 14, 14)
        x = _shuffled(n, n.cat(keep, branch(y, 14, 1)), 2)
    return n.head(n.conv(x, 40, 1))


@network
def regnet(n: Net) -> Value:
    """Radosavovic et al. 2020: groups of a fixed width, gates."""
    x = n.conv(n.input(1, 3, 21, 21), 16, 3, 2)
    for out in (24, 40):
        y = n.conv(n.conv(x, out, 1), out, 3, 2, groups=out // 8)
        y = n.conv(_gate(n, y, 5), out, 1, act="", gain=0.3)
        x = n("Relu", n("Add", y, n.conv(x, out, 1, 2, act="")))
    return n.head(x)


@network
def xception(n: Net) -> Value:
    """Chollet 2017: separable convolutions, rectified first, and poolings with overlap."""
    x = n.conv(n.conv(n.input(1, 3, 35, 35), 10, 3, 2, pads=[0] * 4), 18)
    for out in (26, 38):
        y = x
        for _ in range(2):
            y = n.conv(n.depthwise(n("Relu", y), norm=False, act=""), out, 1, act="", gain=1.5)
        x = n("Add", n.pool(y, 3, 2, 1), n.conv(x, out, 1, 2, act=""))
    return n.head(x)


@network
def convnext(n: Net) -> Value:
    """Liu et al. 2022: patches, 7x7 depthwise, layer normalization over channels last."""
    x = n.conv(n.input(1, 3, 28, 28), 20, 4, 4, pads=[0] * 4, norm=False, act="")
    for width in (20, 36):
        if width != 20:
            y = n.order(n.layer_norm(n.order(x, 0, 2, 3, 1)), 0, 3, 1, 2)
            x = n.conv(y, width, 2, 2, pads=[0] * 4, norm=False, act="")
        y = n.order(n.depthwise(x, 7, norm=False, act=""), 0, 2, 3, 1)
        y = n.linear(n.linear(n.layer_norm(y), 3 * width, "Gelu"), width, gain=0.5)
        y = n("Mul", y, n.near(0.7, width))
        x = n("Add", x, n.order(y, 0, 3, 1, 2))
    return n.gemm(n.layer_norm(n("Flatten", n("GlobalAveragePool", x))), 10)


@network
def mobileone(n: Net) -> Value:
    """Vasu et al. 2023 before its branches are joined: three beside one another, summed."""
    x = n.conv(n.input(1, 3, 17, 17), 14, 3, 2)
    for out in (14, 14):
        y = n.add(n.depthwise(x, act=""), n.depthwise(x, 1, act=""), n.batch_norm(x))
        y = n("Relu", n("Mul", y, 0.6))
        x = n("Relu", n("Add", n.conv(y, out, 1, act=""), n.batch_norm(y)))
    return n.head(x)
