"""LRN, LpNormalization, Det, MaxUnpool, Col2Im, the optimizers, two of ai.onnx.ml: against ONNX."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

import tilewright as tw
from tests.graph.one_operator import agree, model_of, run
from tilewright.base.errors import ExecutionError, ModelError

TRAINING = {"domain": "ai.onnx.preview.training", "opset": 1}
FEATURES = {"domain": "ai.onnx.ml", "opset": 3}


def real(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size, beta", [(3, 0.75), (4, 0.6), (5, 0.5)])
def test_lrn(size, beta):
    x = real(2, 7, 3, 4)
    below, above = (size - 1) // 2, size // 2
    near = [(x[:, max(0, c - below) : c + above + 1] ** 2).sum(1) for c in range(7)]
    expected = x / (2 + 0.3 / size * np.stack(near, 1)) ** beta
    agree("LRN", [x], size=size, beta=beta, alpha=0.3, bias=2.0, expected=[expected])


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 1])
def test_lp_normalization(p, axis):
    x = real(3, 4, 5)
    x[0, :, 0] = x[1, 2] = 0
    norm = np.linalg.norm(x, p, axis, keepdims=True)
    expected = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
    agree("LpNormalization", [x], p=p, axis=axis, opset=22, expected=[expected])


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 3, 4, 4)])
def test_det(shape):
    x = real(*shape)
    agree("Det", [x], opset=22, rtol=1e-4, expected=[np.asarray(np.linalg.det(x))])


def test_det_of_singular_matrices_and_of_a_zero_pivot():
    x = np.array([[[1, 2], [2, 4]], [[0, 1], [1, 0]], [[0, 0], [0, 0]]], np.float32)
    agree("Det", [x], opset=22, expected=[np.array([0, -1, 0], np.float32)])


def test_max_unpool():
    x = real(2, 3, 2, 2)
    offsets = np.array([[0, 3], [9, 10]])
    places = np.arange(6).reshape(2, 3, 1, 1) * 16 + offsets
    agree("MaxUnpool", [x, places], kernel_shape=[2, 2], strides=[2, 2], opset=11)
    exe = tw.compile(
        model_of("MaxUnpool", [x, places], kernel_shape=[2, 2], strides=[2, 2])
    )
    with pytest.raises(ExecutionError):
        exe(x, places + 96)


@pytest.mark.parametrize(
    "image, blocks, options",
    [
        ((5, 6), (2, 3), {}),
        (
            (5, 6),
            (2, 2),
            {"strides": [2, 1], "pads": [0, 1, 1, 0], "dilations": [1, 2]},
        ),
        ((4, 3, 5), (2, 1, 3), {"strides": [1, 1, 2]}),
    ],
)
def test_col2im(image, blocks, options):
    rank = len(image)
    pads, strides = (
        options.get("pads", [0] * 2 * rank),
        options.get("strides", [1] * rank),
    )
    dilations = options.get("dilations", [1] * rank)
    counts = [
        (n + pads[a] + pads[a + rank] - dilations[a] * (blocks[a] - 1) - 1)
        // strides[a]
        + 1
        for a, n in enumerate(image)
    ]
    x = real(2, 3 * int(np.prod(blocks)), int(np.prod(counts)))
    agree("Col2Im", [x, np.array(image), np.array(blocks)], known=(1, 2), **options)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_momentum(mode, steps):
    operands = [
        np.float32(0.1),
        np.array(steps),
        *(real(3, 2, seed=n) for n in range(6)),
    ]
    options = {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.01, "mode": mode}
    agree("Momentum", operands, outputs=4, **options, **TRAINING)


@pytest.mark.parametrize("steps", [0, 2])
def test_adagrad_and_adam(steps):
    operands = [
        np.float32(0.1),
        np.array(steps),
        real(3),
        real(3, seed=1),
        abs(real(3, seed=2)),
    ]
    agree(
        "Adagrad",
        operands,
        outputs=2,
        decay_factor=0.1,
        norm_coefficient=0.01,
        **TRAINING,
    )
    agree(
        "Adam",
        [*operands, abs(real(3, seed=3))],
        outputs=3,
        norm_coefficient=0.01,
        **TRAINING,
    )


def test_features():
    agree("Binarizer", [real(3, 4)], threshold=0.2, **FEATURES)
    agree("ArrayFeatureExtractor", [real(3, 4), np.array([[3, 0]])], **FEATURES)


def test_batch_normalization_in_training():
    x, scale, bias, mean = real(4, 3, 5), real(3), real(3, seed=1), real(3, seed=2)
    variance = abs(real(3, seed=3))
    operands = [x, scale, bias, mean, variance]
    agree(
        "BatchNormalization",
        operands,
        outputs=3,
        training_mode=1,
        momentum=0.7,
        opset=15,
    )


def normalized(x, axes=(0, 2, 3)):
    wide = x.astype(np.float64)
    away = wide - wide.mean(axes, keepdims=True)
    return away / (wide.std(axes, keepdims=True) + 1e-9)


@pytest.mark.covering(1)  # each type, each version
@pytest.mark.parametrize("opset", [9, 13, 21])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, bfloat16])
def test_mean_variance_normalization_of_every_type(dtype, opset):
    x = real(2, 3, 4, 5).astype(dtype)
    rtol = {2: 1e-2, 4: 1e-5, 8: 1e-12}[x.itemsize]
    expected = [normalized(x).astype(dtype)]
    agree("MeanVarianceNormalization", [x], opset=opset, rtol=rtol, atol=rtol,
          expected=expected)  # fmt: skip


@pytest.mark.parametrize("axes", [[1], [-1, 0], [0, 1, 2]])
def test_mean_variance_normalization_over_other_axes(axes):
    x = real(3, 4, 5)
    expected = [normalized(x, tuple(axes)).astype(np.float32)]
    agree("MeanVarianceNormalization", [x], axes=axes, expected=expected)


def test_mean_variance_normalization_does_not_cancel():
    """By the difference of the means of ONNX's function the deviations are rounding."""
    x = real(2, 3, 4, 5) + np.float32(1e4)
    x[:, 1] = 7.0  # deviates from its mean nowhere
    expected = [normalized(x).astype(np.float32)]
    agree("MeanVarianceNormalization", [x], rtol=1e-2, atol=1e-3, expected=expected)
    assert not run(model_of("MeanVarianceNormalization", [x]), [x])[0][:, 1].any()


