"""Verbs: what they record, the loops they make, and what is refused, with the user's line."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.syntax.lower import kernel as plain
from tilewright.loops.lower import lower
from tilewright.schedule import replay

x, y, xi, yi, xo, yo, t = (hl.Var(name) for name in "x y xi yi xo yo t".split())


def chain():
    """h reads g above and below, g reads f left and right."""
    f, g, h = hl.Func("f"), hl.Func("g"), hl.Func("h")
    f[x, y] = x + 10 * y
    g[x, y] = f[x - 1, y] + f[x + 1, y]
    h[x, y] = g[x, y - 1] + g[x, y + 1]
    return f, g, h


def nest(f, sizes, capsys) -> str:
    f.print_loop_nest(sizes)
    return capsys.readouterr().out


def test_loop_nests_read_as_halides(capsys):
    f, g, h = chain()
    h.tile(x, y, xi, yi, 8, 4).parallel(y).vectorize(xi)
    g.compute_at(h, x)
    f.compute_at(h, y)
    assert (
        nest(h, [16, 8], capsys)
        == """\
parallel y in [0, 1]:
  store f[18, 6]:
    produce f:
      for y in [0, 5]:
        for x in [0, 17]:
          f(...) = ...
    for x in [0, 1]:
      store g[8, 6]:
        produce g:
          for y in [0, 5]:
            for x in [0, 7]:
              g(...) = ...
        produce h:
          for yi in [0, 3]:
            vectorized xi in [0, 7]:
              h(...) = ...
"""
    )


def test_two_windows_slide_through_one_loop(capsys):
    f, g, h = chain()
    g.store_root().compute_at(h, y)
    f.store_root().compute_at(h, y)
    assert (
        nest(h, [16, 8], capsys)
        == """\
store f[18, 2]:
  produce f:
    for y in [0, 1]:
      for x in [0, 17]:
        f(...) = ...
  store g[16, 4]:
    produce g:
      for y in [0, 1]:
        for x in [0, 15]:
          g(...) = ...
    for y in [0, 7]:
      produce f:
        for y in [0, 0]:
          for x in [0, 17]:
            f(...) = ...
      produce g:
        for y in [0, 0]:
          for x in [0, 15]:
            g(...) = ...
      produce h:
        for x in [0, 15]:
          h(...) = ...
