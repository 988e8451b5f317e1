"""Templates of te: what their knobs offer, and that every configuration computes the same."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tilewright import te
from tilewright.base.errors import InputError, ScheduleError
from tilewright.lang.te.config import Config
from tilewright.lang.te.knobs import Split
from tilewright.lang.te.template import TEMPLATES
from tilewright.loops.verify import verify
from tilewright.tune.base import Candidate, Space
from tilewright.tune.space import ParameterSpace


def matmul(n: int):
    """C = A B of n x n, untouched: its tensors, axes and schedule."""
    A, B = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((n, n), lambda y, x: te.sum(A[y, k] * B[k, x], axis=k), name="C")
    return A, B, C, te.create_schedule(C.op)


@te.template("test.product")
def product(n):
    """The tutorial's product, with everything a knob can do."""
    A, B, C, s = matmul(n)
    y, x = s[C].op.axis
    (k,) = s[C].op.reduce_axis
    cfg = te.get_config()
    cfg.define_split("tile_y", y, num_outputs=3)
    cfg.define_split("tile_x", x, num_outputs=2, filter=lambda e: e.size[-1] <= 8)
    cfg.define_split("tile_k", k, policy="power2", max_factor=4)
    cfg.define_knob("cached", [False, True])
    cfg.constrain(["tile_y", "tile_x"], lambda y, x: y.size[-1] * x.size[-1] <= 32)
    yo, ym, yi = cfg["tile_y"].apply(s, C, y)
    xo, xi = cfg["tile_x"].apply(s, C, x)
    ko, ki = cfg["tile_k"].apply(s, C, k)
    s[C].reorder(yo, xo, ym, ko, ki, yi, xi)
    cfg.define_reorder("order", [ki, yi, xi], "interval_all", interval=(0, 2))
    ki, yi, xi = cfg["order"].apply(s, C, [ki, yi, xi])
    cfg.define_annotate("inner", [yi, xi], "try_unroll_vec")
    cfg["inner"].apply(s, C, [yi, xi])
    if cfg["cached"].val:
        AA = s.cache_read(A, "global", [C])
        s[AA].compute_at(s[C], ko)
    cfg.add_flop(2 * n**3)
    return s, [A, B, C]


def test_the_space_is_counted():
    space: Space = product.space(24)
    triples = [(a, b) for a in range(1, 25) for b in range(1, 25) if 24 % (a * b) == 0]
    tiles = sum(b * x <= 32 for _, b in triples for x in (1, 2, 3, 4, 6, 8))
    inner = 3 * 3 - 1  # not both of them vectors
    assert space.size == tiles * 3 * 2 * 2 * inner
    assert space.operations == 2 * 24**3
    names = ["tile_y.1", "tile_y.2", "tile_x.1", "tile_k.1", "cached", "order", "inner"]
    assert [p.name for p in space.parameters] == names


