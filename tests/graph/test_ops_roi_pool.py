"""MaxRoiPool against a plain loop, and against ONNX Runtime where it has it."""

import math

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.graph.one_operator import agree, model_of
from tilewright.base.errors import TilewrightError

RNG = np.random.default_rng(23)


def rounded(v):
    """Halves away from zero."""
    return int(math.copysign(math.floor(abs(v) + 0.5), v))


def cells(low, high, count, extent):
    """The first and the last element, and one more, of each cell."""
    size = np.float32(max(high - low + 1, 1)) / np.float32(count)
    for p in range(count):
        ends = math.floor(np.float32(p) * size), math.ceil(np.float32(p + 1) * size)
        yield [min(max(e + low, 0), extent) for e in ends]


def pooled(x, rois, shape, scale):
    y = np.zeros((len(rois), x.shape[1], *shape), x.dtype)
    for n, (image, x1, y1, x2, y2) in enumerate(rois.astype(np.float64)):
        left, top, right, bottom = (rounded(v * scale) for v in (x1, y1, x2, y2))
        for i, (h0, h1) in enumerate(cells(top, bottom, shape[0], x.shape[2])):
            for j, (w0, w1) in enumerate(cells(left, right, shape[1], x.shape[3])):
                if h0 < h1 and w0 < w1:
                    y[n, :, i, j] = x[int(image), :, h0:h1, w0:w1].max((1, 2))
    return y


ROIS = np.array(
    [
        [0, 0, 0, 9, 7],
        [1, 2, 1, 4, 6],
        [1, 5, 5, 1, 1],  # upside down: one element
        [0, -6, -3, 3, 2],  # beyond the front
        [1, 7, 6, 25, 30],  # beyond the end
        [0, 40, 40, 50, 50],  # outside
        [1, 2.5, 1.5, 3.5, -0.5],  # halves
    ],
    np.float32,
)


@pytest.mark.covering(1)
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.0625])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (7, 7)])
def test_against_a_plain_loop(shape, scale):
    x = RNG.standard_normal((2, 3, 8, 10), dtype=np.float32)
    rois = ROIS * np.float32([1, *[1 / scale] * 4])
    want = pooled(x, rois, shape, scale)
    options = {"pooled_shape": shape, "spatial_scale": scale}
    agree("MaxRoiPool", [x, rois], expected=[want], rtol=0, atol=0, **options)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_types(dtype):
    x = RNG.standard_normal((2, 2, 5, 6)).astype(dtype)
    want = pooled(x, ROIS.astype(dtype), (2, 2), 0.5)
    options = {"pooled_shape": [2, 2], "spatial_scale": 0.5, "opset": 22}
    agree(
        "MaxRoiPool",
        [x, ROIS.astype(dtype)],
        expected=[want],
        rtol=0,
        atol=0,
        **options,
    )


@pytest.mark.parametrize("shape", [(2, 3, 0, 5), (2, 3, 5, 0), (2, 0, 5, 5)])
def test_an_image_without_elements(shape):
    want = np.zeros((7, shape[1], 2, 2), np.float32)
    agree(
        "MaxRoiPool",
        [np.ones(shape, np.float32), ROIS],
        expected=[want],
        pooled_shape=[2, 2],
    )


def test_no_regions():
    x = np.ones((1, 2, 3, 4), np.float32)
    none, want = np.zeros((0, 5), np.float32), np.zeros((0, 2, 2, 2), np.float32)
    agree("MaxRoiPool", [x, none], expected=[want], pooled_shape=[2, 2])


def test_as_onnx_runtime():
    onnxruntime = pytest.importorskip("onnxruntime")
    x = np.abs(
        RNG.standard_normal((2, 4, 19, 25), dtype=np.float32)
    )  # it begins above zero
    corners = RNG.uniform(-10, 60, (40, 2, 2)).astype(np.float32)
    corners.sort(1)
    rois = np.c_[RNG.integers(0, 2, 40), corners.reshape(40, 4)].astype(np.float32)
    options = {"pooled_shape": [3, 7], "spatial_scale": 0.5}
    model = model_of("MaxRoiPool", [x, rois], opset=21, **options)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, {"x0": x, "x1": rois})
    agree("MaxRoiPool", [x, rois], expected=[want], rtol=0, atol=0, **options)


@pytest.mark.parametrize(
    ("x", "rois", "shape", "words"),
    [
        ((1, 2, 3), (1, 5), [2, 2], "do not fit together"),
        ((1, 2, 3, 4), (1, 4), [2, 2], "do not fit together"),
        ((1, 2, 3, 4), (1, 5), [2], "is not a height and a width"),
        ((1, 2, 3, 4), (1, 5), [0, 2], "is not a height and a width"),
    ],
)
def test_operands_that_do_not_fit(x, rois, shape, words):
    operands = [np.zeros(x, np.float32), np.zeros(rois, np.float32)]
    with pytest.raises(TilewrightError, match=words):
        tw.compile(model_of("MaxRoiPool", operands, pooled_shape=shape), cache=False)
