"""Trees as arrays: the same values as LightGBM's, in files, and what is refused."""

import numpy as np
import pytest

from tests.tune.models.synthetic import COLUMNS, examples
from tilewright.base.errors import InputError
from tilewright.tune.models import stored
from tilewright.tune.models.forest import TreeEnsemble
from tilewright.tune.models.objectives import OBJECTIVES
from tilewright.tune.models.programs import Examples, ProgramRows
from tilewright.tune.models.trees import Trees


@pytest.fixture(scope="module", params=["rank", "regression"])
def fitted(request):
    made = Trees(OBJECTIVES[request.param], rounds=20)
    made.fit(examples())
    return made


def programs(matrix):
    return ProgramRows(matrix, np.arange(1, len(matrix) + 1))


def test_values_are_those_of_lightgbm(fitted):
    rows = np.random.default_rng(1).random((500, COLUMNS)).astype(np.float32)
    forest = TreeEnsemble.of(fitted.state())
    assert len(forest.leaves) == 20
    found = forest.values(rows)
    np.testing.assert_allclose(found, fitted.costs(programs(rows)), atol=1e-5)
    assert np.ptp(found) > 0.1


def test_a_threshold_itself_goes_left(fitted):
    """Its nearest float32 may lie above it, and would send that number the other way."""
    forest = TreeEnsemble.of(fitted.state())
    splits = [forest.threshold[forest.feature == n] for n in range(COLUMNS)]
    at = np.full((64, COLUMNS), 0.5, np.float32)
    for n, known in enumerate(splits):
        known = known[:16]
        at[16 * (n % 4) : 16 * (n % 4) + len(known), n] = known
    for rows in (at, np.nextafter(at, np.float32(2)), np.nextafter(at, np.float32(-2))):
        wanted = fitted.costs(programs(rows))
        np.testing.assert_allclose(forest.values(rows), wanted, atol=1e-5)


def test_no_trees_and_no_splits():
    rows = np.ones((3, COLUMNS), np.float32)
    alike = Examples(programs(rows), np.zeros(3, np.int64), np.ones(3), np.zeros(3))
    made = Trees(OBJECTIVES["regression"], rounds=3)
    made.fit(alike)
    np.testing.assert_array_equal(
        TreeEnsemble.of(made.state()).values(rows), np.zeros(3)
    )
    # Of few examples no split is made: trees of one leaf.
    few = ProgramRows(np.arange(4, dtype=np.float32)[:, None], np.arange(1, 5))
    group, taken = np.zeros(4, np.int64), np.array([1.0, 2.0, 3.0, 4.0])
    made.fit(Examples(few, group, taken, np.zeros(4)))
    forest = TreeEnsemble.of(made.state())
    assert set(forest.leaves) == {1}
    np.testing.assert_allclose(forest.values(few.rows), made.costs(few), atol=1e-6)


def test_a_file_keeps_them(fitted, tmp_path):
    forest = TreeEnsemble.of(fitted.state())
    stored.write(tmp_path / "f", "forest", forest.state())
    again = TreeEnsemble.restore(stored.read(tmp_path / "f", "forest"))
    rows = np.random.default_rng(2).random((50, COLUMNS)).astype(np.float32)
    np.testing.assert_array_equal(again.values(rows), forest.values(rows))


def test_other_splits_are_refused(fitted):
    state = fitted.state()
    other = state["trees"].replace("decision_type=2", "decision_type=10", 1)
    with pytest.raises(InputError, match="not plain comparisons"):
        TreeEnsemble.of({**state, "trees": other})
