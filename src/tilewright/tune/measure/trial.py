"""One trial, in a process of its own: load the program, check its results, time it."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import MemoryLimitError, TilewrightError
from tilewright.base.guarded import Guarded
from tilewright.runtime import bundle
from tilewright.runtime.buffer import arena
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import Tensor
from tilewright.tune.measure.anchor import best_of
from tilewright.tune.measure.clock import Now, clock_of
from tilewright.tune.measure.options import Timing
from tilewright.tune.measure.racing import Clock, race
from tilewright.tune.measure.reference import ReferenceCase, filler

Array = np.ndarray[Any, Any]
_WARM: Final = 2  # calls at least, before any is timed
_ANCHORS: Final = 3  # at each reading
_LONG: Final = 100  # rounds' seconds of warming, after which more calls change little
_MOST_CALLS: Final = 100_000
_LINE: Final = 64  # bytes of a cache's line
_READS: Final = 8  # of results, to know what the fastest takes


@dataclass(frozen=True, slots=True)
class Trial:
    """What to run. path: of the artifact. best: seconds of the best program so far.

    anchor: gives its seconds, `floor` the least so far. flood: memory that fills the caches.
    """

    path: str
    cases: Sequence[ReferenceCase]
    threads: int
    timing: Timing
    best: float
    anchor: Callable[[], float]
    floor: float
    flood: Array


def outcome(trial: Trial, places: list[Guarded]) -> dict[str, Any]:
    """The fields of a Measurement. places: takes the memory that faults are told by."""
    try:
        program = Executable(bundle.load(trial.path), threads=trial.threads)
    except (MemoryLimitError, MemoryError) as error:
        return _failed("memory", error)
    except TilewrightError as error:
        return _failed("build", error)
    try:
        found = _checked(program, trial, places)
        return _timed(program, trial) if found is None else found
    except (MemoryLimitError, MemoryError) as error:
        return _failed("memory", error)
    except TilewrightError as error:
        return _failed("wrong", error)


def _failed(status: str, error: Exception) -> dict[str, Any]:
    reason = f"{type(error).__name__}: {error}"
    return {"status": status, "reason": " ".join(reason.split())[:500]}


def _wrong(text: str) -> dict[str, Any]:
    return {"status": "wrong", "reason": text}


def _checked(
    program: Executable, trial: Trial, places: list[Guarded]
) -> dict[str, Any] | None:
    """What is wrong with its results on every case, in guarded memory; None if nothing is.

    The memory ends at protected pages in one case and begins there in the next.
    """
    for number, case in enumerate(trial.cases):
        if not _fits(program, case):
            return _wrong("its inputs and outputs are not those of the task")
        right = number % 2 == 0
        places.clear()
        for t in (*program.inputs, *program.outputs):
            places.append(Guarded(t.name, t.nbytes, right))
        arrays = [_view(g.bytes, t) for g, t in zip(places, _ends(program))]
        _fill(program, case, arrays)
        count = len(program.inputs)
        for g in places[:count]:
            g.close_for_writing()
        program(*arrays[:count], out=arrays[count:])
        for g in places:
            if (spilled := g.spilled()) is not None:
                return _wrong(f"written {spilled}")
        if (found := _compared(program, case, arrays[count:])) is not None:
            return found
    places.clear()
    return None


def _ends(program: Executable) -> tuple[Tensor, ...]:
    return (*program.inputs, *program.outputs)


def _fits(program: Executable, case: ReferenceCase) -> bool:
    """Whether the case is for such a program: of its numbers and dtypes, and its outputs' sizes."""
    taken = [dtype_of(a.dtype).name for a in case.inputs]
    given = [(dtype_of(r.whole.dtype).name, r.whole.nbytes) for r in case.results]
    return taken == [t.dtype for t in program.inputs] and given == [
        (t.dtype, t.nbytes) for t in program.outputs
    ]


def _view(memory: Array, t: Tensor) -> Array:
    return memory.view(dtype_of(t.dtype).numpy).reshape(t.extents)


def _fill(program: Executable, case: ReferenceCase, arrays: Sequence[Array]) -> None:
    before = [*case.inputs, *(r.before for r in case.results)]
    for array, block in zip(arrays, before):
        array.reshape(-1)[...] = np.resize(block, array.size)


