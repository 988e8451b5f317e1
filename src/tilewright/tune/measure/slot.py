"""The parent's side of a worker: starts it, sends it programs, and replaces it if it dies."""

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
from typing import Any, Final

from tilewright.base.child import child_environment
from tilewright.base.errors import ExecutionError
from tilewright.tune.base import Job, Measurement, Status
from tilewright.tune.measure.options import Limits, Timing

_MODULE: Final = "tilewright.tune.measure.worker"
_MESSAGE: Final = 1 << 16
# Seconds after a trial's limit until its worker counts as lost.
_GRACE: Final = 5.0
_START: Final = 60.0  # seconds that a worker may take to start
# Threads started by libraries would move to other processors.
_ALONE: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerSlot:
    """One worker on dedicated processors, and its current job.

    Raises ExecutionError if it cannot be started.
    """

    def __init__(
        self, cpus: Sequence[int], threads: int, timing: Timing, limits: Limits
    ) -> None:
        self.cpus, self.threads = tuple(cpus), threads
        self.timing, self.limits = timing, limits
        self.job: Job | None = None
        self.started = 0
        self._sent = b""  # the reference that the worker has received
        self._begun = 0.0
        self._start()

    @property
    def pid(self) -> int:
        """The PID of the worker."""
        return self._process.pid

    @property
    def until(self) -> float:
        """The deadline for an answer before the worker is lost, by `time.monotonic`."""
        return self._begun + self.limits.seconds + _GRACE

    def fileno(self) -> int:
        """For select: the socket of the answer."""
        return self._channel.fileno()

    def give(self, job: Job, best: float) -> None:
        """Start a job. best: seconds of the best program of its task so far.

        Raises ExecutionError if the worker was lost and cannot be restarted.
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
            pass  # the worker is dead: `take` will notice
        finally:
            for file in files:
                os.close(file)

    def take(self) -> tuple[int, Measurement]:
        """The number and the measurement of the job; a worker that does not answer is killed."""
        job, self.job = self.job, None
        assert job is not None
        answer = self._answer()
        if answer is None:
            self.close()
            run = time.monotonic() - self._begun
            reason = "its worker ended, or did not answer"
            lost = Measurement(Status.LOST, reason=reason, run_seconds=run)
            return job.number, _with_build(lost, job)
        return job.number, _with_build(_measurement(answer), job)

    def close(self) -> None:
        """Kill the worker and its fork; the next job gets a new one."""
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
                env=single_threaded(),
                start_new_session=True,  # Ctrl-C goes to this process only, which stops the others
            )
            theirs.close()
            self._channel, self._sent = ours, b""
            ours.settimeout(_START)
            if self._answer() is None:
                self.close()
                said.seek(0)
                lines = said.read().decode(errors="replace").splitlines()
                last = lines[-1] if lines else f"no answer in {_START:g} s"
                raise ExecutionError(f"a measuring worker does not start: {last}")
        ours.setblocking(False)  # callers wait for answers with select
        self.started += 1

    def _answer(self) -> dict[str, Any] | None:
        """The next message of the worker; None if it is dead, or does not answer in time."""
        with suppress(OSError, ValueError):
            found = json.loads(self._channel.recv(_MESSAGE))
            return found if isinstance(found, dict) else None
        return None


def _file(data: bytes) -> int:
    """An anonymous file with these contents."""
    file = os.memfd_create("tilewright")
    with open(file, "wb", closefd=False) as stream:
        stream.write(data)
    return file


def single_threaded() -> dict[str, str]:
    """The environment of measuring processes: libraries have one thread."""
    return child_environment(**dict.fromkeys(_ALONE, "1"))


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
