"""A task is tuned: what is recorded when, what resumes, what is reported, and that it pays."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from tilewright.base.errors import CompileError, InputError
from tilewright.base.events import record
from tilewright.loops.nodes import Kernel
from tilewright.testing.landscapes import (
    KnowingModel,
    Landscape,
    LearningModel,
    TableRunner,
    bowl,
)
from tilewright.tune.accounts import MEASURE, TimeAccounts
from tilewright.tune.base import Candidate, Job, Measurement, Status, Trial
from tilewright.tune.gain import expected_gain, running_best
from tilewright.tune.tuner import FINAL, REFUSALS, Tuning, TuningTools

SIDES = (10,) * 4


class Recorder:
    """Trials in the order in which they were recorded."""

    def __init__(self, runner: TableRunner | None = None) -> None:
        self.trials: list[Trial] = []
        self.measured_before: list[int] = []
        self._runner = runner

    def __call__(self, task: object, trial: Trial) -> None:
        self.trials.append(trial)
        if self._runner is not None:
            self.measured_before.append(len(self._runner.jobs))


def tuned(
    land: Landscape, rounds: int = 4, tools: TuningTools | None = None, **more: Any
) -> Tuning:
    tools = tools or TuningTools(TableRunner(land), model=KnowingModel(land, 0.2))
    options = {"effort": 8, **more}
    tuning = Tuning(land.task(), tools, **options)
    for _ in range(rounds):
        tuning.step()
    return tuning


def test_the_default_is_the_first_trial_and_the_best_is_found() -> None:
    land = Landscape(SIDES, bowl)
    outcome = tuned(land, 8).outcome()
    assert outcome.default is not None and outcome.best is not None
    assert outcome.default.candidate == land.default()
    assert outcome.best.measurement.seconds < 1.15
    assert (
        outcome.gain == land.seconds(land.default()) / outcome.best.measurement.seconds
    )
    assert outcome.trials == 8 * 16 and outcome.failed == {}
    numbers, seconds = zip(*outcome.curve, strict=True)
    assert numbers[0] == 1 and list(numbers) == sorted(numbers)
    assert list(seconds) == sorted(seconds, reverse=True)
    assert seconds[-1] == outcome.best.measurement.seconds
    assert outcome.best.predicted == pytest.approx(seconds[-1], rel=1.0)
    assert outcome.best.strategy == "evolutionary"


def test_each_trial_is_recorded_as_soon_as_it_is_measured() -> None:
    land = Landscape(SIDES, bowl)
    runner = TableRunner(land)
    recorder = Recorder(runner)
    tuning = tuned(land, 2, TuningTools(runner, record=recorder), by="random")
    assert recorder.trials == tuning.trials
    assert recorder.measured_before == list(range(1, 33))


def test_what_was_finished_is_recorded_when_a_round_is_interrupted() -> None:
    land = Landscape(SIDES, bowl)

    class Interrupted(TableRunner):
        def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
            for number, found in enumerate(super().measure(jobs)):
                if number == 5:
                    raise KeyboardInterrupt
                yield found

    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        tuned(land, 1, TuningTools(Interrupted(land), record=recorder))
    assert len(recorder.trials) == 5


@pytest.mark.covering(1)
@pytest.mark.parametrize("by", ["evolutionary", "annealing", "bandit", "random"])
@pytest.mark.parametrize("killed_after", [0, 1, 16, 29, 47])
def test_a_run_that_was_broken_off_goes_on_as_if_it_had_not_been(
    by: str, killed_after: int
) -> None:
    def fresh() -> tuple[Landscape, TuningTools]:
        land = Landscape(SIDES, bowl, refused=lambda place: sum(place) % 7 == 1)
        return land, TuningTools(TableRunner(land, 0.1), model=LearningModel(SIDES))

    land, tools = fresh()
    whole = tuned(land, 4, tools, by=by)
    land, tools = fresh()
    again = tuned(land, 4, tools, by=by, earlier=whole.trials[:killed_after])
    assert [t.candidate for t in again.trials] == [t.candidate for t in whole.trials]
    assert again.bests == whole.bests
    measured = [t for t in whole.trials if t.measurement.status is Status.OK]
    known = [t for t in measured if t in whole.trials[:killed_after]]
    assert isinstance(tools.runner, TableRunner)
    assert len(tools.runner.jobs) == len(measured) - len(known)


def test_trials_that_a_run_would_not_make_again_are_not_lost() -> None:
    land = Landscape(SIDES, bowl)
    earlier = tuned(land, 2, by="random", seed=5).trials
    runner = TableRunner(land)
    tuning = tuned(land, 2, TuningTools(runner), by="random", seed=6, earlier=earlier)
    candidates = [t.candidate for t in tuning.trials]
    assert len(candidates) == len(set(candidates))
    assert set(candidates) >= {t.candidate for t in earlier}
    assert not {t.candidate for t in earlier} & set(runner.jobs)


def test_the_default_is_measured_first_where_a_broken_off_run_had_another() -> None:
    """As with a newer compiler. What the others took is compared with the default of now."""
    land = Landscape(SIDES, bowl)
    earlier = tuned(land, 2, by="random", seed=5).trials[1:]
    tuning = tuned(land, 1, by="random", seed=5, earlier=earlier)
    default = tuning.outcome().default
    assert default is not None and default.candidate == land.default()
    assert len(tuning.trials) == 32


def test_earlier_trials_that_no_round_came_to_are_recalled() -> None:
    land = Landscape(SIDES, bowl)
    earlier = tuned(land, 2, by="random", seed=5).trials
    tuning = tuned(land, 0, by="random", seed=6, earlier=earlier)
    tuning.recall()
    assert not tuning.trials  # without a default nothing can be compared
    tuning.step(1)
    tuning.recall()
    tuning.recall()
    assert {t.candidate for t in tuning.trials} == {t.candidate for t in earlier}
    assert len(tuning.trials) == 32
    assert tuning.seconds == min(t.measurement.seconds for t in earlier)


def test_trials_of_other_runs_are_learned_from_and_the_fastest_measured_again() -> None:
    land = Landscape(SIDES, bowl)
    known = tuned(land, 4).trials
    runner = TableRunner(land)
    tuning = tuned(land, 2, TuningTools(runner), by="random", known=known)
    ranked = sorted(known, key=lambda t: t.measurement.seconds)
    first = [t.candidate for t in tuning.trials[:4]]
    assert first == [land.default(), *(t.candidate for t in ranked[:3])]
    others = {t.candidate for t in known} - set(first)
    assert not others & set(runner.jobs) and len(tuning.trials) == 32


def test_refused_candidates_are_recorded_and_not_measured() -> None:
    land = Landscape(SIDES, bowl, refused=lambda place: sum(place) % 2 == 1)
    runner = TableRunner(land)
    recorder = Recorder()
    tuning = tuned(land, 3, TuningTools(runner, record=recorder), by="random")
    refused = [t for t in recorder.trials if t.measurement.status is Status.REFUSED]
    assert refused and all("is rejected" in t.measurement.reason for t in refused)
    assert all(sum(land.place(c)) % 2 == 0 for c in runner.jobs)
    assert tuning.used == len(runner.jobs) == 48 - len(refused)
    assert tuning.outcome().failed == {Status.REFUSED: len(refused)}


@pytest.mark.parametrize("by", ["random", "evolutionary", "bandit", "tree"])
def test_a_task_all_of_whose_candidates_are_refused_ends(by: str) -> None:
    land = Landscape((10,) * 6, bowl, refused=lambda place: True)
    tuning = Tuning(land.task(), TuningTools(TableRunner(land)), by=by)
    while not tuning.through:
        tuning.step()
    assert len(tuning.trials) <= REFUSALS + 16
    outcome = tuning.outcome()
    assert (outcome.best, outcome.gain, outcome.expected_gain) == (None, 1.0, 0.0)


def test_a_program_that_cannot_be_built_is_one_trial() -> None:
    land = Landscape(SIDES, bowl)
    task = land.task()

    def build(point: Any) -> bytes:
        if point.values["p01"] == 3:
            raise CompileError("three is too many")
        return task.build(point)

    tools = TuningTools(TableRunner(land), model=LearningModel(SIDES))
    tuning = Tuning(replace(task, build=build), tools, by="random")
    trials = [t for _ in range(5) for t in tuning.step()]
    failed = [t for t in trials if t.measurement.status is Status.BUILD]
    assert len(trials) == 80 and failed
    assert {t.candidate.values["p01"] for t in failed} == {3}
    assert failed[0].measurement.reason == "three is too many"
    assert tuning.used == 80  # they count: building them took time


def test_programs_that_crash_are_learned_from_and_not_the_best() -> None:
    land = Landscape(SIDES, bowl)
    runner = TableRunner(land, crash=lambda c: land.seconds(c) < 1.5)
    tuning = tuned(land, 4, TuningTools(runner, model=LearningModel(SIDES)))
    outcome = tuning.outcome()
    assert outcome.best is not None and outcome.best.measurement.seconds >= 1.5
    assert outcome.failed.get(Status.CRASH, 0) > 0


def test_answers_that_never_come_are_lost_trials() -> None:
    land = Landscape(SIDES, bowl)

    class Silent(TableRunner):
        def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
            return (found for found in super().measure(jobs) if found[0] != 3)

    tuning = tuned(land, 1, TuningTools(Silent(land)))
    lost = [t.measurement.status for t in tuning.trials]
    assert lost.count(Status.LOST) == 1 and lost[3] is Status.LOST


def test_the_best_is_compared_with_the_default_again() -> None:
    """One candidate was fast by luck, and another one is."""
    lucky, fast, default = (3,), (2,), (0,)

    class Luck(TableRunner):
        def _measurement(self, candidate: Candidate) -> Measurement:
            place = land.place(candidate)
            seconds = land.seconds(candidate)
            if place == lucky and self.jobs.count(candidate) == 1:
                seconds = 0.5
            return Measurement(Status.OK, (seconds, 1.01 * seconds, 0.99 * seconds))

    land = Landscape((4,), lambda place: {default: 1.0, fast: 0.8}.get(place, 1.2))
    runner = Luck(land)
    recorder = Recorder()
    tuning = Tuning(land.task(), TuningTools(runner, record=recorder), by="exhaustive")
    tuning.step()
    before = tuning.outcome()
    assert before.best is not None and land.place(before.best.candidate) == lucky
    tuning.settle(passes=8)
    outcome = tuning.outcome()
    assert outcome.best is not None and land.place(outcome.best.candidate) == fast
    assert outcome.gain == pytest.approx(1.25)
    # One time for each pass, and sure of the better of two.
    assert outcome.best.measurement.rounds == (0.8,) * 8
    assert outcome.confidence == 1 - 2 / 256
    # In turns: each once, then each again in the other order.
    turns = [land.place(c) for c in runner.jobs[4:]]
    assert turns == (turns[:3] + turns[2::-1]) * 4 and len(set(turns[:3])) == 3
    assert {t.strategy for t in recorder.trials[4:]} == {FINAL}
    again = Tuning(
        land.task(), TuningTools(runner), earlier=recorder.trials, by="exhaustive"
    )
    again.step()
    assert again.trials == tuning.trials


def test_what_bounds_the_best_is_asked_of_its_program_and_time() -> None:
    land = Landscape((3, 3), bowl)
    asked: list[tuple[Kernel, float]] = []

    def bound(kernel: Kernel, seconds: float) -> str:
        asked.append((kernel, seconds))
        return "loads"

    tools = TuningTools(TableRunner(land), bound=bound)
    tuning = Tuning(land.task(), tools, by="exhaustive")
    assert tuning.outcome().bound == ""
    tuning.step(9)
    best = tuning.best
    assert best is not None and tuning.outcome().bound == "loads"
    program = tuning.programs.find(best.candidate)
    assert program is not None
    assert asked == [(program.kernel, best.measurement.seconds)]


def test_where_nothing_is_faster_the_default_is_the_best() -> None:
    land = Landscape((6,), lambda place: 1.0 + 0.01 * place[0])
    tuning = Tuning(land.task(), TuningTools(TableRunner(land, 0.002)), by="exhaustive")
    tuning.step()
    tuning.settle(passes=20)
    outcome = tuning.outcome()
    assert outcome.best is outcome.default and outcome.gain == 1
    assert outcome.confidence == 0


def test_a_finalist_whose_worker_was_lost_is_measured_once_more() -> None:
    """Once in each pass; any other failure is the program's own and counts at once."""
    land = Landscape((4,), lambda place: 1.0 - 0.1 * place[0])
    failing = {4: Status.LOST}

    class Failing(TableRunner):
        def _measurement(self, candidate: Candidate) -> Measurement:
            status = failing.get(self.jobs.count(candidate))
            if land.place(candidate) == (3,) and status is not None:
                return Measurement(status, reason="as asked")
            return super()._measurement(candidate)

    def best() -> Trial | None:
        tuning = Tuning(land.task(), TuningTools(Failing(land)), by="exhaustive")
        tuning.step()
        tuning.settle(passes=8)
        return tuning.outcome().best

    found = best()
    assert found is not None and land.place(found.candidate) == (3,)
    assert len(found.measurement.rounds) == 8
    failing[5] = Status.LOST  # the second measurement too
    found = best()
    assert found is not None and land.place(found.candidate) == (2,)
    failing.clear()
    failing[4] = Status.CRASH
    found = best()
    assert found is not None and land.place(found.candidate) == (2,)


