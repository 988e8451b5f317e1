"""A task's candidates as a tree of decisions, one parameter after another.

A prefix is the first decisions of a candidate; its program uses the defaults for all later
parameters. That program's schedule shows which values the next parameter can take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final, Protocol, runtime_checkable

from tilewright.base.dataclass import dataclass
from tilewright.search import Box
from tilewright.tune.base import Candidate, Space
from tilewright.tune.strategies.programs import ProgramMaker, ScheduledProgram

SKETCHES: Final = 16  # draws to find the sketches of a space


@dataclass(frozen=True, slots=True)
class Prefix:
    """A sketch (None at the root) and its first decisions."""

    sketch: str | None = None
    decided: tuple[tuple[str, Any], ...] = ()

    @property
    def candidate(self) -> Candidate:
        """The candidate with only these values."""
        return Candidate(self.sketch or "", dict(self.decided))

    @property
    def key(self) -> str:
        """A key that is equal for equal prefixes."""
        return "" if self.sketch is None else f"{len(self.decided)}{self.candidate.key}"


@runtime_checkable
class CompletingSpace(Protocol):
    """A space that completes a partial candidate with defaults."""

    def nearest(self, candidate: Candidate) -> Candidate:
        """The candidate with the same values as far as they are valid."""
        ...


class Prefixes:
    """The tree below the sketches found in the given candidates and a few random ones.

    If a task's space is not Completing, its `schedule` accepts candidates with missing values.
    """

    def __init__(
        self,
        programs: ProgramMaker,
        space: Space,
        seeds: Iterable[Candidate],
        seed: int,
    ) -> None:
        self._programs: Final = programs
        self._space: Final = space
        self._default: Final = space.default()
        self._whole: dict[str, Candidate | None] = {}
        random = Random(f"{seed}:sketches")
        drawn = (space.sample(random) for _ in range(SKETCHES))
        met = [self._default, *seeds, *drawn]
        self._sketches: Final = list(dict.fromkeys(c.sketch for c in met))

    def expand(self, prefix: Prefix) -> list[Prefix] | None:
        """The prefixes with one more decision; None if it is complete; empty if it is rejected."""
        if prefix.sketch is None:
            return [Prefix(name) for name in self._sketches]
        program = self.program(prefix)
        if program is None:
            return []
        if len(program.parameters) == len(prefix.decided):
            return None
        met = program.parameters[len(prefix.decided)]
        return [
            Prefix(prefix.sketch, (*prefix.decided, (met.name, value)))
            for value in met.candidates
        ]

    def children(self, prefix: Prefix) -> list[Prefix]:
        """As `expand`, but empty for a complete candidate."""
        return self.expand(prefix) or []

    def program(self, prefix: Prefix) -> ScheduledProgram | None:
        """The program of a prefix; None if it is rejected. The root stands for the default."""
        if prefix.key not in self._whole:
            found = self._found(prefix)
            self._whole[prefix.key] = None if found is None else found.candidate
        whole = self._whole[prefix.key]
        return None if whole is None else self._programs.find(whole)

    def candidates(self, prefixes: Sequence[Prefix]) -> list[Candidate]:
        """The candidate of each prefix; if rejected, the one with only its own values."""
        programs = ((p, self.program(p)) for p in prefixes)
        return [q.candidate if q is not None else p.candidate for p, q in programs]

    def completed(self, prefix: Prefix, random: Random) -> Prefix:
        """Complete a prefix with random decisions; the result may be one that is rejected."""
        while below := self.expand(prefix):
            prefix = random.choice(below)
        return prefix

    def box(self) -> Box[Candidate]:
        """Candidates by one number per decision, from 0 to 1: the position among its values."""
        found = [self.program(Prefix(name)) for name in self._sketches]
        decisions = max((len(p.parameters) for p in found if p is not None), default=0)
        return Box(1 + decisions, self._at, _key)

    def _at(self, numbers: Sequence[float]) -> Candidate:
        prefix = Prefix()
        for number in numbers:
            below = self.expand(prefix)
            if not below:
                break
            prefix = below[min(len(below) - 1, int(number * len(below)))]
        program = self.program(prefix)
        return self._default if program is None else program.candidate

    def _found(self, prefix: Prefix) -> ScheduledProgram | None:
        if prefix.sketch is None:
            return self._programs.find(self._default)
        wanted = prefix.candidate
        if isinstance(self._space, CompletingSpace):
            wanted = self._space.nearest(wanted)
        program = self._programs.find(wanted)
        if program is None or program.candidate.sketch != prefix.sketch:
            return None
        values = program.candidate.values
        kept = all(values.get(name) == value for name, value in prefix.decided)
        return program if kept else None


def _key(candidate: Candidate) -> str:
    return candidate.key
