"""Inputs that a model has values for, and weights in further folders, on the command line."""

import os

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

ONES = np.ones(4, np.float32)


@pytest.fixture
def scaled(tmp_path):
    """y = x * k, where the model has 2 for k."""
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> f (float[4] x, float[4] k) => (float[4] y) '
        "{ y = Mul(x, k) }"
    )
    made.graph.initializer.append(numpy_helper.from_array(2 * ONES, "k"))
    onnx.save(made, tmp_path / "m.onnx")
    np.savez(tmp_path / "all.npz", x=ONES, k=5 * ONES)
    np.save(tmp_path / "x.npy", ONES)
    np.save(tmp_path / "k.npy", 3 * ONES)
    return tmp_path / "m.onnx"


def result(command, *words):
    folder = words[1].parent
    out = folder / "y.npz"
    ran = command(*words, "-o", out, "--repeat", 1)
    assert ran.code == 0, ran.err
    with np.load(out) as found:
        return found["y"][0]


def test_what_is_given_takes_the_place_of_a_default(command, scaled):
    x, k = f"x={scaled.parent / 'x.npy'}", f"k={scaled.parent / 'k.npy'}"
    assert result(command, "run", scaled, "--input", x) == 2
    assert result(command, "run", scaled, "--input", x, "--input", k) == 3
    assert result(command, "run", scaled, "--inputs", scaled.parent / "all.npz") == 5
    assert command("verify", scaled, "--input", k).code == 0
    ran = command("run", scaled, "--input", f"q={scaled.parent / 'x.npy'}")
    assert ran.code == 1 and "no input 'q'" in ran.err


def test_an_artifact_whose_calls_give_it(command, scaled):
    assert command("compile", scaled, "--no-default", "k").code == 0
    made, given = scaled.with_suffix(".tw"), scaled.parent / "all.npz"
    assert result(command, "run", made, "--inputs", given) == 5
    ran = command("run", made, "--no-default", "k")
    assert ran.code == 2 and "--no-default: an artifact is already compiled" in ran.err
    ran = command("compile", scaled, "--no-default", "x")
    assert ran.code == 2 and "the model has: 'k'" in ran.err


def test_weights_with_hard_links(command, scaled):
    made = onnx.load(scaled)
    outside = {"save_as_external_data": True, "location": "k.bin", "size_threshold": 0}
    onnx.save(made, scaled, **outside)
    os.link(scaled.parent / "k.bin", scaled.parent / "again.bin")
    x = f"x={scaled.parent / 'x.npy'}"
    ran = command("run", scaled, "--input", x)
    assert ran.code == 1 and "--external-data-root" in ran.err
    opened = ("--external-data-root", scaled.parent)
    assert result(command, "run", scaled, "--input", x, *opened) == 2
    ran = command("run", scaled, "--external-data-root", scaled.parent / "nowhere")
    assert ran.code == 2
