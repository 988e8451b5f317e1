"""The stages of random pipelines, each as ONNX operators and as its NumPy meaning.

The eighteen kinds of Halide's generator (Adams et al. 2019), and its operators of two stages for
when no kind fits. Convolutions and all-to-all channel products come in three kinds: with literal
weights in the expression, with constant weights, and with weights that are an input.

An image is [1, channels, height, width]; it keeps its size unless a kind changes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.testing.networks.builder import Net, NetTensor

Array = np.ndarray[Any, Any]
HEIGHT, WIDTH = 2, 3
LARGEST: Final = 1024  # a stage grows to this extent and not beyond
SMALLEST: Final = 32  # one of less is not made smaller
CHANNELS: Final = 16


@dataclass(frozen=True, eq=False)
class ImageStage:
    """An image in a pipeline. ask: computes its NumPy meaning in float64."""

    tensor: NetTensor
    ask: Callable[[], Array]

    @cached_property
    def meaning(self) -> Array:
        """Its values: float64, of the tensor's shape."""
        return self.ask()

    @property
    def shape(self) -> tuple[int, ...]:
        """[1, channels, height, width]."""
        return self.tensor.shape


# How weights without a literal value are added.
ADD: Final[Mapping[str, Callable[[Net, Array], NetTensor]]] = {
    "constant": Net.const,
    "given": Net.given,
}
# Stages are drawn of two earlier ones; most kinds take the first. None: not of an image like this.
Kind = Callable[[Random, ImageStage, ImageStage], ImageStage | None]


def given(net: Net, *shape: int) -> ImageStage:
    """A new input, of odd multiples of 1/64: no rounding takes one across a whole number."""
    drawn = net.rng.integers(-96, 96, shape)
    array = ((2 * drawn + 1) / 64).astype(np.float32)
    tensor = net.given(array)
    return ImageStage(tensor, lambda: array.astype(np.float64))


# ------------------------------------------------------------------------------- convolutions


def _window(
    r: Random,
    axes: Sequence[int],
    reach: int,
) -> tuple[list[int], list[int]]:
    """How far back and ahead a stencil reaches along height and width."""
    back = [r.randint(0, reach) if a in axes else 0 for a in (HEIGHT, WIDTH)]
    ahead = [r.randint(0, reach) if a in axes else 0 for a in (HEIGHT, WIDTH)]
    return back, ahead


def _stencil(
    x: Array,
    w: Array,
    back: list[int],
    ahead: list[int],
) -> Array:
    """Sums of each element's neighborhood, weighted by [rows, columns]; zeros around."""
    height, width = x.shape[HEIGHT:]
    around = list(zip(back, ahead, strict=True))
    padded = np.pad(x, [(0, 0), (0, 0), *around])
    found = np.zeros_like(x)
    for i, j in np.ndindex(*w.shape):
        found += w[i, j] * padded[..., i : i + height, j : j + width]
    return found


def _weights(net: Net, *shape: int) -> Array:
    scale = 1 / math.sqrt(math.prod(shape))
    drawn = net.rng.standard_normal(shape) * scale
    return drawn.astype(np.float32)


def _written(
    x: NetTensor,
    w: Array,
    back: list[int],
    ahead: list[int],
) -> NetTensor:
    """A stencil as a sum of products with numbers."""
    height, width = x.shape[HEIGHT:]
    padded = x.Pad([0, 0, *back, 0, 0, *ahead])
    terms = []
    for i, j in np.ndindex(*w.shape):
        part = padded.Slice([i, j], [i + height, j + width], [HEIGHT, WIDTH])
        terms.append(part * float(w[i, j]))
    return x.net.add(*terms)


def _convolved(
    x: NetTensor,
    w: NetTensor,
    back: list[int],
    ahead: list[int],
) -> NetTensor:
    """A stencil as a convolution of each channel with the same weights."""
    channels = x.shape[1]
    every = w.Expand([channels, 1, *w.shape[2:]])
    return x.Conv(every, group=channels, pads=[*back, *ahead])


def _convolution(
    how: str,
    flat: bool,
    reach: int,
) -> Kind:
    """A stencil along one axis, or along both (flat)."""

    def kind(
        r: Random,
        f: ImageStage,
        _: ImageStage,
    ) -> ImageStage:
        net = f.tensor.net
        axes = [HEIGHT, WIDTH]
        if not flat:
            axes = [r.choice(axes)]
        back, ahead = _window(r, axes, reach)
        size = [b + a + 1 for b, a in zip(back, ahead, strict=True)]
        w = _weights(net, *size)
        wide = w.astype(np.float64)
        if how == "written":
            made = _written(f.tensor, w, back, ahead)
        else:
            weights = ADD[how](net, w[None, None])
            made = _convolved(f.tensor, weights, back, ahead)
        return ImageStage(made, lambda: _stencil(f.meaning, wide, back, ahead))

    return kind


