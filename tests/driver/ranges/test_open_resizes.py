"""Resizes by a ratio that differs from size to size, in code for a range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import tilewright as tw
from tilewright.driver.ranges.open_resizes import with_computed_positions
from tilewright.frontends.load import load
from tilewright.graph.nodes import Graph
from tilewright.graph.ops.resample import ResampledAxis, coordinates
from tilewright.graph.specialize import typing_at

RNG = np.random.default_rng(0)
# A map of half the extent, rounded up, is resized to the size of the image.
SKIP = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1, 2, h, w] x) => (float[a, b, c, d] y) {{
  z = MaxPool<kernel_shape = [1, 1], strides = [2, 2]>(x)
  s = Shape(x)
  r = Resize<{how}>(z, , , s)
  y = Sub(r, x)
}}
"""
CORNERS = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1, 2, h, w] x) => (float[a, b, c, d] y) <float[4] s = {1, 1, 2, 3}> {
  y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , s)
}
"""
WAYS = {
    "linear": 'mode = "linear", coordinate_transformation_mode = "half_pixel"',
    "pytorch": 'mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"',
    "corners": 'mode = "linear", coordinate_transformation_mode = "align_corners"',
    "cubic": 'mode = "cubic", coordinate_transformation_mode = "half_pixel"',
    "nearest": 'coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
    "ceil": 'coordinate_transformation_mode = "half_pixel", nearest_mode = "ceil"',
    "up": 'nearest_mode = "round_prefer_ceil"',
    "down": 'nearest_mode = "round_prefer_floor"',
}
MANY = {"h": (4, 60), "w": (5, 40)}
FEW = {"h": (3, 12), "w": 7}
REPRESENTATIVES = ("pytorch", "nearest")


def same_as_onnxruntime(text: str, dims: Mapping[str, Any], *sizes: Any) -> Any:
    model = onnx.parser.parse_model(text)
    made: Any = tw.compile(model, dims=dims, jit=False, threads=1, cache=False)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for h, w in sizes:
        x = RNG.standard_normal((1, 2, h, w)).astype(np.float32)
        (want,) = session.run(None, {"x": x})
        np.testing.assert_allclose(made(x), want, rtol=1e-5, atol=2e-5)
    return made


@pytest.mark.representatives(*REPRESENTATIVES)
@pytest.mark.parametrize("way", WAYS)
def test_a_map_is_resized_to_the_size_of_another(way: str) -> None:
    """The ways of positions and of taps; all sizes share code."""
    sizes = (3, 7), (4, 7), (11, 7), (12, 7)
    made = same_as_onnxruntime(SKIP.format(how=WAYS[way]), FEW, *sizes)
    assert not made.model.single


@pytest.mark.slow
def test_between_planned_sizes_too() -> None:
    """Ranges of too many sizes to plan each."""
    sizes = (4, 5), (60, 40), (23, 37), (58, 9), (33, 32)
    made = same_as_onnxruntime(SKIP.format(how=WAYS["pytorch"]), MANY, *sizes)
    assert not made.model.single


def test_corners_stay_where_they_are_also_of_one_element() -> None:
    made = same_as_onnxruntime(
        CORNERS, {"h": (1, 12), "w": 3}, (1, 3), (2, 3), (7, 3), (12, 3)
    )
    assert len(made.model.shared) == 1


def computed(text: str, **allowed: range) -> Any:
    graph = load(onnx.parser.parse_model(text))
    assert isinstance(graph, Graph)
    made = with_computed_positions(graph, allowed, lambda e: typing_at(graph, e))
    (op,) = (op for op in made.operations if op.op_type == "Resize")
    return op.attributes.get("computed")


def test_a_ratio_of_all_sizes_is_left_to_constants() -> None:
    text = SKIP.format(how=WAYS["linear"])
    assert computed(text, h=range(4, 60), w=range(4, 60)) == (2, 3)
    # All sizes are twice that of the map.
    assert computed(text, h=range(4, 60, 2), w=range(4, 60, 2)) is None
    assert computed(text, h=range(4, 60, 2), w=range(4, 60)) == (2, 3)


@pytest.mark.parametrize(
    "how",
    [
        'mode = "linear", antialias = 1',
        'mode = "cubic", exclude_outside = 1',
        'mode = "linear", keep_aspect_ratio_policy = "not_larger"',
        'mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric"',
    ],
)
def test_what_more_than_both_extents_decides_is_not_computed(how: str) -> None:
    assert computed(SKIP.format(how=how), h=range(4, 60), w=range(4, 60)) is None


def test_a_broken_scale_is_not_computed() -> None:
    text = CORNERS.replace("2, 3}", "1.5, 3}")
    assert computed(text, h=range(4, 60), w=range(4, 60)) is None
    assert computed(CORNERS, h=range(4, 60), w=range(4, 60)) == (2, 3)


def test_positions_use_extents_where_a_scale_is_rounded() -> None:
    """21 elements to 9: the scale is 3/7, and 3 divided by it is not 7."""
    axis = ResampledAxis(21, 9, 9 / 21)
    assert coordinates(axis, "asymmetric")[3] == 7
    assert (np.diff(coordinates(axis, "asymmetric")) > 0).all()
    assert coordinates(ResampledAxis(5, 7, 1.5), "asymmetric")[3] == 2


@pytest.mark.parametrize("ends", [(6, 14), (20, 29)])
def test_weights_of_both_axes_are_two_constants_where_extents_are_equal(
    ends: tuple[int, int],
) -> None:
    """Both axes are resized alike: at equal height and width, equal tables are not one."""
    text = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1, 2, h, w] x) => (float[a, b, c, d] y) <float[4] s = {1, 1, 3, 3}> {
  y = Resize<mode = "cubic">(x, , s)
}
"""
    least, most = ends
    corners = [(a, b) for a in ends for b in ends]
    dims = {"h": ends, "w": ends}
    made = same_as_onnxruntime(text, dims, *corners, (least + 1, most - 2))
    assert not made.model.single
    assert [len(s.covers) for s in made.model.shared] == [(most - least + 1) ** 2]
