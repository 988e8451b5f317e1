"""A persistent pytest (a plugin): it collects once, and runs chosen tests in a fork per fault.

A fault only costs its tests: startup and collection take longer than most of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final

import pytest

from tilewright.base.dataclass import dataclass
from tilewright.testing.mutation.live import Functions

# Of the environment: the files that it reads requests from and writes answers to.
PIPES: Final = "_TILEWRIGHT_MUTATION_PIPES"
# Exit statuses of a fork, in addition to pytest's own.
NOT_REPLACED: Final = 101
OUT_OF_TIME: Final = 102
START: Final = 300.0  # seconds to come up and collect, on a busy machine


@dataclass(frozen=True, slots=True)
class MutantRequest:
    """tests: by their names, in order; seconds: that they may take.

    path: of the file with the fault, `after`; `before` is what the process imported.
    """

    tests: Sequence[str]
    seconds: float
    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class MutantAnswer:
    """status: pytest's, or one of the above. failed: the first test that did."""

    status: int
    failed: str


class WaitingPytest:
    """A pytest that has collected some tests, seen from outside."""

    def __init__(
        self,
        root: Path,
        tests: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        reads, self._requests = os.pipe()
        self._answers, writes = os.pipe()
        command = [*PYTEST, "-p", __name__, *tests]
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with this object
        self._process = subprocess.Popen(
            command, cwd=root, env={**environment, PIPES: f"{reads} {writes}"},
            pass_fds=(reads, writes), stdout=self._said, stderr=self._said,
            start_new_session=True,
        )  # fmt: skip
        os.close(reads)
        os.close(writes)
        self._lines: IO[str] = os.fdopen(self._answers, encoding="utf-8")

    def ask(self, request: MutantRequest) -> MutantAnswer:
        """Run the tests with the fault. Raises RuntimeError if pytest did not start."""
        message = json.dumps(asdict(request)) + "\n"
        with contextlib.suppress(BrokenPipeError):  # there will be no answer
            _write(self._requests, message.encode())
        if not select.select([self._answers], [], [], START + request.seconds)[0]:
            raise RuntimeError("pytest did not start in time")
        line = self._lines.readline()
        if not line:
            self._said.seek(0)
            raise RuntimeError(f"pytest ended: {self._said.read()[-2000:]}")
        return MutantAnswer(**json.loads(line))

    def close(self) -> None:
        """End it."""
        os.close(self._requests)
        self._lines.close()
        self._said.close()
        self._process.kill()
        self._process.wait()


PYTEST: Final = (
    sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--no-header",
    "-p", "no:cacheprovider",
)  # fmt: skip


def _write(file: int, message: bytes) -> None:
    while message:
        message = message[os.write(file, message) :]


class _Server:
    """Answers requests where pytest would run the tests; a fork continues and runs them."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = os.fdopen(requests, encoding="utf-8")
        self._answers = answers
        self._failed = ""
        self._child = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # what could not be collected ends it
        functions = Functions()
        for line in self._requests:
            request = MutantRequest(**json.loads(line))
            reads, writes = os.pipe()
            pid = os.fork()
            if not pid:
                os.setsid()
                os.close(reads)
                self._answers = writes
                self._begin(session, functions, request)
                return None  # and pytest runs what is left of the session
            os.close(writes)
            self._answer(pid, reads, request.seconds)
        return True

    def _answer(
        self,
        pid: int,
        reads: int,
        seconds: float,
    ) -> None:
        """Wait for the fork, and send its report and exit status."""
        ended = os.pidfd_open(pid)
        in_time = select.select([ended], [], [], seconds)[0]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # and what its tests started
        _, status = os.waitpid(pid, 0)
        os.close(ended)
        os.set_blocking(reads, False)
        with os.fdopen(reads, "rb") as said:
            failed = (said.read() or b"").decode()
        if in_time:
            code = os.waitstatus_to_exitcode(status)
        else:
            code = OUT_OF_TIME
        answer = asdict(MutantAnswer(code, failed))
        message = json.dumps(answer).encode() + b"\n"
        _write(self._answers, message)

    def _begin(
        self,
        session: pytest.Session,
        functions: Functions,
        request: MutantRequest,
    ) -> None:
        self._child = True
        if not functions.replace(request.path, request.before, request.after):
            os._exit(NOT_REPLACED)
        order = {name: n for n, name in enumerate(request.tests)}
        kept = [item for item in session.items if item.nodeid in order]
        session.items[:] = sorted(kept, key=lambda item: order[item.nodeid])
        session.config.option.maxfail = 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._failed:
            self._failed = report.nodeid
            message = report.nodeid.encode()
            _write(self._answers, message)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if self._child:
            os._exit(int(exitstatus))


def pytest_configure(config: pytest.Config) -> None:
    """Stay running if the environment names the files."""
    if PIPES in os.environ:
        reads, writes = map(int, os.environ.pop(PIPES).split())
        config.pluginmanager.register(_Server(reads, writes))
