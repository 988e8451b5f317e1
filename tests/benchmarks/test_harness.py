"""The harness: statistics, resuming, failing engines, and a null test of an engine with itself."""

import json
import math
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
from benchmarks import (
    accuracy,
    bench,
    harness,
    import_time,
    peers,
    score,
    show,
)
from tilewright.cli.rounds import RoundTable, TimingJob


def row(
    times: dict[str, list[float]], network: str = "n", threads: int = 1, **more
) -> RoundTable:
    checked = {"referenced": True, "error": dict.fromkeys(times, 0.0)}
    return RoundTable(network, threads, list(times), times, **(checked | more))


def test_the_lead_is_over_the_fastest_peer_of_the_row():
    found = row({"o": [1.0, 2.0, 4.0], "p": [2.0, 2.0, 2.0], "q": [3.0, 1.0, 9.0]})
    assert score.fastest(found) == "p"
    assert score.lead(found) == 1.0  # the median of 2, 1, 0.5


def test_a_row_without_one_of_its_peers_is_void():
    found = row({"o": [1.0], "p": [2.0]}, failed={"q": "not installed: q"})
    assert score.fastest(found) is None and score.lead(found) is None
    assert score.missed([found]) == ["n x1: void: q: not installed: q"]
    assert score.summary([found])[0]["void"] == 1


def test_summary_is_per_kind_and_thread_count():
    times = {"lenet": 1.0, "vgg19": 4.0, "matmul_512": 1.0, "int8_matmul_1024": 1.0}
    rows = [
        row({"o": [1.0], "p": [t]}, name, n)
        for name, t in times.items()
        for n in (1, 2)
    ]
    found = {(g["kind"], g["threads"]): g for g in score.summary(rows)}
    assert list(found) == [
        (k, n) for k in ("network", "operator", "int8") for n in (1, 2)
    ]
    assert found["network", 2]["geometric_mean"] == pytest.approx(2.0)
    assert found["network", 2]["minimum"] == 1.0 and found["network", 2]["rows"] == 2


def test_missed_names_what_misses_a_bar():
    slow = row({"o": [4.0], "p": [1.0]}, "lenet")
    said = "\n".join(score.missed([slow]))
    assert "lenet x1: 0.25 of p, bar 0.95" in said
    assert "network x1: geometric mean 0.25, bar 1.15" in said
    assert score.missed([row({"o": [1.0], "p": [2.0]}, "lenet")]) == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        pytest.param(
            {"error": {"o": 1e-3, "p": 0.0}}, "o: error 1.0e-03, bar 1e-04", id="ours"
        ),
        pytest.param(
            {"error": {"o": 0.0, "p": 1e-3}}, "p: error 1.0e-03, bar 1e-04", id="a-peer"
        ),
        pytest.param({"error": {"o": math.nan, "p": 0.0}}, "o: error nan", id="nan"),
        pytest.param({"error": {"p": 0.0}}, "o: error nan", id="not-compared"),
        pytest.param(
            {"referenced": False}, "not compared with the float64", id="no-reference"
        ),
    ],
)
def test_the_speed_of_a_wrong_program_is_none(more: dict, why: str):
    found = row({"o": [1.0], "p": [2.0]}, "lenet", **more)
    assert score.lead(found) is None and score.summary([found])[0]["void"] == 1
    assert any(why in said for said in score.missed([found]))


def test_low_precision_has_a_bar_of_its_own():
    times, errors = {"o": [1.0], "p": [1.0]}, {"o": 1e-3, "p": 1e-3}
    assert score.missed([row(times, "int8_conv1x1_256x56_64", error=errors)]) == []


def test_a_guest_with_wrong_outputs_is_left_out_and_the_row_counts():
    found = row(
        {"o": [1.0], "p": [2.0], "g": [0.1]}, error={"o": 0.0, "p": 0.0, "g": 1.0}
    )
    bench._drop_wrong(found, ["g"])
    assert score.fastest(found) == "p"


def test_the_larger_of_two_differences_counts():
    found = RoundTable("n", 1, ["o"], {"o": [1.0]})
    one, two, nan = (np.array([v]) for v in (1.0, 2.0, math.nan))
    timing = bench.timing
    for got, error in ((two, 1.0), (one, 1.0), (nan, math.nan), (one, math.nan)):
        timing._compare(found, {"o": [got]}, [one])
        assert found.error["o"] == pytest.approx(error, nan_ok=True)


def test_missing_peers_say_why(monkeypatch):
    assert peers.missing("onnxruntime") is None
    assert "no engine of that name" in peers.missing("nobody")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "C++ compiler" in peers.missing("torch_compile")