@pytest.mark.parametrize("at", [0, 3])
def test_a_default_that_fails_in_the_final_comparison_is_no_measure(at: int) -> None:
    """In its first pass or in a later one, twice: nothing is known of how sure the best is."""
    land = Landscape((4,), lambda place: 1.0 - 0.1 * place[0])

    class Lost(TableRunner):
        def _measurement(self, candidate: Candidate) -> Measurement:
            passes = self.jobs.count(candidate) - at
            if candidate == land.default() and passes in (2, 3):
                return Measurement(Status.LOST, reason="killed")
            return super()._measurement(candidate)

    tuning = Tuning(land.task(), TuningTools(Lost(land)), by="exhaustive")
    tuning.step()
    tuning.settle(passes=8)
    outcome = tuning.outcome()
    assert outcome.best is not None and outcome.best.measurement.status is Status.OK
    assert outcome.default is not None
    assert outcome.default.measurement.status is Status.LOST
    assert outcome.confidence == 0


def test_nothing_is_compared_before_the_first_step() -> None:
    land = Landscape((6,), bowl)
    tuning = Tuning(land.task(), TuningTools(TableRunner(land)))
    with pytest.raises(InputError, match="nothing has been measured yet"):
        tuning.settle()
    outcome = tuning.outcome()
    assert (outcome.best, outcome.default, outcome.expected_gain) == (None, None, 1.0)


