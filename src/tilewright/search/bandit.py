"""A bandit over techniques: those that found improvements lately propose next.

The score of a technique is the area under its curve of improvements, with more weight on recent
ones, plus a bonus for rarely used ones. (Ansel et al., OpenTuner, PACT 2014; also the default of
the Auto-Tuning Framework.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf, log2, sqrt
from random import Random
from typing import Final, Generic

from tilewright.search.result import (
    Result,
    S,
    SearchCheckpoint,
    SearchLimits,
    at_least_one,
    itself,
)
from tilewright.search.run import Run, each
from tilewright.search.techniques import Technique

WINDOW: Final = 500  # recent uses that count
EXPLORATION: Final = 0.05
DRAWS: Final = 64  # consecutive known states after which it gives up


class Bandit(Generic[S]):
    """Asks the technique with the highest score; never returns a state twice.

    techniques: new ones, at least one. key: states with equal keys are the same. A technique that
    asks for a known state gets its cost at once, which counts as a use without improvement.
    """

    def __init__(
        self,
        techniques: Sequence[Technique[S]],
        *,
        key: Callable[[S], Hashable] | None = None,
        seed: int = 0,
        window: int = WINDOW,
        exploration: float = EXPLORATION,
    ) -> None:
        at_least_one(techniques=len(techniques), window=window)
        self.techniques: Final = tuple(techniques)
        self.uses = [0] * len(techniques)
        self._key: Final = key or itself
        self._seed: Final = seed
        self._exploration: Final = exploration
        self._history: deque[tuple[int, bool]] = deque(maxlen=window)
        self._pending: dict[Hashable, list[int]] = {}
        self._known: dict[Hashable, float] = {}
        self._best = inf
        self._draws = 0

    def ask(self) -> S | None:
        """A state not returned before; None if no technique has one now."""
        silent: set[int] = set()
        for _ in range(DRAWS):
            if len(silent) == len(self.techniques):
                return None
            n = self._chosen(silent)
            state = self.techniques[n].ask(self._random())
            if state is None:
                silent.add(n)
                continue
            at = self._key(state)
            if at in self._known:
                self._history.append((n, False))
                self.techniques[n].tell(state, self._known[at], True, self._random())
            elif at in self._pending:
                self._pending[at].append(n)  # its cost is still pending
            else:
                self._pending[at] = [n]
                self.uses[n] += 1
                return state
        return None

    def tell(self, state: S, cost: float) -> None:
        """Report a state's cost, whoever asked for it; infinite: not feasible."""
        at = self._key(state)
        if at in self._known:
            return
        self._known[at] = cost
        askers = self._pending.pop(at, [])
        for place, n in enumerate(askers):
            self._history.append((n, place == 0 and cost < self._best))
            self.techniques[n].tell(state, cost, True, self._random())
        self._best = min(self._best, cost)
        for n, technique in enumerate(self.techniques):
            if n not in askers:
                technique.tell(state, cost, False, self._random())

    @property
    def scores(self) -> list[float]:
        """The scores of the techniques, in order; infinite for one that was never used."""
        waiting = [n for askers in self._pending.values() for n in askers]
        total = len(self._history) + len(waiting)
        scores = []
        for n in range(len(self.techniques)):
            own = [improved for of, improved in self._history if of == n]
            uses = len(own) + waiting.count(n)
            if not uses:
                scores.append(inf)
                continue
            rare = sqrt(2 * log2(max(2, total)) / uses)
            scores.append(_area(own) + self._exploration * rare)
        return scores

    def _chosen(self, silent: set[int]) -> int:
        scores = self.scores
        speaking = [n for n in range(len(scores)) if n not in silent]
        return max(speaking, key=lambda n: scores[n])

    def _random(self) -> Random:
        self._draws += 1
        return Random(f"{self._seed}:{self._draws}")


def _area(improved: Sequence[bool]) -> float:
    """The area under a curve that rises by 1 at each improvement, relative to the maximum."""
    count = len(improved)
    if not count:
        return 0.0
    raw = sum(n for n, better in enumerate(improved, 1) if better)
    return 2 * raw / (count * (count + 1))


def by_bandit(
    starts: Iterable[S],
    techniques: Sequence[Technique[S]],
    cost: Callable[[S], float],
    *,
    steps: int = 1000,
    key: Callable[[S], Hashable] | None = None,
    seed: int = 0,
    limits: SearchLimits | None = None,
    lower: float = -inf,
    resume: SearchCheckpoint[S, float] | None = None,
) -> Result[S, float]:
    """The cheapest of the starts and of the states that a `Bandit` of techniques asks for.

    techniques: new ones, because they have state. steps: number of states to ask for; fewer if no
    technique has a new one. Deterministic for equal arguments. The checkpoint resumes a search that
    a limit ended, with all other arguments unchanged: the same states are asked for again, and
    those with a known cost are not evaluated. Raises InputError for no start or technique, steps
    below 1, and as `Run.evaluate`.
    """
    at_least_one(steps=steps)
    name = key or itself
    run: Run[S, float] = Run("bandit", each(cost), limits, lower)
    _, _, known = run.resume(resume)
    chooser = Bandit(techniques, key=key, seed=seed)
    done = 0

    def answer(state: S) -> None:
        at = name(state)
        if at not in known:
            known[at] = run.evaluate(state)
        chooser.tell(state, known[at])

    with run:
        for state in starts:
            answer(state)
        while run.best is not None and done < steps:
            run.check()
            asked = chooser.ask()
            if asked is None:
                break
            answer(asked)
            done += 1
    return run.resumable(done, (), known)