"""
    )


def test_a_producer_of_what_slides_slides_along():
    """f is needed by the first rows of g too, which are computed before the loop."""
    f, g, h = chain()
    g.store_root().compute_at(h, y)
    f.compute_at(h, y)
    got = np.asarray(h.realize([16, 8]))
    np.testing.assert_array_equal(got, np.asarray(chain()[2].realize([16, 8])))


def test_what_was_said_is_a_trace_of_primitives():
    _, g, h = chain()
    h.split(y, yo, yi, 3).parallel(yo)
    g.store_at(h, yo).compute_at(h, yi).fold_storage(y, 3)
    s = h.schedule([16, 8])
    assert [str(step) for step in s.trace.steps] == [
        "compute_inline('f')",
        "split('h.y', 3, tail='overlap')",
        "compute_at('g', 'h.y.o')",
        "slide('g', 'h.y.i')",
        "fold_storage('g', 0, 3)",
        "parallel('h.y.o')",
        "set_scope('g', 'stack')",
    ]
    before = plain(h.regions([16, 8]), "h").kernel
    assert repr(replay(before, s.trace)) == repr(s.kernel)
    assert s.verify() is None


def test_the_default_is_inline_and_the_same_verbs_move_it():
    _, g, h = chain()
    want = np.asarray(h.realize([9, 7]))
    assert "alloc" not in repr(h.kernel([9, 7]))
    g.compute_root()
    assert "alloc g" in repr(h.kernel([9, 7]))
    np.testing.assert_array_equal(h.realize([9, 7]), want)
    g.compute_inline()
    assert "alloc" not in repr(h.kernel([9, 7]))


def test_loops_by_name():
    _, _, h = chain()
    h.split(x, x, xi, 4).reorder(y, xi, x).fuse(xi, x, t).rename(y, yo).unroll(yo)
    text = repr(h.kernel([8, 4]))
    assert "unroll" in text and "for h.x.o_h.x.i in 8" in text
    h2 = chain()[2]
    h2.tile(x, y, xo, yo, xi, yi, 4, 2).serial(xo).parallel(yo)
    assert re.findall(r"for (\S+) in", repr(h2.kernel([8, 4]))) == [
        "h.y.o",
        "h.x.o",
        "h.y.i",
        "h.x.i",
    ]


@pytest.mark.parametrize("tail", list(hl.TailStrategy), ids=lambda v: v.name)
def test_tails(tail):
    _, g, h = chain()
    h.split(x, xo, xi, 4, tail).split(y, yo, yi, 2).vectorize(xi)
    g.compute_at(h, yo)
    if tail is hl.TailStrategy.RoundUp:
        with pytest.raises(ScheduleError, match="4 does not divide its 10 iterations"):
            h.kernel([10, 6])
        return
    got = np.asarray(h.realize([10, 6]))
    np.testing.assert_array_equal(got, np.asarray(chain()[2].realize([10, 6])))


def test_an_update_keeps_its_tail():
    """A shifted tile of an update would add twice: Auto guards it."""
    f, r = hl.Func("f"), hl.RDom([(0, 5)])
    f[x] = 0
    f[x] += r + x
    f.update().split(x, xo, xi, 4)
    np.testing.assert_array_equal(f.realize([10]), 10 + 5 * np.arange(10))
    f.update().split(xo, xo, t, 2, hl.TailStrategy.ShiftInwards)
    with pytest.raises(ScheduleError, match="overlapping tiles repeat iterations"):
        f.realize([10])


# -- refusals: (what is said, message, hint)


def at_no_loop(f, g, h):
    g.compute_at(h, xi)


def at_no_consumer(f, g, h):
    f.compute_root().compute_at(h, y)
    g.compute_root()


def at_a_loop_of_one_use(f, g, h):
    k = hl.Func("k")
    k[x, y] = h[x, y] + g[x, y]
    h.compute_root()
    g.compute_at(k, y)
    return k


def stored_inside(f, g, h):
    g.store_at(h, x).compute_at(h, y)


def shared_by_threads(f, g, h):
    h.parallel(y)
    g.store_root().compute_at(h, y)


def too_small_a_ring(f, g, h):
    g.store_root().compute_at(h, y).fold_storage(y, 2)


def lanes_of_a_reduction(f, g, h):
    s, r = hl.Func("s"), hl.RDom([(0, 8)], "r")
    s[y] = 0
    s[y] = s[y] * 2 + h[r, y]
    s.update().vectorize(r)
    h.compute_root()
    return s


def scattered(f, g, h):
    s, r = hl.Func("s"), hl.RDom([(0, 8)], "r")
    s[x] = 0
    s[hl.clamp(h[r, 0], 0, 7)] += 1
    k = hl.Func("k")
    k[x, y] = s[x] + y
    s.compute_at(k, x)
    return k


def output_elsewhere(f, g, h):
    h.compute_at(g, x)


REFUSED = {
    at_no_loop: (
        r"compute_at\(h, xi\): there is no such loop",
        r"compute_root\(\), compute_at\(h, y\)",
    ),
    at_no_consumer: (
        r"compute_at\(h, y\): does not use it",
        r"compute_root\(\), compute_at\(g, y\)",
    ),
    at_a_loop_of_one_use: (
        "also used outside loop k.y",
        r"legal places: compute_root\(\)$",
    ),
    scattered: (
        "is not one loop",
        r"legal places: compute_root\(\), compute_at\(k, y\)$",
    ),
    stored_inside: ("it is stored at x, inside the loop y", "further out"),
    shared_by_threads: ("loop-carried dependence", "before|memory|loop"),
    too_small_a_ring: ("3 rows are alive at once", "fold by at least 3"),
    lanes_of_a_reduction: ("loop-carried dependence", "split"),
    output_elsewhere: ("it is the output", ""),
}


@pytest.mark.parametrize("say", REFUSED, ids=lambda f: f.__name__)
def test_refusal(say):
    f, g, h = chain()
    message, hint = REFUSED[say]
    with pytest.raises(ScheduleError, match=message) as caught:
        out = say(f, g, h) or h
        out.kernel([8] * out.dimensions())
    assert re.search(hint, caught.value.hint or "")
    line = say.__code__.co_firstlineno
    said = int(re.search(r"test_schedules.py:(\d+)", str(caught.value))[1])
    assert line < said <= line + 7, "the error names the line of the verb"


def unknown_var(h):
    h.split(t, xo, xi, 2)


def vectorize_what_was_split(h):
    h.split(x, xo, xi, 2).vectorize(x)


def tile_arguments(h):
    h.tile(x, y, xi, 4)


def a_number(h):
    h.reorder(3, x)


def no_update(h):
    h.update(0)


def not_defined(h):
    hl.Func("u").vectorize(x)


def factor_what_is_scheduled(h):
    f, r = hl.Func("f"), hl.RDom([(0, 4)], "r")
    f[x] = 0
    f[x] += r
    f.update().unroll(r)
    f.update().rfactor(r, t)


@pytest.mark.parametrize(
    "say, message",
    [
        (factor_what_is_scheduled, "scheduled already"),
        (unknown_var, "split: there is no loop t.*innermost first: x, y"),
        (vectorize_what_was_split, "vector: there is no loop x.*xi, xo, y"),
        (tile_arguments, "6 or 8 arguments"),
        (a_number, "3 is not a Var"),
        (no_update, "no definition 1"),
        (not_defined, "not defined"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_verb_refuses_at_once(say, message):
    with pytest.raises(ScheduleError) as caught:
        say(chain()[2])
    assert re.search(message, str(caught.value)), str(caught.value)
    assert "test_schedules.py:" in str(caught.value)


def test_a_kernel_of_computations_is_the_plain_one():
    """Without reductions, the nests are those of the Computations themselves."""
    _, _, h = chain()
    p = h.regions([6, 5])
    found = h.computations([6, 5])
    out = found[-1].outputs[0].tensor
    assert repr(lower("h", found, [out], [out])) == repr(plain(p, "h").kernel)


def test_a_window_that_halves_slides_down_a_pyramid():
    """Each level is read at y / 2: new rows every other iteration, and the top ones at once."""
    image = hl.Buffer(np.arange(20 * 24, dtype=np.float32).reshape(20, 24))
    levels = [hl.BoundaryConditions.repeat_edge(image)]
    for n in range(4):
        up, under = hl.Func(f"up{n}"), levels[-1]
        up[x, y] = under[x // 2, y // 2] + under[(x + 1) // 2, (y + 1) // 2] * 0.5
        levels.append(up)
    out, yi = levels[-1], hl.Var("yi")
    plain = np.asarray(out.realize([24, 32])).copy()
    out.split(y, y, yi, 8).parallel(y).vectorize(x, 8)
    for f in levels[1:-1]:
        f.store_at(out, y).compute_at(out, yi).vectorize(x, 8)
    trace = str(out.schedule([24, 32]).trace)
    assert "s.slide('up2', 'up3.y.i')" in trace and "s.slide('up1', 'up3.y.i')" in trace
    assert "store_at" not in trace
    np.testing.assert_array_equal(np.asarray(out.realize([24, 32])), plain)
