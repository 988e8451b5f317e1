"""Convolutions of channel-last images with few results, in rows: the image is copied once, with the
vectors' axis last, and not once for each window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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


def tall(rows: int = 60, planes: int = 1) -> list[Computation]:
    """Two results for each of `rows` x 40 windows, of as many images as there are planes."""
    x = Buffer("X", (planes + 2, rows + 2, 42, 8), float32)
    y = Buffer("Y", (2, planes, rows, 40), float32)
    return [
        reduce_(
            "conv",
            y,
            (8, 3, 3),
            "add",
            lambda k, n, i, j, c, u, v: x[n, i + u, j + v, c] * W[k, c, u, v],
        )
    ]


def deep() -> list[Computation]:
    """The same where windows overlap along planes, too."""
    w = Buffer("W", (2, 8, 3, 3, 3), float32)
    x = Buffer("X", (14, 62, 42, 8), float32)
    y = Buffer("Y", (2, 12, 60, 40), float32)
    return [
        reduce_(
            "conv",
            y,
            (8, 3, 3, 3),
            "add",
            lambda k, n, i, j, c, t, u, v: x[n + t, i + u, j + v, c] * w[k, c, t, u, v],
        )
    ]


def little(computations: list[Computation], cores: int = 2) -> Context:
    """A machine whose second cache holds a small part of the images above."""
    return Context(replace(Small(), l2=8 << 10, cores=cores), {W})


def rows_of(computations: list[Computation], at: Context) -> int | None:
    found = sketches(plain(computations), computations, at)[0].default()
    return found.values.get("turn.X.rows")


@pytest.mark.parametrize("planes", [1, 3])
def test_a_large_image_is_copied_in_blocks_of_rows(planes):
    computations = tall(planes=planes)
    at = little(computations)
    found = sketches(plain(computations), computations, at)[0].default()
    assert found.values["turn.X.rows"] == 6
    allocated = [
        p.stmt.buffer
        for p in walk(found.schedule.kernel.body)
        if isinstance(p.stmt, Alloc)
    ]
    (copy,) = (b for b in allocated if b.name.startswith("X"))
    assert copy.shape == (1, 8, 8, 42)


@pytest.mark.covering(1)
@pytest.mark.parametrize("rows", [0, 6, 24])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("planes", [1, 3])
def test_blocks_compute_the_same(rows, in_order, planes, results):
    """Also where blocks do not divide the rows, and where the rows are not the first loops."""
    computations = tall(58, planes)
    at = little(computations)
    sketch = sketches(plain(computations), computations, at)[0]
    wanted = {"turn.X.rows": rows, "conv.in_order": in_order}
    after = sketch.at(wanted).schedule.kernel
    verify(after)
    for a, *both in zip(
        results(plain(computations)), results(after), native(after), strict=True
    ):
        for b in both:
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


def test_what_caches_hold_is_copied_whole():
    computations = tall()
    size = 3 * 62 * 42 * 8 * 4
    at = little(computations)
    for l2, rows in ((size // 4 - 64, 6), (size // 4, 0)):
        assert (
            rows_of(computations, replace(at, machine=replace(at.machine, l2=l2)))
            == rows
        )


def test_each_core_has_blocks():
    computations = tall()
    assert rows_of(computations, little(computations, cores=5)) == 6
    assert rows_of(computations, little(computations, cores=6)) == 0


def test_no_blocks_of_rows_whose_windows_overlap_in_other_blocks():
    computations = deep()
    (w,) = (b for b in computations[0].inputs if b.name == "W")
    at = replace(little(computations), constants={w})
    found = sketches(plain(computations), computations, at)[0].default()
    assert found.values["turn.X"] is True
    assert "turn.X.rows" not in found.values


@pytest.mark.parametrize("change", [{"around": ("n",)}, {"reshaped": True}])
def test_no_blocks_inside_of_others_or_where_tiles_must_not_overlap(change):
    from tilewright.schedule.space.choices import Choices
    from tilewright.schedule.space.patterns import classify
    from tilewright.targets.cpu.sketches.roles import plan
    from tilewright.targets.cpu.sketches.turned import turned

    (c,) = computations = tall()
    at = little(computations)
    p = plan(classify(computations), at, Choices())
    assert turned(c, p, (), at, Choices()).rows == 6
    assert turned(c, p, (), replace(at, **change), Choices()).rows == 0


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
