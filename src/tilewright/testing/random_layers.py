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

from tilewright.testing.networks.builder import Net, Tensor
from tilewright.testing.random_pipelines import Drawn

MOST: Final = 2**27  # multiply-adds of a convolution or product
MOST_ELEMENTS: Final = 2**20  # of a tensor
WIDTHS: Final = (16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024)
ROWS: Final = (1, 2, 4, 7, 16, 32, 49, 64, 100, 128, 196, 256, 384)
EXTENTS: Final = (7, 8, 14, 16, 20, 28, 32, 40, 56, 64, 80, 112)
CHANNELS: Final = (3, 8, 16, 24, 32, 40, 64, 96, 128, 160, 256, 384, 512)
ACTIVATIONS: Final = ("", "", "Relu", "Relu6", "Silu", "Sigmoid", "Tanh", "Erf")

Layer = Callable[[Net, Random], Tensor]


def _image(n: Net, r: Random, channels: Sequence[int] = CHANNELS) -> Tensor:
    """Of a few channels where it is large."""
    while True:
        c, height, width = r.choice(channels), r.choice(EXTENTS), r.choice(EXTENTS)
        if c * height * width <= MOST_ELEMENTS // 4:
            return n.input(1, c, height, width)


def _rows(n: Net, r: Random) -> Tensor:
    rows, width = r.choice(ROWS), r.choice(WIDTHS)
    return n.input(rows, width) if r.random() < 0.7 else n.input(1, rows, width)


# ----------------------------------------------------------------------------- what multiplies


def _product(n: Net, r: Random) -> Tensor:
    x = _rows(n, r)
    outputs = r.choice([w for w in WIDTHS if w * math.prod(x.shape) <= MOST])
    return x.linear(outputs, r.choice(ACTIVATIONS), bias=r.random() < 0.7)


def _gemm(n: Net, r: Random) -> Tensor:
    x = n.input(r.choice(ROWS), r.choice(WIDTHS))
    outputs = r.choice([w for w in WIDTHS if w * math.prod(x.shape) <= MOST])
    return x.gemm(outputs, r.choice(ACTIVATIONS))


def _products(n: Net, r: Random) -> Tensor:
    """Batched, both of them inputs."""
    heads, rows, deep, columns = (
        r.choice((2, 4, 8, 12)),
        r.choice(ROWS),
        r.choice((16, 32, 64, 128)),
        r.choice(ROWS),
    )
    x = n.input(1, heads, rows, deep)
    if r.random() < 0.5:
        return x @ n.input(1, heads, columns, deep).mT
    return x @ n.input(1, heads, deep, columns)


def _convolution(
    sizes: Sequence[int], strides: Sequence[int] = (1,), dilations: Sequence[int] = (1,)
) -> Layer:
    """Of one of these sizes, of steps and dilations, perhaps in groups of channels."""

    def layer(n: Net, r: Random) -> Tensor:
        x, size, stride = _image(n, r), r.choice(sizes), r.choice(strides)
        work = math.prod(x.shape) * size * size // stride**2
        outputs = r.choice([c for c in CHANNELS if c * work <= MOST] or [8])
        return x.conv(
            outputs,
            size,
            stride,
            dilation=r.choice(dilations),
            norm=r.random() < 0.5,
            act=r.choice(ACTIVATIONS),
        )

    return layer


def _grouped(n: Net, r: Random) -> Tensor:
    groups = r.choice((2, 4, 8))
    x = _image(n, r, (32, 64, 128, 256))
    return x.conv(r.choice((32, 64, 128)), r.choice((1, 3)), groups=groups)


def _depthwise(n: Net, r: Random) -> Tensor:
    x = _image(n, r)
    size, stride = r.choice((3, 3, 5, 7)), r.choice((1, 1, 2))
    return x.depthwise(size, stride, act=r.choice(ACTIVATIONS))


def _along(n: Net, r: Random) -> Tensor:
    """A convolution of sequences."""
    x = n.input(1, r.choice((16, 32, 64, 128)), r.choice((64, 128, 256, 500)))
    return x.conv(r.choice((16, 32, 64, 128)), r.choice((3, 5, 9)), r.choice((1, 2)))


