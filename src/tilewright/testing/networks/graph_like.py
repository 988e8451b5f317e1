"""Networks of points, graphs, tables and parts: gathers and scatters, routing, sampling."""

from __future__ import annotations

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.testing.networks.builder import Net, network
from tilewright.testing.networks.transformer import attend


@network
def pointnet(n: Net) -> Value:
    """Qi et al. 2017: a small network makes a transform of the points; the maximum over them."""
    x = n.input(2, 3, 37)
    y = n("ReduceMax", n.conv(n.conv(x, 14, 1), 30, 1), [2], keepdims=0)
    turn = n("Add", n.shape(n.gemm(y, 9), 2, 3, 3), n.const(np.eye(3, dtype="f")))
    x = n.order(n("MatMul", n.order(x, 0, 2, 1), turn), 0, 2, 1)
    x = n.conv(n.conv(n.conv(x, 14, 1), 22, 1), 34, 1)
    return n("LogSoftmax", n.gemm(n("ReduceMax", x, [2], keepdims=0), 6), axis=-1)


@network
def gcn(n: Net) -> Value:
    """Kipf and Welling 2017: messages along edges, gathered, weighted and summed by scattering."""
    nodes, edges = 20, 55
    x, source = n.input(nodes, 12), n.ids(edges, below=nodes)
    target = n.ids(edges, below=nodes)
    for out in (18, 7):
        y = n.linear(x, out)
        weights = n.const(n.rng.uniform(0.2, 0.6, (edges, 1)).astype("f"))
        messages = n("Mul", n("Gather", y, source), weights)
        rows = n("Unsqueeze", target, [-1])
        sums = n("ScatterND", n.const(np.zeros((nodes, out), "f")), rows, messages, reduction="add")
        x = n("Relu", n("Add", y, sums)) if out == 18 else n("Add", y, sums)
    return n("LogSoftmax", x, axis=-1)


@network
def gat(n: Net) -> Value:
    """Velickovic et al. 2018: weights by attention, where there is an edge."""
    x = n.input(15, 10)
    edges = n.const(n.rng.random((15, 15)) < 0.3)
    for out in (14, 6):
        h = n.linear(x, out, bias=False)
        left, right = n.linear(h, 1, bias=False), n.linear(h, 1, bias=False)
        scores = n.act(n("Add", left, n.order(right, 1, 0)), "LeakyRelu")
        scores = n("Where", edges, scores, -1e4)
        x = n.act(n("MatMul", n("Softmax", scores, axis=-1), h), "Elu" if out == 14 else "")
    return x


@network
def siamese(n: Net) -> Value:
    """Bromley et al. 1993: one network twice, and how far apart its results are."""
    w1, w2 = n.weight(12, 1, 5, 5, gain=2.0), n.weight(20, 12, 3, 3, gain=2.0)
    w3 = n.weight(9, 180)
    ends = []
    for _ in range(2):
        x = n.pool(n("Relu", n("Conv", n.input(1, 1, 19, 19), w1)), 3, 2)
        x = n.pool(n("Relu", n("Conv", x, w2, pads=[1] * 4)), 3, 2)
        ends.append(n("Gemm", n("Flatten", x), w3, transB=1))
    apart = n("ReduceL2", n("Sub", *ends), [1])
    dot = n("ReduceSum", n("Mul", *ends), [1])
    return n.cat(apart, n("Div", dot, n("Mul", *(n("ReduceL2", e, [1]) for e in ends))))


@network
def wide_and_deep(n: Net) -> Value:
    """Cheng et al. 2016: crossed features beside embeddings and a perceptron."""
    ids, numbers = n.ids(4, 3, below=20), n.input(4, 6)
    wide = n("ReduceSum", n("Gather", n.weight(20, 1, fan=1), ids), [1], keepdims=0)
    deep = n.cat(n.shape(n("Gather", n.weight(20, 8, fan=1), ids), 4, 24), numbers)
    deep = n.gemm(n.gemm(n.gemm(deep, 30, "Relu"), 18, "Relu"), 1)
    return n("Sigmoid", n("Add", n("Mul", wide, 0.3), deep))


@network
def dlrm(n: Net) -> Value:
    """Naumov et al. 2019: bags of embeddings, products of all pairs, the upper triangle."""
    dense = n.gemm(n.gemm(n.input(3, 13), 20, "Relu"), 8, "Relu")
    rows = [n("Unsqueeze", dense, [1])]
    for _ in range(3):
        bag = n("Gather", n.weight(25, 8, fan=1), n.ids(3, 4, below=25))
        rows.append(n("ReduceMean", bag, [1]))
    x = n.cat(*rows)
    products = n.shape(n("MatMul", x, n.order(x, 0, 2, 1)), 3, 16)
    upper = [4 * i + j for i in range(4) for j in range(i)]
    x = n.cat(dense, n("Mul", n("Gather", products, n.const(upper), axis=1), 0.3))
    return n("Sigmoid", n.gemm(n.gemm(x, 16, "Relu"), 1))


@network
def factorization_machine(n: Net) -> Value:
    """Guo et al. 2017: half of the square of a sum less the sum of squares."""
    table = n("Gather", n.weight(40, 9, fan=8), n.ids(3, 5, below=40))
    total = n("Pow", n("ReduceSum", table, [1], keepdims=0), 2.0)
    pairs = n("Sub", total, n("ReduceSumSquare", table, [1], keepdims=0))
    first = n("Mul", n("ReduceSum", pairs, [1]), 0.5)
    return n("Sigmoid", n("Add", first, n.gemm(n.gemm(n("Flatten", table), 18, "Relu"), 1)))


