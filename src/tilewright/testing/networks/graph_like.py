"""Networks of points, graphs, tables and parts: gathers and scatters, routing, sampling."""

from __future__ import annotations

import numpy as np

from tilewright.testing.networks.builder import Net, Tensor, network
from tilewright.testing.networks.transformer import attend


@network
def pointnet(n: Net) -> Tensor:
    """Qi et al. 2017: a small network makes a transform of the points; the maximum over them."""
    x = n.input(2, 3, 37)
    y = x.conv(14, 1)
    y = y.conv(30, 1).ReduceMax([2], keepdims=0)
    turn = y.gemm(9).reshape(2, 3, 3) + np.eye(3)
    x = (x.transpose(0, 2, 1) @ turn).transpose(0, 2, 1)
    x = x.conv(14, 1)
    x = x.conv(22, 1)
    x = x.conv(34, 1)
    return x.ReduceMax([2], keepdims=0).gemm(6).LogSoftmax(axis=-1)


@network
def gcn(n: Net) -> Tensor:
    """Kipf and Welling 2017: messages along edges, gathered, weighted and summed by scattering."""
    nodes, edges = 20, 55
    x = n.input(nodes, 12)
    source = n.ids(edges, below=nodes)
    target = n.ids(edges, below=nodes)
    for out in (18, 7):
        y = x.linear(out)
        weights = n.uniform(0.2, 0.6, edges, 1)
        messages = y.Gather(source) * weights
        rows = target.Unsqueeze([-1])
        zeros = n.const(np.zeros((nodes, out)))
        sums = zeros.ScatterND(rows, messages, reduction="add")
        x = (y + sums).Relu() if out == 18 else y + sums
    return x.LogSoftmax(axis=-1)


@network
def gat(n: Net) -> Tensor:
    """Velickovic et al. 2018: weights by attention, where there is an edge."""
    x = n.input(15, 10)
    edges = n.const(n.rng.random((15, 15)) < 0.3)
    for out in (14, 6):
        h = x.linear(out, bias=False)
        left = h.linear(1, bias=False)
        right = h.linear(1, bias=False)
        scores = (left + right.transpose(1, 0)).act("LeakyRelu")
        scores = edges.Where(scores, -1e4)
        x = (scores.Softmax(axis=-1) @ h).act("Elu" if out == 14 else "")
    return x


@network
def siamese(n: Net) -> Tensor:
    """Bromley et al. 1993: one network twice, and how far apart its results are."""
    w1 = n.weight(12, 1, 5, 5, gain=2.0)
    w2 = n.weight(20, 12, 3, 3, gain=2.0)
    w3 = n.weight(9, 180)
    ends = []
    for _ in range(2):
        x = n.input(1, 1, 19, 19).Conv(w1).Relu().max_pool(3, 2)
        x = x.Conv(w2, pads=[1] * 4).Relu().max_pool(3, 2)
        ends.append(x.Flatten().Gemm(w3, transB=1))
    distance = n("Sub", *ends).ReduceL2([1])
    dot = n("Mul", *ends).ReduceSum([1])
    return n.cat(distance, dot / n("Mul", *(e.ReduceL2([1]) for e in ends)))


@network
def wide_and_deep(n: Net) -> Tensor:
    """Cheng et al. 2016: crossed features beside embeddings and a perceptron."""
    ids = n.ids(4, 3, below=20)
    numbers = n.input(4, 6)
    wide = n.weight(20, 1, fan=1).Gather(ids).ReduceSum([1], keepdims=0)
    deep = n.cat(n.weight(20, 8, fan=1).Gather(ids).reshape(4, 24), numbers)
    deep = deep.gemm(30, "Relu")
    deep = deep.gemm(18, "Relu")
    deep = deep.gemm(1)
    return (wide * 0.3 + deep).Sigmoid()


@network
def dlrm(n: Net) -> Tensor:
    """Naumov et al. 2019: bags of embeddings, products of all pairs, the upper triangle."""
    dense = n.input(3, 13)
    dense = dense.gemm(20, "Relu")
    dense = dense.gemm(8, "Relu")
    rows = [dense.Unsqueeze([1])]
    for _ in range(3):
        bag = n.weight(25, 8, fan=1).Gather(n.ids(3, 4, below=25))
        rows.append(bag.ReduceMean([1]))
    x = n.cat(*rows)
    products = (x @ x.transpose(0, 2, 1)).reshape(3, 16)
    upper = [4 * i + j for i in range(4) for j in range(i)]
    x = n.cat(dense, products.Gather(upper, axis=1) * 0.3)
    x = x.gemm(16, "Relu")
    return x.gemm(1).Sigmoid()