def _all_to_all(how: str) -> Kind:
    """Each channel from all: another number of channels."""

    def kind(
        r: Random,
        f: ImageStage,
        _: ImageStage,
    ) -> ImageStage | None:
        net = f.tensor.net
        inputs = f.shape[1]
        most = 4 if how == "written" else CHANNELS
        if inputs > most:
            return None
        outputs = r.randint(1, most)
        w = _weights(net, outputs, inputs)
        if how == "written":
            parts = [f.tensor.Slice([c], [c + 1], [1]) for c in range(inputs)]
            rows = [
                [p * float(x) for p, x in zip(parts, row, strict=True)] for row in w
            ]
            made = net.cat(*[net.add(*row) for row in rows])
        else:
            weights = ADD[how](net, w[:, :, None, None])
            made = f.tensor.Conv(weights)
        wide = w.astype(np.float64)
        return ImageStage(made, lambda: np.einsum("oc,nchw->nohw", wide, f.meaning))

    return kind


# ------------------------------------------------------------------------- windows and sizes


def _pool(
    r: Random,
    f: ImageStage,
    _: ImageStage,
) -> ImageStage | None:
    """The greatest or the mean around; half the height and width, or the same."""
    height, width = f.shape[HEIGHT:]
    if min(height, width) < SMALLEST or height % 2 or width % 2:
        return None
    halved = r.random() < 0.5
    size = 2 if halved else 3
    step, pad = (2, 0) if halved else (1, 1)
    if r.random() < 0.5:
        made = f.tensor.max_pool(size, step, pad)
        return ImageStage(
            made, lambda: _windows(f.meaning, size, step, pad, -np.inf, np.max)
        )
    made = f.tensor.average_pool(size, step, pad, count_include_pad=1)
    return ImageStage(made, lambda: _windows(f.meaning, size, step, pad, 0, np.mean))


def _windows(
    x: Array,
    size: int,
    step: int,
    pad: int,
    around: float,
    combine: Any,
) -> Array:
    edges = [
        (0, 0),
        (0, 0),
        (pad, pad),
        (pad, pad),
    ]
    padded = np.pad(x, edges, constant_values=around)
    views = np.lib.stride_tricks.sliding_window_view(
        padded, (size, size), (HEIGHT, WIDTH)
    )
    found: Array = combine(views[:, :, ::step, ::step], axis=(-2, -1))
    return found


def _activation(
    r: Random,
    f: ImageStage,
    _: ImageStage,
) -> ImageStage:
    """A rectifier or a hyperbolic tangent."""
    if r.random() < 0.5:
        tensor = f.tensor.Relu()
        return ImageStage(tensor, lambda: np.maximum(f.meaning, 0))
    tensor = f.tensor.Tanh()
    return ImageStage(tensor, lambda: np.tanh(f.meaning))


def _padding(
    r: Random,
    f: ImageStage,
    _: ImageStage,
) -> ImageStage | None:
    """Zeros in place of a margin."""
    height, width = f.shape[HEIGHT:]
    margin = r.randint(1, 3)
    if min(height, width) <= 2 * margin:
        return None
    begin = [margin, margin]
    end = [height - margin, width - margin]
    edges = [0, 0, margin, margin]

    def meaning() -> Array:
        found = np.zeros_like(f.meaning)
        within = (..., slice(margin, -margin), slice(margin, -margin))
        found[within] = f.meaning[within]
        return found

    inside = f.tensor.Slice(begin, end, [HEIGHT, WIDTH])
    made = inside.Pad([*edges, *edges])
    return ImageStage(made, meaning)


def _upsample(
    r: Random,
    f: ImageStage,
    _: ImageStage,
) -> ImageStage | None:
    """Each element twice along one axis."""
    axis = r.choice((HEIGHT, WIDTH))
    if 2 * f.shape[axis] > LARGEST:
        return None
    extents = list(f.shape)
    extents[axis] *= 2
    made = f.tensor.resize(*extents[HEIGHT:])
    return ImageStage(made, lambda: np.repeat(f.meaning, 2, axis))


def _downsample(
    r: Random,
    f: ImageStage,
    _: ImageStage,
) -> ImageStage | None:
    """Every other element along one axis."""
    axis = r.choice((HEIGHT, WIDTH))
    extent = f.shape[axis]
    if extent < SMALLEST or extent % 2:
        return None
    made = f.tensor.Slice([0], [extent], [axis], [2])
    return ImageStage(made, lambda: np.take(f.meaning, range(0, extent, 2), axis))


# ------------------------------------------------------------------------------- other kinds


def _scan(
    r: Random,
    f: ImageStage,
    _: ImageStage,
) -> ImageStage:
    """Running sums along any axis, divided by its extent."""
    axis = r.randint(1, WIDTH)
    extent = f.shape[axis]
    share = np.float32(1 / extent)
    sums = f.tensor.CumSum(np.array(axis))
    made = sums * float(share)
    return ImageStage(made, lambda: np.cumsum(f.meaning, axis) * np.float64(share))


