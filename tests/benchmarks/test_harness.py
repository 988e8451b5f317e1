"""The harness: statistics, resuming, failing engines, and a null test of an engine with itself."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import accuracy, bench, compile_time, footprint, harness, import_time, models
from tilewright.cli.rounds import Row

pytest.importorskip("onnxruntime")


def row(times: dict[str, list[float]], network: str = "n", threads: int = 1, **more) -> Row:
    return Row(network, threads, list(times), times, **more)


def test_summary_counts_each_network_at_each_thread_count():
    rows = [row({"o": [1.0], "p": [t]}, threads=n) for n, t in ((1, 1.0), (2, 4.0))]
    found = bench.summary([*rows, row({"o": [], "p": [1.0]}, "broken", failed={"o": "x"})], "p")
    assert found["all"] == {"geometric_mean": pytest.approx(2.0), "minimum": 1.0, "rows": 3,
                            "without_ratio": 1}  # fmt: skip
    assert found["threads=2"]["geometric_mean"] == pytest.approx(4.0)


def test_verdict_names_what_is_missed():
    slow = row({"o": [4.0], "p": [1.0]}, "slow", error={"o": 1e-3})
    broken = row({"o": [], "p": [1.0]}, "broken", failed={"o": "no such operator"})
    said = "\n".join(bench.verdict([slow, broken], "p"))
    assert "slow x1: speed 0.25, bar 0.5" in said
    assert "slow x1: error 1.0e-03" in said
    assert "broken x1: o failed: no such operator" in said
    assert "geometric mean 0.25" in said
    assert bench.verdict([row({"o": [1.0], "p": [1.0]})], "p") == []
    assert bench.verdict([row({"o": [1.0], "p": [1.0]}, error={"o": math.nan})], "p") != []


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


def test_bench_writes_rows_and_goes_on_from_them(folder: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(harness, "source_hash", lambda: "the same sources")
    arguments = ["--networks", "squeezenet", "--threads", "1", "--rounds", "1", "--seconds", "0.01",
                 "--ours", "onnxruntime", "--dir", str(folder), "--out", str(tmp_path)]  # fmt: skip
    result = CliRunner().invoke(bench.main, arguments)
    assert result.exit_code == 0, result.output
    assert "geometric mean" in result.output
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["rows"][0]["network"] == "squeezenet"
    assert written["rows"][0]["error"]["onnxruntime"] < 1e-4
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


def test_footprint_and_compile_bars():
    good = {"peak_megabytes": 50, "load_seconds": 0.1, "read_seconds": 0.0, "llvm_loaded": False}
    bad = {"peak_megabytes": 99, "load_seconds": 0.9, "read_seconds": 0.1, "llvm_loaded": True}
    assert footprint.missed({"network": "n", "tilewright": good, "onnxruntime": bad}) == []
    assert len(footprint.missed({"network": "n", "tilewright": bad, "onnxruntime": good})) == 3
    assert footprint.missed({"network": "n", "tilewright": "no", "onnxruntime": good}) == [
        "n: tilewright: no"]  # fmt: skip
    fast = {"network": "resnet50", "cold_seconds": 12.0, "cached_seconds": 1.0}
    assert compile_time.missed(fast) == []
    assert len(compile_time.missed({**fast, "cold_seconds": 30.0, "cached_seconds": 9.0})) == 3


def test_fresh_process_reports_time_and_memory(small):
    from benchmarks.probe import ProbeFailed, fresh

    model, inputs = small
    facts = fresh("load", "onnxruntime", model, inputs, 1)
    assert facts["load_seconds"] > 0 and facts["peak_megabytes"] > 10
    with pytest.raises(ProbeFailed, match="nowhere"):
        fresh("load", "onnxruntime", "nowhere.onnx", inputs, 1)


def test_import_time_of_a_module():
    result = CliRunner().invoke(import_time.main, ["--module", "json", "--repeats", "1", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.output)["import_seconds"] < 1
    assert CliRunner().invoke(import_time.main, ["--module", "no_such_module"]).exit_code == 1


def test_standard_networks_have_recipes():
    assert set(models.STANDARD) <= set(models.RECIPES)
