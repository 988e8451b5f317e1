"""`--target vta`: models quantised for a machine that takes bytes, by any verb that knows of it."""

import numpy as np


def test_run_simulates_and_compares(command, perceptron, tmp_path):
    target = tmp_path / "y.npz"
    found = command("run", perceptron, "--target", "vta", "-o", target)
    assert found.code == 0, found.err
    assert found.out.splitlines()[0].startswith("vta  Gemm+Relu")
    assert "y: at most" in found.out
    assert "scales are taken from this input alone" in found.err
    (y,) = np.load(target).values()
    as_json = command("run", perceptron, "--target", "vta", "--json")
    assert as_json.json["largest_error"]["y"] < 0.1 * as_json.json["largest"]["y"]
    assert np.abs(y).max() <= as_json.json["largest"]["y"] * 1.1


def test_compile_lists_the_instructions(command, perceptron):
    found = command("compile", perceptron, "--target", "vta", "--emit", "asm")
    assert found.code == 0, found.err
    assert "// Gemm+Relu -> r" in found.out
    assert "FINISH pop(LD) pop(ST)" in found.out
    found = command("compile", perceptron, "--target", "vta")
    assert found.code == 1
    assert "pass --emit asm" in found.err
