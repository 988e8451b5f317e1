"""Programs that crash, hang, take memory or are wrong cost one trial each, and nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tune.measure.programs import artifact, case, reference
from tests.waiting import until
from tilewright.base.errors import ExecutionError, InputError
from tilewright.runtime.threads import affinity, available
from tilewright.tune.base import Job, Measurement, Status
from tilewright.tune.measure import slot as slots
from tilewright.tune.measure import worker as workers
from tilewright.tune.measure.local import LocalRunner
from tilewright.tune.measure.options import Limits, Timing
from tilewright.tune.measure.reference import pack

# Machines that test are disturbed: nothing here depends on how long anything takes.
TIMING = Timing(round_seconds=1e-4, seconds=0.01)
LIMITS = Limits(seconds=60.0, memory=256 << 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with LocalRunner(timing=TIMING, limits=LIMITS) as made:
        yield made


def measured(runner: LocalRunner, folder: Path, *kinds: str) -> list[Measurement]:
    jobs = [Job(n, artifact(k, folder), reference()) for n, k in enumerate(kinds)]
    found = dict(runner.measure(jobs))
    assert sorted(found) == list(range(len(kinds)))
    return [found[n] for n in range(len(kinds))]


# What becomes of each, and a part of the reason.
BAD = {
    "null": (Status.CRASH, "write at an address far from every tensor"),
    "illegal": (Status.CRASH, "SIGILL"),
    "exits": (Status.CRASH, "code 3"),
    "aborts": (Status.CRASH, "SIGABRT"),
    "wrong": (Status.WRONG, "y[998] is 7.0, expected"),
    "beyond": (Status.CRASH, "write at 1 bytes past the end of y"),
    "before": (Status.WRONG, "written 1 bytes before y"),
    "input": (Status.CRASH, "write at byte 0 of x"),
    "allocates": (Status.MEMORY, "out of memory; then"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_program_costs_one_trial(
    runner: LocalRunner, folder: Path, kind: str
) -> None:
    bad, good = measured(runner, folder, kind, "good")
    status, reason = BAD[kind]
    assert (bad.status, bad.seconds) == (status, float("inf"))
    assert reason in bad.reason and "\n" not in bad.reason
    assert good.status is Status.OK and 0 < good.seconds < float("inf")
    assert runner.started == 1


@pytest.mark.parametrize("kind", ["hangs", "stops"])
def test_a_program_that_does_not_end_is_ended(folder: Path, kind: str) -> None:
    with LocalRunner(timing=TIMING, limits=replace(LIMITS, seconds=0.2)) as runner:
        jobs = [Job(0, artifact(kind, folder), reference())]
        [(_, found)] = runner.measure(jobs)
        assert found.status is Status.TIMEOUT
        assert found.reason == "not finished within 0.2 s"
        assert found.run_seconds >= 0.2
        assert runner.started == 1


def test_what_a_program_prints_disturbs_nothing(
    runner: LocalRunner, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for found in measured(runner, folder, "prints", "good"):
        assert found.status is Status.OK
    assert capfd.readouterr() == ("", "")
    [worker] = runner.processes
    assert {os.readlink(f"/proc/{worker}/fd/{n}") for n in range(3)} == {os.devnull}


def test_more_memory_than_permitted_is_refused(
    runner: LocalRunner, folder: Path, tmp_path: Path
) -> None:
    greedy = Job(0, artifact("good", tmp_path, 1 << 40), reference())
    [(_, found)] = runner.measure([greedy])
    assert found.status is Status.MEMORY
    [good] = measured(runner, folder, "good")
    assert good.status is Status.OK


def test_what_is_no_artifact_could_not_be_built(runner: LocalRunner) -> None:
    [(number, found)] = runner.measure([Job(7, b"PK and so on", reference())])
    assert (number, found.status) == (7, Status.BUILD)
    assert "is not an artifact" in found.reason


def test_a_program_of_another_task_is_wrong(runner: LocalRunner, folder: Path) -> None:
    other = reference().replace(b'"float32"', b'"int32"  ')
    [(_, found)] = runner.measure([Job(0, artifact("good", folder), other)])
    assert found.status is Status.WRONG
    assert "do not match the task" in found.reason


def test_results_are_compared_for_all_inputs(runner: LocalRunner, folder: Path) -> None:
    [first, second] = [case(n) for n in range(2)]
    other = replace(first, results=second.results)
    for cases in ([other, first], [first, other]):
        job = Job(0, artifact("good", folder), pack(cases))
        [(_, found)] = runner.measure([job])
        assert found.status is Status.WRONG and "y[0] is" in found.reason


def test_results_in_memory_as_it_is_timed_are_compared_too(
    runner: LocalRunner, folder: Path
) -> None:
    """What begins on a page's border, in the second case, begins on a line of the caches too."""
    job = Job(0, artifact("on_lines", folder), reference(cases=1))
    [(_, found)] = runner.measure([job])
    assert found.status is Status.WRONG and "y[0] is 7.0" in found.reason


