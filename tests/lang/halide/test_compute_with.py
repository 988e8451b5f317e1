"""compute_with: loops of two definitions as one, with the results of the `halide` package."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import ScheduleError


def variables(m):
    return {name: m.Var(name) for name in ("x", "y", "xo", "yo", "xi", "yi")}


def two(m):
    v = variables(m)
    x, y = v["x"], v["y"]
    f, g = m.Func("f"), m.Func("g")
    f[x, y] = x + y * y
    g[x, y] = x * y - 3
    return v, f, g


def at_root(m):
    v, f, g = two(m)
    out = m.Func("out")
    out[v["x"], v["y"]] = f[v["x"], v["y"]] * g[v["x"], v["y"]] + f[v["x"] + 1, v["y"]]
    for each in (f, g):
        each.compute_root().split(v["x"], v["xo"], v["xi"], 4).vectorize(v["xi"])
        each.parallel(v["y"])
    g.compute_with(f, v["xo"])
    return out.realize([16, 8])


def outputs(m):
    v, f, g = two(m)
    for each in (f, g):
        each.tile(v["x"], v["y"], v["xo"], v["yo"], v["xi"], v["yi"], 8, 4)
    f.compute_with(g, v["xo"])
    return m.Pipeline([f, g]).realize([16, 8])


def in_a_loop(m):
    v, f, g = two(m)
    x, y, out = v["x"], v["y"], m.Func("out")
    out[x, y] = f[x, y] + g[x, y] + f[x, y + 1] * g[x + 1, y]
    f.compute_at(out, y)
    g.compute_at(out, y)
    g.compute_with(f, y)
    return out.realize([16, 8])


def three(m):
    v, f, g = two(m)
    x, y, h, out = v["x"], v["y"], m.Func("h"), m.Func("out")
    h[x, y] = 2 * x - y
    out[x, y] = f[x, y] + g[x, y] * h[x, y]
    for each in (f, g, h):
        each.compute_root()
    g.compute_with(f, y)
    h.compute_with(f, y)
    return out.realize([12, 9])


def updates(m):
    v, r = variables(m), m.RDom([(0, 6)], "r")
    x, out = v["x"], m.Func("out")
    f, g = m.Func("f"), m.Func("g")
    f[x], g[x] = 0, 1
    f[x] += r * x
    g[x] += r + x
    out[x] = f[x] - g[x]
    for each in (f, g):
        each.compute_root()
        each.update(0).reorder(x, r.x)
    g.update(0).compute_with(f.update(0), r.x)
    return out.realize([10])


PROGRAMS = (at_root, outputs, in_a_loop, three, updates)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_results_are_those_of_halide(program):
    theirs = pytest.importorskip("halide")
    found, wanted = program(hl), program(theirs)
    found, wanted = (
        v if isinstance(v, tuple | list) else (v,) for v in (found, wanted)
    )
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_loops_are_shared(capsys):
    v, f, g = two(hl)
    f.vectorize(v["x"], 8)
    g.compute_with(f, v["y"])
    pair = hl.Pipeline([f, g])
    pair.print_loop_nest([16, 8])
    assert capsys.readouterr().out.splitlines() == [
        "for y in [0, 7]:",
        "  produce f:",
        "    for x in [0, 1]:",
        "      vectorized x.vector in [0, 7]:",
        "        f(...) = ...",
        "  produce g:",
        "    for x in [0, 15]:",
        "      g(...) = ...",
    ]
    assert "merge" in str(pair.schedule([16, 8]).trace)


def test_a_consumer_may_follow_its_producer():
    x, y = hl.Var("x"), hl.Var("y")
    f, g = hl.Func("f"), hl.Func("g")
    f[x, y] = x + y
    g[x, y] = f[x, y] * 2
    f.compute_root()
    g.compute_with(f, x)
    assert str(g.schedule([8, 4]).kernel).count("for ") == 2
    np.testing.assert_array_equal(g.realize([3, 2]), [[0, 2, 4], [2, 4, 6]])


def needs_later_rows(m, v, f, g):
    g[v["x"], v["y"]] = f[v["x"], v["y"]] + f[v["x"], v["y"] + 1]
    f.compute_root()
    g.compute_with(f, v["y"])


def other_loops(m, v, f, g):
    g[v["x"], v["y"]] = f[v["x"], v["y"]]
    f.compute_root().reorder(v["y"], v["x"])
    g.compute_with(f, v["y"])


def other_kinds(m, v, f, g):
    g[v["x"], v["y"]] = f[v["x"], v["y"]]
    f.compute_root().parallel(v["y"])
    g.compute_with(f, v["y"])


def inlined(m, v, f, g):
    g[v["x"], v["y"]] = f[v["x"], v["y"]]
    g.compute_with(f, v["y"])


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        (
            needs_later_rows,
            r"g, .*merge: the second loop depends on.*f\[.*compute one at",
        ),
        (other_loops, r"its loops down to y are y, those of f are x, y.*same order"),
        (other_kinds, "loop y is serial here and parallel there"),
        (inlined, "f is computed in 0 places, this in 1"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_what_cannot_be_shared(schedule, problem):
    v = variables(hl)
    f, g = hl.Func("f"), hl.Func("g")
    f[v["x"], v["y"]] = v["x"] + v["y"]
    schedule(hl, v, f, g)
    with pytest.raises(ScheduleError, match=problem) as raised:
        g.kernel([8, 4])
    assert "test_compute_with.py" in str(raised.value)


def test_a_loop_or_func_that_is_not_there():
    v, f, g = two(hl)
    for other, var, problem in (
        (f, v["xi"], "there is no loop xi"),
        (g, v["x"], "name another Func"),
        ("f", v["x"], "name another Func"),
    ):
        before = g.schedule_key()
        with pytest.raises(ScheduleError, match=problem):
            g.compute_with(other, var)
        assert g.schedule_key() == before
