"""The sketches of a kernel as a space of candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.schedule.space import Choices, Sketch
from tilewright.schedule.space.selection import default_point
from tilewright.tune.base import Candidate


class SketchSpace:
    """Every way to answer every sketch's questions; each candidate costs one run of a sketch."""

    size = None

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        self._sketches = {s.name: s for s in sketches}

    def default(self) -> Candidate:
        """The default point of the first sketch that no primitive refuses."""
        return Candidate.of(default_point("", list(self._sketches.values())))

    def sample(self, random: Random) -> Candidate:
        """A sketch by chance, and each parameter drawn evenly from what is possible."""
        while True:
            sketch = random.choice(list(self._sketches.values()))
            try:
                return Candidate.of(sketch.random(random))
            except ScheduleError:
                continue

    def neighbor(self, candidate: Candidate, random: Random) -> Candidate:
        """One parameter drawn anew; those behind it keep their values or have their defaults."""
        point = self._sketches[candidate.sketch].at(candidate.values)
        free = [p for p in point.parameters if len(p.candidates) > 1]
        if not free:
            return candidate
        changed = random.choice(free)
        others = [v for v in changed.candidates if v != changed.value]
        values = {**point.values, changed.name: random.choice(others)}
        return self._nearest(candidate.sketch, values)

    def cross(self, a: Candidate, b: Candidate, random: Random) -> Candidate:
        """Each parameter from one of them, if they are of one sketch."""
        if a.sketch != b.sketch:
            return random.choice((a, b))
        names = dict.fromkeys([*a.values, *b.values])
        values = {n: random.choice((a, b)).values.get(n) for n in names}
        return self._nearest(
            a.sketch, {n: v for n, v in values.items() if v is not None}
        )

    def __iter__(self) -> Iterator[Candidate]:
        """All, sketch by sketch."""
        for sketch in self._sketches.values():
            yield from map(Candidate.of, sketch.points())

    def _nearest(self, name: str, values: dict[str, Any]) -> Candidate:
        """The values where they are possible; parameters whose value is not have their defaults."""

        def pick(parameter: str, candidates: Sequence[Any], default: Any) -> Any:
            wanted = values.get(parameter)
            return wanted if wanted in candidates else default

        choices = Choices(pick=pick)
        with suppress(ScheduleError):  # found out again by who makes the schedule
            self._sketches[name].run(choices)
        return Candidate(name, {p.name: p.value for p in choices.met})
