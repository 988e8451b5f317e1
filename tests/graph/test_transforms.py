"""Fourier transforms as one product with a matrix, and as two."""

from itertools import product

import numpy as np
import pytest

import tilewright as tw
from tests.graph.one_operator import agree, model_of
from tilewright.graph.ops.transforms import MATRIX_ELEMENTS, Split, Transform


def expected(t, x):
    """NumPy's transform of float64[extent, parts]."""
    signal = x[:, 0] + (1j * x[:, 1] if t.parts == 2 else 0)
    if t.result_parts == 1:
        return np.fft.irfft(signal, t.length)[:, None]
    found = (np.fft.ifft if t.inverse else np.fft.fft)(signal, t.length)[: t.results]
    return np.stack([found.real, found.imag], -1)


def by_two_products(s, x):
    """The transform of float64[extent, parts] from the matrices of a split."""
    t = s.whole
    padded = np.zeros((s.rows * s.inner, t.parts))
    padded[: t.read] = x[: t.read]
    taken = padded.reshape(s.rows, s.inner, t.parts).transpose(1, 0, 2)
    between = taken.reshape(s.inner, 1, -1) @ s.first()
    turned = (
        between.reshape(s.inner, s.outer, 2).transpose(1, 0, 2).reshape(s.outer, -1)
    )
    found = (turned @ s.second()).reshape(s.outer, s.groups, t.result_parts)
    return found.transpose(1, 0, 2).reshape(-1, t.result_parts)[: t.results]


@pytest.mark.parametrize("length", [2, 3, 6, 12, 15, 16, 27])
def test_every_split_is_the_transform(length):
    """Of padded and cropped, real and complex numbers; forward and inverse; whole and half."""
    extents = {1, length // 2, length // 2 + 1, length, length + 2}
    for extent, parts, onesided, inverse in product(extents, (1, 2), (0, 1), (0, 1)):
        t = Transform(extent, parts, length, bool(onesided), bool(inverse))
        x = np.random.default_rng(0).standard_normal((extent, parts))
        want = expected(t, x)
        one = x.reshape(-1) @ t.matrix()
        np.testing.assert_allclose(one.reshape(want.shape), want, atol=1e-12)
        for inner in [b for b in range(1, length + 1) if length % b == 0]:
            s = Split(t, inner)
            np.testing.assert_allclose(by_two_products(s, x), want, atol=1e-12)
            assert s.elements() == s.first().size + s.second().size


@pytest.mark.parametrize(
    "length, inner", [(16, None), (127, None), (512, 16), (4096, 64)]
)
def test_a_split_is_chosen_where_two_products_are_less_work(length, inner):
    """A short transform is one product; a prime number of numbers has no factors."""
    found = Transform(length, 1, length, onesided=True).split()
    assert (found and found.inner) == inner


def test_a_few_of_many_numbers_are_one_product():
    assert Transform(512, 1, 512).split() is not None
    assert Transform(2, 1, 512).split() is None


def test_two_matrices_are_small_enough_where_one_is_too_large():
    whole = Transform(4096, 2, 4096)
    assert whole.matrix().size > MATRIX_ELEMENTS
    found = whole.split()
    assert found is not None and found.elements() < MATRIX_ELEMENTS


def test_a_transform_too_long_for_two_matrices_runs_on_the_host():
    n = 1 << 16
    found = Transform(n, 1, n, onesided=True).split()
    assert found is not None and found.elements() > MATRIX_ELEMENTS
    x = np.random.default_rng(0).standard_normal((1, n, 1)).astype(np.float32)
    model = model_of(
        "DFT", [x, np.array(n), np.array(1)], known=(1, 2), opset=20, onesided=1
    )
    with pytest.warns(tw.TilewrightWarning, match="DFT"):
        exe = tw.compile(model, threads=1, cache=False)
    half = np.fft.rfft(x[..., 0].astype(float))
    np.testing.assert_allclose(exe(x), np.stack([half.real, half.imag], -1), atol=1e-2)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "extent, length", [(240, 240), (200, 240), (250, 240), (2048, 2048)]
)
def test_long_transforms(parts, extent, length):
    x = (
        np.random.default_rng(0)
        .standard_normal((2, extent, 3, parts))
        .astype(np.float32)
    )
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    found = np.fft.fft(signal.astype(complex), length, 1)
    want = np.stack([found.real, found.imag], -1).astype(np.float32)
    assert Transform(extent, parts, length).split() is not None
    agree(
        "DFT", [x, np.array(length), np.array(1)], opset=20, expected=[want], atol=2e-4
    )


@pytest.mark.parametrize("length", [240, 405])
def test_long_there_and_back(length):
    """An even length has a middle that stands for itself, an odd one has none."""
    x = np.random.default_rng(0).standard_normal((2, length, 1)).astype(np.float32)
    half = np.fft.rfft(x[..., 0].astype(float))
    pairs = np.stack([half.real, half.imag], -1).astype(np.float32)
    size = [np.array(length), np.array(1)]
    options = {"opset": 20, "onesided": 1}
    agree("DFT", [x, *size], expected=[pairs], atol=1e-4, **options)
    agree("DFT", [pairs, *size], inverse=1, expected=[x], atol=1e-5, **options)


def test_long_frames():
    x = np.random.default_rng(0).standard_normal((2, 700, 1)).astype(np.float32)
    window = np.hanning(256).astype(np.float32)
    frames = np.stack([x[:, s : s + 256, 0] * window for s in range(0, 445, 100)], 1)
    found = np.fft.rfft(frames)
    want = np.stack([found.real, found.imag], -1).astype(np.float32)
    agree("STFT", [x, np.array(100), window], expected=[want], atol=1e-4)