def test_events_tell_of_trials_and_improvements() -> None:
    land = Landscape(SIDES, bowl)
    with record() as found:
        tuning = tuned(land, 2)
    trials = [e.fields for e in found if e.kind == "trial"]
    assert [f["candidate"] for f in trials] == [t.candidate.key for t in tuning.trials]
    assert trials[0]["task"] == "landscape" and trials[0]["status"] == "ok"
    better = [e.fields for e in found if e.kind == "task-improved"]
    assert [f["seconds"] for f in better] == [s for _, s in tuning.outcome().curve]
    assert better[0]["before"] == inf
    assert [f["before"] for f in better[1:]] == [f["seconds"] for f in better[:-1]]


def test_the_overhead_is_all_but_building_and_measuring() -> None:
    now = [0.0]

    def spend(seconds: float) -> None:
        now[0] += seconds

    land = Landscape(SIDES, bowl)

    class Slow(TableRunner):
        def _measurement(self, candidate: Candidate) -> Measurement:
            spend(3.0)
            return super()._measurement(candidate)

    class Thinking(KnowingModel):
        def update(self, samples: Any) -> None:
            spend(5.0)

    task = land.task()

    def build(point: Any) -> bytes:
        spend(2.0)
        return task.build(point)

    tools = TuningTools(
        Slow(land), record=lambda task, trial: spend(0.25), model=Thinking(land)
    )
    tuning = Tuning(
        replace(task, build=build), tools, accounts=TimeAccounts(lambda: now[0])
    )
    tuning.step(16)
    outcome = tuning.outcome()
    assert outcome.spent[MEASURE] == 16 * 5.0
    assert (outcome.spent["record"], outcome.spent["learn"]) == (4.0, 5.0)
    assert outcome.overhead == pytest.approx(9 / 89)
    assert sum(outcome.spent.values()) == now[0]


