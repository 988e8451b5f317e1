"""Random operators of networks in random shapes, with real weights.

`KINDS` has the kinds: products, convolutions, windows, normalizations, attention, a step of a
recurrence. Shapes are of the kind that networks have; what takes more than MOST multiply-adds is
drawn again, because each program is timed many times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from tilewright.testing.networks.builder import Net, NetTensor
from tilewright.testing.random_pipelines import DrawnPipeline

MOST: Final = 2**27  # multiply-adds of a convolution or product
MOST_ELEMENTS: Final = 2**20  # of a tensor
WIDTHS: Final = (16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024)
ROWS: Final = (1, 2, 4, 7, 16, 32, 49, 64, 100, 128, 196, 256, 384)
EXTENTS: Final = (7, 8, 14, 16, 20, 28, 32, 40, 56, 64, 80, 112)
CHANNELS: Final = (3, 8, 16, 24, 32, 40, 64, 96, 128, 160, 256, 384, 512)
ACTIVATIONS: Final = ("", "", "Relu", "Relu6", "Silu", "Sigmoid", "Tanh", "Erf")

Layer = Callable[[Net, Random], NetTensor]


def _image(
    n: Net,
    r: Random,
    channels: Sequence[int] = CHANNELS,
) -> NetTensor:
    """Of a few channels where it is large."""
    while True:
        c = r.choice(channels)
        height = r.choice(EXTENTS)
        width = r.choice(EXTENTS)
        if c * height * width <= MOST_ELEMENTS // 4:
            return n.input(1, c, height, width)


def _rows(n: Net, r: Random) -> NetTensor:
    rows = r.choice(ROWS)
    width = r.choice(WIDTHS)
    if r.random() < 0.7:
        return n.input(rows, width)
    return n.input(1, rows, width)


def _affordable(
    r: Random,
    counts: Sequence[int],
    each: int,
) -> int:
    """A count of outputs with at most MOST multiply-adds, `each` per output; the least if none
    fits."""
    known = [c for c in counts if c * each <= MOST]
    return r.choice(known or [min(counts)])


# ----------------------------------------------------------------------------- what multiplies


def _product(n: Net, r: Random) -> NetTensor:
    x = _rows(n, r)
    work = math.prod(x.shape)
    outputs = _affordable(r, WIDTHS, work)
    act = r.choice(ACTIVATIONS)
    bias = r.random() < 0.7
    return x.linear(outputs, act, bias=bias)


def _gemm(n: Net, r: Random) -> NetTensor:
    rows = r.choice(ROWS)
    width = r.choice(WIDTHS)
    x = n.input(rows, width)
    outputs = _affordable(r, WIDTHS, rows * width)
    act = r.choice(ACTIVATIONS)
    return x.gemm(outputs, act)


def _products(n: Net, r: Random) -> NetTensor:
    """Batched, both of them inputs."""
    heads = r.choice((2, 4, 8, 12))
    rows = r.choice(ROWS)
    deep = r.choice((16, 32, 64, 128))
    columns = r.choice(ROWS)
    x = n.input(1, heads, rows, deep)
    if r.random() < 0.5:
        y = n.input(1, heads, columns, deep)
        return x @ y.mT
    y = n.input(1, heads, deep, columns)
    return x @ y


def _convolution(
    sizes: Sequence[int],
    strides: Sequence[int] = (1,),
    dilations: Sequence[int] = (1,),
) -> Layer:
    """Of one of these sizes, of steps and dilations, perhaps in groups of channels."""

    def layer(n: Net, r: Random) -> NetTensor:
        x = _image(n, r)
        size = r.choice(sizes)
        stride = r.choice(strides)
        dilation = r.choice(dilations)
        work = math.prod(x.shape) * size * size
        each = work // stride**2
        outputs = _affordable(r, CHANNELS, each)
        norm = r.random() < 0.5
        act = r.choice(ACTIVATIONS)
        return x.conv(outputs, size, stride, dilation=dilation, norm=norm, act=act)

    return layer


def _grouped(n: Net, r: Random) -> NetTensor:
    groups = r.choice((2, 4, 8))
    x = _image(n, r, (32, 64, 128, 256))
    outputs = r.choice((32, 64, 128))
    size = r.choice((1, 3))
    return x.conv(outputs, size, groups=groups)


def _depthwise(n: Net, r: Random) -> NetTensor:
    x = _image(n, r)
    size = r.choice((3, 3, 5, 7))
    stride = r.choice((1, 1, 2))
    act = r.choice(ACTIVATIONS)
    return x.depthwise(size, stride, act=act)


def _along(n: Net, r: Random) -> NetTensor:
    """A convolution of sequences."""
    inputs = r.choice((16, 32, 64, 128))
    length = r.choice((64, 128, 256, 500))
    outputs = r.choice((16, 32, 64, 128))
    size = r.choice((3, 5, 9))
    stride = r.choice((1, 2))
    x = n.input(1, inputs, length)
    return x.conv(outputs, size, stride)


def _transposed(n: Net, r: Random) -> NetTensor:
    x = _image(n, r, (8, 16, 32, 64))
    inputs = x.shape[1]
    work = 16 * math.prod(x.shape)
    outputs = _affordable(r, (8, 16, 32, 64), work)
    weights = n.weight(inputs, outputs, 4, 4)
    return x.ConvTranspose(weights, strides=[2, 2], pads=[1, 1, 1, 1])


# --------------------------------------------------------------------- what reads whole rows


def _pooling(n: Net, r: Random) -> NetTensor:
    x = _image(n, r)
    size, stride = r.choice(
        (
            (2, 2),
            (3, 2),
            (3, 1),
        )
    )
    pad = size // 2
    if r.random() < 0.5:
        return x.max_pool(size, stride, pad)
    return x.average_pool(size, stride, pad)


def _softmax(n: Net, r: Random) -> NetTensor:
    x = _rows(n, r)
    if r.random() < 0.2:
        return x.LogSoftmax(axis=-1)
    return x.Softmax(axis=-1)


def _layer_norm(n: Net, r: Random) -> NetTensor:
    x = _rows(n, r)
    if r.random() < 0.5:
        other = n.input(*x.shape)
        x = x + other
    if r.random() < 0.3:
        return x.rms_norm()
    return x.layer_norm()


def _image_norm(n: Net, r: Random) -> NetTensor:
    x = _image(n, r, (16, 32, 64, 128))
    if r.random() < 0.5:
        return x.group_norm(8)
    return x.instance_norm()


def _reduction(n: Net, r: Random) -> NetTensor:
    x = _image(n, r)
    axes = r.choice(
        (
            [1],
            [2, 3],
            [3],
            [2],
            [1, 2, 3],
        )
    )
    name = r.choice(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"))
    keep = r.randint(0, 1)
    return n(name, x, axes, keepdims=keep)


# ------------------------------------------------------------------------------- all others


def _elementwise(n: Net, r: Random) -> NetTensor:
    x = _image(n, r)
    scale = n.near(1, x.shape[1], 1, 1)
    other = n.input(*x.shape)
    y = x * scale + other
    act = r.choice(ACTIVATIONS)
    return y.act(act)


def _movement(n: Net, r: Random) -> NetTensor:
    x = _image(n, r)
    *_, height, width = x.shape
    match r.randrange(4):
        case 0:
            return x.transpose(0, 2, 3, 1)
        case 1:
            return n.cat(x, x.Relu())
        case 2:
            mode = "nearest"
        case _:
            mode = "linear"
    return x.resize(2 * height, 2 * width, mode=mode)


def _attention(n: Net, r: Random) -> NetTensor:
    heads = r.choice((2, 4, 8))
    places = r.choice(ROWS)
    deep = r.choice((16, 32, 64))
    q, k, v = (n.input(1, heads, places, deep) for _ in range(3))
    scale = 1 / math.sqrt(deep)
    products = q @ k.mT
    scores = products * scale
    shares = scores.Softmax(axis=-1)
    return shares @ v


def _lstm_step(n: Net, r: Random) -> NetTensor:
    """The gates of one step, and the state after it."""
    batch = r.choice((1, 4, 8))
    inputs = r.choice(WIDTHS[:10])
    width = r.choice(WIDTHS[:10])
    x = n.input(batch, inputs)
    h = n.input(batch, width)
    c = n.input(batch, width)
    of_x = x.linear(4 * width)
    of_h = h.linear(4 * width, bias=False)
    gates = of_x + of_h
    i, f, g, o = gates.split(*[width] * 4)
    kept = f.Sigmoid() * c
    added = i.Sigmoid() * g.Tanh()
    state = kept + added
    return o.Sigmoid() * state.Tanh()


KINDS: Final[Mapping[str, Layer]] = {
    "product": _product,
    "gemm": _gemm,
    "batched-product": _products,
    "convolution-1x1": _convolution((1,), (1, 1, 2)),
    "convolution-3x3": _convolution((3,)),
    "convolution-strided": _convolution((3, 5, 7), (2,)),
    "convolution-large": _convolution((5, 7)),
    "convolution-dilated": _convolution((3,), (1,), (2, 4)),
    "convolution-grouped": _grouped,
    "convolution-1d": _along,
    "convolution-transposed": _transposed,
    "depthwise": _depthwise,
    "pooling": _pooling,
    "softmax": _softmax,
    "layer-norm": _layer_norm,
    "image-norm": _image_norm,
    "reduction": _reduction,
    "elementwise": _elementwise,
    "movement": _movement,
    "attention": _attention,
    "lstm-step": _lstm_step,
}


def layer(seed: int, kinds: Sequence[str] = tuple(KINDS)) -> DrawnPipeline:
    """The operator of a seed, of one of these kinds: the same each time, weights included."""
    r = random.Random(f"layer {seed} {kinds}")
    kind = r.choice(list(kinds))
    net = Net(f"{kind}{seed}")
    made = KINDS[kind](net, r)
    values = [v for o in net.operations for v in o.outputs if v is not None]
    known = {v.name: kind for v in values}
    case = net.case([made])
    return DrawnPipeline(case, known)
