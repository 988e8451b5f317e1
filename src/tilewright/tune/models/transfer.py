"""Transfer: a model of other operators and machines supports a new one, and then fades out.

As in AutoTVM, the costs of the other model are added with a weight that falls with each sample of
the task itself: others * 2^(-n/64) + own, where `own` is trained on the residual; below 0.05 the
weight is 0. And an operator at another size starts from what was fast at the previous size, as a
growing network keeps what it has learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.tune.base import Candidate, Sample, Task, Trial
from tilewright.tune.models.learned import LearnedModel, Prior
from tilewright.tune.models.learner import Ensemble
from tilewright.tune.models.programs import FeatureExtractor

HALF: Final = 64  # samples of a task that halve the weight of others
DROPPED: Final = 0.05


def fading(samples: int) -> float:
    """The weight of others for a task with this many samples."""
    weight: float = 2.0 ** (-samples / HALF)
    return weight if weight >= DROPPED else 0.0


def transferred(
    others: Prior, features: FeatureExtractor, own: Ensemble
) -> LearnedModel:
    """A model that starts from another one, trained on other operators or machines.

    Raises InputError if their costs cannot be added.
    """
    return LearnedModel(features, own, others, fading)


@dataclass(frozen=True, slots=True)
class TransferredKnowledge:
    """The starting point of a task, from the same operator at another size.

    seeds: candidates to measure first, the fastest there first. samples: their programs here, as a
    separate task with the seconds from there: the order carries over, the times do not.
    """

    seeds: tuple[Candidate, ...]
    samples: tuple[Sample, ...]


def grown(
    trials: Iterable[Trial],
    task: Task,
    nearest: Callable[[Candidate], Candidate],
    count: int = 32,
) -> TransferredKnowledge:
    """The `count` fastest trials at another size as distinct candidates of this task.

    nearest: maps a candidate of another space to the closest one in this task's space. Candidates
    that a primitive rejects here are skipped, and so are failed trials.
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
    return TransferredKnowledge(tuple(seeds), tuple(samples))
