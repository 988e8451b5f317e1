"""Kernels that another process compiles during planning: the same code, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

import tilewright as tw
from tests.driver.test_kernel_cache import NATIVE, TARGETS, chosen, named, product
from tests.driver.test_processes import CHAIN, are_gone, made  # noqa: F401
from tests.waiting import PATIENCE, until
from tilewright.base import events
from tilewright.base.errors import TilewrightWarning
from tilewright.base.store import FileStore
from tilewright.driver import early_kernels, kernels
from tilewright.driver.early_kernels import EarlyKernel, EarlyKernels, parts
from tilewright.driver.early_kernels import early_kernels as early_of
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.processes import Job
from tilewright.expr.nodes import Buffer
from tilewright.frontends.onnx import load
from tilewright.ir.passes import Pipeline
from tilewright.plan.lower import lower

MODEL = onnx.parser.parse_model(CHAIN)
KERNELS = 7


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small models are shared with another process, too; how many kernels were left to share."""
    left: list[int] = []
    real = kernels.share

    def noting(jobs: Sequence[Job], count: int) -> list[bytes | None]:
        left.append(len(jobs))
        return real(jobs, count)

    monkeypatch.setattr(early_kernels, "FEWEST", 0)
    monkeypatch.setattr(early_kernels, "SHORTEST", 1)
    monkeypatch.setattr(early_kernels, "can_fork", lambda: True)
    monkeypatch.setattr(kernels, "share", noting)
    monkeypatch.setattr(kernels, "workers", lambda jobs, processors: 1)
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "2")
    return left


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning takes longer than the other process does."""
    stop = EarlyKernels.stop
    monkeypatch.setattr(EarlyKernels, "stop", lambda self: self.rest() and stop(self))


def compiled(**options: Any) -> tuple[Any, list[str]]:
    """The code of a model, and the kernels that were reported."""
    with events.record() as log:
        model = tw.compile(MODEL, threads=1, **options).model
    names = sorted(e.fields["name"] for e in log if e.kind == "kernel")
    return (model.objects, model.constants.tobytes()), names


@pytest.fixture(scope="module")
def alone() -> tuple[Any, list[str]]:
    """The model as this process alone compiles it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(early_kernels, "can_fork", lambda: False)
        return compiled(cache=False)


@pytest.mark.usefixtures("slow")
def test_the_code_is_the_same_and_each_kernel_is_made_once(
    shared: list[int],
    made: list[int],  # noqa: F811
    alone: tuple[Any, list[str]],
) -> None:
    assert compiled(cache=False) == alone
    assert len(made) == 1 and are_gone(made)
    assert shared == [0] and len(alone[1]) == KERNELS


@pytest.mark.parametrize("but", ["few kernels", "one processor", "threads", "device"])
def test_where_no_other_process_begins(
    but: str,
    shared: list[int],
    made: list[int],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = 6
    monkeypatch.setattr(early_kernels, "FEWEST", groups + (but == "few kernels"))
    if but == "one processor":
        monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "1")
    if but == "threads":
        monkeypatch.setattr(early_kernels, "can_fork", lambda: False)
    plan = lower(load(MODEL))
    with early_of(None if but == "device" else lambda plan: {}) as early:
        early.begin(plan, Pipeline("none", ()))
        assert not made and early.stop() == early.rest() == {}
    monkeypatch.setattr(early_kernels, "FEWEST", groups)


def test_sanitized_code_names_tensors_as_without_another_process(
    shared: list[int],
    made: list[int],  # noqa: F811
) -> None:
    """In a part of a plan, other groups come first, and give their names."""
    compiled(cache=False, sanitize=True)
    assert not made


class Made(EarlyKernels):
    """What another process is said to have made."""

    def __init__(self, key: str, code: bytes | None) -> None:
        super().__init__()
        self.found = {key: EarlyKernel(key, code)}

    def stop(self) -> dict[str, EarlyKernel]:
        return self.found

    def rest(self) -> dict[str, EarlyKernel]:
        return self.found


B = next(b for b in product().values if b.name == "b")
OTHER_KERNELS: dict[str, tuple[KernelCompiler, Any, Sequence[Buffer]]] = {
    "target": (KernelCompiler(TARGETS["exact"], NATIVE, None), product(), ()),
    "host": (KernelCompiler(NATIVE, TARGETS["level"], None), product(), ()),
    "checks": (KernelCompiler(NATIVE, NATIVE, None, sanitize=True), product(), ()),
    "schedule": (chosen(tile=8), product(), ()),
    "weights": (KernelCompiler(NATIVE, NATIVE, None), product(), (B,)),
    "name": (KernelCompiler(NATIVE, NATIVE, None), named("other"), ()),
}


@pytest.mark.parametrize("part", OTHER_KERNELS)
def test_the_code_of_another_kernel_is_dropped(part: str, tmp_path: Path) -> None:
    """Each part of the key: code that differs in it only is neither taken nor kept."""
    other, signature, weights = OTHER_KERNELS[part]
    (key,) = other.jobs([signature], weights)
    store = FileStore(tmp_path, 1 << 30)
    compiler = KernelCompiler(NATIVE, NATIVE, store)
    (found,) = compiler.compile_all([product()], (), 1, Made(key, b"not code"))
    assert found == KernelCompiler(NATIVE, NATIVE, None).compile(product(), ())
    assert store.peek(key) is None


def test_the_code_of_the_very_kernel_is_taken_and_kept(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 1 << 30)
    compiler = KernelCompiler(NATIVE, NATIVE, store)
    ((key, job),) = compiler.jobs([product()], ()).items()
    code = job()
    compiler._made = None  # type: ignore[assignment, method-assign]
    (found,) = compiler.compile_all([product()], (), 1, Made(key, code))
    assert found.to_bytes() == code == store.peek(key)