def test_the_picture_has_a_bar_for_each_row_that_is_not_void():
    rows = [row({"o": [1.0], "p": [2.0]}, "lenet"), row({"o": [1.0], "p": [0.01]}, "a<b"),
            row({"o": [1.0]}, "broken", failed={"p": "x"})]  # fmt: skip
    drawn = ElementTree.fromstring(show.picture(rows, "title"))
    texts = [node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "lenet, 1" in texts and "2.00" in texts and "a<b, 1" in texts
    assert not any("broken" in text for text in texts)


def test_rows_survive_a_run_that_was_broken_off(tmp_path: Path):
    store = harness.Rows(tmp_path / "out" / "rows.jsonl")
    store.add(row({"o": [1.0]}, key="good"))
    store.add(row({"o": []}, key="bad", failed={"o": "x"}))
    with store.path.open("a") as file:
        file.write('{"network": "torn", "thre')
    again = harness.Rows(store.path)
    assert again.get("good") == row({"o": [1.0]}, key="good")
    assert again.get("bad") is None
    assert again.get("torn") is None


def test_bench_writes_rows_and_goes_on_from_them(
    folder: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(harness, "source_hash", lambda: "the same sources")
    arguments = ["--networks", "squeezenet", "--threads", "1", "--rounds", "1", "--seconds", "0.01",
                 "--ours", "onnxruntime", "--against", "onnxruntime",
                 "--dir", str(folder), "--out", str(tmp_path)]  # fmt: skip
    result = CliRunner().invoke(bench.main, arguments)
    assert result.exit_code == 0, result.output
    assert "geometric mean" in result.output
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["rows"][0]["network"] == "squeezenet"
    assert all(
        written["rows"][0]["error"][e] < 1e-4 for e in ("onnxruntime", "onnxruntime#2")
    )
    assert written["rows"][0]["lead"] > 0
    assert (tmp_path / "bench.svg").read_text().startswith("<svg")
    assert CliRunner().invoke(bench.main, arguments).exit_code == 0
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 1
    monkeypatch.setattr(harness, "source_hash", lambda: "a change")
    assert CliRunner().invoke(bench.main, [*arguments, "--json"]).exit_code == 0
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("arguments", [
    ["--networks", "nonsense"], ["--threads", "0"], ["--threads", "x"], ["--against", "nobody"],
])  # fmt: skip
def test_bad_usage_is_status_2(arguments: list[str]):
    result = CliRunner().invoke(bench.main, arguments)
    assert result.exit_code == 2 and "Error" in result.output


def test_accuracy_of_onnx_runtime_meets_the_bar(folder: Path):
    errors = accuracy.measure("squeezenet", folder, "onnxruntime", 1)
    assert sum(key.startswith("mid.") for key in errors) >= 5
    assert max(errors.values()) < 1e-5


def test_fresh_process_reports_time_and_memory(small):
    from benchmarks.probe import ProbeFailed, fresh

    model, inputs = small
    facts = fresh("load", "onnxruntime", model, inputs, 1)
    assert facts["load_seconds"] > 0 and facts["peak_megabytes"] > 10
    with pytest.raises(ProbeFailed, match="nowhere"):
        fresh("load", "onnxruntime", "nowhere.onnx", inputs, 1)


def test_import_time_of_a_module():
    result = CliRunner().invoke(
        import_time.main, ["--module", "json", "--repeats", "1", "--json"]
    )
    assert result.exit_code == 0
    assert json.loads(result.output)["import_seconds"] < 1
    assert (
        CliRunner().invoke(import_time.main, ["--module", "no_such_module"]).exit_code
        == 1
    )


def test_engines_that_are_near_take_part(tmp_path: Path, monkeypatch, capsys):
    task = TimingJob("lenet", Path("lenet.onnx"), Path("lenet.npz"), 1)
    probed = row(
        {"base": [1.0], "close": [10.0], "far": [11.0]},
        failed={"broken": "no such thing"},
    )
    calls = []
    monkeypatch.setattr(bench.timing, "measure", lambda *a: calls.append(a) or probed)
    monkeypatch.setattr(
        peers, "missing", lambda e: "not installed" if e == "absent" else None
    )
    store = harness.Rows(tmp_path / "rows.jsonl")
    wanted = ["close", "far", "broken", "absent"]
    assert bench.near(task, wanted, "base", store) == ["close"]
    said = capsys.readouterr().err
    assert "without far: 11 times behind base" in said
    assert (
        "without broken: no such thing" in said
        and "without absent: not installed" in said
    )
    assert bench.near(task, wanted, "base", store) == ["close"]
    assert len(calls) == 1  # the second time from the store


@pytest.mark.slow
def test_a_peer_of_the_benchmarks_is_timed_in_a_process_of_its_own(folder: Path):
    path, inputs = harness.prepare("squeezenet", folder)
    task = TimingJob("squeezenet", path, inputs, 1, worker="benchmarks.worker")
    found = bench.timing.measure(task, ["torch_eager", "nobody"], 1, 0.01)
    assert len(found.times["torch_eager"]) == 1
    assert list(found.failed) == ["nobody"]
