"""The Fourier transforms of `examples/halide_apps` against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from examples.halide_apps import app as apps
from examples.halide_apps.fft import RADICES


def _found(name: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    app = apps.load(name)
    [image] = app.images(np.random.default_rng(n), n, 2)
    ready = apps.ours(app, (n, 2), (image,))
    ready.call()
    return image, ready.out[:, 0] + 1j * ready.out[:, 1]


@pytest.mark.slow  # it is inside of that of real numbers
@pytest.mark.parametrize("n", RADICES)
def test_complex_numbers(n: int) -> None:
    image, found = _found("fft", n)
    wanted = np.fft.fft2(image[:, 0] + 1j * image[:, 1])
    np.testing.assert_allclose(found, wanted, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", [16, 32])
def test_real_numbers(n: int) -> None:
    image, found = _found("fft_real", n)
    wanted = np.fft.fft2(image)[:, : n // 2 + 1]
    np.testing.assert_allclose(found, wanted, atol=1e-6 * np.abs(wanted).max())
