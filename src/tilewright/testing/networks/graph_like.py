"""Networks of points, graphs, tables and parts: gathers and scatters, routing, sampling."""

from __future__ import annotations

import numpy as np

from tilewright.testing.networks.builder import Net, NetTensor, network
from tilewright.testing.networks.transformer import attend


@network
def pointnet(n: Net) -> NetTensor:
    """Qi et al. 2017: a small network makes a transform of the points; the maximum over them."""
    x = n.input(2, 3, 37)
    y = x.conv(14, 1)
    y = y.conv(30, 1)
    y = y.ReduceMax([2], keepdims=0)
    turn = y.gemm(9)
    turn = turn.reshape(2, 3, 3)
    turn = turn + np.eye(3)
    x = x.mT @ turn
    x = x.mT
    x = x.conv(14, 1)
    x = x.conv(22, 1)
    x = x.conv(34, 1)
    x = x.ReduceMax([2], keepdims=0)
    x = x.gemm(6)
    return x.LogSoftmax(axis=-1)


@network
def gcn(n: Net) -> NetTensor:
    """Kipf and Welling 2017: messages along edges, gathered, weighted and summed by scattering."""
    nodes, edges = 20, 55
    x = n.input(nodes, 12)
    source = n.ids(edges, below=nodes)
    target = n.ids(edges, below=nodes)
    for out in (18, 7):
        y = x.linear(out)
        weights = n.uniform(0.2, 0.6, edges, 1)
        messages = y.Gather(source)
        messages = messages * weights
        rows = target.Unsqueeze([-1])
        zeros = np.zeros((nodes, out))
        sums = n("ScatterND", zeros, rows, messages, reduction="add")
        x = y + sums
        if out == 18:
            x = x.Relu()
    return x.LogSoftmax(axis=-1)


@network
def gat(n: Net) -> NetTensor:
    """Velickovic et al. 2018: attention weights along edges."""
    x = n.input(15, 10)
    edges = n.const(n.rng.random((15, 15)) < 0.3)
    for out in (14, 6):
        h = x.linear(out, bias=False)
        left = h.linear(1, bias=False)
        right = h.linear(1, bias=False)
        scores = left + right.mT
        scores = scores.act("LeakyRelu")
        scores = edges.Where(scores, -1e4)
        weights = scores.Softmax(axis=-1)
        x = weights @ h
        if out == 14:
            x = x.Elu()
    return x


@network
def siamese(n: Net) -> NetTensor:
    """Bromley et al. 1993: one network twice, and how far apart its results are."""
    w1 = n.weight(12, 1, 5, 5, gain=2.0)
    w2 = n.weight(20, 12, 3, 3, gain=2.0)
    w3 = n.weight(9, 180)
    ends = []
    for _ in range(2):
        x = n.input(1, 1, 19, 19)
        x = x.Conv(w1)
        x = x.Relu()
        x = x.max_pool(3, 2)
        pads = [1] * 4
        x = x.Conv(w2, pads=pads)
        x = x.Relu()
        x = x.max_pool(3, 2)
        x = x.Flatten()
        ends.append(x.Gemm(w3, transB=1))
    one, other = ends
    distance = one - other
    distance = distance.ReduceL2([1])
    dot = one * other
    dot = dot.ReduceSum([1])
    lengths = [end.ReduceL2([1]) for end in ends]
    cosine = dot / n("Mul", *lengths)
    return n.cat(distance, cosine)


@network
def wide_and_deep(n: Net) -> NetTensor:
    """Cheng et al. 2016: crossed features next to embeddings and a perceptron."""
    ids = n.ids(4, 3, below=20)
    numbers = n.input(4, 6)
    crossed = n.weight(20, 1, fan=1)
    wide = crossed.Gather(ids)
    wide = wide.ReduceSum([1], keepdims=0)
    table = n.weight(20, 8, fan=1)
    words = table.Gather(ids)
    words = words.reshape(4, 24)
    deep = n.cat(words, numbers)
    deep = deep.gemm(30, "Relu")
    deep = deep.gemm(18, "Relu")
    deep = deep.gemm(1)
    both = wide * 0.3 + deep
    return both.Sigmoid()


@network
def dlrm(n: Net) -> NetTensor:
    """Naumov et al. 2019: bags of embeddings, products of all pairs, the upper triangle."""
    dense = n.input(3, 13)
    dense = dense.gemm(20, "Relu")
    dense = dense.gemm(8, "Relu")
    rows = [dense.Unsqueeze([1])]
    for _ in range(3):
        table = n.weight(25, 8, fan=1)
        ids = n.ids(3, 4, below=25)
        bag = table.Gather(ids)
        rows.append(bag.ReduceMean([1]))
    x = n.cat(*rows)
    products = x @ x.mT
    products = products.reshape(3, 16)
    upper = [4 * i + j for i in range(4) for j in range(i)]
    products = products.Gather(upper, axis=1)
    x = n.cat(dense, products * 0.3)
    x = x.gemm(16, "Relu")
    x = x.gemm(1)
    return x.Sigmoid()


