"""Which sizes of ranges of several dimensions are compared, and in which turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tilewright.base.errors import UnsupportedError
from tilewright.driver.dims import combinations
from tilewright.driver.ranges import sample_points
from tilewright.driver.ranges.size_terms import Extents, SizeTerm, Terms
from tilewright.runtime.dispatch import Allowed

ALLOWED: Allowed = {"h": range(64, 257), "w": range(64, 257)}
TERMS: Terms = {n: (SizeTerm(n), SizeTerm(n, 32, 1)) for n in "hw"}
Turns = list[list[Extents]]


def turns(
    agrees: Callable[[int, int], bool],
    allowed: Allowed = ALLOWED,
    terms: Terms = TERMS,
    some: bool = True,
) -> Turns:
    """The combinations of each turn, if those agree of which the function says so."""
    points = sample_points.first_points(allowed, terms)
    compared: dict[tuple[int, ...], bool] = {}
    found = []
    for wanted in sample_points.compared_in_turn(
        allowed, points, terms, compared, some
    ):
        found.append(wanted)
        compared |= {tuple(p.values()): agrees(*p.values()) for p in wanted}
    return found


def every(*_: int) -> bool:
    """All combinations agree."""
    return True


def all_of(allowed: Allowed, terms: Terms) -> list[Extents]:
    """Those that show along which dimension plans differ."""
    points = sample_points.first_points(allowed, terms)
    return sample_points.compared_points(allowed, points, terms)


def lines(points: Sequence[Extents], allowed: Allowed = ALLOWED) -> dict[str, set[int]]:
    """The extents of each dimension that occur."""
    return {name: {p[name] for p in points} for name in allowed}


def test_extents_of_all_dimensions_are_compared_together() -> None:
    first, together = turns(every)
    whole = all_of(ALLOWED, TERMS)
    start = sample_points.pattern(ALLOWED)
    for name, other in ("hw", "wh"):
        line = {p[name] for p in whole if p[other] == start[other]}
        assert lines([*first, *together])[name] >= line
        assert {n % 32 for n in lines(together)[name]} == set(range(32))
    # Although both dimensions have the same extents, pairs are of different ones.
    assert sum(p["h"] == p["w"] for p in together) < len(together) / 4
    distinct = {tuple(p.values()) for p in (*first, *together)}
    assert len(distinct) < 0.7 * len({tuple(p.values()) for p in whole})


def test_the_ends_of_each_dimension_are_compared_first() -> None:
    first, _ = turns(every)
    start = sample_points.pattern(ALLOWED)
    line = {p["h"] for p in first if p["w"] == start["w"]}
    assert line >= {64, 65, 66, 254, 255, 256}
    assert {(64, 64), (64, 256), (256, 64), (256, 256)} <= {
        (p["h"], p["w"]) for p in first
    }


@pytest.mark.parametrize(
    "agrees",
    [
        lambda h, w: h != 127,  # an extent in the middle, only in pairs
        lambda h, w: w % 32 != 5,  # a remainder
    ],
)
def test_pairs_that_differ_have_all_lines_compared(
    agrees: Callable[[int, int], bool],
) -> None:
    found = turns(agrees)
    assert len(found) == 3
    assert found[-1] == all_of(ALLOWED, TERMS)


@pytest.mark.parametrize(
    "agrees",
    [
        lambda h, w: (h, w) != (256, 64),  # a corner of sizes that agree alone
        lambda h, w: h > 66,  # as many extents at an end as are compared
        lambda h, w: h < 254,
        lambda h, w: False,
    ],
)
def test_other_differences_have_all_lines_compared_at_once(
    agrees: Callable[[int, int], bool],
) -> None:
    found = turns(agrees)
    assert len(found) == 2
    assert found[-1] == all_of(ALLOWED, TERMS)


def test_an_end_of_its_own_is_left_out_of_pairs() -> None:
    allowed: Allowed = {"b": range(1, 65), "t": range(1, 513)}
    terms: Terms = {n: (SizeTerm(n),) for n in "bt"}
    first, together = turns(lambda b, t: b > 1 and 2 < t < 512, allowed, terms)
    assert {p["b"] for p in first} >= {1, 2}
    extents = lines(together, allowed)
    assert (min(extents["b"]), max(extents["b"])) == (2, 64)
    assert (min(extents["t"]), max(extents["t"])) == (3, 511)


def test_one_dimension_or_all_combinations_have_one_turn() -> None:
    one: Allowed = {"h": range(64, 1024), "w": range(9, 10)}
    terms = {"h": TERMS["h"]}
    assert turns(every, one, terms) == [all_of(one, terms)]
    few: Allowed = {"h": range(64, 68), "w": range(64, 68)}
    assert turns(every, few, some=False) == [list(combinations(few))]


def test_all_combinations_are_compared_where_they_are_few_or_some_do_not_tell() -> None:
    def sized(count: int) -> Allowed:
        return {"n": range(count)}

    assert sample_points.tries(sized(64)) == (False,)
    assert sample_points.tries(sized(65)) == (True, False)
    assert sample_points.tries(sized(256)) == (True, False)
    assert sample_points.tries(sized(257)) == (True,)


def test_of_a_short_dimension_ends_small_ones_and_powers_are_compared() -> None:
    terms: Terms = {"n": (SizeTerm("n"),)}
    (points,) = turns(every, {"n": range(1, 129)}, terms)
    told = {p["n"] for p in points}
    assert told >= {*range(1, 10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128}
    assert len(told) < 128 // 4


def test_a_long_period_is_refused_before_anything_is_compared() -> None:
    terms = {**TERMS, "h": (*TERMS["h"], SizeTerm("h", 9))}
    with pytest.raises(UnsupportedError, match="come again only after 288 sizes"):
        turns(every, ALLOWED, terms)
