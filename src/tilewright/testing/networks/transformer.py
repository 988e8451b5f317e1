"""Networks of attention over tokens, and those that put something simpler in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.testing.networks.builder import Net, NetTensor, network


def _heads(x: NetTensor, heads: int) -> NetTensor:
    """[b, t, c] as [b, heads, t, c / heads]."""
    b, t, c = x.shape
    x = x.reshape(b, t, heads, c // heads)
    return x.transpose(0, 2, 1, 3)


def _joined(x: NetTensor) -> NetTensor:
    b, heads, t, c = x.shape
    x = x.transpose(0, 2, 1, 3)
    return x.reshape(b, t, heads * c)


def attend(
    q: NetTensor,
    k: NetTensor,
    v: NetTensor,
    mask: NetTensor | None = None,
) -> NetTensor:
    """softmax(q kᵀ / √c + mask) v."""
    scores = q @ k.mT
    scale = np.sqrt(q.shape[-1])
    scores = scores / float(scale)
    if mask is not None:
        scores = scores + mask
    weights = scores.Softmax(axis=-1)
    return weights @ v


def attention(
    x: NetTensor,
    heads: int,
    mask: NetTensor | None = None,
    other: NetTensor | None = None,
) -> NetTensor:
    """Heads of attention to `x` itself or to another sequence."""
    width = x.shape[-1]
    source = x if other is None else other
    projected = [s.linear(width) for s in (x, source, source)]
    q, k, v = (_heads(y, heads) for y in projected)
    y = attend(q, k, v, mask)
    y = _joined(y)
    return y.linear(width)


def mlp(
    x: NetTensor,
    act: str = "Gelu",
    grow: int = 3,
) -> NetTensor:
    """Two linear layers."""
    width = x.shape[-1]
    x = x.linear(grow * width, act)
    return x.linear(width)


def _block(
    x: NetTensor,
    heads: int,
    mask: NetTensor | None = None,
    act: str = "Gelu",
) -> NetTensor:
    """Normalized first."""
    y = x.layer_norm()
    x = x + attention(y, heads, mask)
    y = x.layer_norm()
    return x + mlp(y, act)


def causal(n: Net, length: int) -> NetTensor:
    """0 up to the diagonal, a large negative number above."""
    hidden = np.full((length, length), -1e4)
    return n.const(np.triu(hidden, 1))


def _patches(
    x: NetTensor,
    width: int,
    size: int,
) -> NetTensor:
    """[b, tokens, width] of an image."""
    y = x.project(width, size, size, pads=0)
    return y.tokens()


@network
def vit(n: Net) -> NetTensor:
    """Dosovitskiy et al. 2021: patches, a class token, positions."""
    x = n.input(2, 3, 20, 20)
    x = _patches(x, 36, 4)
    token = n.near(0, 1, 1, 36, spread=1)
    token = token.Expand([2, 1, 36])
    x = n.cat(token, x)
    x = x + n.near(0, 1, 26, 36, spread=0.5)
    for _ in range(2):
        x = _block(x, 3)
    x = x.layer_norm()
    first = np.array(0)
    x = x.Gather(first, axis=1)
    return x.linear(10)


@network
def deit(n: Net) -> NetTensor:
    """Touvron et al. 2021: a second token; one product for q, k and v; the mean of two heads."""
    x = n.input(1, 3, 15, 15)
    x = _patches(x, 30, 5)
    token = n.near(0, 1, 2, 30, spread=1)
    x = n.cat(token, x)
    y = x.layer_norm()
    y = y.linear(90)
    y = y.reshape(1, 11, 3, 5, 6)
    y = y.transpose(2, 0, 3, 1, 4)
    parts = y.split(1, 1, 1, axis=0)
    q, k, v = (p.Squeeze([0]) for p in parts)
    y = attend(q, k, v)
    y = _joined(y)
    x = x + y.linear(30)
    y = x.layer_norm()
    x = x + mlp(y, "Erf")
    x = x.layer_norm()
    rows = [x.Slice([i], [i + 1], [1]) for i in (0, 1)]
    both = [row.Squeeze([1]) for row in rows]
    first, second = (t.linear(10) for t in both)
    return (first + second) * 0.5


@network
def swin(n: Net) -> NetTensor:
    """Liu et al. 2021: windows, every other time shifted and masked; patches merged."""
    side, window, width = 8, 4, 24
    x = n.input(1, 3, 32, 32)
    x = _patches(x, width, 4)
    region = np.zeros((side, side))
    bands = (
        (0, 4),
        (4, 6),
        (6, 8),
    )
    for index, (low, high) in enumerate(bands):
        region[low:high] += 3 * index
        region[:, low:high] += index
    blocks = region.reshape(2, 4, 2, 4)
    blocks = blocks.transpose(0, 2, 1, 3)
    tiles = blocks.reshape(4, 1, 16)
    separate = tiles != tiles.transpose(0, 2, 1)
    penalty = np.where(separate, -100.0, 0.0)
    hidden = n.const(penalty[:, None])
    bias = n.near(0, 1, 3, 16, 16, spread=0.5)
    for shifted in (False, True):
        y = x.layer_norm()
        y = y.reshape(1, side, side, width)
        if shifted:
            y = _rolled(n, y, 2)
        y = y.reshape(1, 2, window, 2, window, width)
        y = y.transpose(0, 1, 3, 2, 4, 5)
        y = y.reshape(4, 16, width)
        mask = bias + hidden if shifted else bias
        y = attention(y, 3, mask)
        y = y.reshape(1, 2, 2, window, window, width)
        y = y.transpose(0, 1, 3, 2, 4, 5)
        y = y.reshape(1, side, side, width)
        if shifted:
            y = _rolled(n, y, side - 2)
        x = x + y.reshape(1, side * side, width)
        y = x.layer_norm()
        x = x + mlp(y)
    y = x.reshape(1, side, side, width)
    ends = [side, side]
    places = (
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
    )
    axes = [1, 2]
    steps = [2, 2]
    corners = [y.Slice(list(p), ends, axes, steps) for p in places]
    x = n.cat(*corners, axis=-1)
    x = x.layer_norm()
    return x.linear(40, bias=False)


def _rolled(
    n: Net,
    x: NetTensor,
    by: int,
) -> NetTensor:
    """Rows and columns moved around the end."""
    for axis in (1, 2):
        head = x.Slice([0], [by], [axis])
        tail = x.Slice([by], [x.shape[axis]], [axis])
        x = n.cat(tail, head, axis=axis)
    return x


@network
def mlp_mixer(n: Net) -> NetTensor:
    """Tolstikhin et al. 2021: perceptrons over tokens, then over channels."""
    x = n.input(2, 3, 21, 21)
    x = _patches(x, 28, 7)
    for _ in range(2):
        y = x.layer_norm()
        y = y.mT
        y = mlp(y)
        x = x + y.mT
        y = x.layer_norm()
        x = x + mlp(y)
    x = x.layer_norm()
    x = x.ReduceMean([1], keepdims=0)
    return x.linear(10)


@network
def gmlp(n: Net) -> NetTensor:
    """Liu et al. 2021b: half of the channels, mixed over tokens, gate the other half."""
    x = n.input(1, 3, 20, 20)
    x = _patches(x, 22, 4)
    for _ in range(2):
        y = x.layer_norm()
        y = y.linear(60, "Gelu")
        u, v = y.split(30, 30, axis=-1)
        v = v.layer_norm()
        v = v.mT
        v = v.linear(25, gain=0.2)
        v = v.mT
        y = u * (v + 1.0)
        x = x + y.linear(22)
    x = x.ReduceMean([1], keepdims=0)
    return x.linear(10)


@network
def poolformer(n: Net) -> NetTensor:
    """Yu et al. 2022: an average pooling, less the value itself, in the place of attention."""
    x = n.input(1, 3, 30, 30)
    x = x.project(20, 7, 4)
    for _ in range(2):
        y = x.group_norm(1)
        means = y.average_pool(3, 1, 1, count_include_pad=0)
        x = x + (means - y)
        y = x.group_norm(1)
        y = y.conv_bias(60, 1, act="Gelu")
        y = y.project(20, 1)
        x = x + y
    return x.head()


@network
def bert(n: Net) -> list[NetTensor]:
    """Devlin et al. 2019: three embeddings, a padding mask, and normalization after each
    sublayer."""
    ids = n.ids(2, 13, below=40)
    kinds = n.ids(2, 13, below=2)
    seen = n.flags(2, 13)
    words = n.weight(40, 36, fan=1)
    parts = n.weight(2, 36, fan=1)
    word = words.Gather(ids)
    part = parts.Gather(kinds)
    places = n.weight(13, 36, fan=2)
    x = n.add(word, part, places)
    x = x.layer_norm(1e-12)
    seen = seen.Unsqueeze([1, 2])
    mask = 1.0 - seen.Cast(to=1)
    mask = mask * -10000.0
    for _ in range(2):
        x = x + attention(x, 4, mask)
        x = x.layer_norm()
        x = x + mlp(x, "Erf")
        x = x.layer_norm()
    first = x.Gather(np.array(0), axis=1)
    first = first.linear(36)
    return [x, first.act("Tanh")]


@network
def gpt(n: Net) -> NetTensor:
    """Radford et al. 2019: causal; GELU by a hyperbolic tangent; the table of words as the head."""
    table = n.weight(50, 30, fan=30)
    ids = n.ids(1, 17, below=50)
    x = table.Gather(ids)
    x = x + n.weight(17, 30, fan=30)
    mask = causal(n, 17)
    for _ in range(2):
        y = x.layer_norm()
        x = x + attention(y, 3, mask)
        y = x.layer_norm()
        y = y.linear(90)
        y = _tanh_gelu(y)
        x = x + y.linear(30)
    x = x.layer_norm()
    return x @ table.mT


def _tanh_gelu(x: NetTensor) -> NetTensor:
    cube = x + x.Pow(3.0) * 0.044715
    half = x * 0.5
    share = (cube * 0.7978845).Tanh()
    return half * (share + 1.0)


@network
def gpt_step(n: Net) -> list[NetTensor]:
    """One token after a cache of keys and values, which grow by one."""
    x = n.input(1, 1, 32)
    found = []
    for _ in range(2):
        past_k = n.input(1, 4, 11, 8)
        past_v = n.input(1, 4, 11, 8)
        y = x.layer_norm()
        projected = [y.linear(32) for _ in range(3)]
        q, k, v = (_heads(p, 4) for p in projected)
        k = n.cat(past_k, k, axis=2)
        v = n.cat(past_v, v, axis=2)
        y = attend(q, k, v)
        y = _joined(y)
        x = x + y.linear(32)
        y = x.layer_norm()
        x = x + mlp(y)
        found += [k, v]
    return [x.layer_norm(), *found]


def _rotary(n: Net, x: NetTensor) -> NetTensor:
    """Positions as rotations of pairs of channels (Su et al. 2021), halves as pairs."""
    _, _, length, width = x.shape
    half = width // 2
    rates = 100.0 ** -np.linspace(0, 1, half)
    places = np.arange(length)
    angles = np.outer(places, rates)
    angles = np.tile(angles, 2)
    cos = n.const(np.cos(angles))
    sin = n.const(np.sin(angles))
    low, high = x.split(half, half, axis=-1)
    turned = n.cat(-high, low, axis=-1)
    return x * cos + turned * sin


@network
def llama(n: Net) -> NetTensor:
    """Touvron et al. 2023: grouped heads, rotary positions, RMS norms, SwiGLU."""
    length = 11
    width = 48
    heads = 6
    groups = 2
    deep = 8
    table = n.weight(40, width, fan=1)
    ids = n.ids(1, length, below=40)
    x = table.Gather(ids)
    mask = causal(n, length)
    for _ in range(2):
        y = x.rms_norm()
        q = y.linear(width, bias=False)
        q = _heads(q, heads)
        q = _rotary(n, q)
        both = [y.linear(groups * deep, bias=False) for _ in range(2)]
        k, v = (_heads(t, groups) for t in both)
        k = _rotary(n, k)
        each = heads // groups
        k, v = (_repeated(t, each) for t in (k, v))
        y = attend(q, k, v, mask)
        y = _joined(y)
        x = x + y.linear(width, bias=False)
        y = x.rms_norm()
        gate = y.linear(100, "Silu", bias=False)
        y = gate * y.linear(100, bias=False)
        x = x + y.linear(width, bias=False)
    x = x.rms_norm()
    return x.linear(40, bias=False)


def _repeated(x: NetTensor, times: int) -> NetTensor:
    b, groups, t, c = x.shape
    wide = x.Unsqueeze([2])
    wide = wide.Expand([b, groups, times, t, c])
    return wide.reshape(b, groups * times, t, c)


@network
def t5(n: Net) -> NetTensor:
    """Raffel et al. 2020: an encoder and a decoder that attends to it; biases by distance."""
    table = n.weight(40, 32, fan=1)
    ids = n.ids(2, 12, below=40)
    x = table.Gather(ids)
    ids = n.ids(2, 9, below=40)
    y = table.Gather(ids)
    near = n.near(0, 1, 4, 12, 12, spread=0.5)
    z = x.rms_norm()
    x = x + attention(z, 4, near)
    z = x.rms_norm()
    x = x + mlp(z, "Relu")
    x = x.rms_norm()
    near = n.near(0, 1, 4, 9, 9, spread=0.5)
    mask = near + causal(n, 9)
    z = y.rms_norm()
    y = y + attention(z, 4, mask)
    z = y.rms_norm()
    y = y + attention(z, 4, other=x)
    z = y.rms_norm()
    y = y + mlp(z, "Relu")
    y = y.rms_norm()
    y = y * float(32**-0.5)
    return y @ table.mT


@network
def whisper_encoder(n: Net) -> NetTensor:
    """Radford et al. 2023: two 1-D convolutions, one of stride 2, before an encoder."""
    x = n.input(1, 20, 41)
    x = x.conv_bias(36, act="Gelu")
    x = x.conv_bias(36, 3, 2, act="Gelu")
    x = x.mT
    x = x + n.near(0, 21, 36, spread=0.5)
    for _ in range(2):
        x = _block(x, 4)
    return x.layer_norm()


@network
def conformer(n: Net) -> NetTensor:
    """Gulati et al. 2020: half steps of perceptrons, attention, a gated depthwise convolution."""
    x = n.input(1, 17, 28)
    y = x.layer_norm()
    x = x + mlp(y, "Silu") * 0.5
    y = x.layer_norm()
    x = x + attention(y, 4)
    y = x.layer_norm()
    y = y.mT
    y = y.project(56, 1)
    value, gate = y.split(28, 28)
    y = value * gate.Sigmoid()
    y = y.depthwise(7, act="Silu")
    y = y.project(28, 1)
    x = x + y.mT
    y = x.layer_norm()
    x = x + mlp(y, "Silu") * 0.5
    return x.layer_norm()


@network
def attention_pooling(n: Net) -> NetTensor:
    """CLIP's head: the mean of a feature map is the query, the map the keys and values."""
    x = n.input(2, 3, 21, 21)
    x = x.conv(16, 3, 2)
    x = x.conv(24, 3, 2)
    tokens = x.tokens()
    mean = tokens.ReduceMean([1])
    tokens = n.cat(mean, tokens)
    tokens = tokens + n.near(0, 37, 24, spread=0.2)
    query = tokens.Slice([0], [1], [1])
    y = attention(query, 4, other=tokens)
    return y.Squeeze([1])


