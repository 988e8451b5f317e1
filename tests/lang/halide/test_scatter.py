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
