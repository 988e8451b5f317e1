"""ONNX's Backend API, as ONNX's own test runner and tools call it."""

import unittest

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import TensorProto, helper

from tests.cli.conftest import perceptron_model
from tests.conformance import node_cases
from tilewright import onnx_backend
from tilewright.onnx_backend import TilewrightBackend


def test_devices():
    assert onnx_backend.supports_device("CPU") and onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA")
    assert not onnx_backend.supports_device("abacus")


def test_prepare_and_run_in_order_by_name_and_alone():
    model, x = perceptron_model(), np.ones((2, 8), np.float32)
    rep = onnx_backend.prepare(model, "CPU", threads=1)
    [first], [second], [third] = rep.run([x]), rep.run({"x": x}), rep.run(x)
    assert first.shape == (2, 4)
    assert (first == second).all() and (first == third).all()
    [again] = onnx_backend.run_model(model, [x])
    assert np.allclose(first, again)


def test_run_node():
    node = helper.make_node("Add", ["a", "b"], ["c"])
    a, b = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
    for inputs in ([a, b], {"a": a, "b": b}):
        [c] = onnx_backend.run_node(node, inputs)
        assert (c == a + b).all()
    [c] = TilewrightBackend.run_node(
        helper.make_node("Neg", ["a"], ["c"]), a, opset_version=13
    )
    assert (c == -a).all()


def test_the_same_node_means_what_its_opset_says():
    node = helper.make_node("Squeeze", ["a"], ["b"], axes=[0])
    [b] = onnx_backend.run_node(node, [np.ones((1, 2), np.float32)], opset_version=11)
    assert b.shape == (2,)


@pytest.mark.parametrize(
    "backend", [TilewrightBackend, onnx_backend], ids=["class", "module"]
)
def test_onnx_runner_accepts_us(backend):
    node_cases.keep()
    runner = onnx.backend.test.BackendTest(backend, __name__)
    runner.include(r"^test_(relu|add|gemm_default_no_bias|single_relu_model)_cpu$")
    outcome = unittest.TestResult()
    runner.test_suite.run(outcome)
    assert not outcome.failures and not outcome.errors, (
        outcome.failures or outcome.errors
    )
    ran = outcome.testsRun - len(outcome.skipped)
    assert ran == 4


def test_a_broken_model_is_an_error_of_ours():
    node = helper.make_node("Relu", ["nowhere"], ["y"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([node], "g", [], [y])
    from tilewright import TilewrightError

    with pytest.raises(TilewrightError, match="nowhere"):
        onnx_backend.prepare(helper.make_model(graph))
