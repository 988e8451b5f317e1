"""Networks of attention over tokens, and those that put something simpler in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.testing.networks.builder import Net, Tensor, network


def _heads(x: Tensor, heads: int) -> Tensor:
    """[b, t, c] as [b, heads, t, c / heads]."""
    b, t, c = x.shape
    x = x.reshape(b, t, heads, c // heads)
    return x.transpose(0, 2, 1, 3)


def _joined(x: Tensor) -> Tensor:
    b, heads, t, c = x.shape
    x = x.transpose(0, 2, 1, 3)
    return x.reshape(b, t, heads * c)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """softmax(q kᵀ / √c + mask) v."""
    axes = list(range(len(k.shape)))
    scores = q @ k.transpose(*axes[:-2], axes[-1], axes[-2])
    scores = scores / float(np.sqrt(q.shape[-1]))
    if mask is not None:
        scores = scores + mask
    return scores.Softmax(axis=-1) @ v


def attention(
    x: Tensor, heads: int, mask: Tensor | None = None, other: Tensor | None = None
) -> Tensor:
    """Heads of attention to `x` itself or to another sequence."""
    width = x.shape[-1]
    source = x if other is None else other
    q, k, v = (_heads(s.linear(width), heads) for s in (x, source, source))
    return _joined(attend(q, k, v, mask)).linear(width)


def mlp(x: Tensor, act: str = "Gelu", grow: int = 3) -> Tensor:
    """Two linear layers."""
    width = x.shape[-1]
    x = x.linear(grow * width, act)
    return x.linear(width)


def _block(
    x: Tensor, heads: int, mask: Tensor | None = None, act: str = "Gelu"
) -> Tensor:
    """Normalized first."""
    x = x + attention(x.layer_norm(), heads, mask)
    return x + mlp(x.layer_norm(), act)


def causal(n: Net, length: int) -> Tensor:
    """0 up to the diagonal, a large negative number above."""
    return n.const(np.triu(np.full((length, length), -1e4), 1))


def _patches(x: Tensor, width: int, size: int) -> Tensor:
    """[b, tokens, width] of an image."""
    return x.project(width, size, size, pads=0).tokens()


@network
def vit(n: Net) -> Tensor:
    """Dosovitskiy et al. 2021: patches, a class token, positions."""
    x = n.input(2, 3, 20, 20)
    x = _patches(x, 36, 4)
    token = n.near(0, 1, 1, 36, spread=1).Expand([2, 1, 36])
    x = n.cat(token, x) + n.near(0, 1, 26, 36, spread=0.5)
    for _ in range(2):
        x = _block(x, 3)
    x = x.layer_norm().Gather(np.array(0), axis=1)
    return x.linear(10)


@network
def deit(n: Net) -> Tensor:
    """Touvron et al. 2021: a second token; one product for q, k and v; the mean of two heads."""
    x = n.input(1, 3, 15, 15)
    x = _patches(x, 30, 5)
    x = n.cat(n.near(0, 1, 2, 30, spread=1), x)
    y = x.layer_norm()
    y = y.linear(90)
    y = y.reshape(1, 11, 3, 5, 6)
    y = y.transpose(2, 0, 3, 1, 4)
    q, k, v = (p.Squeeze([0]) for p in y.split(1, 1, 1, axis=0))
    x = x + _joined(attend(q, k, v)).linear(30)
    x = x + mlp(x.layer_norm(), "Erf")
    x = x.layer_norm()
    both = [x.Slice([i], [i + 1], [1]).Squeeze([1]) for i in (0, 1)]
    return n("Add", *(t.linear(10) for t in both)) * 0.5


@network
def swin(n: Net) -> Tensor:
    """Liu et al. 2021: windows, every other time shifted and masked; patches merged."""
    side, window, width = 8, 4, 24
    x = n.input(1, 3, 32, 32)
    x = _patches(x, width, 4)
    region = np.zeros((side, side))
    for index, (low, high) in enumerate(((0, 4), (4, 6), (6, 8))):
        region[low:high] += 3 * index
        region[:, low:high] += index
    tiles = region.reshape(2, 4, 2, 4).transpose(0, 2, 1, 3).reshape(4, 1, 16)
    separate = tiles != tiles.transpose(0, 2, 1)
    hidden = n.const(np.where(separate, -100.0, 0.0)[:, None])
    bias = n.near(0, 1, 3, 16, 16, spread=0.5)
    for shifted in (False, True):
        y = x.layer_norm()
        y = y.reshape(1, side, side, width)
        if shifted:
            y = _rolled(n, y, 2)
        y = y.reshape(1, 2, window, 2, window, width)
        y = y.transpose(0, 1, 3, 2, 4, 5)
        y = y.reshape(4, 16, width)
        y = attention(y, 3, bias + hidden if shifted else bias)
        y = y.reshape(1, 2, 2, window, window, width)
        y = y.transpose(0, 1, 3, 2, 4, 5)
        y = y.reshape(1, side, side, width)
        if shifted:
            y = _rolled(n, y, side - 2)
        x = x + y.reshape(1, side * side, width)
        x = x + mlp(x.layer_norm())
    y = x.reshape(1, side, side, width)
    ends = [side, side]
    places = ((0, 0), (1, 0), (0, 1), (1, 1))
    corners = [y.Slice(list(p), ends, [1, 2], [2, 2]) for p in places]
    x = n.cat(*corners, axis=-1)
    x = x.layer_norm()
    return x.linear(40, bias=False)


def _rolled(n: Net, x: Tensor, by: int) -> Tensor:
    """Rows and columns moved around the end."""
    for axis in (1, 2):
        head = x.Slice([0], [by], [axis])
        tail = x.Slice([by], [x.shape[axis]], [axis])
        x = n.cat(tail, head, axis=axis)
    return x


@network
def mlp_mixer(n: Net) -> Tensor:
    """Tolstikhin et al. 2021: perceptrons over tokens, then over channels."""
    x = n.input(2, 3, 21, 21)
    x = _patches(x, 28, 7)
    for _ in range(2):
        y = x.layer_norm()
        y = y.transpose(0, 2, 1)
        y = mlp(y)
        x = x + y.transpose(0, 2, 1)
        x = x + mlp(x.layer_norm())
    x = x.layer_norm().ReduceMean([1], keepdims=0)
    return x.linear(10)


@network
def gmlp(n: Net) -> Tensor:
    """Liu et al. 2021b: half of the channels, mixed over tokens, gate the other half."""
    x = n.input(1, 3, 20, 20)
    x = _patches(x, 22, 4)
    for _ in range(2):
        y = x.layer_norm()
        y = y.linear(60, "Gelu")
        u, v = y.split(30, 30, axis=-1)
        v = v.layer_norm()
        v = v.transpose(0, 2, 1)
        v = v.linear(25, gain=0.2)
        v = v.transpose(0, 2, 1)
        x = x + (u * (v + 1.0)).linear(22)
    return x.ReduceMean([1], keepdims=0).linear(10)


@network
def poolformer(n: Net) -> Tensor:
    """Yu et al. 2022: an average pooling, less the value itself, in the place of attention."""
    x = n.input(1, 3, 30, 30)
    x = x.project(20, 7, 4)
    for _ in range(2):
        y = x.group_norm(1)
        x = x + (y.average_pool(3, 1, 1, count_include_pad=0) - y)
        y = x.group_norm(1)
        y = y.conv_bias(60, 1, act="Gelu")
        y = y.project(20, 1)
        x = x + y
    return x.head()


@network
def bert(n: Net) -> list[Tensor]:
    """Devlin et al. 2019: three embeddings, a mask of what is padding, normalized after each."""
    ids = n.ids(2, 13, below=40)
    kinds = n.ids(2, 13, below=2)
    seen = n.flags(2, 13)
    words = n.weight(40, 36, fan=1)
    parts = n.weight(2, 36, fan=1)
    x = n.add(words.Gather(ids), parts.Gather(kinds), n.weight(13, 36, fan=2))
    x = x.layer_norm(1e-12)
    mask = 1.0 - seen.Unsqueeze([1, 2]).Cast(to=1)
    mask = mask * -10000.0
    for _ in range(2):
        x = (x + attention(x, 4, mask)).layer_norm()
        x = (x + mlp(x, "Erf")).layer_norm()
    first = x.Gather(np.array(0), axis=1)
    return [x, first.linear(36).act("Tanh")]


@network
def gpt(n: Net) -> Tensor:
    """Radford et al. 2019: causal; GELU by a hyperbolic tangent; the table of words as the head."""
    table = n.weight(50, 30, fan=30)
    x = table.Gather(n.ids(1, 17, below=50)) + n.weight(17, 30, fan=30)
    mask = causal(n, 17)
    for _ in range(2):
        x = x + attention(x.layer_norm(), 3, mask)
        x = x + _tanh_gelu(x.layer_norm().linear(90)).linear(30)
    return x.layer_norm() @ table.transpose(1, 0)


def _tanh_gelu(x: Tensor) -> Tensor:
    cube = x + x.Pow(3.0) * 0.044715
    return x * 0.5 * ((cube * 0.7978845).Tanh() + 1.0)


@network
def gpt_step(n: Net) -> list[Tensor]:
    """One token behind a cache of keys and values, which grow by one."""
    x = n.input(1, 1, 32)
    found = []
    for _ in range(2):
        past_k = n.input(1, 4, 11, 8)
        past_v = n.input(1, 4, 11, 8)
        y = x.layer_norm()
        q, k, v = (_heads(y.linear(32), 4) for _ in range(3))
        k = n.cat(past_k, k, axis=2)
        v = n.cat(past_v, v, axis=2)
        x = x + _joined(attend(q, k, v)).linear(32)
        x = x + mlp(x.layer_norm())
        found += [k, v]
    return [x.layer_norm(), *found]


def _rotary(n: Net, x: Tensor) -> Tensor:
    """Positions as rotations of pairs of channels (Su et al. 2021), halves as pairs."""
    _, _, length, width = x.shape
    half = width // 2
    angles = np.outer(np.arange(length), 100.0 ** -np.linspace(0, 1, half))
    angles = np.tile(angles, 2)
    cos = n.const(np.cos(angles))
    sin = n.const(np.sin(angles))
    low, high = x.split(half, half, axis=-1)
    turned = n.cat(-high, low, axis=-1)
    return x * cos + turned * sin


@network
def llama(n: Net) -> Tensor:
    """Touvron et al. 2023: grouped heads, rotary positions, RMS norms, SwiGLU."""
    length, width, heads, groups, deep = 11, 48, 6, 2, 8
    x = n.weight(40, width, fan=1).Gather(n.ids(1, length, below=40))
    mask = causal(n, length)
    for _ in range(2):
        y = x.rms_norm()
        q = y.linear(width, bias=False)
        q = _heads(q, heads)
        q = _rotary(n, q)
        k, v = (_heads(y.linear(groups * deep, bias=False), groups) for _ in range(2))
        k, v = (_repeated(t, heads // groups) for t in (_rotary(n, k), v))
        y = attend(q, k, v, mask)
        y = _joined(y)
        x = x + y.linear(width, bias=False)
        y = x.rms_norm()
        gate = y.linear(100, "Silu", bias=False)
        y = gate * y.linear(100, bias=False)
        x = x + y.linear(width, bias=False)
    x = x.rms_norm()
    return x.linear(40, bias=False)


def _repeated(x: Tensor, times: int) -> Tensor:
    b, groups, t, c = x.shape
    wide = x.Unsqueeze([2]).Expand([b, groups, times, t, c])
    return wide.reshape(b, groups * times, t, c)


@network
def t5(n: Net) -> Tensor:
    """Raffel et al. 2020: an encoder and a decoder that attends to it; biases by distance."""
    table = n.weight(40, 32, fan=1)
    x, y = (table.Gather(n.ids(2, length, below=40)) for length in (12, 9))
    near = n.near(0, 1, 4, 12, 12, spread=0.5)
    x = x + attention(x.rms_norm(), 4, near)
    x = (x + mlp(x.rms_norm(), "Relu")).rms_norm()
    mask = n.near(0, 1, 4, 9, 9, spread=0.5) + causal(n, 9)
    y = y + attention(y.rms_norm(), 4, mask)
    y = y + attention(y.rms_norm(), 4, other=x)
    y = y + mlp(y.rms_norm(), "Relu")
    y = y.rms_norm() * float(32**-0.5)
    return y @ table.transpose(1, 0)


@network
def whisper_encoder(n: Net) -> Tensor:
    """Radford et al. 2023: two 1-D convolutions, one of stride 2, before an encoder."""
    x = n.input(1, 20, 41)
    x = x.conv_bias(36, act="Gelu")
    x = x.conv_bias(36, 3, 2, act="Gelu")
    x = x.transpose(0, 2, 1) + n.near(0, 21, 36, spread=0.5)
    for _ in range(2):
        x = _block(x, 4)
    return x.layer_norm()


@network
def conformer(n: Net) -> Tensor:
    """Gulati et al. 2020: half steps of perceptrons, attention, a gated depthwise convolution."""
    x = n.input(1, 17, 28)
    x = x + mlp(x.layer_norm(), "Silu") * 0.5
    x = x + attention(x.layer_norm(), 4)
    y = x.layer_norm()
    y = y.transpose(0, 2, 1)
    value, gate = y.project(56, 1).split(28, 28)
    y = (value * gate.Sigmoid()).depthwise(7, act="Silu")
    x = x + y.project(28, 1).transpose(0, 2, 1)
    x = x + mlp(x.layer_norm(), "Silu") * 0.5
    return x.layer_norm()


@network
def attention_pooling(n: Net) -> Tensor:
    """CLIP's head: the mean of a map asks the map itself."""
    x = n.input(2, 3, 21, 21)
    x = x.conv(16, 3, 2)
    x = x.conv(24, 3, 2)
    tokens = x.tokens()
    tokens = n.cat(tokens.ReduceMean([1]), tokens)
    tokens = tokens + n.near(0, 37, 24, spread=0.2)
    query = tokens.Slice([0], [1], [1])
    return attention(query, 4, other=tokens).Squeeze([1])


