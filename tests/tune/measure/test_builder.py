"""Builds in processes of their own: what they give, and what becomes of those that fail."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.tune.measure.test_local import _runs
from tests.waiting import PATIENCE, until
from tilewright.base.errors import CompileError
from tilewright.runtime.threads import affinity
from tilewright.tune.measure.builder import BuildResult, ProgramBuilder
from tilewright.tune.measure.options import Limits

LIMITS = Limits(seconds=PATIENCE, memory=256 << 20)


def built(*jobs: Callable[[], bytes], limits: Limits = LIMITS) -> list[BuildResult]:
    found = dict(ProgramBuilder(limits=limits).build(enumerate(jobs)))
    assert sorted(found) == list(range(len(jobs)))
    return [found[n] for n in range(len(jobs))]


def test_every_job_gives_its_data() -> None:
    large = bytes(range(256)) * 4096  # more than a pipe holds
    found = built(*(lambda n=n: b"%d" % n for n in range(5)), lambda: large)
    assert [m.data for m in found] == [b"0", b"1", b"2", b"3", b"4", large]
    assert all(m.failure == "" and m.seconds > 0 for m in found)


def test_builds_are_in_other_processes() -> None:
    pids = {m.data for m in built(*[lambda: b"%d" % os.getpid()] * 3)}
    assert len(pids) == 3 and b"%d" % os.getpid() not in pids


def refuses() -> NoReturn:
    raise CompileError("too\nlarge")


def crashes() -> bytes:
    faulthandler.disable()
    return ctypes.string_at(8)


def takes() -> bytes:
    mmap.mmap(-1, 2 * LIMITS.memory, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return b""


BAD = {
    refuses: "CompileError: too large",
    crashes: "the compiler's process ended with SIGSEGV",
    takes: "Cannot allocate memory",
    lambda: os._exit(4): "the compiler's process ended with code 4",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_build_that_fails_costs_nothing_else(bad: Callable[[], bytes]) -> None:
    failed, good = built(bad, lambda: b"good")
    assert BAD[bad] in failed.failure and failed.data == b""
    assert good.data == b"good"


def test_a_build_that_does_not_end_is_ended() -> None:
    limits = Limits(seconds=0.3)
    [failed] = built(lambda: bytes(_sleep()), limits=limits)
    assert failed.failure == "not finished within 0.3 s" and failed.seconds >= 0.3


def _sleep() -> int:
    time.sleep(PATIENCE)
    return 0


def test_nothing_is_built_while_the_caller_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without processors of its own, no build runs when a result is given."""
    builder, forks = ProgramBuilder(), []
    real = os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(pid := real()) or pid)
    jobs = ((n, lambda: b"") for n in range(5))
    for _ in builder.build(jobs):
        assert not any(_runs(pid) for pid in forks)
    assert len(forks) == 5


def test_builds_go_on_beside_the_caller_on_processors_of_their_own() -> None:
    cpu = min(affinity())
    builder = ProgramBuilder([cpu], LIMITS, ahead=2)
    read, write = os.pipe()

    def waits() -> bytes:
        os.read(read, 1)
        return repr(os.sched_getaffinity(0)).encode()

    found = builder.build([(0, lambda: b"first"), (1, waits), (2, lambda: b"last")])
    assert next(found)[1].data == b"first"
    assert builder.running == 1  # the second was started beside the first
    os.write(write, b".")
    rest = {number: made.data for number, made in found}
    assert rest == {1: b"{%d}" % cpu, 2: b"last"}


def test_builds_that_nobody_waits_for_are_ended() -> None:
    builder = ProgramBuilder([min(affinity())], LIMITS, ahead=2)
    read, write = os.pipe()

    def tells() -> bytes:
        os.write(write, b"%d " % os.getpid())
        return bytes(_sleep())

    found = builder.build([(0, lambda: b""), (1, tells)])
    assert next(found)[0] == 0
    pid = int(os.read(read, 20))
    found.close()
    assert not _runs(pid)


_PARENT = """
import os, sys, time
from tilewright.tune.measure.builder import ProgramBuilder

def hangs():
    print(os.getpid(), flush=True)
    time.sleep(3600)

list(ProgramBuilder().build([(0, hangs)]))
"""


def test_no_build_is_left_when_the_tuner_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.send_signal(signal.SIGKILL)
        until(lambda: not _runs(pid))
