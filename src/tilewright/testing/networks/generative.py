"""Networks that make images and sounds: GANs, vocoders, autoencoders, super-resolution."""

from __future__ import annotations

from tilewright.testing.networks.builder import Net, NetTensor, network
from tilewright.testing.networks.transformer import attend


def _lifted(
    n: Net,
    x: NetTensor,
    out: int,
    size: int = 4,
    stride: int = 2,
    act: str = "Relu",
) -> NetTensor:
    """A transposed convolution that multiplies extents by its stride, normalized."""
    _, channels, *spatial = x.shape
    rank = len(spatial)
    pad = (size - stride) // 2
    taps = -(-size // stride)
    fan = channels * taps**rank
    sizes = [size] * rank
    w = n.weight(channels, out, *sizes, gain=2.0, fan=fan)
    strides = [stride] * rank
    pads = [pad] * 2 * rank
    y = x.ConvTranspose(w, strides=strides, pads=pads)
    if act == "Relu":
        y = y.batch_norm()
    return y.act(act)


@network
def dcgan_generator(n: Net) -> NetTensor:
    """Radford et al. 2016: from a vector to an image by transposed convolutions."""
    x = n.input(2, 20, 1, 1)
    w = n.weight(20, 30, 4, 4, gain=2.0, fan=20)
    x = x.ConvTranspose(w)
    x = x.batch_norm()
    x = x.Relu()
    x = _lifted(n, x, 18)
    return _lifted(n, x, 3, act="Tanh")


@network
def dcgan_discriminator(n: Net) -> NetTensor:
    """Windows of 4x4 with stride 2, leaky rectifiers."""
    x = n.input(2, 3, 32, 32)
    for width in (10, 18, 30):
        x = x.conv(width, 4, 2, pads=1, act="LeakyRelu")
    x = x.project(1, 4, pads=0)
    return x.Sigmoid()


@network
def stylegan_block(n: Net) -> NetTensor:
    """Karras et al. 2020: weights scaled by a style and normalized; noise; skips of images."""
    x = n.input(1, 14, 8, 8)
    style = n.input(1, 20)
    for out in (14, 10):
        channels = x.shape[1]
        scale = style.linear(channels, gain=0.1)
        scale = scale + 1.0
        w = n.weight(out, channels, 3, 3)
        w = w * scale.reshape(1, channels, 1, 1)
        square = w.ReduceSumSquare([1, 2, 3])
        norm = (square + 1e-8).Sqrt()
        twice = [2 * extent for extent in x.shape[2:]]
        y = x.resize(*twice)
        pads = [1] * 4
        y = y.Conv(w / norm, pads=pads)
        noise = n.near(0, 1, 1, *twice, spread=1)
        noise = noise * n.near(0.1, 1)
        bias = n.near(0, out, 1, 1)
        x = n.add(y, noise, bias)
        x = x.act("LeakyRelu")
    return x.project(3, 1)


@network
def adain_decoder(n: Net) -> NetTensor:
    """Huang and Belongie 2017: one image's statistics put upon another's, reflected borders."""
    content = n.input(1, 3, 14, 14)
    content = content.conv_bias(16)
    style = n.input(1, 3, 14, 14)
    style = style.conv_bias(16)

    def moments(x: NetTensor) -> tuple[NetTensor, NetTensor]:
        mean = x.ReduceMean([2, 3])
        square = (x - mean).Pow(2.0)
        spread = square.ReduceMean([2, 3])
        return mean, (spread + 1e-5).Sqrt()

    mean, spread = moments(content)
    other, wide = moments(style)
    x = (content - mean) / spread
    x = x * wide + other
    x = x.resize(28, 28)
    x = x.Pad([0, 0, 1, 1, 0, 0, 1, 1], mode="reflect")
    x = x.conv_bias(12, pads=0)
    return x.project(3)


@network
def style_transfer(n: Net) -> NetTensor:
    """Johnson et al. 2016: reflected borders, instance normalization, residual blocks."""

    def layer(
        x: NetTensor,
        out: int,
        size: int,
        stride: int = 1,
        act: str = "Relu",
    ) -> NetTensor:
        p = size // 2
        x = x.Pad([0, 0, p, p, 0, 0, p, p], mode="reflect")
        x = x.project(out, size, stride, pads=0)
        x = x.instance_norm()
        return x.act(act)

    x = n.input(1, 3, 18, 18)
    x = layer(x, 10, 9)
    x = layer(x, 18, 3, 2)
    y = layer(x, 18, 3)
    x = x + layer(y, 18, 3, act="")
    x = x.resize(18, 18)
    return layer(x, 3, 9, act="Tanh")


@network
def cyclegan_patch(n: Net) -> NetTensor:
    """Isola et al. 2017: a map of verdicts, one per patch."""
    x = n.input(1, 3, 30, 30)
    x = x.conv_bias(10, 4, 2, pads=1, act="LeakyRelu")
    x = x.project(18, 4, 2, pads=1)
    x = x.instance_norm()
    x = x.act("LeakyRelu")
    return x.project(1, 4, pads=1)


@network
def hifigan(n: Net) -> NetTensor:
    """Kong et al. 2020: 1-D transposed convolutions, dilated residual blocks of several sizes."""
    x = n.input(1, 13, 9)
    x = x.project(20, 7)
    for out, size, stride in ((14, 8, 4), (10, 4, 2)):
        x = x.act("LeakyRelu")
        x = _lifted(n, x, out, size, stride, act="")
        branches = []
        for taps in (3, 5):
            y = x
            for dilation in (1, 3):
                z = y.act("LeakyRelu")
                z = z.project(out, taps, dilation=dilation)
                y = y + z * 0.5
            branches.append(y)
        x = n.add(*branches)
        x = x / 2.0
    x = x.act("LeakyRelu")
    return x.conv_bias(1, 7, act="Tanh")


@network
def pixel_shuffle(n: Net) -> NetTensor:
    """Shi et al. 2016: channels become pixels."""
    x = n.input(1, 1, 15, 17)
    x = x.conv_bias(20, 5, act="Tanh")
    x = x.conv_bias(14, act="Tanh")
    x = x.project(9)
    return x.DepthToSpace(blocksize=3, mode="CRD")


@network
def edsr(n: Net) -> NetTensor:
    """Lim et al. 2017: residual blocks without normalization, then twice the size."""
    image = n.input(1, 3, 14, 14)
    x = first = image.project(18)
    for _ in range(2):
        y = x.conv_bias(18)
        y = y.project(18)
        x = x + y * 0.1
    x = first + x.project(18)
    x = x.project(40)
    x = x.DepthToSpace(blocksize=2, mode="CRD")
    return x.project(3)


@network
def autoencoder(n: Net) -> NetTensor:
    """Down to a vector and up again."""
    x = n.input(1, 1, 28, 28)
    x = x.conv(10, 3, 2)
    x = x.conv(18, 3, 2)
    x = x.Flatten()
    x = x.gemm(12)
    x = x.gemm(18 * 49, "Relu")
    x = x.reshape(1, 18, 7, 7)
    x = _lifted(n, x, 10)
    return _lifted(n, x, 1, act="Sigmoid")


@network
def variational_autoencoder(n: Net) -> list[NetTensor]:
    """Kingma and Welling 2014; the noise is an input."""
    image = n.input(3, 1, 14, 14)
    h = image.Flatten()
    h = h.gemm(40, "Relu")
    mean = h.gemm(9)
    spread = h.gemm(9)
    noise = (spread * 0.5).Exp()
    noise = noise * n.input(3, 9)
    z = mean + noise
    made = z.gemm(40, "Relu")
    made = made.gemm(196)
    made = made.Sigmoid()
    made = made.reshape(3, 1, 14, 14)
    terms = spread + 1.0
    terms = terms - mean.Pow(2.0)
    terms = terms - spread.Exp()
    total = terms.ReduceSum([1], keepdims=0)
    return [made, total * -0.5]


@network
def diffusion_unet(n: Net) -> NetTensor:
    """Ho et al. 2020: group normalization, the step embedded, attention at the smallest size."""
    x = n.input(1, 3, 16, 16)
    step = n.input(1, 8)
    step = step.linear(24, "Silu")
    step = step.linear(24, "Silu")

    def block(x: NetTensor, out: int) -> NetTensor:
        def layer(x: NetTensor) -> NetTensor:
            channels = x.shape[1]
            y = x.group_norm(channels // 4)
            y = y.act("Silu")
            return y.project(out)

        y = layer(x)
        shift = step.linear(out)
        y = y + shift.Unsqueeze([2, 3])
        if x.shape[1] == out:
            side = x
        else:
            side = x.project(out, 1)
        return side + layer(y)

    high = x.project(12)
    high = block(high, 12)
    low = high.project(20, 3, 2)
    low = block(low, 20)
    tokens = low.tokens()
    projected = [tokens.linear(20) for _ in range(3)]
    seen = attend(*projected)
    seen = seen.linear(20)
    low = low + seen.image(8, 8)
    x = low.resize(16, 16)
    x = n.cat(x, high)
    x = block(x, 12)
    x = x.act("Silu")
    return x.project(3)
