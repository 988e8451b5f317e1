"""The tree of choices that a program was seen to make: its runs are cached.

A sketch makes a schedule and asks for choices on the way; later questions depend on earlier
answers, so its parameters form a tree that only running it reveals. A run makes the actual
schedule, which takes milliseconds; the end of a path that was run before is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any, Generic, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.base.text import listing
from tilewright.schedule.space import Choices, Parameter
from tilewright.schedule.space.choices import IMPOSSIBLE
from tilewright.tune.space.closeness import nearest, plain

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class AskedQuestion:
    """A question, given the answers to the earlier ones.

    behind: the node that follows each answer, by its index; None if unknown.
    """

    name: str
    candidates: tuple[Any, ...]
    default: int
    behind: list[AskedQuestion | RunEnd | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.behind = [None] * len(self.candidates)


@dataclass(slots=True, eq=False)
class RunEnd:
    """The end of a run. refused: the reason of the rejection; None on success."""

    refused: str | None = None


Choose = Callable[[AskedQuestion], int]  # returns the index of an answer


@dataclass(frozen=True, slots=True)
class RunResult(Generic[T]):
    """The result of a run, and the questions that it asked."""

    result: T
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class TreeWalk(Generic[T]):
    """A path through the tree. made: the result, if the program was run for this walk."""

    path: tuple[tuple[AskedQuestion, int], ...]
    end: RunEnd
    made: RunResult[T] | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The answers by name."""
        return {met.name: met.candidates[place] for met, place in self.path}

    @property
    def branching(self) -> int:
        """The product of the numbers of answers: for uniform draws, an unbiased estimate of the
        number of paths (Knuth, 1975)."""
        return prod([len(met.candidates) for met, _ in self.path])


class ChoiceTree(Generic[T]):
    """The known part of one program's choices.

    run: the program; raises ScheduleError if its answers are rejected. runs: how often it ran.
    """

    def __init__(self, name: str, run: Callable[[Choices], T]) -> None:
        self.name = name
        self.run = run
        self.runs = 0
        self._root: AskedQuestion | RunEnd | None = None

    def walk(self, choose: Choose) -> TreeWalk[T]:
        """Follow the path of these answers, running the program if it is new."""
        path: list[tuple[AskedQuestion, int]] = []
        node = self._root
        while isinstance(node, AskedQuestion):
            place = choose(node)
            path.append((node, place))
            node = node.behind[place]
        if node is not None:
            return TreeWalk(tuple(path), node)
        return self._run(path, choose)

    def _run(
        self, path: list[tuple[AskedQuestion, int]], choose: Choose
    ) -> TreeWalk[T]:
        known = iter([met.candidates[place] for met, place in path])

        def pick(name: str, candidates: Sequence[Any], default: Any) -> Any:
            try:
                return next(known)
            except StopIteration:
                place = list(candidates).index(default)
                met = AskedQuestion(name, tuple(candidates), place)
            self._put(path, met)
            path.append((met, choose(met)))
            return met.candidates[path[-1][1]]

        self.runs += 1
        choices = Choices(pick=pick)
        made = None
        try:
            result = self.run(choices)
        except ScheduleError as error:
            end = RunEnd(str(error))
        else:
            end = RunEnd()
            made = RunResult(result, tuple(choices.met))
        self._put(path, end)
        return TreeWalk(tuple(path), end, made)

    def at(self, values: Mapping[str, Any]) -> RunResult[T]:
        """The result of these answers, with defaults for the missing ones.

        Raises ScheduleError for an answer that is not possible or to a question never asked, and if
        the program rejects them.
        """
        choices = Choices({name: plain(v) for name, v in values.items()})
        self.runs += 1
        result = self.run(choices)
        unknown = sorted(set(values) - {p.name for p in choices.met})
        if unknown:
            known = listing([p.name for p in choices.met]) or "none"
            raise ScheduleError(
                f"there is no parameter {listing(unknown)}",
                code=IMPOSSIBLE,
                where=f"sketch {self.name}",
                hint=f"the parameters are {known}",
            )
        return RunResult(result, tuple(choices.met))

    def _put(
        self, path: Sequence[tuple[AskedQuestion, int]], node: AskedQuestion | RunEnd
    ) -> None:
        """Record what follows the answers of a path."""
        if path:
            met, place = path[-1]
            met.behind[place] = node
        else:
            self._root = node

    def walks(self) -> Iterator[TreeWalk[T]]:
        """Yield every path, in order of the answers; each unknown one costs a run."""
        places: list[int] = []
        while True:
            walk = self.walk(_along(places))
            yield walk
            path = list(walk.path)
            while path:
                met, place = path.pop()
                if place + 1 < len(met.candidates):
                    places = [*(p for _, p in path), place + 1]
                    break
            else:
                return

    def count(self) -> int | None:
        """The number of paths that are not rejected; None if some are unknown."""
        total = 0
        pending = [self._root]
        while pending:
            node = pending.pop()
            if node is None:
                return None
            if isinstance(node, AskedQuestion):
                pending += node.behind
            else:
                total += node.refused is None
        return total


def _along(places: Sequence[int]) -> Choose:
    """Answer with these indices, then with 0."""
    left = iter(places)
    return lambda met: next(left, 0)


def by_default(met: AskedQuestion) -> int:
    """The answer to use without tuning."""
    return met.default


def towards(wanted: Mapping[str, Any]) -> Choose:
    """Choose the wanted answer or the nearest; the default if none is near or wanted."""

    def choose(met: AskedQuestion) -> int:
        if met.name not in wanted:
            return met.default
        place = nearest(met.candidates, wanted[met.name])
        return met.default if place is None else place

    return choose
