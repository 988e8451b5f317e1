"""A sketch's parameters: asked while it runs, so that what is offered fits what was taken."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices, Sketch

f32 = dtypes.float32


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def tiles(choose: Choices) -> Schedule:
    """A loop of 12 in two or three levels; the inner level is offered only if there is an outer."""
    x, y = Buffer("X", (12,), f32), Buffer("Y", (12,), f32)
    s = Schedule(lower("k", [map_("m", y, lambda i: x[i] + x[i])], [x, y], [y]))
    outer = choose("outer", divisors(12), 4)
    if outer > 1:
        inner = choose("inner", divisors(outer), 1)
        s.split(s.split("m.i", outer)[1], inner)
    return s


SKETCH = Sketch("tiles", tiles)


def test_default_and_given_values():
    assert SKETCH.default().values == {"outer": 4, "inner": 1}
    point = SKETCH.at({"outer": 6})
    assert point.values == {"outer": 6, "inner": 1}
    assert "m.i.o in 2" in str(point.schedule)
    assert point.parameters[1].candidates == (1, 2, 3, 6)


def test_every_point_once_and_only_valid_ones():
    points = [tuple(p.values.values()) for p in SKETCH.points()]
    expected = [(1,)] + [(o, i) for o in divisors(12)[1:] for i in divisors(o)]
    assert points == expected


def test_a_name_that_is_asked_for_twice_has_one_value():
    """Values are stored by name: with two for one name, a point would be another when replayed."""

    def run(choose: Choices) -> Schedule:
        s = tiles(Choices({"outer": choose("outer", (2, 4), 2)}))
        if choose("outer", (4, 2), 4) == 4:
            s.split("m.i.o", 3)
        return s

    sketch = Sketch("twice", run)
    points = list(islice(sketch.points(), 5))
    found = {p.values["outer"]: str(p.schedule.kernel) for p in points}
    assert found == {n: str(sketch.at({"outer": n}).schedule.kernel) for n in (2, 4)}
    assert [len(p.parameters) for p in points] == [1, 1]
    with pytest.raises(ScheduleError, match=r"parameter outer: 8 is not .*one of 2, 4"):
        sketch.at({"outer": 8})


def test_points_are_lazy():
    assert len(list(islice(SKETCH.points(), 3))) == 3


def test_random_points_replay_by_their_values():
    r = random.Random(0)
    for _ in range(20):
        point = SKETCH.random(r)
        again = SKETCH.at(point.values)
        assert str(again.schedule) == str(point.schedule)


def test_a_value_that_does_not_fit_is_refused_with_those_that_do():
    with pytest.raises(
        ScheduleError, match=r"parameter inner: 4 is not possible.*1, 2, 3, 6"
    ):
        SKETCH.at({"outer": 6, "inner": 4})


def test_a_parameter_that_is_never_asked_is_an_error():
    with pytest.raises(
        ScheduleError, match=r"there is no parameter depth.*outer, inner"
    ):
        SKETCH.at({"depth": 4})


def test_lists_from_json_are_the_tuples_they_were():
    sketch = Sketch(
        "pair", lambda choose: (choose("t", [(1, 2), (2, 1)], (1, 2)), tiles(choose))[1]
    )
    assert sketch.at({"t": [2, 1]}).values["t"] == (2, 1)
