"""Interleaved timing: engines in separate processes, on the same cores."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilewright.base import events
from tilewright.base.child import child_environment
from tilewright.base.dataclass import dataclass
from tilewright.base.text import plural
from tilewright.runtime.threads import choose_cpus

Array = np.ndarray[Any, Any]
PERCENTILES: Final = ("p95", "p99")  # of the calls of a round, besides the median


class EngineFailed(RuntimeError):
    """An engine could not load or run a model; the text is the engine's own first line."""


def disturbance() -> str | None:
    """A warning about the machine's load before timing; None on an idle machine."""
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load < 0.5 * cpus:
        return None
    have = plural(cpus, "processor")
    return f"{have} and a load of {load:.1f}: other work will show in these times"


@dataclass(frozen=True)
class TimingJob:
    """The subject of a timing.

    inputs: an .npz file with `in.<name>` arrays. dims: symbolic extents. models: files other than
    `model`, by engine. options: additional keywords, by engine. worker: the module that serves.
    callers: concurrent calls, each on `threads`.
    """

    name: str
    model: Path
    inputs: Path
    threads: int
    dims: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, Path] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    worker: str = "tilewright.cli.worker"
    callers: int = 1

    @property
    def cpus(self) -> list[int]:
        """The processors: one for each thread of each caller, if there are enough."""
        most = max(self.threads, len(os.sched_getaffinity(0)))
        return choose_cpus(min(self.threads * self.callers, most))


class EngineProcess:
    """The client's end of one `tilewright.cli.worker` process; stopped between its rounds."""

    def __init__(self, engine: str, task: TimingJob) -> None:
        argument = {
            "engine": engine,
            "model": str(task.models.get(engine, task.model).resolve()),
            "inputs": str(task.inputs.resolve()),
            "threads": task.threads,
            "cpus": task.cpus,
            "dims": dict(task.dims),
            "options": dict(task.options.get(engine, {})),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", task.worker, json.dumps(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=child_environment(OMP_NUM_THREADS=str(task.threads)),
        )

    def ready(self) -> float:
        """Wait until the model is loaded; return the seconds it took. Raises EngineFailed."""
        return float(self._answer()["load_seconds"])

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and return its answer; then the process is stopped again.

        A stopped process cannot spin: idle pools of one engine do not disturb the other's round.
        Raises EngineFailed.
        """
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise EngineFailed("the process ended") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EngineFailed(f"the process ended with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineFailed(answer["error"])
        self.process.send_signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def working(engine: str, task: TimingJob) -> Iterator[EngineProcess]:
    """A worker for the length of a with-block."""
    worker = EngineProcess(engine, task)
    try:
        yield worker
    finally:
        worker.close()


def difference(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest |got - expected| over the outputs, each relative to its expected peak.

    Raises ValueError if the numbers of outputs or their shapes differ; nan if one is nan and the
    other is not.
    """
    if len(got) != len(expected):
        raise ValueError(f"{plural(len(got), 'output')}, expected {len(expected)}")
    worst = 0.0
    for index, (a, b) in enumerate(zip(got, expected)):
        if a.shape != b.shape:
            raise ValueError(f"output {index} has shape {a.shape}, expected {b.shape}")
        if b.size == 0:
            continue
        a64, b64 = a.astype(np.float64), b.astype(np.float64)
        finite = np.abs(b64[np.isfinite(b64)])
        scale = float(finite.max(initial=0.0)) or 1.0
        same = (a64 == b64) | (np.isnan(a64) & np.isnan(b64))
        gap = np.abs(np.where(same, 0.0, a64) - np.where(same, 0.0, b64)) / scale
        worst = max(worst, float(gap.max())) if not np.isnan(gap).any() else math.nan
    return worst


@dataclass
class RoundTable:
    """One network at one thread count: per engine, the rounds' medians in milliseconds.

    percentiles: the same for the slow calls, medians over the rounds of p95 and p99. error: largest
    difference of the outputs from the float64 reference if `referenced`, else from the last
    engine's, relative to the peak. failed: engine -> why it has no times. facts: the machine, time
    and sources of the measurement. callers: concurrent calls. rates: if there are several, the
    calls per second of each round, by engine.
    """

    network: str
    threads: int
    engines: list[str]
    times: dict[str, list[float]] = field(default_factory=dict)
    load_seconds: dict[str, float] = field(default_factory=dict)
    percentiles: dict[str, dict[str, float]] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    referenced: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    key: str = ""
    callers: int = 1
    rates: dict[str, list[float]] = field(default_factory=dict)

    def median(self, engine: str) -> float | None:
        """Median over the rounds of an engine's milliseconds."""
        times = self.times.get(engine)
        return statistics.median(times) if times else None

    def ratios(self, peer: str) -> list[float]:
        """Per round, the speedup of the first engine over `peer`.

        With several callers, it is that of calls per second.
        """
        if self.callers > 1:
            ours, theirs = self.rates.get(self.engines[0], []), self.rates.get(peer, [])
            return [o / t for o, t in zip(ours, theirs)]
        ours, theirs = self.times.get(self.engines[0], []), self.times.get(peer, [])
        return [t / o for o, t in zip(ours, theirs)]

    def speed(self, peer: str) -> float | None:
        """Median of the per-round ratios; above 1 the first engine is faster."""
        ratios = self.ratios(peer)
        return statistics.median(ratios) if ratios else None


