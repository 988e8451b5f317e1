"""LSTM, GRU and RNN against a step-by-step NumPy model."""

import numpy as np
import pytest

import tilewright as tw
from tests.graph.one_operator import agree, model_of

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, h, c, w, r, b, p):
    i, o, f, g = np.split(x @ w.T + h @ r.T + b.reshape(2, -1).sum(0), 4, -1)
    pi, po, pf = np.split(p, 3)
    c = sigmoid(f + pf * c) * c + sigmoid(i + pi * c) * np.tanh(g)
    return sigmoid(o + po * c) * np.tanh(c), c


def gru(x, h, w, r, b, inside):
    bw, br = np.split(b, 2)
    xz, xr, xh = np.split(x @ w.T + bw, 3, -1)
    rz, rr, rh = np.split(r, 3)
    bz, bq, bh = np.split(br, 3)
    z, q = sigmoid(xz + h @ rz.T + bz), sigmoid(xr + h @ rr.T + bq)
    inner = q * (h @ rh.T + bh) if inside else (q * h) @ rh.T + bh
    return (1 - z) * np.tanh(xh + inner) + z * h


def layer(kind, inputs, backwards, lengths, d, inside):
    x, w, r, b, _, h0, *rest = inputs
    h = h0[d].astype(np.float64)
    c = rest[0][d].astype(np.float64) if kind == "LSTM" else None
    out = np.zeros((x.shape[0], *h.shape))
    for n in range(x.shape[1]):
        count = x.shape[0] if lengths is None else int(lengths[n])
        for t in reversed(range(count)) if backwards else range(count):
            one = x[t, n]
            if kind == "LSTM":
                h[n], c[n] = lstm(one, h[n], c[n], w[d], r[d], b[d], rest[1][d])
            elif kind == "GRU":
                h[n] = gru(one, h[n], w[d], r[d], b[d], inside)
            else:
                h[n] = np.tanh(
                    one @ w[d].T + h[n] @ r[d].T + b[d].reshape(2, -1).sum(0)
                )
            out[t, n] = h[n]
    return [out, h] if c is None else [out, h, c]


def operands(kind, steps, batch, width, units, directions, lengths):
    rng = np.random.default_rng(units)

    def real(*shape):
        return (rng.standard_normal(shape) / 3).astype(np.float32)

    rows, d = GATES[kind] * units, directions
    found = [
        real(steps, batch, width),
        real(d, rows, width),
        real(d, rows, units),
        real(d, 2 * rows),
        lengths,
        real(d, batch, units),
    ]
    return (
        [*found, real(d, batch, units), real(d, 3 * units)] if kind == "LSTM" else found
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(
    "direction, batch, units, ragged, layout",
    [
        ("forward", 1, 5, False, 0),
        ("reverse", 6, 16, True, 0),
        ("bidirectional", 3, 20, True, 0),
        ("bidirectional", 4, 33, False, 1),
    ],
)
def test_every_direction(kind, direction, batch, units, ragged, layout):
    backwards = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[direction]
    steps = 4
    lengths = np.array([4, 2, 1, 3, 4, 1][:batch], np.int32) if ragged else None
    inputs = operands(kind, steps, batch, 7, units, len(backwards), lengths)
    for inside in (0, 1) if kind == "GRU" else (0,):
        parts = [
            layer(kind, inputs, b, lengths, d, inside) for d, b in enumerate(backwards)
        ]
        expected = [
            np.stack(p, 1 if n == 0 else 0).astype(np.float32)
            for n, p in enumerate(zip(*parts, strict=True))
        ]
        given = list(inputs)
        if layout:
            expected = [np.moveaxis(expected[0], 2, 0)] + [
                e.swapaxes(0, 1) for e in expected[1:]
            ]
            for n in (0, 5, 6)[: 3 if kind == "LSTM" else 2]:
                given[n] = np.ascontiguousarray(given[n].swapaxes(0, 1))
        agree(
            kind,
            given,
            known=(1, 2, 3, 7),
            outputs=len(expected),
            expected=expected,
            direction=direction,
            hidden_size=units,
            layout=layout,
            **({"linear_before_reset": inside} if kind == "GRU" else {}),
        )


def test_activations_with_parameters_and_clip():
    x, w, r, *_ = operands("RNN", 3, 2, 4, 6, 1, None)
    h, out = np.zeros((2, 6)), []
    for t in range(3):
        v = np.clip(x[t] @ w[0].T + h @ r[0].T, -0.3, 0.3)
        h = np.where(v < 0, 0.2 * v, v)
        out.append(h)
    expected = [np.stack(out)[:, None].astype(np.float32)]
    options = {"activations": ["LeakyRelu"], "activation_alpha": [0.2], "clip": 0.3}
    agree("RNN", [x, w, r], expected=expected, hidden_size=6, **options)


def test_threads_share_a_wide_step():
    inputs = operands("LSTM", 3, 5, 8, 256, 1, None)
    model = model_of("LSTM", inputs, known=(1, 2, 3, 7), outputs=3, hidden_size=256)
    given = [inputs[n] for n in (0, 5, 6)]
    one, two = (tw.compile(model, threads=n, cache=False)(*given) for n in (1, 2))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(
        one[0][:, 0], layer("LSTM", inputs, 0, None, 0, 0)[0], atol=1e-5
    )
