"""Networks that go along a sequence: recurrent ones, state spaces, causal convolutions."""

from __future__ import annotations

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.testing.networks.builder import Net, network
from tilewright.testing.networks.transformer import attend

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _recurrent(
    n: Net, kind: str, x: Value, hidden: int, direction: str = "forward", **more: object
) -> list[Value]:
    """[t, b, c] -> [t, b, directions * hidden], and the last states."""
    t, b, c = x.extents
    ways, rows = (2 if direction == "bidirectional" else 1), GATES[kind] * hidden
    w, r = n.weight(ways, rows, c, fan=c), n.weight(ways, rows, hidden, fan=hidden)
    made = n.many(
        kind, 3 if kind == "LSTM" else 2, x, w, r, n.near(0, ways, 2 * rows),
        hidden_size=hidden, direction=direction, **more,
    )  # fmt: skip
    y = n.shape(n.order(made[0], 0, 2, 1, 3), t, b, ways * hidden)
    return [y, *made[1:]]


@network
def lstm(n: Net) -> list[Value]:
    """Two layers, then a linear one at every step."""
    y, *_ = _recurrent(n, "LSTM", n.input(9, 2, 12), 18)
    y, h, c = _recurrent(n, "LSTM", y, 14)
    return [n.linear(y, 7), h, c]


@network
def gru(n: Net) -> list[Value]:
    """Both orders of the reset gate's product."""
    y, _ = _recurrent(n, "GRU", n.input(7, 3, 10), 17)
    y, h = _recurrent(n, "GRU", y, 12, linear_before_reset=1)
    return [n.linear(y, 5), h]


@network
def rnn_bidirectional(n: Net) -> list[Value]:
    """Elman's network in both directions, then one backwards."""
    y, _ = _recurrent(n, "RNN", n.input(8, 2, 11), 13, "bidirectional")
    y, h = _recurrent(n, "RNN", y, 9, "reverse")
    return [y, h]


@network
def lstm_bidirectional_tagger(n: Net) -> Value:
    """Embedded words, both directions, a class for each word."""
    x = n("Gather", n.weight(30, 16, fan=1), n.ids(10, 2, below=30))
    y, *_ = _recurrent(n, "LSTM", x, 12, "bidirectional")
    return n("LogSoftmax", n.linear(y, 6), axis=-1)


@network
def seq2seq(n: Net) -> Value:
    """Bahdanau et al. 2015: a decoder whose states attend to an encoder's."""
    y, h = _recurrent(n, "GRU", n.input(11, 2, 12), 16)
    x, w = n.input(6, 2, 10), n.weight(1, 48, 10, fan=10)
    z, _ = n.many("GRU", 2, x, w, n.weight(1, 48, 16, fan=16), None, None, h, hidden_size=16)
    keys, query = n.order(y, 1, 0, 2), n.order(n("Squeeze", z, [1]), 1, 0, 2)
    context = attend(n, query, keys, keys)
    return n.linear(n.act(n.linear(n.cat(query, context, axis=-1), 16), "Tanh"), 9)


@network
def crnn(n: Net) -> Value:
    """Shi et al. 2017: convolutions whose columns are a sequence."""
    x = n.pool(n.conv(n.input(1, 1, 16, 40), 10, norm=False), 2)
    x = n.conv(x, 14)
    x = n("MaxPool", x, kernel_shape=[8, 3], strides=[8, 2])
    _, c, _, w = x.extents
    x = n.order(n.shape(x, 1, c, w), 2, 0, 1)
    y, *_ = _recurrent(n, "LSTM", x, 12, "bidirectional")
    return n("Softmax", n.linear(y, 8), axis=-1)


@network
def deepspeech(n: Net) -> Value:
    """Hannun et al. 2014: clipped rectifiers, a layer of frames, both directions."""
    x = n.conv(n.input(1, 1, 20, 31), 6, (11, 5), (2, 2), act="Relu6")
    _, c, f, t = x.extents
    x = n.order(n.shape(x, 1, c * f, t), 2, 0, 1)
    y, _ = _recurrent(n, "GRU", x, 14, "bidirectional")
    return n.linear(n.linear(y, 20, "Relu6"), 8)


@network
def s4(n: Net) -> Value:
    """Gu et al. 2022: a diagonal state space as a long causal convolution by channel."""
    x = n.input(1, 14, 23)
    rate, read = np.linspace(0.1, 1.5, 6), n.rng.standard_normal((14, 6)) / 6
    kernel = (read[:, :, None] * np.exp(-rate[:, None] * np.arange(23))).sum(1)
    for _ in range(2):
        w = n.const(np.ascontiguousarray(kernel[:, None, ::-1]).astype("f"))
        y = n("Conv", x, w, group=14, pads=[22, 0])
        y = n.act(n("Add", y, n("Mul", x, n.near(1, 14, 1))), "Gelu")
        value, gate = n.split(n.conv(y, 28, 1, norm=False, act=""), 14, 14)
        x = n("Add", x, n("Mul", value, n("Sigmoid", gate)))
    return n("ReduceMean", x, [2], keepdims=0)


