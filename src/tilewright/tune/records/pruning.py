"""Which trials to delete: old, failed, all but the fastest, those of outdated schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from tilewright.base.dataclass import dataclass
from tilewright.tune.records.best import best
from tilewright.tune.records.key import SCHEDULES
from tilewright.tune.records.rows import Choice, Record


@dataclass(frozen=True, slots=True)
class Rules:
    """Deletion rules; a trial that matches any of them is deleted. None and False disable a rule.

    before: trials older than this, in seconds since the epoch. failed: trials without a time. keep:
    all but this many of the fastest per task. outdated: trials of other versions of the schedules.
    """

    before: float | None = None
    failed: bool = False
    keep: int | None = None
    outdated: bool = False


def prunable(
    records: Sequence[Record], choices: Iterable[Choice], rules: Rules
) -> list[Record]:
    """The trials that the rules select, except those of schedules that `compile` uses."""
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
    """The indices of those not among the `keep` fastest of their tasks."""
    if keep is None:
        return

    def task(n: int) -> str:
        return records[n].key.digest

    for _, numbers in groupby(sorted(range(len(records)), key=task), task):
        fastest = sorted(numbers, key=lambda n: records[n].trial.measurement.seconds)
        yield from fastest[keep:]