@pytest.mark.parametrize(
    ("measuring", "low", "high"), [(0.001, 1, 1), (2.0, 7, 13), (1000.0, 64, 64)]
)
def test_a_search_takes_its_share_of_the_time(
    measuring: float, low: int, high: int
) -> None:
    """A schedule takes 10 ms."""
    now = [0.0]

    def spend(seconds: float) -> None:
        now[0] += seconds

    class Timed(Landscape):
        def point(self, candidate: Candidate) -> Any:
            spend(0.01)
            return super().point(candidate)

    class Slow(TableRunner):
        def _measurement(self, candidate: Candidate) -> Measurement:
            spend(measuring)
            return super()._measurement(candidate)

    land = Timed((10,) * 8, bowl)
    tools = TuningTools(Slow(land), model=KnowingModel(land, 0.2))
    tuning = Tuning(land.task(), tools, accounts=TimeAccounts(lambda: now[0]))
    for _ in range(6):
        tuning.step(8)
    assert low <= tuning._strategy.effort <= high
    if low > 1:
        assert tuning.outcome().overhead < 0.1


def test_the_time_of_a_schedule_is_that_of_the_searches_of_its_task() -> None:
    """After a round of the default alone, which proposes without a search; and of two tasks of one
    run, a schedule of one takes 1 ms and of the other 50 ms. A trial takes 2 s, so 5% of it are
    100 ms: 64 schedules at most and 2."""
    now = [0.0]
    accounts = TimeAccounts(lambda: now[0])

    def task(seconds: float) -> Tuning:
        class Timed(Landscape):
            def point(self, candidate: Candidate) -> Any:
                now[0] += seconds
                return super().point(candidate)

        class Slow(TableRunner):
            def _measurement(self, candidate: Candidate) -> Measurement:
                now[0] += 2.0
                return super()._measurement(candidate)

        land = Timed((10,) * 8, bowl)
        tools = TuningTools(Slow(land), model=KnowingModel(land, 0.2))
        return Tuning(land.task(), tools, accounts=accounts)

    quick, slow = task(0.001), task(0.05)
    for tuning in (quick, slow):
        tuning.step(1)
        tuning.step(8)
        assert tuning.programs.made <= 4 * 9  # not MOST_EFFORT schedules per trial
    for _ in range(4):
        quick.step(8)
        slow.step(8)
    assert quick._strategy.effort == 64 and 1 <= slow._strategy.effort <= 3
    assert accounts.overhead < 0.1


