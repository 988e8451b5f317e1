"""Every expansion of every kind of operator, executed on data beside the operator's own meaning."""

from typing import Any

import numpy as np
import onnx.parser
import pytest

from tilewright.dataflow import schedule
from tilewright.dataflow.lower import OperatorNetwork, network, program
from tilewright.frontends.onnx import load
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph

RNG = np.random.default_rng(0)

OPERATORS = {
    "element-wise": "(float[3,4] a, float[4] b) => (float[3,4] y) { y = Mul(a, b) }",
    "reduction": "(float[3,4,5] a) => (float[3,5] y) { n = Constant<value_ints = [1]>()"
    " y = ReduceSum<keepdims = 0>(a, n) }",
    "index": "(float[3,4] a) => (int64[3,1] y) { y = ArgMax<axis = 1>(a) }",
    "gemm": "(float[5,6] a, float[4,5] b, float[4] c) => (float[6,4] y)"
    " { y = Gemm<transA = 1, transB = 1, alpha = 0.5>(a, b, c) }",
    "einsum": "(float[2,3,4] a, float[4,5,2] b) => (float[2,5,3] y)"
    ' { y = Einsum<equation = "ijk,kli->ilj">(a, b) }',
    "conv-batch": "(float[2,3,6,6] x, float[4,3,3,3] w, float[4] b) => (float[2,4,6,6] y)"
    " { y = Conv<pads = [1, 1, 1, 1]>(x, w, b) }",
    "conv-1d": "(float[1,3,12] x, float[4,3,3] w) => (float[1,4,5] y)"
    " { y = Conv<strides = [2]>(x, w) }",
    "conv-groups": "(float[1,4,6,6] x, float[6,2,3,3] w) => (float[1,6,4,4] y)"
    " { y = Conv<group = 2>(x, w) }",
    "conv-depthwise": "(float[1,4,6,6] x, float[4,1,3,3] w) => (float[1,4,4,4] y)"
    " { y = Conv<group = 4>(x, w) }",
    "conv-transposed": "(float[1,3,4,4] x, float[3,2,3,3] w) => (float[1,2,6,6] y)"
    " { y = ConvTranspose(x, w) }",
    "max-pool": "(float[1,3,6,6] x) => (float[1,3,3,3] y)"
    " { y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 0, 0]>(x) }",
    "average-pool": "(float[1,3,6,6] x) => (float[1,3,6,6] y)"
    " { y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x) }",
    "global-pool": "(float[2,3,4,4] x) => (float[2,3,1,1] y) { y = GlobalAveragePool(x) }",
    "softmax": "(float[3,4,5] x) => (float[3,4,5] y) { y = Softmax<axis = 1>(x) }",
    "log-softmax": "(float[3,4] x) => (float[3,4] y) { y = LogSoftmax(x) }",
    "batch-norm": "(float[2,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v)"
    " => (float[2,3,4] y) { u = Mul(v, v) y = BatchNormalization(x, s, b, m, u) }",
    "instance-norm": "(float[2,3,4] x, float[3] s, float[3] b) => (float[2,3,4] y)"
    " { y = InstanceNormalization(x, s, b) }",
    "group-norm": "(float[2,4,3] x, float[4] s, float[4] b) => (float[2,4,3] y)"
    " { y = GroupNormalization<num_groups = 2>(x, s, b) }",
    "layer-norm": "(float[3,4] x, float[4] s, float[4] b) => (float[3,4] y)"
    " { y = LayerNormalization(x, s, b) }",
    "rms-norm": "(float[3,4] x, float[4] s) => (float[3,4] y) { y = RMSNormalization(x, s) }",
    "attention": "(float[1,2,4,3] q, float[1,2,5,3] k, float[1,2,5,6] v) => (float[1,2,4,6] y)"
    " { y = Attention<is_causal = 1>(q, k, v) }",
    "cholesky": "(float[2,5,5] a) => (float[2,5,5] y) { y = tilewright.Cholesky(a) }",
    "lu": "(float[2,5,5] a) => (float[2,5,5] y) { y = tilewright.LU(a) }",
    "solve": "(float[2,5,5] a, float[2,5,3] b) => (float[2,5,3] y)"
    " { y = tilewright.TriangularSolve(a, b) }",
    "scan": "(float[3,4] a) => (float[3,4] y) { n = Constant<value_int = 1>() y = CumSum(a, n) }",
    "recurrent": "(float[3,2,4] x, float[1,12,4] w, float[1,12,3] r) => (float[3,1,2,3] y)"
    " { y = LSTM<hidden_size = 3>(x, w, r) }",
    "sort": "(float[3,4] a) => (float[3,2] y, int64[3,2] i)"
    " { n = Constant<value_ints = [2]>() y, i = TopK(a, n) }",
}


def graph_of(body: str) -> Graph:
    """One operator, its operands all inputs."""
    domains = '["" : 23, "tilewright" : 1]'
    return load(
        onnx.parser.parse_model(f"<ir_version: 11, opset_import: {domains}> g {body}")
    )


def operand(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Random numbers; square matrices are positive definite."""
    a = RNG.standard_normal(shape).astype(np.float32)
    if len(shape) == 3 and shape[-1] == shape[-2]:
        return a @ a.swapaxes(1, 2) + 3 * np.eye(shape[-1], dtype=np.float32)
    return a


def every_choice(net: OperatorNetwork) -> list[dict[str, str]]:
    """Each name of an expansion wherever it exists; the first expansions elsewhere."""
    names = dict.fromkeys(n for known in net.choices.values() for n in known)
    return [{}] + [
        {s: n for s, known in net.choices.items() if n in known} for n in names
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_expansion_computes_what_the_operator_does(name: str) -> None:
    graph = graph_of(OPERATORS[name])
    given = {v.name: operand(v.extents) for v in graph.inputs}
    expected = evaluate(graph, given)
    net = network(graph)
    for choice in every_choice(net):
        found = program(net, choice)
        for output, array in found.run(given).items():
            np.testing.assert_allclose(array, expected[output], rtol=1e-3, atol=1e-4)
        longest = max(found.graph.work)
        assert schedule(found.graph, 4).makespan >= max(
            longest, found.graph.total_work / 4
        )


def families(name: str) -> set[str]:
    return set(network(graph_of(OPERATORS[name])).families.values())


def test_families_are_told_by_what_is_computed() -> None:
    assert families("gemm") == families("einsum") == {"matmul"}
    assert families("conv-1d") == families("conv-groups") == {"conv"}
    assert families("conv-depthwise") == families("conv-batch") == {"conv"}
    assert families("scan") == {"scan"} and families("sort") == {"kernel"}
    assert families("max-pool") == families("index") == {"reduce"}
