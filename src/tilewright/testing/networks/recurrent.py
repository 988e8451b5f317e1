"""Networks that go along a sequence: recurrent ones, state spaces, causal convolutions."""

from __future__ import annotations

import numpy as np

from tilewright.testing.networks.builder import Net, NetTensor, network
from tilewright.testing.networks.transformer import attend

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _recurrent(
    n: Net,
    kind: str,
    x: NetTensor,
    hidden: int,
    direction: str = "forward",
    **more: object,
) -> list[NetTensor]:
    """[t, b, c] -> [t, b, directions * hidden], and the last states."""
    t, b, c = x.shape
    ways = 2 if direction == "bidirectional" else 1
    rows = GATES[kind] * hidden
    w = n.weight(ways, rows, c, fan=c)
    r = n.weight(ways, rows, hidden, fan=hidden)
    bias = n.near(0, ways, 2 * rows)
    count = 3 if kind == "LSTM" else 2
    more = {"hidden_size": hidden, "direction": direction, **more}
    made = n.many(kind, count, x, w, r, bias, **more)
    y = made[0].transpose(0, 2, 1, 3)
    y = y.reshape(t, b, ways * hidden)
    return [y, *made[1:]]


@network
def lstm(n: Net) -> list[NetTensor]:
    """Two layers, then a linear one at every step."""
    x = n.input(9, 2, 12)
    y, *_ = _recurrent(n, "LSTM", x, 18)
    y, h, c = _recurrent(n, "LSTM", y, 14)
    return [y.linear(7), h, c]


@network
def gru(n: Net) -> list[NetTensor]:
    """Both orders of the reset gate's product."""
    x = n.input(7, 3, 10)
    y, _ = _recurrent(n, "GRU", x, 17)
    y, h = _recurrent(n, "GRU", y, 12, linear_before_reset=1)
    return [y.linear(5), h]


@network
def rnn_bidirectional(n: Net) -> list[NetTensor]:
    """Elman's network in both directions, then one backwards."""
    x = n.input(8, 2, 11)
    y, _ = _recurrent(n, "RNN", x, 13, "bidirectional")
    y, h = _recurrent(n, "RNN", y, 9, "reverse")
    return [y, h]


@network
def lstm_bidirectional_tagger(n: Net) -> NetTensor:
    """Embedded words, both directions, a class for each word."""
    table = n.weight(30, 16, fan=1)
    words = n.ids(10, 2, below=30)
    x = table.Gather(words)
    y, *_ = _recurrent(n, "LSTM", x, 12, "bidirectional")
    y = y.linear(6)
    return y.LogSoftmax(axis=-1)


@network
def seq2seq(n: Net) -> NetTensor:
    """Bahdanau et al. 2015: a decoder whose states attend to an encoder's."""
    source = n.input(11, 2, 12)
    y, h = _recurrent(n, "GRU", source, 16)
    x = n.input(6, 2, 10)
    w = n.weight(1, 48, 10, fan=10)
    r = n.weight(1, 48, 16, fan=16)
    z, _ = n.many("GRU", 2, x, w, r, None, None, h, hidden_size=16)
    keys = y.transpose(1, 0, 2)
    query = z.Squeeze([1])
    query = query.transpose(1, 0, 2)
    context = attend(query, keys, keys)
    x = n.cat(query, context, axis=-1)
    x = x.linear(16)
    x = x.act("Tanh")
    return x.linear(9)


@network
def crnn(n: Net) -> NetTensor:
    """Shi et al. 2017: convolutions whose columns are a sequence."""
    x = n.input(1, 1, 16, 40)
    x = x.conv_bias(10)
    x = x.max_pool(2)
    x = x.conv(14)
    x = x.MaxPool(kernel_shape=[8, 3], strides=[8, 2])
    _, c, _, w = x.shape
    x = x.reshape(1, c, w)
    x = x.transpose(2, 0, 1)
    y, *_ = _recurrent(n, "LSTM", x, 12, "bidirectional")
    y = y.linear(8)
    return y.Softmax(axis=-1)


@network
def deepspeech(n: Net) -> NetTensor:
    """Hannun et al. 2014: clipped rectifiers, a layer of frames, both directions."""
    x = n.input(1, 1, 20, 31)
    x = x.conv(6, (11, 5), (2, 2), act="Relu6")
    _, c, f, t = x.shape
    x = x.reshape(1, c * f, t)
    x = x.transpose(2, 0, 1)
    y, _ = _recurrent(n, "GRU", x, 14, "bidirectional")
    y = y.linear(20, "Relu6")
    return y.linear(8)


