import numpy as np
import pytest

from tests.tune.models.synthetic import examples
from tilewright.tune.models.objectives import OBJECTIVES, PairwiseRank
from tilewright.tune.models.programs import Examples

INF = float("inf")


def _with_failures(count=40):
    found = examples(count)
    seconds = found.seconds.copy()
    seconds[::7] = INF
    return Examples(found.programs, found.group, seconds, found.prior)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_that_of_the_loss(name):
    loss = OBJECTIVES[name].loss(_with_failures(), np.random.default_rng(0))
    costs = np.random.default_rng(1).standard_normal(40)
    _, gradient, hessian = loss(costs)
    step = 1e-5
    for n in range(40):
        moved = np.zeros(40)
        moved[n] = step
        more, less = loss(costs + moved), loss(costs - moved)
        assert (more[0] - less[0]) / (2 * step) == pytest.approx(gradient[n], abs=1e-6)
        bend = (more[1][n] - less[1][n]) / (2 * step)
        # An upper bound: it is twice as large where a pair bends by both of its programs.
        assert hessian[n] >= bend - 1e-6


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_start_is_the_best_constant(name):
    found = examples(40)
    objective = OBJECTIVES[name]
    loss = objective.loss(found, np.random.default_rng(0))
    start = objective.start(found)
    at = [loss(np.full(40, start + d))[0] for d in (-0.01, 0.0, 0.01)]
    assert at[1] <= at[0] and at[1] <= at[2]


def _rank_gradient(seconds, group):
    found = examples(len(seconds))
    of = Examples(
        found.programs, np.array(group), np.array(seconds), np.zeros(len(seconds))
    )
    loss = PairwiseRank().loss(of, np.random.default_rng(0))
    return loss(np.zeros(len(seconds)))[1]


def test_programs_of_two_tasks_are_no_pair():
    assert _rank_gradient([1.0, 2.0], [0, 1]).tolist() == [0, 0]
    up, down = _rank_gradient([1.0, 2.0], [0, 0])
    assert up > 0 > down  # a smaller cost for the faster one lowers the loss


def test_equal_times_and_two_failures_are_no_pair():
    assert _rank_gradient([1.0, 1.0], [0, 0]).tolist() == [0, 0]
    only_one_succeeded = _rank_gradient([INF, INF, 1.0], [0, 0, 0])
    assert only_one_succeeded[0] == only_one_succeeded[1] < 0
    assert _rank_gradient([INF, INF], [0, 0]).tolist() == [0, 0]


def test_what_is_apart_among_the_fast_ones_weighs_more():
    gradient = _rank_gradient([1.0, 2.0, 100.0, 200.0], [0, 0, 1, 1])
    same = _rank_gradient([1.0, 2.0, 100.0, 101.0], [0, 0, 1, 1])
    assert abs(gradient[2]) == pytest.approx(abs(gradient[0]))
    assert abs(same[2]) < abs(same[0])
