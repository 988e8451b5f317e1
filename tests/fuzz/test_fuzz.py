"""`make fuzz`: crashes, hangs and faults of programs, the tests made of them, and the counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.fuzz import table
from tests.waiting import until
from tilewright.testing import (
    graph_runs,
    random_operators,
    random_stages,
    schedule_runs,
)
from tilewright.testing.fuzz import campaign, generators, written
from tilewright.testing.fuzz.__main__ import main
from tilewright.testing.fuzz.campaign import (
    FIRST,
    OFTEN,
    Campaign,
    met_text,
    read_counts,
    read_met,
    source_of_test,
)
from tilewright.testing.fuzz.generators import GENERATORS
from tilewright.testing.fuzz.worker import (
    CaseGenerator,
    FuzzProcess,
    LostProgram,
    Tell,
    _attempt,
    alone,
)
from tilewright.testing.random_graphs import random_case

HERE = Path(__file__).parent


def called(source: str) -> None:
    """Run the tests of a file."""
    names: dict[str, Any] = {}
    exec(compile(source, "found", "exec"), names)
    made = [f for name, f in names.items() if name.startswith("test_")]
    assert len(made) == 1
    made[0]()


# ------------------------------------------------------------------------------ the campaign


def test_failures_are_counted_and_one_test_is_written_for_each_kind(
    tmp_path: Path,
) -> None:
    campaign = Campaign([table.WELL, table.FAULTY], tmp_path)
    campaign.run(1000, 2, programs=18)
    counts = read_counts(tmp_path / "counts.json")
    assert (counts["well"].programs, counts["well"].faults) == (9, 0)
    assert (counts["faulty"].programs, counts["faulty"].faults) == (9, 3)
    assert {c.next for c in counts.values()} == {FIRST + 9}
    names = sorted(path.name for path in campaign.written)
    assert len(names) == 2 and f"found_faulty_{FIRST + 4}.py" in names
    with pytest.raises(AssertionError):
        called((tmp_path / names[names[0].endswith("4.py")]).read_text())
    assert "KeyError: 'four'" in (tmp_path / f"found_faulty_{FIRST + 4}.py").read_text()
    lines = campaign.summary()
    assert lines[0].startswith("well: 9 programs, 0 failures of 0 kinds; 9 programs")
    assert lines[1].startswith("faulty: 9 programs, 3 failures of 2 kinds")
    assert lines[2] == f"to commit, in {tmp_path}: " + ", ".join(
        ["counts.json", *(path.name for path in campaign.written)]
    )


def test_the_next_campaign_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    (tmp_path / "counts.json").write_text(
        json.dumps(
            {"well": {"programs": 5, "faults": 1, "next": FIRST + 7}, "other": {}}
        )
    )
    Campaign([table.WELL], tmp_path).run(1000, 1, programs=3)
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert counts["well"] == {"programs": 8, "faults": 1, "next": FIRST + 10}
    assert counts["other"]["programs"] == 0


def test_what_met_is_kept_between_processes_and_campaigns(tmp_path: Path) -> None:
    first = Campaign([table.LED, table.WELL], tmp_path)
    first.run(1000, 1, programs=6)
    assert "met.json" in first.summary()[-1]
    kept = read_met(tmp_path / "met.json")
    assert kept == {"led": Counter({("a", f"{n}"): 1 for n in range(3)})}
    second = Campaign([table.LED], tmp_path)
    second.run(1000, 1, programs=3)  # in another process
    assert [path.name for path in second.written] == [f"found_led_{FIRST + 5}.py"]
    assert len(read_met(tmp_path / "met.json")["led"]) == 6


def test_what_is_kept_of_what_met_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "PAIRS", 500)
    many = Counter({(f"a{n % 200}", f"b{n}"): n + 1 for n in range(550)})
    path = tmp_path / "met.json"
    path.write_text(met_text({"it": many}))
    kept = read_met(path)["it"]
    assert len(kept) == 500 and ("a0", "b0") not in kept
    assert max(kept.values()) == OFTEN and kept["a70", "b70"] == 71
    assert path.stat().st_size < 25_000


def test_what_ends_its_process_is_a_failure_and_does_not_end_the_rest(
    tmp_path: Path,
) -> None:
    campaign = Campaign([table.FATAL], tmp_path)
    campaign.run(1000, 1, programs=3)
    count = read_counts(tmp_path / "counts.json")["fatal"]
    assert (count.programs, count.faults, count.next) == (3, 1, FIRST + 3)
    (path,) = campaign.written
    text = path.read_text()
    assert f"it ended its process with status {-signal.SIGSEGV}" in text
    assert f"alone(GENERATORS[\"fatal\"], {FIRST + 1}, 'steps of it')" in text


def test_what_hangs_is_a_failure_and_does_not_end_the_rest(tmp_path: Path) -> None:
    campaign = Campaign([table.ENDLESS, table.WELL], tmp_path)
    campaign.run(1000, 1, programs=2)
    counts = read_counts(tmp_path / "counts.json")
    assert (counts["endless"].programs, counts["endless"].faults) == (1, 1)
    assert (counts["well"].programs, counts["well"].faults) == (1, 0)
    assert "it took more than 0.2 seconds" in campaign.written[0].read_text()


def test_one_alone() -> None:
    """As the tests that are written do it."""
    assert alone(table.WELL, 0) == ""
    assert "status -11" in alone(table.FATAL, FIRST + 1)
    assert alone(table.FATAL, FIRST + 1, "steps") == "again: steps"
    assert "MemoryError" in alone(table.GREEDY, 0)


def test_what_tells_of_itself_has_its_whole_time_again() -> None:
    worker = FuzzProcess()
    worker.start(table.PATIENT, 0)
    until(lambda: worker.poll() == (False, None) and worker._told)
    worker._end = 0.0
    ended, lost = worker.poll()
    assert ended and lost == LostProgram("it took more than 1000 seconds", "still")
    worker.start(table.PATIENT, 0)
    worker._pipe.poll(None)  # the first word is there
    worker._end = 0.0
    assert worker.poll() == (False, None) and worker.left > 900
    worker.close()


def test_an_interrupt_ends_it_and_nothing_is_lost(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from tests.fuzz import table\n"
        "from tilewright.testing.fuzz.campaign import Campaign\n"
        f"c = Campaign([table.FAULTY, table.PATIENT], Path({str(tmp_path)!r}))\n"
        "c.run(1000, 2)\n"
        "print(*c.summary(), sep='\\n')\n"
    )
    root = HERE.parents[1]
    path = os.pathsep.join(
        [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    found = tmp_path / f"found_faulty_{FIRST + 1}.py"
    until(found.exists)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "to commit" in output
    counts = read_counts(tmp_path / "counts.json")
    assert counts["faulty"].faults >= 1
    assert counts["patient"].next == FIRST, "it was not finished, and is not skipped"


def test_the_command(tmp_path: Path) -> None:
    ran = CliRunner().invoke(main, ["--generators", "graphs,nothing"])
    assert ran.exit_code == 2 and "no nothing; there are schedules, " in ran.output
    given = ["--generators", "artifacts", "--programs", "1", "--jobs", "1"]
    ran = CliRunner().invoke(main, [*given, "--folder", str(tmp_path)])
    assert ran.exit_code == 0 and ran.output.startswith(
        "artifacts: 1 programs, 0 failures"
    )


def test_the_counts_that_are_kept_can_be_read() -> None:
    assert set(read_met(HERE / "met.json")) <= {
        g.name for g in GENERATORS.values() if g.met
    }
    counts = read_counts(HERE / "counts.json")
    assert set(counts) <= set(GENERATORS)
    assert all(c.next >= FIRST + c.programs for c in counts.values())


# ------------------------------------------------------------------- what is written of failures


def test_a_schedule_becomes_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(kernel: Any, steps: Any, level: Any, seed: int) -> str | None:
        return "broken" if "annotate" in {s.primitive for s in steps} else None

    told: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(schedule_runs, "problem", broken)
        patched.setattr(generators, "_MET", Counter())
        found = next(
            f for s in range(50) if (f := generators._schedule(s, told.append))
        )
        seed = len(told) - 1
        assert generators._again(seed, told[-1]).reason == found.reason
        with pytest.raises(AssertionError):
            called(found.test)
    assert "annotate" in found.test and found.test.count('"') < 20  # the steps are few
    called(found.test)
    other = found.test.replace(f"program({seed})", f"program({seed + 3})")
    with pytest.raises(AssertionError, match="the generator makes another program now"):
        called(other)


def test_a_graph_becomes_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any, inputs: Any, **options: Any) -> list[str]:
        return ["broken"] if "Mul" in {op.op_type for op in graph.operations} else []

    told: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(graph_runs, "check", broken)
        found = next(f for s in range(100) if (f := generators._graph(s, told.append)))
        again = generators._graph_again(len(told) - 1, told[-1])  # as after a crash
        assert again is not None and again.reason == "broken"
        with pytest.raises(AssertionError):
            called(found.test)
    assert found.reason == "broken" and "Mul" in found.test
    called(found.test)


def test_a_graph_that_fails_at_another_size_only_becomes_a_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What fails alone has the inputs of that size; what needs both has both."""
    pieces = {n: graph_runs.ALL[n] for n in ("free_extent", "unary", "binary")}
    case = next(c for s in range(200) if (c := random_case(s, 3, pieces=pieces)).others)
    first = [a.shape for a in case.inputs.values()]

    def one(graph: Any, inputs: Any, **options: Any) -> list[str]:
        given = [inputs, *options["others"]]
        return (
            ["it"] if any(first != [a.shape for a in i.values()] for i in given) else []
        )

    def both(graph: Any, inputs: Any, **options: Any) -> list[str]:
        return ["it"] if options["others"] else []

    for broken in (one, both):
        with monkeypatch.context() as patched:
            patched.setattr(graph_runs, "check", broken)
            failure = graph_runs.run_case(0, case)
            assert failure is not None and bool(failure.case.others) == (broken is both)
            found = generators._wrong_graph(0, failure)
            assert found is not None
            with pytest.raises(AssertionError):
                called(found.test)
        called(found.test)


