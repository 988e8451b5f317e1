"""Side-by-side timing: engines in processes of their own, on the same cores, rounds interleaved."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
ROOT = Path(__file__).resolve().parent.parent


class EngineFailed(RuntimeError):
    """An engine could not load or run a model; the text is the engine's own first line."""


def choose_cpus(count: int) -> list[int]:
    """`count` of the processors this process may use, different physical cores first."""
    allowed = sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise ValueError(f"{count} threads asked for, but only CPUs {allowed} may be used")
    seen: set[str] = set()
    first: list[int] = []
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = siblings.read_text(encoding="ascii") if siblings.exists() else str(cpu)
        if core not in seen:
            seen.add(core)
            first.append(cpu)
    return (first + [cpu for cpu in allowed if cpu not in first])[:count]


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment with the repository and its `src` importable, and `extra`."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    joined = os.pathsep.join(p for p in paths if p)
    return {**os.environ, "PYTHONPATH": joined, **(extra or {})}


class Worker:
    """The client's end of one `benchmarks.worker` process; stopped between its rounds."""

    def __init__(self, engine: str, model: Path, inputs: Path, threads: int) -> None:
        cpus = ",".join(map(str, choose_cpus(threads)))
        arguments = [engine, str(model), str(inputs), str(threads), cpus]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=child_environment({"OMP_NUM_THREADS": str(threads)}), cwd=ROOT,
        )  # fmt: skip

    def ready(self) -> float:
        """Waits until the model is loaded; seconds that loading took."""
        return float(self._answer()["load_seconds"])

    def ask(self, **command: Any) -> dict[str, Any]:
        """One command, its answer; the process is stopped again when it has answered.

        A stopped process cannot spin: idle pools of one engine do not disturb the other's round.
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
def working(engine: str, model: Path, inputs: Path, threads: int) -> Iterator[Worker]:
    """A worker for the length of a with-block."""
    worker = Worker(engine, model, inputs, threads)
    try:
        yield worker
    finally:
        worker.close()


def difference(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest |got - expected| over the outputs, each relative to its expected peak.

    Raises ValueError where the numbers of outputs or their shapes differ; nan where one is nan
    and the other is not.
    """
    if len(got) != len(expected):
        raise ValueError(f"{len(got)} outputs where {len(expected)} were expected")
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
class Row:
    """One network at one thread count: per engine, the rounds' medians in milliseconds.

    error: largest difference of the outputs from the last engine's (or from the reference, under
    the name "reference"), relative to the peak. failed: engine -> why it has no times.
    """

    network: str
    threads: int
    engines: list[str]
    times: dict[str, list[float]] = field(default_factory=dict)
    load_seconds: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    key: str = ""

    def ratios(self, peer: str) -> list[float]:
        """Per round, how many times faster the first engine is than `peer`."""
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
    network: str, model: Path, inputs: Path, engines: Sequence[str], threads: int,
    rounds: int, seconds: float, reference: Sequence[Array] | None = None,
) -> Row:  # fmt: skip
    """Times the engines on one model, round by round, the order swapped each round.

    inputs: an .npz file with `in.<name>` arrays. reference: float64 outputs, if there are any.
    An engine that fails is noted in the row and left out; the others are timed all the same.
    """
    names = labels(engines)
    row = Row(network, threads, names)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers: dict[str, Worker] = {}
        outputs: dict[str, list[Array]] = {}
        for name, engine in zip(names, engines):
            worker = stack.enter_context(working(engine, model, inputs, threads))
            try:
                row.load_seconds[name] = worker.ready()
                outputs[name] = _outputs(worker, scratch / f"{len(outputs)}.npz")
                workers[name] = worker
                row.times[name] = []
            except EngineFailed as failure:
                row.failed[name] = str(failure)
        for number in range(rounds):
            for name in sorted(workers, key=names.index, reverse=number % 2 == 1):
                try:
                    row.times[name].append(workers[name].ask(do="round", seconds=seconds)["ms"])
                except EngineFailed as failure:
                    row.failed[name] = str(failure)
                    row.times.pop(name)
                    workers.pop(name)
    _compare(row, outputs, reference)
    return row


def _outputs(worker: Worker, path: Path) -> list[Array]:
    count = worker.ask(do="outputs", path=str(path))["outputs"]
    with np.load(path) as archive:
        return [archive[f"out.{i}"] for i in range(count)]


def _compare(
    row: Row, outputs: dict[str, list[Array]], reference: Sequence[Array] | None
) -> None:  # fmt: skip
    """Fills in how far the outputs are from the reference, else from the last engine's."""
    last = outputs.get(row.engines[-1])
    expected = reference if reference is not None else last
    for name, values in outputs.items():
        if expected is None or values is expected:
            continue
        try:
            row.error[name] = difference(values, expected)
        except ValueError as problem:
            row.failed[name] = str(problem)
            row.times.pop(name, None)


class Rows:
    """Finished rows in a file of JSON lines: a run that was broken off goes on where it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = Row(**json.loads(line))
                except (json.JSONDecodeError, TypeError):
                    continue  # the line being written when the run was broken off
                self.rows[row.key] = row

    def get(self, key: str) -> Row | None:
        """The finished row of this key; one with a failed engine is measured again."""
        row = self.rows.get(key)
        return row if row is not None and not row.failed else None

    def add(self, row: Row) -> None:
        """Appends a row."""
        self.rows[row.key] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers; nan of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def source_hash() -> str:
    """Changes with any source file of the package: old rows are then not taken for new ones."""
    import hashlib

    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "tilewright").rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
