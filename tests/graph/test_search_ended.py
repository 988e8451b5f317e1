"""A search over graphs that is ended from outside, at any moment, keeps what it has found."""

import pytest

from tests.graph.test_substitute import check_same, operations
from tilewright.base import modes
from tilewright.base.limits import WorkEnded, check
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.substitute.derivation import replay
from tilewright.graph.substitute.identity import digest
from tilewright.graph.substitute.optimize import OptimizeSettings, optimize
from tilewright.graph.substitute.steps import folded
from tilewright.search.result import SearchLimits, StopReason
from tilewright.search.run import Run, each
from tilewright.testing.substitutable import random_substitutable


class _Asked:
    """Is true from the n-th question on."""

    def __init__(self, n):
        self.left = n

    def __call__(self):
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("strategy", modes.STRATEGIES)
def test_a_search_ends_in_the_middle_of_a_cost(strategy):
    """Wherever it is asked to end: the graph is right, and its steps lead to it."""
    case = random_substitutable(3, 6)
    how = OptimizeSettings(strategy=strategy, nodes=80, alpha=2.0)

    def slow(graph):
        for _ in range(3):
            check()  # as planning does
        return operations(graph)

    whole = optimize(case.graph, SUBSTITUTIONS, slow, how)
    ended, gained, total = 0, 0, _Asked(1 << 30)
    optimize(case.graph, SUBSTITUTIONS, slow, how, limits=SearchLimits(until=total))
    times = (1 << 30) - total.left
    for n in range(0, times, max(1, times // 40)):
        limits = SearchLimits(until=_Asked(n))
        try:
            found = optimize(case.graph, SUBSTITUTIONS, slow, how, limits=limits)
        except WorkEnded:  # before there was anything to keep
            ended += 1
            continue
        assert found.interrupted
        assert whole.after <= found.after <= found.before == whole.before
        check_same(case.graph, found.graph, case.inputs)
        replayed = replay(folded(case.graph), found.derivation, SUBSTITUTIONS)
        assert digest(replayed) == digest(found.graph)
        gained += found.after < found.before
    assert ended and gained
    check()  # no longer asked


def test_a_run_keeps_its_best_state():
    run = Run("a search", each(float))
    with run:
        run.evaluate(3.0)
        raise WorkEnded
    assert run.stop is StopReason.UNTIL and run.best == (3.0, 3.0)


def test_a_run_without_a_state_passes_the_end_on():
    with pytest.raises(WorkEnded), Run("a search", each(float)):
        raise WorkEnded
