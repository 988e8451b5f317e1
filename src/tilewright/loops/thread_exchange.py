"""What threads of an interpreted launch exchange: registers within a warp, sums of groups."""

from __future__ import annotations

from collections.abc import (
    Iterable,
    Mapping,
    Sequence,
)
from itertools import product
from typing import Any

from tilewright.base.errors import ExecutionError
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import INDEX, Buffer
from tilewright.loops.launch import (
    CombineThreads,
    Launch,
)
from tilewright.loops.nodes import (
    Unit,
)
from tilewright.loops.passes.thread_program import THREAD_AXES
from tilewright.loops.passes.warp_units import fragments, written_fragments
from tilewright.loops.shared_memory import (
    SimulatedThread,
    first_line,
)


class DivergenceError(ExecutionError):
    """Not all threads of a block reach the same barrier."""

    code = "TW-DIVERGENCE"


class WarpExchange:
    """Threads that wait for the others of their warp, to exchange the registers of fragments."""

    def __init__(
        self,
        launch: Launch,
    ) -> None:
        self.launch = launch
        self.held = fragments(launch.body)
        self.exchanged = written_fragments(launch.body)
        self.coming: dict[int, dict[SimulatedThread, tuple[int, Any]]] = {}

    def come(
        self,
        unit: Unit,
        thread: SimulatedThread,
        paused: tuple[int, Any],
    ) -> list[SimulatedThread]:
        """A thread has come to a unit; all of its warp once they have, with each other's parts."""
        number = self._number(thread) // unit.threads
        found = self.coming.setdefault(number, {})
        found[thread] = paused
        if len(found) < unit.threads:
            return []
        del self.coming[number]
        if len({at for at, _ in found.values()}) > 1:
            raise self._diverged(found)
        buffers = [o.buffer for o in unit.operands if o.buffer in self.exchanged]
        for n, b in enumerate(dict.fromkeys(buffers)):
            self._exchange(b, {t: arrays[n] for t, (_, arrays) in found.items()})
        return list(found)

    def check_left(self) -> None:
        """Raise DivergenceError if a thread waits for others that have ended."""
        for found in self.coming.values():
            raise self._diverged(found)

    def _exchange(
        self,
        b: Buffer,
        parts: Mapping[SimulatedThread, list[Any]],
    ) -> None:
        """Give each thread the elements that the others have."""
        by_number = {t.number: part for t, part in parts.items()}
        some = next(iter(by_number))
        whole = []
        for n, place in enumerate(product(*map(range, b.shape))):
            number = list(some)
            for shares, i in zip(self.held[b][::-1], place[::-1], strict=False):
                for share in shares:
                    axis = THREAD_AXES.index(share.axis)
                    number[axis] = i // share.run % share.threads
            x, y, z = number
            whole.append(by_number[x, y, z][n])
        for part in by_number.values():
            part[:] = whole

    def _number(
        self,
        thread: SimulatedThread,
    ) -> int:
        (nx, ny, _), (x, y, z) = self.launch.threads, thread.number
        return x + nx * (y + ny * z)

    def _diverged(
        self,
        found: Iterable[SimulatedThread],
    ) -> DivergenceError:
        first = next(iter(found))
        return DivergenceError(
            f"not all threads of the warp of thread {first.number} come to a unit that "
            "they do together",
            where=f"{self.launch.name}, block {first.block}",
        )


def combine(
    s: CombineThreads,
    places: Sequence[Sequence[tuple[list[Any], int]]],
) -> None:
    """Combine the registers of each group of neighbors, as a tree in order."""
    if len(places) % s.width:
        raise ExecutionError(
            f"{len(places)} threads are not groups of {s.width}",
            code="TW-DIVERGENCE",
            where=first_line(s),
        )
    for start in range(0, len(places), s.width):
        group = places[start : start + s.width]
        values = [tuple(registers[i] for registers, i in own) for own in group]
        while len(values) > 1:
            values = [
                _combined(s, one, two)
                for one, two in zip(values[::2], values[1::2], strict=True)
            ]
        for own in group:
            for (registers, i), value in zip(own, values[0], strict=True):
                registers[i] = value


def _combined(
    s: CombineThreads,
    one: Sequence[Any],
    two: Sequence[Any],
) -> tuple[Any, ...]:
    r = s.reducer
    env = dict(zip((*r.lhs, *r.rhs), (*one, *two), strict=True))
    found = (evaluate(e, env) for e in r.result)
    types = zip(found, r.dtypes, strict=True)
    return tuple(int(x) if t is INDEX else t.numpy.type(x) for x, t in types)
