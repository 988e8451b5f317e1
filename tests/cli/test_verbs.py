"""run, compile, bench, verify, check: output, files and status on small models."""

import json
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.conftest import make
from tilewright.cli import bench
from tilewright.cli.options import CommandOptions


def expected(path, x):
    """The result of ONNX's reference."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]


@pytest.fixture
def x(tmp_path):
    array = np.random.default_rng(1).standard_normal((2, 8), dtype=np.float32)
    np.save(tmp_path / "x.npy", array)
    return array


def test_run_writes_the_outputs(command, perceptron, x, tmp_path):
    out = tmp_path / "y.npz"
    found = command("run", perceptron, "--input", f"x={tmp_path / 'x.npy'}", "-o", out)
    assert found.code == 0, found.err
    assert "float32[2, 4]" in found.out and "compiled in" in found.out
    with np.load(out) as archive:
        np.testing.assert_allclose(
            archive["y"], expected(perceptron, x), rtol=1e-4, atol=1e-5
        )


def test_run_on_random_inputs_as_json(command, perceptron):
    found = command("run", perceptron, "--repeat", 2, "--profile", "--json")
    assert found.code == 0, found.err
    assert found.json["outputs"]["y"]["shape"] == [2, 4]
    assert found.json["seconds"]["runs"] == 2
    assert found.json["profile"]["rows"]


def test_run_in_tiers_says_when_the_first_result_was_there(
    command, perceptron, tmp_path
):
    said = command("run", perceptron, "--tiered", "--json").json
    assert 0 < said["first_result_seconds"] < said["compile_seconds"]
    shown = command("run", perceptron, "--tiered", "--repeat", "1").out
    assert re.search(r"first result in .*; compiled in", shown)
    artifact = tmp_path / "m.tw"
    command("compile", perceptron, "-o", artifact)
    refused = command("run", artifact, "--tiered")
    assert refused.code and "--tiered: an artifact is compiled" in refused.err


def test_run_says_why_each_kernel_has_its_schedule(command, perceptron, tmp_path):
    found = command("run", perceptron, "--profile", "--why", "--repeat", 1)
    assert "\n  chosen: tiled, expected" in found.out and "matmul.tile = " in found.out
    found = command("run", perceptron, "--profile", "--why", "--repeat", 1, "--json")
    kernels = {row["name"] for row in found.json["profile"]["rows"]}
    assert {s["kernel"] for s in found.json["schedules"]} == kernels
    artifact = tmp_path / "m.tw"
    command("compile", perceptron, "-o", artifact)
    found = command("run", artifact, "--profile", "--why")
    assert found.code == 2 and "--why: an artifact holds code" in found.err


def test_a_file_of_schedules_changes_a_kernel(command, perceptron, tmp_path):
    file = tmp_path / "schedules.json"
    found = command("run", perceptron, "--profile", "--why", "--repeat", 1, "--json")
    values = {s["kernel"]: s["values"] for s in found.json["schedules"]}
    values["head"]["matmul.tile"] = [1, 1]
    file.write_text(json.dumps(values))
    found = command("compile", perceptron, "--emit", "schedule", "--schedules", file)
    assert "matmul.tile = (1, 1) (default (2, 1))" in found.out
    for content, said in (
        ("{", "cannot be read"),
        ('{"no": {}}', "there is no kernel 'no'"),
    ):
        file.write_text(content)
        found = command("run", perceptron, "--schedules", file)
        assert found.code == 1 and said in found.err
    found = command("run", perceptron, "--schedules", tmp_path / "gone.json")
    assert found.code == 1 and "gone.json: --schedules cannot be read" in found.err


def test_compile_emits_schedules(command, perceptron):
    found = command("compile", perceptron, "--emit", "schedule", "--mcpu", "x86-64-v3")
    assert found.code == 0 and "\ntrace:\n  s." in found.out


def test_run_profiles_and_traces(command, perceptron, tmp_path):
    trace = tmp_path / "trace.json"
    found = command("run", perceptron, "--profile", "--trace", trace, "--threads", 1)
    assert found.code == 0, found.err
    assert "GFLOP/s" in found.out
    events = json.loads(trace.read_text())["traceEvents"]
    assert any(event.get("cat") == "Kernel" for event in events)


def test_symbolic_dimensions_come_from_the_option_or_the_data(
    command, symbolic, x, tmp_path
):
    found = command("run", symbolic, "--dim", "batch=3", "--json")
    assert found.code == 0, found.err
    assert found.json["outputs"]["y"]["shape"] == [3, 4]
    found = command("run", symbolic, "--input", f"x={tmp_path / 'x.npy'}", "--json")
    assert found.json["outputs"]["y"]["shape"] == [2, 4]
    found = command("run", symbolic, "--json")
    assert found.json["outputs"]["y"]["shape"] == [1, 4]
    assert "'batch' is not given: assumed 1" in found.err


def test_compile_then_run_the_artifact(command, perceptron, x, tmp_path):
    artifact, out = tmp_path / "m.tw", tmp_path / "y.npz"
    found = command("compile", perceptron, "-o", artifact)
    assert found.code == 0, found.err
    assert "kernels, compiled in" in found.out
    found = command("run", artifact, "--input", f"x={tmp_path / 'x.npy'}", "-o", out)
    assert found.code == 0, found.err
    assert "loaded in" in found.out
    with np.load(out) as archive:
        np.testing.assert_allclose(
            archive["y"], expected(perceptron, x), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("stage", "text"),
    [("graph", "graph "), ("plan", "group "), ("computation", "add"), ("kernel", "for "),
     ("llvm", "define "), ("asm", "ret")],
)  # fmt: skip
def test_compile_emits_each_stage(command, perceptron, stage, text, tmp_path):
    found = command("compile", perceptron, "--emit", stage)
    assert found.code == 0, found.err
    assert text in found.out
    target = tmp_path / "stage.txt"
    assert command("compile", perceptron, "--emit", stage, "-o", target).code == 0
    assert target.read_text() == found.out


def test_compile_for_another_processor(command, perceptron, tmp_path):
    artifact = tmp_path / "arm.tw"
    found = command(
        "compile", perceptron, "-o", artifact, "--mcpu", "aarch64", "--json"
    )
    assert found.code == 0, found.err
    assert found.json["requirements"]["arch"] == "aarch64"
    found = command("run", artifact)
    assert found.code == 1 and "aarch64" in found.err


def test_compile_needs_every_symbolic_dimension(command, symbolic, tmp_path):
    found = command("compile", symbolic, "-o", tmp_path / "m.tw")
    assert found.code == 1 and "--dim batch=1" in found.err
    assert not (tmp_path / "m.tw").exists()
    assert (
        command("compile", symbolic, "-o", tmp_path / "m.tw", "--dim", "batch=2").code
        == 0
    )


def test_bench_compares_and_checks(command, perceptron):
    pytest.importorskip("onnxruntime")
    found = command(
        "bench", perceptron, "--rounds", 2, "--seconds", 0.01, "--threads", 1, "--json"
    )
    assert found.code == 0, found.err
    assert found.json["speed"]["onnxruntime"] > 0
    assert found.json["error"]["tilewright"] < 1e-5
    assert [len(t) for t in found.json["times"].values()] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "told"), [("bfloat16", "bf16"), ("float16", None)]
)
def test_bench_times_openvino_in_the_same_precision(precision, told, perceptron):
    options = CommandOptions(precision=precision)
    found = bench._engine_options(perceptron, options)
    assert found["openvino"].get("precision") == told
    assert found["tilewright"]["precision"] == precision


def test_bench_says_which_engine_cannot_run_the_file(command, perceptron):
    pytest.importorskip("onnxruntime")
    found = command("bench", perceptron, "--against", "torch_eager,onnxruntime", "--rounds", 1,
                    "--seconds", 0.01, "--threads", 1)  # fmt: skip
    assert found.code == 0, found.err
    assert "torch_eager is skipped" in found.err or "not installed" in found.err
    assert "our speed" in found.out and "onnxruntime" in found.out


@pytest.mark.parametrize("engines", ["nobody", "onnxruntime,nobody"])
def test_bench_refuses_engines_that_are_unknown(command, perceptron, engines):
    assert command("bench", perceptron, "--against", engines).code == 2


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        pytest.param("", "", marks=pytest.mark.slow),
        ("torch_eager", "tilewright is timed alone"),
    ],
)
def test_bench_times_us_alone_where_there_is_no_other(
    command, perceptron, engines, said
):
    found = command("bench", perceptron, "--against", engines, "--rounds", 2,
                    "--seconds", 0.01, "--threads", 1, "--json")  # fmt: skip
    assert found.code == 0 and said in found.err, found.err
    assert found.json["speed"] == {} and found.json["engines"] == ["tilewright"]
    tail = found.json["percentiles"]["tilewright"]
    assert min(found.json["times"]["tilewright"]) <= tail["p95"] <= tail["p99"]


def test_bench_counts_the_calls_of_several_callers(command, perceptron):
    pytest.importorskip("onnxruntime")
    how = ("--rounds", 2, "--seconds", 0.02, "--threads", 1, "--concurrency", 3)
    found = command("bench", perceptron, *how, "--json")
    assert found.code == 0, found.err
    assert found.json["callers"] == 3 and found.json["failed"] == {}
    ours, theirs = (found.json["rates"][e] for e in found.json["engines"])
    assert min(*ours, *theirs) > 0
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    assert found.json["speed"]["onnxruntime"] == pytest.approx(sum(ratios) / 2)


@pytest.mark.slow
def test_bench_says_how_many_callers_there_are(command, perceptron):
    how = ("--rounds", 1, "--seconds", 0.01, "--threads", 1, "--concurrency", 3)
    shown = command("bench", perceptron, "--against=", *how).out
    assert "3 callers at a time, 1 thread each" in shown


@pytest.mark.parametrize("dim", ["batch=2", "batch=1..2"])
def test_an_artifact_keeps_its_threads(command, symbolic, tmp_path, monkeypatch, dim):
    monkeypatch.setattr("tilewright.runtime.threads.available", lambda: 5)
    for name in ("TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    at = ["--dim", "batch=2"] if ".." in dim else []
    for given, expected in ([], 5), (["--threads", 1], 1):
        artifact = tmp_path / "m.tw"
        made = command("compile", symbolic, "-o", artifact, "--dim", dim, *given)
        assert made.code == 0
        assert command("run", artifact, *at, "--json").json["threads"] == expected
    short = ["--rounds", 1, "--seconds", 0.01, "--against", "", "--json"]
    assert command("bench", artifact, *at, *short).json["threads"] == 1
    assert command("run", artifact, *at, "--threads", 3, "--json").json["threads"] == 3


def test_bench_times_an_artifact_alone(command, perceptron, tmp_path):
    artifact = tmp_path / "m.tw"
    assert command("compile", perceptron, "-o", artifact).code == 0
    found = command("bench", artifact, "--rounds", 2, "--seconds", 0.01, "--json")
    assert found.code == 0, found.err
    assert "onnxruntime is skipped: it reads no .tw files" in found.err
    assert found.json["engines"] == ["tilewright"] and found.json["failed"] == {}
    assert len(found.json["times"]["tilewright"]) == 2
    found = command("bench", artifact, "--math", "fast")
    assert found.code == 2 and "--math: an artifact is already compiled" in found.err


@pytest.mark.slow
def test_bench_runs_an_exported_program_in_torch_and_its_onnx_form_elsewhere(
    command, tmp_path
):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Softmax(-1))
    torch.export.save(
        torch.export.export(module, (torch.randn(2, 8),)), tmp_path / "m.pt2"
    )
    found = command("bench", tmp_path / "m.pt2", "--against", "onnxruntime,torch_eager",
                    "--rounds", 1, "--seconds", 0.01, "--threads", 1, "--json")  # fmt: skip
    assert found.code == 0, found.err
    assert set(found.json["speed"]) == {"onnxruntime", "torch_eager"}
    assert max(found.json["error"].values()) < 1e-5


def test_verify_agrees(command, perceptron):
    found = command("verify", perceptron)
    assert found.code == 0, found.err + found.out
    assert "ok" in found.out
    assert command("verify", perceptron, "--json").json["ok"] is True


def test_verify_says_how_many_values_are_not_finite(command, perceptron):
    """A model whose weights are NaN agrees with its reference: all of both is NaN."""
    model = onnx.load(perceptron)
    (head,) = (w for w in model.graph.initializer if w.name == "w2")
    ruined = numpy_helper.to_array(head).copy()
    ruined[0, 0] = np.nan
    head.CopyFrom(numpy_helper.from_array(ruined, "w2"))
    onnx.save(model, perceptron)
    found = command("verify", perceptron)
    assert found.code == 0 and "ok, 2 not finite" in found.out, found.out + found.err
    (row,) = command("verify", perceptron, "--json").json["outputs"]
    assert row["ok"] is True and row["not_finite"] == 2


def test_verify_names_the_first_operator_that_diverges(
    command, perceptron, monkeypatch
):
    """A kernel that is wrong on purpose: the rectifier lets everything through."""
    from dataclasses import replace

    from tilewright.compute.build import map_
    from tilewright.graph.ops import registry

    definition = registry.lookup("Relu", "", 14)

    def wrong(call, inputs, outputs):
        return [map_("relu", outputs[0], lambda *i: inputs[0][i])]

    broken = replace(definition, compute=wrong)
    monkeypatch.setitem(registry._definitions, ("", "Relu"), [broken])
    found = command("verify", perceptron)
    assert found.code == 1
    assert "node 'rectify' (Relu) is the first that differs" in found.out
    divergence = command("verify", perceptron, "--json").json["divergence"]
    assert divergence["node"] == "rectify" and divergence["difference"] > 0.01


def test_verify_tolerance_is_the_callers(command, perceptron):
    assert command("verify", perceptron, "--tolerance", "0").code == 1


def test_check_counts(command, perceptron):
    found = command("check", perceptron, "--json")
    assert found.code == 0, found.err
    assert found.json["native"] and not found.json["host"]
    assert found.json["parameters"] == 8 * 16 + 16 + 16 * 4
    assert found.json["flops"] >= 2 * 2 * (8 * 16 + 16 * 4)
    assert found.json["symbolic"] == []
    text = command("check", perceptron).out
    assert "operators" in text and "host fallbacks" in text


def test_check_names_symbolic_dimensions(command, symbolic):
    assert command("check", symbolic, "--json").json["symbolic"] == ["batch"]
    assert "batch (assumed 1)" in command("check", symbolic).out
    assert "batch=8" in command("check", symbolic, "--dim", "batch=8").out


def test_check_sees_hazards_and_reference_kernels(command, tmp_path, monkeypatch):
    path = tmp_path / "hazards.onnx"
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["d"]),
        helper.make_node("Cast", ["n"], ["s"], "to-text", to=TensorProto.STRING),
    ]
    weights = {"w": np.array([1.0, np.nan])}
    inputs = {"x": (TensorProto.DOUBLE, [2]), "n": (TensorProto.FLOAT, [2])}
    outputs = {"d": (TensorProto.DOUBLE, [2]), "s": (TensorProto.STRING, [2])}
    onnx.save(make(nodes, inputs, outputs, weights), path)
    found = command("check", path)
    assert found.code == 0, found.err
    assert "hazard: float64 runs at half the speed" in found.out
    assert "'w' has 1 value that is not finite" in found.out
    assert "host fallback: to-text (Cast)" in found.out
    for refused in ("--no-fallback", "--fallback=error"):
        strict = command("check", path, refused)
        assert strict.code == 1 and "no native code: Cast" in strict.out
    monkeypatch.setenv("TILEWRIGHT_FALLBACK", "error")
    assert command("check", path).code == 1
    assert command("check", path, "--fallback", "warn").code == 0


def test_check_knows_the_memory_limit(command, perceptron):
    found = command("check", perceptron, "--memory-limit", "1000")
    assert found.code == 1 and "memory limit" in found.out + found.err


@pytest.mark.parametrize("outside", [False, True])
def test_check_reports_on_more_weights_than_memory(command, tmp_path, outside):
    w = np.zeros((600, 600), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    x, y = {"x": (TensorProto.FLOAT, [1, 600])}, {"y": (TensorProto.FLOAT, [1, 600])}
    path = tmp_path / "model.onnx"
    onnx.save(make(nodes, x, y, {"w": w}), path, save_as_external_data=outside)
    found = command("check", path, "--memory-limit", "1M")
    assert found.code == 1 and not found.err
    assert "weights 1.37 MiB (360 k parameters)" in found.out
    assert "problem: it needs 1.38 MiB, which exceeds the memory limit" in found.out


def test_run_with_shares_of_the_roofline(command, perceptron, monkeypatch):
    from tilewright.cli import roofline

    monkeypatch.setattr(roofline, "_SECONDS", 0.01)
    monkeypatch.setattr(roofline, "_COPY_ELEMENTS", 1 << 16)
    monkeypatch.setattr(roofline, "_PRODUCT", (32, 32, 32))
    found = command("run", perceptron, "--profile", "--roofline")
    assert found.code == 0, found.err
    assert "of peak" in found.out
