"""A verb does what it says or refuses, and one that refuses has changed nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import InputError, ScheduleError, TilewrightError

x, y, u, xi, yi, xo = (hl.Var(n) for n in ("x", "y", "u", "xi", "yi", "xo"))


def plane(name="f"):
    f = hl.Func(name)
    f[x, y] = x + y * 10
    return f


def reader(f, name="g"):
    g = hl.Func(name)
    g[x, y] = f[x, y] * 2
    return g


def row_sums():
    f, r = hl.Func("f"), hl.RDom([(0, 8), (0, 3)], "r")
    f[x] = 0
    f[x] += hl.i32(x) * r.x + r.y
    return f, r


def test_a_refused_rfactor_leaves_the_update_as_it_was():
    f, r = row_sums()
    update = f.update().split(r.x, hl.RVar("ro"), hl.RVar("ri"), 4).parallel(x)
    before = f.schedule_key()
    with pytest.raises(ScheduleError, match="has been scheduled already"):
        update.rfactor(hl.RVar("ro"), u)
    assert f.schedule_key() == before
    want = [sum(n * a + b for a in range(8) for b in range(3)) for n in range(5)]
    np.testing.assert_array_equal(f.realize([5]), want)


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(lambda r: [[(r.x, u), (r.x, xi)]], id="an-rvar-twice"),
        pytest.param(lambda r: [[(r.x, u), (r.y, u)]], id="a-var-twice"),
        pytest.param(lambda r: [r.x], id="no-pair"),
        pytest.param(lambda r: [r.x, 3], id="no-var"),
        pytest.param(lambda r: [hl.RVar("q"), u], id="no-rvar-of-it"),
    ],
)
def test_rfactor_of_what_are_no_pairs(kept):
    f, r = row_sums()
    with pytest.raises(TilewrightError, match="rfactor"):
        f.update().rfactor(*kept(r))
    assert f.realize([2])[1] == 28 * 3 + 3 * 8


@pytest.mark.parametrize(
    ("verb", "problem"),
    [
        pytest.param(lambda f: f.tile(x, u, xi, yi, 4, 4), "no loop u", id="tile"),
        pytest.param(
            lambda f: f.tile(x, y, xi, yi, 4, 0), "the factor is 0", id="tile-by-0"
        ),
        pytest.param(lambda f: f.parallel(x, 0), "the factor is 0", id="parallel"),
        pytest.param(
            lambda f: f.split(x, y, xi, 4), "two loops y", id="split-onto-another"
        ),
        pytest.param(
            lambda f: f.split(x, xo, xo, 4), "two loops xo", id="split-onto-itself"
        ),
        pytest.param(lambda f: f.fuse(x, x, u), "two loops x", id="fuse-with-itself"),
        pytest.param(lambda f: f.reorder(x, x), "two loops x", id="reorder"),
        pytest.param(lambda f: f.rename(x, y), "two loops y", id="rename"),
        pytest.param(
            lambda f: f.fold_storage(u, 4), "no dimension u", id="fold-storage"
        ),
        pytest.param(lambda f: f.bound(u, 0, 4), "no dimension u", id="bound"),
        pytest.param(
            lambda f: f.set_estimate(u, 0, 4), "no dimension u", id="estimate"
        ),
        pytest.param(
            lambda f: f.set_estimates([(0, 4)]), "1 dimensions", id="estimates"
        ),
        pytest.param(lambda f: f.compute_at("g", x), "name a Func", id="compute-at"),
        pytest.param(lambda f: f.store_in("stack"), "store_in", id="store-in"),
    ],
)
def test_a_refused_verb_has_said_nothing(verb, problem):
    f = plane()
    before = f.schedule_key()
    with pytest.raises(TilewrightError, match=problem):
        verb(f)
    assert f.schedule_key() == before
    assert f.plan(0).vars == ["x", "y"]
    np.testing.assert_array_equal(f.realize([8, 4]), plane().realize([8, 4]))


def test_a_ring_that_is_asked_for_is_made_or_refused():
    f, g = plane(), hl.Func("g")
    g[x, y] = f[x, y] + f[x, y + 1]
    f.compute_root().fold_storage(y, 4)
    with pytest.raises(
        ScheduleError, match=r"f, test_refusals.py:\d+: .*rows are alive at once"
    ):
        g.realize([8, 16])


# -- in_ and clone_in


@pytest.mark.parametrize("verb", ["in_", "clone_in"])
def test_who_does_not_read_it_cannot_read_a_wrapper(verb):
    f, other = plane(), plane("other")
    g = reader(f)
    with pytest.raises(InputError, match=r"other does not read it.* these do: g"):
        getattr(f, verb)(other)
    with pytest.raises(
        InputError, match=r"later does not read it.* define later first"
    ):
        getattr(f, verb)(hl.Func("later"))
    with pytest.raises(InputError, match="no reader is named"):
        getattr(f, verb)([])
    with pytest.raises(InputError, match="is not a Func"):
        getattr(f, verb)(x)
    with pytest.raises(InputError, match="does not read it"):
        getattr(f, verb)(f)
    wrapper = getattr(f, verb)(g)
    assert getattr(f, verb)([g]) is wrapper
    with pytest.raises(InputError, match="g does not read it"):
        getattr(f, "clone_in" if verb == "in_" else "in_")(g)


def test_in_of_what_is_not_defined():
    with pytest.raises(InputError, match="not defined"):
        hl.Func("f").in_()


@pytest.mark.parametrize("verb", ["in_", "clone_in"])
def test_the_condition_of_an_rdom_reads_the_wrapper(verb):
    limit, g, r = hl.Func("limit"), hl.Func("g"), hl.RDom([(0, 10)], "r")
    limit[x] = x + 2
    r.where(r < limit[x])
    g[x] = 0
    g[x] += r.x
    wrapper = getattr(limit, verb)(g)
    wrapper.compute_root()
    assert wrapper.name() in repr(g.kernel([4]))
    np.testing.assert_array_equal(g.realize([4]), [1, 3, 6, 10])


def test_later_definitions_of_a_reader_read_its_wrapper():
    f = plane()
    g = reader(f)
    f.in_(g).compute_root()
    g[x, 0] += f[x, 1]
    assert "f_in_g[x, 1]" in repr(g)
    np.testing.assert_array_equal(g.realize([3, 1]), [[10, 13, 16]])


def test_a_wrapper_for_all_is_read_by_all_but_its_own():
    f = plane()
    early = reader(f, "early")
    own = f.in_(early)
    second = reader(f, "second")
    everybody = f.in_()
    late = reader(f, "late")
    assert "f_in_early" in repr(early)
    assert "f_global_wrapper" in repr(second) and "f_global_wrapper" in repr(late)
    assert "= f[" in repr(own) and "= f[" in repr(everybody)
    np.testing.assert_array_equal(late.realize([3, 2]), early.realize([3, 2]))


def test_a_wrapper_of_a_wrapper():
    f = plane()
    g = reader(f)
    first = f.in_(g)
    second = first.in_(g)
    second.compute_at(g, x)
    first.compute_root()
    g[x, 0] = f[x, 5]
    assert repr(g).count("f_in_g_in_g") == 2
    np.testing.assert_array_equal(g.realize([3, 2]), [[50, 51, 52], [20, 22, 24]])


@pytest.mark.parametrize("plain", [True, False], ids=["a-definition", "a-step"])
def test_a_func_that_another_reads_is_not_updated(plain: bool) -> None:
    f, g = hl.Func("f"), hl.Func("g")
    f[x] = x
    g[x] = f[x] + 1
    with pytest.raises(TilewrightError, match="updated after g was defined by it"):
        if plain:
            f[x] = f[x] + g[x]
        else:
            f[x] += g[x]
    np.testing.assert_array_equal(g.realize([4]), [1, 2, 3, 4])