def labels(engines: Sequence[str]) -> list[str]:
    """Names for the columns: an engine given twice (a null test) gets a number."""
    return [f"{e}#{i + 1}" if e in engines[:i] else e for i, e in enumerate(engines)]


def measure(
    task: TimingJob,
    engines: Sequence[str],
    rounds: int,
    seconds: float,
    reference: Sequence[Array] | None = None,
) -> RoundTable:
    """Times the engines on one model, round by round, the order swapped each round.

    reference: float64 outputs, if there are any. An engine that fails is noted in the row and left
    out; the others are still timed.
    """
    names = labels(engines)
    row = RoundTable(task.name, task.threads, names, callers=task.callers)
    row.referenced = reference is not None
    command = _round(task, seconds)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers: dict[str, EngineProcess] = {}
        tails: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        before: dict[str, list[Array]] = {}
        after: dict[str, list[Array]] = {}

        def attempt(name: str, action: Callable[[], None]) -> None:
            try:
                action()
            except EngineFailed as failure:
                row.failed[name] = str(failure)
                row.times.pop(name, None)
                workers.pop(name, None)

        def start(name: str, worker: EngineProcess) -> None:
            row.load_seconds[name] = worker.ready()
            before[name] = _outputs(worker, scratch / f"{len(before)}.npz")
            workers[name] = worker
            row.times[name] = []

        def run(name: str) -> None:
            answer = workers[name].ask(**command)
            _take(row, name, answer)
            # A worker from older sources, as benchmarks.commits starts it, returns only its median.
            if answer.keys() >= set(PERCENTILES):
                tails[name].append(answer)

        def finish(name: str) -> None:
            after[name] = _outputs(workers[name], scratch / "after.npz")

        for name, engine in zip(names, engines):
            worker = stack.enter_context(working(engine, task))
            attempt(name, partial(start, name, worker))
        for number in range(rounds):
            events.emit("round", total=rounds)
            for name in sorted(workers, key=names.index, reverse=number % 2 == 1):
                attempt(name, partial(run, name))
        for name in list(workers):
            attempt(name, partial(finish, name))
    row.percentiles = {name: _typical(found) for name, found in tails.items() if found}
    _compare(row, before, reference)
    _compare(row, after, reference)
    return row


def _round(task: TimingJob, seconds: float) -> dict[str, Any]:
    """A worker's task in a round: repeated calls, single or concurrent."""
    if task.callers == 1:
        return {"do": "round", "seconds": seconds}
    return {"do": "together", "seconds": seconds, "callers": task.callers}


def _take(row: RoundTable, name: str, answer: Mapping[str, Any]) -> None:
    """Record the times of a round."""
    row.times[name].append(answer["ms"])
    if "rate" in answer:
        row.rates.setdefault(name, []).append(answer["rate"])


def _typical(tails: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Each percentile of an engine's calls: the median of those of its rounds."""
    return {p: statistics.median(tail[p] for tail in tails) for p in PERCENTILES}


def _outputs(worker: EngineProcess, path: Path) -> list[Array]:
    count = worker.ask(do="outputs", path=str(path))["outputs"]
    with np.load(path) as archive:
        return [archive[f"out.{i}"] for i in range(count)]


def _compare(
    row: RoundTable,
    outputs: dict[str, list[Array]],
    reference: Sequence[Array] | None,
) -> None:
    """Set the difference of the outputs from the reference, else from the last engine's.

    The larger one counts: outputs are read before the rounds and after them.
    """
    last = outputs.get(row.engines[-1])
    expected = reference if reference is not None else last
    for name, values in outputs.items():
        if expected is None or values is expected:
            continue
        try:
            found = difference(values, expected)
        except ValueError as problem:
            row.failed[name] = str(problem)
            row.times.pop(name, None)
            continue
        # The larger of both; NaN stays.
        row.error[name] = float(np.maximum(found, row.error.get(name, 0.0)))
