"""Spaces of parameters against all combinations, filtered one by one."""

from __future__ import annotations

import inspect
from collections import Counter
from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest

from tilewright.base.errors import InputError
from tilewright.tune.base import Candidate
from tilewright.tune.space import (
    AtLeast,
    AtMost,
    Divides,
    Divisors,
    Interval,
    MultipleOf,
    Multiples,
    Parameter,
    ParameterSpace,
    Powers,
    Set,
)
from tilewright.tune.space.closeness import distance, nearest


def filtered(ranges, *constraints):
    """All combinations of the ranges that satisfy all constraints, as a set of tuples."""
    names = list(ranges)
    found = set()
    for values in product(*ranges.values()):
        given = dict(zip(names, values, strict=True))
        if all(
            c(*[given[n] for n in inspect.signature(c).parameters]) for c in constraints
        ):
            found.add(values)
    return found


def listed(space):
    return [tuple(c.values[p.name] for p in space.parameters) for c in space]


def random_space(r):
    """Up to six parameters, each with up to two constraints on some of those before it."""
    names = "ABCDEF"[: r.randint(1, 6)]
    ranges = {n: range(1, r.randint(1, 6) + 1) for n in names}
    rules = [
        lambda a, b: a % b == 0,
        lambda a, b: a + b <= 6,
        lambda a, b: a != b,
        lambda a, b: a * b % 2 == 0,
    ]
    parameters, constraints = [], []
    for place, name in enumerate(names):
        own = []
        for _ in range(r.randint(0, 2) if place else 0):
            other = r.choice(names[:place])
            rule = r.choice(rules)
            scope = {"rule": rule}
            own.append(eval(f"lambda {name}, {other}: rule({name}, {other})", scope))
        constraints += own
        parameters.append(Parameter(name, Interval(1, ranges[name].stop - 1), *own))
    return parameters, filtered(ranges, *constraints)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_random_spaces_have_what_filtering_finds(seed):
    r = Random(seed)
    parameters, expected = random_space(r)
    space = ParameterSpace(*parameters)
    if not expected:
        with pytest.raises(InputError, match="no candidate satisfies the constraints"):
            _ = space.size
        return
    found = listed(space)
    assert space.size == len(space) == len(found) == len(expected)
    assert set(found) == expected
    assert [space.index(c) for c in space] == list(range(space.size))
    shuffled = r.sample(parameters, len(parameters))
    other = ParameterSpace(*shuffled)
    assert set(other) == set(space)
    for _ in range(20):
        a, b = space.sample(r), space.sample(r)
        for made in (space.neighbor(a, r), space.cross(a, b, r), space.nearest(a)):
            assert made in space
        assert space.nearest(a) == a
        assert all(n in space and n != a for n in space.neighbors(a))