@network
def attention_then_convolution(n: Net) -> Tensor:
    """Attention written out, its heads brought together, then a 1-D convolution in groups."""
    q, k, v = (n.input(2, 4, 10, 6) for _ in range(3))
    y = attend(q, k, v)
    y = y.transpose(0, 1, 3, 2)
    y = y.reshape(2, 4, -1)
    return y.project(8, 3, groups=4)


@network
def linear_attention(n: Net) -> Tensor:
    """Katharopoulos et al. 2020: positive features; keys times values first."""
    x = n.input(1, 19, 24)
    q, k, v = (_heads(x.linear(24), 3) for _ in range(3))
    q, k = (t.Elu() + 1.0 for t in (q, k))
    state = k.Einsum(v, equation="bhtc,bhtd->bhcd")
    total = q.Einsum(k.ReduceSum([2], keepdims=0), equation="bhtc,bhc->bht")
    y = q @ state / total.Unsqueeze([-1])
    y = _joined(y)
    return y.linear(24)


@network
def fnet(n: Net) -> Tensor:
    """Lee-Thorp et al. 2022: products with cosines and sines in the place of attention."""
    x = n.input(1, 12, 20)

    def waves(of: Callable[..., Any], k: int) -> Any:
        angles = np.outer(np.arange(k), np.arange(k)) * 2 * np.pi / k
        return of(angles).astype("f") / k**0.5

    for _ in range(2):
        y = x.layer_norm()
        even = n.const(waves(np.cos, 12)) @ (y @ waves(np.cos, 20))
        odd = n.const(waves(np.sin, 12)) @ (y @ waves(np.sin, 20))
        x = x + (even - odd)
        x = x + mlp(x.layer_norm())
    return x


@network
def mixture_of_experts(n: Net) -> Tensor:
    """Shazeer et al. 2017, dense: the best two of four experts, weighted."""
    x = n.input(1, 14, 24)
    scores = x.linear(4).Softmax(axis=-1)
    best, _ = n.many("TopK", 2, scores, [2], axis=-1)
    least = best.ReduceMin([-1])
    gates = scores.GreaterOrEqual(least).Where(scores, 0.0)
    gates = gates / gates.ReduceSum([-1])
    parts = gates.split(1, 1, 1, 1, axis=-1)
    return x + n.add(*(mlp(x, "Relu", 2) * gate for gate in parts))