@pytest.mark.parametrize(("searched", "first"), [(0, 2), (1.6, 2), (1.7, 1), (80, 1)])
def test_a_first_search_makes_fewer_schedules_where_others_took_their_share(
    searched: float, first: int
) -> None:
    """What the run measured, with the default of this task, took 33.9 s: 5% are 1.695 s."""
    now = [0.0]

    class Slow(TableRunner):
        def _measurement(self, candidate: Candidate) -> Measurement:
            now[0] += 2.0
            return super()._measurement(candidate)

    accounts = TimeAccounts(lambda: now[0])
    with accounts.part().spending(MEASURE):
        now[0] += 31.9
    with accounts.part().spending("search"):
        now[0] += searched
    land = Landscape((10,) * 8, bowl)
    tools = TuningTools(Slow(land), model=KnowingModel(land))
    tuning = Tuning(land.task(), tools, accounts=accounts)
    tuning.step(1)
    before = tuning.programs.made
    tuning.step(16)
    assert tuning._strategy.effort == first
    assert 16 <= tuning.programs.made - before <= 16 * first + 4


@pytest.mark.parametrize(("effort", "fits"), [(None, [16, 96]), (8, [16] * 8)])
def test_fitting_waits_until_it_took_little_of_the_time(
    effort: int | None, fits: list[int]
) -> None:
    """A fit takes 3 s, a trial 2 s: 3% of the time of 100 trials is that of two fits."""
    now, learned = [0.0], list[int]()

    def spend(seconds: float) -> None:
        now[0] += seconds

    class Slow(TableRunner):
        def _measurement(self, candidate: Candidate) -> Measurement:
            spend(2.0)
            return super()._measurement(candidate)

    class Fitting(KnowingModel):
        def update(self, samples: Any) -> None:
            spend(3.0)
            learned.append(len(samples))

    land = Landscape((10,) * 8, bowl)
    tools = TuningTools(Slow(land), model=Fitting(land))
    accounts = TimeAccounts(lambda: now[0])
    tuning = Tuning(land.task(), tools, effort=effort, accounts=accounts)
    for _ in range(8):
        tuning.step(16)
    assert learned == fits


