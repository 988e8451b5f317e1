"""A fleet of this machine: workers come and go, every job is measured once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tune.measure.programs import artifact, reference
from tests.waiting import until
from tilewright.base.errors import ExecutionError, InputError
from tilewright.runtime.threads import choose_cpus
from tilewright.tune.base import Job, Status
from tilewright.tune.fleet import device as devices
from tilewright.tune.fleet import engine
from tilewright.tune.fleet import runner as runners
from tilewright.tune.fleet.device import FleetDevice, chosen
from tilewright.tune.fleet.local import LocalFleet
from tilewright.tune.fleet.runner import Fleet, FleetRunner
from tilewright.tune.measure.options import Limits, Timing

pytest.importorskip("distributed")

TIMING = Timing(round_seconds=1e-4, seconds=0.01)
LIMITS = Limits(seconds=60.0, memory=256 << 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


def started() -> LocalFleet:
    """As many workers as there are processors to put them on, at most two."""
    return LocalFleet(min(2, len(os.sched_getaffinity(0))))


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    """One that the tests share: they leave it as it was."""
    with started() as made:
        yield made


@pytest.fixture
def mortal() -> Iterator[LocalFleet]:
    """One whose parts may be killed: as few as there can be."""
    with LocalFleet(1) as made:
        yield made


def runner_of(fleet: LocalFleet, **more: float) -> FleetRunner:
    return FleetRunner(
        fleet.address, timing=TIMING, limits=LIMITS, patience=more.get("patience", 60.0)
    )


def jobs(folder: Path, *kinds: str) -> list[Job]:
    return [
        Job(n, artifact(k, folder), reference(), build_seconds=n)
        for n, k in enumerate(kinds)
    ]


def test_programs_are_measured_and_bad_ones_cost_one_job_each(
    fleet: LocalFleet, folder: Path
) -> None:
    runner = runner_of(fleet)
    kinds = ("good", "null", "wrong", "good", "allocates", "good")
    found = dict(runner.measure(jobs(folder, *kinds)))
    statuses = [found[n].status for n in range(len(kinds))]
    ok, crash, wrong, memory = Status.OK, Status.CRASH, Status.WRONG, Status.MEMORY
    assert statuses == [ok, crash, wrong, ok, memory, ok]
    assert all(0 < t < 1 for t in found[0].rounds)
    assert "y[998] is 7.0" in found[2].reason
    assert [found[n].build_seconds for n in range(3)] == [0, 1, 2]
    assert runner.slots == len(fleet.workers)
    runner.close()
    # The fleet goes on for the next one.
    again = runner_of(fleet)
    assert [n for n, _ in again.measure(jobs(folder, "good"))] == [0]
    again.close()


@pytest.mark.slow
def test_workers_are_killed_during_the_run(mortal: LocalFleet, folder: Path) -> None:
    """Three times one that measures at that moment; another takes its place."""
    slow = Timing(round_seconds=1e-3, seconds=0.3, tight=0.0, most=10**6)
    runner = FleetRunner(mortal.address, timing=slow, limits=LIMITS)
    client = runner.fleet.client

    def processing() -> Any:
        """What each worker does; nothing known where the question is lost with a worker."""
        try:
            return client.sync(client.scheduler.processing, callback_timeout=5)
        except TimeoutError:
            return {}

    addresses = dict(zip(mortal.workers, mortal.addresses, strict=True))
    killed = []

    def kill() -> None:
        for n in range(3):
            worker, address = list(addresses.items())[n % len(addresses)]
            until(lambda at=address: processing().get(at))
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
            killed.append(address)
            del addresses[worker]
            another, address = mortal.replace(worker)
            addresses[another] = address

    killer = threading.Thread(target=kill)

    def given() -> Iterator[Job]:
        for job in jobs(folder, *["good"] * 2000):
            if (len(killed) == 3 or not killer.is_alive()) and job.number > 6:
                return
            yield job

    killer.start()
    found = [(number, m.status) for number, m in runner.measure(given())]
    killer.join()
    assert len(killed) == 3
    assert sorted(found) == [(n, Status.OK) for n in range(len(found))]
    runner.close()


@pytest.mark.parametrize(
    "replaced", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_a_result_that_goes_with_its_worker_is_made_again(
    mortal: LocalFleet,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    replaced: bool,
) -> None:
    """All workers are killed between the end of a job and the fetching of its result."""
    runner = runner_of(mortal, patience=60.0 if replaced else 0.5)
    fetched = runners._measurement
    asked = []

    def late(future: Any, job: Job) -> Any:
        asked.append(job.number)
        if len(asked) == 1:
            for worker in list(mortal.workers):
                worker.kill()
                worker.wait()
                if replaced:
                    mortal.replace(worker)
        return fetched(future, job)

    monkeypatch.setattr(runners, "_measurement", late)
    if replaced:
        [(number, found)] = runner.measure(jobs(folder, "good"))
        assert (number, found.status) == (0, Status.OK)
    else:
        with pytest.raises(ExecutionError, match="no worker has offered cpu"):
            list(runner.measure(jobs(folder, "good")))
    runner.close()


def test_what_came_before_the_end_is_kept(
    mortal: LocalFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the workers go, then the scheduler."""
    monkeypatch.setattr(runners, "_CONNECT", 1.0)
    runner = runner_of(mortal)
    runner.patience = 0.2
    found = []
    with pytest.raises(ExecutionError, match=r"no worker has offered cpu: .* for 0.2"):
        for number, _ in runner.measure(jobs(folder, *["good"] * 50)):
            found.append(number)
            for worker in mortal.workers:
                worker.kill()
    assert found
    with pytest.raises(ExecutionError, match=r"the scheduler (at .* is gone|gave up)"):
        mortal.processes[0].kill()
        list(runner.measure(jobs(folder, "good")))
    runner.close()
    monkeypatch.setattr(runners, "_CONNECT", 0.2)
    with pytest.raises(ExecutionError, match="no scheduler answers at tcp://127"):
        Fleet(mortal.address)


