"""One random program under one random schedule: interpreted and compiled, before and after.

`run(seed)` is the whole check. What it finds is a `ScheduleFailure`: it carries the shortest list
of steps that still fails, and says how to see it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError, TilewrightError
from tilewright.driver.build_kernel import build_kernel
from tilewright.expr.nodes import Buffer
from tilewright.loops.interp import run as interpret
from tilewright.loops.nodes import AXES, Kernel
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of
from tilewright.runtime.executable import Executable
from tilewright.schedule import Schedule, Step, Trace, replay
from tilewright.targets.registry import target
from tilewright.testing.interleaved import backwards, interleaved
from tilewright.testing.random_kernels import random_kernel
from tilewright.testing.random_programs import random_arrays, random_program
from tilewright.testing.random_schedules import Coverage, Crash, random_schedule

LEVELS: Final = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
Arrays = Mapping[Buffer, Any]


@dataclass(frozen=True, slots=True)
class ScheduleFailure:
    """A schedule that changed a result, or failed other than by a ScheduleError.

    seed: the seed of `program`; steps: fail when replayed on it; reason: the failure.
    """

    seed: int
    steps: tuple[Step, ...]
    reason: str

    def __str__(self) -> str:
        return f"program({self.seed}): {self.reason}\n{Trace(self.steps)}\n{program(self.seed)!r}"


def levels_here() -> tuple[str, ...]:
    """The levels whose code this processor runs."""
    return tuple(level for level in LEVELS if target("cpu", level).runs_here)


def program(seed: int) -> Kernel:
    """The program of a seed: one of three is a chain of whole tensors."""
    r = random.Random(seed)
    if seed % 3 == 0:
        return random_kernel(r)
    return random_program(r)


def run(
    seed: int,
    met: Coverage | None = None,
    levels: Sequence[str] | None = None,
    tries: int = 30,
    tell: Callable[[Trace], object] = lambda trace: None,
) -> ScheduleFailure | None:
    """The failure of a random schedule of `program(seed)`; None if it is correct.

    met: counts of pairs of primitives, which steer the schedule and are updated. levels: the
    processor levels to compile for, one of which the seed chooses (empty: not compiled; None: those
    of this processor). tell: called with the schedule before it runs, as the run could crash the
    process.
    """
    kernel = program(seed)
    if levels is None:
        levels = levels_here()
    else:
        levels = levels
    if levels:
        level = levels[seed % len(levels)]
    else:
        level = None
    r = random.Random(seed + 1)
    try:
        s = random_schedule(r, kernel, tries, met=met)
    except Crash as crash:
        return smallest(seed, kernel, crash.steps, str(crash), level)
    tell(s.trace)
    reason = problem(kernel, s.trace.steps, level, seed)
    if reason is None:
        return None
    return smallest(seed, kernel, s.trace.steps, reason, level)


def problem(
    kernel: Kernel,
    steps: Sequence[Step],
    level: str | None,
    seed: int,
) -> str | None:
    """The fault of `kernel` after these steps; None if there is none, or a step is rejected."""
    s = Schedule(kernel)
    try:
        for step in steps:
            s.apply(step)
    except ScheduleError:
        return None
    except Exception as error:
        return f"{step}: {type(error).__name__}: {error}"
    given = random_arrays(kernel, seed)
    want = _interpreted(kernel, given)
    try:
        verify(s.kernel)
        got = _interpreted(s.kernel, given)
        found = _different("interpreted", want, got)
        for order in (backwards, interleaved) if found is None else ():
            found = found or _different(
                order.__name__, want, _interpreted(order(s.kernel), given)
            )
        if found is None and level is not None and not _needs_gpu(s.kernel):
            got = _native(s.kernel, given, level)
            found = _different(f"compiled for {level}", want, got)
        if found is None and repr(replay(kernel, s.trace)) != repr(s.kernel):
            found = "its trace leads elsewhere"
    except TilewrightError as error:
        return f"{type(error).__name__}: {error}"
    return found


def smallest(
    seed: int,
    kernel: Kernel,
    steps: tuple[Step, ...],
    reason: str,
    level: str | None,
) -> ScheduleFailure:
    """A minimal failure: no step can be removed."""
    before = None
    while steps != before:
        before = steps
        for n in reversed(range(len(steps))):
            fewer = (*steps[:n], *steps[n + 1 :])
            found = problem(kernel, fewer, level, seed)
            if found is not None:
                steps = fewer
                reason = found
    return ScheduleFailure(seed, steps, reason)


def _interpreted(kernel: Kernel, given: Arrays) -> list[Any]:
    arrays = {b: a.copy() for b, a in given.items()}
    interpret(kernel, arrays)
    return list(arrays.values())


def _needs_gpu(kernel: Kernel) -> bool:
    return any(f.kind in AXES for f in loops_of(kernel.body))


def _native(
    kernel: Kernel,
    given: Arrays,
    level: str,
) -> list[Any]:
    arrays = {b: a.copy() for b, a in given.items()}
    outputs = [arrays[b] for b in kernel.outputs]
    model = build_kernel(kernel, target("cpu", level))
    exe = Executable(model, threads=2)
    exe(
        *(arrays[b] for b in kernel.inputs),
        out=outputs if len(outputs) > 1 else outputs[0],
    )
    return list(arrays.values())


def _different(
    how: str,
    want: Sequence[Any],
    got: Sequence[Any],
) -> str | None:
    for n, (a, b) in enumerate(zip(want, got, strict=True)):
        if not np.array_equal(a, b):
            at = tuple(int(i) for i in np.argwhere(a != b)[0])
            return f"{how}, parameter {n} is {b[at]} at {at}, not {a[at]}"
    return None
