"""A worker: receives programs and runs each in a fork, which may crash, hang, or exhaust memory.

`python -m tilewright.tune.measure.worker FD CPUS`: FD is a socket for requests, each with the files
of an artifact and of a reference. It imports the runtime and no compiler. It ends whenever the
other side does, and its forks end with it.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from tilewright.base.guarded import Guarded, report_faults
from tilewright.tune.measure.anchor import anchor, best_of
from tilewright.tune.measure.options import Limits, Timing
from tilewright.tune.measure.priority import enter_realtime
from tilewright.tune.measure.reference import ReferenceCase, unpack
from tilewright.tune.measure.trial import MeasuredTrial, outcome

MESSAGE: Final = 1 << 16  # bytes of a request, and of a trial's answer
_DEATH_OF_PARENT: Final = 1  # PR_SET_PDEATHSIG of prctl(2)
_LITTLE: Final = 64 << 20  # a fault with less than this left counts as out of memory
_SPARE: Final = 256 << 20  # to report it
_CACHES: Final = "/sys/devices/system/cpu/cpu{}/cache"


class Worker:
    """Serves one socket. cases: of the last reference received."""

    def __init__(self, channel: socket.socket, cpus: set[int]) -> None:
        self.channel = channel
        self.anchor = anchor()
        self.floor = best_of(self.anchor)
        self.cpus = cpus
        self.flood = np.ones(0, np.int64)
        self.cases: list[ReferenceCase] = []

    def serve(self) -> None:
        """Answer requests until the other side closes."""
        self._answer({"floor": self.floor})
        os.dup2(1, 2)  # discard what programs print
        while True:
            data, files, _, _ = socket.recv_fds(self.channel, MESSAGE, 2)
            if not data:
                return
            request = json.loads(data)
            if len(files) > 1:
                self.cases = _cases(files[1])
            if not request["compare"]:
                self.cases = []
            self.fill_flood(Timing(**request["timing"]))
            self.floor = min(self.floor, best_of(self.anchor, 5))
            self._answer(self._trial(request, files[0]))
            for file in files:
                os.close(file)

    def fill_flood(self, timing: Timing) -> None:
        """Allocate the data that is read between two calls."""
        if timing.caches == "network":
            most = _last_cache(min(self.cpus))
            size = most if timing.between is None else min(timing.between, most)
            if self.flood.nbytes != size // 8 * 8:
                self.flood = np.ones(size // 8, np.int64)

    def _answer(self, fields: dict[str, Any]) -> None:
        self.channel.send(json.dumps(fields).encode())

    def _trial(self, request: dict[str, Any], artifact: int) -> dict[str, Any]:
        limits = Limits(**request["limits"])
        start = time.monotonic()
        told, tell = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            os.close(told)
            self._child(parent, request, artifact, tell, limits)
        os.close(tell)
        ended = self._wait(pid, start + limits.seconds)
        _, status = os.waitpid(pid, 0)
        with open(told, "rb") as stream:
            os.set_blocking(told, False)
            data = stream.read(MESSAGE) or b""
        if not ended:
            reason = f"not finished within {limits.seconds:g} s"
            found: dict[str, Any] = {"status": "timeout", "reason": reason}
        else:
            found = _said(data) or _ending(status)
        return found | {"run_seconds": time.monotonic() - start}

    def _wait(self, pid: int, until: float) -> bool:
        """Whether the process ended in time; otherwise it is killed."""
        end, poll = os.pidfd_open(pid), select.poll()
        poll.register(end, select.POLLIN)
        poll.register(self.channel, select.POLLIN)
        try:
            while (left := until - time.monotonic()) > 0:
                ready = {fd for fd, _ in poll.poll(left * 1e3)}
                if end in ready:
                    return True
                if (
                    self.channel.fileno() in ready
                ):  # nothing is sent now, so it was closed
                    os._exit(0)
        finally:
            os.close(end)
        os.kill(pid, signal.SIGKILL)
        return False

    def _child(
        self,
        parent: int,
        request: dict[str, Any],
        artifact: int,
        tell: int,
        limits: Limits,
    ) -> NoReturn:
        """The child's part: writes one line of JSON to `tell`."""
        try:
            ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            self.channel.close()
            places: list[Guarded] = []
            timing = Timing(**request["timing"])
            _limit(limits)
            if timing.realtime:
                enter_realtime(limits.seconds)
            report_faults(lambda: places, lambda text: _tell(tell, _fault(text)))
            trial = MeasuredTrial(
                f"/proc/self/fd/{artifact}",
                self.cases,
                request["threads"],
                timing,
                request["best"],
                self.anchor,
                self.floor,
                self.flood,
            )
            _tell(tell, outcome(trial, places))
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"[:500]
            _tell(tell, {"status": "crash", "reason": reason})
        finally:
            os._exit(0)


def _limit(limits: Limits) -> None:
    """Allow this process `limits.memory` more bytes, and no core file.

    The hard limit is higher, so that a process out of memory can still report it.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(s for s in status.splitlines() if s.startswith("VmData:"))
    soft = int(line.split()[1]) * 1024 + limits.memory
    resource.setrlimit(resource.RLIMIT_DATA, (soft, soft + _SPARE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _fault(text: str) -> dict[str, Any]:
    """The status of a fault: code that ignores a failed allocation faults too."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))  # memory to report it with
    try:
        mmap.mmap(-1, _LITTLE + _SPARE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        return {"status": "memory", "reason": f"out of memory; then {text}"}
    return {"status": "crash", "reason": text}


def _tell(to: int, fields: dict[str, Any]) -> None:
    os.write(to, json.dumps(fields).encode())


def _said(data: bytes) -> dict[str, Any] | None:
    """The answer of a trial, if it is complete."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "status" in found else None


def _ending(status: int) -> dict[str, Any]:
    """The status of a process that ended without an answer."""
    if not os.WIFSIGNALED(status):
        return {
            "status": "crash",
            "reason": f"the process ended with code {status >> 8}",
        }
    if os.WTERMSIG(status) == signal.SIGKILL:
        return {
            "status": "memory",
            "reason": "the system killed the process: out of memory",
        }
    name = signal.Signals(os.WTERMSIG(status)).name
    return {"status": "crash", "reason": f"the process ended with {name}"}


def _cases(file: int) -> list[ReferenceCase]:
    """The cases of a reference, as views of the mapped file."""
    size = os.fstat(file).st_size
    return unpack(memoryview(mmap.mmap(file, size, access=mmap.ACCESS_READ)))


def _last_cache(cpu: int) -> int:
    """The size in bytes of a processor's last-level cache; 32 MiB if unknown."""
    sizes = []
    for path in Path(_CACHES.format(cpu)).glob("index*/size"):
        with suppress(OSError, ValueError):
            text = path.read_text(encoding="ascii").strip()
            sizes.append(int(text.removesuffix("K")) * 1024)
    return max(sizes, default=32 << 20)


def main(fd: str, cpus: str) -> None:
    """Serve the socket, on these processors."""
    own = set(map(int, cpus.split(",")))
    os.sched_setaffinity(0, own)
    with socket.socket(fileno=int(fd)) as channel:
        Worker(channel, own).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