def test_without_a_reference_results_are_not_compared(
    runner: LocalRunner, folder: Path
) -> None:
    kinds = ["wrong", "good"]
    jobs = [Job(n, artifact(k, folder)) for n, k in enumerate(kinds)]
    assert {m.status for _, m in runner.measure(jobs)} == {Status.OK}
    [wrong] = measured(runner, folder, "wrong")
    assert wrong.status is Status.WRONG


def test_a_worker_that_is_killed_is_replaced(folder: Path) -> None:
    with LocalRunner(timing=TIMING, limits=LIMITS) as runner:
        lost, good = measured(runner, folder, "kills", "good")
        assert (lost.status, good.status) == (Status.LOST, Status.OK)
        assert runner.started == 2


def test_jobs_that_nobody_waits_for_are_ended(folder: Path) -> None:
    cpus = [min(affinity())] * 2
    with LocalRunner(slots=2, cpus=cpus, timing=TIMING, limits=LIMITS) as runner:
        kinds = ["good", "hangs"]
        jobs = [Job(n, artifact(k, folder), reference()) for n, k in enumerate(kinds)]
        found = runner.measure(jobs)
        assert next(found)[0] == 0
        found.close()
        for good in measured(runner, folder, "good", "good"):
            assert good.status is Status.OK
        assert runner.started == 3


def test_the_network_s_caches_are_timed_call_by_call(folder: Path) -> None:
    timing = replace(TIMING, caches="network")
    with LocalRunner(timing=timing, limits=LIMITS) as runner:
        [found] = measured(runner, folder, "good")
        assert found.status is Status.OK and found.rounds


@pytest.mark.parametrize(
    ("timing", "size"),
    [
        (Timing("hot", 1 << 16), 0),
        (Timing("network", 1 << 16), 1 << 16),
        (Timing("network", 0), 0),
        (Timing("network", 1 << 40), 1 << 20),  # no more than the last cache holds
        (Timing("network"), 1 << 20),
    ],
)
def test_between_calls_as_much_is_read_as_a_network_touches(
    timing: Timing, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_last_cache", lambda cpu: 1 << 20)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = workers.Worker(ours, affinity())
        worker.fill_flood(Timing("network", 1 << 18))  # of the task before
        worker.fill_flood(timing)
        assert worker.flood.nbytes == size or timing.caches == "hot"


def test_a_worker_imports_no_compiler(tmp_path: Path) -> None:
    text = (
        "import sys, tilewright.tune.measure.worker\n"
        "print([m for m in sys.modules if m.startswith(('tilewright.', 'llvmlite'))])"
    )
    run = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    rooms = {name.split(".")[1] for name in eval(run.stdout)}
    assert rooms == {"base", "runtime", "tune"}


def test_a_worker_that_does_not_start_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "_MODULE", "tilewright.tune.nothing")
    with pytest.raises(
        ExecutionError, match=r"No module named tilewright\.tune\.nothing"
    ):
        LocalRunner()


def test_more_slots_than_processors_are_refused() -> None:
    with pytest.raises(InputError, match="100,000 threads requested"):
        LocalRunner(threads=100, slots=1000)


_PARENT = """
import sys
from pathlib import Path
from tests.tune.measure.programs import artifact
from tilewright.runtime.threads import affinity, available
from tilewright.tune.base import Job
from tilewright.tune.measure.local import LocalRunner
from tilewright.tune.measure.options import Limits

runner = LocalRunner(limits=Limits(seconds=3600))
print(*runner.processes, flush=True)
list(runner.measure([Job(0, artifact("hangs", Path(sys.argv[1])))]))
"""


def test_nothing_is_left_when_the_tuner_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=environment,
    )
    with parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        until(lambda: _children(worker))
        [trial] = _children(worker)
        parent.send_signal(signal.SIGKILL)
        until(lambda: not _runs(worker) and not _runs(trial))


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return list(map(int, text.split()))


def _runs(pid: int) -> bool:
    """Whether a process is there, and is not only waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def test_a_program_that_is_hopeless_has_one_round(folder: Path) -> None:
    """Of two equal programs the second is slower than nothing times the first."""
    with LocalRunner(
        timing=replace(TIMING, hopeless=1e-9, seconds=60.0), limits=LIMITS
    ) as runner:
        first, second = measured(runner, folder, "good", "good")
        assert len(first.rounds) > 1 and len(second.rounds) == 1


def test_programs_run_on_several_threads(folder: Path) -> None:
    with LocalRunner(threads=available(), timing=TIMING, limits=LIMITS) as runner:
        assert runner.spare == []
        [good] = measured(runner, folder, "good")
        assert good.status is Status.OK


def test_workers_end_with_the_runner() -> None:
    with LocalRunner(slots=available()) as runner:
        workers = runner.processes
        assert len(workers) == runner.started == available()
    assert not any(map(_runs, workers)) and not runner.processes
