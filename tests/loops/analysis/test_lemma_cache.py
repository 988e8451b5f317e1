"""What the lemma was asked before is not asked again, and only then."""

from __future__ import annotations

from random import Random

import pytest

from tilewright.base import dtypes
from tilewright.expr.bounds import refine
from tilewright.expr.nodes import Buffer, Lt, Var, const, var
from tilewright.loops.analysis import lemmas
from tilewright.loops.analysis.access import Access
from tilewright.loops.analysis.lemmas import agreeing
from tilewright.loops.analysis.question import conflicting
from tilewright.loops.nodes import block
from tilewright.loops.walk import StatementPlace, loops_of
from tilewright.testing.random_programs import random_program
from tilewright.testing.random_schedules import random_schedule

Y = Buffer("y", (99,), dtypes.float32)


def anew(a: Access, b: Access, band: list[Var]) -> frozenset[Var] | None:
    """What `agreeing` is without a cache, under all that is known of both accesses."""
    inner = lemmas._inner(a, band) | lemmas._inner(b, band)
    asked = lemmas._Asked(a.index, b.index, tuple(band), inner, False)
    return lemmas._agreeing(asked, a.ranges, b.ranges)


def test_a_question_is_another_one_with_other_bounds_and_relations() -> None:
    """(i - j) // 4 is 2 for some i and j below 16, for none below 8, nor where i - j < 4."""
    i, j = var("i"), var("j")
    here = StatementPlace(block(), ())
    at = (i - j) // 4
    wide = {i: (0, 15), j: (0, 15)}
    small = {i: (0, 7), j: (0, 7)}
    related = refine(wide, Lt(i - j, const(4)))
    assert set(wide) < set(related)
    for ranges, found in ((wide, set()), (small, None), (related, None)) * 2:
        a = Access(Y, (at,), "store", here, ranges)
        b = Access(Y, (const(2),), "store", here, ranges)
        assert agreeing(a, b, [i]) == found == anew(a, b, [i])


def test_a_question_is_another_one_with_another_band() -> None:
    """8*i + j, with j from 0 to 7: both agree if both may differ, and i does if j is the same."""
    i, j = var("i"), var("j")
    ranges = {i: (0, 3), j: (0, 7)}
    a = Access(Y, (i * 8 + j,), "store", StatementPlace(block(), ()), ranges)
    for band in ([i, j], [i], [j]):
        assert agreeing(a, a, band) == set(band) == anew(a, a, band)


@pytest.mark.parametrize("seed", range(12))
def test_answers_of_random_programs_are_those_without_a_cache(seed: int) -> None:
    r = Random(seed)
    kernel = random_schedule(r, random_program(r), tries=6).kernel
    asked = 0
    for f in loops_of(kernel.body):
        for a, b in conflicting(kernel, f):
            asked += 1
            assert agreeing(a, b, [f.var]) == anew(a, b, [f.var])
    assert asked