@network
def capsules(n: Net) -> Value:
    """Sabour et al. 2017: predictions of parts for wholes, routed by agreement."""
    x = n.conv(n.input(1, 1, 13, 13), 12, 5, 2, norm=False, pads=[0] * 4)
    parts = n.shape(n.order(n.shape(x, 1, 3, 4, 25), 0, 1, 3, 2), 75, 1, 1, 4)
    votes = n("MatMul", parts, n.weight(75, 3, 4, 6, gain=0.02, fan=4))

    def squash(v: Value) -> Value:
        square = n("ReduceSumSquare", v, [-1])
        scale = n("Div", square, n("Mul", n("Add", square, 1.0), n("Sqrt", n("Add", square, 1e-6))))
        return n("Mul", v, scale)

    logits, whole = None, None
    for _ in range(3):
        shares = (
            n("Softmax", logits, axis=1) if logits else n.const(np.full((75, 3, 1, 1), 1 / 3, "f"))
        )
        whole = squash(n("ReduceSum", n("Mul", shares, votes), [0]))
        agreed = n("ReduceSum", n("Mul", votes, whole), [-1])
        logits = agreed if logits is None else n("Add", logits, agreed)
    assert whole is not None
    return n("ReduceL2", whole, [-1], keepdims=0)


@network
def spatial_transformer(n: Net) -> Value:
    """Jaderberg et al. 2015: a grid that a small network makes, and what lies there."""
    x = n.input(1, 2, 15, 15)
    y = n("Flatten", n.pool(n.conv(n.pool(n.conv(x, 8, 5, norm=False), 3, 2), 10), 3, 2))
    angles = n("Add", n.gemm(n.gemm(y, 14, "Relu"), 6), n.const([0.8, 0.1, 0.0, -0.1, 0.8, 0.0]))
    grid = n("AffineGrid", n.shape(angles, 1, 2, 3), [1, 2, 11, 11])
    return n.conv(n("GridSample", x, grid, mode="linear"), 6, norm=False, act="")


@network
def perceiver(n: Net) -> Value:
    """Jaegle et al. 2021: few latent vectors attend to many inputs."""
    data, latent = n.input(1, 60, 9), n.const(n.rng.standard_normal((1, 7, 20)).astype("f"))
    keys, values = n.linear(data, 20), n.linear(data, 20)
    for _ in range(2):
        x = attend(n, n.linear(n.layer_norm(latent), 20), keys, values)
        latent = n("Add", latent, n.linear(n.linear(n.layer_norm(x), 40, "Gelu"), 20))
    return n.linear(n("ReduceMean", latent, [1], keepdims=0), 5)


@network
def neural_radiance_field(n: Net) -> list[Value]:
    """Mildenhall et al. 2020: positions as sines, a skip, colors summed along rays."""
    x = n.input(6, 9, 3)
    waves = [
        f for k in range(3) for f in (n("Sin", n("Mul", x, 2.0**k)), n("Cos", n("Mul", x, 2.0**k)))
    ]
    places = n.cat(x, *waves, axis=-1)
    h = n.linear(n.linear(places, 32, "Relu"), 32, "Relu")
    h = n.linear(n.cat(h, places, axis=-1), 32, "Relu")
    thick, color = n("Relu", n.linear(h, 1)), n("Sigmoid", n.linear(h, 3))
    depth = n("CumSum", thick, np.array(1), exclusive=1)
    share = n("Mul", n("Exp", n("Neg", depth)), n("Sub", 1.0, n("Exp", n("Neg", thick))))
    return [n("ReduceSum", n("Mul", share, color), [1], keepdims=0), share]


@network
def kalman_filter(n: Net) -> Value:
    """Steps of a filter: small products, an inverse of two by two written out."""
    state, spread = n.input(1, 4), n.const(np.eye(4, dtype="f"))
    move = n.const((np.eye(4) + np.eye(4, k=2) * 0.1).astype("f"))
    look = n.const(np.eye(2, 4, dtype="f"))
    for _ in range(3):
        state = n("MatMul", state, n.order(move, 1, 0))
        spread = n("MatMul", n("MatMul", move, spread), n.order(move, 1, 0))
        spread = n("Add", spread, n.const(0.1 * np.eye(4, dtype="f")))
        cross = n("MatMul", spread, n.order(look, 1, 0))
        inner = n("Add", n("MatMul", look, cross), n.const(0.5 * np.eye(2, dtype="f")))
        swapped = n("Gather", n("Gather", inner, n.const([1, 0])), n.const([1, 0]), axis=1)
        signs = n.const(np.array([[1, -1], [-1, 1]], "f"))
        inverse = n("Div", n("Mul", swapped, signs), n("Det", inner))
        gain = n("MatMul", cross, inverse)
        error = n("Sub", n.input(1, 2), n("MatMul", state, n.order(look, 1, 0)))
        state = n("Add", state, n("MatMul", error, n.order(gain, 1, 0)))
        rest = n("Sub", n.const(np.eye(4, dtype="f")), n("MatMul", gain, look))
        spread = n("MatMul", rest, spread)
    return n.cat(state, n.shape(spread, 1, 16))
