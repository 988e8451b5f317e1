"""DFT and STFT against NumPy's transforms."""

import numpy as np
import pytest

from tests.graph.one_operator import agree


def real(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def pairs(z):
    return np.stack([z.real, z.imag], -1).astype(np.float32)


@pytest.mark.covering(1)
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("length", [None, 5, 16])
def test_dft(axis, parts, length):
    x = real(2, 9, 12, parts)
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    given = [x, None if length is None else np.array(length), np.array(axis)]
    expected = pairs(np.fft.fft(signal, length, axis))
    agree("DFT", given, opset=20, expected=[expected], atol=1e-4)


@pytest.mark.parametrize("length", [8, 9])
def test_one_sided_there_and_back(length):
    x = real(2, length, 1)
    half = np.fft.rfft(x[..., 0], axis=1)
    options = {"opset": 20, "onesided": 1, "atol": 1e-5}
    given = [x, np.array(length), np.array(1)]
    [found] = agree("DFT", given, expected=[pairs(half)], **options)
    agree("DFT", [found, *given[1:]], inverse=1, expected=[x], **options)


@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(onesided):
    x, window = real(2, 40, 1), np.hanning(8).astype(np.float32)
    frames = np.stack([x[:, s : s + 8, 0] * window for s in range(0, 33, 3)], 1)
    expected = pairs((np.fft.rfft if onesided else np.fft.fft)(frames))
    given = [x, np.array(3), window]
    agree("STFT", given, onesided=onesided, expected=[expected], atol=1e-5)
