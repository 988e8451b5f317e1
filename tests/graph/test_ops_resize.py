"""Resize in every mode and coordinate transformation, against onnx.reference."""

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tests.graph.one_operator import agree
from tilewright.frontends.load import load
from tilewright.graph.interp import evaluate
from tilewright.graph.ops.resample import as_line

RNG = np.random.default_rng(7)
EMPTY = np.zeros(0, np.float32)


def resize(x, *, scales=None, sizes=None, roi=EMPTY, **attributes):
    scales = None if scales is None else np.array(scales, np.float32)
    sizes = None if sizes is None else np.array(sizes, np.int64)
    inputs = [x, roi, scales] if sizes is None else [x, roi, None, sizes]
    agree("Resize", inputs, known=(1, 2, 3), opset=19, atol=5e-6, **attributes)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "transformation", ["align_corners", "asymmetric", "half_pixel"]
)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scale", [0.4, 0.5, 2.0, 2.3])
def test_modes(mode, transformation, scale):
    x = RNG.standard_normal((1, 2, 5, 7), dtype=np.float32)
    resize(
        x,
        scales=[1, 1, scale, 1.5],
        mode=mode,
        coordinate_transformation_mode=transformation,
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
)
@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "int8", "uint8", "int64", "float64"]
)
def test_nearest_copies_any_dtype(rounding, dtype):
    x = RNG.integers(0, 100, (1, 1, 4, 3)).astype(dtype)
    resize(x, scales=[1, 1, 2.5, 0.7], mode="nearest", nearest_mode=rounding)


@pytest.mark.parametrize(
    "transformation", ["align_corners", "asymmetric", "half_pixel"]
)
@pytest.mark.parametrize(("before", "after"), [(3, 5), (36, 24), (9, 3), (15, 18)])
def test_a_scale_is_a_rounded_ratio(transformation, before, after):
    """ONNX Runtime computes in float32, where 3 * (5 / 3) is 5, and 3 / (3 / 9) is 9."""
    how = {
        "coordinate_transformation_mode": transformation,
        "nearest_mode": "floor",
    }
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **how)
    scales = np.array([after / before], np.float32)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, [before])],
        [helper.make_tensor_value_info("y", 1, ["n"])],
        [numpy_helper.from_array(scales, "scales")],
    )
    opset = [helper.make_opsetid("", 19)]
    source = helper.make_model(graph, opset_imports=opset, ir_version=9)
    x = np.arange(before, dtype=np.float32)
    session = onnxruntime.InferenceSession(source.SerializeToString())
    (want,) = session.run(None, {"x": x})
    (found,) = evaluate(load(source), {"x": x}).values()
    assert len(want) == after
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [0, 1])
def test_antialias_and_outside(mode, exclude):
    x = RNG.standard_normal((1, 1, 23, 4), dtype=np.float32)
    resize(x, sizes=[1, 1, 3, 5], mode=mode, antialias=1, exclude_outside=exclude)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_sizes_of_some_axes(policy):
    x = RNG.standard_normal((2, 6, 4), dtype=np.float32)
    resize(x, sizes=[3, 7], axes=[2, 1], mode="linear", keep_aspect_ratio_policy=policy)


def test_crop_reads_outside():
    x = RNG.standard_normal((1, 1, 4, 4), dtype=np.float32)
    roi = np.array([0, 0, -0.2, 0.1, 1, 1, 0.8, 1.4], np.float32)
    resize(
        x,
        sizes=[1, 1, 5, 6],
        roi=roi,
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=9.5,
    )


def test_integers_round():
    x = RNG.integers(0, 255, (1, 1, 4, 4)).astype(np.uint8)
    resize(x, scales=[1, 1, 3, 3], mode="cubic")


def test_lines():
    o = np.arange(40)
    for a, b, d in ((1, 0, 1), (1, -3, 2), (5, 1, 3), (7, 2, 16)):
        a2, b2, d2 = as_line((a * o + b) // d)
        assert ((a2 * o + b2) // d2 == (a * o + b) // d).all()
    assert as_line(np.array([0, 5, 5, 6, 40])) is None
