"""The recursive network: its gradient by differences, and the trees that it works on."""

import numpy as np
import pytest

from tilewright.tune.models.programs import ProgramRows
from tilewright.tune.models.recursive import ProgramTrees, backward, forward, initial

# Two trees: 0 and 1 inside of 2, that and 3 inside of 4; and 0 alone.
UP = [[2, 1, 2, 1, 0], [0]]


def _forest(random):
    matrices = [
        np.column_stack([up, random.random((len(up), 3))]).astype(np.float32)
        for up in UP
    ]
    return ProgramTrees.of(ProgramRows.of(matrices), np.zeros(3), np.ones(3))


def test_nodes_are_sorted_by_height():
    forest = _forest(np.random.default_rng(0))
    assert forest.parent.tolist() == [2, 2, 4, 4, -1, -1]
    assert [level.tolist() for level in forest.levels] == [[0, 1, 3, 5], [2], [4]]
    assert forest.roots.tolist() == [4, 5]


def test_the_gradient_is_that_of_the_costs():
    random = np.random.default_rng(1)
    forest = _forest(random)
    values = initial(3, 4, random)
    by_cost = random.standard_normal(2)
    _, kept = forward(values, forest)
    gradient = backward(values, forest, kept, by_cost)
    for name, value in values.items():
        for at in np.ndindex(value.shape):
            before, step = value[at], 1e-5
            value[at] = before + step
            more = forward(values, forest)[0] @ by_cost
            value[at] = before - step
            less = forward(values, forest)[0] @ by_cost
            value[at] = before
            slope = (more - less) / (2 * step)
            assert slope == pytest.approx(gradient[name][at], rel=1e-4, abs=1e-8), name


def test_the_order_of_what_is_inside_means_nothing_and_the_depth_does():
    random = np.random.default_rng(2)
    rows = random.random((3, 3)).astype(np.float32)
    values = initial(3, 4, random)

    def cost(up, order):
        matrix = np.column_stack([up, rows[order]]).astype(np.float32)
        forest = ProgramTrees.of(ProgramRows.of([matrix]), np.zeros(3), np.ones(3))
        return forward(values, forest)[0][0]

    two = cost([2, 1, 0], [0, 1, 2])
    assert cost([2, 1, 0], [1, 0, 2]) == pytest.approx(two)
    assert abs(cost([1, 1, 0], [0, 1, 2]) - two) > 1e-6
