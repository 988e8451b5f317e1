"""Halide's apps at a small size: equal results here and in the `halide` package."""

from __future__ import annotations

import numpy as np
import pytest

from examples.halide_apps import app as apps

theirs = pytest.importorskip("halide")


@pytest.mark.sampled(9)
@pytest.mark.filterwarnings("ignore:The floating-point value")
@pytest.mark.parametrize("name", apps.names())
def test_an_app(name):
    app = apps.load(name)
    images = app.images(np.random.default_rng(0), *app.small)
    mine = apps.ours(app, app.small, images)
    other = apps.theirs(theirs, app, app.small, images, np.zeros_like(mine.out))
    mine.call()
    other.call()
    assert mine.out.any()
    assert apps.difference(mine.out, other.out) <= app.tolerance
