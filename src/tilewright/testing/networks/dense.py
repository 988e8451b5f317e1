"""Networks that concatenate, and plain chains: DenseNet, Inception, VGG, AlexNet, SqueezeNet."""

from __future__ import annotations

from tilewright.testing.networks.builder import Net, NetTensor, network


@network
def lenet(n: Net) -> NetTensor:
    """LeCun et al. 1998, with its hyperbolic tangents."""
    x = n.input(3, 1, 28, 28)
    x = x.conv_bias(6, 5, act="Tanh")
    x = x.average_pool(2)
    x = x.conv_bias(16, 5, pads=0, act="Tanh")
    x = x.average_pool(2)
    x = x.Flatten()
    x = x.gemm(60, "Tanh")
    x = x.gemm(42, "Tanh")
    x = x.gemm(10)
    return x.Softmax()


@network
def alexnet(n: Net) -> NetTensor:
    """Krizhevsky et al. 2012: overlapping poolings, local response normalization, groups."""
    x = n.input(1, 3, 67, 67)
    x = x.conv_bias(12, 11, 4, pads=2)
    x = x.LRN(
        size=5,
        alpha=1e-2,
        beta=0.75,
        bias=1.0,
    )
    x = x.max_pool()
    x = x.conv_bias(24, 5, groups=2)
    x = x.max_pool(3, 2)
    x = x.conv_bias(36)
    x = x.conv_bias(24, groups=2)
    x = x.Flatten()
    x = x.gemm(50, "Relu")
    return x.gemm(10)


@network
def vgg(n: Net) -> NetTensor:
    """Simonyan and Zisserman 2015: pairs of 3x3 convolutions and poolings."""
    x = n.input(1, 3, 33, 33)
    for width in (10, 18, 34):
        x = x.conv_bias(width)
        x = x.conv_bias(width)
        x = x.max_pool(2)
    x = x.Flatten()
    x = x.gemm(40, "Relu")
    return x.gemm(10)


