"""Reads at real positions: GridSample, RoiAlign, DeformConv, against onnx.reference."""

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.graph.one_operator import agree, model_of, run
from tilewright.base.errors import TilewrightWarning
from tilewright.driver.planning import make_plan
from tilewright.frontends.onnx.load import load
from tilewright.graph.pipeline import graph_pipeline
from tilewright.targets.registry import target

RNG = np.random.default_rng(11)


def reals(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.covering(1)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode, padding, corners):
    grid = RNG.uniform(-1.6, 1.6, (2, 3, 4, 2)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    agree("GridSample", [reals(2, 2, 5, 4), grid], atol=3e-5, **attributes)


def channels_last(op, given, **attributes):
    """Whether it reads a copy of the image with channels last."""
    graph = graph_pipeline("default", None).run(load(model_of(op, given, **attributes)))
    groups = make_plan(graph, target("cpu")).groups
    names = [c.name for group in groups for c in group.computations]
    return any(name.endswith("_image") for name in names)


def positions(*shape):
    return RNG.uniform(-1.6, 1.6, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("mode", "channels", "grid", "last"),
    [
        ("linear", 8, (2, 3, 4, 2), True),
        ("cubic", 8, (2, 3, 4, 2), True),
        ("linear", 20, (2, 3, 4, 2), True),
        ("nearest", 8, (2, 3, 4, 2), False),  # no sum
        ("linear", 7, (2, 3, 4, 2), False),  # few channels
        ("linear", 8, (2, 1, 4, 2), False),  # 16 reads of 20 elements
        ("linear", 8, (2, 1, 5, 2), True),
    ],
)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_with_channels_last(mode, channels, grid, last, padding):
    given = [reals(2, channels, 5, 4), positions(*grid)]
    attributes = {"mode": mode, "padding_mode": padding}
    assert channels_last("GridSample", given, **attributes) == last
    agree("GridSample", given, atol=3e-5, **attributes)


@pytest.mark.parametrize("kind", ["int32", "uint8", "bool"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_samples_of_integers_are_rounded_once(mode, kind):
    """Not each of the terms, which have fractions: with channels last as with few channels."""
    x = RNG.integers(0, 90 if kind != "bool" else 2, (1, 8, 5, 4)).astype(kind)
    grid = RNG.uniform(-0.5, 0.5, (1, 3, 4, 2)).astype(np.float32)
    found = []
    for channels in (8, 1):
        parts = np.split(x, 8 // channels, axis=1)
        given = [(part, grid) for part in parts]
        assert channels_last("GridSample", given[0], mode=mode) == (channels == 8)
        made = model_of("GridSample", given[0], mode=mode)
        found.append(np.concatenate([run(made, g)[0] for g in given], axis=1))
    np.testing.assert_array_equal(*found)


def test_grid_sample_of_volumes_with_channels_last():
    given = [reals(1, 9, 3, 4, 2), positions(1, 2, 2, 3, 3)]
    assert channels_last("GridSample", given, mode="linear")
    agree("GridSample", given, atol=3e-5, mode="linear")


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample_far_away_is_zero(mode, corners):
    """Beyond integers, and where the position in elements is infinite."""
    far = np.float32([-3.4e38, -1e19, -50, 50, 1e19, 3.4e38])
    grid = np.stack([far, np.zeros(6, np.float32)], -1).reshape(1, 2, 3, 2)
    given = [reals(1, 1, 3, 4), grid]
    model = model_of("GridSample", given, mode=mode, align_corners=corners)
    (found,) = run(model, given)
    np.testing.assert_array_equal(found, np.zeros((1, 1, 2, 3), np.float32))


@pytest.mark.covering(1)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_at_no_position(mode, corners, padding):
    """NaN, and what reflecting infinity gives; the nearest element to NaN is the first one."""
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    at = np.float32([np.nan, np.inf, -np.inf])
    rows = np.full(3, 1, np.float32) if corners else np.full(3, 0.75, np.float32)
    grid = np.stack([at, rows], -1).reshape(1, 1, 3, 2)
    model = model_of("GridSample", [x, grid], mode=mode, align_corners=corners,
                     padding_mode=padding)  # fmt: skip
    (found,) = run(model, [x, grid])
    lost = 12 if mode == "nearest" else np.nan
    infinite = {"zeros": (0, 0), "border": (15, 12), "reflection": (lost, lost)}
    np.testing.assert_array_equal(found.ravel(), [lost, *infinite[padding]])


def test_grid_sample_of_volumes():
    grid = RNG.uniform(-1.2, 1.2, (1, 2, 3, 2, 3)).astype(np.float32)
    agree("GridSample", [reals(1, 2, 3, 4, 5), grid], atol=1e-5)


@pytest.mark.parametrize("opset", [16, 20])
@pytest.mark.parametrize("mode", ["", "nearest", "linear", "cubic"])
def test_grid_sample_at_as_many_positions_as_the_data_says(mode, opset):
    """The host computes it, where the onnx package knows only the modes' names since opset 20."""
    x, grid = reals(1, 2, 5, 4), RNG.uniform(-1, 1, (1, 1, 6, 2)).astype(np.float32)
    keep = np.array([True, False, True, True, False, True])
    old = {"linear": "bilinear", "cubic": "bicubic"} if opset < 20 else {}
    attributes = f'<mode="{old.get(mode, mode)}">' if mode else ""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
        main (float[1,2,5,4] x, float[1,1,6,2] grid, bool[6] keep) => (float[1,2,1,n] y) {{
        some = Compress<axis=2>(grid, keep) y = GridSample{attributes}(x, some) }}""")
    with pytest.warns(TilewrightWarning, match="GridSample"):
        exe = tw.compile(model, threads=1, cache=False)
    found = exe(x, grid, keep)
    every = model_of("GridSample", [x, grid], mode=mode or "linear")
    (want,) = run(every, [x, grid])
    np.testing.assert_allclose(found, want[..., keep], atol=1e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("channels", [1, 3, 20])
def test_roi_align(mode, coordinates, channels):
    rois = np.array([[0, 0, 9, 9], [2.5, 1.5, 30, 7], [-4, 3, 5, 20]], np.float32)
    given = [reals(2, channels, 8, 10), rois, np.array([1, 0, 1])]
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": coordinates,
        "output_height": 3,
        "output_width": 2,
        "sampling_ratio": 2,
        "spatial_scale": 0.6,
    }
    assert channels_last("RoiAlign", given, **attributes)
    agree("RoiAlign", given, atol=1e-5, **attributes)


def test_deform_conv_of_many_channels():
    x, w, offset = reals(2, 20, 5, 6), reals(18, 20, 3, 3), reals(2, 18, 5, 6)
    attributes = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    assert channels_last("DeformConv", [x, w, offset], **attributes)
    agree("DeformConv", [x, w, offset], atol=2e-4, **attributes)


@pytest.mark.parametrize("full", [False, True])
def test_deform_conv(full):
    x, w = reals(1, 4, 6, 5), reals(4, 2, 3, 2)
    offset = reals(1, 2 * 3 * 2 * 2, 6, 5)
    rest = [reals(4), np.abs(reals(1, 2 * 3 * 2, 6, 5))] if full else []
    geometry = {
        "pads": [1, 0, 1, 1],
        "group": 2,
        "offset_group": 2,
        "kernel_shape": [3, 2],
    }
    agree("DeformConv", [x, w, offset, *rest], atol=1e-4, **geometry)
