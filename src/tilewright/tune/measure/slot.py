"""This side of one worker: starts it, sends it programs, and replaces it when it is gone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from tilewright.base.errors import ExecutionError
from tilewright.tune.base import Job, Measurement, Status
from tilewright.tune.measure.options import Limits, Timing

_MODULE: Final = "tilewright.tune.measure.worker"
_MESSAGE: Final = 1 << 16
# Seconds after a trial's own limit, until its worker counts as lost.
_GRACE: Final = 5.0
_START: Final = 60.0  # seconds that a worker may take to start
# Libraries that start threads of their own would take these to other processors.
_ALONE: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Slot:
    """One worker on processors of its own, and the job that it does now.

    Raises ExecutionError where it cannot be started.
    """

    def __init__(
        self, cpus: Sequence[int], threads: int, timing: Timing, limits: Limits
    ) -> None:
        self.cpus, self.threads = tuple(cpus), threads
        self.timing, self.limits = timing, limits
        self.job: Job | None = None
        self.started = 0
        self._sent = b""  # the reference that the worker has
        self._begun = 0.0
        self._start()

    @property
    def pid(self) -> int:
        """The worker, by the system's number."""
        return self._process.pid

    @property
    def until(self) -> float:
        """When the worker is lost if it has not answered, by `time.monotonic`."""
        return self._begun + self.limits.seconds + _GRACE

    def fileno(self) -> int:
        """For select: the socket on which the answer comes."""
        return self._channel.fileno()

    def give(self, job: Job, best: float) -> None:
        """Start a job. best: seconds of the best program of its task so far.

        Raises ExecutionError where the worker was lost, and none can be started again.
        """
        if self._process.returncode is not None:
            self._start()
        self.job, self._begun = job, time.monotonic()
        request = {
            "threads": self.threads,
            "timing": asdict(self.timing),
            "limits": asdict(self.limits),
            "best": best if best < float("inf") else 1e300,
            "compare": bool(job.expected),
        }
        new = job.expected and job.expected != self._sent
        contents = [job.artifact, job.expected] if new else [job.artifact]
        files = [_file(data) for data in contents]
        try:
            data = json.dumps(request).encode()
            socket.send_fds(self._channel, [data], files)
            self._sent = job.expected or self._sent
        except OSError:
            pass  # it is gone: `take` finds out
        finally:
            for file in files:
                os.close(file)

    def take(self) -> tuple[int, Measurement]:
        """The number and the measurement of the job; a worker that gives none is ended."""
        job, self.job = self.job, None
        assert job is not None
        answer = self._answer()
        if answer is None:
            self.close()
            run = time.monotonic() - self._begun
            reason = "its worker ended, or gave no answer"
            lost = Measurement(Status.LOST, reason=reason, run_seconds=run)
            return job.number, _with_build(lost, job)
        return job.number, _with_build(_measurement(answer), job)

    def close(self) -> None:
        """End the worker and its fork; the next job gets another."""
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile() as said:
            given = [str(theirs.fileno()), ",".join(map(str, self.cpus))]
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, *given],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=[theirs.fileno()],
                env=environment(),
                start_new_session=True,  # Ctrl-C is for this process, which ends the others
            )
            theirs.close()
            self._channel, self._sent = ours, b""
            ours.settimeout(_START)
            if self._answer() is None:
                self.close()
                said.seek(0)
                lines = said.read().decode(errors="replace").splitlines()
                last = lines[-1] if lines else f"no answer in {_START:g} s"
                raise ExecutionError(f"a worker to measure with does not start: {last}")
        ours.setblocking(False)  # who waits for an answer selects
        self.started += 1

    def _answer(self) -> dict[str, Any] | None:
        """What the worker says next; None where it is gone, or says nothing in time."""
        with suppress(OSError, ValueError):
            found = json.loads(self._channel.recv(_MESSAGE))
            return found if isinstance(found, dict) else None
        return None


def _file(data: bytes) -> int:
    """A file without a name that has these contents."""
    file = os.memfd_create("tilewright")
    with open(file, "wb", closefd=False) as stream:
        stream.write(data)
    return file


def environment() -> dict[str, str]:
    """That of processes that measure: this package, and no threads of other libraries."""
    package = str(Path(__file__).resolve().parents[3])
    paths = [package, os.environ.get("PYTHONPATH", "")]
    joined = os.pathsep.join(p for p in paths if p)
    return {**os.environ, "PYTHONPATH": joined, **dict.fromkeys(_ALONE, "1")}


def _measurement(answer: dict[str, Any]) -> Measurement:
    return Measurement(
        Status(answer["status"]),
        tuple(answer.get("rounds", ())),
        answer.get("reason", ""),
        answer.get("noise", 1.0),
        run_seconds=answer["run_seconds"],
    )


def _with_build(found: Measurement, job: Job) -> Measurement:
    return replace(found, build_seconds=job.build_seconds)
