"""ONNX's node tests on an OpenCL device.

A few here; all of them by `python -m tests.conformance.on_opencl`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance import node_cases
from tests.conformance.on_opencl import DEVICE, FAILED, GOAL, judged
from tests.targets.opencl.running import pocl
from tilewright.frontends.onnx.conformance import cases
from tilewright.runtime import devices

SAMPLE = (
    "test_add_uint8 test_argmax_keepdims_random test_conv_with_strides_padding test_erf "
    "test_gather_elements_0 test_gru_batchwise test_layer_normalization_2d_axis1 "
    "test_mod_mixed_sign_float16 test_scatter_elements_with_axis test_tensorscatter_3d test_top_k"
).split()


@pytest.fixture(autouse=True)
def _on_pocl(monkeypatch):
    pocl()
    monkeypatch.setenv("TILEWRIGHT_OPENCL_DEVICE", "Portable")
    devices.find.cache_clear()
    node_cases.keep()
    yield
    devices.find.cache_clear()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_node_test_runs_on_the_device_and_passes(name):
    (case,) = (c for c in cases("node") if c.name == name)
    assert judged(case) == (DEVICE, "")


@pytest.mark.slow
def test_as_many_node_tests_pass_as_are_asked_for():
    counts = Counter(judged(case)[0] for case in cases("node"))
    assert counts.total() - counts[FAILED] >= GOAL