class AtWork(Made):
    """Another process that does not end."""

    def rest(self) -> dict[str, EarlyKernel]:
        raise AssertionError("nobody needs what it is making")


@pytest.mark.parametrize("started", ["other", "very"])
def test_what_is_not_needed_is_not_waited_for(started: str) -> None:
    """The kernel that it is making is not of the plan, or it has made all of the plan's."""
    compiler = KernelCompiler(NATIVE, NATIVE, None)
    ((key, job),) = compiler.jobs([product()], ()).items()
    early = AtWork(key, job()) if started == "very" else AtWork("0", None)
    (found,) = compiler.compile_all([product()], (), 1, early)
    assert found == KernelCompiler(NATIVE, NATIVE, None).compile(product(), ())


def test_a_kernel_that_the_other_process_could_not_make_is_made_here() -> None:
    compiler = KernelCompiler(NATIVE, NATIVE, None)
    (key,) = compiler.jobs([product()], ())
    (found,) = compiler.compile_all([product()], (), 1, Made(key, None))
    assert found == KernelCompiler(NATIVE, NATIVE, None).compile(product(), ())


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("fate", ["killed", "failed"])
def test_a_process_that_ends_early_loses_time_only(
    fate: str,
    shared: list[int],
    made: list[int],  # noqa: F811
    alone: tuple[Any, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, real = os.getpid(), KernelCompiler._make

    def make(self: KernelCompiler, request: Any) -> Any:
        if os.getpid() != here:
            if fate == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("no")
        return real(self, request)

    monkeypatch.setattr(KernelCompiler, "_make", make)
    assert compiled(cache=False) == alone
    assert shared == [KERNELS - 1] and are_gone(made)


def test_an_interruption_ends_the_process(
    shared: list[int],
    made: list[int],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, stop = os.getpid(), EarlyKernels.stop

    def make(self: KernelCompiler, request: Any) -> Any:
        if os.getpid() == here:
            raise KeyboardInterrupt
        time.sleep(PATIENCE)

    def stop_at_work(self: EarlyKernels) -> dict[str, EarlyKernel]:
        until(lambda: bool(self._found()))
        return stop(self)

    monkeypatch.setattr(KernelCompiler, "_make", make)
    monkeypatch.setattr(EarlyKernels, "stop", stop_at_work)
    with pytest.raises(KeyboardInterrupt):
        compiled(cache=False)
    assert len(made) == 1 and are_gone(made)


def test_a_system_that_permits_no_more_processes(
    shared: list[int], alone: tuple[Any, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    assert compiled(cache=False) == alone and not shared


def begun(jobs: dict[str, Job]) -> EarlyKernels:
    """Another process that finds these jobs in each part of a plan."""
    early = EarlyKernels(lambda part: jobs)
    early.begin(lower(load(MODEL)), Pipeline("none", ()))
    return early


@pytest.mark.usefixtures("shared")
def test_it_stops_after_the_kernel_that_it_is_making() -> None:
    out, into = os.pipe()
    with closing(begun({"a": lambda: os.read(out, 1), "b": lambda: b"b"})) as early:
        until(lambda: "a" in early._found())
        assert list(early.stop()) == ["a"]
        os.write(into, b"x")
        assert early.rest() == {"a": EarlyKernel("a", b"x")}
    os.close(out), os.close(into)


@pytest.mark.usefixtures("shared")
def test_a_kernel_of_several_parts_is_made_once() -> None:
    out, into = os.pipe()
    os.write(into, b"123456789")  # more than there are parts
    with closing(begun({"a": lambda: os.read(out, 1)})) as early:
        assert early.rest() == {"a": EarlyKernel("a", b"1")}
    os.close(out), os.close(into)


@pytest.mark.usefixtures("shared")
def test_it_makes_nothing_for_a_parent_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 0)
    with closing(begun({"a": lambda: b"a"})) as early:
        assert early.rest() == {}


@pytest.mark.usefixtures("shared")
def test_it_reports_to_nobody_but_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    out, into = os.pipe()

    def hear(*heard: Any) -> None:
        os.write(into, f"{heard[0]}".encode())

    def job() -> bytes:
        events.emit("made")
        warnings.warn("made", TilewrightWarning, stacklevel=1)
        return b"a"

    monkeypatch.setattr(warnings, "showwarning", hear)
    events.subscribe(hear)
    try:
        with closing(begun({"a": job})) as early:
            (event,) = early.rest()["a"].happened
    finally:
        events.unsubscribe(hear)
    os.close(into)
    assert event.kind == "made" and os.read(out, 1) == b""
    os.close(out)


@pytest.mark.parametrize(
    ("shortest", "sizes"), [(1, [1] * 6), (4, [2, 4]), (5, [1, 5]), (9, [6])]
)
def test_the_parts_of_a_plan_are_its_steps_and_keep_what_others_read(
    monkeypatch: pytest.MonkeyPatch, shortest: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(early_kernels, "SHORTEST", shortest)
    plan = lower(load(MODEL))
    found = list(parts(plan))[::-1]
    assert [s for p in found for s in p.steps] == list(plan.steps)
    assert [len(p.steps) for p in found] == sizes
    for n, part in enumerate(found):
        read = {b for p in found[n + 1 :] for s in p.steps for b in s.reads}
        written = {b for s in part.steps for b in s.writes}
        assert set(part.results) == written & (read | set(plan.results))


def test_a_long_plan_has_so_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_kernels, "PARTS", 2)
    monkeypatch.setattr(early_kernels, "SHORTEST", 1)
    assert [len(p.steps) for p in parts(lower(load(MODEL)))] == [3, 3]
