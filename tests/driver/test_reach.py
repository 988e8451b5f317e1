"""A sanitized kernel may store what its Computations write, where that is a sum of steps."""

import random

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.regions import written
from tilewright.driver.reach import reach
from tilewright.expr.nodes import Buffer, Var, const
from tilewright.targets.permitted import IndexSet, Permitted

X = Buffer("x", (64,), dtypes.float32)


def writing(y, extents, index):
    """`y[index(i...)] = x[0]` for every point."""
    names = [Var(f"i{n}", dtypes.int64) for n in range(len(extents))]
    dims = tuple(Dim(v, n) for v, n in zip(names, extents, strict=True))
    return Computation("w", dims, (Output(y, tuple(index(*names)), X[0]),))


def stored(y, *group):
    (found,) = reach(group, {y}).values()
    places = [[i in s for i in range(-1, n + 1)] for s, n in zip(found.stores, y.shape)]
    assert not any(axis[0] or axis[-1] for axis in places)
    mask = np.ones(y.shape, bool)
    for axis, at in enumerate(places):
        mask &= np.reshape(at[1:-1], [-1 if a == axis else 1 for a in range(mask.ndim)])
    return mask


@pytest.mark.parametrize("seed", range(40))
def test_sums_of_steps(seed):
    """Never less than what is written; the same where no two points share an index or cross."""
    rng = random.Random(seed)
    extents = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
    factors = [rng.choice((-12, -4, -1, 1, 2, 3, 4, 8, 16)) for _ in extents]
    low = sum(f * (n - 1) for f, n in zip(factors, extents, strict=True) if f < 0)
    high = sum(f * (n - 1) for f, n in zip(factors, extents, strict=True) if f > 0)
    first = rng.randint(0, 3) - low
    y = Buffer("y", (first + high + rng.randint(1, 3), 3), dtypes.float32)

    def index(*i):
        at = i[0] * factors[0]
        for v, f in zip(i[1:], factors[1:], strict=True):
            at = at + v * f
        return at + first, const(1)

    c = writing(y, extents, index)
    want, found = written(c, y) > 0, stored(y, c)
    assert (found >= want).all()
    steps = sorted((abs(f), n) for f, n in zip(factors, extents, strict=True) if n > 1)
    reached = [sum(s * (n - 1) for s, n in steps[:k]) for k in range(len(steps))]
    if all(step > below for (step, _), below in zip(steps, reached, strict=True)):
        np.testing.assert_array_equal(found, want)


def test_several_computations_of_one_result():
    y = Buffer("y", (40,), dtypes.float32)
    odd = [writing(y, [4], lambda i, at=at: [i * 8 + at]) for at in (1, 5)]
    np.testing.assert_array_equal(np.flatnonzero(stored(y, *odd)), range(1, 30, 4))
    same = stored(y, odd[0], odd[0])
    np.testing.assert_array_equal(np.flatnonzero(same), range(1, 26, 8))


def test_what_is_no_sum_may_be_anything_between():
    y = Buffer("y", (40,), dtypes.float32)
    c = writing(y, [9], lambda i: [i // 4 * 8 + 1])
    np.testing.assert_array_equal(np.flatnonzero(stored(y, c)), range(1, 18))


def test_loads_may_be_between_what_is_written_and_read():
    y, z = Buffer("y", (40,), dtypes.float32), Buffer("z", (3,), dtypes.float32)
    c = writing(y, [4], lambda i: [i * 2 + 2])
    later = map_("z", z, lambda i: y[i * 5 + 1])
    found = reach([c, later], {y, z})
    assert found[y] == Permitted((IndexSet(1, ((1, 11),)),), (IndexSet(2, ((2, 4),)),))
    assert found[z] == Permitted((IndexSet(0, ((1, 3),)),), (IndexSet(0, ((1, 3),)),))
