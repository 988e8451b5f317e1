"""Landscapes of measured times, on which searches are compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from tilewright.base.errors import InputError
from tilewright.testing.landscapes import Landscape, Place
from tilewright.tune.base import Candidate

SKETCH: Final = "sketch"  # the axis of the sketches
DRAWS: Final = 32  # of a neighbor that was measured


class Recorded(Landscape):
    """A place has a number for each parameter: the index of its value, in order of appearance.

    Parameters that a candidate does not have are at 0, a separate value. Places without a
    measurement count as rejected. start: the first record.
    """

    def __init__(self, times: Mapping[str, float]) -> None:
        if not times:
            raise InputError("no records", where="Recorded", hint="give at least one")
        parsed = [_values(key) for key in times]
        names = list(dict.fromkeys(name for values in parsed for name in values))
        numbers: list[dict[str, int]] = [{"null": 0} for _ in names]
        self.times: Final[dict[Place, float]] = {}
        for values, seconds in zip(parsed, times.values(), strict=True):
            shown = [json.dumps(values.get(name)) for name in names]
            place = tuple(
                known.setdefault(text, len(known))
                for text, known in zip(shown, numbers, strict=True)
            )
            self.times[place] = seconds
        self._places: Final = list(self.times)
        super().__init__(
            [len(known) for known in numbers],
            self.times.__getitem__,
            lambda place: place not in self.times,
            self._places[0],
        )

    def sample(self, random: Random) -> Candidate:
        """One that was measured."""
        return self.candidate(random.choice(self._places))

    def neighbor(self, candidate: Candidate, random: Random) -> Candidate:
        """The nearest, in numbers that differ, of some that were drawn."""
        here = self.place(candidate)
        drawn = [random.choice(self._places) for _ in range(DRAWS)]
        others = [place for place in drawn if place != here]
        near = min(others, key=lambda place: _apart(place, here), default=here)
        return self.candidate(near)

    def cross(
        self,
        a: Candidate,
        b: Candidate,
        random: Random,
    ) -> Candidate:
        """One that was measured, near a mixture."""
        candidate = super().cross(a, b, random)
        return self.neighbor(candidate, random)


def read(path: Path) -> Recorded:
    """The landscape of a file of JSON lines, each with the `key` of a candidate and `seconds`.

    Raises InputError for a line that is none.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    times = dict(_lines(lines))
    return Recorded(times)


def _lines(lines: Iterable[str]) -> Iterable[tuple[str, float]]:
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            yield str(row["key"]), float(row["seconds"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"line {number} is not a record: {error!r}",
                where="Recorded",
                hint='write {"key": ..., "seconds": ...}',
            ) from error


def _values(key: str) -> dict[str, Any]:
    candidate = Candidate.parse(key)
    return {SKETCH: candidate.sketch, **candidate.values}


def _apart(a: Place, b: Place) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))
