"""LRN, LpNormalization, Det, MaxUnpool, Col2Im, the optimizers, two of ai.onnx.ml: against ONNX."""

import numpy as np
import pytest

import tilewright as tw
from tests.graph.one_operator import agree, model_of
from tilewright.base.errors import ExecutionError

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
