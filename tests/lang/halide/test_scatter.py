"""scatter and gather, beside the `halide` package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import InputError, UnsupportedError

theirs = pytest.importorskip("halide")


def start(m: Any) -> Any:
    f, x = m.Func("f"), m.Var("x")
    f[x] = x * x
    return f


def exchanged(m: Any) -> Any:
    f = start(m)
    f[m.scatter([3, 5])] = m.gather([f[5], f[3]])
    return f


def distributed(m: Any) -> Any:
    f, x, y, c = m.Func("f"), *(m.Var(v) for v in "xyc")
    f[x, y, c] = 0
    r = m.RDom([(1, 4), (1, 4), (1, 4)])
    places = (
        r.x + m.scatter([1, 0, 0]),
        r.y + m.scatter([0, 3, 0]),
        r.z + m.scatter([0, 0, 2]),
    )
    f[places] = 2 * m.gather([r.x, r.y, r.z])
    return f


def rightmost(m: Any) -> Any:
    f, r = start(m), m.RDom([(0, 3)])
    f[m.scatter([r.x, r.x + 1, r.x])] = m.gather([3, 4, 5])
    return f


def chosen(m: Any) -> Any:
    f, p = start(m), m.Param(m.Bool(), "p", True)
    f[m.scatter([3, 5])] = f[m.select(p, m.gather([5, 3]), m.gather([3, 5]))]
    return f


def sorted_in_place(m: Any) -> Any:
    """A network of comparisons: odd-even transposition."""
    f, x = m.Func("f"), m.Var("x")
    f[x] = (x * 7 + 3) % 11
    r = m.RDom([(0, 5), (0, 10)])
    at = r.x * 2 + r.y % 2
    r.where(at < 9)
    lower, upper = m.min(f[at], f[at + 1]), m.max(f[at], f[at + 1])
    f[m.scatter([at, at + 1])] = m.gather([lower, upper])
    return f


def counted(m: Any) -> Any:
    f, x, y = m.Func("f"), m.Var("x"), m.Var("y")
    f[x, y] = x + y
    f[x, m.scatter([1, 2])] += m.gather([f[x, 2], f[x, 1]])
    return f


def several(m: Any) -> Any:
    f, x = m.Func("f"), m.Var("x")
    f[x] = (x, m.f32(x) * 0.5)
    f[m.scatter([1, 6])] = (m.gather([f[6][0], f[1][0]]), m.gather([f[6][1], f[1][1]]))
    return f


PROGRAMS: list[tuple[Callable[[Any], Any], list[int]]] = [
    (exchanged, [8]),
    (distributed, [7, 9, 8]),
    (rightmost, [6]),
    (chosen, [8]),
    (sorted_in_place, [10]),
    (counted, [5, 4]),
    (several, [8]),
]


@pytest.mark.parametrize(("program", "size"), PROGRAMS)
def test_as_halide_has_it(program: Callable[[Any], Any], size: list[int]) -> None:
    def results(m: Any) -> list[Any]:
        found = program(m).realize(size)
        several = found if isinstance(found, tuple | list) else [found]
        return [np.asarray(b) for b in several]

    for mine, other in zip(results(hl), results(theirs), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_the_updates_can_be_scheduled() -> None:
    f = counted(hl)
    x = hl.Var("x")
    plain = np.asarray(counted(hl).realize([37, 4]))
    f.update().vectorize(x, 8)
    np.testing.assert_array_equal(np.asarray(f.realize([37, 4])), plain)
    assert "vector" in str(f.kernel([37, 4]))


IMAGE = np.random.default_rng(0).integers(0, 12, (16, 24)).astype(np.uint8)


def counted_by_tiles(m: Any) -> tuple[Any, Any]:
    """Histograms of tiles of 4 by 4, of which each result reads three neighboring counts."""
    x, y, z = m.Var("x"), m.Var("y"), m.Var("z")
    r, image = m.RDom([(0, 4), (0, 4)]), m.Buffer(IMAGE)
    counts, blurred = m.Func("counts"), m.Func("blurred")
    counts[x, y, z] = 0
    counts[x, y, m.clamp(m.i32(image[x * 4 + r.x, y * 4 + r.y]), 0, 11)] += 1
    low, high = m.max(z - 1, 0), m.min(z + 1, 11)
    blurred[x, y, z] = counts[x, y, low] + 2 * counts[x, y, z] + counts[x, y, high]
    counts.compute_at(blurred, x)
    return blurred, counts


def test_where_a_scatter_is_needed_it_is_computed_whole() -> None:
    mine, other = (
        np.asarray(counted_by_tiles(m)[0].realize([6, 4, 12])) for m in (hl, theirs)
    )
    np.testing.assert_array_equal(mine, other)
    kernel = counted_by_tiles(hl)[0].kernel([6, 4, 12])
    assert "alloc counts: int32[12, 1, 1]" in str(kernel)


def test_what_is_wrong_is_said() -> None:
    f, x = start(hl), hl.Var("x")
    with pytest.raises(InputError, match="of 2 and 3 numbers"):
        f[hl.scatter([1, 2])] = hl.gather([1, 2, 3])
        f.realize([4])
    g = hl.Func("g")
    with pytest.raises(InputError, match="in its pure definition"):
        g[x] = hl.gather([1, 2])
    with pytest.raises(InputError, match=r"gather of \[\]"):
        hl.gather([])
    h = start(hl)
    h[hl.scatter([hl.clamp(h[0], 0, 3), hl.clamp(h[1], 0, 3)])] = hl.gather([1, 2])
    with pytest.raises(UnsupportedError, match="whose place they decide"):
        h.realize([4])
