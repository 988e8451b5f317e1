"""Networks that label every pixel: dilated heads, pyramids of poolings, U-Nets, hourglasses."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.nodes import Value
from tilewright.testing.networks.builder import Net, network


def _pair(n: Net, x: Value, width: int) -> Value:
    return n.conv(n.conv(x, width), width)


def _up(n: Net, x: Value, height: int, width: int) -> Value:
    """Bilinear, as PyTorch does by default."""
    return n.resize(x, height, width, mode="linear")


def _backbone(n: Net, size: int, widths: Sequence[int] = (12, 20)) -> list[Value]:
    """Maps of an image, each half of the one before."""
    x, found = n.input(1, 3, size, size), []
    for width in widths:
        x = n.conv(n.conv(x, width, 3, 2), width)
        found.append(x)
    return found


@network
def fcn(n: Net) -> Value:
    """Long et al. 2015: scores of several strides, lifted by transposed convolutions and added."""
    fine, coarse = _backbone(n, 33, (14, 22))
    scores = n.conv(coarse, 5, 1, norm=False, act="")
    lifted = n(
        "ConvTranspose", scores, n.weight(5, 5, 3, 3, gain=2.0), strides=[2, 2], pads=[1] * 4
    )
    y = n("Add", lifted, n.conv(fine, 5, 1, norm=False, act=""))
    w = n.weight(5, 5, 4, 4, gain=2.0)
    return n("ConvTranspose", y, w, strides=[2, 2], pads=[1, 1, 2, 2], output_padding=[1, 1])


@network
def deeplab_v3(n: Net) -> Value:
    """Chen et al. 2017: dilated stages, and branches of several dilations with a global one."""
    x = n.pool(n.conv(n.input(1, 3, 33, 33), 12, 3, 2), 3, 2, 1)
    x = n.conv(n.conv(x, 24, dilation=2), 24, dilation=4)
    height, width = x.extents[2:]
    whole = n.conv(n("GlobalAveragePool", x), 10, 1)
    branches = [n.conv(x, 10, 1), *(n.conv(x, 10, dilation=d) for d in (2, 3, 5))]
    y = n.conv(n.cat(*branches, _up(n, whole, height, width)), 18, 1)
    return _up(n, n.conv(n.conv(y, 18), 5, 1, norm=False, act=""), 33, 33)


@network
def dilated_head(n: Net) -> Value:
    """A dilated convolution of so many channels that a second cache of 1 MiB keeps none of it."""
    x = n.conv(n.input(1, 12, 17, 17), 320, 1)
    return n.conv(n.conv(x, 20, dilation=6), 5, 1, norm=False, act="")


@network
def deeplab_v3_plus(n: Net) -> Value:
    """Chen et al. 2018: separable dilated convolutions, and a decoder that reads finer maps."""
    fine, x = _backbone(n, 31, (10, 22))
    branches = [n.conv(x, 9, 1)]
    for dilation in (2, 3):
        branches.append(n.conv(n.depthwise(x, dilation=dilation), 9, 1))
    y = _up(n, n.conv(n.cat(*branches), 16, 1), *fine.extents[2:])
    y = n.cat(y, n.conv(fine, 6, 1))
    return n.conv(n.conv(n.depthwise(y), 16, 1), 5, 1, norm=False, act="")


@network
def pspnet(n: Net) -> Value:
    """Zhao et al. 2017: means over 1, 2, 3 and 6 parts of the map, lifted and concatenated."""
    x = _backbone(n, 24, (20,))[0]
    parts = [x]
    for bins in (1, 2, 3, 6):
        size = 12 // bins
        parts.append(_up(n, n.conv(n.mean(x, size, size), 5, 1), 12, 12))
    return n.conv(n.conv(n.cat(*parts), 16), 5, 1, norm=False, act="")


@network
def unet(n: Net) -> Value:
    """Ronneberger et al. 2015, enlarged by nearest neighbors."""
    kept = [_pair(n, n.input(1, 3, 28, 28), 8)]
    for width in (14, 22):
        kept.append(_pair(n, n.pool(kept[-1], 2), width))
    x = kept.pop()
    for skip in reversed(kept):
        x = n.resize(x, *skip.extents[2:])
        x = _pair(n, n.cat(skip, x), skip.extents[1])
    return n.conv(x, 3, 1, norm=False, act="")


@network
def unet_transposed(n: Net) -> Value:
    """With transposed convolutions of 2x2, on sides that are not powers of two."""
    kept = [_pair(n, n.input(2, 1, 20, 12), 10)]
    for width in (18, 26):
        kept.append(_pair(n, n.pool(kept[-1], 2), width))
    x = kept.pop()
    for skip in reversed(kept):
        out = skip.extents[1]
        w = n.weight(x.extents[1], out, 2, 2, gain=1.0, fan=x.extents[1])
        x = n("ConvTranspose", x, w, n.near(0, out), strides=[2, 2])
        x = _pair(n, n.cat(skip, x), out)
    return n("Sigmoid", n.conv(x, 1, 1, norm=False, act=""))


@network
def unet_unpadded(n: Net) -> Value:
    """As published: convolutions without padding, and crops of what is concatenated."""
    first = n.conv(n.conv(n.input(1, 2, 30, 30), 9, pads=[0] * 4), 9, pads=[0] * 4)
    x = n.conv(n.conv(n.pool(first, 2), 17, pads=[0] * 4), 17, pads=[0] * 4)
    x = n.resize(x, 18, 18)
    crop = n("Slice", first, [4, 4], [22, 22], [2, 3])
    return n.conv(n.conv(n.cat(crop, x), 9, pads=[0] * 4), 3, 1, norm=False, act="")


@network
def segnet(n: Net) -> Value:
    """Badrinarayanan et al. 2017: maxima go back to where they were found."""
    x = n.conv(n.input(1, 3, 16, 16), 12)
    y, places = n.many("MaxPool", 2, x, kernel_shape=[2, 2], strides=[2, 2])
    y = n.conv(y, 12)
    x = n("MaxUnpool", y, places, kernel_shape=[2, 2], strides=[2, 2])
    return n.conv(x, 4, norm=False, act="")


@network
def hourglass(n: Net) -> Value:
    """Newell et al. 2016: down and up again, with residuals at each size."""

    def level(x: Value, depth: int) -> Value:
        side = n("Add", x, n.conv(x, 14, act="", gain=0.3))
        low = n.conv(n.pool(x, 2), 14)
        low = level(low, depth - 1) if depth > 1 else n.conv(low, 14)
        return n("Add", side, n.resize(n.conv(low, 14, gain=0.5), *x.extents[2:]))

    x = n.conv(n.input(1, 3, 24, 24), 14)
    return n.conv(level(x, 3), 7, 1, norm=False, act="")


@network
def enet(n: Net) -> Value:
    """Paszke et al. 2016: a convolution beside a pooling at once, thin and asymmetric windows."""
    x = n.input(1, 3, 25, 33)
    x = n.cat(n.conv(x, 11, 3, 2, act="PRelu"), n.pool(x, 3, 2, 1))
    y = n.conv(n.conv(n.conv(x, 6, 1, act="PRelu"), 6, (5, 1)), 6, (1, 5), act="PRelu")
    x = n.act(n("Add", x, n.conv(y, 14, 1, act="", gain=0.5)), "PRelu")
    y = n.conv(n.conv(x, 6, 1), 6, dilation=3)
    return n.conv(n("Add", x, n.conv(y, 14, 1, act="")), 4, 1, norm=False, act="")


@network
def segformer(n: Net) -> Value:
    """Xie et al. 2021: keys and values of a smaller map, a depthwise convolution in each MLP."""
    x = n.conv(n.input(1, 3, 24, 24), 20, 7, 4, norm=False, act="")
    tokens = n.order(n.shape(x, 1, 20, 36), 0, 2, 1)
    y = n.layer_norm(tokens)
    small = n.conv(n.shape(n.order(y, 0, 2, 1), 1, 20, 6, 6), 20, 2, 2, pads=[0] * 4, act="")
    pooled = n.layer_norm(n.order(n.shape(small, 1, 20, 9), 0, 2, 1))
    scores = n("MatMul", n.linear(y, 20), n.order(n.linear(pooled, 20), 0, 2, 1))
    weights = n("Softmax", n("Mul", scores, 20**-0.5), axis=-1)
    tokens = n("Add", tokens, n.linear(n("MatMul", weights, n.linear(pooled, 20)), 20))
    y = n.linear(n.layer_norm(tokens), 44)
    y = n.depthwise(n.shape(n.order(y, 0, 2, 1), 1, 44, 6, 6), norm=False, act="Gelu")
    y = n.linear(n.order(n.shape(y, 1, 44, 36), 0, 2, 1), 20)
    x = n.shape(n.order(n("Add", tokens, y), 0, 2, 1), 1, 20, 6, 6)
    return _up(n, n.conv(x, 4, 1, norm=False, act=""), 12, 12)
