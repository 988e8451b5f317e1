"""memoize and async_: the same results as without, and what is computed when."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import ScheduleError, UnsupportedError

x, y = hl.vars("x y")
PIXELS = np.random.default_rng(0).integers(0, 100, (8, 12)).astype(np.int32)


def chain():
    """A product and a sum of a shifted image, from two Funcs that they read, and a Param."""
    image, p = hl.ImageParam(hl.Int(32), 2, "image"), hl.Param(hl.Int(32), "p", 3)
    image.set(PIXELS)
    f, g, h = hl.Func("f"), hl.Func("g"), hl.Func("h")
    f[x, y] = hl.Tuple(image[x, y] * p, image[x, y] + 1)
    g[x, y] = f[x, y][0] + f[x + 1, y][1]
    h[x, y] = g[x, y] * 2 + g[x, y + 1] - f[x, y][1]
    return image, p, f, g, h


def expected(factor, pixels=PIXELS):
    g = pixels[:, :-1] * factor + pixels[:, 1:] + 1
    return g[:-1] * 2 + g[1:] - pixels[:-1, :-1] - 1


def calls(monkeypatch):
    """The names of the Funcs that are computed from now on, and on which threads."""
    found: list[tuple[str, int]] = []
    plain = hl.Func._realized

    def counted(self, *args, **options):
        found.append((self.name(), threading.get_ident()))
        return plain(self, *args, **options)

    monkeypatch.setattr(hl.Func, "_realized", counted)
    return found


def test_a_func_is_remembered(monkeypatch):
    image, p, f, _, h = chain()
    f.compute_root().memoize()
    found = calls(monkeypatch)
    for factor in (3, 3, 4, 3):
        p.set(factor)
        np.testing.assert_array_equal(h.realize([11, 7]), expected(factor))
    assert [n for n, _ in found if n == "f"] == ["f", "f"]
    PIXELS_2 = PIXELS + 1
    image.set(PIXELS_2)
    np.testing.assert_array_equal(h.realize([11, 7]), expected(3, PIXELS_2))
    PIXELS_2[2, 3] = 77  # the same array with other contents
    np.testing.assert_array_equal(h.realize([11, 7]), expected(3, PIXELS_2))
    found.clear()
    np.testing.assert_array_equal(h.realize([4, 2]), expected(3, PIXELS_2)[:2, :4])
    assert [n for n, _ in found] == ["h", "f"]  # of another region


def test_a_func_that_changes_is_not_remembered(monkeypatch):
    _, _, f, _, h = chain()
    f.compute_root().memoize()
    first = np.asarray(h.realize([11, 7]))
    found = calls(monkeypatch)
    f.vectorize(x, 4)
    np.testing.assert_array_equal(h.realize([11, 7]), first)
    assert ("f" in [n for n, _ in found]) and "vector" in repr(f.kernel([12, 8]))


def test_funcs_on_threads_of_their_own(monkeypatch):
    _, _, _, g, h = chain()
    a, b = hl.Func("a"), hl.Func("b")
    a[x, y] = g[x, y] + 1
    b[x, y] = g[x, y] - 1
    out = hl.Func("out")
    out[x, y] = a[x, y] * b[x, y] + h[x, y]
    plain = np.asarray(out.realize([11, 7]))
    a.compute_root().async_()
    b.compute_root().async_()
    found = calls(monkeypatch)
    np.testing.assert_array_equal(out.realize([11, 7]), plain)
    threads = dict(found)
    assert len({*threads.values()}) >= 2 and threads["a"] != threads["out"]


def test_the_kernel_reads_what_is_computed_apart():
    _, _, f, _, h = chain()
    f.compute_root().memoize()
    assert "kernel h(f.0: int32[8, 12], f.1: int32[8, 12])" in repr(h.kernel([11, 7]))


def test_a_file_of_the_values(tmp_path):
    _, p, _, g, h = chain()
    file, last = str(tmp_path / "g.npy"), str(tmp_path / "h.npy")
    g.compute_root().debug_to_file(file)
    h.debug_to_file(last)
    for factor in (3, 5):
        p.set(factor)
        np.testing.assert_array_equal(h.realize([11, 7]), expected(factor))
        found = PIXELS[:, :-1] * factor + PIXELS[:, 1:] + 1
        np.testing.assert_array_equal(np.load(file), found[:, :11])
        np.testing.assert_array_equal(np.load(last), expected(factor))
    g.compute_at(h, y)
    with pytest.raises(ScheduleError, match=r"debug_to_file: it is computed where"):
        h.realize([4, 4])
    with pytest.raises(UnsupportedError, match=r"ends with \.npy"):
        g.debug_to_file("g.tiff")


def test_async_at_a_loop_changes_nothing():
    _, _, _, g, h = chain()
    g.compute_at(h, y).async_()
    assert "alloc g" in repr(h.kernel([11, 7]))
    np.testing.assert_array_equal(h.realize([11, 7]), expected(3))


def test_what_is_computed_at_a_loop_is_remembered(monkeypatch):
    """The values and the refusals are those of the `halide` package."""
    _, p, f, g, h = chain()
    yo, yi = hl.vars("yo yi")
    h.split(y, yo, yi, 2).parallel(yo)
    g.compute_at(h, yo).vectorize(x, 4).memoize()
    found = calls(monkeypatch)
    for factor in (3, 3, 4, 3):
        p.set(factor)
        np.testing.assert_array_equal(h.realize([11, 7]), expected(factor))
    assert [n for n, _ in found if n == "g"] == ["g", "g"]
    g.compute_at(h, x)
    with pytest.raises(ScheduleError, match="no such loop"):
        g.compute_at(h, hl.Var("z"))
        h.realize([4, 4])
    g.store_root().compute_at(h, yi)
    with pytest.raises(ScheduleError, match="computed at one loop and stored at anot"):
        h.realize([4, 4])
    g.store_at(h, yi)
    np.testing.assert_array_equal(h.realize([11, 7]), expected(3))
    with pytest.raises(ScheduleError, match="memoize: it is an output"):
        g.realize([4, 4])
    f.compute_at(g, y).memoize()
    with pytest.raises(ScheduleError, match="read outside of g too"):
        h.realize([4, 4])


def test_only_at_root():
    _, _, f, g, h = chain()
    f.async_()
    with pytest.raises(ScheduleError, match=r"async_: it is computed where it is used"):
        h.realize([4, 4])
    g.memoize()
    f.compute_root()
    with pytest.raises(
        ScheduleError, match=r"memoize: it is computed where it is used"
    ):
        h.realize([4, 4])
    with pytest.raises(UnsupportedError, match="eviction key"):
        g.memoize(3)