def test_a_chain_of_tiles_is_enumerated():
    n = 1024
    space = ParameterSpace(
        Parameter("WPT", Divisors(n)),
        Parameter("LS", Divisors(lambda WPT: n // WPT)),
    )
    assert space.size == 66  # a way to write 2**10 as a product of three powers
    asked = ParameterSpace(
        Parameter("WPT", Interval(1, n), lambda WPT: n % WPT == 0),
        Parameter("LS", Interval(1, n), lambda WPT, LS: n // WPT % LS == 0),
    )
    assert asked.unconstrained_size == n * n
    assert set(space) == set(asked)


def test_ten_tiles_of_a_large_number_cost_few_trees():
    n = 2**40
    chained = [
        Parameter("T0", Divisors(n)),
        Parameter("L0", Interval(lambda T0: n // T0, lambda T0: n // T0)),
    ]
    for i in range(1, 10):
        # The rest is a separate parameter: the only context of later ones.
        rest = eval(f"lambda L{i - 1}, T{i}: L{i - 1} // T{i}")
        chained.append(Parameter(f"T{i}", Divisors(f"L{i - 1}")))
        chained.append(Parameter(f"L{i}", Interval(rest, rest)))
    space = ParameterSpace(*chained)
    # 40 factors of two in eleven boxes; the last takes the rest.
    assert space.size == prod(range(41, 51)) // prod(range(1, 11))
    assert space.contexts < 20_000
    assert space.index(space[space.size - 1]) == space.size - 1


def test_parameters_that_are_cut_apart_below_share_no_tree():
    asked = Counter()

    def below(A, value):
        asked[value] += 1
        return value <= A

    space = ParameterSpace(
        Parameter("A", Interval(1, 30)),
        Parameter("B", Interval(1, 30), lambda A, B: below(A, B)),
        Parameter("C", Interval(1, 30), lambda A, C: below(A, C)),
    )
    assert space.size == sum(a * a for a in range(1, 31))
    assert space.contexts == 1 + 30 + 30
    assert sum(asked.values()) == 2 * 30 * 30


def test_what_is_soon_forgotten_is_decided_first():
    n = 20
    space = ParameterSpace(
        Parameter("A", Interval(1, n)),
        Parameter("M", Interval(1, "A")),
        Parameter("N", Interval(1, "A")),
        Parameter("V", Set(1, 2), lambda V, M: M % V == 0),
        Parameter("W", Set(1, 2), lambda W, N, A: N * A % W == 0),
        Parameter("end", Set(0, 1), lambda end, V, W: V * W + end < 5),
    )
    # In the order of the statement, V would be decided for every A, M and N: 2870 times.
    assert sum(a * a for a in range(1, n + 1)) == 2870
    assert space.contexts < 1000


def test_functions_are_asked_once_for_the_same_values():
    asked = Counter()

    def even(A, C):
        asked[A, C] += 1
        return (A + C) % 2 == 0

    space = ParameterSpace(
        Parameter("A", Interval(1, 4)),
        Parameter("B", Interval(1, 50), lambda B, A: B > A),
        Parameter("C", Interval(1, 4), even),
        Parameter("D", Interval(1, 2), lambda D, B, C: D <= B * C),
    )
    assert space.size
    assert max(asked.values()) == 1


def test_sampling_has_no_bias():
    space = ParameterSpace(
        Parameter("A", Interval(1, 2)),
        Parameter("B", Interval(1, 50), lambda A, B: A == 2 or B == 1),
    )
    assert space.size == 51
    r = Random(0)
    counts = Counter(space.sample(r) for _ in range(51 * 200))
    assert len(counts) == 51
    # Binomial with mean 200 and deviation 14; drawing A first would give A=1 half of all.
    assert all(130 < n < 270 for n in counts.values())


def test_a_neighbor_differs_in_one_parameter_and_what_depends_on_it():
    space = ParameterSpace(
        Parameter("A", Divisors(48)),
        Parameter("B", Divisors("A")),
        Parameter("C", Set("x", "y", "z")),
    )
    at = Candidate("", {"A": 24, "B": 12, "C": "y"})
    r = Random(1)
    seen = {space.neighbor(at, r) for _ in range(300)}
    assert at not in seen
    for c in seen:
        changed = {n for n in "ABC" if c.values[n] != at.values[n]}
        assert changed in ({"A"}, {"A", "B"}, {"B"}, {"C"})
        if "A" in changed and c.values["A"] % 12 == 0:
            assert c.values["B"] == 12
    assert {c.values["A"] for c in seen} == {1, 2, 3, 4, 6, 8, 12, 16, 24, 48}
    assert seen == set(space.neighbors(at))


def test_a_space_of_one_candidate_has_no_neighbors():
    space = ParameterSpace(Parameter("A", Set(3)))
    assert space.neighbor(space[0], Random(0)) == space[0]
    assert list(space.neighbors(space[0])) == []


def test_crossing_takes_from_both_where_it_can():
    space = ParameterSpace(*[Parameter(n, Interval(0, 9)) for n in "ABCDEFGH"])
    a = Candidate("", dict.fromkeys("ABCDEFGH", 1))
    b = Candidate("", dict.fromkeys("ABCDEFGH", 2))
    made = space.cross(a, b, Random(0))
    assert set(made.values.values()) == {1, 2}
    chain = ParameterSpace(
        Parameter("A", Set(4, 9)), Parameter("B", Divisors("A"), AtLeast(2))
    )
    four, nine = Candidate("", {"A": 4, "B": 4}), Candidate("", {"A": 9, "B": 9})
    crossed = {chain.cross(four, nine, Random(i)) for i in range(20)}
    assert crossed == {four, nine}


def test_defaults_are_taken_as_far_as_they_are_possible():
    space = ParameterSpace(
        Parameter("A", Divisors(60), default=16),
        Parameter("B", Divisors("A"), default=4),
        Parameter("C", Set("x", "y"), default="y"),
        Parameter("D", Set((1, 2), (2, 1))),
    )
    assert space.default().values == {"A": 15, "B": 5, "C": "y", "D": (1, 2)}


def test_candidates_of_another_space_are_mapped_to_the_nearest():
    space = ParameterSpace(
        Parameter("A", Divisors(96)),
        Parameter("B", Divisors("A")),
        Parameter("new", Set(False, True), default=True),
    )
    other = Candidate("", {"A": 25, "B": 5, "gone": 3})
    assert space.nearest(other).values == {"A": 24, "B": 6, "new": True}


def test_keys_that_were_stored_lead_to_the_same_candidate():
    space = ParameterSpace(
        Parameter("order", Set((0, 1, 2), (2, 1, 0))),
        Parameter("A", Interval(1, 3)),
    )
    for c in space:
        stored = Candidate.parse(c.key)
        assert space.index(stored) == space.index(c)
        assert space.nearest(stored).values == c.values


def test_large_unconstrained_intervals_are_not_enumerated():
    space = ParameterSpace(
        Parameter("A", Interval(1, 10**12)),
        Parameter("B", Interval(0, 10**12)),
    )
    assert space.size == 10**12 * (10**12 + 1)
    last = space[-1]
    assert last.values == {"A": 10**12, "B": 10**12}
    assert space.index(last) == space.size - 1


@pytest.mark.parametrize("numbers", [range(3, 50, 4), range(50, 2, -3), range(5, 6)])
def test_the_nearest_of_a_range_is_the_nearest_of_its_numbers(numbers):
    for wanted in [*range(1, 60), 7.4, 1000, 0.25]:
        place = nearest(numbers, wanted)
        least = min(distance(n, wanted) for n in numbers)
        assert distance(numbers[place], wanted) == least
    assert nearest(numbers, "x") is None


def test_large_ranges_are_not_looked_through():
    large = range(10**15)
    assert nearest(large, 10.0**20) == 10**15 - 1
    assert nearest(large, 12.75) == 13
    assert nearest(large, -5) == 0
    assert nearest(large, "x") is None
    assert nearest(range(0), 3) is None


def test_scalars_of_numpy_are_numbers():
    space = ParameterSpace(Parameter("A", Set(*np.arange(3))))
    assert space[2].key == '{"A":2,"sketch":""}'


def test_positions_outside_of_the_space():
    space = ParameterSpace(Parameter("A", Interval(1, 3)))
    assert space[-1].values == {"A": 3}
    with pytest.raises(IndexError, match="3 of 3"):
        _ = space[3]
    with pytest.raises(TypeError, match=r"'1'"):
        _ = space["1"]
    outside = Candidate("", {"A": 4})
    assert outside not in space
    assert "A" not in space
    with pytest.raises(
        InputError, match="parameter A: 4 is not possible here; take one of 1"
    ):
        space.index(outside)
    with pytest.raises(InputError, match="`nearest` finds the closest one"):
        space.neighbor(Candidate("", {"B": 1}), Random(0))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Interval(1, 4), [1, 2, 3, 4]),
        (Interval(10, 1, -3), [10, 7, 4, 1]),
        (Interval(0, 0.3, 0.1), [0, 0.1, 0.2, 0.30000000000000004]),
        (Interval(0, 4, generator=lambda i: 2**i), [1, 2, 4, 8, 16]),
        (Interval(5, 4), []),
        (Set("a", (1, 2)), ["a", (1, 2)]),
        (Divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]),
        (Divisors(36, at_most=6), [1, 2, 3, 4, 6]),
        (Multiples(8, 30), [8, 16, 24]),
        (Powers(20), [1, 2, 4, 8, 16]),
        (Powers(81, base=3), [1, 3, 9, 27, 81]),
    ],
)
def test_ranges(made, expected):
    assert list(made.values({})) == expected


@pytest.mark.parametrize(
    "values",
    [
        Interval(1, 40),
        Interval(3, 40, 2),
        Interval(40, 1, -1),
        Interval(-10, 30),
        Interval(1.0, 8.0),
        Set(12, 5, 6, 24),
    ],
)
@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        (Divides(24), lambda v: v != 0 and 24 % v == 0),
        (MultipleOf(6), lambda v: v % 6 == 0),
        (AtMost(17), lambda v: v <= 17),
        (AtLeast(6.5), lambda v: v >= 6.5),
    ],
)
def test_narrowing_is_filtering(values, constraint, holds):
    given = values.values({})
    expected = [v for v in given if holds(v)]
    assert list(constraint.narrow("A", given, {})) == expected


