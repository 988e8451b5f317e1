"""Jobs shared among processes: all done, each once, whatever becomes of a process."""

from __future__ import annotations

import io
import os
import signal
import sys
import time

import onnx.parser
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.driver import processes
from tilewright.driver.processes import share, workers


def test_results_come_in_order_from_several_processes() -> None:
    def job(n: int) -> bytes:
        time.sleep(0.005)
        events.emit("did", n=n)
        return f"{n} {os.getpid()}".encode()

    with events.record() as log:
        found = [r.split() for r in share([lambda n=n: job(n) for n in range(40)], 3) if r]
    assert [int(n) for n, _ in found] == list(range(40))
    assert sorted(e.fields["n"] for e in log if e.kind == "did") == list(range(40))
    assert str(os.getpid()).encode() in {pid for _, pid in found}
    assert len({pid for _, pid in found}) > 1


def test_a_job_that_fails_has_no_result() -> None:
    def fails() -> bytes:
        raise ValueError("no")

    assert share([lambda: b"a", fails, lambda: b"b"], 2) == [b"a", None, b"b"]


def test_what_a_killed_process_had_is_missing_only() -> None:
    here = os.getpid()

    def job(n: int) -> bytes:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
        return bytes([n])

    found = share([lambda n=n: job(n) for n in range(20)], 2)
    assert [r for r in found if r is not None] == [
        bytes([n]) for n in range(20) if found[n] is not None
    ]
    assert found.count(None) <= 1


def test_children_end_when_this_process_is_interrupted() -> None:
    here = os.getpid()

    def job() -> bytes:
        if os.getpid() == here:
            raise KeyboardInterrupt
        time.sleep(60)
        return b""

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        share([job] * 8, 2)
    assert time.monotonic() - start < 30
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_interruption_is_seen_where_the_system_reaps_children() -> None:
    here = os.getpid()
    begun, begin = os.pipe()

    def job() -> bytes:
        if os.getpid() == here:
            os.write(begin, b"." * 8)  # now the others may take what is left
            time.sleep(0.2)  # until they have ended
            raise KeyboardInterrupt
        os.read(begun, 1)
        return b""

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt):
            share([job] * 8, 2)
    finally:
        signal.signal(signal.SIGCHLD, before)
        os.close(begun)
        os.close(begin)


@pytest.mark.parametrize("permitted", [0, 1])
def test_a_system_that_permits_no_more_processes(
    permitted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, made = os.fork, []

    def limited() -> int:
        if len(made) == permitted:
            raise BlockingIOError("Resource temporarily unavailable")
        made.append(None)
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    jobs = [lambda n=n: bytes([n]) for n in range(20)]
    assert share(jobs, 4) == [bytes([n]) for n in range(20)]
    assert len(made) == permitted


@pytest.mark.parametrize("how", ["none", "closed"])
def test_a_program_without_standard_output(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", None if how == "none" else closed)
    found = share([lambda n=n: bytes([n]) for n in range(8)], 2)
    assert found == [bytes([n]) for n in range(8)]


def test_nothing_is_forked_beside_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.threading, "active_count", lambda: 1)
    assert [workers(n, 4) for n in (0, 3, 4, 5, 100)] == [1, 1, 4, 4, 4]
    monkeypatch.setattr(processes.threading, "active_count", lambda: 2)
    assert workers(100, 4) == 1


CHAIN = """<ir_version: 10, opset_import: ["" : 21]>
chain (float[8, 24] x, float[24, 40] a, float[40, 16] b, float[16, 48] c) => (float[8, 48] y) {
  p = MatMul(x, a)
  q = Softmax<axis=1>(p)
  r = MatMul(q, b)
  s = Softmax<axis=0>(r)
  t = MatMul(s, c)
  y = Softmax<axis=1>(t)
}"""


def test_a_model_compiled_by_several_processes_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = onnx.parser.parse_model(CHAIN)
    made = []
    for count in (1, 2):
        monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", str(count))
        monkeypatch.setattr(processes.threading, "active_count", lambda: 1)
        with events.record() as log:
            exe = tw.compile(model, cache=False, threads=1)
        kernels = sorted(e.fields["name"] for e in log if e.kind == "kernel")
        made.append((exe.model.objects, exe.model.constants.tobytes(), kernels))
    assert made[0] == made[1]
    assert len(made[0][2]) >= 4
