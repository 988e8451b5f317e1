"""What a program really reads and writes, iteration by iteration: the judge of the analyses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.loops.nodes import Alloc, Block, For, If, Kernel, Stmt, Store, Update
from tilewright.testing.random_programs import random_arrays

Element = tuple[Buffer, tuple[int, ...]]


@dataclass(frozen=True)
class Event:
    """One access.

    kind: as in `loops.analysis.access.Access`; step: the reducer and what it changes together.
    """

    kind: str
    element: Element
    step: object = None


@dataclass
class Run:
    """One run of a loop's body, in one of its iterations."""

    loop: For
    iteration: int
    env: dict[Var, int]
    events: list[Event] = field(default_factory=list)


class Tracer:
    """Executes a kernel and yields the runs of every loop's bodies, grouped by runs of the loop."""

    def __init__(self, kernel: Kernel, seed: int = 0) -> None:
        arrays = random_arrays(kernel, seed)
        self.memory: dict[Buffer, Any] = dict(arrays)
        self.env: dict[Var, int] = {}
        self.active: list[Run] = []
        self.loops: list[list[Run]] = []
        with np.errstate(all="ignore"):
            self.stmt(kernel.body)

    def _event(
        self, kind: str, buffer: Buffer, index: tuple[int, ...], step: object
    ) -> None:
        event = Event(kind, (buffer, index), step)
        for run in self.active:
            run.events.append(event)

    def _load(self, buffer: Buffer, index: tuple[Any, ...]) -> Any:
        at = tuple(int(i) for i in index)
        self._event("load", buffer, at, None)
        return self.memory[buffer][at]

    def value(self, e: Expr) -> Any:
        return evaluate(e, self.env, self._load)

    def stmt(self, s: Stmt) -> None:
        match s:
            case Block():
                for x in s.stmts:
                    self.stmt(x)
            case For():
                runs: list[Run] = []
                self.loops.append(runs)
                for i in range(int(self.value(s.extent))):
                    self.env[s.var] = i
                    run = Run(s, i, dict(self.env))
                    runs.append(run)
                    self.active.append(run)
                    self.stmt(s.body)
                    self.active.pop()
                self.env.pop(s.var, None)
            case If():
                arm = s.then if self.value(s.condition) else s.otherwise
                if arm is not None:
                    self.stmt(arm)
            case Alloc():
                self.memory[s.buffer] = np.full(
                    s.buffer.shape, 85, s.buffer.dtype.numpy
                )
                self.stmt(s.body)
            case Store():
                at = tuple(int(self.value(i)) for i in s.index)
                value = self.value(s.value)
                self.memory[s.buffer][at] = value
                self._event("store", s.buffer, at, None)
            case Update():
                self._update(s)
            case _:
                raise AssertionError(type(s))

    def _update(self, s: Update) -> None:
        places = [
            (b, tuple(int(self.value(i)) for i in index)) for b, index in s.targets
        ]
        values = [self.value(v) for v in s.values]
        old = [self.memory[b][at] for b, at in places]
        env = dict(zip(s.reducer.lhs, old, strict=True)) | dict(
            zip(s.reducer.rhs, values, strict=True)
        )
        for (b, at), e in zip(places, s.reducer.result, strict=True):
            self.memory[b][at] = evaluate(e, env)
        for b, at in places:
            self._event("update", b, at, (s.reducer, s.buffers))


def uncovered_reads(run: Run) -> set[Buffer]:
    """The buffers in which the run reads (or updates) elements that it has not stored before."""
    stored: set[Element] = set()
    found: set[Buffer] = set()
    for e in run.events:
        if e.kind == "store":
            stored.add(e.element)
        elif e.element not in stored:
            found.add(e.element[0])
    return found


def crossings(
    runs: list[Run], private: set[Buffer], updates: bool
) -> Iterator[Element]:
    """The elements that two iterations of a loop access, at least one of them writing.

    updates: steps of one commutative reduction of the same buffers do not count.
    """
    found: dict[Element, list[tuple[int, Event]]] = {}
    for run in runs:
        for e in dict.fromkeys(run.events):
            if e.element[0] not in private:
                found.setdefault(e.element, []).append((run.iteration, e))
    for element, events in found.items():
        for (i, a), (j, b) in product(events, repeat=2):
            if i >= j or (a.kind == b.kind == "load"):
                continue
            same = updates and a.step is not None and a.step == b.step
            if not (same and a.step[0].commutative):  # type: ignore[index]
                yield element
                break