def test_a_list_of_stages_becomes_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(seed: int, case: Any, **options: Any) -> Any:
        bad = "Conv" in {op.op_type for op in case.graph.operations}
        return random_stages.StageFailure(seed, "here", "broken") if bad else None

    with monkeypatch.context() as patched:
        patched.setattr(random_stages, "run_case", broken)
        found = next(f for s in range(100) if (f := generators._stages(s, print)))
        with pytest.raises(AssertionError):
            called(found.test)
    assert "broken" in found.reason and "Conv" in found.test
    called(found.test)


def test_an_operator_becomes_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            random_operators, "_compiled", lambda t: [np.zeros((1, 9, 1), np.int8)]
        )
        patched.setattr(
            random_operators, "_interpreted", lambda t: [np.zeros((1, 9), np.int8)]
        )
        found = next(f for s in range(100) if (f := generators._operator(s, print)))
        with pytest.raises(AssertionError):
            called(found.test)
    assert "wrong" in found.reason
    called(found.test)


def test_a_crash_within_a_graph_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*args: Any, **options: Any) -> Any:
        raise IndexError("out of range")

    monkeypatch.setattr(graph_runs, "check", crash)
    failure = graph_runs.run(5)
    assert failure is not None and failure.reason == "IndexError: out of range"


def test_a_program_that_raises_is_kept_as_it_was_told() -> None:
    def run(seed: int, tell: Tell) -> None:
        tell(f"program {seed}")
        raise IndexError("out of range")

    lost = _attempt(CaseGenerator("raising", run), 7, None, print)
    assert isinstance(lost, LostProgram) and lost.told == "program 7"
    assert lost.reason.rstrip().endswith("IndexError: out of range")
    assert "alone(GENERATORS[\"raising\"], 7, 'program 7')" in source_of_test(
        "raising", 7, lost
    )


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.1, -0.0], np.float32),
        np.array([np.nan, np.inf, -0.0]),
        np.zeros((0, 3), np.int64),
        np.array(3, np.uint8),
        np.arange(100, dtype=np.float16).reshape(4, 25),
        np.array([["a", "b"]], object),
    ],
)
def test_arrays_are_written_exactly(array: Any) -> None:
    again = eval(written.array(array), vars(sys.modules[__name__]) | _names())
    assert again.dtype == array.dtype and again.shape == array.shape
    if array.dtype != object:
        assert again.tobytes() == array.tobytes()
    else:
        assert (again == array).all()


def _names() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(generators.HEADER, names)
    return names


def test_settings_are_of_many_kinds() -> None:
    found = [graph_runs.setting_of(seed) for seed in range(200)]
    assert len({s.machine for s in found}) >= 4
    assert {s.math for s in found} == {"default", "exact", "fast"}
    assert {s.threads for s in found} == {1, 2, 3}
    assert {s.dims for s in found} == {True, False} and {s.level for s in found} == {
        0,
        2,
    }
