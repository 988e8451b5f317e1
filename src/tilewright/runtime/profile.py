"""The time of each kernel of a model, from the timestamps that native code records."""

from __future__ import annotations

import ctypes
import json
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, Literal

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.text import columns, plural
from tilewright.runtime import abi, instruction_mix
from tilewright.runtime.call import (
    CallCopy,
    CallFrame,
    CallPlan,
    CallValues,
    FallbackCall,
    NativeCall,
    PreparedStep,
    run,
)
from tilewright.runtime.device import HOST, Duration
from tilewright.runtime.device_steps import CopyRun, LaunchRun
from tilewright.runtime.instruction_mix import CAUSES, COUNTS, Mix
from tilewright.runtime.timeline import (
    NO_TIMELINE,
    KernelSpan,
    Log,
    Timeline,
    chrome_trace,
    lanes,
    owners,
)

BETWEEN: Final = "between kernels"
PERCENTILES: Final = (50, 95, 99)
Peaks = tuple[float | None, float | None]  # 10^9 operations and bytes per second
_TRACED: Final = 3  # runs, of which the middle one is kept


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel, copy or host step: mean seconds per call over the middle half of the runs.

    start: total seconds of the rows before this one. share: of the whole run, or of all rows if
    devices are simulated. peak_share: of the roofline bound, or None. mix: the instructions of its
    inner loop, if the code can be decoded. device: where it ran. cycles, clock, simulated: as
    `Duration`, of the median run.
    """

    name: str
    kind: Literal["native", "host", "device"]
    nodes: tuple[str, ...]
    calls: int
    seconds: float
    start: float
    flops: int
    bytes: int
    share: float
    peak_share: float | None
    mix: Mix | None = None
    device: str = HOST
    cycles: int | None = None
    clock: float | None = None
    simulated: bool = False

    @property
    def gflops(self) -> float:
        """Billions of floating-point operations per second."""
        return self.flops / self.seconds / 1e9 if self.seconds > 0 else 0.0

    @property
    def gbs(self) -> float:
        """Billions of bytes read and written per second."""
        return self.bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


_ALWAYS: Final = ("kernel", "us", "share", "GFLOP/s", "GB/s")
Cells = Sequence[str]


def _times(r: KernelTime) -> Cells:
    name = r.name if r.kind == "native" else f"{r.name} ({r.device})"
    microseconds = f"{r.seconds * 1e6:.1f}"
    return [name, microseconds, f"{r.share:.1%}", f"{r.gflops:.1f}", f"{r.gbs:.1f}"]


def _peak(r: KernelTime) -> Cells | None:
    return None if r.peak_share is None else [f"{r.peak_share:.0%}"]


def _counts(r: KernelTime) -> Cells | None:
    return None if r.mix is None else [*map(str, r.mix.counts)]


def _causes(r: KernelTime) -> Cells | None:
    return None if r.mix is None else [*map(str, r.mix.causes)]


def _cycles(r: KernelTime) -> Cells | None:
    return None if r.cycles is None else [f"{r.cycles:,}"]


# Headings of a table's columns and a row's cells; None where they are not known for the row.
# Columns that no row has are left out.
_COLUMNS: Final[Sequence[tuple[Cells, Callable[[KernelTime], Cells | None]]]] = (
    (_ALWAYS, _times),
    (("of peak",), _peak),
    (COUNTS, _counts),
    (CAUSES, _causes),
    (("cycles",), _cycles),
)


@dataclass(frozen=True, slots=True)
class Profile:
    """The rows in order of execution; `total` is the seconds of a whole run.

    Rows and total are means over the same runs, the middle half of all by their time, so that the
    rows and `between` add up to the total. runs: seconds of every run, in order. timeline: one
    real run after them. advice: what to change about the schedule of a function, the most important
    first; None for a model. With it, the table has what slows an inner loop down (CAUSES).
    """

    rows: tuple[KernelTime, ...]
    total: float
    repeat: int
    threads: int
    advice: tuple[str, ...] | None = None
    runs: tuple[float, ...] = ()
    timeline: Timeline = NO_TIMELINE

    def to_json(self) -> str:
        """Everything as JSON text."""
        rows = [{**asdict(r), "gflops": r.gflops, "gbs": r.gbs} for r in self.rows]
        head: dict[str, Any] = {
            "total": self.total,
            "repeat": self.repeat,
            "threads": self.threads,
        }
        head |= {"between": self.between, "percentiles": self._percentiles}
        return json.dumps({**head, "rows": rows, "advice": self.advice}, indent=1)

    @property
    def between(self) -> float | None:
        """Seconds of a run in none of the rows: Python, checks of the call, the stamps themselves.

        None where devices are simulated, whose rows are not part of this machine's time.
        """
        return (
            None if self.simulated else self.total - sum(r.seconds for r in self.rows)
        )

    def percentile(self, share: float) -> float:
        """The seconds within which this share (0 to 1) of the runs ended."""
        return float(np.quantile(self.runs, share))

    def chrome_trace(self) -> dict[str, Any]:
        """One real run for chrome://tracing or Perfetto: a lane for each thread, microseconds."""
        return chrome_trace(self.timeline, self.rows, self.threads)

    def _repr_html_(self) -> str:
        """For notebooks: the table, with a bar for each share."""
        from tilewright.base.html import element, join, share_bar, table

        heading = ("kernel", "us", "share", "GFLOP/s", "GB/s", "of peak", "operators")
        rows = [
            (
                r.name if r.kind == "native" else f"{r.name} ({r.device})",
                f"{r.seconds * 1e6:.1f}",
                join([f"{r.share:.1%}", share_bar(r.share)]),
                f"{r.gflops:.1f}",
                f"{r.gbs:.1f}",
                "" if r.peak_share is None else f"{r.peak_share:.0%}",
                ", ".join(r.nodes),
            )
            for r in sorted(self.rows, key=lambda r: -r.seconds)
        ]
        threads = plural(self.threads, "thread")
        said = (
            f"{self.total * 1e6:.1f} us a run, the middle of {self.repeat}, {threads}"
        )
        notes = (element("p", note) for note in self._notes())
        return join([element("p", said), table(heading, rows, "<><>>><"), *notes])

    def __str__(self) -> str:
        order = sorted(self.rows, key=lambda r: -r.seconds)
        head: list[str] = []
        lines: list[list[str]] = [[] for _ in order]
        for names, cells_of in _COLUMNS:
            found = [cells_of(r) for r in order]
            is_known = names == _ALWAYS or any(found)
            if not is_known or (names == CAUSES and self.advice is None):
                continue
            head.extend(names)
            for line, cells in zip(lines, found, strict=True):
                line.extend(cells or [""] * len(names))
        lines.insert(0, head)
        total = sum(r.seconds for r in self.rows) if self.simulated else self.total
        if self.between is not None:
            cells = [f"{self.between * 1e6:.1f}", f"{self.between / (total or 1):.1%}"]
            lines.append([BETWEEN, *cells] + [""] * (len(head) - 3))
        lines.append(["total", f"{total * 1e6:.1f}"] + [""] * (len(head) - 2))
        return "\n".join([columns(lines, "<" + ">" * len(head)), *self._notes()])

    @property
    def simulated(self) -> tuple[KernelTime, ...]:
        """The rows whose time is computed from the cycles of a simulated machine."""
        return tuple(r for r in self.rows if r.simulated)

    @property
    def _percentiles(self) -> dict[str, float]:
        return {f"p{n}": self.percentile(n / 100) for n in PERCENTILES if self.runs}

    def _notes(self) -> list[str]:
        """How runs differ; which times are simulated, and which are measured; what to try."""
        notes = []
        if len(self.runs) > 1 and not self.simulated:
            said = (f"{n} {s * 1e6:.1f}" for n, s in self._percentiles.items())
            notes.append(f"{len(self.runs)} runs: {', '.join(said)} us")
        for device, clock in dict.fromkeys((r.device, r.clock) for r in self.simulated):
            cycles = sum(r.cycles or 0 for r in self.simulated if r.device == device)
            at = "" if clock is None else f" at {clock / 1e6:g} MHz"
            notes.append(
                f"{device}: {cycles:,} cycles{at}, simulated; other times are measured"
            )
        if self.simulated:
            wall = f"{self.total * 1e6:.1f}"
            notes.append(f"this computer took {wall} us for a run with its simulation")
        return notes + [f"try: {text}" for text in self.advice or ()]


