"""Several tasks share a budget: trials go where the network gains, and end where it does not."""

from __future__ import annotations

from math import inf

import pytest

from tilewright.base.errors import InputError
from tilewright.base.events import record
from tilewright.testing.landscapes import KnowingModel, Landscape, TableRunner, bowl
from tilewright.tune.base import Budget, Measurement, Status
from tilewright.tune.scheduler import Scheduler, TuningEnd, gradient
from tilewright.tune.tuner import Tuning, TuningTools

SIDES = (10,) * 4


def tuning(
    name: str, land: Landscape, calls: int = 1, operations: int = 0, by: str = "random"
) -> Tuning:
    task = land.task(name, calls, operations)
    return Tuning(task, TuningTools(TableRunner(land), model=KnowingModel(land)), by=by)


def flat(seconds: float) -> Landscape:
    return Landscape(SIDES, lambda place: seconds)


def rounds(tunings: list[Tuning]) -> list[int]:
    return [len(t.bests) for t in tunings]


def test_the_default_of_each_task_is_measured_before_anything_else() -> None:
    tunings = [tuning(f"t{n}", flat(10.0**-n)) for n in range(5)]
    scheduler = Scheduler(tunings, Budget(trials=5 + 8), batch=8)
    for _ in range(5):
        scheduler.step()
    assert [t.used for t in tunings] == [1] * 5
    assert scheduler.run() is TuningEnd.TRIALS
    assert [t.used for t in tunings] == [9, 1, 1, 1, 1]


def test_trials_go_where_the_network_gains_most() -> None:
    steep = Landscape(SIDES, lambda place: 4 * bowl(place))
    tunings = [
        tuning("flat", flat(4.5)),
        tuning("falls", steep),
        tuning("short", Landscape(SIDES, lambda place: bowl(place) / 1000)),
    ]
    Scheduler(tunings, Budget(trials=240), batch=4).run()
    level, falls, short = rounds(tunings)
    assert short < 5 and falls > level


def test_what_is_called_more_often_counts_for_more() -> None:
    tunings = [tuning("rare", flat(1.0), 1), tuning("often", flat(1.0), 9)]
    Scheduler(tunings, Budget(trials=200), batch=4).run()
    rare, often = rounds(tunings)
    assert often > 2 * rare


def test_the_gradient_is_that_of_its_formula() -> None:
    task = tuning("t", flat(1.0), calls=3, operations=100)
    assert gradient(task) == inf
    task.bests = [inf, 10.0, 8.0, 7.0, 6.0]
    # Three rounds before the last it was 10; guesses: 6 / 5, and 6 - 2 * 100 / 50 = 2.
    assert gradient(task) == pytest.approx(3 * (0.2 * 4 / 3 + 0.8 * 6 / 5))
    assert gradient(task, 50.0) == pytest.approx(3 * (0.2 * 4 / 3 + 0.8 * 2))
    assert gradient(task, 1.0) == gradient(task)  # slower ones promise nothing


def test_what_similar_tasks_promise_fades_while_nothing_is_gained() -> None:
    task = tuning("t", flat(1.0), operations=100)
    task.bests = [8.0, 6.0, *[6.0] * 4]
    assert gradient(task, 50.0) == pytest.approx(0.8 * 2 / 2)  # four rounds in vain
    task.bests.append(5.0)
    assert gradient(task, 50.0) == pytest.approx(0.2 * 1 / 3 + 0.8 * 1)


def test_times_that_only_creep_are_no_gain() -> None:
    """The least of ever more noisy times falls by itself, a little in every round."""
    task = tuning("t", flat(1.0), operations=50)
    task.bests = [8.0, 6.0, 5.99, 5.98, 5.97, 5.96]
    assert gradient(task, 50.0) == pytest.approx(0.2 * 0.03 / 3 + 0.8 * 3.96 / 2)
    task.bests = [8.0, 6.07, 6.0]  # more than a hundredth: the last round gained
    assert gradient(task, 50.0) == pytest.approx(0.2 * 2 / 3 + 0.8 * 4)


def test_a_task_that_cannot_be_as_fast_as_its_like_leaves_trials_to_others() -> None:
    """As a product with one row, which waits for memory, beside those with many."""
    others = [tuning(f"o{n}", flat(0.5), operations=10**9) for n in range(9)]
    stuck = tuning("stuck", flat(1.0), operations=10**6)
    Scheduler([*others, stuck], Budget(trials=1600), batch=4).run()
    assert stuck.used < 1600 / 3
    assert min(t.used for t in others) > 1600 / 20


