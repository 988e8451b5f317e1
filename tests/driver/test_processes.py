"""Jobs shared among processes: all done, each once, whatever becomes of a process."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

import tilewright as tw
from tests.interrupts import at_every_moment
from tests.waiting import PATIENCE
from tilewright.base import events
from tilewright.driver import kernels as compiler_module
from tilewright.driver import processes
from tilewright.driver.processes import briefly, can_fork, meanwhile, share, workers


def test_results_come_in_order_from_several_processes() -> None:
    here, met = os.getpid(), False
    pipes = {side: os.pipe() for side in ("parent", "child")}

    def job(n: int) -> bytes:
        """The first of the parent and of a child wait for one another: both do some."""
        nonlocal met
        if not met:
            met = True
            mine, other = (
                ("parent", "child") if os.getpid() == here else ("child", "parent")
            )
            os.write(pipes[mine][1], b"..")
            os.read(pipes[other][0], 1)
        events.emit("did", n=n)
        return f"{n} {os.getpid()}".encode()

    with events.record() as log:
        found = [
            r.split() for r in share([lambda n=n: job(n) for n in range(40)], 3) if r
        ]
    assert [int(n) for n, _ in found] == list(range(40))
    assert sorted(e.fields["n"] for e in log if e.kind == "did") == list(range(40))
    assert str(os.getpid()).encode() in {pid for _, pid in found}
    assert len({pid for _, pid in found}) > 1
    for pipe in pipes.values():
        for end in pipe:
            os.close(end)


def test_without_processes_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in functions of `atexit`, since Python 3.12."""

    def refuse() -> int:
        raise RuntimeError("can't fork at interpreter shutdown")

    monkeypatch.setattr(os, "fork", refuse)
    assert share([lambda: b"a", lambda: b"b"], 2) == [b"a", b"b"]


def test_one_process_does_any_number_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe takes before somebody reads it."""
    monkeypatch.delattr(os, "pipe")
    assert share([lambda: b"a"] * 3, 1) == [b"a"] * 3


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


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were forked."""
    fork, numbers = os.fork, []

    def noting() -> int:
        number = fork()
        numbers.append(number)
        return number

    monkeypatch.setattr(os, "fork", noting)
    return numbers


def are_gone(numbers: list[int]) -> bool:
    """They have ended and were waited for."""
    return not any(Path(f"/proc/{number}").exists() for number in numbers)


def test_children_end_when_this_process_is_interrupted(made: list[int]) -> None:
    here = os.getpid()

    def job() -> bytes:
        if os.getpid() == here:
            raise KeyboardInterrupt
        time.sleep(PATIENCE)
        return b""

    with pytest.raises(KeyboardInterrupt):
        share([job] * 8, 2)
    assert made and are_gone(made)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "function", [processes.share, processes.fork], ids=lambda f: f.__name__
)
def test_an_interrupt_at_any_moment_leaves_no_process(
    function: Callable[..., Any], step: int, made: list[int]
) -> None:
    here = os.getpid()
    escaped, escape = os.pipe()
    os.set_blocking(escaped, False)

    def action() -> None:
        made.clear()
        try:
            assert share([lambda n=n: bytes([n]) for n in range(4)], 3) == [
                *map(bytes, zip(range(4)))
            ]
        finally:
            if os.getpid() != here:  # a child came out of where it works
                os.write(escape, b".")
                os._exit(1)

    for moment in at_every_moment(function, action, step):
        assert are_gone(made), f"interrupted at moment {moment}"
    assert moment > 8 and len(made) == 2
    with pytest.raises(BlockingIOError):
        os.read(escaped, 1)
    os.close(escaped)
    os.close(escape)


def test_a_child_does_not_outlive_its_parent() -> None:
    """A parent that is killed cannot end its child, which ends by itself after its present job."""
    (begun, begin), (go, goes) = os.pipe(), os.pipe()
    parent = os.fork()
    if parent == 0:
        here = os.getpid()

        def job() -> bytes:
            if os.getpid() == here:
                time.sleep(PATIENCE)
            os.write(begin, b".")
            os.read(go, 1)
            return b""

        try:
            share([job] * 1000, 2)
        finally:
            os._exit(1)
    os.close(begin)
    assert os.read(begun, 1) == b"."
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    os.write(goes, b"." * 1000)
    assert os.read(begun, 1) == b""
    for end in (begun, go, goes):
        os.close(end)


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
def test_a_program_without_standard_output(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", None if how == "none" else closed)
    found = share([lambda n=n: bytes([n]) for n in range(8)], 2)
    assert found == [bytes([n]) for n in range(8)]


def test_nothing_is_forked_beside_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    monkeypatch.setattr(compiler_module, "workers", workers)
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


def test_a_job_is_done_meanwhile(made: list[int]) -> None:
    def job() -> bytes:
        time.sleep(0.05)  # the result is awaited
        events.emit("did")
        return f"{os.getpid()}".encode()

    with events.record() as log, meanwhile(job) as result:
        assert result() == f"{made[0]}".encode()
    assert [e.kind for e in log] == ["did"]
    assert are_gone(made)


def test_a_job_that_cannot_be_done_meanwhile_has_no_result(
    made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.getpid()

    def fails() -> bytes:
        raise ValueError("no")

    def dies() -> bytes:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return b""

    for job in (fails, dies):
        with meanwhile(job) as result:
            assert result() is None
    with (
        pytest.raises(KeyboardInterrupt),
        meanwhile(lambda: bytes(time.sleep(PATIENCE))),
    ):  # type: ignore[func-returns-value, arg-type]
        raise KeyboardInterrupt
    assert len(made) == 3 and are_gone(made)

    def refuse() -> int:
        raise OSError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    with meanwhile(lambda: b"a") as result:
        assert result() is None


def test_brief_work_has_ended_before_a_fork() -> None:
    before = threading.active_count()
    done: list[int] = []

    def work() -> None:
        time.sleep(0.05)
        done.append(threading.active_count() - before)

    briefly(work)
    can_fork()
    assert done == [1]
    assert threading.active_count() == before


def test_brief_work_that_fails_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    briefly(lambda: 1 // 0)
    can_fork()
    assert not raised


def test_brief_work_is_left_out_if_no_thread_is_permitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    briefly(lambda: done.append(1))
    can_fork()
    assert not done


@pytest.mark.parametrize(("mcpu", "made"), [("native", 1), ("znver4", 0)])
def test_the_code_of_all_models_is_made_while_the_compiler_is_loaded(
    mcpu: str, made: int
) -> None:
    """Only for this processor: code for another one may have no support."""
    code = f"""
import sys
import tilewright.driver.compile
from tilewright.driver.options import Options
from tilewright.driver.processes import can_fork
sys.modules["tilewright.driver.compile"]._load(Options(mcpu={mcpu!r}))
assert "tilewright.driver.steps" in sys.modules
assert can_fork()
pool = sys.modules.get("tilewright.targets.cpu.pool")
print(0 if pool is None else pool.pool_object.cache_info().currsize)
"""
    run = [sys.executable, "-c", code]
    found = subprocess.run(run, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(made)]