def _compared(
    program: Executable, case: ReferenceCase, outputs: Sequence[Array]
) -> dict[str, Any] | None:
    for t, result, array in zip(program.outputs, case.results, outputs):
        got = array.reshape(-1)
        if (n := result.wrong(got)) is not None:
            place = [int(i) for i in np.unravel_index(n, t.extents)]
            bound = f" within {result.bound:.3g}" if result.bound else ""
            expected = f"expected {result.whole[n]}{bound}"
            return _wrong(f"{t.name}{place} is {got[n]}, {expected}")
    return None


def _timed(program: Executable, trial: Trial) -> dict[str, Any]:
    case = trial.cases[0] if trial.cases else filler(program.inputs)
    ends, count = _ends(program), len(program.inputs)
    arrays = [_view(arena(t.nbytes), t) for t in ends]
    _fill(program, case, arrays)
    call = program.bound(arrays)
    if call is None:  # not one native call
        call = lambda: program(*arrays[:count], out=arrays[count:])  # noqa: E731
    now = clock_of(program)
    first = _seconds(call, 1, now)
    if (found := _compared(program, case, arrays[count:])) is not None:
        return found  # code for aligned memory may be other code
    timing, calls = trial.timing, 1
    first = _without_a_cold_start(call, first, timing, trial.best, now)
    if first > timing.hopeless * trial.best:
        return {"status": "ok", "rounds": [first]}
    if timing.caches == "network":
        batch = _in_network(call, arrays[:count], arrays[count:], trial, now)
    else:
        calls = _warm(call, first, timing.round_seconds, now)
        batch = partial(_seconds, call, now=now)
    # The first time after a program the anchor's own code is in no cache.
    anchor = partial(best_of, trial.anchor, _ANCHORS)
    clock = Clock(batch, anchor, trial.floor, _switches, time.perf_counter)
    rounds = race(clock, calls, timing, trial.best)
    seconds = rounds.seconds(timing.fewest)
    return {"status": "ok", "rounds": seconds, "noise": rounds.noise}


def _without_a_cold_start(
    call: Callable[[], object], first: float, timing: Timing, best: float, now: Now
) -> float:
    """The fastest of some calls, where the first one seems to be hopeless.

    The first call of a program of a microsecond takes ten, which says nothing of the program.
    """
    spent = fastest = first
    while fastest > timing.hopeless * best and spent < timing.round_seconds:
        seconds = _seconds(call, 1, now)
        spent, fastest = spent + seconds, min(fastest, seconds)
    return fastest


def _warm(call: Callable[[], object], first: float, least: float, now: Now) -> int:
    """Call until it is as fast as it gets; how many calls make a round of `least` seconds."""
    spent, fastest, made = first, first, 1
    while spent < least * _LONG and (made <= _WARM or spent < least):
        seconds = _seconds(call, 1, now)
        spent, fastest, made = spent + seconds, min(fastest, seconds), made + 1
    return max(1, min(_MOST_CALLS, round(least / fastest + 0.5)))


def _seconds(call: Callable[[], object], count: int, now: Now) -> float:
    start = now()
    for _ in range(count):
        call()
    return now() - start


def _in_network(
    call: Callable[[], object],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    trial: Trial,
    now: Now,
) -> Callable[[int], float]:
    """Calls as in a network: before each, the caches hold other data, then the memory of the
    results, which other tensors had before, and then fresh inputs.

    What calls and what reads the clock is in the caches, as a network calls without Python. The
    results are read by whoever comes next: what that takes longer than from the nearest caches
    counts, or a program would gain by leaving them far away.
    """
    sources = [a.copy() for a in inputs]
    lines = [a.reshape(-1).view(np.uint8)[::_LINE] for a in outputs]

    def read() -> None:
        for line in lines:
            line.max(initial=0)

    near = min(_seconds(read, 1, now) for _ in range(_READS))

    def batch(count: int) -> float:
        total = 0.0
        for _ in range(count):
            trial.flood.max(initial=0)
            read()
            for array, source in zip(inputs, sources, strict=True):
                np.copyto(array, source)
            _seconds(trial.anchor, 1, now)
            total += _seconds(call, 1, now)
            total += max(0.0, _seconds(read, 1, now) - near)
        return total

    return batch


def _switches() -> int:
    """How often threads of this process had to leave a processor to another process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