def test_nothing_is_collected_while_programs_are_made() -> None:
    """Neither in a search nor in learning; what measures is left alone."""
    seen: dict[str, set[bool]] = {"predict": set(), "update": set(), "measure": set()}

    class Watched(TableRunner):
        def _measurement(self, candidate: Candidate) -> Measurement:
            seen["measure"].add(gc.isenabled())
            return super()._measurement(candidate)

    class Watching(KnowingModel):
        def predict(self, task: str, kernels: Any) -> Any:
            seen["predict"].add(gc.isenabled())
            return super().predict(task, kernels)

        def update(self, samples: Any) -> None:
            seen["update"].add(gc.isenabled())

    land = Landscape((10,) * 8, bowl)
    tools = TuningTools(Watched(land), model=Watching(land))
    tuning = Tuning(land.task(), tools, effort=8)
    for _ in range(2):
        tuning.step(16)
    assert seen == {"predict": {False}, "update": {False}, "measure": {True}}
    assert gc.isenabled()


def test_what_is_known_before_any_measurement_is_learned_at_once() -> None:
    """Of all tasks of a run, whose accounts are one, however long the fits of others took."""
    learned = list[int]()

    class Fitting(KnowingModel):
        def update(self, samples: Any) -> None:
            learned.append(len(samples))

    land = Landscape((10,) * 8, bowl)
    known = tuned(land, 16).trials
    accounts = TimeAccounts()
    for _ in range(2):
        tools = TuningTools(TableRunner(land), model=Fitting(land))
        Tuning(land.task(), tools, known=known, accounts=accounts)
    assert len(learned) == 2


def test_time_counts_even_where_an_error_ends_it() -> None:
    now = [0.0]
    accounts = TimeAccounts(lambda: now[0])
    assert accounts.overhead == 0
    with pytest.raises(ZeroDivisionError), accounts.spending("search"):
        now[0] += 2
        raise ZeroDivisionError
    assert accounts.seconds == {"search": 2.0} and accounts.overhead == 1
    task = accounts.part()
    with task.spending(MEASURE):
        now[0] += 6
    assert task.seconds == {MEASURE: 6.0} and task.overhead == 0
    assert accounts.total == 8 and accounts.overhead == 0.25


def test_an_expected_gain_falls_while_nothing_is_found() -> None:
    falling = running_best([10.0 - n for n in range(8)])
    assert expected_gain(falling) > 0.9
    flat = [expected_gain([*falling, *[3.0] * count]) for count in (8, 64, 640, 6400)]
    assert flat == sorted(flat, reverse=True) and flat[-1] < 0.01 < flat[0]
    assert expected_gain([]) == expected_gain([inf, inf]) == 1.0
    # One improvement by 10% in the last four of eight trials: two in six, 64 times.
    one = [1.0] * 6 + [0.9] * 2
    assert expected_gain(one) == pytest.approx(1 - 0.9 ** (64 * 2 / 6))
    assert expected_gain(one, 6) == pytest.approx(1 - 0.9**2)
    # What failed at first is not an improvement.
    assert expected_gain([inf, *[1.0] * 100]) == expected_gain([1.0] * 100)
