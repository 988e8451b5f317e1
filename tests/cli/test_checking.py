"""verify --kernels, verify --minimize, compile --certify: what they find, print and write."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.cli.conftest import make
from tilewright.base.errors import ArtifactError
from tilewright.cli import certificate
from tilewright.ir.node import transform
from tilewright.loops.nodes import Store
from tilewright.runtime import bundle
from tilewright.targets.cpu.target import CpuTarget

FLOAT = onnx.TensorProto.FLOAT


@pytest.fixture
def off_by_one(monkeypatch):
    """A code generator whose stores of 2 x 16 results lie one element further."""
    emit = CpuTarget.emit

    def further(s):
        if (
            isinstance(s, Store)
            and s.buffer.shape in ((2, 16), (32,))
            and s.buffer.name != "x"
        ):
            return Store(s.buffer, (*s.index[:-1], s.index[-1] + 1), s.value)
        return s

    def broken(self, kernel, *rest):
        return emit(self, kernel.with_body(transform(kernel.body, further)), *rest)

    monkeypatch.setattr(CpuTarget, "emit", broken)


@pytest.fixture
def wrong_relu(monkeypatch):
    """A kernel that is wrong on purpose: the rectifier lets everything through."""
    from dataclasses import replace

    from tilewright.compute.build import map_
    from tilewright.graph.ops import registry

    definition = registry.lookup("Relu", "", 14)

    def wrong(call, inputs, outputs):
        return [map_("relu", outputs[0], lambda *i: inputs[0][i])]

    broken = replace(definition, compute=wrong)
    monkeypatch.setitem(registry._definitions, ("", "Relu"), [broken])


def test_kernels_are_listed(command, perceptron):
    found = command("verify", perceptron, "--kernels")
    assert found.code == 0, found.err
    heading, *rows = found.out.strip().splitlines()
    assert heading.split() == "kernel kind results compared error allowed".split()
    assert len(rows) == 2 and all(row.endswith("ok") for row in rows)
    assert "tiled" in found.out and "float32[2, 16]" in found.out
    said = command("verify", perceptron, "--kernels", "--json").json
    assert said["ok"] and [k["total"] for k in said["kernels"]] == [64, 16]


def test_a_wrong_kernel_is_named(command, perceptron, off_by_one):
    found = command("verify", perceptron, "--kernels")
    assert found.code == 1
    assert "wrong" in found.out
    assert "bytes past the end of r (reals, guarded behind, 1 thread)" in found.out
    said = command("verify", perceptron, "--kernels", "--json")
    assert said.code == 1 and not said.json["ok"]
    assert said.json["kernels"][0]["faults"][0]["what"] == "fault"


def test_kernels_of_a_symbolic_model_need_its_extents(command, symbolic):
    found = command("verify", symbolic, "--kernels")
    assert found.code == 1 and "--dim batch=1" in found.err
    assert command("verify", symbolic, "--kernels", "--dim", "batch=3").code == 0


def test_the_smallest_wrong_part_is_written(command, perceptron, wrong_relu, tmp_path):
    out = tmp_path / "small.onnx"
    found = command("verify", perceptron, "--minimize", out)
    assert found.code == 1
    assert "1 operator that still fails" in found.out
    small = onnx.load(out)
    onnx.checker.check_model(small, full_check=True)
    assert [n.op_type for n in small.graph.node] == ["Relu"]
    with np.load(tmp_path / "small.npz") as archive:
        assert list(archive) == ["h"] and archive["h"].min() < 0
    again = command("verify", out, "--inputs", tmp_path / "small.npz", "--json")
    assert again.code == 1 and again.json["divergence"]["operator"] == "Relu"


def test_operators_that_are_wrong_together_stay_together(
    command, tmp_path, monkeypatch
):
    """A chain of four maps, of which Neg and Exp are wrong where they meet in one kernel."""
    from tilewright.cli import verify

    nodes = [
        onnx.helper.make_node(op, [a], [b], op.lower())
        for op, a, b in (
            ("Sin", "x", "a"),
            ("Neg", "a", "b"),
            ("Exp", "b", "c"),
            ("Cos", "c", "y"),
        )
    ]
    path = tmp_path / "chain.onnx"
    onnx.save(make(nodes, {"x": (FLOAT, [5])}, {"y": (FLOAT, [5])}), path)
    compiled = verify.compile_model

    def together(graph, *rest):
        kinds = [op.op_type for op in graph.operations]
        inside = {v for op in graph.operations for v in op.writes} - set(graph.outputs)
        exe = compiled(graph, *rest)
        if (
            "Neg" not in kinds
            or "Exp" not in kinds
            or not any(v.name == "b" for v in inside)
        ):
            return exe

        def wrong(feeds):
            found = exe(feeds)
            return found + 1 if len(graph.outputs) == 1 else tuple(a + 1 for a in found)

        wrong.inputs = exe.inputs
        return wrong

    monkeypatch.setattr(verify, "compile_model", together)
    out = tmp_path / "small.onnx"
    found = command("verify", path, "--minimize", out)
    assert found.code == 1
    assert "only when compiled together" in found.out
    assert [n.op_type for n in onnx.load(out).graph.node] == ["Neg", "Exp"]


def test_nothing_is_written_for_a_right_model(command, perceptron, tmp_path):
    out = tmp_path / "small.onnx"
    said = command("verify", perceptron, "--minimize", out, "--json")
    assert said.code == 0 and said.json["minimized"] is None
    assert not out.exists()


def test_a_certificate_says_what_was_compared(command, perceptron, tmp_path):
    out = tmp_path / "m.tw"
    found = command(
        "compile", perceptron, "-o", out, "--certify", "--seed", 7, "--json"
    )
    assert found.code == 0, found.err
    said = tw.load(out).certificate
    assert said == found.json["certificate"]
    assert said["seed"] == 7 and said["inputs"] == {"x": "float32[2, 8]"}
    (row,) = said["outputs"]
    assert row["output"] == "y" and 0 <= row["difference"] <= row["allowed"] == 1e-4
    shown = command("verify", out)
    assert shown.code == 0
    assert (
        "on random inputs of seed 7: x: float32[2, 8]" in shown.out
        and "ok" in shown.out
    )
    assert (
        json.loads(json.dumps(command("verify", out, "--json").json["certificate"]))
        == said
    )


def test_an_artifact_of_a_replaced_math_mode_loads_and_shows_its_certificate(
    command, perceptron, tmp_path
):
    out, former = tmp_path / "m.tw", tmp_path / "former.tw"
    assert command("compile", perceptron, "-o", out, "--certify").code == 0
    exe = tw.load(out)
    certificate = {**exe.certificate, "math": "strict"}
    meta = {**exe.model.meta, "math": "strict", "certificate": certificate}
    bundle.write(replace(exe.model, meta=meta), former)
    assert command("run", former).code == 0
    assert "math strict" in command("verify", former).out


def test_an_artifact_without_a_certificate(command, perceptron, tmp_path):
    out = tmp_path / "m.tw"
    assert command("compile", perceptron, "-o", out).code == 0
    assert tw.load(out).certificate is None
    found = command("verify", out)
    assert found.code == 1 and "tilewright compile --certify" in found.err
    assert command("verify", out, "--kernels").code == 2


def test_a_wrong_model_gets_no_certificate(command, perceptron, wrong_relu, tmp_path):
    out = tmp_path / "m.tw"
    found = command("compile", perceptron, "-o", out, "--certify")
    assert found.code == 1 and not out.exists()
    assert (
        "the output 'y' differs by" in found.err and "Nothing was written" in found.err
    )


def test_a_malformed_certificate(tmp_path):
    for wrong in (
        {},
        {"inputs": 3},
        {"inputs": {}, "reference": 1, "seed": 2, "outputs": [1]},
    ):
        with pytest.raises(ArtifactError, match="its certificate is malformed"):
            certificate.show(tmp_path, wrong, False)


def test_sanitized_models_run(command, perceptron):
    assert command("verify", perceptron, "--sanitize").code == 0


@pytest.mark.parametrize(
    ("options", "code"), [((), 0), (("--tolerance", "1e-5"), 1)], ids=str
)
def test_a_lower_precision_has_its_own_tolerance(options, code, command, perceptron):
    found = command("verify", perceptron, "--precision", "bfloat16", *options, "--json")
    (row,) = found.json["outputs"]
    assert (found.code, row["ok"]) == (code, not code)
    assert 1e-5 < row["difference"] < 4e-2


def test_a_certificate_of_a_lower_precision(command, perceptron, tmp_path):
    made = tmp_path / "m.tw"
    how = ("--precision", "bfloat16", "--certify")
    assert command("compile", perceptron, *how, "-o", made).code == 0
    (row,) = command("verify", made, "--json").json["certificate"]["outputs"]
    assert 1e-5 < row["difference"] < row["allowed"] == 0.04
