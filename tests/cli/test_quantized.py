"""`--target vta`: models quantized for a machine that takes bytes, by any verb that knows of it."""

import re

import numpy as np


def test_run_simulates_and_compares(command, perceptron, tmp_path):
    target = tmp_path / "y.npz"
    found = command("run", perceptron, "--target", "vta", "-o", target)
    assert found.code == 0, found.err
    assert found.out.splitlines()[0].startswith("vta  Gemm+Relu")
    assert "a run takes" in found.out
    assert "y: differs from the float model by at most" in found.out
    assert "scales come from this input alone" in found.err
    (y,) = np.load(target).values()
    as_json = command("run", perceptron, "--target", "vta", "--json")
    assert as_json.json["largest_error"]["y"] < 0.1 * as_json.json["largest"]["y"]
    assert np.abs(y).max() <= as_json.json["largest"]["y"] * 1.1


def test_compile_lists_the_instructions(command, perceptron):
    found = command("compile", perceptron, "--target", "vta", "--emit", "asm")
    assert found.code == 0, found.err
    assert "# Gemm_Relu_r on vta: Gemm+Relu -> r" in found.out
    assert "FINISH pop(LD) pop(ST)" in found.out
    plan = command("compile", perceptron, "--target", "vta", "--emit", "plan").out
    assert "group Gemm_Relu_r on vta" in plan and "copy " in plan
    schedule = command("compile", perceptron, "--target", "vta", "--emit", "schedule")
    (trace,) = re.findall(
        r"# Gemm_Relu_r on vta: .*\n  chosen: .*\n(?:  .*\n)*trace:\n((?:  s.*\n)+)",
        schedule.out,
    )
    assert "vta.gemm" in trace
    kernel = command("compile", perceptron, "--target", "vta", "--emit", "kernel").out
    assert " in vta.acc:" in kernel


def test_compile_writes_an_artifact_that_runs_and_is_profiled(
    command, perceptron, tmp_path
):
    out = tmp_path / "m.tw"
    made = command("compile", perceptron, "--target", "vta", "-o", out)
    assert made.code == 0, made.err
    assert "scales come from random inputs alone" in made.err
    found = command("run", out)
    assert found.code == 0, found.err
    assert found.out.splitlines()[0].startswith("vta  Gemm+Relu")
    found = command("run", perceptron, "--target", "vta", "--profile")
    assert found.code == 0, found.err
    assert "Gemm_Relu_r (vta)" in found.out
    assert "cycles at 100 MHz, simulated; other times are measured" in found.out
    as_json = command("run", out, "--profile", "--json").json["profile"]
    rows = {r["name"]: r for r in as_json["rows"]}
    assert rows["Gemm_Relu_r"]["simulated"] and rows["Gemm_Relu_r"]["cycles"] > 0
    assert not any(r["simulated"] for r in rows.values() if r["device"] == "host")
    found = command("compile", perceptron, "--target", "vta", "--certify")
    assert found.code == 2 and "--certify: --target vta rounds to bytes" in found.err


def test_quantize_writes_scales_that_run_and_compile_take(
    command, perceptron, tmp_path
):
    rng = np.random.default_rng(0)
    samples = []
    for n in range(3):
        samples += ["--sample", tmp_path / f"{n}.npz"]
        np.savez(tmp_path / f"{n}.npz", x=rng.standard_normal((2, 8), dtype=np.float32))
    scales = tmp_path / "s.json"
    found = command("quantize", perceptron, "--for", "vta", *samples, "-o", scales)
    assert found.code == 0, found.err
    assert "tensors from 3 samples" in found.out
    with_scales = ("--target", "vta", "--scales", scales)
    found = command("run", perceptron, *with_scales, "--inputs", tmp_path / "0.npz")
    assert found.code == 0, found.err
    assert "this input alone" not in found.err
    assert command("compile", perceptron, *with_scales, "--emit", "asm").code == 0


def test_quantize_by_a_multiplier(command, perceptron, tmp_path):
    scales = tmp_path / "s.json"
    found = command(
        "quantize", perceptron, "--for", "vta", "--by", "multiplier", "-o", scales
    )
    assert found.code == 0, found.err
    assert "factor" in found.out
    found = command("run", perceptron, "--target", "vta", "--scales", scales)
    assert found.code == 0, found.err
    assert "factor" in found.out
    found = command(
        "compile", perceptron, "--target", "vta", "--scales", scales, "--emit", "asm"
    )
    assert "ALU.MUL" in found.out
    found = command("quantize", perceptron, "--for", "vta", "--by", "luck")
    assert found.code == 2
    assert "'shift', 'multiplier', 'channel'" in found.err


