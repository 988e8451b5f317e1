"""Small graphs that were once compiled wrongly or not at all; each says what was the matter."""

import numpy as np
import pytest
from onnx import parser

from tilewright.base import events
from tilewright.frontends.onnx.load import load
from tilewright.testing.differential import check

HEADER = '<ir_version: 9, opset_import: ["" : 21]>'

GRAPHS = {
    "a result without elements, made by no step": """
        g (float[1,33] x) => (float[0,33] y)
        { s = Constant<value_ints=[0]>() e = Constant<value_ints=[-2]>()
          a = Constant<value_ints=[0]>() t = Constant<value_ints=[2]>()
          y = Slice(x, s, e, a, t) }""",
    "one half of a split without elements": """
        g (float[3,4] x) => (float[3,4] y, float[3,0] z)
        { n = Constant<value_ints=[4, 0]>() y, z = Split<axis=1>(x, n) }""",
    "a checked index under a condition that reads at that index": """
        g (float[3] x, int64[3] i) => (float[3] y) { s = Selu(x) y = Gather<axis=0>(s, i) }""",
    "a map after a scan, which has no free dimension there": """
        g (float[3,64] x, float[64] c) => (float[3,64] y)
        { a = Constant<value_int=1>() s = CumSum(x, a) y = Max(s, c) }""",
    "a select between scalars and tensors is not a padding": """
        g (float a, float[17,31] x, bool[17,31] c) => (float[17] y)
        { n = Constant<value_ints=[1]>() w = Where(c, a, x) y = ReduceMean<keepdims=0>(w, n) }""",
    "a kernel whose result went into index maps that no longer read it": """
        g (float[4,5] x, float[5,6] w) => (float[4,6] y)
        { c = MatMul(x, w) k = Constant<value_int=9>() t = Trilu<upper=1>(c, k)
          o = Constant<value_float=1.5>() y = Add(t, o) }""",
    "columns of a product gathered at indices that are data": """
        g (float[6,5] x, int64[3] i, float[4,3] w) => (float[6,4] y)
        { c = Gather<axis=1>(x, i) t = Transpose<perm=[1,0]>(w) y = MatMul(c, t) }""",
    "a product reshaped where tiles overlap": """
        g (float[47,9] x, float[9,5] w) => (float[235] y)
        { k = Constant<value_ints=[235]>() c = MatMul(x, w) y = Reshape(c, k) }""",
    "a prepared constant is not a place for a result": """
        g (float[1,1,1] x) => (float[1,1,1] y)
        { k = Constant<value_int=-1>() a = Constant<value_ints=[0,2,1]>()
          t = Trilu<upper=0>(x, k) y = ReduceLogSumExp(t, a) }""",
    "an output beside another result of its shape that is stored channel-last": """
        g (float[1,4,5,4] x, float[3,4,1,1] w) => (float[1,3,5,2] y, float[1,3,5,2] z)
        { n = Constant<value_ints=[2, 2]>() c = Conv(x, w) y, t = Split<axis=3>(c, n)
          r = Relu(t) z = Exp(r) }""",
}


@pytest.mark.parametrize("what", GRAPHS)
def test_compiles_and_agrees(what):
    rng = np.random.default_rng(0)
    graph = load(parser.parse_model(HEADER + GRAPHS[what]).SerializeToString())
    makers = {
        "bool": lambda s: rng.random(s) < 0.5,
        "int64": lambda s: rng.integers(-3, 3, s),
        "float32": lambda s: rng.standard_normal(s).astype(np.float32),
        "float64": lambda s: rng.standard_normal(s),
    }
    inputs = {v.name: np.asarray(makers[str(v.dtype)](v.extents)) for v in graph.inputs}
    with events.record() as happened:
        assert not check(graph, inputs, threads=(1, 2))
    assert not [e.fields for e in happened if e.kind == "sketch-refused"]
