"""Schedules that are faster alone are added to their model while it gets surely faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from tilewright.driver import in_network, tuning_session
from tilewright.driver.in_network import SITTINGS, NetworkTimes, kept
from tilewright.tune.base import Candidate, Measurement, Status, Task, Trial
from tilewright.tune.gain import confidence
from tilewright.tune.tuner import TaskOutcome

TOTAL = 10.0


def outcome(key: str) -> TaskOutcome:
    task = Task(key, key, None, None, None)  # type: ignore[arg-type]
    trial = Trial(Candidate("s", {}), Measurement(Status.OK, (1.0,)))
    return TaskOutcome(task, trial, trial, 1.0, 1, (), {}, 0.0, {}, 0.0)


class Table:
    """A model by numbers. profile: seconds that a kernel's own time falls by; saved: the model's.

    noise: the standard deviation of a sitting, in parts of the time.
    """

    def __init__(
        self, profile: Mapping[str, float], saved: Mapping[str, float], noise: float
    ) -> None:
        self.profile, self.saved, self.noise = profile, saved, noise
        self.random = Random(0)
        self.asked: list[tuple[list[str], list[str]]] = []
        self.seconds = TOTAL

    def profiled(
        self, outcomes: Sequence[TaskOutcome]
    ) -> dict[str, tuple[float, float]]:
        return {o.task.key: (2.0, 2.0 - self.profile[o.task.key]) for o in outcomes}

    def compared(
        self, before: Sequence[TaskOutcome], after: Sequence[TaskOutcome]
    ) -> NetworkTimes:
        names = [[o.task.key for o in side] for side in (before, after)]
        self.asked.append((names[0], names[1]))
        real = [TOTAL - sum(self.saved[n] for n in side) for side in names]
        times = [
            [r * self.random.gauss(1, self.noise) for _ in range(SITTINGS)]
            for r in real
        ]
        return NetworkTimes(real[0], real[1], {}, confidence(times[1], times[0]))


def chosen_of(
    monkeypatch: pytest.MonkeyPatch,
    profile: Mapping[str, float],
    saved: Mapping[str, float] | None = None,
    noise: float = 1e-4,
    least: float = 1.005,
) -> tuple[list[str], NetworkTimes | None, Table]:
    table = Table(profile, saved or profile, noise)
    monkeypatch.setattr(in_network, "SwitchableModel", lambda *_: table)
    given = [outcome(key) for key in profile]
    chosen, found = kept(given, None, {}, least)  # type: ignore[arg-type]
    return [o.task.key for o in chosen], found, table


def test_what_is_slower_in_the_model_is_never_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, found, table = chosen_of(monkeypatch, {"a": 1.0, "b": -0.5})
    assert names == ["a"]
    assert found is not None and found.gain == pytest.approx(10 / 9)
    assert found.kernels["b"] == (2.0, 2.5)
    assert not any("b" in name for pair in table.asked for name in (*pair[0], *pair[1]))


def test_the_most_promising_come_first_and_each_stays_only_if_the_model_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernel b is faster by itself, and makes the next one slower by more."""
    profile = {"a": 0.5, "b": 1.0, "c": 0.3}
    names, _, table = chosen_of(monkeypatch, profile, {"a": 0.5, "b": -0.2, "c": 0.3})
    assert names == ["a", "c"]
    assert table.asked == [
        ([], ["b"]), ([], ["a"]), (["a"], ["a", "c"]), ([], ["a", "c"]),
    ]  # fmt: skip


def test_gains_too_small_to_be_seen_alone_are_added_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = dict.fromkeys("abcd", 0.03)
    names, _, table = chosen_of(monkeypatch, small)
    assert names == list("abcd")
    assert len(table.asked) == 2  # all at once, and the whole


def test_where_one_of_a_group_does_harm_the_others_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = dict.fromkeys("abcd", 0.05)
    saved = {**small, "b": -0.5}
    names, _, _ = chosen_of(monkeypatch, small, saved)
    assert names == ["a", "c", "d"]


def test_a_model_that_is_not_faster_by_enough_keeps_its_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, found, _ = chosen_of(monkeypatch, {"a": 0.1}, least=1.02)
    assert names == [] and found is not None and found.confidence > 0.95
    assert chosen_of(monkeypatch, {"a": 0.1}, least=1.005)[0] == ["a"]


def test_a_gain_within_the_noise_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    names, _, _ = chosen_of(monkeypatch, {"a": 0.11}, {"a": 0.0}, noise=0.05)
    assert names == []


def test_without_any_kernel_nothing_is_compiled() -> None:
    assert kept([], None, {}) == ([], None)  # type: ignore[arg-type]


def test_a_kernel_whose_trials_all_failed_says_why_the_first_did() -> None:
    made = outcome("k")
    failed = Measurement(Status.BUILD, reason="kernel k: no room")
    first = Trial(Candidate("s", {}), failed)
    said = tuning_session._why(replace(made, best=None, default=first), [], {})
    assert said == "no: every trial failed: kernel k: no room"
