"""Which of the choices for a kernel is used."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.tune.records.key import SCHEDULES
from tilewright.tune.records.published import PublishedChoice
from tilewright.tune.records.rows import Choice


def best(choices: Iterable[Choice]) -> dict[str, Choice]:
    """For each key digest, the choice with the largest gain since the last withdrawal.

    Among equals the latest. Choices of other versions of the schedules, and those with less gain
    than MARGIN, are ignored.
    """
    found: dict[str, Choice] = {}
    for choice in sorted(choices, key=lambda c: c.time):
        digest = choice.key.digest
        if choice.candidate is None:
            found.pop(digest, None)
        elif choice.pays and choice.key.schedules == SCHEDULES:
            before = found.get(digest)
            if before is None or choice.gain >= before.gain:
                found[digest] = choice
    return found


def chosen(choices: Iterable[Choice]) -> dict[str, PublishedChoice]:
    """The same in the form that `compile` reads."""
    return {
        digest: PublishedChoice(c.candidate.key, c.seconds, c.default_seconds, c.time)
        for digest, c in best(choices).items()
        if c.candidate is not None
    }
