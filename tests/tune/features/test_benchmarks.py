"""The benchmarks of features: what they count, and the programs that they write anew."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.feature_rate import of_product
from benchmarks.invariance import OPERATORS, Timed, accuracy, kept, pooled, sketches
from benchmarks.rewritten import renamed, with_trivial_loops
from tilewright.loops.interp import run
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of
from tilewright.testing.random_kernels import random_kernel
from tilewright.testing.random_programs import random_arrays
from tilewright.tune.features import Fast, PerStore


@pytest.mark.parametrize("rewrite", [renamed, with_trivial_loops])
def test_a_rewritten_kernel_does_the_same(rewrite):
    for seed in range(6):
        kernel = random_kernel(random.Random(seed))
        other = rewrite(kernel)
        verify(other)
        given = random_arrays(kernel, seed)
        want = {b: a.copy() for b, a in given.items()}
        arrays = [given[b].copy() for b in kernel.params]
        got = dict(zip(other.params, arrays, strict=True))
        run(kernel, want)
        run(other, got)
        for a, b in zip(want.values(), got.values(), strict=True):
            assert np.array_equal(a, b)
        assert len(loops_of(other.body)) >= len(loops_of(kernel.body))
    assert repr(other) != repr(kernel)


def timed(seconds: float, size: int = 0) -> Timed:
    point = sketches(OPERATORS[1], size)[-1].default()
    return Timed("columns", size, point, seconds)


def test_pairs_of_one_task_are_counted():
    some = [timed(1.0), timed(2.0), timed(4.0), timed(4.1), timed(0.1, size=1)]
    # Five pairs differ by more than 5%: all of the first task but for the last two's.
    assert accuracy(some, np.array([1, 2, 3, 4, 9.0])) == 1
    assert accuracy(some, np.array([4, 3, 2, 1, 0.0])) == 0
    assert accuracy(some, np.array([2, 1, 3, 3, 0.0])) == 0.8
    assert accuracy(some, np.zeros(5)) == 0.5
    assert math.isnan(accuracy(some[4:], np.zeros(1)))


def test_what_is_kept_of_a_program():
    some = [timed(1.0)]
    found = kept(pooled(Fast()), some)
    assert (found.names, found.order, found.trivial) == (1, 1, 1)
    assert 0.3 < found.size < 1  # sizes are another matter
    assert len(pooled(PerStore())(some[0].kernel)) == 2 * 164


def test_what_depends_on_names_is_found():
    """A set that looks at the names of buffers keeps nothing when these change."""

    def by_name(kernel):
        return np.array([float(b.name < "u") for b in kernel.params])

    found = kept(by_name, [replace(timed(1.0))])
    assert found.names < 1 and found.trivial == 1


def test_random_schedules_of_a_product():
    found = list(of_product("zen2", 5))
    assert len(found) == 5 and len({repr(k) for k in found}) > 1