@pytest.mark.parametrize("count", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_every_configuration_computes_the_product(count):
    n = 12
    space = product.space(n)
    rng, r = np.random.default_rng(0), Random(0)
    a, b = (rng.standard_normal((n, n), np.float32) for _ in range(2))
    built = 0
    for candidate in [space.default(), *(space.sample(r) for _ in range(count))]:
        try:
            s, args = space.at(candidate)
            point = space.schedule(candidate)
        except ScheduleError:
            continue
        verify(point.schedule.kernel)
        assert Candidate.of(point) == candidate
        c = np.empty((n, n), np.float32)
        te.build(s, args, target="interp")(a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)
        built += 1
    assert built > count // 2


def test_the_schedule_has_the_sizes_of_its_candidate():
    space = product.space(24)
    wanted = {
        "tile_y.1": 3,
        "tile_y.2": 4,
        "tile_x.1": 8,
        "tile_k.1": 4,
        "cached": False,
        "order": [1, 0, 2],
        "inner": ["unroll", "vec"],
    }
    text = str(space.schedule(Candidate("", wanted)).schedule.kernel)
    order = [
        "for C.y.o in 2:",
        "for C.x.o in 3:",
        "for C.y.i.o in 3:",
        "for C.k.o in 6:",
        "for C.y.i.i in 4:",
        "for C.k.i in 4 unroll:",
        "for C.x.i in 8 vector:",
    ]
    places = [text.rindex(loop) for loop in order]
    assert places == sorted(places), text


def test_templates_are_registered_and_called_with_their_defaults():
    assert TEMPLATES["test.product"] is product
    s, args = product(8)
    assert [t.name for t in args] == ["A", "B", "C"]
    assert "for C.k.o in 8" in str(te.lower(s, args)) or "C.k in 8" in str(
        te.lower(s, args)
    )


@te.template("test.cached")
def cached(n):
    A, B, C, s = matmul(n)
    cfg = te.get_config()
    AA, BB = (s.cache_read(t, "global", [C]) for t in (A, B))
    axes = [*s[C].op.axis, *s[C].op.reduce_axis]
    cfg.define_annotate("at", axes, "locate_cache", num_anchor=2)
    cfg["at"].apply(s, C, axes, source=[[AA], [BB]])
    return s, [A, B, C]


def test_caches_are_computed_at_the_loops_that_are_chosen():
    space = cached.space(4)
    assert [c.values["at"] for c in space] == [(0, 1), (0, 2), (1, 2)]
    kernels = {str(space.schedule(c).schedule.kernel) for c in space}
    assert len(kernels) == 3


def config() -> Config:
    return Config()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(24 // f, f) for f in (1, 2, 3, 4, 6, 8, 12, 24)]),
        ({"policy": "power2"}, [(24, 1), (12, 2), (6, 4), (3, 8), (2, 16)]),
        (
            {"policy": "verbose", "max_factor": 8},
            [(24 // f, f) for f in (1, 2, 3, 4, 6, 8)],
        ),
        ({"max_factor": 3}, [(24, 1), (12, 2), (8, 3)]),
        ({"filter": lambda e: e.size[0] == 6}, [(6, 4)]),
        ({"policy": "candidate", "candidate": [[-1, 5], [3, 8]]}, [(5, 5), (3, 8)]),
    ],
)
def test_splits(options, expected):
    found = []
    first = config()
    first.define_split("t", 24, **options)
    for candidate in ParameterSpace(*first.parameters):
        again = Config(candidate.values)
        again.define_split("t", 24, **options)
        found.append(again["t"].size)
    assert found == expected


def test_orders_and_candidates_name_the_loops_that_knobs_make():
    cfg = config()
    yo, yi = cfg.define_split("y", 8)
    xo, xi = cfg.define_split("x", 8)
    cfg.define_reorder("all", [yo, yi, xo])
    cfg.define_reorder(
        "some",
        [yo, yi, xo, xi],
        "candidate",
        candidate=[[yo, xo, yi, xi], [xo, yo, xi, yi]],
    )
    by_name = {p.name: p for p in cfg.parameters}
    assert len(by_name["all"].values({})) == 6
    assert by_name["some"].values({}) == ((0, 2, 1, 3), (2, 0, 3, 1))


def test_refusals():
    with pytest.raises(InputError, match="no template runs"):
        te.get_config()
    cfg = config()
    cfg.define_knob("a", [1, 2])
    with pytest.raises(InputError, match="two knobs are called a"):
        cfg.define_knob("a", [1])
    with pytest.raises(InputError, match=r"no knob 'b'; there are a"):
        _ = cfg["b"]
    with pytest.raises(InputError, match=r"no policy 'interleave'.*identity, all"):
        cfg.define_reorder("r", [1, 2], "interleave")
    with pytest.raises(InputError, match="no policy 'bind_gpu'"):
        cfg.define_annotate("n", [1, 2], "bind_gpu")
    with pytest.raises(InputError, match=r"no policy 'even'.*factors, power2"):
        cfg.define_split("s", 8, policy="even")
    with pytest.raises(InputError, match="a split makes two loops or more"):
        cfg.define_split("s", 8, num_outputs=1)
    with pytest.raises(InputError, match="has no length that is known"):
        cfg.define_split("s", "y")
    with pytest.raises(ScheduleError, match="too many"):
        cfg.raise_error("too many")


def test_a_template_that_changes_its_knobs_is_refused():
    @te.template("test.changing")
    def changing(n):
        A, B, C, s = matmul(n)
        cfg = te.get_config()
        cfg.define_knob("more", [False, True])
        cfg.define_split("y", 8 if not cfg["more"].val else 9)
        return s, [A, B, C]

    space = changing.space(4)
    assert space.at(Candidate("", {"more": True, "y.1": 1}))
    with pytest.raises(ScheduleError, match="the knob y is defined otherwise"):
        space.at(Candidate("", {"more": True, "y.1": 8}))

    @te.template("test.fewer")
    def fewer(n):
        A, B, C, s = matmul(n)
        cfg = te.get_config()
        cfg.define_knob("less", [False, True])
        if not cfg["less"].val:
            cfg.define_knob("last", [1, 2])
        return s, [A, B, C]

    with pytest.raises(ScheduleError, match="last is not defined with these values"):
        fewer.space(4).at(Candidate("", {"less": True, "last": 1}))

    @te.template("test.nothing")
    def nothing(n):
        return n

    with pytest.raises(InputError, match="return the schedule and the list"):
        nothing.space(4)


def test_limits_of_annotations():
    _, _, C, s = matmul(8)
    cfg = Config({"n": ("vec", "unroll")})
    axes = s[C].op.axis
    cfg.define_annotate("n", axes, "try_unroll_vec")
    with pytest.raises(ScheduleError, match="unrolls 8 iterations, more than 4"):
        cfg["n"].apply(s, C, axes, axis_lens=[8, 8], max_unroll=4)
    with pytest.raises(ScheduleError, match=r"makes vectors of 8, none of \(4, 16\)"):
        cfg["n"].apply(s, C, axes, axis_lens=[8, 8], vec_size=[4, 16])


def test_a_split_of_a_stage():
    A, B, C, s = matmul(24)
    y, _ = s[C].op.axis
    made = Split((2, 3, 4)).apply(s, C, y)
    assert len(made) == 3
    text = str(te.lower(s, [A, B, C]))
    for loop in ("in 2", "in 3", "in 4"):
        assert loop in text


def test_a_program_without_lines_has_the_space_of_sketches():
    A, B, C, s = matmul(16)
    space = te.sketch_space(s, [A, B, C])
    default = space.schedule(space.default()).schedule
    auto = te.build(s, [A, B, C], auto=True)
    assert repr(default.kernel) == repr(auto.kernel)
    other = space.sample(Random(2))
    assert Candidate.of(space.schedule(other)) == other
    s[C].split(s[C].op.axis[0], 4)
    with pytest.raises(ScheduleError, match="this schedule has lines"):
        te.sketch_space(s, [A, B, C])
    with pytest.raises(InputError, match="there are no sketches"):
        te.sketch_space(te.create_schedule(C.op), [A, B, C], target="vdla")
