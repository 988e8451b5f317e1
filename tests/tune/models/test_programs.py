import numpy as np
import pytest

from tests.tune.models.synthetic import rows
from tilewright.base.errors import InputError
from tilewright.tune.models.programs import Examples, ProgramRows, numbered

INF = float("inf")


def _examples(seconds, group=None):
    matrices = [np.full((1, 2), n, np.float32) for n in range(len(seconds))]
    group = np.zeros(len(seconds), np.int64) if group is None else np.array(group)
    zeros = np.zeros(len(seconds))
    return Examples(ProgramRows.of(matrices), group, np.array(seconds, float), zeros)


def test_rows_are_those_of_their_programs():
    random = np.random.default_rng(0)
    matrices = [rows(random, 4) for _ in range(9)]
    matrices[3] = np.zeros((0, 5), np.float32)  # a kernel that does nothing
    whole = ProgramRows.of(matrices)
    chosen = np.array([8, 3, 3, 0])
    taken = whole.take(chosen)

    assert [len(m) for m in matrices] == whole.counts.tolist()
    for n, p in enumerate(chosen):
        start = taken.ends[n] - taken.counts[n]
        np.testing.assert_array_equal(taken.rows[start : taken.ends[n]], matrices[p])


def test_sums_of_rows():
    whole = ProgramRows.of([np.zeros((n, 1), np.float32) for n in (2, 0, 3)])
    values = np.log([1.0, 2.0, 3.0, 4.0, 5.0])
    np.testing.assert_allclose(whole.sums(np.exp(values)), [3, 0, 12])
    logs, shares = whole.log_sums(values)
    np.testing.assert_allclose(np.exp(logs), [3, 0, 12])
    np.testing.assert_allclose(shares, [1 / 3, 2 / 3, 3 / 12, 4 / 12, 5 / 12])


def test_sums_of_large_logarithms_do_not_overflow():
    whole = ProgramRows.of([np.zeros((2, 1), np.float32)])
    logs, _ = whole.log_sums(np.array([2000.0, 2000.0]))
    np.testing.assert_allclose(logs, 2000 + np.log(2))


def test_what_failed_is_slower_than_all_of_its_task():
    found = _examples([1.0, INF, 4.0, 0.5, INF], [0, 0, 0, 1, 1])
    np.testing.assert_allclose(np.exp(found.costs()), [1, 8, 4, 0.5, 1])
    np.testing.assert_allclose(found.throughput(), [1, 0, 0.25, 1, 0])


def test_a_task_in_which_all_failed_is_left_out():
    found = _examples([INF, 1.0, INF, INF], [0, 1, 1, 0]).useful()
    assert found.programs.rows[:, 0].tolist() == [1, 2]
    assert found.group.tolist() == [1, 1]
    assert len(_examples([INF, INF]).useful()) == 0
    assert len(_examples([]).useful()) == 0


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_seconds_that_cannot_be_are_refused(bad):
    with pytest.raises(InputError, match=r"sample 1 took .* give positive seconds"):
        _examples([1.0, bad])


def test_names_are_numbered_as_they_come():
    assert numbered(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]
