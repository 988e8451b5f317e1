"""Networks that concatenate, and plain chains: DenseNet, Inception, VGG, AlexNet, SqueezeNet."""

from __future__ import annotations

from tilewright.graph.nodes import Value
from tilewright.testing.networks.builder import Net, network


@network
def lenet(n: Net) -> Value:
    """LeCun et al. 1998, with its hyperbolic tangents."""
    x = n.conv(n.input(3, 1, 28, 28), 6, 5, norm=False, act="Tanh")
    x = n.conv(n.mean(x, 2), 16, 5, pads=[0] * 4, norm=False, act="Tanh")
    x = n("Flatten", n.mean(x, 2))
    return n("Softmax", n.gemm(n.gemm(n.gemm(x, 60, "Tanh"), 42, "Tanh"), 10))


@network
def alexnet(n: Net) -> Value:
    """Krizhevsky et al. 2012: overlapping poolings, local response normalization, groups."""
    x = n.conv(n.input(1, 3, 67, 67), 12, 11, 4, pads=[2] * 4, norm=False)
    x = n.pool(n("LRN", x, size=5, alpha=1e-2, beta=0.75, bias=1.0))
    x = n.pool(n.conv(x, 24, 5, groups=2, norm=False), 3, 2)
    x = n.conv(n.conv(x, 36, norm=False), 24, norm=False, groups=2)
    return n.gemm(n.gemm(n("Flatten", x), 50, "Relu"), 10)


@network
def vgg(n: Net) -> Value:
    """Simonyan and Zisserman 2015: pairs of 3x3 convolutions and poolings."""
    x = n.input(1, 3, 33, 33)
    for width in (10, 18, 34):
        x = n.pool(n.conv(n.conv(x, width, norm=False), width, norm=False), 2)
    return n.gemm(n.gemm(n("Flatten", x), 40, "Relu"), 10)


@network
def squeezenet(n: Net) -> Value:
    """Iandola et al. 2016: a 1x1 convolution, then 1x1 and 3x3 beside one another."""
    x = n.pool(n.conv(n.input(1, 3, 35, 35), 14, 3, 2, pads=[0] * 4, norm=False))
    for width in (18, 24):
        s = n.conv(x, width // 3, 1, norm=False)
        x = n.cat(n.conv(s, width, 1, norm=False), n.conv(s, width, norm=False))
        x = n.pool(x, 3, 2, ceil_mode=1)
    return n("Flatten", n("GlobalAveragePool", n.conv(x, 10, 1, norm=False)))


@network
def network_in_network(n: Net) -> Value:
    """Lin et al. 2014: 1x1 convolutions behind each larger one."""
    x = n.input(1, 3, 21, 21)
    for width, size in ((20, 5), (28, 3)):
        x = n.conv(n.conv(x, width, size, norm=False), width, 1, norm=False)
        x = n.pool(x, 3, 2)
    return n("Flatten", n("GlobalAveragePool", n.conv(x, 10, 1, norm=False)))


@network
def densenet(n: Net) -> Value:
    """Huang et al. 2017: each layer reads all before it; normalized first."""
    x = n.pool(n.conv(n.input(1, 3, 37, 37), 12, 7, 2), 3, 2, 1)
    for block in range(2):
        for _ in range(3):
            y = n.conv(n("Relu", n.batch_norm(x)), 20, 1)
            x = n.cat(x, n.conv(y, 6, norm=False, act="", gain=2.0))
        if block == 0:
            y = n("Relu", n.batch_norm(x))
            x = n.mean(n.conv(y, 15, 1, norm=False, act=""), 2)
    return n.head(n("Relu", n.batch_norm(x)))


@network
def inception_v1(n: Net) -> Value:
    """Szegedy et al. 2015: four branches, one a pooling of stride 1 with padding."""
    x = n.pool(n.conv(n.input(1, 3, 35, 35), 16, 7, 2, norm=False), 3, 2, ceil_mode=1)
    x = n("LRN", n.conv(x, 20, 1, norm=False), size=5)
    for _ in range(2):
        pooled = n.conv(n.pool(x, 3, 1, 1), 7, 1, norm=False)
        x = n.cat(
            n.conv(x, 9, 1, norm=False),
            n.conv(n.conv(x, 8, 1, norm=False), 14, 3, norm=False),
            n.conv(n.conv(x, 4, 1, norm=False), 6, 5, norm=False),
            pooled,
        )
    return n.head(n.pool(x, 3, 2, ceil_mode=1))


@network
def inception_v3(n: Net) -> Value:
    """Szegedy et al. 2016: windows of one row or column, averages, reductions with stride 2."""
    x = n.conv(n.conv(n.input(1, 3, 31, 31), 10, 3, 2, pads=[0] * 4), 18)
    long = n.conv(n.conv(n.conv(x, 10, 1), 12, (1, 7)), 14, (7, 1))
    x = n.cat(n.conv(x, 12, 1), long, n.conv(n.mean(x, 3, 1, 1, count_include_pad=1), 10, 1))
    down = n.conv(n.conv(n.conv(x, 10, 1), 14, 3), 14, 3, 2, pads=[0] * 4)
    x = n.cat(n.conv(x, 16, 3, 2, pads=[0] * 4), down, n.pool(x, 3, 2))
    y = n.conv(x, 14, 1)
    return n.head(n.cat(n.conv(x, 9, 1), n.conv(y, 10, (1, 3)), n.conv(y, 10, (3, 1))))


@network
def inception_resnet(n: Net) -> Value:
    """Szegedy et al. 2017: branches of an inception block added to the stream, weakened."""
    x = n.conv(n.input(1, 3, 17, 17), 20, 3, 2, pads=[0] * 4)
    for _ in range(2):
        y = n.conv(n.conv(n.conv(x, 8, 1), 10), 12)
        y = n.conv(n.cat(n.conv(x, 8, 1), n.conv(n.conv(x, 8, 1), 8), y), 20, 1, act="")
        x = n("Relu", n("Add", x, n("Mul", y, 0.2)))
    return n.head(x)


@network
def vovnet(n: Net) -> Value:
    """Lee et al. 2019: all layers of a block concatenated once, pooled with overlap between."""
    x = n.conv(n.conv(n.input(1, 3, 29, 29), 12, 3, 2), 14)
    for width in (20, 28):
        layers = [x]
        for _ in range(3):
            layers.append(n.conv(layers[-1], 10))
        x = n.pool(n.conv(n.cat(*layers), width, 1), 3, 2, ceil_mode=1)
    return n.head(x)


@network
def cspnet(n: Net) -> Value:
    """Wang et al. 2020: half of the channels go around the blocks; Mish and leaky rectifiers."""
    x = n.conv(n.input(1, 3, 17, 17), 20, act="LeakyRelu")
    keep, y = n.split(n.conv(x, 28, 3, 2, act="Mish"), 14, 14)
    for _ in range(2):
        z = n.conv(n.conv(y, 14, 1, act="Mish"), 14, act="Mish", gain=0.5)
        y = n("Add", y, z)
    return n.head(n.conv(n.cat(y, keep), 24, 1, act="Mish"))


@network
def maxout_chain(n: Net) -> Value:
    """Goodfellow et al. 2013: the larger of two convolutions; then a pooling into a halo."""
    x = n.input(2, 4, 13, 13)
    for width in (9, 13):
        x = n("Max", n.conv(x, width, norm=False, act=""), n.conv(x, width, norm=False, act=""))
        x = n.pool(x, 3, 2)
    return n.head(n.conv(x, 11))