def test_narrowing_does_not_look_at_each_value():
    space = ParameterSpace(
        Parameter("A", Interval(1, 10**15), Divides(2**40), AtMost(2**38)),
        Parameter("B", Interval(1, 10**15), MultipleOf(7), AtLeast(100)),
    )
    assert space.size == 39 * (10**15 // 7 - 14)


def test_refusals():
    with pytest.raises(InputError, match="two parameters are named A"):
        ParameterSpace(Parameter("A", Set(1)), Parameter("A", Set(2)))
    with pytest.raises(InputError, match="parameter A: there is no parameter B"):
        ParameterSpace(Parameter("A", Divisors("B")))
    with pytest.raises(InputError, match="A reads B reads A"):
        ParameterSpace(
            Parameter("A", Interval(1, 4), lambda A, B: A < B),
            Parameter("B", Interval(1, 4), lambda A, B: A > B),
            Parameter("C", Divisors("A")),
        )
    with pytest.raises(InputError, match="is not the name of a parameter"):
        Parameter("sketch", Set(1))
    with pytest.raises(InputError, match="a value occurs twice"):
        Set(1, 2, 1)
    for strange in ([1, 2], (1, [2]), object()):
        with pytest.raises(InputError, match="cannot be stored"):
            Set(strange)
    with pytest.raises(InputError, match="the step is 0"):
        Interval(1, 2, 0)
    with pytest.raises(InputError, match="use a base of at least 2"):
        Powers(8, base=1)
    with pytest.raises(InputError, match="are not names of parameters"):
        ParameterSpace(Parameter("A", Set(1), lambda *values: True))
    with pytest.raises(InputError, match=r"\[1\] is not a formula"):
        ParameterSpace(Parameter("A", Divisors([1])))


def test_faults_in_functions_say_where_they_are():
    space = ParameterSpace(
        Parameter("A", Set(0, 1)),
        Parameter("B", Set(4), lambda A, B: B % A == 0),
    )
    with pytest.raises(
        InputError, match=r"parameter B: ZeroDivisionError.*evaluated with A = 0"
    ):
        _ = space.size
    with pytest.raises(InputError, match="parameter A: divisors: 0 has no divisors"):
        _ = ParameterSpace(Parameter("A", Divisors(0))).size


def test_an_argument_with_a_default_is_no_parameter():
    n = 12
    space = ParameterSpace(Parameter("A", Interval(1, n), lambda A, n=n: n % A == 0))
    assert [c.values["A"] for c in space] == [1, 2, 3, 4, 6, 12]


def test_a_constraint_on_earlier_parameters_alone():
    space = ParameterSpace(
        Parameter("A", Interval(1, 3)),
        Parameter("B", Set(0, 1), lambda A: A != 2),
    )
    assert {c.values["A"] for c in space} == {1, 3}