def test_quantize_refuses(command, perceptron, tmp_path):
    found = command("quantize", perceptron, "--for", "npu")
    assert found.code == 2
    assert "one of cpu, vta" in found.err
    found = command("quantize", perceptron, "--for", "vta", "--smooth", "0.5")
    assert found.code == 2
    assert "--smooth: not with --for vta" in found.err
    found = command("quantize", perceptron, "--by", "shift")
    assert found.code == 2
    assert "--by: it is for accelerators" in found.err
    scales = tmp_path / "s.json"
    for text, message in (
        ("[]", "not a file of scales"),
        ('{"scales": {"z": 1}}', "not a file of scales"),
        ('{"by": "shift", "scales": {"z": 1}}', "another model"),
        ('{"by": "luck", "scales": {}}', "one of shift, multiplier"),
    ):
        scales.write_text(text)
        found = command("run", perceptron, "--target", "vta", "--scales", scales)
        assert found.code == 1
        assert message in found.err


def test_the_npu_runs_and_lists_a_model(command, perceptron):
    found = command("run", perceptron, "--target", "npu")
    assert found.code == 0, found.err
    assert (
        "MVMul" in found.out
        and "y: differs from the float model by at most" in found.out
    )
    assert "scales" not in found.err
    found = command("compile", perceptron, "--target", "npu", "--emit", "asm")
    assert found.code == 0, found.err
    assert "mv_mul mrf[0]" in found.out and "end_chain" in found.out
    found = command("compile", perceptron, "--target", "npu", "--emit", "llvm")
    assert found.code == 1 and "kernels on npu have no stage 'llvm'" in found.err
    out = perceptron.with_suffix(".tw")
    assert command("compile", perceptron, "--target", "npu", "-o", out).code == 0
    found = command("run", out, "--profile")
    assert "cycles at 250 MHz, simulated" in found.out


def test_the_npu_s_machine_is_the_user_s(command, perceptron, tmp_path):
    found = command("run", perceptron, "--target", "npu", "--machine", "wide")
    assert found.code == 0, found.err
    assert "MVMul128x128" in found.out
    found = command(
        "compile", perceptron, "--target", "npu", "--machine", "five", "--emit", "asm"
    )
    assert found.code == 2
    assert (
        "no machine and no file 'five'" in found.err
        and "one of full, wide" in found.err
    )
    described = tmp_path / "mine.toml"
    described.write_text("name = 5")
    found = command("run", perceptron, "--target", "npu", "--machine", described)
    assert found.code == 1 and str(described) in found.err


def test_a_vta_of_other_sizes_is_described(command, perceptron, tmp_path):
    small = tmp_path / "small.toml"
    small.write_text("LOG_UOP_BUFF_SIZE = 14\nLOG_INP_BUFF_SIZE = 14")
    found = command("run", perceptron, "--target", "vta", "--machine", small)
    assert found.code == 0, found.err
    small.write_text("LOG_UOP_SIZE = 14")
    found = command("run", perceptron, "--target", "vta", "--machine", small)
    assert found.code == 1
    assert str(small) in found.err and "LOG_UOP_SIZE" in found.err


def test_machines_that_are_one_are_not_described(command, perceptron):
    found = command("run", perceptron, "--target", "vdla", "--machine", "wide")
    assert found.code == 2
    assert found.err.startswith(
        "tilewright: --machine: --target vdla does not take wide"
    )
    assert "for --target cpu, npu, opencl, spirv, vta" in found.err


def test_scales_are_for_machines_of_bytes(command, perceptron):
    found = command("run", perceptron, "--scales", "some.json")
    assert found.code == 2
    said = "--scales: --target cpu does not take some.json; for --target vta"
    assert said in found.err


def test_verbs_that_are_for_processors_say_so(command, perceptron):
    for line, message in (
        (("check", "--target", "vdla"), "'vdla' takes no part of any model"),
        (("compile", "--target", "vdla"), "'vdla' takes no part of any model"),
        (("bench", "--target", "vta"), "'vta' is simulated"),
        (
            ("verify", "--kernels", "--target", "vta"),
            "kernels of 'vta' cannot be validated",
        ),
    ):
        found = command(line[0], perceptron, *line[1:])
        assert found.code == 1 and message in found.err, found.err
