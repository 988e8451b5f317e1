"""Pieces of random graphs that work on images: convolutions, poolings, their normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.graph.nodes import Value
from tilewright.testing.conditioning import varied
from tilewright.testing.graphs import OperatorRejected, RandomGraphBuilder


def _image(b: RandomGraphBuilder, spatial: tuple[int, ...] = (1, 2, 2, 2)) -> Value:
    """A value [N, C, spatial...], reshaped to that rank if need be."""
    rank = 2 + b.rng.choice(spatial)
    x = b.floating(2, 5)
    while len(x.extents) < rank:
        axis = b.rng.randint(0, len(x.extents))
        axes = b.ints(axis)
        x = b.op("Unsqueeze", x, axes)
    if len(x.extents) > rank:
        raise OperatorRejected
    return x


def _window(
    b: RandomGraphBuilder,
    x: Value,
    dilate: bool = True,
) -> dict[str, Any]:
    kernel = []
    for e in x.extents[2:]:
        most = max(e, 1)
        fitting = [n for n in (1, 2, 3, 3, 5) if n <= most]
        kernel.append(b.rng.choice(fitting))
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if b.chance(0.5):
        attrs["strides"] = [b.one_of(1, 2, 3) for _ in kernel]
    if dilate and b.chance(0.3):
        attrs["dilations"] = [b.one_of(1, 2) for _ in kernel]
    way = b.rng.random()
    if way < 0.5:
        halves = [k // 2 for k in kernel]
        attrs["pads"] = [b.rng.randint(0, n) for n in (*halves, *halves)]
    elif way < 0.7:
        attrs["auto_pad"] = b.one_of("SAME_UPPER", "SAME_LOWER", "VALID")
    return attrs


def _divisor(
    b: RandomGraphBuilder,
    n: int,
    among: Sequence[int],
) -> int:
    fitting = [d for d in among if n % d == 0]
    return b.rng.choice(fitting)


def conv(b: RandomGraphBuilder) -> None:
    x = _image(b)
    channels = x.extents[1]
    group = _divisor(b, channels, (1, 1, 1, 2, max(channels, 1)))
    per_group = [1, 1, 2]
    if group == 1:
        per_group = [1, 2, 3, 8, 16]
    out = group * b.rng.choice(per_group)
    attrs = _window(b, x)
    kernel = attrs["kernel_shape"]
    each = channels // group
    w = b.leaf((out, each, *kernel), x.dtype)
    operands = [x, w]
    if b.chance(0.5):
        operands.append(b.leaf((out,), x.dtype))
    b.op("Conv", *operands, group=group, **attrs)


def conv_transpose(b: RandomGraphBuilder) -> None:
    x = _image(b)
    channels = x.extents[1]
    group = _divisor(b, channels, (1, 1, 2))
    attrs = _window(b, x)
    attrs.pop("auto_pad", None)
    out = b.one_of(1, 2, 3, 8)
    kernel = attrs["kernel_shape"]
    w = b.leaf((channels, out, *kernel), x.dtype)
    b.op("ConvTranspose", x, w, group=group, **attrs)


def pool(b: RandomGraphBuilder) -> None:
    x = _image(b)
    attrs = _window(b, x)
    name = b.one_of("MaxPool", "AveragePool", "AveragePool", "LpPool")
    if name == "LpPool":  # the reference is wrong about uneven pads
        kept = attrs.keys() & {"kernel_shape", "strides"}
        attrs = {k: attrs[k] for k in sorted(kept)}
    elif b.chance(0.3) and "auto_pad" not in attrs:
        attrs["ceil_mode"] = 1
    if name == "AveragePool" and b.chance(0.5):
        attrs["count_include_pad"] = 1
    b.op(name, x, **attrs)


def global_pool(b: RandomGraphBuilder) -> None:
    name = b.one_of("GlobalAveragePool", "GlobalMaxPool")
    b.op(name, _image(b))


def batch_norm(b: RandomGraphBuilder) -> None:
    x = _image(b, (0, 1, 2, 2))
    channels = (x.extents[1],)
    operands = [x]
    for _ in ("scale", "bias", "mean"):
        fixed = b.chance(0.8)
        operands.append(b.leaf(channels, x.dtype, fixed))
    variance = b.noise.random(channels) + 0.5
    assert x.dtype is not None
    variance = variance.astype(x.dtype.numpy)
    fixed = b.chance(0.8)
    operands.append(b.given(variance, fixed))
    b.op("BatchNormalization", *operands)


def instance_norm(b: RandomGraphBuilder) -> None:
    x = _image(b)
    channels = (x.extents[1],)
    spatial = range(2, len(x.extents))
    array = b.truth[x]
    varied(array, tuple(spatial))
    scale = b.leaf(channels, x.dtype)
    bias = b.leaf(channels, x.dtype)
    b.op("InstanceNormalization", x, scale, bias)


def depth(b: RandomGraphBuilder) -> None:
    x = b.floating(4, 4)
    _, channels, height, width = x.extents
    if channels % 4 == 0 and b.chance(0.6):
        mode = b.one_of("DCR", "CRD")
        b.op("DepthToSpace", x, blocksize=2, mode=mode)
    elif height % 2 == 0 and width % 2 == 0:
        b.op("SpaceToDepth", x, blocksize=2)
