"""Spaces of programs that ask for their choices while they run: every answer to every question."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from random import Random
from typing import Generic, TypeVar

from tilewright.base.errors import InputError, ScheduleError
from tilewright.base.text import listing
from tilewright.schedule.space import Choices
from tilewright.schedule.space.choices import IMPOSSIBLE
from tilewright.tune.base import Candidate
from tilewright.tune.space.choice_tree import (
    ChoiceTree,
    Choose,
    Made,
    Met,
    Walk,
    by_default,
    towards,
)
from tilewright.tune.space.closeness import nearest, place_of

T = TypeVar("T")
KEPT = 128  # results: what was just drawn is soon asked for
DRAWS = 16  # of a candidate, where primitives refuse those that were drawn


class ChoiceSpace(Generic[T]):
    """What some programs make; what they refuse by ScheduleError is not in the space.

    A program is drawn by how much its default's choices would make if they were independent, each
    parameter of it evenly. So what is behind few choices is drawn more often than other things: no
    count of all is needed, which would take a run of each. What is drawn depends on the generator
    alone, and not on what is known by then.

    programs: by name, which is the `sketch` of candidates; the best first.
    """

    def __init__(self, programs: Mapping[str, Callable[[Choices], T]]) -> None:
        if not programs:
            raise InputError(
                "there are no sketches",
                where=type(self).__name__,
                hint="take a target that has some, or state a ParameterSpace",
            )
        self.trees = {name: ChoiceTree(name, run) for name, run in programs.items()}
        self._kept: OrderedDict[str, Made[T]] = OrderedDict()

    @property
    def runs(self) -> int:
        """How often programs ran: what the space has cost so far."""
        return sum(tree.runs for tree in self.trees.values())

    @property
    def size(self) -> int | None:
        """How many candidates there are; None where not all were met (see `count`)."""
        counts = [tree.count() for tree in self.trees.values()]
        if None in counts:
            return None
        return sum(n for n in counts if n is not None)

    def count(self, limit: int) -> int | None:
        """How many candidates there are; None if finding out takes more than `limit` runs."""
        last = self.runs + limit
        for _ in self._walks():
            if self.runs > last:
                return None
        return self.size

    # ------------------------------------------------------------------------------ choices

    def default(self) -> Candidate:
        """The default of the first sketch that no primitive refuses; the last applies always."""
        for name in self.trees:
            made = self._made(name, by_default)
            if made is not None:
                return made
        last = list(self.trees.values())[-1].walk(by_default)
        raise ScheduleError(
            f"every sketch is refused, the last because: {last.end.refused}",
            where=repr(self),
            hint="a kernel's last sketch should apply always",
        )

    def sample(self, random: Random) -> Candidate:
        """One of them; see above for how likely."""
        names = list(self._weights)
        for _ in range(DRAWS):
            [name] = random.choices(names, list(self._weights.values()))
            made = self._made(name, lambda met: random.randrange(len(met.candidates)))
            if made is not None:
                return made
        return self.default()

    def neighbor(self, candidate: Candidate, random: Random) -> Candidate:
        """The candidate with one parameter changed, drawn evenly, to any other of its values.

        The sketch is one of the parameters. Later ones keep their values where they are possible,
        or take the nearest; new ones take their defaults. The candidate itself, where nothing can
        be changed.
        """
        path = self._walk(candidate).path
        free = [(met, old) for met, old in path if len(met.candidates) > 1]
        others = [name for name in self._usable if name != candidate.sketch]
        choices = len(free) + bool(others)
        for _ in range(DRAWS if choices else 0):
            drawn = random.randrange(choices)
            if drawn == len(free):
                name = random.choice(others)
                made = self._made(name, towards(candidate.values))
            else:
                met, old = free[drawn]
                place = random.randrange(len(met.candidates) - 1)
                made = self._changed(candidate, met, place + (place >= old))
            if made is not None:
                return made
        return candidate

    def neighbors(self, candidate: Candidate) -> Iterator[Candidate]:
        """Every candidate that comes of changing one parameter, or the sketch, to one other."""
        for met, old in self._walk(candidate).path:
            for place in range(len(met.candidates)):
                made = self._changed(candidate, met, place) if place != old else None
                if made is not None:
                    yield made
        for name in self._usable:
            if name != candidate.sketch:
                made = self._made(name, towards(candidate.values))
                if made is not None:
                    yield made

    def cross(self, a: Candidate, b: Candidate, random: Random) -> Candidate:
        """Each parameter from one of them, drawn evenly, or the other where it is not possible."""

        def choose(met: Met) -> int:
            parents = (a, b) if random.random() < 0.5 else (b, a)
            for parent in parents:
                if met.name in parent.values:
                    place = place_of(met.candidates, parent.values[met.name])
                    if place is not None:
                        return place
            place = nearest(met.candidates, parents[0].values.get(met.name))
            return met.default if place is None else place

        first, second = (a, b) if random.random() < 0.5 else (b, a)
        self._tree(second.sketch)
        return self._made(first.sketch, choose) or first

    def nearest(self, candidate: Candidate) -> Candidate:
        """A candidate of this space that is like one of another: the same sketch, if there is one,
        with the values nearest to its. The default where primitives refuse that."""
        if candidate.sketch not in self.trees:
            return self.default()
        made = self._made(candidate.sketch, towards(candidate.values))
        return made or self.default()

    def __iter__(self) -> Iterator[Candidate]:
        for name, walk in self._walks():
            if walk.end.refused is None:
                yield Candidate(name, walk.values)

    def __contains__(self, candidate: object) -> bool:
        if not isinstance(candidate, Candidate) or candidate.sketch not in self.trees:
            return False
        return self._made(candidate.sketch, towards(candidate.values)) == candidate

    # ------------------------------------------------------------------------------ results

    def made(self, candidate: Candidate) -> Made[T]:
        """What a candidate makes; values that it leaves out are defaults, as in the compiler.

        Raises ScheduleError for one that is not possible, or refused.
        """
        found = self._kept.get(candidate.key)
        if found is None:
            found = self._tree(candidate.sketch).at(candidate.values)
            self._keep(candidate, found)
        return found

    def _keep(self, candidate: Candidate, made: Made[T]) -> None:
        self._kept[candidate.key] = made
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    # ------------------------------------------------------------------------------ walks

    @cached_property
    def _weights(self) -> Mapping[str, int]:
        """The sketches whose default is not refused, with how likely each is drawn."""
        walks = {name: tree.walk(by_default) for name, tree in self.trees.items()}
        return {n: w.branching for n, w in walks.items() if w.end.refused is None}

    @property
    def _usable(self) -> list[str]:
        return list(self._weights)

    def _changed(self, candidate: Candidate, met: Met, place: int) -> Candidate | None:
        keep = towards(candidate.values)
        return self._made(candidate.sketch, lambda m: place if m is met else keep(m))

    def _made(self, name: str, choose: Choose) -> Candidate | None:
        """The candidate that these answers make; None where a primitive refuses."""
        walk = self._tree(name).walk(choose)
        if walk.end.refused is not None:
            return None
        candidate = Candidate(name, walk.values)
        if walk.made is not None:
            self._keep(candidate, walk.made)
        return candidate

    def _walk(self, candidate: Candidate) -> Walk[T]:
        """The way of a candidate. Raises ScheduleError for one that is not in the space."""
        walk = self._tree(candidate.sketch).walk(towards(candidate.values))
        if Candidate(candidate.sketch, walk.values) != candidate:
            self.made(candidate)  # says what is wrong with it
        return walk

    def _walks(self) -> Iterator[tuple[str, Walk[T]]]:
        for name, tree in self.trees.items():
            for walk in tree.walks():
                yield name, walk

    def _tree(self, name: str) -> ChoiceTree[T]:
        tree = self.trees.get(name)
        if tree is None:
            raise ScheduleError(
                f"there is no sketch {name!r}",
                code=IMPOSSIBLE,
                hint=f"its sketches are {listing(list(self.trees))}",
            )
        return tree

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.trees)})"
