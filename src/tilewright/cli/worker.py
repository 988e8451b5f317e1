"""A process that holds one engine with one model, and times it on request.

Started as `python -m tilewright.cli.worker` with one JSON argument: engine, model, inputs (an .npz
of `in.<name>`), threads, cpus, dims, options. Each line on standard input is a JSON command, each
answer one JSON line on standard output.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final

# Calls in one round: at least this many for a median, at most this many for tiny networks.
FEWEST: Final = 3
MOST: Final = 4000


def private_output() -> IO[str]:
    """The real standard output; file descriptor 1 then goes to stderr, so that prints are
    harmless."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def read_feeds(path: Path) -> dict[str, Any]:
    """The arrays `in.<name>` of an .npz file, by name."""
    import numpy as np

    with np.load(path) as archive:
        return {
            k.removeprefix("in."): archive[k]
            for k in archive.files
            if k.startswith("in.")
        }


class Server:
    """Answers the commands `round`, `together` and `outputs` for one loaded engine."""

    def __init__(self, task: dict[str, Any]) -> None:
        from tilewright.cli.engines import ENGINES
        from tilewright.driver.left_work import settle

        self.feeds = read_feeds(Path(task["inputs"]))
        start = time.perf_counter()
        load, path = ENGINES[task["engine"]], Path(task["model"])
        self.run = load(path, task["threads"], task["dims"], **task["options"])
        self.load_seconds = time.perf_counter() - start
        settle()  # or the first rounds have the model written to the cache beside them

    def round(self, seconds: float) -> dict[str, Any]:
        """Median milliseconds of the calls that fit in `seconds`, after a warm-up of a tenth."""
        run, feeds, clock = self.run, self.feeds, time.perf_counter
        warm_until = clock() + seconds / 10
        run(feeds)
        while clock() < warm_until:
            run(feeds)
        times: list[float] = []
        until = clock() + seconds
        while len(times) < FEWEST or (clock() < until and len(times) < MOST):
            start = clock()
            run(feeds)
            times.append(clock() - start)
        return _summary(times)

    def together(self, seconds: float, callers: int) -> dict[str, Any]:
        """As `round`, with several concurrent callers; `rate` is their total calls per second.

        Only calls that begin after a tenth of the time, when all callers run, are counted.
        """
        run, feeds, clock = self.run, self.feeds, time.perf_counter
        run(feeds)
        begin = clock() + seconds / 10
        until = begin + seconds

        def call() -> tuple[list[float], float]:
            times: list[float] = []
            while True:
                start = clock()
                if start >= until and len(times) >= FEWEST:
                    return times, start
                run(feeds)
                if start >= begin:
                    times.append(clock() - start)

        with ThreadPoolExecutor(callers) as pool:
            waiting = [pool.submit(call) for _ in range(callers)]
            found = [future.result() for future in waiting]
        times = [t for own, _ in found for t in own]
        taken = max(end for _, end in found) - begin
        return _summary(times) | {"rate": len(times) / taken}

    def outputs(self, path: str) -> dict[str, Any]:
        """Writes the outputs of one call as out.0, out.1, … to an .npz file."""
        import numpy as np

        values = self.run(self.feeds)
        with open(path, "wb") as file:
            arrays = {f"out.{i}": v for i, v in enumerate(values)}
            np.savez(file, **arrays)  # type: ignore[arg-type]
        return {"outputs": len(values)}


def _summary(times: list[float]) -> dict[str, Any]:
    """The median of calls in milliseconds, their number, and percentiles."""
    found = {"ms": statistics.median(times) * 1e3, "calls": len(times)}
    return found | {"p95": _within(times, 95), "p99": _within(times, 99)}


def _within(times: list[float], percent: int) -> float:
    """The milliseconds within which so many percent of the calls ended."""
    return sorted(times)[(len(times) - 1) * percent // 100] * 1e3


def _end_with_parent() -> None:
    """End with the parent: if it is killed, this process would stay stopped forever."""
    kill_at_its_end = 1  # PR_SET_PDEATHSIG of prctl(2), on Linux
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(kill_at_its_end, signal.SIGKILL)


def main(argument: str) -> int:
    """Serves until standard input closes; a failure is one line {"error": …} and status 1."""
    task = json.loads(argument)
    channel = private_output()

    def answer(fields: dict[str, Any]) -> None:
        print(json.dumps(fields), file=channel, flush=True)

    try:
        _end_with_parent()
        os.sched_setaffinity(0, set(task["cpus"]))
        server = Server(task)
        answer({"load_seconds": server.load_seconds})
        verbs: dict[str, Callable[..., dict[str, Any]]]
        verbs = {
            "round": server.round,
            "together": server.together,
            "outputs": server.outputs,
        }
        for line in sys.stdin:
            command = json.loads(line)
            answer(verbs[command.pop("do")](**command))
    except Exception as error:
        # Report every failure to the other side.
        answer({"error": f"{type(error).__name__}: {error}".splitlines()[0][:500]})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