@pytest.mark.parametrize(
    ("status", "about"),
    [
        ("running", {}),  # it went while it was asked
        ("connecting", {"workers": {}}),  # what it said last
        ("closed", {}),
    ],
)
def test_who_asks_a_scheduler_that_is_gone_is_told(
    status: str, about: dict[str, Any]
) -> None:
    fleet = Fleet.__new__(Fleet)
    fleet.address = "tcp://127.0.0.1:8786"
    fleet.client = SimpleNamespace(status=status, scheduler_info=lambda **_: about)
    with pytest.raises(ExecutionError, match=r"scheduler at tcp://127\S* is gone"):
        assert fleet.offered is None


def test_a_device_that_nobody_offers(fleet: LocalFleet) -> None:
    with pytest.raises(InputError, match="no worker offers the device 'gpu'") as found:
        FleetRunner(fleet.address, "gpu", patience=0.1)
    assert "cpu: " in str(found.value)


def test_jobs_that_nobody_waits_for_are_taken_back(
    fleet: LocalFleet, folder: Path
) -> None:
    runner = runner_of(fleet)
    running = runner.measure(jobs(folder, *["good"] * 20))
    next(running)
    running.close()  # type: ignore[attr-defined]
    client = runner.fleet.client
    until(lambda: not any(client.processing().values()))
    assert sorted(n for n, _ in runner.measure(jobs(folder, "good", "good"))) == [0, 1]
    runner.close()


def test_a_local_fleet_needs_a_core_for_each_program() -> None:
    with pytest.raises(InputError, match="threads requested"):
        LocalFleet(len(choose_cpus(1)) + os.cpu_count() * 2)


@pytest.mark.parametrize("name", ["", "a b", "a|b", "x" * 41])
def test_names_of_devices(name: str) -> None:
    with pytest.raises(InputError, match="not a valid device name"):
        FleetDevice.here(name, 1)


def test_devices_are_resources_by_all_that_programs_are_made_for() -> None:
    device = FleetDevice.here("cpu", 2)
    assert FleetDevice.parse(device.resource) == device
    assert FleetDevice.parse("memory") is None
    other = FleetDevice("cpu", 1, "another", device.version)
    assert chosen({device: 1, other: 3}, "cpu", 1) == other
    assert chosen({device: 1, other: 3}, "cpu", 2) == device
    assert chosen({device: 1}, "gpu", 1) is None
    assert chosen({}, "cpu", 1) is None
    with pytest.raises(InputError, match="of 4 threads do not fit 'cpu', which has 2"):
        chosen({device: 1, other: 3}, "cpu", 4)


def test_workers_of_another_version_get_no_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = FleetDevice.here("cpu", 1)
    monkeypatch.setattr(devices, "__version__", "9.9")
    with pytest.raises(
        InputError, match=rf"have version {device.version}, this is 9.9"
    ):
        chosen({device: 1}, "cpu", 1)


def test_a_fleet_ends_with_the_process_that_started_it() -> None:
    code = (
        "import time; from tilewright.tune.fleet.local import LocalFleet;"
        "fleet = LocalFleet(1); print(*(p.pid for p in fleet.processes), flush=True);"
        "time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pids = list(map(int, process.stdout.readline().split()))
    assert len(pids) == 2
    process.kill()
    process.wait()
    until(lambda: not any(alive(pid) for pid in pids))
    process.stdout.close()


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_closed_port_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask would, until its time is over."""
    with socket.socket() as bound:  # bound, but nothing listens
        bound.bind(("127.0.0.1", 0))
        asked = SimpleNamespace(Client=lambda *_, **__: pytest.fail("it was asked"))
        monkeypatch.setattr(engine, "distributed", lambda: asked)
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ExecutionError, match=r"no scheduler answers .* refused"):
            Fleet(address)
