"""Transfer: what other operators and machines taught helps with a new one, and then steps aside.

As in AutoTVM the costs of a model of others are added, less with each sample of the task itself:
others * 2^(-n/64) + own, where the own part learns what is left; below 0.05 they count no more. And
an operator at another size starts from what was fast at the size before, as a network that grows
keeps what it can do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tilewright.base.errors import ScheduleError
from tilewright.tune.base import Candidate, Sample, Task, Trial
from tilewright.tune.models.learned import LearnedModel, Prior
from tilewright.tune.models.learner import Ensemble
from tilewright.tune.models.programs import FeatureExtractor

HALF: Final = 64  # samples of a task, after which others count half
DROPPED: Final = 0.05


def fading(samples: int) -> float:
    """How much others count for a task with so many samples of its own."""
    weight: float = 2.0 ** (-samples / HALF)
    return weight if weight >= DROPPED else 0.0


def transferred(
    others: Prior, features: FeatureExtractor, own: Ensemble
) -> LearnedModel:
    """A model that begins with what another one learned elsewhere: other operators, or machines.

    Raises InputError where the costs of both cannot be added.
    """
    return LearnedModel(features, own, others, fading)


@dataclass(frozen=True, slots=True)
class Grown:
    """What a task takes over from one of another size.

    seeds: candidates to measure first, the fastest there first. samples: their programs here, in
    the order of there, as a task of its own: the order is known and the seconds are not.
    """

    seeds: tuple[Candidate, ...]
    samples: tuple[Sample, ...]


def grown(
    trials: Iterable[Trial],
    task: Task,
    nearest: Callable[[Candidate], Candidate],
    count: int = 32,
) -> Grown:
    """The `count` fastest trials of another size as candidates of this task, none twice.

    nearest: the possible candidate of this task's space that is closest to one of another space.
    Candidates that a primitive refuses here are left out, and trials that failed.
    """
    ok = [t for t in trials if t.measurement.seconds < float("inf")]
    ok.sort(key=lambda t: t.measurement.seconds)
    seeds: dict[Candidate, None] = {}
    samples: list[Sample] = []
    for trial in ok:
        if len(seeds) == count:
            break
        here = nearest(trial.candidate)
        if here in seeds:
            continue
        try:
            kernel = task.schedule(here).schedule.kernel
        except ScheduleError:
            continue
        seeds[here] = None
        seconds = trial.measurement.seconds
        samples.append(Sample(f"{task.key} (another size)", kernel, seconds))
    return Grown(tuple(seeds), tuple(samples))
