"""Networks of attention over tokens, and those that put something simpler in its place."""

from __future__ import annotations

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.testing.networks.builder import Net, network


def _heads(n: Net, x: Value, heads: int) -> Value:
    """[b, t, c] as [b, heads, t, c / heads]."""
    b, t, c = x.extents
    return n.order(n.shape(x, b, t, heads, c // heads), 0, 2, 1, 3)


def _joined(n: Net, x: Value) -> Value:
    b, heads, t, c = x.extents
    return n.shape(n.order(x, 0, 2, 1, 3), b, t, heads * c)


def attend(n: Net, q: Value, k: Value, v: Value, mask: Value | None = None) -> Value:
    """softmax(q kᵀ / √c + mask) v."""
    axes = list(range(len(k.extents)))
    scores = n("MatMul", q, n.order(k, *axes[:-2], axes[-1], axes[-2]))
    scores = n("Div", scores, float(np.sqrt(q.extents[-1])))
    if mask is not None:
        scores = n("Add", scores, mask)
    return n("MatMul", n("Softmax", scores, axis=-1), v)


def attention(
    n: Net, x: Value, heads: int, mask: Value | None = None, other: Value | None = None
) -> Value:
    """Heads of attention to `x` itself or to another sequence."""
    width, source = x.extents[-1], x if other is None else other
    q, k, v = (_heads(n, n.linear(s, width), heads) for s in (x, source, source))
    return n.linear(_joined(n, attend(n, q, k, v, mask)), width)


def mlp(n: Net, x: Value, act: str = "Gelu", grow: int = 3) -> Value:
    """Two linear layers."""
    width = x.extents[-1]
    return n.linear(n.linear(x, grow * width, act), width)


def _block(n: Net, x: Value, heads: int, mask: Value | None = None, act: str = "Gelu") -> Value:
    """Normalized first."""
    x = n("Add", x, attention(n, n.layer_norm(x), heads, mask))
    return n("Add", x, mlp(n, n.layer_norm(x), act))


def causal(n: Net, length: int) -> Value:
    """0 up to the diagonal, a large negative number above."""
    return n.const(np.triu(np.full((length, length), -1e4, "f"), 1))


def _patches(n: Net, x: Value, width: int, size: int) -> Value:
    """[b, tokens, width] of an image."""
    y = n.conv(x, width, size, size, pads=[0] * 4, norm=False, act="")
    b, c, h, w = y.extents
    return n.order(n.shape(y, b, c, h * w), 0, 2, 1)


@network
def vit(n: Net) -> Value:
    """Dosovitskiy et al. 2021: patches, a class token, positions."""
    x = _patches(n, n.input(2, 3, 20, 20), 36, 4)
    token = n("Expand", n.near(0, 1, 1, 36, spread=1), [2, 1, 36])
    x = n("Add", n.cat(token, x), n.near(0, 1, 26, 36, spread=0.5))
    for _ in range(2):
        x = _block(n, x, 3)
    return n.linear(n("Gather", n.layer_norm(x), np.array(0), axis=1), 10)


@network
def deit(n: Net) -> Value:
    """Touvron et al. 2021: a second token; one product for q, k and v; the mean of two heads."""
    x = _patches(n, n.input(1, 3, 15, 15), 30, 5)
    x = n.cat(n.near(0, 1, 2, 30, spread=1), x)
    y = n.shape(n.linear(n.layer_norm(x), 90), 1, 11, 3, 5, 6)
    parts = n.split(n.order(y, 2, 0, 3, 1, 4), 1, 1, 1, axis=0)
    q, k, v = (n("Squeeze", p, [0]) for p in parts)
    x = n("Add", x, n.linear(_joined(n, attend(n, q, k, v)), 30))
    x = n.layer_norm(n("Add", x, mlp(n, n.layer_norm(x), "Erf")))
    both = [n("Squeeze", n("Slice", x, [i], [i + 1], [1]), [1]) for i in (0, 1)]
    return n("Mul", n("Add", *(n.linear(t, 10) for t in both)), 0.5)


@network
def swin(n: Net) -> Value:
    """Liu et al. 2021: windows, every other time shifted and masked; patches merged."""
    side, window, width = 8, 4, 24
    x = _patches(n, n.input(1, 3, 32, 32), width, 4)
    region = np.zeros((side, side))
    for index, (low, high) in enumerate(((0, 4), (4, 6), (6, 8))):
        region[low:high] += 3 * index
        region[:, low:high] += index
    tiles = region.reshape(2, 4, 2, 4).transpose(0, 2, 1, 3).reshape(4, 1, 16)
    hidden = n.const(np.where(tiles != tiles.transpose(0, 2, 1), -100, 0)[:, None].astype("f"))
    bias = n.near(0, 1, 3, 16, 16, spread=0.5)
    for shifted in (False, True):
        y = n.shape(n.layer_norm(x), 1, side, side, width)
        if shifted:
            y = _rolled(n, y, 2)
        y = n.shape(y, 1, 2, window, 2, window, width)
        y = n.shape(n.order(y, 0, 1, 3, 2, 4, 5), 4, 16, width)
        y = attention(n, y, 3, n("Add", bias, hidden) if shifted else bias)
        y = n.order(n.shape(y, 1, 2, 2, window, window, width), 0, 1, 3, 2, 4, 5)
        y = n.shape(y, 1, side, side, width)
        if shifted:
            y = _rolled(n, y, side - 2)
        x = n("Add", x, n.shape(y, 1, side * side, width))
        x = n("Add", x, mlp(n, n.layer_norm(x)))
    y = n.shape(x, 1, side, side, width)
    corners = [n("Slice", y, [i, j], [side, side], [1, 2], [2, 2]) for j in (0, 1) for i in (0, 1)]
    return n.linear(n.layer_norm(n.cat(*corners, axis=-1)), 40, bias=False)


def _rolled(n: Net, x: Value, by: int) -> Value:
    """Rows and columns moved around the end."""
    for axis in (1, 2):
        size = x.extents[axis]
        head, tail = (n("Slice", x, [a], [b], [axis]) for a, b in ((0, by), (by, size)))
        x = n.cat(tail, head, axis=axis)
    return x


@network
def mlp_mixer(n: Net) -> Value:
    """Tolstikhin et al. 2021: perceptrons over tokens, then over channels."""
    x = _patches(n, n.input(2, 3, 21, 21), 28, 7)
    for _ in range(2):
        y = mlp(n, n.order(n.layer_norm(x), 0, 2, 1))
        x = n("Add", x, n.order(y, 0, 2, 1))
        x = n("Add", x, mlp(n, n.layer_norm(x)))
    return n.linear(n("ReduceMean", n.layer_norm(x), [1], keepdims=0), 10)


@network
def gmlp(n: Net) -> Value:
    """Liu et al. 2021b: half of the channels, mixed over tokens, gate the other half."""
    x = _patches(n, n.input(1, 3, 20, 20), 22, 4)
    for _ in range(2):
        u, v = n.split(n.linear(n.layer_norm(x), 60, "Gelu"), 30, 30, axis=-1)
        v = n.order(n.linear(n.order(n.layer_norm(v), 0, 2, 1), 25, gain=0.2), 0, 2, 1)
        x = n("Add", x, n.linear(n("Mul", u, n("Add", v, 1.0)), 22))
    return n.linear(n("ReduceMean", x, [1], keepdims=0), 10)


@network
def poolformer(n: Net) -> Value:
    """Yu et al. 2022: an average pooling, less the value itself, in the place of attention."""
    x = n.conv(n.input(1, 3, 30, 30), 20, 7, 4, norm=False, act="")
    for _ in range(2):
        y = n.group_norm(x, 1)
        x = n("Add", x, n("Sub", n.mean(y, 3, 1, 1, count_include_pad=0), y))
        y = n.group_norm(x, 1)
        y = n.conv(n.conv(y, 60, 1, norm=False, act="Gelu"), 20, 1, norm=False, act="")
        x = n("Add", x, y)
    return n.head(x)


@network
def bert(n: Net) -> list[Value]:
    """Devlin et al. 2019: three embeddings, a mask of what is padding, normalized after each."""
    ids, kinds, seen = n.ids(2, 13, below=40), n.ids(2, 13, below=2), n.flags(2, 13)
    tables = [n.weight(rows, 36, fan=1) for rows in (40, 2)]
    x = n.add(n("Gather", tables[0], ids), n("Gather", tables[1], kinds), n.weight(13, 36, fan=2))
    x = n.layer_norm(x, 1e-12)
    mask = n("Sub", 1.0, n("Cast", n("Unsqueeze", seen, [1, 2]), to=1))
    mask = n("Mul", mask, -10000.0)
    for _ in range(2):
        x = n.layer_norm(n("Add", x, attention(n, x, 4, mask)))
        x = n.layer_norm(n("Add", x, mlp(n, x, "Erf")))
    first = n("Gather", x, np.array(0), axis=1)
    return [x, n.act(n.linear(first, 36), "Tanh")]


@network
def gpt(n: Net) -> Value:
    """Radford et al. 2019: causal; GELU by a hyperbolic tangent; the table of words as the head."""
    table = n.weight(50, 30, fan=30)
    x = n("Add", n("Gather", table, n.ids(1, 17, below=50)), n.weight(17, 30, fan=30))
    mask = causal(n, 17)
    for _ in range(2):
        x = n("Add", x, attention(n, n.layer_norm(x), 3, mask))
        x = n("Add", x, n.linear(_tanh_gelu(n, n.linear(n.layer_norm(x), 90)), 30))
    return n("MatMul", n.layer_norm(x), n.order(table, 1, 0))


def _tanh_gelu(n: Net, x: Value) -> Value:
    cube = n("Add", x, n("Mul", n("Pow", x, 3.0), 0.044715))
    return n("Mul", n("Mul", x, 0.5), n("Add", n("Tanh", n("Mul", cube, 0.7978845)), 1.0))


@network
def gpt_step(n: Net) -> list[Value]:
    """One token behind a cache of keys and values, which grow by one."""
    x = n.input(1, 1, 32)
    found = []
    for _ in range(2):
        past_k, past_v = n.input(1, 4, 11, 8), n.input(1, 4, 11, 8)
        y = n.layer_norm(x)
        q, k, v = (_heads(n, n.linear(y, 32), 4) for _ in range(3))
        k, v = n.cat(past_k, k, axis=2), n.cat(past_v, v, axis=2)
        x = n("Add", x, n.linear(_joined(n, attend(n, q, k, v)), 32))
        x = n("Add", x, mlp(n, n.layer_norm(x)))
        found += [k, v]
    return [n.layer_norm(x), *found]


def _rotary(n: Net, x: Value) -> Value:
    """Positions as rotations of pairs of channels (Su et al. 2021), halves as pairs."""
    _, _, length, width = x.extents
    angles = np.outer(np.arange(length), 100.0 ** -np.linspace(0, 1, width // 2))
    cos, sin = (n.const(np.tile(f(angles), 2).astype("f")) for f in (np.cos, np.sin))
    low, high = n.split(x, width // 2, width // 2, axis=-1)
    turned = n.cat(n("Neg", high), low, axis=-1)
    return n("Add", n("Mul", x, cos), n("Mul", turned, sin))


@network
def llama(n: Net) -> Value:
    """Touvron et al. 2023: grouped heads, rotary positions, RMS norms, SwiGLU."""
    length, width, heads, groups, deep = 11, 48, 6, 2, 8
    x = n("Gather", n.weight(40, width, fan=1), n.ids(1, length, below=40))
    mask = causal(n, length)
    for _ in range(2):
        y = n.rms_norm(x)
        q = _rotary(n, _heads(n, n.linear(y, width, bias=False), heads))
        k, v = (_heads(n, n.linear(y, groups * deep, bias=False), groups) for _ in range(2))
        k, v = (_repeated(n, t, heads // groups) for t in (_rotary(n, k), v))
        y = _joined(n, attend(n, q, k, v, mask))
        x = n("Add", x, n.linear(y, width, bias=False))
        y = n.rms_norm(x)
        gated = n("Mul", n.linear(y, 100, "Silu", bias=False), n.linear(y, 100, bias=False))
        x = n("Add", x, n.linear(gated, width, bias=False))
    return n.linear(n.rms_norm(x), 40, bias=False)


def _repeated(n: Net, x: Value, times: int) -> Value:
    b, groups, t, c = x.extents
    wide = n("Expand", n("Unsqueeze", x, [2]), [b, groups, times, t, c])
    return n.shape(wide, b, groups * times, t, c)


@network
def t5(n: Net) -> Value:
    """Raffel et al. 2020: an encoder and a decoder that attends to it; biases by distance."""
    table = n.weight(40, 32, fan=1)
    x, y = (n("Gather", table, n.ids(2, length, below=40)) for length in (12, 9))
    near = n.near(0, 1, 4, 12, 12, spread=0.5)
    x = n("Add", x, attention(n, n.rms_norm(x), 4, near))
    x = n.rms_norm(n("Add", x, mlp(n, n.rms_norm(x), "Relu")))
    mask = n("Add", n.near(0, 1, 4, 9, 9, spread=0.5), causal(n, 9))
    y = n("Add", y, attention(n, n.rms_norm(y), 4, mask))
    y = n("Add", y, attention(n, n.rms_norm(y), 4, other=x))
    y = n("Add", y, mlp(n, n.rms_norm(y), "Relu"))
    return n("MatMul", n("Mul", n.rms_norm(y), 32**-0.5), n.order(table, 1, 0))


@network
def whisper_encoder(n: Net) -> Value:
    """Radford et al. 2023: two 1-D convolutions, one of stride 2, before an encoder."""
    x = n.conv(n.input(1, 20, 41), 36, norm=False, act="Gelu")
    x = n.conv(x, 36, 3, 2, norm=False, act="Gelu")
    x = n("Add", n.order(x, 0, 2, 1), n.near(0, 21, 36, spread=0.5))
    for _ in range(2):
        x = _block(n, x, 4)
    return n.layer_norm(x)


@network
def conformer(n: Net) -> Value:
    """Gulati et al. 2020: half steps of perceptrons, attention, a gated depthwise convolution."""
    x = n.input(1, 17, 28)
    x = n("Add", x, n("Mul", mlp(n, n.layer_norm(x), "Silu"), 0.5))
    x = n("Add", x, attention(n, n.layer_norm(x), 4))
    y = n.order(n.layer_norm(x), 0, 2, 1)
    value, gate = n.split(n.conv(y, 56, 1, norm=False, act=""), 28, 28)
    y = n.depthwise(n("Mul", value, n("Sigmoid", gate)), 7, act="Silu")
    x = n("Add", x, n.order(n.conv(y, 28, 1, norm=False, act=""), 0, 2, 1))
    x = n("Add", x, n("Mul", mlp(n, n.layer_norm(x), "Silu"), 0.5))
    return n.layer_norm(x)


@network
def attention_pooling(n: Net) -> Value:
    """CLIP's head: the mean of a map asks the map itself."""
    x = n.conv(n.conv(n.input(2, 3, 21, 21), 16, 3, 2), 24, 3, 2)
    tokens = n.order(n.shape(x, 2, 24, 36), 0, 2, 1)
    tokens = n.cat(n("ReduceMean", tokens, [1]), tokens)
    tokens = n("Add", tokens, n.near(0, 37, 24, spread=0.2))
    query = n("Slice", tokens, [0], [1], [1])
    return n("Squeeze", attention(n, query, 4, other=tokens), [1])


@network
def attention_then_convolution(n: Net) -> Value:
    """Attention written out, its heads brought together, then a 1-D convolution in groups."""
    q, k, v = (n.input(2, 4, 10, 6) for _ in range(3))
    y = n.order(attend(n, q, k, v), 0, 1, 3, 2)
    return n.conv(n.shape(y, 2, 4, -1), 8, 3, groups=4, norm=False, act="")


@network
def linear_attention(n: Net) -> Value:
    """Katharopoulos et al. 2020: positive features; keys times values first."""
    x = n.input(1, 19, 24)
    q, k, v = (_heads(n, n.linear(x, 24), 3) for _ in range(3))
    q, k = (n("Add", n("Elu", t), 1.0) for t in (q, k))
    state = n("Einsum", k, v, equation="bhtc,bhtd->bhcd")
    total = n("Einsum", q, n("ReduceSum", k, [2], keepdims=0), equation="bhtc,bhc->bht")
    y = n("Div", n("MatMul", q, state), n("Unsqueeze", total, [-1]))
    return n.linear(_joined(n, y), 24)


@network
def fnet(n: Net) -> Value:
    """Lee-Thorp et al. 2022: products with cosines and sines in the place of attention."""
    x = n.input(1, 12, 20)
    t, c = (np.outer(np.arange(k), np.arange(k)) * 2 * np.pi / k for k in (12, 20))
    for _ in range(2):
        y = n.layer_norm(x)
        even = n(
            "MatMul",
            n.const(np.cos(t).astype("f") / 12**0.5),
            n("MatMul", y, n.const(np.cos(c).astype("f") / 20**0.5)),
        )
        odd = n(
            "MatMul",
            n.const(np.sin(t).astype("f") / 12**0.5),
            n("MatMul", y, n.const(np.sin(c).astype("f") / 20**0.5)),
        )
        x = n("Add", x, n("Sub", even, odd))
        x = n("Add", x, mlp(n, n.layer_norm(x)))
    return x


@network
def mixture_of_experts(n: Net) -> Value:
    """Shazeer et al. 2017, dense: the best two of four experts, weighted."""
    x = n.input(1, 14, 24)
    scores = n("Softmax", n.linear(x, 4), axis=-1)
    best, _ = n.many("TopK", 2, scores, [2], axis=-1)
    least = n("ReduceMin", best, [-1])
    gates = n("Where", n("GreaterOrEqual", scores, least), scores, 0.0)
    gates = n("Div", gates, n("ReduceSum", gates, [-1]))
    parts = n.split(gates, 1, 1, 1, 1, axis=-1)
    return n("Add", x, n.add(*(n("Mul", mlp(n, x, "Relu", 2), gate) for gate in parts)))
