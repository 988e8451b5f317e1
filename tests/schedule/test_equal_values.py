"""Halos that several iterations store, each with the same values: such loops run on threads."""

from __future__ import annotations

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError, VerifyError
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import Buffer, Cast, Expr, Select, const, var
from tilewright.loops.nodes import Alloc, For, Kernel, Stmt, Store, Update, block, loop
from tilewright.loops.verify import verify
from tilewright.schedule import Schedule

i32 = dtypes.int32
X, T, Y = Buffer("X", (18,), i32), Buffer("T", (18,), i32), Buffer("Y", (16,), i32)
TILE, ROW, OUT = var("o"), var("h"), var("i")
AT = TILE * 4 + ROW


def tiles(halo: Stmt, use: Expr = T[TILE * 4 + OUT] + T[TILE * 4 + OUT + 2]) -> Kernel:
    """Tiles of four results, each of which makes the six elements of T that it reads."""
    result = loop(OUT, 4, Store(Y, (TILE * 4 + OUT,), use))
    body = loop(TILE, 4, block(loop(ROW, 6, halo), result))
    return Kernel("tiles", (X, Y), (Y,), Alloc(T, body))


def twice(index: Expr = AT) -> Stmt:
    return Store(T, (index,), X[AT] * 2)


@pytest.mark.parametrize("verb", ["parallel", "vthread"])
def test_a_halo_that_is_computed_again(verb, check_same):
    s = Schedule(tiles(twice()))
    getattr(s, verb)("o")
    check_same(s.original, s, exact=True)


def test_a_halo_with_a_guard_in_its_value(check_same):
    inside = Select((AT >= 1) & (AT < 17), X[AT - 1], const(0, i32))
    s = Schedule(tiles(Store(T, (AT,), inside)))
    s.parallel("o")
    check_same(s.original, s, exact=True)


def test_a_halo_of_two_axes(check_same):
    """The window moves along both, and backwards along one."""
    x, t = Buffer("X", (12, 12), i32), Buffer("T", (12, 12), i32)
    y = Buffer("Y", (8, 8), i32)
    a, b, h, w, i, j = (var(n) for n in "abhwij")
    row, column = a * 4 + h, 11 - (b * 4 + w)
    halo = loop(h, 6, loop(w, 6, Store(t, (row, column), x[row, column] + 1)))
    use = t[a * 4 + i + 2, 11 - (b * 4 + j + 2)]
    out = loop(i, 4, loop(j, 4, Store(y, (a * 4 + i, b * 4 + j), use)))
    body = loop(a, 2, loop(b, 2, block(halo, out)))
    s = Schedule(Kernel("window", (x, y), (y,), Alloc(t, body)))
    s.parallel("a")
    s.parallel("b")
    check_same(s.original, s, exact=True)


REFUSED = {
    "its value differs with the tile": tiles(Store(T, (AT,), Cast(TILE, i32))),
    "steps, not stores": tiles(Update((T,), ((AT,),), (X[AT],), reducer("add", i32))),
    "an element of another tile is read": tiles(
        Store(T, (TILE * 4 + Select(ROW < 4, ROW, const(0)),), X[AT])
    ),
    "the value is read that it stores": tiles(Store(T, (AT,), T[AT] + X[AT])),
    "the factor is not one": tiles(Store(T, (TILE * 2 + ROW * 2,), X[AT])),
    "two stores": tiles(block(twice(), Store(T, (AT,), X[AT] * 3))),
    "only some of what is read": tiles(
        twice(), T[TILE * 4 + OUT] + T[Select(OUT < 3, TILE * 4 + OUT + 3, const(17))]
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_tiles_that_keep_their_order(why):
    kernel = REFUSED[why]
    with pytest.raises(ScheduleError, match="loop-carried dependence"):
        Schedule(kernel).parallel("o")
    nest = kernel.body
    assert isinstance(nest, Alloc) and isinstance(nest.body, For)
    f = nest.body
    threads = For(f.var, f.extent, "parallel", f.body)
    with pytest.raises(VerifyError, match="depend on one another"):
        verify(kernel.with_body(Alloc(nest.buffer, threads)))


def test_what_the_loop_itself_writes_is_no_constant_value():
    """T is made of Y, of which another tile may have written elements or not."""
    y, t = Buffer("Y", (18,), i32), Buffer("T", (18,), i32)
    halo = loop(ROW, 6, Store(t, (AT,), y[AT]))
    out = loop(OUT, 4, Store(y, (TILE * 4 + OUT,), t[TILE * 4 + OUT + 2]))
    body = Alloc(t, loop(TILE, 4, block(halo, out)))
    with pytest.raises(ScheduleError, match="loop-carried dependence"):
        Schedule(Kernel("in_place", (y,), (y,), body)).parallel("o")
