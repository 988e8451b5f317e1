"""`tilewright records`: measurements shown, exported, imported and pruned."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tune.records.made import KEY, ROWS, RUN, candidate, failed, record, trial
from tilewright.cli import records as verb
from tilewright.tune.base import Status
from tilewright.tune.records.database import Records
from tilewright.tune.records.pruning import Rules, prunable
from tilewright.tune.records.rows import Choice, Record

OTHER = replace(
    KEY, operator="f0", family="conv(cc cc pw pw)", processor="Pear 2", threads=1
)
NET = replace(RUN, id="run2", model="net.onnx")
NOW = time.time()
MORE = [
    *ROWS,
    Record(OTHER, "conv", NET, NOW - 10 * 86400, trial(0, 2e-6)),
    Record(OTHER, "conv", NET, NOW, trial(1, 1e-6)),
    Choice(OTHER, "conv", NET, NOW, candidate(1), 1e-6, 2e-6),
]


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data" / "records.sqlite"
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(path))
    return path


@pytest.fixture
def filled(path: Path) -> Path:
    with Records(path) as records:
        records.merge(MORE)
    return path


def test_kernels_are_listed_the_latest_first(command: Any, filled: Path) -> None:
    found = command("records", "list", "--json").json
    assert [(t["kernel"], t["trials"], t["failed"]) for t in found] == [
        ("conv", 2, 0),
        ("matmul+relu", 10, 9),
    ]
    assert found[0]["seconds"] == 1e-6
    assert found[0]["processor"] == "Pear 2"
    assert found[0]["models"] == ["net.onnx"]
    assert found[0]["digest"] == OTHER.digest
    shown = command("records", "list")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].split()[:3] == ["kernel", "shapes", "processor"]
    assert "1.00 µs" in lines[1] and "1.00 ms" in lines[2]
    limited = command("records", "list", "--limit", 1).out
    assert "matmul" not in limited and "... 2 kernels in all" in limited


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["--model", "NET"], ["conv"]),
        (["--operator", "matmul("], ["matmul+relu"]),
        (["--machine", "pear"], ["conv"]),
        (["--machine", "pear", "--operator", "matmul"], []),
    ],
)
def test_what_is_asked_for(
    command: Any, filled: Path, given: list[str], names: list[str]
) -> None:
    found = command("records", "list", "--json", *given).json
    assert [t["kernel"] for t in found] == names


def test_the_best_are_shown(command: Any, filled: Path) -> None:
    (found,) = command("records", "best", "--json").json
    assert found["kernel"] == "conv"
    assert found["gain"] == 2.0
    assert found["values"] == {"sketch": "tiled", **candidate(1).values}
    shown = command("records", "best").out
    assert "2.00x" in shown and "Pear 2" in shown
    for which, why in (("best", "faster than a default"), ("list", "such a kernel")):
        nothing = command("records", which, "--operator", "absent")
        assert nothing.out == "" and why in nothing.err
        assert "tilewright tune MODEL" in nothing.err
        assert command("records", which, "--operator", "absent", "--json").json == []


def test_there_and_back(command: Any, filled: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "all.jsonl", tmp_path / "data" / "other.sqlite"
    assert "12 trials and 3 choices" in command("records", "export", file).out
    done = command("records", "import", file, "--records", other)
    assert (done.code, done.out) == (0, "15 records added, 0 there already\n")
    again = command("records", "import", file, "--records", other, "--json")
    assert again.json == {"new": 0, "known": 15, "bad": []}
    with Records(filled) as a, Records(other) as b:
        assert [a.records(), a.choices()] == [b.records(), b.choices()]
    second = tmp_path / "second.jsonl"
    command("records", "export", second, "--records", other)
    assert second.read_bytes() == file.read_bytes()


def test_some_are_exported(command: Any, filled: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    done = command("records", "export", file, "--operator", "conv", "--json")
    assert done.json == {"file": str(file), "trials": 2, "choices": 1}
    assert {json.loads(text)["task"] for text in file.open()} == {"conv"}


def test_bad_lines_are_named_and_the_others_imported(
    command: Any, filled: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mixed.jsonl"
    command("records", "export", file, "--operator", "conv")
    good = file.read_text()
    file.write_text("nonsense\n" + good + '{"record": "trial"}\n' + "x\n" * 20)
    other = tmp_path / "data" / "other.sqlite"
    done = command("records", "import", file, "--records", other)
    assert done.code == 1
    assert f"{file}: line 1: it is not JSON" in done.err
    assert f"{file}: line 5: its format is None" in done.err
    assert "... 22 lines in all that are not records" in done.err
    assert "3 records added" in done.out
    assert command("records", "import", file, "--records", other, "--json").code == 1


# --------------------------------------------------------------------------------- pruning


def left(command: Any, *arguments: object) -> tuple[str, int]:
    said = command("records", "prune", *arguments).out
    found = command("records", "list", "--json").json
    return said, sum(t["trials"] for t in found)


def test_failed_trials_are_pruned(command: Any, filled: Path) -> None:
    assert left(command, "--failed", "--dry-run") == ("9 trials would be deleted\n", 12)
    assert left(command, "--failed") == ("9 trials deleted\n", 3)
    assert left(command, "--failed") == ("0 trials deleted\n", 3)
    with Records(filled) as records:
        assert len(records.choices()) == 3


def test_old_trials_are_pruned(command: Any, filled: Path) -> None:
    assert left(command, "--older", 11) == ("10 trials deleted\n", 2)
    assert left(command, "--older", 5) == ("1 trial deleted\n", 1)


def test_filters_say_where_to_prune(command: Any, filled: Path) -> None:
    assert left(command, "--older", 1, "--machine", "pear") == ("1 trial deleted\n", 11)


def test_pruned_features_and_tasks_leave_nothing(command: Any, filled: Path) -> None:
    command("records", "prune", "--older", 0)
    with Records(filled) as records:
        for table, count in {"trials": 1, "features": 0, "tasks": 2, "runs": 2}.items():
            query = f"select count(*) from {table}"
            assert records._db.execute(query).fetchone() == (count,), table


def test_json_says_what_was_pruned(command: Any, filled: Path) -> None:
    done = command("records", "prune", "--keep", 1, "--json")
    assert done.json == {"trials": 10, "deleted": True}


def test_what_the_rules_name() -> None:
    fast, slow = (record(n) for n in (0, 1))
    slow = replace(slow, trial=trial(1, 1.0))
    lost = Record(KEY, "k", RUN, 5000.0, failed(2, Status.LOST))
    old = Record(replace(KEY, schedules=0), "k", RUN, 5000.0, trial(3))
    rows = [slow, fast, lost, old]
    choice = Choice(KEY, "k", RUN, 1.0, slow.trial.candidate, 1.0, 2.0)

    def named(*choices: Choice, **rules: Any) -> list[Record]:
        return prunable(rows, choices, Rules(**rules))

    assert named() == []
    assert named(failed=True) == [lost]
    assert named(outdated=True) == [old]
    assert named(keep=1) == [slow, lost]
    assert named(keep=2) == [lost]
    assert named(before=2000.5) == [fast]
    assert named(choice, keep=1) == [lost]
    assert named(choice, before=6000.0) == [fast, lost, old]
    withdrawn = replace(choice, time=2.0, candidate=None)
    assert named(choice, withdrawn, keep=1) == [slow, lost]


# ------------------------------------------------------------------------------ bad inputs


def test_nothing_was_recorded_yet(command: Any, path: Path, tmp_path: Path) -> None:
    for arguments in (["list"], ["best"], ["prune", "--failed"]):
        done = command("records", *arguments)
        assert done.code == 0
        assert f"there is no {path}; tilewright tune MODEL writes it" in done.err
    assert command("records", "list", "--json").json == []
    assert command("records", "export", tmp_path / "none.jsonl").code == 0
    assert (tmp_path / "none.jsonl").read_bytes() == b""
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["prune"], 2, "give at least one of"),
        (["prune", "--keep", "0"], 2, "--keep"),
        (["prune", "--older", "-1"], 2, "--older"),
        (["list", "--limit", "0"], 2, "--limit"),
        (["import"], 2, "FILES"),
        (["import", "missing.jsonl"], 1, "missing.jsonl: No such file"),
        (["export", "missing/folder.jsonl"], 1, "does not exist"),
        (["list", "--records", "missing.sqlite"], 1, "there are no tuning records"),
        (
            ["import", __file__, "--records", "missing/mine.sqlite"],
            1,
            "there is no folder missing; check the path",
        ),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_wrong_options(command: Any, arguments: list[str], code: int, why: str) -> None:
    done = command("records", *arguments)
    assert done.code == code
    assert why in done.err


def test_records_that_are_off(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_RECORDS", "off")
    done = command("records", "list")
    assert done.code == 1
    assert "TILEWRIGHT_RECORDS: records are off" in done.err


def test_a_file_of_something_else(command: Any, path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_text("no database")
    path.chmod(0o600)
    done = command("records", "list", "--json")
    assert done.code == 1
    assert "not a database of tuning records" in done.json["error"]["message"]


@pytest.mark.filterwarnings("default::tilewright.TilewrightWarning")
def test_a_damaged_file_is_mended(command: Any, filled: Path) -> None:
    filled.write_bytes(b"\0" * 5000)
    done = command("records", "list", "--json")
    assert (done.code, done.json) == (0, [])
    assert "the tuning records were damaged" in done.err


# ----------------------------------------------------------------- the output of the other verbs


def test_what_a_model_says() -> None:
    def meta(*gains: float) -> dict[str, Any]:
        return {"tuned": [{"kernel": "k", "gain": g, "time": 0.0} for g in gains]}

    assert verb.used_line({}) == ""
    one = verb.used_line(meta(1.134))
    assert one.startswith("tuned: 1 kernel by records up to 19")
    assert one.endswith(", 1.13x of default")
    assert verb.used_line(meta(1.1, 1.5)).endswith(", 1.10x to 1.50x of default")


def test_run_and_compile_say_what_is_tuned(
    command: Any, perceptron: Path, path: Path, tmp_path: Path
) -> None:
    out = tmp_path / "m.tw"
    assert command("compile", perceptron, "-o", out, "--json").json["tuned"] == []
    _choose_something(path, perceptron)
    made = command("compile", perceptron, "-o", out)
    assert "tuned: 1 kernel by records up to" in made.out
    ran = command("run", perceptron, "--repeat", 1, "--profile", "--why")
    assert "tuned: 1 kernel by records" in ran.out
    assert "tuned: record of 20" in ran.out
    assert "1.50x of default" in ran.out
    loaded = command("run", out, "--repeat", 1, "--json")
    assert [t["gain"] for t in loaded.json["tuned"]] == [1.5]
    for off in (["--no-records"], ["--records", ""]):
        assert "tuned" not in command("run", perceptron, "--repeat", 1, *off).out
    named = command("run", perceptron, "--repeat", 1, "--records", path)
    assert "tuned: 1 kernel" in named.out
    missing = command("run", perceptron, "--records", tmp_path / "none")
    assert missing.code == 1
    assert "there are no tuning records" in missing.err
    fixed = command("run", out, "--no-records")
    assert "an artifact is already compiled" in fixed.err


def _choose_something(path: Path, model: Path) -> None:
    """Record the default schedule of the first kernel as if it were another."""
    from tilewright.driver.tasks import tasks

    first, *_ = tasks(model, records=False)
    with Records(path) as records:
        run = records.begin("m")
        default = first.space.default()
        records.choose(run, first.key, first.name, default, 1.0, 1.5)
