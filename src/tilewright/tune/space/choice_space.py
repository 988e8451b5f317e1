"""Spaces of programs that make choices while they run: all combinations of their answers."""

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
    AskedQuestion,
    ChoiceTree,
    Choose,
    RunResult,
    TreeWalk,
    by_default,
    towards,
)
from tilewright.tune.space.closeness import nearest, place_of

T = TypeVar("T")
KEPT = 128  # results: a candidate just drawn is soon needed again
DRAWS = 16  # attempts per candidate, if primitives reject the drawn ones


class ChoiceSpace(Generic[T]):
    """The results of some programs; those that raise ScheduleError are not in the space.

    A draw picks a program, weighted by the number of combinations along its default's path, and
    then each of its parameters uniformly. So candidates with few choices on their path are drawn
    more often: a uniform draw would need a count of all, which takes a run of each. A draw depends
    only on the generator, not on the cache.

    programs: by name, which is the `sketch` of candidates; the best first.
    """

    def __init__(self, programs: Mapping[str, Callable[[Choices], T]]) -> None:
        if not programs:
            raise InputError(
                "there are no sketches",
                where=type(self).__name__,
                hint="use a target that has some, or declare a ParameterSpace",
            )
        self.trees = {name: ChoiceTree(name, run) for name, run in programs.items()}
        self._kept: OrderedDict[str, RunResult[T]] = OrderedDict()

    @property
    def runs(self) -> int:
        """How often programs ran: the cost of the space so far."""
        return sum(tree.runs for tree in self.trees.values())

    @property
    def size(self) -> int | None:
        """The number of candidates; None until all have been found (see `count`)."""
        counts = [tree.count() for tree in self.trees.values()]
        if None in counts:
            return None
        return sum(n for n in counts if n is not None)

    def count(self, limit: int) -> int | None:
        """The number of candidates; None if finding it takes more than `limit` runs."""
        last = self.runs + limit
        for _ in self._walks():
            if self.runs > last:
                return None
        return self.size

    # ------------------------------------------------------------------------------ choices

    def default(self) -> Candidate:
        """The first sketch's default that no primitive rejects; the last sketch always applies."""
        for name in self.trees:
            made = self._made(name, by_default)
            if made is not None:
                return made
        last = list(self.trees.values())[-1].walk(by_default)
        raise ScheduleError(
            f"every sketch is rejected, the last because: {last.end.refused}",
            where=repr(self),
            hint="a kernel's last sketch should always apply",
        )

    def sample(self, random: Random) -> Candidate:
        """A random candidate; see the class for the distribution."""
        names = list(self._weights)
        for _ in range(DRAWS):
            [name] = random.choices(names, list(self._weights.values()))
            made = self._made(name, lambda met: random.randrange(len(met.candidates)))
            if made is not None:
                return made
        return self.default()

    def neighbor(self, candidate: Candidate, random: Random) -> Candidate:
        """The candidate with one parameter, drawn uniformly, changed to any other of its values.

        The sketch counts as a parameter. Later parameters keep their values if possible, or take
        the nearest; new ones take their defaults. Returns the candidate itself if nothing can be
        changed.
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
        """Yield every candidate that differs by one change of a parameter or the sketch."""
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
        """Each parameter from a random parent, or from the other if that value is not possible."""

        def choose(met: AskedQuestion) -> int:
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
        """The candidate of this space closest to one of another space: the same sketch, if it
        exists, with the nearest values. The default if primitives reject that."""
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

    def made(self, candidate: Candidate) -> RunResult[T]:
        """The result of a candidate; missing values are defaults, as in the compiler.

        Raises ScheduleError if it is not possible or rejected.
        """
        found = self._kept.get(candidate.key)
        if found is None:
            found = self._tree(candidate.sketch).at(candidate.values)
            self._keep(candidate, found)
        return found

    def _keep(self, candidate: Candidate, made: RunResult[T]) -> None:
        self._kept[candidate.key] = made
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    # ------------------------------------------------------------------------------ walks

    @cached_property
    def _weights(self) -> Mapping[str, int]:
        """The sketches whose default is not rejected, with their weights."""
        walks = {name: tree.walk(by_default) for name, tree in self.trees.items()}
        return {n: w.branching for n, w in walks.items() if w.end.refused is None}

    @property
    def _usable(self) -> list[str]:
        return list(self._weights)

    def _changed(
        self, candidate: Candidate, met: AskedQuestion, place: int
    ) -> Candidate | None:
        keep = towards(candidate.values)
        return self._made(candidate.sketch, lambda m: place if m is met else keep(m))

    def _made(self, name: str, choose: Choose) -> Candidate | None:
        """The candidate of these answers; None if a primitive rejects it."""
        walk = self._tree(name).walk(choose)
        if walk.end.refused is not None:
            return None
        candidate = Candidate(name, walk.values)
        if walk.made is not None:
            self._keep(candidate, walk.made)
        return candidate

    def _walk(self, candidate: Candidate) -> TreeWalk[T]:
        """The path of a candidate. Raises ScheduleError if it is not in the space."""
        walk = self._tree(candidate.sketch).walk(towards(candidate.values))
        if Candidate(candidate.sketch, walk.values) != candidate:
            self.made(candidate)  # raises the error that explains it
        return walk

    def _walks(self) -> Iterator[tuple[str, TreeWalk[T]]]:
        for name, tree in self.trees.items():
            for walk in tree.walks():
                yield name, walk

    def _tree(self, name: str) -> ChoiceTree[T]:
        tree = self.trees.get(name)
        if tree is None:
            raise ScheduleError(
                f"there is no sketch {name!r}",
                code=IMPOSSIBLE,
                hint=f"the sketches are {listing(list(self.trees))}",
            )
        return tree

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.trees)})"
