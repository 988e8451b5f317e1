"""A bounded search for the combination of expansions with the smallest makespan.

Coordinate descent from the best start: change the expansion of one group of operators at a time, or
of neighbors with the same options together, while that improves the makespan. Neighbors matter
because operators that stream to one another have the pace of the slowest. First only gang
schedules, which are fast to make, are compared, and then, from the best of those, all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby, product

from tilewright.base.dataclass import dataclass
from tilewright.dataflow.evaluate import GANG, Evaluator, Method
from tilewright.dataflow.results import Choice
from tilewright.search import SearchLimits, descend

Options = Sequence[Sequence[str]]  # of each group


@dataclass(frozen=True, slots=True)
class _Move:
    """Gives groups first..last - 1 the expansion `name`."""

    first: int
    last: int
    name: str

    def on(self, choice: Choice) -> Choice:
        """Apply the move to a combination."""
        return (
            choice[: self.first]
            + (self.name,) * (self.last - self.first)
            + choice[self.last :]
        )


def search(
    evaluator: Evaluator,
    options: Options,
    counts: Sequence[int],
    limit: int,
    end: float,
) -> None:
    """Search on each number of processing elements, upwards and then, starting from the best
    results, downwards again, each with an equal share of what is left of both limits.

    options: the expansions of each group. limit: maximum number of evaluations; end: a time of
    `time.monotonic`. Each number gets at least one evaluation, however short the time.
    """
    starts = list(_uniform(options))
    moves = list(_moves(options))
    gang = [m for m in evaluator.methods if m in GANG] or evaluator.quick
    best: dict[int, Choice] = {}
    passes = [*counts, *reversed(counts)]
    for n, pes in enumerate(passes):
        shares = len(passes) - n
        now = time.monotonic()
        most = evaluator.made + max(1, (limit - evaluator.made) // shares)
        seconds = max(0.0, (end - now) / shares)
        known = [*best.values(), *starts]
        for ways in (gang, evaluator.methods):
            best[pes] = _descend(evaluator, known, moves, ways, pes, most, seconds / 2)
            known = [best[pes], *best.values()]


def _descend(
    evaluator: Evaluator,
    starts: Sequence[Choice],
    moves: Sequence[_Move],
    methods: Sequence[Method],
    pes: int,
    most: int,
    seconds: float,
) -> Choice:
    """The best combination found from the starts before the evaluator has made `most` points."""
    limits = SearchLimits(seconds=seconds, until=lambda: evaluator.made >= most)
    changes = [move.on for move in moves]
    return descend(
        starts,
        changes,
        lambda choice: evaluator.point(choice, pes, methods).costs,
        limits=limits,
    ).state


def _uniform(options: Options) -> Iterator[Choice]:
    """The combinations that use one expansion wherever it exists, and another one elsewhere."""
    names = dict.fromkeys(name for known in options for name in known)
    seen: set[Choice] = set()
    for first, second in product(names, repeat=2):
        choice = tuple(
            next((name for name in (first, second) if name in known), known[0])
            for known in options
        )
        if choice not in seen:
            seen.add(choice)
            yield choice


def _moves(options: Options) -> Iterator[_Move]:
    """Every change of one group, then of every run of neighbors with the same options."""
    for n, known in enumerate(options):
        yield from (_Move(n, n + 1, name) for name in known)
    first = 0
    for known, run in groupby(options):
        last = first + len(list(run))
        if last > first + 1:
            yield from (_Move(first, last, name) for name in known)
        first = last
