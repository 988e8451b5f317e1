"""Spaces of sketches: found by running them, and each way only once."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError, ScheduleError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.transforms import follow
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.schedule import Schedule
from tilewright.schedule.space import Choices, Sketch
from tilewright.targets import registry
from tilewright.tune.base import Candidate, Space
from tilewright.tune.space import SketchSpace


def loop(n: int = 12) -> Schedule:
    x, y = Buffer("X", (n,), float32), Buffer("Y", (n,), float32)
    return Schedule(lower("k", [map_("m", y, lambda i: x[i] + x[i])], [x, y], [y]))


class Toy:
    """Sketches over a loop of `n`, which count how often they run."""

    def __init__(self, n: int = 12) -> None:
        self.n = n
        self.runs = Counter()

    def tiles(self, choose: Choices) -> Schedule:
        """One more choice after an outer tile; a tile of 6 is refused."""
        self.runs["tiles"] += 1
        s = loop(self.n)
        outer = choose("outer", [d for d in range(1, self.n + 1) if self.n % d == 0], 4)
        if outer == 6:
            raise ScheduleError("six is refused")
        if outer > 1:
            inner = choose(
                "inner", [d for d in range(1, outer + 1) if outer % d == 0], 1
            )
            s.split(s.split("m.i", outer)[1], inner)
        return s

    def plain(self, choose: Choices) -> Schedule:
        self.runs["plain"] += 1
        s = loop(self.n)
        if choose("m.parallel", (True, False), True):
            s.parallel("m.i")
        return s

    def space(self) -> SketchSpace:
        return SketchSpace([Sketch("tiles", self.tiles), Sketch("plain", self.plain)])


# The divisors of 12 but 6, each with its own divisors; 1 has no further choice.
TILES = [(1,), (2, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2), (4, 4)] + [
    (12, d) for d in (1, 2, 3, 4, 6, 12)
]


def test_every_schedule_once_and_none_that_is_refused():
    toy = Toy()
    space: Space = toy.space()
    found = [(c.sketch, *c.values.values()) for c in space]
    assert found == [("tiles", *t) for t in TILES] + [("plain", True), ("plain", False)]
    assert toy.runs == {"tiles": len(TILES) + 1, "plain": 2}


def test_known_ways_are_not_run_again():
    toy = Toy()
    space = toy.space()
    assert space.size is None
    assert space.count(limit=5) is None
    assert space.count(limit=100) == len(TILES) + 2 == space.size
    runs = space.runs
    assert runs == sum(toy.runs.values())
    r = Random(0)
    at = space.default()
    for _ in range(100):
        at = space.neighbor(space.cross(at, space.sample(r), r), r)
    assert list(space.neighbors(at))
    assert space.nearest(at) == at
    assert space.runs == runs


def test_candidates_lead_to_their_schedules():
    space = Toy().space()
    for c in space:
        point = space.schedule(c)
        assert Candidate.of(point) == c
        fresh = Toy().space().schedule(Candidate.parse(c.key))
        assert repr(fresh.schedule.kernel) == repr(point.schedule.kernel)


def test_values_that_are_left_out_are_defaults():
    space = Toy().space()
    point = space.schedule(Candidate("tiles", {"outer": 12}))
    assert point.values == {"outer": 12, "inner": 1}
    assert Candidate("tiles", {"outer": 12}) not in space
    near = space.neighbor(Candidate("tiles", {"outer": 12}), Random(0))
    assert near in space and near != Candidate.of(point)


def test_a_schedule_that_was_just_made_is_not_made_again():
    toy = Toy()
    space = toy.space()
    c = space.sample(Random(3))
    runs = sum(toy.runs.values())
    space.schedule(c)
    assert sum(toy.runs.values()) == runs


def test_the_default_is_that_of_the_first_sketch_that_is_not_refused():
    assert Toy().space().default() == Candidate("tiles", {"outer": 4, "inner": 1})

    def refused(choose: Choices) -> Schedule:
        choose("a", (1, 2), 1)
        raise ScheduleError("never")

    toy = Toy()
    space = SketchSpace([Sketch("no", refused), Sketch("plain", toy.plain)])
    assert space.default() == Candidate("plain", {"m.parallel": True})
    r = Random(0)
    for _ in range(20):
        assert space.sample(r).sketch == "plain"
        assert space.neighbor(space.default(), r).sketch == "plain"
    with pytest.raises(ScheduleError, match="the last because: never"):
        SketchSpace([Sketch("no", refused)]).default()


def test_neighbors_change_one_parameter_and_keep_later_ones():
    space = Toy().space()
    at = Candidate("tiles", {"outer": 4, "inner": 4})
    found = set(space.neighbors(at))
    expected = {
        ("tiles", 1): {},
        ("tiles", 2): {"inner": 2},  # the nearest to 4
        ("tiles", 3): {"inner": 3},
        ("tiles", 12): {"inner": 4},
    }
    for (sketch, outer), rest in expected.items():
        assert Candidate(sketch, {"outer": outer, **rest}) in found
    assert Candidate("tiles", {"outer": 4, "inner": 1}) in found
    assert Candidate("tiles", {"outer": 4, "inner": 2}) in found
    assert Candidate("plain", {"m.parallel": True}) in found
    assert len(found) == 7
    r = Random(0)
    assert {space.neighbor(at, r) for _ in range(300)} == found


def test_crossings_are_candidates_of_the_space():
    space = Toy().space()
    every = set(space)
    r = Random(0)
    for _ in range(200):
        a, b = space.sample(r), space.sample(r)
        assert space.cross(a, b, r) in every
    a = Candidate("tiles", {"outer": 12, "inner": 6})
    b = Candidate("tiles", {"outer": 4, "inner": 2})
    made = {space.cross(a, b, r) for _ in range(100)}
    assert made == {
        a,
        b,
        Candidate("tiles", {"outer": 12, "inner": 2}),
    }


def test_what_is_drawn_depends_on_the_generator_alone():
    fresh, known = Toy().space(), Toy().space()
    known.count(limit=100)
    drawn = [
        [s.sample(r) for _ in range(30)]
        for s, r in ((fresh, Random(5)), (known, Random(5)))
    ]
    assert drawn[0] == drawn[1]
    # By the choices of its default a sketch counts: 6 x 3 for the tiles, 2 for the other.
    r = Random(0)
    names = Counter(fresh.sample(r).sketch for _ in range(1000))
    assert 50 < names["plain"] < 170


def test_candidates_of_another_size_are_mapped():
    other = Toy(20).space()
    space = Toy(12).space()
    mapped = space.nearest(Candidate("tiles", {"outer": 20, "inner": 5, "gone": 1}))
    assert mapped == Candidate("tiles", {"outer": 12, "inner": 6})
    assert space.nearest(Candidate("windows", {"a": 1})) == space.default()
    # Of 7 the nearest is 6, which is refused.
    assert space.nearest(Candidate("tiles", {"outer": 7})) == space.default()
    assert all(space.nearest(c) in space for c in other)


def test_refusals():
    space = Toy().space()
    with pytest.raises(ScheduleError, match=r"there is no sketch 'rows'.*tiles, plain"):
        space.schedule(Candidate("rows", {}))
    with pytest.raises(ScheduleError, match="parameter outer: 5 is not possible here"):
        space.neighbor(Candidate("tiles", {"outer": 5}), Random(0))
    assert Candidate("tiles", {"outer": 5}) not in space
    assert Candidate("rows", {}) not in space
    with pytest.raises(ScheduleError, match=r"there is no parameter inner.*are outer"):
        space.schedule(Candidate("tiles", {"outer": 1, "inner": 1}))
    with pytest.raises(InputError, match="there are no sketches"):
        SketchSpace([])


def product(m: int, n: int, k: int) -> SketchSpace:
    """A product followed by a ReLU, on a processor with AVX2."""
    x, w = Buffer("x", (m, k), float32), Buffer("w", (k, n), float32)
    t, y = Buffer("t", (m, n), float32), Buffer("y", (m, n), float32)
    mm = reduce_("mm", t, (k,), "add", lambda i, j, p: x[i, p] * w[p, j])
    relu = follow(mm, map_("relu", y, lambda i, j: t[i, j] * t[i, j]))
    kernel = lower("k", [mm, relu], [x, w, y], [y])
    target = registry.target("cpu", "x86-64-v3")
    return SketchSpace(target.sketches(kernel, [mm, relu], [w]))


def test_a_real_product_and_its_transfer_to_another_size():
    space, other = product(48, 64, 32), product(36, 80, 20)
    r = Random(0)
    for _ in range(10):
        c = space.sample(r)
        assert Candidate.of(space.schedule(c)) == c
        assert space.neighbor(c, r) != c
        mapped = other.nearest(c)
        assert mapped.sketch == c.sketch
        assert Candidate.of(other.schedule(mapped)) == mapped
