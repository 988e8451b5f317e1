"""Networks that make images and sounds: GANs, vocoders, autoencoders, super-resolution."""

from __future__ import annotations

from tilewright.graph.nodes import Value
from tilewright.testing.networks.builder import Net, network
from tilewright.testing.networks.transformer import attend


def _lifted(n: Net, x: Value, out: int, size: int = 4, stride: int = 2, act: str = "Relu") -> Value:
    """A transposed convolution that multiplies extents by its stride, normalized."""
    rank, pad = len(x.extents) - 2, (size - stride) // 2
    taps = -(-size // stride)
    w = n.weight(x.extents[1], out, *[size] * rank, gain=2.0, fan=x.extents[1] * taps**rank)
    y = n("ConvTranspose", x, w, strides=[stride] * rank, pads=[pad] * 2 * rank)
    return n.act(n.batch_norm(y) if act == "Relu" else y, act)


@network
def dcgan_generator(n: Net) -> Value:
    """Radford et al. 2016: from a vector to an image by transposed convolutions."""
    x = n.input(2, 20, 1, 1)
    w = n.weight(20, 30, 4, 4, gain=2.0, fan=20)
    x = n("Relu", n.batch_norm(n("ConvTranspose", x, w)))
    return _lifted(n, _lifted(n, x, 18), 3, act="Tanh")


@network
def dcgan_discriminator(n: Net) -> Value:
    """Windows of 4x4 with stride 2, leaky rectifiers."""
    x = n.input(2, 3, 32, 32)
    for width in (10, 18, 30):
        x = n.conv(x, width, 4, 2, pads=[1] * 4, act="LeakyRelu")
    return n("Sigmoid", n.conv(x, 1, 4, pads=[0] * 4, norm=False, act=""))


@network
def stylegan_block(n: Net) -> Value:
    """Karras et al. 2020: weights scaled by a style and normalized; noise; skips of images."""
    x, style = n.input(1, 14, 8, 8), n.input(1, 20)
    for out in (14, 10):
        channels = x.extents[1]
        scale = n("Add", n.linear(style, channels, gain=0.1), 1.0)
        w = n("Mul", n.weight(out, channels, 3, 3), n.shape(scale, 1, channels, 1, 1))
        norm = n("Sqrt", n("Add", n("ReduceSumSquare", w, [1, 2, 3]), 1e-8))
        y = n("Conv", n.resize(x, *(2 * e for e in x.extents[2:])), n("Div", w, norm), pads=[1] * 4)
        noise = n("Mul", n.near(0, 1, 1, *y.extents[2:], spread=1), n.near(0.1, 1))
        x = n.act(n.add(y, noise, n.near(0, out, 1, 1)), "LeakyRelu")
    return n.conv(x, 3, 1, norm=False, act="")


@network
def adain_decoder(n: Net) -> Value:
    """Huang and Belongie 2017: one image's statistics put upon another's, reflected borders."""
    content, style = (n.conv(n.input(1, 3, 14, 14), 16, norm=False) for _ in range(2))

    def moments(x: Value) -> tuple[Value, Value]:
        mean = n("ReduceMean", x, [2, 3])
        spread = n("ReduceMean", n("Pow", n("Sub", x, mean), 2.0), [2, 3])
        return mean, n("Sqrt", n("Add", spread, 1e-5))

    mean, spread = moments(content)
    other, wide = moments(style)
    x = n("Add", n("Mul", n("Div", n("Sub", content, mean), spread), wide), other)
    x = n("Pad", n.resize(x, 28, 28), [0, 0, 1, 1, 0, 0, 1, 1], mode="reflect")
    return n.conv(n.conv(x, 12, pads=[0] * 4, norm=False), 3, norm=False, act="")


@network
def style_transfer(n: Net) -> Value:
    """Johnson et al. 2016: reflected borders, instance normalization, residual blocks."""

    def layer(x: Value, out: int, size: int, stride: int = 1, act: str = "Relu") -> Value:
        p = size // 2
        x = n("Pad", x, [0, 0, p, p, 0, 0, p, p], mode="reflect")
        x = n.conv(x, out, size, stride, pads=[0] * 4, norm=False, act="")
        return n.act(n("InstanceNormalization", x, n.near(1, out), n.near(0, out)), act)

    x = layer(layer(n.input(1, 3, 18, 18), 10, 9), 18, 3, 2)
    x = n("Add", x, layer(layer(x, 18, 3), 18, 3, act=""))
    return layer(n.resize(x, 18, 18), 3, 9, act="Tanh")


@network
def cyclegan_patch(n: Net) -> Value:
    """Isola et al. 2017: a map of verdicts, one per patch."""
    x = n.conv(n.input(1, 3, 30, 30), 10, 4, 2, pads=[1] * 4, norm=False, act="LeakyRelu")
    x = n.conv(x, 18, 4, 2, pads=[1] * 4, norm=False, act="")
    x = n.act(n("InstanceNormalization", x, n.near(1, 18), n.near(0, 18)), "LeakyRelu")
    return n.conv(x, 1, 4, pads=[1] * 4, norm=False, act="")


@network
def hifigan(n: Net) -> Value:
    """Kong et al. 2020: 1-D transposed convolutions, dilated residual blocks of several sizes."""
    x = n.conv(n.input(1, 13, 9), 20, 7, norm=False, act="")
    for out, size, stride in ((14, 8, 4), (10, 4, 2)):
        x = _lifted(n, n.act(x, "LeakyRelu"), out, size, stride, act="")
        branches = []
        for taps in (3, 5):
            y = x
            for dilation in (1, 3):
                z = n.conv(n.act(y, "LeakyRelu"), out, taps, dilation=dilation, norm=False, act="")
                y = n("Add", y, n("Mul", z, 0.5))
            branches.append(y)
        x = n("Div", n.add(*branches), 2.0)
    return n.conv(n.act(x, "LeakyRelu"), 1, 7, norm=False, act="Tanh")


@network
def pixel_shuffle(n: Net) -> Value:
    """Shi et al. 2016: channels become pixels."""
    x = n.conv(n.input(1, 1, 15, 17), 20, 5, norm=False, act="Tanh")
    x = n.conv(n.conv(x, 14, norm=False, act="Tanh"), 9, norm=False, act="")
    return n("DepthToSpace", x, blocksize=3, mode="CRD")


@network
def edsr(n: Net) -> Value:
    """Lim et al. 2017: residual blocks without normalization, then twice the size."""
    x = first = n.conv(n.input(1, 3, 14, 14), 18, norm=False, act="")
    for _ in range(2):
        y = n.conv(n.conv(x, 18, norm=False), 18, norm=False, act="")
        x = n("Add", x, n("Mul", y, 0.1))
    x = n("Add", first, n.conv(x, 18, norm=False, act=""))
    x = n("DepthToSpace", n.conv(x, 40, norm=False, act=""), blocksize=2, mode="CRD")
    return n.conv(x, 3, norm=False, act="")


@network
def autoencoder(n: Net) -> Value:
    """Down to a vector and up again."""
    x = n.conv(n.conv(n.input(1, 1, 28, 28), 10, 3, 2), 18, 3, 2)
    x = n.gemm(n.gemm(n("Flatten", x), 12), 18 * 49, "Relu")
    return _lifted(n, _lifted(n, n.shape(x, 1, 18, 7, 7), 10), 1, act="Sigmoid")


@network
def variational_autoencoder(n: Net) -> list[Value]:
    """Kingma and Welling 2014; the noise is an input."""
    h = n.gemm(n("Flatten", n.input(3, 1, 14, 14)), 40, "Relu")
    mean, spread = n.gemm(h, 9), n.gemm(h, 9)
    z = n("Add", mean, n("Mul", n("Exp", n("Mul", spread, 0.5)), n.input(3, 9)))
    made = n("Sigmoid", n.gemm(n.gemm(z, 40, "Relu"), 196))
    terms = n("Sub", n("Sub", n("Add", spread, 1.0), n("Pow", mean, 2.0)), n("Exp", spread))
    return [n.shape(made, 3, 1, 14, 14), n("Mul", n("ReduceSum", terms, [1], keepdims=0), -0.5)]


@network
def diffusion_unet(n: Net) -> Value:
    """Ho et al. 2020: group normalization, the step embedded, attention at the smallest size."""
    x, step = n.input(1, 3, 16, 16), n.input(1, 8)
    step = n.linear(n.linear(step, 24, "Silu"), 24, "Silu")

    def block(x: Value, out: int) -> Value:
        def layer(x: Value) -> Value:
            c = x.extents[1]
            y = n.group_norm(x, c // 4)
            return n.conv(n.act(y, "Silu"), out, norm=False, act="")

        y = n("Add", layer(x), n("Unsqueeze", n.linear(step, out), [2, 3]))
        side = x if x.extents[1] == out else n.conv(x, out, 1, norm=False, act="")
        return n("Add", side, layer(y))

    high = block(n.conv(x, 12, norm=False, act=""), 12)
    low = block(n.conv(high, 20, 3, 2, norm=False, act=""), 20)
    tokens = n.order(n.shape(low, 1, 20, 64), 0, 2, 1)
    seen = attend(n, *(n.linear(tokens, 20) for _ in range(3)))
    low = n("Add", low, n.shape(n.order(n.linear(seen, 20), 0, 2, 1), 1, 20, 8, 8))
    x = block(n.cat(n.resize(low, 16, 16), high), 12)
    return n.conv(n.act(x, "Silu"), 3, norm=False, act="")