@network
def factorization_machine(n: Net) -> Tensor:
    """Guo et al. 2017: half of the square of a sum less the sum of squares."""
    table = n.weight(40, 9, fan=8).Gather(n.ids(3, 5, below=40))
    total = table.ReduceSum([1], keepdims=0).Pow(2.0)
    pairs = total - table.ReduceSumSquare([1], keepdims=0)
    first = pairs.ReduceSum([1]) * 0.5
    deep = table.Flatten().gemm(18, "Relu")
    return (first + deep.gemm(1)).Sigmoid()


@network
def capsules(n: Net) -> Tensor:
    """Sabour et al. 2017: predictions of parts for wholes, routed by agreement."""
    x = n.input(1, 1, 13, 13)
    x = x.conv_bias(12, 5, 2, pads=0)
    parts = x.reshape(1, 3, 4, 25)
    parts = parts.transpose(0, 1, 3, 2)
    parts = parts.reshape(75, 1, 1, 4)
    votes = parts @ n.weight(75, 3, 4, 6, gain=0.02, fan=4)

    def squash(v: Tensor) -> Tensor:
        square = v.ReduceSumSquare([-1])
        scale = square / ((square + 1.0) * (square + 1e-6).Sqrt())
        return v * scale

    logits, whole = None, None
    for _ in range(3):
        even = np.full((75, 3, 1, 1), 1 / 3)
        shares = logits.Softmax(axis=1) if logits else n.const(even)
        whole = squash((shares * votes).ReduceSum([0]))
        agreed = (votes * whole).ReduceSum([-1])
        logits = agreed if logits is None else logits + agreed
    assert whole is not None
    return whole.ReduceL2([-1], keepdims=0)


@network
def spatial_transformer(n: Net) -> Tensor:
    """Jaderberg et al. 2015: a grid that a small network makes, and what lies there."""
    x = n.input(1, 2, 15, 15)
    y = x.conv_bias(8, 5)
    y = y.max_pool(3, 2)
    y = y.conv(10)
    y = y.max_pool(3, 2).Flatten()
    angles = y.gemm(14, "Relu").gemm(6) + [0.8, 0.1, 0.0, -0.1, 0.8, 0.0]
    grid = angles.reshape(1, 2, 3).AffineGrid([1, 2, 11, 11])
    return x.GridSample(grid, mode="linear").project(6)


@network
def perceiver(n: Net) -> Tensor:
    """Jaegle et al. 2021: few latent vectors attend to many inputs."""
    data = n.input(1, 60, 9)
    latent = n.near(0, 1, 7, 20, spread=1)
    keys = data.linear(20)
    values = data.linear(20)
    for _ in range(2):
        x = latent.layer_norm()
        x = x.linear(20)
        x = attend(x, keys, values)
        x = x.layer_norm()
        x = x.linear(40, "Gelu")
        latent = latent + x.linear(20)
    return latent.ReduceMean([1], keepdims=0).linear(5)


@network
def neural_radiance_field(n: Net) -> list[Tensor]:
    """Mildenhall et al. 2020: positions as sines, a skip, colors summed along rays."""
    x = n.input(6, 9, 3)
    parts = [x]
    for k in range(3):
        parts.append((x * 2.0**k).Sin())
        parts.append((x * 2.0**k).Cos())
    places = n.cat(*parts, axis=-1)
    h = places.linear(32, "Relu")
    h = h.linear(32, "Relu")
    h = n.cat(h, places, axis=-1)
    h = h.linear(32, "Relu")
    thick = h.linear(1).Relu()
    color = h.linear(3).Sigmoid()
    depth = thick.CumSum(np.array(1), exclusive=1)
    share = (-depth).Exp() * (1.0 - (-thick).Exp())
    return [(share * color).ReduceSum([1], keepdims=0), share]


@network
def kalman_filter(n: Net) -> Tensor:
    """Steps of a filter: small products, an inverse of two by two written out."""
    state = n.input(1, 4)
    spread = n.const(np.eye(4))
    move = n.const(np.eye(4) + np.eye(4, k=2) * 0.1)
    look = n.const(np.eye(2, 4))
    for _ in range(3):
        state = state @ move.transpose(1, 0)
        spread = move @ spread @ move.transpose(1, 0)
        spread = spread + 0.1 * np.eye(4)
        cross = spread @ look.transpose(1, 0)
        inner = look @ cross + 0.5 * np.eye(2)
        swapped = inner.Gather([1, 0]).Gather([1, 0], axis=1)
        signs = n.const(np.array([[1.0, -1.0], [-1.0, 1.0]]))
        inverse = swapped * signs / inner.Det()
        gain = cross @ inverse
        error = n.input(1, 2) - state @ look.transpose(1, 0)
        state = state + error @ gain.transpose(1, 0)
        rest = n.const(np.eye(4)) - gain @ look
        spread = rest @ spread
    return n.cat(state, spread.reshape(1, 16))