def _unary(
    r: Random,
    f: ImageStage,
    _: ImageStage,
) -> ImageStage:
    """A function of the size of each element, which keeps it moderate."""
    size = f.tensor.Abs()
    match r.randrange(3):
        case 0:
            made = (-size).Exp()
            return ImageStage(made, lambda: np.exp(-np.abs(f.meaning)))
        case 1:
            made = (size + 1.0).Log()
            return ImageStage(made, lambda: np.log1p(np.abs(f.meaning)))
    tensor = size.Sqrt()
    return ImageStage(tensor, lambda: np.sqrt(np.abs(f.meaning)))


def _between(x: NetTensor, most: int) -> NetTensor:
    """Whole numbers from 0 to the most."""
    net = x.net
    positive = net("Max", x, np.array(0))
    return net("Min", positive, np.array(most))


def _histogram(
    r: Random,
    f: ImageStage,
    _: ImageStage,
) -> ImageStage | None:
    """Histograms of squares of the first channel.

    One channel per bucket, as many as a square has elements; height and width count the squares.
    """
    height, width = f.shape[HEIGHT:]
    box = r.choice((2, 4))
    if min(height, width) <= SMALLEST or height % box or width % box:
        return None
    rows = height // box
    columns = width // box
    buckets = box * box
    first = f.tensor.Slice([0], [1], [1])
    split = first.reshape(rows, box, columns, box)
    together = split.transpose(0, 2, 1, 3)
    squares = together.reshape(rows, columns, buckets, 1)
    scaled = squares * float(buckets)
    place = scaled.Cast(to=7)
    place = _between(place, buckets - 1)
    equal = place.Equal(np.arange(buckets))
    hits = equal.Cast(to=1)
    counts = hits.ReduceSum([2], keepdims=0)
    first_axis = counts.transpose(2, 0, 1)
    made = first_axis.Unsqueeze([0])

    def meaning() -> Array:
        plain = f.meaning[0, 0].reshape(rows, box, columns, box)
        whole = np.trunc(plain * buckets)
        bucket = np.clip(whole, 0, buckets - 1)
        every = [(bucket == n).sum((1, 3)) for n in range(buckets)]
        found = np.stack(every)
        return found[None].astype(np.float64)

    return ImageStage(made, meaning)


def _slice(
    r: Random,
    f: ImageStage,
    g: ImageStage,
) -> ImageStage:
    """One channel: at each place the first stage selects a channel of the second."""
    channels = g.shape[1]
    chosen = resampled(f, 1, *g.shape[HEIGHT:])
    number = chosen.tensor.Cast(to=7)
    number = _between(number, channels - 1)
    made = g.tensor.GatherElements(number, axis=1)

    def meaning() -> Array:
        whole = np.trunc(chosen.meaning)
        at = np.clip(whole, 0, channels - 1)
        return np.take_along_axis(g.meaning, at.astype(np.int64), 1)

    return ImageStage(made, meaning)


_OPERATORS: Final[Mapping[str, Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": np.maximum,
    "Min": np.minimum,
}


def _binary(
    r: Random,
    f: ImageStage,
    g: ImageStage,
) -> ImageStage:
    """An operator of both stages, the second one in the size of the first."""
    other = resampled(g, *f.shape[1:])
    name = r.choice(list(_OPERATORS))
    made = f.tensor.net(name, f.tensor, other.tensor)
    return ImageStage(made, lambda: _OPERATORS[name](f.meaning, other.meaning))


def resampled(
    f: ImageStage,
    channels: int,
    height: int,
    width: int,
) -> ImageStage:
    """An image in another size: channels repeat cyclically, places are the nearest ones.

    requires: heights and widths are a power of two apart, so that places are exact.
    """
    _, old, tall, broad = f.shape
    made = f.tensor
    if channels > old:
        copies = math.ceil(channels / old)
        made = made.net.cat(*[made] * copies)
    if channels != made.shape[1]:
        made = made.Slice([0], [channels], [1])
    if (tall, broad) != (height, width):
        made = made.resize(height, width)
    turns = [n % old for n in range(channels)]
    rows = [n * tall // height for n in range(height)]
    columns = [n * broad // width for n in range(width)]

    def meaning() -> Array:
        chosen = f.meaning[:, turns]
        chosen = chosen[:, :, rows]
        return chosen[..., columns]

    return ImageStage(made, meaning)


# Halide's, by their names there; `_r` and `_w` sum over a domain, `_w` with weights given.
KINDS: Final[Mapping[str, Kind]] = {
    "convolve": _convolution("written", False, 3),
    "convolve_r": _convolution("constant", False, 10),
    "convolve_w": _convolution("given", False, 10),
    "convolve2D": _convolution("written", True, 2),
    "convolve2D_r": _convolution("constant", True, 5),
    "convolve2D_w": _convolution("given", True, 5),
    "pool2D": _pool,
    "activation": _activation,
    "padding": _padding,
    "upsample": _upsample,
    "downsample": _downsample,
    "all_to_all": _all_to_all("written"),
    "all_to_all_r": _all_to_all("constant"),
    "all_to_all_w": _all_to_all("given"),
    "scan": _scan,
    "unary": _unary,
    "tiled_histogram": _histogram,
    "slice": _slice,
    "binary": _binary,
}
