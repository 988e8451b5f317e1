"""One trial, in a separate process: load the program, check its results, time it."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import MemoryLimitError, TilewrightError
from tilewright.base.guarded import Guarded
from tilewright.runtime import bundle
from tilewright.runtime.buffer import arena
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import Tensor
from tilewright.tune.measure.anchor import best_of
from tilewright.tune.measure.clock import DeviceCalls, Now, clock_of
from tilewright.tune.measure.options import Timing
from tilewright.tune.measure.racing import RaceClock, race
from tilewright.tune.measure.reference import ReferenceCase, filler

Array = np.ndarray[Any, Any]
_WARM: Final = 2  # minimum number of calls before timing
_ANCHORS: Final = 3  # anchor runs per reading
_LONG: Final = 100  # maximum warm-up, in durations of a round
_MOST_CALLS: Final = 100_000
_AWAKE: Final = 1.0  # seconds that idle threads wait for the next call
_LINE: Final = 64  # bytes of a cache's line
_READS: Final = 8  # reads of the results, to find the fastest


@dataclass(frozen=True, slots=True)
class MeasuredTrial:
    """The program to measure. path: of the artifact. best: seconds of the best program so far.

    anchor: returns its seconds, `floor` the least so far. flood: memory that fills the caches.
    """

    path: str
    cases: Sequence[ReferenceCase]
    threads: int
    timing: Timing
    best: float
    anchor: Callable[[], float]
    floor: float
    flood: Array


def outcome(trial: MeasuredTrial, places: list[Guarded]) -> dict[str, Any]:
    """Run the trial; returns the fields of a Measurement. places: receives the guarded memory."""
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
    program: Executable, trial: MeasuredTrial, places: list[Guarded]
) -> dict[str, Any] | None:
    """The first error in its results for any case, in guarded memory; None if all are right.

    The buffers end at protected pages in one case and start after them in the next.
    """
    for number, case in enumerate(trial.cases):
        if not _fits(program, case):
            return _wrong("its inputs and outputs do not match the task")
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
    """Whether the case fits the program: dtypes of inputs, and dtypes and sizes of outputs."""
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
        if (off := result.wrong(array.reshape(-1))) is not None:
            place = [int(i) for i in np.unravel_index(off.place, t.extents)]
            return _wrong(f"{t.name}{place} {off}")
    return None


def _timed(program: Executable, trial: MeasuredTrial) -> dict[str, Any]:
    case = trial.cases[0] if trial.cases else filler(program.inputs)
    ends, count = _ends(program), len(program.inputs)
    arrays = [_view(arena(t.nbytes), t) for t in ends]
    _fill(program, case, arrays)
    call, now = _timed_call(program, arrays)
    first = _seconds(call, 1, now)
    if (found := _compared(program, case, arrays[count:])) is not None:
        return found  # aligned memory may use different code
    timing, calls = trial.timing, 1
    first = _without_a_cold_start(call, first, timing, trial.best, now)
    if first > timing.hopeless * trial.best:
        return {"status": "ok", "rounds": [first]}
    if timing.caches == "network":
        program.stay_awake(_AWAKE)
        batch = _in_network(call, arrays[:count], arrays[count:], trial, now)
    else:
        calls = _warm(call, first, timing.round_seconds, now)
        batch = partial(_seconds, call, now=now)
    # The first reading after a program is slow, because the anchor's code is not cached.
    anchor = partial(best_of, trial.anchor, _ANCHORS)
    clock = RaceClock(batch, anchor, trial.floor, _switches, time.perf_counter)
    rounds = race(clock, calls, timing, trial.best)
    seconds = rounds.seconds(timing.fewest)
    return {"status": "ok", "rounds": seconds, "noise": rounds.noise}


def _timed_call(
    program: Executable, arrays: Sequence[Array]
) -> tuple[Callable[[], object], Now]:
    """A call on these inputs and outputs, and the clock for it: of the device, if it has one."""
    count = len(program.inputs)
    if program.model.devices:
        launches = DeviceCalls(program, arrays[:count], arrays[count:])
        return launches, launches.now
    call = program.bound(arrays)
    if call is None:  # not a single native call
        call = lambda: program(*arrays[:count], out=arrays[count:])  # noqa: E731
    return call, clock_of(program)


def _without_a_cold_start(
    call: Callable[[], object], first: float, timing: Timing, best: float, now: Now
) -> float:
    """The fastest of several calls, if the first one looks hopeless.

    The first call of a program of one microsecond takes ten, which says nothing about the program.
    """
    spent = fastest = first
    while fastest > timing.hopeless * best and spent < timing.round_seconds:
        seconds = _seconds(call, 1, now)
        spent, fastest = spent + seconds, min(fastest, seconds)
    return fastest


def _warm(call: Callable[[], object], first: float, least: float, now: Now) -> int:
    """Call until the time settles; returns the number of calls in a round of `least` seconds."""
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
    trial: MeasuredTrial,
    now: Now,
) -> Callable[[int], float]:
    """Call as in a network: before each call, the caches are filled with other data, then the
    memory of the results, which other tensors used before, then the fresh inputs.

    The caller's code and the clock's are cached, because a network calls kernels without Python.
    Threads are awake, as between two kernels: what comes before a call takes longer than they wait.
    The next kernel reads the results: its extra time, compared with the nearest caches, is added,
    or a program would gain by leaving them far away.
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
    """The number of involuntary context switches of this process's threads."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
