"""Programs are timed with real-time priority where that is asked for and permitted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tune.measure.programs import artifact, reference
from tests.waiting import until
from tilewright.base.errors import InputError
from tilewright.tune.base import Job, Status
from tilewright.tune.measure.local import LocalRunner
from tilewright.tune.measure.options import Limits, Timing
from tilewright.tune.measure.priority import check_realtime
from tilewright.tune.measure.slot import WorkerSlot


def permitted() -> bool:
    try:
        check_realtime()
    except InputError:
        return False
    return True


needs_permission = pytest.mark.skipif(
    not permitted(), reason="real-time priority is not permitted"
)


def policy_of(worker: int) -> int | None:
    """The scheduling policy of the program that a worker runs, if it runs one."""
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    try:
        return os.sched_getscheduler(int(children[0])) if children else None
    except ProcessLookupError:
        return None


@needs_permission
@pytest.mark.parametrize("realtime", [True, False])
def test_only_the_program_has_it_and_only_if_asked(
    tmp_path: Path, realtime: bool
) -> None:
    timing = Timing(realtime=realtime)
    cpus = [max(os.sched_getaffinity(0))]
    slot = WorkerSlot(cpus, 1, timing, Limits(seconds=60.0))
    try:
        slot.give(Job(0, artifact("hangs", tmp_path), reference()), float("inf"))
        ours = os.sched_getscheduler(0)
        policy = os.SCHED_RR if realtime else ours
        until(lambda: policy_of(slot.pid) == policy)
        assert os.sched_getscheduler(slot.pid) == ours
    finally:
        slot.close()


@needs_permission
def test_a_program_that_hangs_costs_its_limit(tmp_path: Path) -> None:
    with LocalRunner(
        timing=Timing(realtime=True), limits=Limits(seconds=0.3)
    ) as runner:
        job = Job(0, artifact("hangs", tmp_path), reference())
        ((_, found),) = runner.measure([job])
    assert found.status is Status.TIMEOUT


@needs_permission
def test_the_system_ends_what_computes_for_too_long() -> None:
    """Where nobody gets the processor to kill it."""
    code = (
        "from tilewright.tune.measure.priority import enter_realtime\n"
        "enter_realtime(-0.9)\n"
        "while True: pass"
    )
    run = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert -run.returncode in (9, 24)  # SIGKILL or SIGXCPU


def test_without_permission_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with pytest.raises(InputError, match="may not use real-time priority"):
        LocalRunner(timing=Timing(realtime=True))
