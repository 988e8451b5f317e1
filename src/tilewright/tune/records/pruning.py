"""Which trials may go: old ones, failed ones, all but the best, those of schedules gone by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tilewright.tune.records.best import best
from tilewright.tune.records.key import SCHEDULES
from tilewright.tune.records.rows import Choice, Record


@dataclass(frozen=True, slots=True)
class Rules:
    """What goes; a trial that one of them names. None and False: the rule is not applied.

    before: trials older than this, in seconds of the epoch. failed: those without a time. keep: all
    but so many of the fastest of a task. outdated: those of other versions of the schedules.
    """

    before: float | None = None
    failed: bool = False
    keep: int | None = None
    outdated: bool = False


def prunable(
    records: Sequence[Record], choices: Iterable[Choice], rules: Rules
) -> list[Record]:
    """The trials that the rules name, but for those of schedules that `compile` uses."""
    used = {(c.key.digest, c.candidate) for c in best(choices).values()}
    slow = set(_slow(records, rules.keep))
    return [
        r
        for n, r in enumerate(records)
        if (r.key.digest, r.trial.candidate) not in used
        and (n in slow or _named(r, rules))
    ]


def _named(r: Record, rules: Rules) -> bool:
    old = rules.before is not None and r.time < rules.before
    failed = rules.failed and math.isinf(r.trial.measurement.seconds)
    outdated = rules.outdated and r.key.schedules != SCHEDULES
    return old or failed or outdated


def _slow(records: Sequence[Record], keep: int | None) -> Iterator[int]:
    """The numbers of those that are not among the fastest of their tasks."""
    if keep is None:
        return

    def task(n: int) -> str:
        return records[n].key.digest

    for _, numbers in groupby(sorted(range(len(records)), key=task), task):
        fastest = sorted(numbers, key=lambda n: records[n].trial.measurement.seconds)
        yield from fastest[keep:]
