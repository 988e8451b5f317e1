"""Each learner finds an order that it can know, and is the same each time."""

import numpy as np
import pytest

from tests.tune.models.synthetic import COLUMNS, accuracy, examples
from tilewright.tune.models.halide_costs import SCHEDULE
from tilewright.tune.models.halide_net import HalideNet
from tilewright.tune.models.learner import Ensemble
from tilewright.tune.models.objectives import OBJECTIVES
from tilewright.tune.models.programs import Examples, ProgramRows
from tilewright.tune.models.recursive import Recursive
from tilewright.tune.models.trees import Trees


def _trees(objective):
    def make():
        return Ensemble(lambda seed: Trees(OBJECTIVES[objective], seed, 60), 2)

    return make


def _recursive():
    return Ensemble(lambda seed: Recursive(OBJECTIVES["rank"], seed, 12, 150, 64), 2)


def _halide():
    return Ensemble(lambda seed: HalideNet(NAMES, 1, seed, 60, 64), 2)


NAMES = ("a", "b", *SCHEDULE)
LEARNERS = {
    "rank": _trees("rank"),
    "regression": _trees("regression"),
    "throughput": _trees("throughput"),
    "recursive": _recursive,
    "halide": _halide,
}
INF = float("inf")


def _chains(of):
    """Rows as chains: the parent of each is the next one."""
    counts = of.programs.counts
    up = np.ones(len(of.programs.rows), np.float32)
    up[of.programs.ends - 1] = 0
    assert counts.min() > 0
    return np.column_stack([up, of.programs.rows]).astype(np.float32)


def _stages(of):
    """Rows as stages: some vectors in a first column's number."""
    rows = of.programs.rows
    made = np.ones((len(rows), len(NAMES)), np.float32)
    column = NAMES.index("num_vectors")
    busy = np.exp(2 * rows[:, 0]) * (1 + (rows[:, 1] > 0.5))
    made[:, column] = 1000 * busy
    return made


SHAPED = {"recursive": _chains, "halide": _stages}


def _data(name, **more):
    of = examples(**more)
    if name not in SHAPED:
        return of
    made = SHAPED[name](of)
    programs = ProgramRows(made, of.programs.ends)
    return Examples(programs, of.group, of.seconds, of.prior)


