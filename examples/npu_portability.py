"""Six networks on five neural processors: one Lift program each, mapped by rules and search.

Machines have different operators, sizes, memories and number formats (`npu.MACHINES`); no program
knows of any of them. For each the derivation is found, the instructions run on the simulator, the
results compared with NumPy and with the derived bound on the error.

python examples/npu_portability.py [network] [machine]
python examples/npu_portability.py --figure FILE.svg
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright import lift
from tilewright.lang.lift import (
    At,
    Join,
    Map,
    Reduce,
    Slide2D,
    Split,
    Transpose,
    Tuple,
    Zip,
    add,
    exp,
    f32,
    fun,
    inf,
    let,
    mul,
    relu,
    sigmoid,
    sub,
    tanh,
)
from tilewright.lang.lift import max as maximum
from tilewright.report.portability import picture
from tilewright.targets import npu


def product(W, x):
    """A matrix times a vector."""
    return W | Map(lambda row: Zip(row, x) | Map(mul) | Reduce(add, 0.0)) | Join


def products(A, B):
    """A matrix times a matrix: each row times the columns."""
    return A | Map(lambda row: product(B | Transpose, row))


def plus(*vectors):
    total, *rest = vectors
    for v in rest:
        total = Zip(total, v) | Map(add)
    return total


def times(a, b):
    return Zip(a, b) | Map(mul)


def dense(m=160, n=160):
    @fun
    def layer(W: f32[m, n], b: f32[m], x: f32[n]):
        def neuron(ws, bn):
            return Zip(x, ws) | Map(mul) | Reduce(add, bn) | Map(relu)

        return Zip(W, b) | Map(neuron) | Join

    return layer


def conv_im2col(size=6, channels=8, kernels=16):
    """3 by 3: a matrix of windows times the matrix of kernels."""

    @fun
    def layer(K: f32[kernels, 9 * channels], x: f32[size, size, channels]):
        windows = x | Slide2D(3, 1) | Join | Map(lambda w: w | Join | Join)
        return products(windows, K | Transpose) | Split(size - 2)

    return layer


def conv_stencil(size=6, channels=8, kernels=16):
    """The same one: at each place a product of the kernels and the window, then ReLU."""

    @fun
    def layer(K: f32[kernels, 9 * channels], x: f32[size, size, channels]):
        return (
            x
            | Slide2D(3, 1)
            | Map(Map(lambda w: product(K, w | Join | Join) | Map(relu)))
        )

    return layer


def lstm(n=48):
    @fun
    def cell(
        W: f32[4, n, n], U: f32[4, n, n], b: f32[4, n], x: f32[n], h: f32[n], c: f32[n]
    ):
        def gate(i, f):
            return plus(product(W | At(i), x), product(U | At(i), h), b | At(i)) | Map(
                f
            )

        after = plus(times(gate(2, sigmoid), c), times(gate(0, sigmoid), gate(1, tanh)))
        return let(after, lambda c1: Tuple(times(gate(3, sigmoid), c1 | Map(tanh)), c1))

    return cell


def gru(n=48):
    @fun
    def cell(W: f32[3, n, n], U: f32[3, n, n], b: f32[3, n], x: f32[n], h: f32[n]):
        def gate(i, f, state):
            return plus(
                product(W | At(i), x), product(U | At(i), state), b | At(i)
            ) | Map(f)

        def mixed(z):
            fresh = let(
                times(gate(0, sigmoid, h), h), lambda reset: gate(2, tanh, reset)
            )
            return plus(times(z, h), times(z | Map(lambda v: sub(1.0, v)), fresh))

        return let(gate(1, sigmoid, h), mixed)

    return cell


def attention(length=12, width=32):
    @fun
    def head(Q: f32[length, width], K: f32[length, width], V: f32[length, width]):
        def weigh(scores):
            top = scores | Reduce(maximum, -inf) | At(0)
            return scores | Map(lambda v: sub(v, top)) | Map(exp)

        def share(weights):
            part = weights | Reduce(add, 0.0) | Map(lambda total: 1.0 / total) | At(0)
            return weights | Map(lambda v: mul(v, part))

        def row(q):
            scores = product(K, q) | Map(lambda s: s * (1 / width**0.5))
            return product(V | Transpose, let(let(scores, weigh), share))

        return Q | Map(row)

    return head


def _windows(x):
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), (0, 1)).transpose(
        0, 1, 3, 4, 2
    )


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _conv(K, x):
    return np.einsum("ijabc,kabc->ijk", _windows(x), K.reshape(-1, 3, 3, x.shape[2]))


def _lstm(W, U, b, x, h, c):
    i, g, f, o = W @ x + U @ h + b
    c1 = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(c1), c1


def _gru(W, U, b, x, h):
    r, z = _sigmoid(W[:2] @ x + U[:2] @ h + b[:2])
    return z * h + (1 - z) * np.tanh(W[2] @ x + U[2] @ (r * h) + b[2])


def _attention(Q, K, V):
    scores = np.exp(Q @ K.T / Q.shape[1] ** 0.5)
    return scores / scores.sum(1, keepdims=True) @ V


@dataclass(frozen=True)
class Network:
    program: object
    reference: Callable

    def inputs(self, seed=0):
        """Random arrays, scaled so that no gate saturates."""
        rng = np.random.default_rng(seed)
        shapes = [
            leaf.shape
            for t in lift.infer(self.program).params
            for leaf in lift.leaves(t)
        ]
        return [
            (rng.standard_normal(s) / max(s[-1], 1) ** 0.5).astype(np.float32)
            for s in shapes
        ]


NETWORKS = {
    "dense": Network(dense(), lambda W, b, x: np.maximum(W @ x + b, 0)),
    "conv_im2col": Network(conv_im2col(), _conv),
    "conv_stencil": Network(conv_stencil(), lambda K, x: np.maximum(_conv(K, x), 0)),
    "lstm": Network(lstm(), _lstm),
    "gru": Network(gru(), _gru),
    "attention": Network(attention(), _attention),
}


def row(name, machine, mapped=None):
    """One line of the table; the results are compared with NumPy in double precision."""
    network = NETWORKS[name]
    mapped = mapped or npu.map_onto(network.program, machine)
    inputs = network.inputs()
    expected = network.reference(*(x.astype(np.float64) for x in inputs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    got = npu.run(mapped.program, machine, inputs)
    error = limit = 0.0
    for want, have, (value, bound) in zip(
        expected, got, npu.bounds(mapped.program, machine, inputs), strict=True
    ):
        np.testing.assert_allclose(value, want, rtol=1e-9, atol=1e-12)
        assert (abs(have - want) <= bound + 1e-12).all()
        error, limit = max(error, abs(have - want).max()), max(limit, bound.max())
    timing = mapped.timing
    return (
        f"{name:<13} {machine.name:<7} {timing.cycles:>7} {timing.utilization:>6.1%} "
        f"{timing.energy / 1000:>7.0f} {error:>8.1e} {limit:>8.1e}  {mapped.summary}"
    )


def measured(name, machine):
    """A bar of the figure."""
    timing = npu.map_onto(NETWORKS[name].program, machine).timing
    return {
        "program": name,
        "machine": machine.name,
        "cycles": timing.cycles,
        "utilization": timing.utilization,
        "energy": timing.energy / 1000,
    }


def figure(path):
    """All networks on all machines, drawn."""
    bars = [measured(name, m) for name in NETWORKS for m in npu.MACHINES.values()]
    Path(path).write_text(picture(bars))


def main():
    if sys.argv[1:2] == ["--figure"]:
        figure(sys.argv[2])
        return
    names, machines = sys.argv[1:2] or NETWORKS, sys.argv[2:3] or npu.MACHINES
    head = f"{'network':<13} {'machine':<7} {'cycles':>7} {'used':>6} {'nJ':>7}"
    print(f"{head} {'error':>8} {'bound':>8}  operators")
    for name in names:
        for machine in map(npu.MACHINES.__getitem__, machines):
            mapped = npu.map_onto(NETWORKS[name].program, machine)
            print(row(name, machine, mapped))
            if len(sys.argv) == 3:
                print(*mapped.derivation.steps, sep="\n")


if __name__ == "__main__":
    main()
