"""When an element is used again, as in Ansor: over a loop that does not move it, or by another
statement in the same loop."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer
from tilewright.tune.features.program import FeatureLine, FeatureLoop
from tilewright.tune.features.regions import TouchedTensor

LOOP, SERIAL, NONE = range(3)


@dataclass(frozen=True, slots=True)
class Reuse:
    """kind: LOOP, SERIAL or NONE. iterations, bytes: to the next use. count: consecutive uses."""

    kind: int
    iterations: float
    bytes: float
    count: float


class TouchedByLoop:
    """The elements that the statements in a loop touch over all its iterations, by tensor."""

    def __init__(self, lines: Sequence[FeatureLine]) -> None:
        self._found: dict[int, dict[Buffer, list[float]]] = {}
        self._sizes: dict[Buffer, int] = {}
        for line in lines:
            for t in line.touches:
                self._sizes[t.buffer] = t.shape.itemsize
                for f in line.loops:
                    loop = self._found.setdefault(id(f), {})
                    loop.setdefault(t.buffer, []).append(t.elements[f.depth])

    def elements(self, loop: FeatureLoop, buffer: Buffer) -> list[float]:
        """Elements of a tensor over all iterations, per statement."""
        return self._found[id(loop)][buffer]

    def bytes(self, loop: FeatureLoop) -> float:
        """Bytes over all iterations, of all tensors and statements."""
        found = self._found[id(loop)].items()
        return sum(self._sizes[b] * sum(counts) for b, counts in found)

    def step(self, loop: FeatureLoop) -> float:
        """Bytes of one element of each tensor in each statement."""
        found = self._found[id(loop)].items()
        return sum(self._sizes[b] * len(counts) for b, counts in found)


def reuse(line: FeatureLine, t: TouchedTensor, touched: TouchedByLoop) -> Reuse:
    """The reuse of a tensor's elements by a statement: in the innermost loop that has any."""
    iterations = 1.0
    bytes_: float | None = None
    for f in reversed(line.loops):
        if not any(a.moves(f.depth) for a in t.accesses):
            between = touched.step(f) if bytes_ is None else bytes_
            return Reuse(LOOP, iterations, between, f.trips)
        iterations *= f.trips
        bytes_ = touched.bytes(f)
        counts = touched.elements(f, t.buffer)
        if len(counts) > 1:
            again = min(counts) / f.trips
            return Reuse(SERIAL, again, bytes_ / f.trips, len(counts) - 1)
    return Reuse(NONE, 0.0, 0.0, 0.0)