@network
def s4(n: Net) -> NetTensor:
    """Gu et al. 2022: a diagonal state space as a long causal convolution by channel."""
    x = n.input(1, 14, 23)
    rate = np.linspace(0.1, 1.5, 6)
    read = n.rng.standard_normal((14, 6)) / 6
    decay = np.exp(-rate[:, None] * np.arange(23))
    terms = read[:, :, None] * decay
    kernel = terms.sum(1)
    latest_last = kernel[:, None, ::-1]
    for _ in range(2):
        w = n.const(np.ascontiguousarray(latest_last))
        y = x.Conv(w, group=14, pads=[22, 0])
        y = y + x * n.near(1, 14, 1)
        y = y.act("Gelu")
        y = y.project(28, 1)
        value, gate = y.split(14, 14)
        x = x + value * gate.Sigmoid()
    return x.ReduceMean([2], keepdims=0)


@network
def mamba(n: Net) -> NetTensor:
    """Gu and Dao 2024: an unrolled scan whose steps depend on the input."""
    length = 7
    width = 18
    states = 5
    x = n.input(1, length, width)
    x = x.linear(2 * width, bias=False)
    u, gate = x.split(width, width, axis=-1)
    u = u.mT
    taps = n.weight(width, 1, 4)
    bias = n.near(0, width)
    u = u.Conv(taps, bias, group=width, pads=[3, 0])
    u = u.act("Silu")
    u = u.mT
    step = u.linear(width)
    step = step.Softplus()
    into = u.linear(states, bias=False)
    out = u.linear(states, bias=False)
    rate = n.near(0, width, states, spread=0.3)
    rate = -rate.Exp()
    decay = step.Unsqueeze([-1]) * rate
    decay = decay.Exp()
    taken = step * u
    add = taken.Unsqueeze([-1]) * into.Unsqueeze([2])
    h = None
    rows = []
    for t in range(length):

        def at(v: NetTensor, t: int = t) -> NetTensor:
            return v.Slice([t], [t + 1], [1])

        here = at(add)
        keep = at(decay)
        if h is None:
            h = here
        else:
            h = h * keep + here
        read = at(out)
        y = h * read.Unsqueeze([2])
        rows.append(y.ReduceSum([3], keepdims=0))
    y = n.cat(*rows)
    y = y + u * n.near(1, width)
    y = y * gate.act("Silu")
    return y.linear(width, bias=False)


@network
def linear_recurrence(n: Net) -> NetTensor:
    """Prefix sums as a recurrence of constant decay: scaled, summed, scaled back."""
    x = n.input(2, 15, 20)
    decay = np.exp(-0.05 * np.arange(15))
    decay = decay[:, None]
    y: NetTensor = x.linear(20)
    y = y / decay
    y = y.CumSum(np.array(1))
    y = y * decay
    gate = x.linear(20)
    y = y * gate.Sigmoid()
    return y.linear(9, gain=0.3)


@network
def tcn(n: Net) -> NetTensor:
    """Bai et al. 2018: dilated causal convolutions with residuals."""
    x = n.input(2, 9, 35)
    x = x.project(16, 1)
    for dilation in (1, 2, 4):
        y = x
        for _ in range(2):
            pads = [2 * dilation, 0]
            y = y.conv_bias(16, 3, dilation=dilation, pads=pads)
        x = x + y * 0.5
        x = x.Relu()
    last = x.Slice([34], [35], [2])
    last = last.Squeeze([2])
    return last.linear(5)


@network
def wavenet(n: Net) -> NetTensor:
    """van den Oord et al. 2016: gated dilated convolutions, and a sum of all skip connections."""
    x = n.input(1, 1, 45)
    skips = []
    x = x.project(12, 1)
    for dilation in (1, 2, 4, 8):
        causal = {
            "dilation": dilation,
            "pads": [dilation, 0],
            "gain": 1.0,
        }
        y = x.conv_bias(12, 2, act="Tanh", **causal)
        gate = x.conv_bias(12, 2, act="Sigmoid", **causal)
        y = y * gate
        skips.append(y.project(20, 1))
        x = x + y.project(12, 1)
    x = n.add(*skips)
    x = x.Relu()
    x = x.conv_bias(20, 1)
    return x.project(16, 1)


@network
def qrnn(n: Net) -> NetTensor:
    """Bradbury et al. 2017: gates by causal convolutions, a recurrence without products."""
    x = n.input(1, 8, 10)
    causal = {"pads": [1, 0], "gain": 1.0}
    z = x.conv_bias(14, 2, act="Tanh", **causal)
    f = x.conv_bias(14, 2, act="Sigmoid", **causal)
    o = x.conv_bias(14, 2, act="Sigmoid", **causal)
    c = None
    rows = []
    for t in range(10):
        zt = z.Slice([t], [t + 1], [2])
        ft = f.Slice([t], [t + 1], [2])
        here = (1.0 - ft) * zt
        if c is None:
            c = here
        else:
            c = ft * c + here
        rows.append(c)
    return o * n.cat(*rows, axis=2)
