"""Networks that label every pixel: dilated heads, pyramids of poolings, U-Nets, hourglasses."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.testing.networks.builder import Net, NetTensor, network


def _pair(x: NetTensor, width: int) -> NetTensor:
    x = x.conv(width)
    return x.conv(width)


def _up(
    x: NetTensor,
    height: int,
    width: int,
) -> NetTensor:
    """Bilinear, as PyTorch does by default."""
    return x.resize(height, width, mode="linear")


def _backbone(
    n: Net,
    size: int,
    widths: Sequence[int] = (12, 20),
) -> list[NetTensor]:
    """Maps of an image, each half of the one before."""
    x = n.input(1, 3, size, size)
    found = []
    for width in widths:
        x = x.conv(width, 3, 2)
        x = x.conv(width)
        found.append(x)
    return found


@network
def fcn(n: Net) -> NetTensor:
    """Long et al. 2015: scores of several strides, lifted by transposed convolutions and added."""
    fine, coarse = _backbone(n, 33, (14, 22))
    scores = coarse.project(5, 1)
    twice = [2, 2]
    w = n.weight(5, 5, 3, 3, gain=2.0)
    lifted = scores.ConvTranspose(w, strides=twice, pads=[1] * 4)
    y = lifted + fine.project(5, 1)
    w = n.weight(5, 5, 4, 4, gain=2.0)
    pads = [1, 1, 2, 2]
    return y.ConvTranspose(
        w,
        strides=twice,
        pads=pads,
        output_padding=[1, 1],
    )


@network
def deeplab_v3(n: Net) -> NetTensor:
    """Chen et al. 2017: dilated stages, and branches of several dilations with a global one."""
    x = n.input(1, 3, 33, 33)
    x = x.conv(12, 3, 2)
    x = x.max_pool(3, 2, 1)
    x = x.conv(24, dilation=2)
    x = x.conv(24, dilation=4)
    height, width = x.shape[2:]
    whole = x.GlobalAveragePool()
    whole = whole.conv(10, 1)
    branches = [x.conv(10, 1)]
    for dilation in (2, 3, 5):
        branches.append(x.conv(10, dilation=dilation))
    whole = _up(whole, height, width)
    y = n.cat(*branches, whole)
    y = y.conv(18, 1)
    y = y.conv(18)
    y = y.project(5, 1)
    return _up(y, 33, 33)


@network
def dilated_head(n: Net) -> NetTensor:
    """A dilated convolution most of whose products are with padding."""
    x = n.input(1, 12, 17, 17)
    x = x.conv(40, 1)
    x = x.conv(20, dilation=12)
    return x.project(5, 1)


@network
def deep_convolution(n: Net) -> NetTensor:
    """A convolution with too many channels for a second-level cache of 1 MiB."""
    x = n.input(1, 12, 30, 30)
    x = x.conv(320, 1)
    x = x.conv(20, dilation=6, pads=0)
    return x.project(5, 1)


@network
def deeplab_v3_plus(n: Net) -> NetTensor:
    """Chen et al. 2018: separable dilated convolutions, and a decoder that reads finer maps."""
    fine, x = _backbone(n, 31, (10, 22))
    branches = [x.conv(9, 1)]
    for dilation in (2, 3):
        y = x.depthwise(dilation=dilation)
        branches.append(y.conv(9, 1))
    y = n.cat(*branches)
    y = y.conv(16, 1)
    y = _up(y, *fine.shape[2:])
    fine = fine.conv(6, 1)
    y = n.cat(y, fine)
    y = y.depthwise()
    y = y.conv(16, 1)
    return y.project(5, 1)


@network
def pspnet(n: Net) -> NetTensor:
    """Zhao et al. 2017: means over 1, 2, 3 and 6 parts of the map, lifted and concatenated."""
    (x,) = _backbone(n, 24, (20,))
    parts = [x]
    for bins in (1, 2, 3, 6):
        side = 12 // bins
        y = x.average_pool(side, side)
        y = y.conv(5, 1)
        parts.append(_up(y, 12, 12))
    x = n.cat(*parts)
    x = x.conv(16)
    return x.project(5, 1)


@network
def unet(n: Net) -> NetTensor:
    """Ronneberger et al. 2015, enlarged by nearest neighbors."""
    x = n.input(1, 3, 28, 28)
    x = _pair(x, 8)
    kept = []
    for width in (14, 22):
        kept.append(x)
        x = x.max_pool(2)
        x = _pair(x, width)
    for skip in reversed(kept):
        x = x.resize(*skip.shape[2:])
        x = n.cat(skip, x)
        x = _pair(x, skip.shape[1])
    return x.project(3, 1)


@network
def unet_transposed(n: Net) -> NetTensor:
    """With transposed convolutions of 2x2, on sides that are not powers of two."""
    x = n.input(2, 1, 20, 12)
    x = _pair(x, 10)
    kept = []
    for width in (18, 26):
        kept.append(x)
        x = x.max_pool(2)
        x = _pair(x, width)
    for skip in reversed(kept):
        out = skip.shape[1]
        channels = x.shape[1]
        w = n.weight(channels, out, 2, 2, gain=1.0, fan=channels)
        bias = n.near(0, out)
        x = x.ConvTranspose(w, bias, strides=[2, 2])
        x = n.cat(skip, x)
        x = _pair(x, out)
    x = x.project(1, 1)
    return x.Sigmoid()


@network
def unet_unpadded(n: Net) -> NetTensor:
    """As published: convolutions without padding; operands of concatenations are cropped."""
    first = n.input(1, 2, 30, 30)
    first = first.conv(9, pads=0)
    first = first.conv(9, pads=0)
    x = first.max_pool(2)
    x = x.conv(17, pads=0)
    x = x.conv(17, pads=0)
    x = x.resize(18, 18)
    crop = first.Slice([4, 4], [22, 22], [2, 3])
    x = n.cat(crop, x)
    x = x.conv(9, pads=0)
    return x.project(3, 1)


@network
def segnet(n: Net) -> NetTensor:
    """Badrinarayanan et al. 2017: unpooling puts maxima back at their original places."""
    x = n.input(1, 3, 16, 16)
    x = x.conv(12)
    windows = {"kernel_shape": [2, 2], "strides": [2, 2]}
    y, places = n.many("MaxPool", 2, x, **windows)
    y = y.conv(12)
    x = y.MaxUnpool(places, **windows)
    return x.project(4)


@network
def hourglass(n: Net) -> NetTensor:
    """Newell et al. 2016: down and up again, with residuals at each size."""

    def level(x: NetTensor, depth: int) -> NetTensor:
        side = x + x.conv(14, act="", gain=0.3)
        low = x.max_pool(2)
        low = low.conv(14)
        if depth > 1:
            low = level(low, depth - 1)
        else:
            low = low.conv(14)
        low = low.conv(14, gain=0.5)
        return side + low.resize(*x.shape[2:])

    x = n.input(1, 3, 24, 24)
    x = x.conv(14)
    x = level(x, 3)
    return x.project(7, 1)


@network
def enet(n: Net) -> NetTensor:
    """Paszke et al. 2016: parallel convolution and pooling, then thin and asymmetric windows."""
    x = n.input(1, 3, 25, 33)
    made = x.conv(11, 3, 2, act="PRelu")
    pooled = x.max_pool(3, 2, 1)
    x = n.cat(made, pooled)
    y = x.conv(6, 1, act="PRelu")
    y = y.conv(6, (5, 1))
    y = y.conv(6, (1, 5), act="PRelu")
    x = x + y.conv(14, 1, act="", gain=0.5)
    x = x.act("PRelu")
    y = x.conv(6, 1)
    y = y.conv(6, dilation=3)
    x = x + y.conv(14, 1, act="")
    return x.project(4, 1)


@network
def segformer(n: Net) -> NetTensor:
    """Xie et al. 2021: keys and values of a smaller map, a depthwise convolution in each MLP."""
    x = n.input(1, 3, 24, 24)
    x = x.project(20, 7, 4)
    tokens = x.tokens()
    y = tokens.layer_norm()
    small = y.image(6, 6)
    small = small.conv(20, 2, 2, pads=0, act="")
    pooled = small.tokens()
    pooled = pooled.layer_norm()
    query = y.linear(20)
    key = pooled.linear(20)
    scores = query @ key.mT
    scores = scores * 20**-0.5
    weights = scores.Softmax(axis=-1)
    value = pooled.linear(20)
    seen = weights @ value
    tokens = tokens + seen.linear(20)
    y = tokens.layer_norm()
    y = y.linear(44)
    y = y.image(6, 6)
    y = y.depthwise(norm=False, act="Gelu")
    y = y.tokens()
    tokens = tokens + y.linear(20)
    x = tokens.image(6, 6)
    x = x.project(4, 1)
    return _up(x, 12, 12)
