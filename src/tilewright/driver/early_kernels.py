"""Compiles kernels in another process while this one still plans the model.

Passes over a plan mostly look at a few neighboring steps. What they make of a part of the lowered
plan is therefore what they make of the same steps in the whole, except near its ends. The other
process plans the last part, compiles its kernels, goes on with the part before, and so on, until
the plan is ready here. A kernel is known by a key of all that its code depends on: the plan takes
those that it has, and the others are dropped.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import IO, Any, Final, NoReturn

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.driver.processes import Job, can_fork, end, fork, wait
from tilewright.ir.passes import Pipeline
from tilewright.plan.nodes import HOST, Plan
from tilewright.runtime.threads import thread_count

PARTS: Final = 8  # a plan is taken in so many parts at most
SHORTEST: Final = 8  # steps of a part: near its ends, kernels are not the plan's
# Of a plan with fewer shapes of groups, the kernels are few, and it is ready before another process
# has made one.
FEWEST: Final = 24

# By key, what compiles the kernels of a plan that are not there yet, those first that take longest.
Jobs = Callable[[Plan], Mapping[str, Job]]


@dataclass(frozen=True, slots=True)
class EarlyKernel:
    """A kernel of the other process: its code, which is None while it is made.

    happened: what was reported meanwhile.
    """

    key: str
    code: bytes | None
    happened: tuple[events.Event, ...] = ()


class EarlyKernels:
    """The kernels that another process makes; none before `begin`, or if it cannot be started."""

    def __init__(self, jobs: Jobs | None = None) -> None:
        self._jobs = jobs
        self._running: list[int] = []
        self._open = ExitStack()
        self._written: IO[bytes] | None = None
        self._stopped: mmap.mmap | None = None

    def begin(self, plan: Plan, passes: Pipeline[Plan]) -> None:
        """Start the process for a lowered plan that `passes` are about to rewrite."""
        if self._jobs is None or _shapes(plan) < FEWEST:
            return
        if thread_count() == 1 or not can_fork():
            return
        results = tempfile.TemporaryFile()  # noqa: SIM115
        self._written = self._open.enter_context(results)
        self._stopped = self._open.enter_context(mmap.mmap(-1, 1))
        self._open.callback(end, self._running)
        with suppress(OSError):  # no more processes permitted
            fork(self._running, lambda parent: self._work(plan, passes, parent))

    def stop(self) -> dict[str, EarlyKernel]:
        """The kernels so far. The process ends with the one that it is making."""
        if self._stopped is None:
            return {}
        self._stopped[0] = 1
        return self._found()

    def rest(self) -> dict[str, EarlyKernel]:
        """All kernels; waits for the last one."""
        for pid in self._running:
            wait(pid)
        return self._found()

    def close(self) -> None:
        """End the process."""
        self._open.close()

    def _found(self) -> dict[str, EarlyKernel]:
        if self._written is None:
            return {}
        # Read without moving the place where the other process writes.
        number = self._written.fileno()
        data = io.BytesIO(os.pread(number, os.fstat(number).st_size, 0))
        return {kernel.key: kernel for kernel in _read(data)}

    def _work(self, plan: Plan, passes: Pipeline[Plan], parent: int) -> NoReturn:
        """The other process."""
        status = 1
        try:
            events.silence()
            warnings.simplefilter("ignore")  # the user is told in the first process
            assert self._written is not None
            for kernel in self._made(plan, passes, parent):
                pickle.dump(kernel, self._written)
                self._written.flush()
            status = 0
        finally:
            os._exit(status)

    def _made(
        self, plan: Plan, passes: Pipeline[Plan], parent: int
    ) -> Iterator[EarlyKernel]:
        """Each kernel when it begins, and again with its code."""
        assert self._jobs is not None and self._stopped is not None
        known: set[str] = set()
        for part in parts(plan):
            for key, job in self._jobs(passes.run(part)).items():
                if self._stopped[0] or os.getppid() != parent:
                    return
                if key in known:
                    continue
                known.add(key)
                yield EarlyKernel(key, None)
                with events.record() as happened:
                    code = job()
                yield EarlyKernel(key, code, tuple(happened))


@contextmanager
def early_kernels(jobs: Jobs | None) -> Iterator[EarlyKernels]:
    """Early kernels, whose process ends with the block; jobs: None for no such process."""
    made = EarlyKernels(jobs)
    try:
        yield made
    finally:
        made.close()


def _shapes(plan: Plan) -> int:
    """How many groups differ in the shapes of their tensors."""
    groups = plan.groups_on(HOST)
    return len({tuple(b.extents for b in (*g.reads, *g.writes)) for g in groups})


def parts(plan: Plan) -> Iterator[Plan]:
    """A plan in parts of consecutive steps, the last first.

    What a part writes and a later one reads is among its results.
    """
    size = max(-(-len(plan.steps) // PARTS), SHORTEST)
    values = {b: v for v, b in plan.buffers.items()}
    for stop in range(len(plan.steps), 0, -size):
        steps = plan.steps[max(stop - size, 0) : stop]
        read = {b for s in plan.steps[stop:] for b in s.reads}
        read.update(plan.results)
        kept = dict.fromkeys(b for s in steps for b in s.writes if b in read)
        outputs = tuple(values[b] for b in kept if b in values)
        yield replace(plan, graph=replace(plan.graph, outputs=outputs), steps=steps)


def _read(data: IO[Any]) -> Iterator[EarlyKernel]:
    """The kernels in the order written; the last record may be cut off."""
    while True:
        try:
            yield pickle.load(data)
        except (EOFError, pickle.UnpicklingError):
            return
