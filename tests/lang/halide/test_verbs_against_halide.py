"""Directives and functions beside the usual ones: the same lines here and in `halide`."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import InputError, ScheduleError

theirs = pytest.importorskip("halide")

RNG = np.random.default_rng(3)
IMAGE = RNG.integers(-1000, 1000, (12, 20)).astype(np.int32)


def both(make, sizes=(20, 12)):
    """`make(module, image)` realized by both modules; what they give, ours first."""
    results = []
    for m in (hl, theirs):
        found = make(m, m.Buffer(IMAGE.copy())).realize(list(sizes))
        several = found if isinstance(found, tuple | list) else (found,)
        results.append([np.asarray(b) for b in several])
    for ours, want in zip(*results, strict=True):
        assert ours.dtype == want.dtype
        np.testing.assert_array_equal(ours, want)


BITS = {
    "counts": lambda m, w, x: (
        m.popcount(w),
        m.popcount(m.u8(w)),
        m.i32(m.count_leading_zeros(m.u16(x))),
        m.i32(m.count_trailing_zeros(w)),
    ),
    "shifts by values": lambda m, w, x: (
        w << (x % 7 - 3),
        w >> (x % 7 - 3),
        1 << (x % 20),
        m.u8(w) << m.i32(x),
        100000 >> x,
    ),
    "shifts that widen": lambda m, w, x: (
        m.widening_shift_left(m.u8(w), 3),
        m.widening_shift_right(m.i16(w), 2),
        m.rounding_shift_left(m.i16(w), x % 5 - 2),
        m.rounding_shift_right(m.i16(w), x % 5 - 2),
        m.rounding_shift_left(m.i8(w), -2),
    ),
    "wider lefts": lambda m, w, x: (
        m.widen_right_add(w, m.i16(w)),
        m.widen_right_sub(w, m.i16(w)),
        m.widen_right_mul(w, m.i16(w)),
    ),
    "parts": lambda m, w, x: (
        m.concat_bits([m.u8(w), m.u8(x), m.u8(3), m.u8(w)]),
        m.extract_bits(m.UInt(8), m.u32(w), 5),
        m.extract_bits(m.UInt(16), m.u32(w), x),
        m.extract_bits(m.Int(16), w, 28),
    ),
    "powers": lambda m, w, x: (5 ^ w, m.logical_not(w > 0)),
}


@pytest.mark.parametrize("name", BITS)
def test_bits(name):
    def make(m, image):
        x, y, f = m.Var("x"), m.Var("y"), m.Func("f")
        f[x, y] = m.Tuple(BITS[name](m, image[x, y], x))
        return f

    both(make)


def chain(m, image):
    """A producer, its consumer, and their Vars."""
    x, y, f, g = m.Var("x"), m.Var("y"), m.Func("f"), m.Func("g")
    f[x, y] = image[m.clamp(x, 0, 19), m.clamp(y, 0, 11)] + x * 3 - y
    g[x, y] = f[x, y] + f[x + 1, y] * 2 + f[x, y + 2]
    return x, y, f, g


def looplevel_set_later(m, x, y, f, g):
    level = m.LoopLevel()
    f.compute_at(level)
    level.set(m.LoopLevel(g, y))


VERBS = {
    "align bounds": lambda m, x, y, f, g: f.compute_root().align_bounds(x, 8, 3),
    "align extent": lambda m, x, y, f, g: f.compute_at(g, y).align_extent(x, 16),
    "bound extent": lambda m, x, y, f, g: f.compute_root().bound_extent(x, 21),
    "align storage": lambda m, x, y, f, g: f.compute_root().align_storage(x, 16),
    "bound storage": lambda m, x, y, f, g: f.compute_at(g, y).bound_storage(x, 64),
    "hoist": lambda m, x, y, f, g: f.compute_at(g, x).hoist_storage(g, y),
    "hoist root": lambda m, x, y, f, g: f.compute_at(g, y).hoist_storage_root(),
    "level": lambda m, x, y, f, g: f.compute_at(m.LoopLevel(g, y)).store_root(),
    "level at root": lambda m, x, y, f, g: f.compute_at(m.LoopLevel.root()),
    "level set later": looplevel_set_later,
    **{
        tail: lambda m, x, y, f, g, tail=tail: g.vectorize(
            x, 8, getattr(m.TailStrategy, tail)
        )
        for tail in ("GuardWithIf", "Predicate", "PredicateLoads", "ShiftInwards")
    },
    "size that is": lambda m, x, y, f, g: g.specialize(
        g.output_buffer().width() >= 16
    ).vectorize(x, 4),
    "size that is not": lambda m, x, y, f, g: g.specialize(
        g.output_buffer().dim(1).extent() > 90
    ).vectorize(x, 4),
}


# One of each kind always; the others with the slow tests.
OFTEN = [
    "align bounds",
    "align storage",
    "hoist",
    "level",
    "GuardWithIf",
    "size that is",
]


@pytest.mark.parametrize(
    "verb",
    [
        *OFTEN,
        *(pytest.param(v, marks=pytest.mark.slow) for v in VERBS if v not in OFTEN),
    ],
)
def test_verbs(verb):
    def make(m, image):
        x, y, f, g = chain(m, image)
        VERBS[verb](m, x, y, f, g)
        return g

    both(make)


PARTED = {
    "policy": lambda m, g, x: g.partition(x, m.Partition.Always),
    "verb": lambda m, g, x: g.always_partition([x]),
}


@pytest.mark.parametrize("name", PARTED)
def test_parted_loops(name):
    def make(m, image):
        x, y, g = m.Var("x"), m.Var("y"), m.Func("g")
        g[x, y] = m.BoundaryConditions.constant_exterior(image, 0)[x - 3, y]
        PARTED[name](m, g, x)
        return g

    both(make)


def test_what_the_verbs_did():
    x, y, f, g = chain(hl, hl.Buffer(IMAGE))
    f.compute_root().align_bounds(x, 8, 3).align_storage(y, 4)
    assert "f: int32[14, 32]" in repr(g.kernel([20, 12]))  # x is -5 .. 26
    f.align_storage(x, 48)
    assert "f: int32[14, 48]" in repr(g.kernel([20, 12]))
    f.bound_storage(y, 5)
    with pytest.raises(ScheduleError, match="14 coordinates of y are stored, not 5"):
        g.kernel([20, 12])
    special = g.specialize(g.output_buffer().width() >= 16)
    f.bound_storage(y, 50)
    special.vectorize(x, 4)
    assert "vector" in repr(g.kernel([20, 12]))
    assert "vector" not in repr(g.kernel([12, 12]))


def test_a_level_is_where_it_says_at_last():
    nests = []
    for late in (True, False):
        _, y, f, g = chain(hl, hl.Buffer(IMAGE, name="image"))
        level = hl.LoopLevel()
        f.compute_at(level)
        with pytest.raises(ScheduleError, match="a LoopLevel is used that is not set"):
            g.kernel([20, 12])
        if late:
            level.set(hl.LoopLevel(g, y))
        else:
            f.compute_at(g, y)
        nests.append(g.loop_nest([20, 12]))
    assert nests[0] == nests[1] and "  store f" in nests[0]


def test_a_level_of_one_definition():
    x, y, f, g = chain(hl, hl.Buffer(IMAGE))
    h = hl.Func("h")
    h[x, y] = x
    h[x, y] += f[x, y] + g[x, y]
    f.compute_at(hl.LoopLevel(h, y, 1))
    g.compute_root()
    assert hl.LoopLevel(h, y, 1).stage_index() == 1
    f.compute_at(hl.LoopLevel(h, y, 0))
    with pytest.raises(
        ScheduleError, match=r"compute_at\(h, y\): does not use it|no such"
    ):
        h.kernel([8, 8])


def test_loops_that_do_not_meet_at_the_start():
    _, y, f, g = chain(hl, hl.Buffer(IMAGE))
    f.compute_root()
    with pytest.raises(ScheduleError, match="AlignEnd"):
        g.compute_with(f, y, hl.LoopAlignStrategy.AlignEnd)


def test_a_loop_without_guards_cannot_be_parted():
    f, x = hl.Func("f"), hl.Var("x")
    f[x] = x
    f.always_partition_all()
    with pytest.raises(ScheduleError, match="partition_loop"):
        f.kernel([8])


def test_a_bound_that_is_too_small():
    x, _, f, g = chain(hl, hl.Buffer(IMAGE))
    f.compute_root().bound_extent(x, 20)
    with pytest.raises(InputError, match=r"0..20, which leaves the bound 0..19"):
        g.kernel([20, 12])


def test_an_extent_is_promised_of_each_part():
    """Of what one iteration needs, where a Func is computed in a loop."""
    x, _, f, g = chain(hl, hl.Buffer(IMAGE))
    xi = hl.Var("xi")
    g.split(x, x, xi, 4)
    f.compute_at(g, x).bound_extent(x, 5)
    assert np.asarray(g.realize([20, 12])).any()
    f.bound_extent(x, 4)
    with pytest.raises(ScheduleError, match="5 of x are needed at a time, 4"):
        g.kernel([20, 12])


def test_aligned_outputs_are_realized_whole():
    x, _, _, g = chain(hl, hl.Buffer(IMAGE))
    g.align_extent(x, 8)
    with pytest.raises(InputError, match=r"needed over \[0..23"):
        g.kernel([20, 12])


def total(m, image):
    r, x = m.RDom([(0, 20), (0, 12)]), m.Var("x")
    f = m.Func("f")
    f[x] = 0
    f[x] += image[r.x, r.y] * x
    return x, r, f


ATOMIC = {
    "vector": lambda m, x, r, s: s.atomic().vectorize(r.x, 4),
    "threads": lambda m, x, r, s: s.atomic().parallel(r.y),
    "vector of another": lambda m, x, r, s: (
        s.reorder(x, r.x, r.y).atomic().vectorize(x, 4)
    ),
}


@pytest.mark.parametrize("name", ATOMIC)
def test_atomic(name):
    def make(m, image):
        x, r, f = total(m, image)
        ATOMIC[name](m, x, r, f.update())
        return f

    both(make, [8])


def test_without_atomic_a_reduction_does_not_run_together():
    _, r, f = total(hl, hl.Buffer(IMAGE))
    f.update().parallel(r.y)
    with pytest.raises(ScheduleError, match="loop-carried dependence"):
        f.kernel([8])


def test_atomic_needs_an_operator():
    f, r, x = hl.Func("f"), hl.RDom([(1, 7)]), hl.Var("x")
    f[x] = x
    f[r] = f[r - 1] * 2 + 1
    f.update().atomic().vectorize(r)
    with pytest.raises(ScheduleError):
        f.kernel([8])


@pytest.mark.parametrize(
    "wide", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 2, 7))]
)
def test_an_inner_func_and_the_output_are_specialized(wide):
    def make(m, image):
        x, _, f, g = chain(m, image)
        p = m.Param(m.Int(32), "wide", wide)
        f.compute_root().specialize(p == 1).vectorize(x, 4)
        g.specialize(p == 2).vectorize(x, 2)
        g.specialize(p > 1).unroll(x, 2)
        g.specialize(p > 0).specialize(p == 7).parallel(m.Var("y"))
        return g

    both(make)


def implicit(m, image):
    x, f, g = m.Var("x"), m.Func("f"), m.Func("g")
    f[m._] = image[m._] * 2
    g[x, m._] = f[x, m._] + x
    return g


def test_dimensions_that_are_not_named():
    both(implicit)


def test_declared_types():
    x, f = hl.Var("x"), hl.Func(hl.Int(32), 1, "f")
    assert f.name() == "f"
    with pytest.raises(InputError, match="2 dimensions and the types int32"):
        f[x, hl.Var("y")] = x
    f[x] = x
    assert f.rvars is not None and f.values()[0].type() == hl.Int(32)


def random(m, which, seed):
    x, y, f = m.Var("x"), m.Var("y"), m.Func("f")
    f[x, y] = getattr(m, which)(*seed)
    return np.asarray(f.realize([64, 64]))


@pytest.mark.parametrize(
    "which",
    ["random_float", pytest.param("random_int", marks=pytest.mark.slow), "random_uint"],
)
def test_random(which):
    """Other numbers than theirs, of the same type and spread; the same for the same seed."""
    ours, want = random(hl, which, ()), random(theirs, which, ())
    assert ours.dtype == want.dtype
    unit = (
        ours.astype(float)
        if which == "random_float"
        else ours.astype(np.uint32) / 2.0**32
    )
    assert 0 <= unit.min() and unit.max() < 1
    assert abs(unit.mean() - 0.5) < 0.02 and abs(unit.std() - 12**-0.5) < 0.02
    for axis in (0, 1):  # neighbors have nothing to do with one another
        pairs = np.corrcoef(unit.ravel(), np.roll(unit, 1, axis).ravel())
        assert abs(pairs[0, 1]) < 0.06
    assert (random(hl, which, (7,)) == random(hl, which, (7,))).all()
    assert (random(hl, which, (7,)) != random(hl, which, (8,))).mean() > 0.9
    assert (random(hl, which, ()) != ours).mean() > 0.9


def test_random_numbers_do_not_depend_on_the_schedule():
    def make(schedule):
        x, y, f, g = hl.Var("x"), hl.Var("y"), hl.Func("f"), hl.Func("g")
        f[x, y] = hl.random_int(1)
        g[x, y] = f[x, y] - f[x + 1, y]
        schedule(f, g, x, y)
        return np.asarray(g.realize([20, 6]))

    inline = make(lambda f, g, x, y: None)
    rows = make(lambda f, g, x, y: f.compute_at(g, y).vectorize(x, 4))
    np.testing.assert_array_equal(inline, rows)
