"""Pipelines compiled without sizes, for all of them, beside those that are compiled for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.guarded import guarded, in_a_child
from tilewright import halide as hl
from tilewright.base.errors import InputError, ScheduleError
from tilewright.expr.nodes import INDEX, Var, const
from tilewright.lang.halide.syntax.ends import ends, least, most, same

SIZES = [(1, 1), (0, 3), (5, 2), (16, 4), (33, 9)]


def blur() -> tuple[Any, Any]:
    x, y, xi, yi = hl.vars("x y xi yi")
    image = hl.ImageParam(hl.UInt(16), 2, "image")
    across, down = hl.Func("across"), hl.Func("down")
    across[x, y] = (image[x, y] + image[x + 1, y] + image[x + 2, y]) / 3
    down[x, y] = (across[x, y] + across[x, y + 1] + across[x, y + 2]) / 3
    down.tile(x, y, xi, yi, 16, 4).vectorize(xi, 8).parallel(y)
    across.compute_at(down, x).vectorize(x, 8)
    return image, down


def edges() -> tuple[Any, Any]:
    """Beyond each edge of an image of any size; a part is in memory, of the size that it needs."""
    x, y = hl.vars("x y")
    image = hl.ImageParam(hl.UInt(16), 2, "image")
    wide = hl.BoundaryConditions.repeat_edge(image)
    twice, f = hl.Func("twice"), hl.Func("f")
    twice[x, y] = wide[x - 1, y] * hl.u16(2) + wide[x + 3, y]
    f[x, y] = twice[x, y] + hl.u16(image.width()) + twice[x, y + 1]
    twice.compute_root().vectorize(x, 8)
    f.vectorize(x, 8)
    return image, f


@pytest.mark.parametrize("make", [blur, edges])
def test_one_pipeline_is_the_one_of_each_size(make: Any) -> None:
    image, f = make()
    one = f.compile_jit(threads=2)
    rng = np.random.default_rng(0)

    def work() -> None:
        for w, h in SIZES:
            more = 2 if make is blur else 0
            shape = (h + more, w + more) if more else (h + 1, max(w - 1, 1))
            data = rng.integers(0, 1000, shape).astype(np.uint16)
            image.bounds = [None, None]
            image.set(data)
            expected = np.zeros((h, w), np.uint16)
            if 0 not in (w, h):
                expected = np.asarray(make_again(make, data).realize([w, h]))
            held = [guarded(data), guarded(np.zeros((h, w), np.uint16))]
            one(*held)
            np.testing.assert_array_equal(held[1], expected)

    in_a_child(work)


def make_again(make: Any, data: Any) -> Any:
    """The same pipeline on an image that is known when it is written."""
    image, f = make()
    image.set(data)
    return f


def test_a_size_that_is_set_later_counts() -> None:
    image, f = edges()
    for shape in ((3, 4), (6, 9)):
        data = np.arange(shape[0] * shape[1], dtype=np.uint16).reshape(shape)
        image.set(data)
        expected = np.asarray(make_again(edges, data).realize([7, 5]))
        np.testing.assert_array_equal(np.asarray(f.realize([7, 5])), expected)


def test_what_does_not_fit_is_named() -> None:
    _, down = blur()
    f = down.compile_jit()
    wrong = r"dimension 1 of image: .*: expected 6 where .*, got 7"
    with pytest.raises(InputError, match=wrong):
        f(np.zeros((5, 7), np.uint16), np.zeros((3, 4), np.uint16))
    _, g = edges()
    with pytest.raises(
        InputError, match=r"dimension 1 of image.*: expected at least 1, got 0"
    ):
        g.compile_jit()(np.zeros((5, 0), np.uint16), np.zeros((3, 4), np.uint16))


def test_what_needs_a_number_is_refused_with_its_line() -> None:
    x, xi = hl.vars("x xi")
    f = hl.Func("f")
    f[x] = x
    f.split(x, x, xi, 8, hl.TailStrategy.ShiftInwards)
    with pytest.raises(
        ScheduleError, match=r"f, .*there may be less than 8 of its f.extent.0"
    ):
        f.compile_jit()
    image = hl.ImageParam(hl.UInt(16), 1, "image")
    g = hl.Func("g")
    g[x] = image[x] + hl.u16(image.width())
    with pytest.raises(
        InputError, match=r"read at 0..g.extent.0 - 1, but has 0..image.max.0"
    ):
        g.compile_jit()


N = Var("n", INDEX)
X = Var("x", INDEX)


@pytest.mark.parametrize(
    "e, low, high",
    [
        (X * 2 + 3, 3, N * 2 + 1),
        (X * -1, 1 - N, 0),
        (X // 4, 0, (N - 1) // 4),
        ((X + 8) % 5, 0, 4),
        (X // 0, None, None),
    ],
)
def test_ends_of_an_index(e: Any, low: Any, high: Any) -> None:
    found = ends(e, {X: (0, N - 1)})
    for end, expected in zip(found, (low, high), strict=True):
        assert (end is None) == (expected is None)
        assert expected is None or same(end, expected)


def test_the_smaller_and_the_larger_end_of_all_sizes() -> None:
    assert same(least(N, N + 1), N) and same(most(N, N + 1), N + 1)
    assert same(least(0, N), 0) and same(most(N, -1), N)
    assert "min" in repr(least(N, 5)) and "max" in repr(most(const(5), N))