@network
def squeezenet(n: Net) -> NetTensor:
    """Iandola et al. 2016: a 1x1 convolution, then 1x1 and 3x3 next to one another."""
    x = n.input(1, 3, 35, 35)
    x = x.conv_bias(14, 3, 2, pads=0)
    x = x.max_pool()
    for width in (18, 24):
        squeezed = x.conv_bias(width // 3, 1)
        narrow = squeezed.conv_bias(width, 1)
        wide = squeezed.conv_bias(width)
        x = n.cat(narrow, wide)
        x = x.max_pool(3, 2, ceil_mode=1)
    x = x.conv_bias(10, 1)
    x = x.GlobalAveragePool()
    return x.Flatten()


@network
def network_in_network(n: Net) -> NetTensor:
    """Lin et al. 2014: 1x1 convolutions after each larger one."""
    x = n.input(1, 3, 21, 21)
    for width, size in ((20, 5), (28, 3)):
        x = x.conv_bias(width, size)
        x = x.conv_bias(width, 1)
        x = x.max_pool(3, 2)
    x = x.conv_bias(10, 1)
    x = x.GlobalAveragePool()
    return x.Flatten()


@network
def densenet(n: Net) -> NetTensor:
    """Huang et al. 2017: each layer reads all before it; normalized first."""
    x = n.input(1, 3, 37, 37)
    x = x.conv(12, 7, 2)
    x = x.max_pool(3, 2, 1)
    for block in range(2):
        for _ in range(3):
            y = x.norm_relu()
            y = y.conv(20, 1)
            y = y.project(6, gain=2.0)
            x = n.cat(x, y)
        if block == 0:
            y = x.norm_relu()
            x = y.project(15, 1)
            x = x.average_pool(2)
    x = x.norm_relu()
    return x.head()


@network
def inception_v1(n: Net) -> NetTensor:
    """Szegedy et al. 2015: four branches, one a pooling of stride 1 with padding."""
    x = n.input(1, 3, 35, 35)
    x = x.conv_bias(16, 7, 2)
    x = x.max_pool(3, 2, ceil_mode=1)
    x = x.conv_bias(20, 1)
    x = x.LRN(size=5)
    for _ in range(2):
        pooled = x.max_pool(3, 1, 1)
        pooled = pooled.conv_bias(7, 1)
        narrow = x.conv_bias(9, 1)
        middle = x.conv_bias(8, 1)
        middle = middle.conv_bias(14, 3)
        wide = x.conv_bias(4, 1)
        wide = wide.conv_bias(6, 5)
        x = n.cat(narrow, middle, wide, pooled)
    x = x.max_pool(3, 2, ceil_mode=1)
    return x.head()


@network
def inception_v3(n: Net) -> NetTensor:
    """Szegedy et al. 2016: windows of one row or column, averages, reductions with stride 2."""
    x = n.input(1, 3, 31, 31)
    x = x.conv(10, 3, 2, pads=0)
    x = x.conv(18)
    long = x.conv(10, 1)
    long = long.conv(12, (1, 7))
    long = long.conv(14, (7, 1))
    short = x.conv(12, 1)
    means = x.average_pool(3, 1, 1, count_include_pad=1)
    means = means.conv(10, 1)
    x = n.cat(short, long, means)
    down = x.conv(10, 1)
    down = down.conv(14, 3)
    down = down.conv(14, 3, 2, pads=0)
    once = x.conv(16, 3, 2, pads=0)
    pooled = x.max_pool(3, 2)
    x = n.cat(once, down, pooled)
    y = x.conv(14, 1)
    short = x.conv(9, 1)
    rows = y.conv(10, (1, 3))
    columns = y.conv(10, (3, 1))
    x = n.cat(short, rows, columns)
    return x.head()


@network
def inception_resnet(n: Net) -> NetTensor:
    """Szegedy et al. 2017: branches of an inception block added to the stream, weakened."""
    x = n.input(1, 3, 17, 17)
    x = x.conv(20, 3, 2, pads=0)
    for _ in range(2):
        y = x.conv(8, 1)
        y = y.conv(10)
        y = y.conv(12)
        short = x.conv(8, 1)
        middle = x.conv(8, 1)
        middle = middle.conv(8)
        y = n.cat(short, middle, y)
        y = y.conv(20, 1, act="")
        x = (x + y * 0.2).Relu()
    return x.head()


@network
def vovnet(n: Net) -> NetTensor:
    """Lee et al. 2019: all layers of a block concatenated once, pooled with overlap between."""
    x = n.input(1, 3, 29, 29)
    x = x.conv(12, 3, 2)
    x = x.conv(14)
    for width in (20, 28):
        layers = [x]
        for _ in range(3):
            last = layers[-1]
            layers.append(last.conv(10))
        x = n.cat(*layers)
        x = x.conv(width, 1)
        x = x.max_pool(3, 2, ceil_mode=1)
    return x.head()


@network
def cspnet(n: Net) -> NetTensor:
    """Wang et al. 2020: half of the channels go around the blocks; Mish and leaky rectifiers."""
    x = n.input(1, 3, 17, 17)
    x = x.conv(20, act="LeakyRelu")
    x = x.conv(28, 3, 2, act="Mish")
    keep, y = x.split(14, 14)
    for _ in range(2):
        z = y.conv(14, 1, act="Mish")
        z = z.conv(14, act="Mish", gain=0.5)
        y = y + z
    x = n.cat(y, keep)
    x = x.conv(24, 1, act="Mish")
    return x.head()


@network
def maxout_chain(n: Net) -> NetTensor:
    """Goodfellow et al. 2013: the larger of two convolutions; then a pooling into a halo."""
    x = n.input(2, 4, 13, 13)
    for width in (9, 13):
        one = x.project(width)
        other = x.project(width)
        x = one.Max(other)
        x = x.max_pool(3, 2)
    x = x.conv(11)
    return x.head()
