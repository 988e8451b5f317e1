"""`tilewright tune`: results, progress, options, interrupts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.tune.records.database import Records

FEW = ("--threads", "1", "--method", "random", "--cost-model", "analytic")


def test_a_model_is_tuned_and_reported(command, perceptron, tmp_path):
    records = tmp_path / "r.sqlite"
    report = tmp_path / "r.html"
    given = ("--records", records, "--report", report, "--trials", "3", *FEW)
    found = command("tune", perceptron, *given, "--json")
    assert found.code == 0
    assert found.json["trials"] == 3
    assert found.json["model"] == "perceptron.onnx"
    lines = [json.loads(line) for line in found.err.splitlines()]
    assert [e["event"] for e in lines].count("trial") == 3
    assert {"kernel", "best_seconds", "used"} <= found.json["kernels"][0].keys()
    text = report.read_text()
    assert "What bounds them" in text
    assert "<svg" in text or "No schedule" in text
    assert "Tuning perceptron.onnx" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    with Records(records, write=False) as read:
        assert read.records()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--time", "soon"), 2, "expected a time"),
        (("--time", "0s"), 2, "expected a time"),
        (("--time", "nan"), 2, "expected a time"),
        (("--trials", "0"), 2, "0"),
        (("--method", "best"), 2, "method='best'"),
        (("--cost-model", "oracle"), 2, "cost_model='oracle'"),
        (("--kernel", "nothing"), 2, "there is no kernel 'nothing'"),
        (("--no-records",), 2, "tuning needs its records"),
        (("--fleet", "local:x"), 2, "fleet='local:x'"),
        (("--report", "no/where.html"), 1, "does not exist"),
        (("--fleet", "10.0.0.1:8786"), 1, "there are no keys"),
    ],
)
def test_what_is_refused(command, perceptron, tmp_path, arguments, code, message):
    path = tmp_path / "r.sqlite"
    records = () if "--no-records" in arguments else ("--records", path)
    found = command("tune", perceptron, "--threads", "1", *records, *arguments)
    assert (found.code, message in found.err) == (code, True), found.err


def started(model: Path, records: Path, *more: str) -> subprocess.Popen[str]:
    given = ["--records", str(records), *FEW, "--json", *more]
    command = [sys.executable, "-m", "tilewright", "tune", str(model), *given]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def trial(process: subprocess.Popen[str]) -> str:
    """The candidate of the next trial that it reports as finished."""
    assert process.stderr is not None
    for line in process.stderr:
        event = json.loads(line)
        if event["event"] == "trial":
            return f"{event['task']} {event['candidate']}"
    raise AssertionError("it ended")


def recorded(path: Path) -> set[str]:
    with Records(path, write=False) as read:
        return {f"{r.task} {r.trial.candidate.key}" for r in read.records()}


@pytest.mark.slow
def test_killed_three_times_it_loses_nothing_and_goes_on(perceptron, tmp_path):
    """Reported trials are kept, and the next call resumes the same run."""
    records = tmp_path / "r.sqlite"
    said: set[str] = set()
    for moment in (1, 3, 2):
        process = started(perceptron, records, "--trials", "500")
        for _ in range(moment):
            said.add(trial(process))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        for line in process.stderr:
            if line.endswith("\n") and json.loads(line)["event"] == "trial":
                event = json.loads(line)
                said.add(f"{event['task']} {event['candidate']}")
        assert said <= recorded(records)
    with Records(records, write=False) as read:
        assert len({r.run.id for r in read.records()}) == 1


@pytest.mark.slow
def test_ctrl_c_ends_the_round_and_keeps_what_was_measured(perceptron, tmp_path):
    records = tmp_path / "r.sqlite"
    process = started(perceptron, records, "--trials", "500")
    trial(process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["ending"] == "interrupted"
    assert len(recorded(records)) >= 1


def test_a_second_ctrl_c_ends_at_once(perceptron, tmp_path):
    records = tmp_path / "r.sqlite"
    process = started(perceptron, records, "--trials", "500")
    trial(process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert any("Ctrl-C again stops at once" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    # It may have been through just then.
    assert process.returncode == 0 or "interrupted" in err
    assert len(recorded(records)) >= 1