def in_groups(x, groups, scale, bias):
    """Group normalization in float64; epsilon is 1e-5."""
    rows = x.astype(np.float64).reshape(len(x), groups, -1)
    away = rows - rows.mean(2, keepdims=True)
    normal = away / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
    each = (-1, *(1,) * (x.ndim - 2))
    return normal.reshape(x.shape) * scale.reshape(each) + bias.reshape(each)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "groups, shape", [(1, (2, 6, 5)), (2, (1, 6, 3, 5)), (6, (2, 6))]
)
def test_group_normalization(groups, shape, dtype):
    operands = real(*shape), real(6), real(6, seed=1)
    x, scale, bias = (a.astype(dtype) for a in operands)
    expected = [in_groups(x, groups, scale, bias).astype(dtype)]
    rtol = {2: 1e-2, 4: 1e-4, 8: 1e-11}[x.itemsize]
    agree("GroupNormalization", [x, scale, bias], num_groups=groups, rtol=rtol, atol=rtol,
          expected=expected)  # fmt: skip


def test_group_normalization_does_not_cancel():
    """By the difference of the means of ONNX's function the deviations are rounding, or NaN."""
    x, scale, bias = real(2, 4, 6, 5) + np.float32(1e3), real(4), real(4, seed=1)
    expected = [in_groups(x, 2, scale, bias).astype(np.float32)]
    agree("GroupNormalization", [x, scale, bias], num_groups=2, rtol=1e-2, atol=1e-3,
          expected=expected)  # fmt: skip


@pytest.mark.parametrize("groups", [0, 4])
def test_groups_that_do_not_divide_the_channels_are_refused(groups):
    operands = [real(2, 6, 5), real(6), real(6)]
    with pytest.raises(ModelError, match=f"num_groups={groups} does not divide axis 1"):
        tw.compile(model_of("GroupNormalization", operands, num_groups=groups))


@pytest.mark.parametrize("name", ["scale", "bias"])
def test_groups_are_scaled_and_shifted_by_channel(name):
    """As of version 21; before, by group."""
    sizes = {"scale": 6, "bias": 6, name: 2}
    operands = [real(2, 6, 5), *(real(n) for n in sizes.values())]
    with pytest.raises(ModelError, match=f"{name}.*6"):
        tw.compile(model_of("GroupNormalization", operands, num_groups=2))


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5)])
def test_mean_variance_normalization_of_nothing(shape):
    x = np.zeros(shape, np.float32)
    agree("MeanVarianceNormalization", [x], expected=[x])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_mean_variance_normalization_of_no_numbers(value):
    x = real(2, 3, 4, 5)
    x[0, 1, 2, 3] = value
    (found,) = run(model_of("MeanVarianceNormalization", [x]), [x])
    assert np.isnan(found[:, 1]).all() and not np.isnan(found[:, [0, 2]]).any()


def test_an_axis_that_the_operand_lacks_is_refused():
    with pytest.raises(ModelError, match="axis 3 is out of range for 3 dimensions"):
        tw.compile(model_of("MeanVarianceNormalization", [real(2, 3, 4)]))


@pytest.mark.parametrize("p", [1.0, 2.0, 2.5, 3.0])
@pytest.mark.parametrize("name", ["LpPool", "GlobalLpPool"])
def test_the_first_version_of_lp_pooling_takes_any_exponent(name, p):
    x = real(2, 3, 5, 5)
    window = {"kernel_shape": [2, 3], "strides": [2, 1]} if name == "LpPool" else {}
    if window:
        views = np.lib.stride_tricks.sliding_window_view(x, (2, 3), (2, 3))[:, :, ::2]
    else:
        views = x[:, :, None, None]
    powers = np.abs(views.astype(np.float64)) ** p
    expected = [(powers.sum((-1, -2)) ** (1 / p)).astype(np.float32)]
    agree(name, [x], opset=1, p=p, expected=expected, **window)
