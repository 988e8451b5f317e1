"""The warning for products of a type that the processor converts."""

import warnings

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.driver.options import Options
from tilewright.driver.steps import build
from tilewright.frontends.load import load

FLOAT, BFLOAT16 = 1, 16


def model(dtype, weights=None):
    """A model of x @ w, in the type of x."""
    info = helper.make_tensor_value_info
    w = np.ones((16, 16), np.float32)
    element = helper.tensor_dtype_to_np_dtype(weights or dtype)
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["w"], ["c"], to=dtype),
            helper.make_node("MatMul", ["x", "c"], ["y"], "layer"),
        ],
        "g",
        [info("x", dtype, (4, 16))],
        [info("y", dtype, (4, 16))],
        [numpy_helper.from_array(w.astype(element), "w")],
    )
    sets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def compiled(source, **options):
    """Code for a processor that need not be this one."""
    graph = load(source.SerializeToString())
    return build(graph, Options(cache=False, records=False, **options))


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
def test_products_that_are_converted_are_said(mcpu):
    with pytest.warns(tw.TilewrightWarning, match=r"1 product of bfloat16 \(layer\)"):
        compiled(model(BFLOAT16), mcpu=mcpu)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (model(BFLOAT16), {"mcpu": "znver4"}),  # has instructions
        (model(FLOAT), {"mcpu": "x86-64-v3"}),
        (model(FLOAT, weights=BFLOAT16), {"mcpu": "x86-64-v3"}),  # weights alone
        (model(FLOAT), {"mcpu": "x86-64-v3", "precision": "bfloat16"}),
    ],
)
def test_others_are_not(source, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(source, **options).kernels
