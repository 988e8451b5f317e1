"""Convolutions of channel-last images with few results, in rows: the image is copied once, with the
vectors' axis last, and not once for each window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.targets.cpu.sketches.machines import Small
from tests.targets.cpu.sketches.test_sketches import native
from tilewright.base.dtypes import float32
from tilewright.compute.build import padded, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Alloc
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.schedule.space import Point
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.testing.random_kernels import plain

W = Buffer("W", (2, 8, 3, 3), float32)


def convolution(
    image: Buffer,
    shape: Sequence[int],
    read: Callable[..., object],
    windows: tuple[int, int] = (3, 3),
) -> list[Computation]:
    """`read` gives the element of the image for a row, a column, a channel, and a window's two."""
    y = Buffer("Y", tuple(shape), float32)
    return [
        reduce_(
            "conv",
            y,
            (8, *windows),
            "add",
            lambda k, i, j, c, u, v: read(image, i, j, c, u, v) * W[k, c, u, v],
        )
    ]


def few_results() -> list[Computation]:
    """Two results for each of 7 x 40 windows, and their 8 channels are last."""
    x = Buffer("X", (9, 42, 8), float32)
    return convolution(x, (2, 7, 40), lambda x, i, j, c, u, v: x[i + u, j + v, c])


def point(computations: list[Computation], constants: Sequence[Buffer] = ()) -> Point:
    at = Context(Small(), {W, *constants})
    return sketches(plain(computations), computations, at)[0].default()


def test_an_image_is_copied_once_with_its_rows_last():
    found = point(few_results())
    assert found.values["turn.X"] is True
    assert found.values["pack.X.tiles"] is True
    allocated = [
        p.stmt.buffer
        for p in walk(found.schedule.kernel.body)
        if isinstance(p.stmt, Alloc)
    ]
    (copy,) = (b for b in allocated if b.name.startswith("X"))
    assert copy.shape == (9, 8, 42)
    assert "pack.X" not in found.values


@pytest.mark.covering(1)
@pytest.mark.parametrize("turned", [True, False])
def test_the_copy_computes_the_same(turned, results):
    computations = few_results()
    at = Context(Small(), {W})
    sketch = sketches(plain(computations), computations, at)[0]
    after = sketch.at({"turn.X": turned}).schedule.kernel
    verify(after)
    for a, *both in zip(
        results(plain(computations)), results(after), native(after), strict=True
    ):
        for b in both:
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


def other(name: str) -> list[Computation]:
    """A convolution as above but for one thing."""
    deep, wide, tall = (9, 42, 8), (9, 82, 8), (48, 42, 8)
    shape = (2, 7, 40)
    match name:
        case "each element is in one window":
            x = Buffer("X", (21, 40, 8), float32)
            return convolution(
                x, shape, lambda x, i, j, c, u, v: x[3 * i + u, j + v, c], (3, 1)
            )
        case "lanes are two elements apart":
            x = Buffer("X", wide, float32)
            return convolution(
                x, shape, lambda x, i, j, c, u, v: x[i + u, 2 * j + v, c]
            )
        case "rows are last already":
            x = Buffer("X", (8, 9, 42), float32)
            return convolution(x, shape, lambda x, i, j, c, u, v: x[c, i + u, j + v])
        case "vectors go along two axes":
            x = Buffer("X", tall, float32)
            return convolution(
                x, shape, lambda x, i, j, c, u, v: x[i + j + u, j + v, c]
            )
        case "the image is read twice":
            x = Buffer("X", (9, 43, 8), float32)
            return convolution(
                x,
                shape,
                lambda x, i, j, c, u, v: x[i + u, j + v, c] + x[i + u, j + v + 1, c],
            )
    x = Buffer("X", deep, float32)
    return convolution(x, shape, lambda x, i, j, c, u, v: x[i + u, j + v, c])


@pytest.mark.parametrize(
    "name",
    [
        "each element is in one window",
        "lanes are two elements apart",
        "rows are last already",
        "vectors go along two axes",
        "the image is read twice",
    ],
)
def test_other_images_are_not(name):
    assert "turn.X" not in point(other(name)).values


def test_an_image_that_is_a_constant_is_packed_once_and_for_all():
    (c,) = few_results()
    (x,) = (b for b in c.inputs if b.name == "X")
    found = point([c], [x]).values
    assert "turn.X" not in found
    assert found["pack.X"] is True


def test_an_image_without_its_padding_is_copied_with_it():
    def read(x, i, j, c, u, v):
        return padded(x, (i + u - 1, j + v - 1, c), 0.0)

    computations = convolution(Buffer("X", (7, 40, 8), float32), (2, 7, 40), read)
    found = point(computations).values
    assert "turn.X" not in found
    assert found["pad.X"] is True