def _changed(of, seconds=None, prior=None):
    return Examples(
        of.programs,
        of.group,
        of.seconds if seconds is None else seconds,
        of.prior if prior is None else prior,
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("name", [n for n in LEARNERS if n != "halide"])
def test_the_order_of_programs_not_seen(name, most):
    # Costs that are absolute have the speed of a task in them, which no feature tells here.
    groups = 1 if name == "regression" else 3
    whole = _data(name, count=360, groups=groups, most=most)
    known, other = whole.take(np.arange(240)), whole.take(np.arange(240, 360))
    learner = LEARNERS[name]()
    learner.fit(known)
    assert accuracy(learner.predict(other.programs).cost, other) > 0.8
    # A model of another order is not as good: the test can fail.
    shuffled = _changed(
        known, seconds=np.random.default_rng(0).permutation(known.seconds)
    )
    learner.fit(shuffled)
    assert accuracy(learner.predict(other.programs).cost, other) < 0.75


@pytest.mark.parametrize("name", ["regression", "halide"])
def test_costs_that_are_absolute_are_logarithms_of_seconds(name):
    of = _data(name, count=200, groups=1)
    learner = LEARNERS[name]()
    learner.fit(of)
    off = learner.predict(of.programs).cost - np.log(of.seconds)
    assert np.median(np.abs(off)) < 0.3


@pytest.mark.representatives("rank", "regression", "throughput", "halide")
@pytest.mark.parametrize("name", LEARNERS)
def test_the_same_data_give_the_same_model(name):
    of = _data(name, count=60)
    found = []
    for _ in range(2):
        learner = LEARNERS[name]()
        learner.fit(of)
        found.append(learner.predict(of.programs))
    np.testing.assert_array_equal(found[0].cost, found[1].cost)
    np.testing.assert_array_equal(found[0].spread, found[1].spread)


@pytest.mark.parametrize("name", LEARNERS)
def test_what_was_kept_predicts_the_same_bits(name):
    of = _data(name, count=60, most=2)
    learner, other = LEARNERS[name](), LEARNERS[name]()
    learner.fit(of)
    other.restore(learner.state())
    found = learner.predict(of.programs), other.predict(of.programs)
    np.testing.assert_array_equal(found[0].cost, found[1].cost)
    np.testing.assert_array_equal(found[0].spread, found[1].spread)


CASES = {
    "one sample": lambda of: of.take(np.arange(1)),
    "two samples": lambda of: of.take(np.arange(2)),
    "ties": lambda of: _changed(of, seconds=np.full(len(of), 1e-3)),
    "failures": lambda of: _changed(
        of, seconds=np.where(np.arange(len(of)) % 2, INF, of.seconds)
    ),
    "constant features": lambda of: Examples(
        ProgramRows(np.zeros_like(of.programs.rows), of.programs.ends),
        of.group,
        of.seconds,
        of.prior,
    ),
    "a prior": lambda of: _changed(of, prior=np.log(of.seconds)),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", LEARNERS)
def test_awkward_data_give_numbers(name, case):
    of = CASES[case](_data(name, count=30))
    learner = LEARNERS[name]()
    learner.fit(of)
    found = learner.predict(of.programs)
    assert np.isfinite(found.cost).all() and np.isfinite(found.spread).all()
    assert found.cost.shape == found.spread.shape == (len(of),)
    if case == "constant features":
        assert np.ptp(found.cost) < 1e-9
    none = learner.predict(ProgramRows.of([]))
    assert none.cost.shape == none.spread.shape == (0,)


@pytest.mark.parametrize("name", LEARNERS)
def test_failures_come_behind_what_succeeded(name):
    of = _data(name, count=200, groups=1)
    fails = of.seconds > np.median(of.seconds)
    of = _changed(of, seconds=np.where(fails, INF, of.seconds))
    learner = LEARNERS[name]()
    learner.fit(of)
    cost = learner.predict(of.programs).cost
    assert np.median(cost[fails]) > np.median(cost[~fails])


@pytest.mark.representatives("rank", "regression")
@pytest.mark.parametrize("name", ["rank", "regression", "recursive"])
def test_a_prior_that_is_right_leaves_nothing_to_learn(name):
    of = _data(name, count=120, groups=1)
    learner = LEARNERS[name]()
    learner.fit(_changed(of, prior=20 * np.log(of.seconds)))
    rest = learner.predict(of.programs).cost
    learner.fit(of)
    alone = learner.predict(of.programs).cost
    assert np.corrcoef(alone, np.log(of.seconds))[0, 1] > 0.8
    if name == "regression":
        # What is left of 20 times too much goes the other way.
        assert np.corrcoef(rest, np.log(of.seconds))[0, 1] < -0.8
    else:
        assert np.ptp(rest) < np.ptp(alone)


def test_members_disagree_where_they_have_seen_nothing_like_it():
    of = _data("regression", count=80, groups=1)
    rows = of.programs.rows
    near = np.flatnonzero(rows[:, 0] < 0.5)
    learner = Ensemble(lambda seed: Trees(OBJECTIVES["regression"], seed), 4)
    learner.fit(of.take(near))
    spread = learner.predict(of.programs).spread
    far = np.flatnonzero(rows[:, 0] > 0.8)
    assert spread[far].mean() > spread[near].mean()


def test_an_ensemble_of_other_size_is_refused():
    from tilewright.base.errors import InputError

    of = _data("rank", count=20)
    learner = LEARNERS["rank"]()
    learner.fit(of)
    larger = Ensemble(lambda seed: Trees(OBJECTIVES["rank"], seed), 3)
    with pytest.raises(InputError, match="has 2 members, not 3"):
        larger.restore(learner.state())


def test_columns_of_the_synthetic_data():
    assert examples(3).programs.rows.shape == (3, COLUMNS)
