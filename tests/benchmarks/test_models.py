"""The networks: seeded, cached, valid, with weights that keep activations in range."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

from benchmarks import models, weights


def test_a_tensor_is_drawn_by_its_name_alone():
    first = weights.draw("net", "a", "matrix", (8, 4), 2.0)
    weights.draw("net", "b", "bias", (8,))
    assert np.array_equal(first, weights.draw("net", "a", "matrix", (8, 4), 2.0))
    assert not np.array_equal(first, weights.draw("net", "b", "matrix", (8, 4), 2.0))
    assert not np.array_equal(first, weights.draw("other", "a", "matrix", (8, 4), 2.0))


@pytest.mark.parametrize("role", weights.ROLES)
def test_every_role_gives_finite_float32(role: str):
    values = weights.draw("net", "t", role, (64, 32))
    assert values.dtype == np.float32 and values.shape == (64, 32)
    assert np.isfinite(values).all() and values.std() > 0


def test_matrix_variance_is_gain_over_fan_in():
    values = weights.draw("net", "w", "matrix", (256, 64, 3, 3), 2.0)
    assert values.var() == pytest.approx(2.0 / (64 * 9), rel=0.02)


def test_variances_are_positive_and_near_one():
    values = weights.draw("net", "v", "var", (1000,))
    assert values.min() >= 0.5 and values.max() <= 1.5


def test_light_graph_is_modern_and_has_real_weights(folder: Path):
    model = onnx.load(folder / "squeezenet.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version >= 17
    assert "ConstantOfShape" not in {node.op_type for node in model.graph.node}
    assert [i.name for i in model.graph.input] == list(models.inputs("squeezenet"))
    for initializer in model.graph.initializer:
        values = numpy_helper.to_array(initializer)
        assert values.std() > 0 and np.isfinite(values).all(), initializer.name


def test_activations_neither_explode_nor_vanish(folder: Path):
    from benchmarks import reference

    model = onnx.load(folder / "squeezenet.onnx")
    values = reference.evaluate(model, models.inputs("squeezenet"))
    for node in model.graph.node:
        if node.op_type in ("Conv", "Relu", "Concat"):
            assert 0.1 < values[node.output[0]].std() < 20, node.output[0]


def test_a_model_is_built_once_per_recipe(folder: Path):
    path = folder / "squeezenet.onnx"
    os.utime(path, (1, 1))
    assert models.build("squeezenet", folder) == path
    assert path.stat().st_mtime == 1
    content = path.read_bytes()
    (folder / "squeezenet.recipe").write_text("an older recipe")
    models.build("squeezenet", folder)
    assert path.stat().st_mtime > 1
    assert path.read_bytes() == content
    assert list(folder.glob(".*")) == []


@pytest.mark.parametrize(
    "name", [*models.RECIPES, "bias_grad_4096x768", "int8_matmul_1024"]
)
def test_inputs_are_seeded(name: str):
    first, again, other = (
        models.inputs(name),
        models.inputs(name),
        models.inputs(name, 1),
    )
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert any(not np.array_equal(first[key], other[key]) for key in first)


@pytest.mark.slow
def test_exported_network_has_drawn_weights(tmp_path: Path):
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    path = models.build("lenet", tmp_path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    drawn = weights.draw("lenet", "0.weight", "matrix", (6, 1, 5, 5), 2.0)
    stored = [numpy_helper.to_array(i) for i in model.graph.initializer]
    assert any(s.shape == drawn.shape and np.array_equal(s, drawn) for s in stored)
    with np.load(models.write_outputs("lenet", path)) as archive:
        assert 0.2 < archive["out.output"].std() < 5


@pytest.mark.slow
def test_a_quantized_network_is_the_float_one_within_its_steps(tmp_path: Path):
    pytest.importorskip("onnxruntime")
    from benchmarks import reference, score
    from tilewright.cli.rounds import difference

    path = models.build("int8_resnet18", tmp_path)
    kinds = {n.op_type for n in onnx.load(path).graph.node}
    assert {
        "QuantizeLinear",
        "DequantizeLinear",
        "Conv",
    } <= kinds and "Relu" not in kinds
    expected = reference.outputs("int8_resnet18", path)
    with np.load(models.write_outputs("int8_resnet18", path)) as archive:
        got = [archive["out.output"]]
    assert difference(got, expected) <= score.BARS["int8"].error
    real = reference.outputs("resnet18", models.build("resnet18", tmp_path))
    assert 0 < difference(got, real) < 0.2


def test_unknown_network_is_named():
    with pytest.raises(
        KeyError, match="no network or operator 'alexnet'; there are lenet"
    ):
        models.build("alexnet", Path("nowhere"))
    result = CliRunner().invoke(models.main, [])
    assert result.exit_code == 2 and "name networks" in result.output


SMALL = [
    "int8_conv1x1_256x56_64",
    # PyTorch's exporter alone takes seconds.
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("bert_mask_16x384", "bf16_conv3x3_128x28", "attention_8x128")
    ),
]


@pytest.mark.parametrize("name", SMALL)
def test_an_operator_is_what_onnx_runtime_and_float64_say(name: str, tmp_path: Path):
    from benchmarks import reference, score
    from tilewright.cli.rounds import difference

    path = models.build(name, tmp_path)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    expected = reference.outputs(name, path)
    if name.startswith("bf16"):  # not among ONNX Runtime's
        import torch

        from benchmarks import torch_nets

        with torch.inference_mode():
            x = torch.from_numpy(models.inputs(name)["x0"])
            got = [torch_nets.module(name)(x).numpy()]
    else:
        with np.load(models.write_outputs(name, path)) as archive:
            got = [archive["out.output"]]
    assert difference(got, expected) <= score.BARS[score.kind(name)].error


@pytest.mark.slow
def test_a_torch_peer_runs_the_weights_of_the_file(tmp_path: Path):
    from benchmarks import peers, reference
    from tilewright.cli.rounds import difference

    path = models.build("lstm2", tmp_path)
    got = peers.torch_eager(path, 1)(models.inputs("lstm2"))
    assert difference(got, reference.outputs("lstm2", path)) < 1e-5


def test_an_onnx_graph_runs_in_torch(folder: Path):
    from benchmarks import peers, reference
    from tilewright.cli.rounds import difference

    path = folder / "squeezenet.onnx"
    got = peers.torch_eager(path, 1)(models.inputs("squeezenet"))
    assert difference(got, reference.outputs("squeezenet", path)) < 1e-5