@network
def mamba(n: Net) -> Value:
    """Gu and Dao 2024: a scan whose steps depend on the input, written out step by step."""
    length, width, states = 7, 18, 5
    x = n.linear(n.input(1, length, width), 2 * width, bias=False)
    u, gate = n.split(x, width, width, axis=-1)
    u = n.order(u, 0, 2, 1)
    u = n("Conv", u, n.weight(width, 1, 4), n.near(0, width), group=width, pads=[3, 0])
    u = n.order(n.act(u, "Silu"), 0, 2, 1)
    step = n("Softplus", n.linear(u, width))
    into, out = n.linear(u, states, bias=False), n.linear(u, states, bias=False)
    rate = n("Neg", n("Exp", n.near(0, width, states, spread=0.3)))
    decay = n("Exp", n("Mul", n("Unsqueeze", step, [-1]), rate))
    add = n("Mul", n("Unsqueeze", n("Mul", step, u), [-1]), n("Unsqueeze", into, [2]))
    h, rows = None, []
    for t in range(length):
        here, keep = (n("Slice", v, [t], [t + 1], [1]) for v in (add, decay))
        h = here if h is None else n("Add", n("Mul", h, keep), here)
        read = n("Unsqueeze", n("Slice", out, [t], [t + 1], [1]), [2])
        rows.append(n("ReduceSum", n("Mul", h, read), [3], keepdims=0))
    y = n("Add", n.cat(*rows), n("Mul", u, n.near(1, width)))
    return n.linear(n("Mul", y, n.act(gate, "Silu")), width, bias=False)


@network
def linear_recurrence(n: Net) -> Value:
    """Prefix sums as a recurrence of constant decay: scaled, summed, scaled back."""
    x = n.input(2, 15, 20)
    decay = np.exp(-0.05 * np.arange(15))[:, None].astype("f")
    y = n("CumSum", n("Div", n.linear(x, 20), n.const(decay)), np.array(1))
    y = n("Mul", y, n.const(decay))
    return n.linear(n("Mul", y, n("Sigmoid", n.linear(x, 20))), 9, gain=0.3)


@network
def tcn(n: Net) -> Value:
    """Bai et al. 2018: dilated causal convolutions with residuals."""
    x = n.conv(n.input(2, 9, 35), 16, 1, norm=False, act="")
    for dilation in (1, 2, 4):
        y = x
        for _ in range(2):
            y = n.conv(y, 16, 3, dilation=dilation, pads=[2 * dilation, 0], norm=False)
        x = n("Relu", n("Add", x, n("Mul", y, 0.5)))
    return n.linear(n("Squeeze", n("Slice", x, [34], [35], [2]), [2]), 5)


@network
def wavenet(n: Net) -> Value:
    """van den Oord et al. 2016: gated dilated convolutions, sums of what each layer skips."""
    x, skips = n.conv(n.input(1, 1, 45), 12, 1, norm=False, act=""), []
    for dilation in (1, 2, 4, 8):
        y, gate = (
            n.conv(x, 12, 2, dilation=dilation, pads=[dilation, 0], norm=False, act=kind, gain=1.0)
            for kind in ("Tanh", "Sigmoid")
        )
        y = n("Mul", y, gate)
        skips.append(n.conv(y, 20, 1, norm=False, act=""))
        x = n("Add", x, n.conv(y, 12, 1, norm=False, act=""))
    return n.conv(n.conv(n("Relu", n.add(*skips)), 20, 1, norm=False), 16, 1, norm=False, act="")


@network
def qrnn(n: Net) -> Value:
    """Bradbury et al. 2017: gates by causal convolutions, a recurrence without products."""
    x = n.input(1, 8, 10)
    z, f, o = (
        n.conv(x, 14, 2, pads=[1, 0], norm=False, act=kind, gain=1.0)
        for kind in ("Tanh", "Sigmoid", "Sigmoid")
    )
    c, rows = None, []
    for t in range(10):
        zt, ft = (n("Slice", v, [t], [t + 1], [2]) for v in (z, f))
        here = n("Mul", n("Sub", 1.0, ft), zt)
        c = here if c is None else n("Add", n("Mul", ft, c), here)
        rows.append(c)
    return n("Mul", o, n.cat(*rows, axis=2))