def test_a_task_far_behind_its_like_is_looked_at_again() -> None:
    """The slow one needs a thousand times as long per operation; others of its kind do not."""
    alike = [
        tuning("fast", flat(1.0), operations=10**9),
        tuning("slow", flat(0.5), operations=10**6),
    ]
    Scheduler(alike, Budget(trials=160), batch=4).run()
    with_peers = rounds(alike)
    apart = [
        tuning("fast", flat(1.0), operations=10**9),
        tuning("slow", flat(0.5), operations=10**6),
    ]
    Scheduler(apart, Budget(trials=160), batch=4, similar=lambda t: t.task.name).run()
    assert with_peers[1] > rounds(apart)[1]


def test_a_task_rests_when_it_is_expected_to_gain_little_and_all_at_last() -> None:
    tunings = [tuning("flat", flat(1.0)), tuning("falls", Landscape(SIDES, bowl))]
    budget = Budget(trials=20_000, expected_gain=0.02)
    scheduler = Scheduler(tunings, budget)
    assert scheduler.run() is TuningEnd.GAIN
    assert scheduler.expected_gain < 0.02
    assert 0 < budget.used < 5000
    assert all(len(t.bests) > 1 and not t.through for t in tunings)


def test_without_a_share_tasks_go_on_until_they_are_through() -> None:
    tunings = [tuning(f"t{n}", Landscape((4, 3), bowl)) for n in range(2)]
    budget = Budget()
    scheduler = Scheduler(tunings, budget, batch=5)
    assert scheduler.run() is TuningEnd.THROUGH
    assert budget.used == 24 and scheduler.expected_gain == 0


def test_the_budget_of_trials_is_used_exactly_and_shared() -> None:
    budget = Budget(trials=50)
    budget.used = 20
    tunings = [tuning(f"t{n}", Landscape(SIDES, bowl)) for n in range(2)]
    Scheduler(tunings, budget).run()
    assert budget.used == 50 and sum(t.used for t in tunings) == 30


def test_time_and_the_caller_end_it() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    tunings = [tuning("t", Landscape(SIDES, bowl))]
    timed = Scheduler(tunings, Budget(seconds=20), clock=clock)
    assert timed.run() is TuningEnd.SECONDS and len(tunings[0].bests) >= 1
    rest = Scheduler(
        tunings, Budget(), until=lambda: len(tunings[0].bests) >= 30, batch=1
    )
    assert rest.run() is TuningEnd.UNTIL and len(tunings[0].bests) == 30


def test_the_network_is_the_sum_of_its_tasks() -> None:
    a = Landscape((2,), lambda place: 4.0 if place == (0,) else 2.0)
    b = Landscape((1,), lambda place: 6.0)
    tunings = [tuning("a", a, calls=3), tuning("b", b)]
    scheduler = Scheduler(tunings, Budget(), batch=1)
    assert scheduler.seconds == inf and scheduler.gain == 1
    scheduler.run()
    assert scheduler.seconds == 3 * 2.0 + 6.0
    assert scheduler.gain == pytest.approx(18 / 12)
    assert [o.gain for o in scheduler.outcomes()] == [2.0, 1.0]


def test_a_task_that_always_fails_keeps_no_other_from_being_tuned() -> None:
    class Broken(TableRunner):
        def _measurement(self, candidate: object) -> Measurement:
            return Measurement(Status.CRASH)

    land = Landscape(SIDES, bowl)
    broken = Tuning(land.task("broken"), TuningTools(Broken(land)), by="random")
    good = tuning("good", land)
    scheduler = Scheduler([broken, good], Budget(trials=320))
    scheduler.run()
    assert rounds([good])[0] >= 5
    assert scheduler.gain > 1


def test_progress_is_told_after_each_round() -> None:
    tunings = [tuning(f"t{n}", Landscape(SIDES, bowl), calls=2) for n in range(2)]
    budget = Budget(trials=2 + 4 * 16)
    scheduler = Scheduler(tunings, budget)
    with record() as events:
        scheduler.run()
    told = [e.fields for e in events if e.kind == "tune-progress"]
    assert [f["network_trials"] for f in told] == [1, 2, 18, 34, 50, 66]
    assert {f["task"] for f in told} == {"t0", "t1"}
    last = told[-1]
    assert last["network_gain"] == scheduler.gain > 1
    assert last["network_expected_gain"] == scheduler.expected_gain
    assert 0 <= last["overhead"] <= 1 and last["gain"] >= 1


def test_a_scheduler_needs_tasks_and_trials() -> None:
    with pytest.raises(InputError, match="tasks 0"):
        Scheduler([], Budget())
    with pytest.raises(InputError, match="trials 0"):
        Scheduler([tuning("t", flat(1.0))], Budget(trials=0))
    done = Scheduler([tuning("t", Landscape((1,), bowl))], Budget(), batch=4)
    done.run()
    with pytest.raises(InputError, match="no task has a candidate left"):
        done.step()
