"""A fleet on this machine: a scheduler and workers as processes that end with this one.

They notice its end by the end of their standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

from tilewright.base.errors import ExecutionError
from tilewright.runtime.threads import choose_cpus
from tilewright.tune.measure.slot import single_threaded

Worker = tuple[subprocess.Popen[str], str]


class LocalFleet:
    """A scheduler and `count` workers, each with one place of `threads` physical cores.

    address: of the scheduler. addresses: of the initial workers. Raises InputError if there are not
    enough cores, ExecutionError if a process does not start.
    """

    def __init__(self, count: int, threads: int = 1, device: str = "cpu") -> None:
        cpus = choose_cpus(count * threads)
        self.processes: list[subprocess.Popen[str]] = []
        self.address = ""
        self._cpus: dict[subprocess.Popen[str], Sequence[int]] = {}
        try:
            scheduler = self._start(["scheduler", "--port", "0"], cpus)
            self.address = _address(scheduler)
            self._given = ["--device", f"{device}=1", "--threads", str(threads)]
            for n in range(count):
                own = cpus[n * threads : (n + 1) * threads]
                self._cpus[self._start_worker(own)] = own
            self.addresses = [_address(worker) for worker in self.workers]
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> list[subprocess.Popen[str]]:
        """The workers' processes."""
        return self.processes[1:]

    def replace(self, worker: subprocess.Popen[str]) -> Worker:
        """Start a replacement for a worker that ended; returns it and its address."""
        self.processes.remove(worker)
        _close(worker)
        cpus = self._cpus.pop(worker)
        another = self._start_worker(cpus)
        self._cpus[another] = cpus
        return another, _address(another)

    def close(self) -> None:
        """Stop all processes."""
        for process in reversed(self.processes):
            process.kill()
            process.wait()
            _close(process)
        self.processes.clear()

    def __enter__(self) -> LocalFleet:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start_worker(self, cpus: Sequence[int]) -> subprocess.Popen[str]:
        return self._start(["worker", self.address, *self._given], cpus)

    def _start(
        self, arguments: Sequence[str], cpus: Sequence[int]
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tilewright", "fleet", *arguments]
        made = subprocess.Popen(
            [*command, "--json", "--until-input-ends"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=single_threaded(),
            start_new_session=True,  # Ctrl-C goes to this process only, which stops the others
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
        self.processes.append(made)
        return made


def _close(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _address(process: subprocess.Popen[str]) -> str:
    """The address that a process prints when it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        return str(json.loads(line)["address"])
    except (ValueError, KeyError, TypeError):
        raise ExecutionError(
            "a part of the local fleet did not start",
            where="fleet",
            hint="run `tilewright fleet scheduler` to see why",
        ) from None
