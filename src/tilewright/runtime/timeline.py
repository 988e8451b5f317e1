"""One real run: when each kernel began and ended, and what every thread did meanwhile."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.runtime import abi

if TYPE_CHECKING:
    from tilewright.runtime.call import CallFrame
    from tilewright.runtime.profile import KernelTime

_PARTS: Final = 1 << 16  # that a log has room for; later ones are counted alone
_JOINED: Final = 2e-6  # seconds between two parts of a thread that are one span
_US: Final = 1e6


@dataclass(frozen=True, slots=True)
class KernelSpan:
    """A kernel, or the share of it that one thread ran: seconds from the begin of the run.

    row: the index of the profile's row. thread: None for the whole kernel, 0 for the share of the
    calling thread, 1 and up for threads of the pool. device: whose clock has its length, which
    ends when the host knew of the end; None: the host's clock.
    """

    row: int
    start: float
    seconds: float
    thread: int | None = None
    device: str | None = None

    @property
    def end(self) -> float:
        """When it ended."""
        return self.start + self.seconds


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of one run that took `seconds`; lost: shares that the log had no room for."""

    seconds: float
    spans: tuple[KernelSpan, ...]
    lost: int = 0

    @property
    def threads(self) -> tuple[int, ...]:
        """Those that ran a share."""
        return tuple(sorted({s.thread for s in self.spans if s.thread is not None}))

    def moved(self, seconds: float, rows: int) -> Timeline:
        """The run as part of a longer one: shifted by this many seconds, with `rows` rows before
        its own."""
        spans = (
            replace(s, start=s.start + seconds, row=s.row + rows) for s in self.spans
        )
        return replace(self, spans=tuple(spans))


NO_TIMELINE: Final = Timeline(0.0, ())


class Log:
    """Room for the parts of parallel regions; see `runtime.abi`."""

    def __init__(self, room: int = _PARTS) -> None:
        self._words = (ctypes.c_uint64 * (abi.LOG_FIRST + abi.LOG_PART * room))()
        self._words[abi.LOG_ROOM] = room

    def write_from(self, frame: CallFrame, traced: int) -> None:
        """From now on the regions of the frame's calls are logged."""
        frame.context[abi.CTX_LOG] = ctypes.addressof(self._words)
        frame.context[abi.CTX_PARALLEL] = traced

    def taken(self) -> tuple[list[tuple[int, int, int]], int]:
        """(thread, begin, end) of every part since the last time, and how many were lost."""
        count, room = self._words[abi.LOG_COUNT], self._words[abi.LOG_ROOM]
        self._words[abi.LOG_COUNT] = 0
        kept = min(count, room)
        flat = self._words[abi.LOG_FIRST : abi.LOG_FIRST + abi.LOG_PART * kept]
        return list(zip(*[iter(flat)] * abi.LOG_PART, strict=True)), count - kept


def lanes(threads: Sequence[int], caller: int) -> dict[int, int]:
    """The system's numbers of threads to lanes: 0 is the caller, the pool's follow."""
    others = sorted({*threads} - {caller})
    return {caller: 0} | {thread: n for n, thread in enumerate(others, 1)}


def chrome_trace(
    line: Timeline, rows: Sequence[KernelTime], threads: int
) -> dict[str, Any]:
    """A run for chrome://tracing and Perfetto: a lane for the model, for each thread and device."""
    pid = os.getpid()
    titles = {0: "model"} | {n + 1: _title(n) for n in line.threads}
    names = sorted({s.device for s in line.spans if s.device is not None})
    clocks = {device: n for n, device in enumerate(names, max(titles) + 1)}
    titles |= {n: f"{device}, by its clock" for device, n in clocks.items()}
    events = [_meta("process_name", pid, 0, "tilewright")]
    events += [_meta("thread_name", pid, n, title) for n, title in titles.items()]
    whole = {
        "name": "model_run",
        "cat": "Session",
        "ts": 0.0,
        "dur": line.seconds * _US,
    }
    events.append(
        {**whole, "ph": "X", "pid": pid, "tid": 0, "args": {"threads": threads}}
    )
    for span in line.spans:
        lane = 0 if span.thread is None else span.thread + 1
        tid = lane if span.device is None else clocks[span.device]
        events.append(_event(span, rows[span.row], pid, tid))
    return {"traceEvents": events, "displayTimeUnit": "ms", "lostShares": line.lost}


def _title(thread: int) -> str:
    return f"worker {thread}" if thread else "caller"


def _meta(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _event(span: KernelSpan, row: KernelTime, pid: int, tid: int) -> dict[str, Any]:
    category = "Node" if row.kind == "host" else "Kernel"
    args: dict[str, Any] = {"op_name": ", ".join(row.nodes), "provider": row.kind}
    if span.thread is None:
        args |= {"flops": row.flops, "bytes": row.bytes, "gflops": row.gflops}
    return {
        "name": row.name,
        "cat": category if span.thread is None else "Share",
        "ph": "X",
        "ts": span.start * _US,
        "dur": span.seconds * _US,
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def owners(
    spans: Sequence[KernelSpan], parts: Sequence[tuple[int, float, float]]
) -> list[KernelSpan]:
    """Parts (lane, start, end) as spans of the kernel during which they began.

    Those of a lane in a kernel that follow one another at once are one span.
    """
    kernels = sorted(spans, key=lambda s: s.start)
    at = 0
    found: list[KernelSpan] = []
    last: dict[int, KernelSpan] = {}
    for lane, start, end in sorted(parts, key=lambda s: s[1]):
        while at + 1 < len(kernels) and kernels[at + 1].start <= start:
            at += 1
        row = kernels[at].row
        before = last.get(lane)
        if before and before.row == row and start - before.end <= _JOINED:
            last[lane] = replace(before, seconds=end - before.start)
            continue
        if before:
            found.append(before)
        last[lane] = KernelSpan(row, start, end - start, lane)
    return sorted([*found, *last.values()], key=lambda s: s.start)