class _Watch:
    """Runs steps and notes (ticks or nanoseconds) when each row began and ended."""

    def __init__(self, stamps: ctypes.Array[ctypes.c_uint64]) -> None:
        self.stamps = stamps
        self.native: list[
            list[tuple[int, int]]
        ] = []  # per run: (begin, end) ticks per kernel
        self.others: list[list[Duration]] = []  # per run: of every other step
        self.edges: list[tuple[int, int]] = []  # (ns, ticks), to relate the clocks

    def begin(self) -> None:
        """A new run."""
        self.native.append([])
        self.others.append([])

    def __call__(self, step: PreparedStep, values: CallValues) -> None:
        start = time.perf_counter_ns()
        event = step.run(values)
        if event is not None:
            event.wait()
            self.others[-1].append(event.duration())
            return
        end = time.perf_counter_ns()
        if isinstance(step, NativeCall):
            for k in step.step.kernels:
                self.native[-1].append(
                    (self.stamps[k.number], self.stamps[k.number + 1])
                )
            if step.step.kernels:
                self.edges.append((start, self.stamps[step.step.kernels[0].number]))
                self.edges.append((end, self.stamps[step.step.kernels[-1].number + 1]))
        else:
            self.others[-1].append(Duration((end - start) * 1e-9))

    def seconds_per_tick(self) -> float:
        """What the two clocks say from each run to the one half of all runs later: the median.

        A pause between the reading of one clock and of the other falls on few of them.
        """
        if not self.edges:
            return 1e-9
        runs = len(self.native)
        later = (
            self.edges[runs // 2 * (len(self.edges) // runs) :]
            if runs > 1
            else self.edges[-1:]
        )
        rates = [
            (b - a) / max(1, end - start)
            for (a, start), (b, end) in zip(self.edges, later)
        ]
        return statistics.median(rates) * 1e-9


def measure(
    plan: CallPlan,
    frame: CallFrame,
    values: Sequence[Any],
    repeat: int,
    peaks: Mapping[str, Peaks],
) -> Profile:
    """Run `repeat` times with stamps, after one run to warm up.

    peaks: by device.
    """
    stamps = (ctypes.c_uint64 * (len(plan.model.kernels) + 1))()
    targets = [None] * len(plan.model.outputs)
    watch = _Watch(stamps)
    totals = []
    run(plan, frame, values, targets)
    frame.context[abi.CTX_PROFILE] = ctypes.addressof(stamps)
    try:
        for _ in range(repeat):
            watch.begin()
            start = time.perf_counter_ns()
            run(plan, frame, values, targets, watch)
            totals.append((time.perf_counter_ns() - start) * 1e-9)
        line = _traced(plan, frame, values, stamps, watch.seconds_per_tick())
    finally:
        frame.context[abi.CTX_PROFILE] = 0
    middle = _middle(totals)
    total = statistics.fmean(totals[n] for n in middle)
    rows = _rows(plan, watch, middle, total, peaks)
    return Profile(rows, total, repeat, plan.threads, runs=tuple(totals), timeline=line)


def _middle(totals: Sequence[float]) -> list[int]:
    """The numbers of the runs of the middle half by time; of few runs, the one in the middle."""
    order = sorted(range(len(totals)), key=lambda n: totals[n])
    aside = max(len(order) // 4, (len(order) - 1) // 2 if len(order) < 4 else 0)
    return order[aside : len(order) - aside]


class _Tracer:
    """Runs steps and notes when each row, and each thread's share of it, began and ended."""

    def __init__(
        self, frame: CallFrame, stamps: ctypes.Array[ctypes.c_uint64], tick: float
    ):
        self.stamps = stamps
        self.tick = tick
        self.spans: list[KernelSpan] = []
        self.shares: list[tuple[int, float, float]] = []  # (thread, begin, end)
        self.log = Log()
        self.lost = 0
        self.rows = 0
        self.origin = time.perf_counter_ns()
        pool = frame.plan.pool
        if pool is not None:
            self.log.write_from(frame, pool.traced)

    def __call__(self, step: PreparedStep, values: CallValues) -> None:
        start = time.perf_counter_ns()
        event = step.run(values)
        if event is not None:
            event.wait()
        seconds = (time.perf_counter_ns() - start) * 1e-9
        begin = (start - self.origin) * 1e-9
        if event is not None and isinstance(step, CopyRun | LaunchRun):
            took = event.duration()
            if not took.simulated:
                end, name = begin + seconds, step.step.device
                self.spans.append(
                    KernelSpan(self.rows, end - took.seconds, took.seconds, device=name)
                )
        if not isinstance(step, NativeCall):
            self._add(begin, seconds)
            return
        kernels = step.step.kernels
        first = self.stamps[kernels[0].number] if kernels else 0
        last = self.stamps[kernels[-1].number + 1] if kernels else 0
        # Of a few short runs the clocks' ratio is not exact; a kernel ends before its step does.
        tick = min(self.tick, seconds / max(1, last - first))

        def at(ticks: int) -> float:
            return begin + (ticks - first) * tick

        for k in kernels:
            came, went = at(self.stamps[k.number]), at(self.stamps[k.number + 1])
            self._add(came, went - came)
        shares, lost = self.log.taken()
        self.shares += [(thread, at(a), at(b)) for thread, a, b in shares]
        self.lost += lost

    def _add(self, begin: float, seconds: float) -> None:
        self.spans.append(KernelSpan(self.rows, begin, seconds))
        self.rows += 1

    def timeline(self) -> Timeline:
        """What was noted; a kernel without shares ran on the thread that called."""
        seconds = (time.perf_counter_ns() - self.origin) * 1e-9
        lane = lanes([t for t, _, _ in self.shares], threading.get_native_id())
        parts = [(lane[t], begin, end) for t, begin, end in self.shares]
        kernels = [s for s in self.spans if s.device is None]
        shares = owners(kernels, parts)
        shared = {s.row for s in shares}
        alone = [replace(s, thread=0) for s in kernels if s.row not in shared]
        return Timeline(seconds, (*self.spans, *shares, *alone), self.lost)


def _traced(
    plan: CallPlan,
    frame: CallFrame,
    values: Sequence[Any],
    stamps: ctypes.Array[ctypes.c_uint64],
    tick: float,
) -> Timeline:
    """One real run, the middle one of a few."""
    targets = [None] * len(plan.model.outputs)
    found = []
    try:
        for _ in range(_TRACED):
            tracer = _Tracer(frame, stamps, tick)
            run(plan, frame, values, targets, tracer)
            found.append(tracer.timeline())
    finally:
        frame.context[abi.CTX_LOG] = 0
        if plan.pool is not None:
            frame.context[abi.CTX_PARALLEL] = plan.pool.parallel
    return sorted(found, key=lambda line: line.seconds)[len(found) // 2]


def _rows(
    plan: CallPlan,
    watch: _Watch,
    middle: Sequence[int],
    whole: float,
    peaks: Mapping[str, Peaks],
) -> tuple[KernelTime, ...]:
    """The rows, by the `middle` runs, whose mean is `whole` seconds."""
    tick = watch.seconds_per_tick()
    native = (
        np.array(watch.native, np.uint64)
        .reshape(len(watch.native), -1, 2)
        .astype(float)
    )
    took = (native[..., 1] - native[..., 0]) * tick
    native_seconds = np.mean(took[list(middle)], axis=0)
    others = [_mean(d, middle) for d in zip(*watch.others, strict=True)]
    if any(d.simulated for d in others):
        whole = float(native_seconds.sum() + sum(d.seconds for d in others))
    total = whole or 1.0
    natives, durations = iter(native_seconds), iter(others)
    mixes = instruction_mix.of_kernels(
        plan.model.objects, (k.symbol for k in plan.model.kernels)
    )
    rows: list[KernelTime] = []
    at = 0.0
    repeat = len(watch.native)
    for step in plan.steps:
        if isinstance(step, NativeCall):
            for k in step.step.kernels:
                s = max(0.0, float(next(natives)))
                peak = least_share(k.flops, k.bytes, s, peaks.get(HOST))
                work = (k.flops, k.bytes, s / total, peak, mixes.get(k.symbol))
                rows.append(KernelTime(k.name, "native", k.nodes, repeat, s, at, *work))
                at += s
            continue
        rows.append(_other(step, next(durations), repeat, at, total, peaks))
        at += rows[-1].seconds
    return tuple(rows)


def _mean(durations: Sequence[Duration], middle: Sequence[int]) -> Duration:
    """Of the middle runs; a simulated one, which has cycles, as it was in one of them."""
    first = durations[middle[len(middle) // 2]]
    if first.simulated:
        return first
    return replace(
        first, seconds=statistics.fmean(durations[n].seconds for n in middle)
    )


def _other(
    step: PreparedStep,
    took: Duration,
    repeat: int,
    at: float,
    total: float,
    peaks: Mapping[str, Peaks],
) -> KernelTime:
    """The row of a step that is not a native call; only launches have a share of a peak."""
    peak = None
    kind: Literal["host", "device"] = "host"
    device, flops, moved = HOST, 0, 0
    nodes: tuple[str, ...] = ()
    match step:
        case FallbackCall():
            name, nodes = step.step.op, (step.step.node,)
        case LaunchRun():
            record = step.step
            kind, device, name, nodes = (
                "device",
                record.device,
                record.name,
                record.nodes,
            )
            flops, moved = record.flops, record.bytes
            peak = least_share(flops, moved, took.seconds, peaks.get(device))
        case CopyRun():
            kind, device, moved = (
                "device",
                step.step.device,
                step.step.target.tensor.nbytes,
            )
            way = "to" if step.step.inward else "from"
            name = f"copy {step.step.source.tensor.name} {way} {device}"
        case CallCopy():
            name = f"copy {step.step.target.tensor.name}"
        case NativeCall():
            raise AssertionError("a native call has a row for each of its kernels")
    return KernelTime(
        name, kind, nodes, repeat, took.seconds, at, flops, moved, took.seconds / total,
        peak, None, device, took.cycles, took.clock, took.simulated,
    )  # fmt: skip


def least_share(
    flops: int, nbytes: int, seconds: float, peaks: Peaks | None
) -> float | None:
    """The least seconds that a machine with these peaks could take, by those it took."""
    known = [n / (p * 1e9) for n, p in zip((flops, nbytes), peaks or ()) if p]
    return max(known) / seconds if known and seconds > 0 else None
