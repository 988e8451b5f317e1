"""resize_up: an image twice as large by a cubic filter; see `resize`."""

from __future__ import annotations

from typing import Any

from examples.halide_apps.app import App
from examples.halide_apps.resize import images, resized


def build(hl: Any, image: Any) -> Any:
    """The image at twice its size, three planes of floats."""
    return resized(hl, image, 2.0)


APP = App(
    build,
    images,
    lambda width, height: ((0, 2 * width), (0, 2 * height), (0, 3)),
    size=(768, 640),
    small=(64, 64),
    tolerance=1e-5,
)