def _transposed(n: Net, r: Random) -> Tensor:
    x = _image(n, r, (8, 16, 32, 64))
    work = 16 * math.prod(x.shape)
    outputs = r.choice([c for c in (8, 16, 32, 64) if c * work <= MOST] or [4])
    weights = n.weight(x.shape[1], outputs, 4, 4)
    return x.ConvTranspose(weights, strides=[2, 2], pads=[1, 1, 1, 1])


# --------------------------------------------------------------------- what reads whole rows


def _pooling(n: Net, r: Random) -> Tensor:
    x = _image(n, r)
    size, stride = r.choice(((2, 2), (3, 2), (3, 1)))
    if r.random() < 0.5:
        return x.max_pool(size, stride, size // 2)
    return x.average_pool(size, stride, size // 2)


def _softmax(n: Net, r: Random) -> Tensor:
    x = _rows(n, r)
    return x.LogSoftmax(axis=-1) if r.random() < 0.2 else x.Softmax(axis=-1)


def _layer_norm(n: Net, r: Random) -> Tensor:
    x = _rows(n, r)
    if r.random() < 0.5:
        x = x + n.input(*x.shape)
    return x.rms_norm() if r.random() < 0.3 else x.layer_norm()


def _image_norm(n: Net, r: Random) -> Tensor:
    x = _image(n, r, (16, 32, 64, 128))
    return x.group_norm(8) if r.random() < 0.5 else x.instance_norm()


def _reduction(n: Net, r: Random) -> Tensor:
    x = _image(n, r)
    axes = r.choice(([1], [2, 3], [3], [2], [1, 2, 3]))
    name = r.choice(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"))
    return n(name, x, axes, keepdims=r.randint(0, 1))


# ------------------------------------------------------------------------------- all others


def _elementwise(n: Net, r: Random) -> Tensor:
    x = _image(n, r)
    y = x * n.near(1, x.shape[1], 1, 1) + n.input(*x.shape)
    return y.act(r.choice(ACTIVATIONS))


def _movement(n: Net, r: Random) -> Tensor:
    x = _image(n, r)
    match r.randrange(4):
        case 0:
            return x.transpose(0, 2, 3, 1)
        case 1:
            return n.cat(x, x.Relu())
        case 2:
            return x.resize(2 * x.shape[2], 2 * x.shape[3])
    size = 2 * x.shape[2], 2 * x.shape[3]
    return x.resize(*size, mode="linear")


def _attention(n: Net, r: Random) -> Tensor:
    heads, places, deep = r.choice((2, 4, 8)), r.choice(ROWS), r.choice((16, 32, 64))
    q, k, v = (n.input(1, heads, places, deep) for _ in range(3))
    scores = (q @ k.mT) * (1 / math.sqrt(deep))
    return scores.Softmax(axis=-1) @ v


def _lstm_step(n: Net, r: Random) -> Tensor:
    """The gates of one step, and the state behind it."""
    batch, inputs, width = (
        r.choice((1, 4, 8)),
        r.choice(WIDTHS[:10]),
        r.choice(WIDTHS[:10]),
    )
    x, h, c = n.input(batch, inputs), n.input(batch, width), n.input(batch, width)
    gates = x.linear(4 * width) + h.linear(4 * width, bias=False)
    i, f, g, o = gates.split(*[width] * 4)
    state = f.Sigmoid() * c + i.Sigmoid() * g.Tanh()
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


def layer(seed: int, kinds: Sequence[str] = tuple(KINDS)) -> Drawn:
    """The operator of a seed, of one of these kinds: the same each time, weights included."""
    r = random.Random(f"layer {seed} {kinds}")
    kind = r.choice(list(kinds))
    net = Net(f"{kind}{seed}")
    made = KINDS[kind](net, r)
    values = [v for o in net.operations for v in o.outputs if v is not None]
    return Drawn(net.case([made]), {v.name: kind for v in values})
