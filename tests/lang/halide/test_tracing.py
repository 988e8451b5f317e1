"""What print and traces tell: the lines of the `halide` package, for the same schedules."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import InputError

theirs = pytest.importorskip("halide")


def lines(text):
    """The stores and loads, whatever Funcs are numbered by."""
    found = [x for x in text.splitlines() if x.startswith(("Store", "Load"))]
    return [re.sub(r"^(\w+ [a-z]+)[$\d]*\.", r"\1.", x) for x in found]


def both(make, sizes, capfd):
    """What both modules print."""
    told = []
    for m in (hl, theirs):
        make(m).realize(list(sizes))
        told.append(capfd.readouterr().out)
    return told


def pipeline(m, schedule):
    x, y, f, g = m.Var("x"), m.Var("y"), m.Func("f"), m.Func("g")
    f[x, y] = x * 2 + y
    g[x, y] = f[x, y] + f[x, y + 1]
    f.trace_stores()
    f.trace_loads()
    g.trace_stores()
    schedule(m, f, g, x, y)
    return g


SCHEDULES = {
    "root": lambda m, f, g, x, y: f.compute_root(),
    "in a loop": lambda m, f, g, x, y: f.compute_at(g, y),
    "in tiles": lambda m, f, g, x, y: (
        g.split(y, y, m.Var("yi"), 2) and f.compute_at(g, y).store_root()
    ),
    "columns": lambda m, f, g, x, y: (
        g.reorder(y, x),
        f.compute_at(g, x).reorder(y, x),
    ),
    "inline": lambda m, f, g, x, y: None,
}


@pytest.mark.representatives("in tiles", "inline")  # stored further out, and not at all
@pytest.mark.parametrize("name", SCHEDULES)
def test_stores_and_loads(name, capfd):
    ours, want = both(lambda m: pipeline(m, SCHEDULES[name]), [2, 4], capfd)
    assert lines(ours) == lines(want) and len(lines(ours)) >= 8


def begins_and_ends(text):
    """The lines about realizations, whatever Funcs and pipelines are numbered by."""
    words = ("Begin", "End", "Tag", "Produce", "Consume")
    found = [x for x in text.splitlines() if x.startswith(words)]
    return [re.sub(r"(\w+?)(\$\d+|_\d+)?\.0\(", r"\1.0(", x) for x in found]


def realized(m, schedule):
    names = ("x", "y", "xo", "xi", "yo", "yi")
    v = {name: m.Var(name) for name in names}
    x, y = v["x"], v["y"]
    f, g, h, r = m.Func("f"), m.Func("g"), m.Func("h"), m.RDom([(0, 2)], "r")
    f[x, y] = m.Tuple([x + y, m.f32(x)])
    g[x, y] = f[x, y][0] + f[x + 1, y][0]
    g[x, y] += r.x * f[x, y + 1][0]
    h[x, y] = g[x, y - 1] * 2
    for func in (f, g, h):
        func.trace_realizations()
    g.add_trace_tag("of two definitions")
    schedule(f, g, h, v)
    return h


REALIZED = {
    "root": lambda f, g, h, v: (f.compute_root(), g.compute_root()),
    "row": lambda f, g, h, v: (f.compute_root(), g.compute_at(h, v["y"])),
    "both at a row": lambda f, g, h, v: (
        f.compute_at(h, v["y"]),
        g.compute_at(h, v["y"]),
    ),
    "inlined": lambda f, g, h, v: g.compute_at(h, v["x"]) and None,
    "tiles": lambda f, g, h, v: (
        h.tile(v["x"], v["y"], v["xo"], v["yo"], v["xi"], v["yi"], 4, 2),
        h.vectorize(v["xi"], 2).unroll(v["yi"]),
        g.compute_at(h, v["xo"]).vectorize(v["x"], 2),
        f.compute_at(h, v["yo"]),
    ),
    "columns": lambda f, g, h, v: (
        h.reorder(v["y"], v["x"]).split(v["x"], v["xo"], v["xi"], 3),
        f.compute_root(),
        g.compute_at(h, v["xo"]),
    ),
    "fused": lambda f, g, h, v: (
        h.fuse(v["x"], v["y"], v["xo"]),
        f.compute_root(),
        g.compute_root().split(v["x"], v["xo"], v["xi"], 2),
    ),
}


# before all loops, in one, of both Funcs, and over loops that schedules made
@pytest.mark.representatives("root", "both at a row", "fused")
@pytest.mark.parametrize("name", REALIZED)
def test_realizations(name, capfd):
    ours, want = both(lambda m: realized(m, REALIZED[name]), [8, 4], capfd)
    assert begins_and_ends(ours) == begins_and_ends(want)
    assert len(begins_and_ends(ours)) >= 10


@pytest.mark.parametrize("tail", ["GuardWithIf", "ShiftInwards"])
def test_regions_of_partial_tiles(tail, capfd):
    def tiled(m):
        x, xo, xi, f, g = *map(m.Var, ("x", "xo", "xi")), m.Func("f"), m.Func("g")
        f[x] = m.f64(x)
        g[x] = f[x] + f[x + 1]
        g.split(x, xo, xi, 4, getattr(m.TailStrategy, tail))
        f.compute_at(g, xo).trace_realizations().trace_stores().trace_loads()
        return g

    ours, want = both(tiled, [6], capfd)
    assert begins_and_ends(ours) == begins_and_ends(want)
    assert {*lines(ours)} == {*lines(want)}


def test_a_sliding_window_computes_its_first_rows_before_the_loop(capfd):
    """Where Halide computes them in the first iteration."""
    x, y, f, g = *hl.vars("x y"), hl.Func("f"), hl.Func("g")
    f[x, y] = x + y
    g[x, y] = f[x, y] + f[x, y + 1]
    f.store_root().compute_at(g, y).trace_realizations()
    g.realize([2, 3])
    told = begins_and_ends(capfd.readouterr().out)
    assert told[2:5] == [
        "Begin realization f.0(0, 2, 0, 4)",
        "Produce f.0(0, 2, 0, 1)",
        "End produce f.0(0, 2, 0, 1)",
    ]
    rows = [x for x in told if x.startswith("Consume")]
    assert rows == [f"Consume f.0(0, 2, {n}, 1)" for n in (1, 2, 3)]


def reduction(m):
    x, r, f = m.Var("x"), m.RDom([(0, 3)]), m.Func("sums")
    f[x] = m.Tuple([m.f32(x) * 0.5, m.i32(x)])
    f[r] = m.Tuple([f[r][0] + 1.0, f[r][1] * r])
    f.trace_stores()
    return f


def test_updates_of_tuples(capfd):
    x, r, f = hl.Var("x"), hl.RDom([(0, 3)]), hl.Func("total")
    f[x] = 0
    f[x] += r * x
    f.trace_stores()
    np.testing.assert_array_equal(f.realize([3]), [0, 3, 6])
    told = lines(capfd.readouterr().out)
    assert [x for x in told if "(2)" in x] == [
        f"Store total.0(2) = {n}" for n in (0, 0, 2, 6)
    ]
    np.testing.assert_array_equal(reduction(hl).realize([4])[1], [0, 1, 4, 3])
    assert "Store sums.0(1) = 1.500000" in capfd.readouterr().out


def test_an_image(capfd):
    image, f, x = hl.ImageParam(hl.UInt(8), 1, "im"), hl.Func("f"), hl.Var("x")
    image.set(np.array([7, 8], np.uint8))
    image.trace_loads()
    f[x] = image[x] + 1
    f.vectorize(x, 2)
    assert np.asarray(f.realize([2])).tolist() == [8, 9]
    assert lines(capfd.readouterr().out) == ["Load im.0(0) = 7", "Load im.0(1) = 8"]


def printing(m):
    x, f = m.Var("x"), m.Func("f")
    half = m.print_when(x == 1, m.f32(x) * 0.5, "at", x)
    f[x] = m.print(x * 2, "is twice", x) + m.i32(half)
    return f


def test_printed_values(capfd):
    ours, want = both(printing, [3], capfd)
    assert ours.split() == want.split() and "0.500000 at 1" in ours


def test_what_is_printed_is_a_value():
    with pytest.raises(InputError, match="print without a value"):
        hl.print("nothing")
