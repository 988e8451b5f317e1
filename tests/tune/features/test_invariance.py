"""Features are those of the program: not of its names, its trivial loops, or the order of what
commutes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.rewritten import renamed, with_trivial_loops
from tests.tune.features import kernels
from tests.tune.features.kernels import FACTS
from tilewright.expr.nodes import Buffer, var
from tilewright.loops.nodes import Block, Kernel, Store, block, loop
from tilewright.testing.random_kernels import random_kernel
from tilewright.testing.random_schedules import random_schedule
from tilewright.tune.features import FeatureSet, feature_sets, names

SETS = {features.name: features for features in feature_sets(FACTS)}


def differing(features: FeatureSet, a: Kernel, b: Kernel) -> set[str]:
    """The columns in which two kernels differ; all where they have other numbers of rows."""
    x, y = features.extract(a), features.extract(b)
    columns = names(features)
    if x.shape != y.shape:
        return set(columns)
    return {columns[n] for n in np.nonzero((x != y).any(axis=0))[0]}


@pytest.mark.parametrize("name", SETS)
def test_names_mean_nothing(name):
    for seed in range(12):
        kernel = random_kernel(random.Random(seed))
        assert not differing(SETS[name], kernel, renamed(kernel)), kernel
    some = kernels.product(), kernels.gather(), kernels.stencil()
    for kernel in some:
        assert not differing(SETS[name], kernel, renamed(kernel))
    assert not differing(SETS[name], some[0], kernels.product(prefix="z"))


@pytest.mark.parametrize("name", SETS)
def test_operands_that_commute_have_no_order(name):
    assert not differing(SETS[name], kernels.product(), kernels.product(swapped=True))


@pytest.mark.parametrize("name", SETS)
def test_loops_of_one_trip_mean_nothing(name):
    features = SETS[name]
    assert not differing(features, kernels.product(), kernels.product(trivial=True))
    for seed in range(8):
        r = random.Random(seed)
        kernel = random_schedule(r, random_kernel(r), 6).kernel
        assert not differing(features, kernel, with_trivial_loops(kernel)), kernel


@pytest.mark.parametrize("name", ["fast", "relation", "without-loops"])
def test_nests_that_do_not_meet_have_no_order(name):
    i, j = var("i"), var("j")
    x = Buffer("x", (8,), kernels.float32)
    y, z = (Buffer(n, (8,), kernels.float32) for n in "yz")
    first = loop(i, 8, Store(y, (i,), x[i] * 2.0))
    second = loop(j, 8, Store(z, (j,), x[j] + 1.0), "vector")
    one = Kernel("p", (x, y, z), (y, z), block(first, second))
    other = one.with_body(block(second, first))
    assert not differing(SETS[name], one, other)


@pytest.mark.parametrize("name", [n for n in SETS if n != "without-loops"])
def test_schedules_that_differ_are_told_apart(name):
    features = SETS[name]
    assert differing(features, kernels.product(), kernels.plain_product())


def test_without_loops_no_schedule_is_told_from_another():
    features = SETS["without-loops"]
    assert not differing(features, kernels.product(), kernels.plain_product())
    assert differing(features, kernels.product(), kernels.row_sums())


def test_an_empty_block_means_nothing():
    kernel = kernels.product()
    padded = kernel.with_body(Block((Block(()), kernel.body)))
    for features in SETS.values():
        assert not differing(features, kernel, padded)