@network
def attention_then_convolution(n: Net) -> NetTensor:
    """Attention as primitive operators, its heads merged, then a grouped 1-D convolution."""
    q, k, v = (n.input(2, 4, 10, 6) for _ in range(3))
    y = attend(q, k, v)
    y = y.transpose(0, 1, 3, 2)
    y = y.reshape(2, 4, -1)
    return y.project(8, 3, groups=4)


@network
def linear_attention(n: Net) -> NetTensor:
    """Katharopoulos et al. 2020: positive features; keys times values first."""
    x = n.input(1, 19, 24)
    projected = [x.linear(24) for _ in range(3)]
    q, k, v = (_heads(p, 3) for p in projected)
    q = q.Elu() + 1.0
    k = k.Elu() + 1.0
    state = k.Einsum(v, equation="bhtc,bhtd->bhcd")
    sums = k.ReduceSum([2], keepdims=0)
    total = q.Einsum(sums, equation="bhtc,bhc->bht")
    y = q @ state
    y = y / total.Unsqueeze([-1])
    y = _joined(y)
    return y.linear(24)


@network
def fnet(n: Net) -> NetTensor:
    """Lee-Thorp et al. 2022: products with cosines and sines in the place of attention."""
    x = n.input(1, 12, 20)

    def waves(of: Callable[..., Any], k: int) -> Any:
        steps = np.arange(k)
        angles = np.outer(steps, steps) * 2 * np.pi / k
        return of(angles).astype("f") / k**0.5

    for _ in range(2):
        y = x.layer_norm()
        even = n.const(waves(np.cos, 12))
        even = even @ (y @ waves(np.cos, 20))
        odd = n.const(waves(np.sin, 12))
        odd = odd @ (y @ waves(np.sin, 20))
        x = x + (even - odd)
        y = x.layer_norm()
        x = x + mlp(y)
    return x


@network
def mixture_of_experts(n: Net) -> NetTensor:
    """Shazeer et al. 2017, dense: the best two of four experts, weighted."""
    x = n.input(1, 14, 24)
    scores = x.linear(4)
    scores = scores.Softmax(axis=-1)
    best, _ = n.many("TopK", 2, scores, [2], axis=-1)
    least = best.ReduceMin([-1])
    chosen = scores.GreaterOrEqual(least)
    gates = chosen.Where(scores, 0.0)
    gates = gates / gates.ReduceSum([-1])
    parts = gates.split(1, 1, 1, 1, axis=-1)
    experts = [mlp(x, "Relu", 2) * gate for gate in parts]
    return x + n.add(*experts)
