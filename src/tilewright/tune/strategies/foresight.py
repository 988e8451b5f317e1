"""A cost model's predictions for candidates, as one number that a search minimizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import exp, inf, isfinite, isnan
from typing import Final

import numpy as np

from tilewright.tune.base import Candidate, CostModel
from tilewright.tune.features.fast import Fast
from tilewright.tune.kriging import Points, RemainingVariance, places
from tilewright.tune.strategies.programs import ProgramMaker, ScheduledProgram

# The weight of the spread subtracted from the cost: uncertain candidates are worth exploring.
CURIOSITY: Final = 0.5
KEPT: Final = 256  # candidates to predict again after the model has learned
REMEMBERED: Final = 512  # measured candidates whose distance counts
WORST: Final = 1e300  # the cost of a program that the model cannot predict
# In whose coordinates candidates are near or far, on any machine.
FEATURES: Final = Fast()


class ConfidenceBounds:
    """Lower confidence bounds of candidates' costs; infinite for those that a primitive rejects.

    Without a model all valid candidates cost the same. Costs are cached until `learned`.
    """

    def __init__(
        self,
        programs: ProgramMaker,
        model: CostModel | None,
        curiosity: float = CURIOSITY,
    ) -> None:
        self.programs: Final = programs
        self.model: Final = model
        self._curiosity: Final = curiosity
        self._costs: dict[str, float] = {}
        self._expected: dict[str, float] = {}
        self._costed: dict[str, Candidate] = {}

    def costs(self, candidates: Sequence[Candidate]) -> list[float]:
        """The cost of each candidate; new ones are predicted in one batch."""
        fresh = {c.key: c for c in candidates if c.key not in self._costs}
        possible: dict[str, ScheduledProgram] = {}
        for key, candidate in fresh.items():
            self._costs[key] = inf
            program = self.programs.find(candidate)
            if program is not None:
                possible[key] = program
                self._costed[key] = candidate
        self._predict(possible)
        return [self._costs[c.key] for c in candidates]

    def _predict(self, programs: dict[str, ScheduledProgram]) -> None:
        if self.model is None:
            self._costs.update(dict.fromkeys(programs, 0.0))
            return
        if not programs:
            return
        kernels = [p.kernel for p in programs.values()]
        found = self.model.predict(self.programs.task.key, kernels)
        rows = zip(programs, found.cost.tolist(), found.spread.tolist(), strict=True)
        for key, cost, spread in rows:
            self._expected[key] = cost
            doubt = spread if isfinite(spread) else 0.0
            self._costs[key] = inf if isnan(cost) else cost - self._curiosity * doubt

    def learned(self) -> None:
        """Discard all costs after the model has changed, and predict the best candidates again."""
        again = [c for c, _ in zip(self.ranked(), range(KEPT), strict=False)]
        self._costs.clear()
        self._expected.clear()
        self._costed.clear()
        self.costs(again)

    def ranked(self) -> Iterator[Candidate]:
        """All valid candidates costed so far, cheapest first; ties in order of insertion."""
        order = sorted(self._costed, key=lambda key: self._costs[key])
        return iter([self._costed[key] for key in order])

    def apart(
        self, pool: Sequence[Candidate], measured: Iterable[Candidate]
    ) -> Iterator[Candidate]:
        """Order a pool so that each is cheap, and far from what is measured and those before it.

        Greedy: the least expected cost minus CURIOSITY times the standard deviation that is left
        once the others are known (Desautels et al., GP-BUCB, 2014: what is proposed counts as
        known, because its time changes what is expected but not how sure that is). Refused
        candidates are left out.
        """
        self.costs(pool)
        valid = [c for c in pool if c.key in self._costed]
        if not valid:
            return
        known = list(measured)[-REMEMBERED:]
        unknown = RemainingVariance(self._places(valid), self._places(known))
        expected = np.array([self._expected.get(c.key, 0.0) for c in valid])
        expected = np.nan_to_num(expected, nan=WORST, posinf=WORST)
        for _ in valid:
            doubt = np.sqrt(np.maximum(unknown.left, 0.0))
            chosen = int(np.argmin(expected - self._curiosity * doubt))
            yield valid[chosen]
            expected[chosen] = inf
            unknown.know(chosen)

    def _places(self, candidates: Sequence[Candidate]) -> Points:
        found = map(self.programs.find, candidates)
        kernels = [program.kernel for program in found if program is not None]
        return places(FEATURES.extract_all(kernels))

    def predicted(self, candidate: Candidate) -> float | None:
        """The predicted seconds of a candidate; None if the model only ranks."""
        if self.model is None or not self.model.absolute:
            return None
        self.costs([candidate])
        expected = self._expected.get(candidate.key)
        if expected is None or not isfinite(expected):
            return None
        return exp(min(expected, 700.0))