@network
def factorization_machine(n: Net) -> NetTensor:
    """Guo et al. 2017: half of the square of a sum less the sum of squares."""
    table = n.weight(40, 9, fan=8)
    ids = n.ids(3, 5, below=40)
    rows = table.Gather(ids)
    total = rows.ReduceSum([1], keepdims=0)
    total = total.Pow(2.0)
    squares = rows.ReduceSumSquare([1], keepdims=0)
    pairs = total - squares
    first = pairs.ReduceSum([1])
    first = first * 0.5
    deep = rows.Flatten()
    deep = deep.gemm(18, "Relu")
    deep = deep.gemm(1)
    both = first + deep
    return both.Sigmoid()


@network
def capsules(n: Net) -> NetTensor:
    """Sabour et al. 2017: predictions of parts for wholes, routed by agreement."""
    x = n.input(1, 1, 13, 13)
    x = x.conv_bias(12, 5, 2, pads=0)
    parts = x.reshape(1, 3, 4, 25)
    parts = parts.transpose(0, 1, 3, 2)
    parts = parts.reshape(75, 1, 1, 4)
    turns = n.weight(75, 3, 4, 6, gain=0.02, fan=4)
    votes = parts @ turns

    def squash(v: NetTensor) -> NetTensor:
        square = v.ReduceSumSquare([-1])
        more = square + 1.0
        root = (square + 1e-6).Sqrt()
        scale = square / (more * root)
        return v * scale

    logits = None
    whole = None
    even = np.full((75, 3, 1, 1), 1 / 3)
    for _ in range(3):
        if logits:
            shares = logits.Softmax(axis=1)
        else:
            shares = n.const(even)
        shared = shares * votes
        total = shared.ReduceSum([0])
        whole = squash(total)
        agreed = votes * whole
        agreed = agreed.ReduceSum([-1])
        if logits is None:
            logits = agreed
        else:
            logits = logits + agreed
    assert whole is not None
    return whole.ReduceL2([-1], keepdims=0)


@network
def spatial_transformer(n: Net) -> NetTensor:
    """Jaderberg et al. 2015: a small network computes a grid, at which the image is sampled."""
    x = n.input(1, 2, 15, 15)
    y = x.conv_bias(8, 5)
    y = y.max_pool(3, 2)
    y = y.conv(10)
    y = y.max_pool(3, 2)
    y = y.Flatten()
    y = y.gemm(14, "Relu")
    y = y.gemm(6)
    angles = y + [0.8, 0.1, 0.0, -0.1, 0.8, 0.0]
    angles = angles.reshape(1, 2, 3)
    grid = angles.AffineGrid([1, 2, 11, 11])
    x = x.GridSample(grid, mode="linear")
    return x.project(6)


@network
def perceiver(n: Net) -> NetTensor:
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
    mean = latent.ReduceMean([1], keepdims=0)
    return mean.linear(5)


@network
def neural_radiance_field(n: Net) -> list[NetTensor]:
    """Mildenhall et al. 2020: positions as sines, a skip, colors summed along rays."""
    x = n.input(6, 9, 3)
    parts = [x]
    for k in range(3):
        for wave in ("Sin", "Cos"):
            faster = x * 2.0**k
            parts.append(n(wave, faster))
    places = n.cat(*parts, axis=-1)
    h = places.linear(32, "Relu")
    h = h.linear(32, "Relu")
    h = n.cat(h, places, axis=-1)
    h = h.linear(32, "Relu")
    thick = h.linear(1)
    thick = thick.Relu()
    color = h.linear(3)
    color = color.Sigmoid()
    along = np.array(1)
    depth = thick.CumSum(along, exclusive=1)
    seen = (-depth).Exp()
    passed = (-thick).Exp()
    share = seen * (1.0 - passed)
    colors = share * color
    return [colors.ReduceSum([1], keepdims=0), share]


@network
def kalman_filter(n: Net) -> NetTensor:
    """Steps of a filter: small products, and a 2x2 inverse in explicit form."""
    state = n.input(1, 4)
    spread = n.const(np.eye(4))
    drift = np.eye(4, k=2)
    move = n.const(np.eye(4) + drift * 0.1)
    look = n.const(np.eye(2, 4))
    for _ in range(3):
        state = state @ move.mT
        spread = move @ spread @ move.mT
        spread = spread + 0.1 * np.eye(4)
        cross = spread @ look.mT
        inner = look @ cross
        inner = inner + 0.5 * np.eye(2)
        swapped = inner.Gather([1, 0])
        swapped = swapped.Gather([1, 0], axis=1)
        signs = np.array([[1.0, -1.0], [-1.0, 1.0]])
        adjugate = swapped * signs
        inverse = adjugate / inner.Det()
        gain = cross @ inverse
        seen = n.input(1, 2)
        error = seen - state @ look.mT
        state = state + error @ gain.mT
        rest = n.const(np.eye(4)) - gain @ look
        spread = rest @ spread
    return n.cat(state, spread.reshape(1, 16))
