"""`compile -o` with the suffix of a library."""

import json

import pytest


def test_a_library(command, perceptron, tmp_path):
    out, header = tmp_path / "libmlp.so", tmp_path / "mlp.h"
    found = command("compile", perceptron, "-o", out, "--header", header, "--json")
    assert found.code == 0, found.err
    assert found.json["library"] == str(out) and found.json["header"] == str(header)
    assert found.json["bytes"] == out.stat().st_size
    assert "int mlp_run(" in header.read_text()
    assert json.loads((tmp_path / "libmlp.json").read_text())["name"] == "mlp"


def test_several_processors_and_another_system(command, perceptron, tmp_path):
    out = tmp_path / "mlp.o"
    levels = "x86-64-v3,x86-64-v2"
    found = command("compile", perceptron, "-o", out, "--mcpu", levels, "--json")
    assert found.json["processors"] == ["x86-64-v3", "x86-64-v2"]
    triple = "riscv64-unknown-linux-gnu"
    found = command("compile", perceptron, "-o", out, "--target-triple", triple)
    assert found.code == 0 and f"for {triple} (riscv64)" in found.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "m.tw", "--header", "m.h"], "--header: only a library has one"),
        (["--target-triple", "wasm32-unknown-unknown"], "only a library has one"),
        (["-o", "m.so", "--certify"], "--certify: it is only for artifacts"),
        (["-o", "m.so", "--sanitize"], "--sanitize: it is only for artifacts"),
        (["-o", "m.so", "--mcpu", "z80"], "unknown processor 'z80'; known: native"),
        (["-o", "m.so", "--mcpu", "cortex-m77"], "did you mean 'cortex-m7'?"),
        (["-o", "m.tw", "--mcpu", "multi"], "selects among several: name it *.so"),
        (["-o", "m.so", "--target-triple", "z80-none"], "for the triple 'z80-none'"),
        (["-o", "no/m.so"], "does not exist"),
        (["-o", "m.tw", "--mcpu", "riscv64"], "there are no artifacts for 'riscv64'"),
        (["-o", "m.tw", "--mcpu", "wasm32"], "compile a library"),
        (["-o", "m.tw", "--mcpu", "cortex-m4"], "compile a library"),
    ],
)
def test_bad_input(command, perceptron, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    found = command("compile", perceptron, *options)
    assert found.code in (1, 2) and message in found.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("mcpu", "message"),
    [
        ("cortex-m4", "not supported for thumbv7em-none-eabihf; write .o, .a"),
        ("wasm32", "not supported for wasm32-unknown-unknown; write .o, .a, .wasm"),
    ],
)
def test_systems_without_shared_libraries(command, perceptron, tmp_path, mcpu, message):
    out = tmp_path / "mlp.so"
    found = command("compile", perceptron, "-o", out, "--mcpu", mcpu)
    assert found.code == 1 and message in found.err and not out.exists()


def test_a_symbolic_dimension(command, symbolic, tmp_path):
    out = tmp_path / "mlp.so"
    found = command("compile", symbolic, "-o", out)
    assert found.code == 1 and "--dim batch=1" in found.err and not out.exists()
    assert command("compile", symbolic, "-o", out, "--dim", "batch=4").code == 0
