"""`tilewright quantize` for the host: a model in QDQ form from calibration data."""

import json

import click
import numpy as np
import onnx
import pytest

from tilewright.cli.quantize import command as verb
from tilewright.cli.quantize_options import OPTIONS, QuantizeUse


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "data.npz"
    np.savez(path, x=rng.standard_normal((12, 2, 8), dtype=np.float32))
    return path


def test_a_model_is_written_that_others_run(command, perceptron, data, tmp_path):
    import onnxruntime as ort

    out = tmp_path / "q.onnx"
    found = command("quantize", perceptron, "--calibrate", data, "-o", out)
    assert found.code == 0, found.err
    assert "2 of 2 layers in 8 bits, ranges from 9 samples" in found.out
    assert "top-1 agreement" in found.out and "on 3 held-out samples" in found.out
    model = onnx.load(out)
    onnx.checker.check_model(model, full_check=True)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("QuantizeLinear") == 2 and kinds.count("DequantizeLinear") == 5
    x = np.load(data)["x"][0]
    (theirs,) = ort.InferenceSession(str(out)).run(None, {"x": x})
    np.savez(tmp_path / "x.npz", x=x)
    y = tmp_path / "y.npz"
    ran = command("run", out, "--inputs", tmp_path / "x.npz", "-o", y)
    assert ran.code == 0, ran.err
    (ours,) = np.load(y).values()
    assert np.abs(ours - theirs).max() < 0.03 * np.abs(theirs).max()


def test_the_default_name_and_json(command, perceptron, data):
    found = command("quantize", perceptron, "--calibrate", data, "--json")
    assert found.code == 0, found.err
    assert found.json["model"] == str(perceptron.with_suffix(".int8.onnx"))
    assert perceptron.with_suffix(".int8.onnx").exists()
    assert [x["quantized"] for x in found.json["layers"]] == [True, True]
    assert found.json["agreement"]["cosine"] > 0.99
    assert found.json["samples"] == 9


def test_fragile_layers_are_named(command, perceptron, data):
    found = command("quantize", perceptron, "--calibrate", data, "--max-drop", "0%")
    assert found.code == 0, found.err
    assert "0 of 2 layers in 8 bits" in found.out
    assert "hidden" in found.out and "it exceeds the acceptable loss" in found.out
    found = command("quantize", perceptron, "--calibrate", data, "--keep", "head")
    assert "1 of 2 layers in 8 bits" in found.out and "it was requested" in found.out


@pytest.mark.representatives(
    "--method percentile --percentile 99.9",
    "--equalize --correct-bias",
    "--search --rounding gptq",
)
@pytest.mark.parametrize(
    "options",
    [
        ("--method", "entropy"),
        ("--method", "percentile", "--percentile", "99.9"),
        ("--method", "mse", "--activations", "int8"),
        ("--equalize", "--correct-bias"),
        ("--smooth", "0.5"),
        ("--search", "--rounding", "gptq"),
    ],
    ids=" ".join,
)
def test_methods(command, perceptron, data, options):
    found = command("quantize", perceptron, "--calibrate", data, *options, "--json")
    assert found.code == 0, found.err
    assert found.json["agreement"]["cosine"] > 0.99


def test_samples_from_files_or_at_random(command, perceptron, data, tmp_path):
    x = np.load(data)["x"]
    files = []
    for n in range(2):
        np.savez(tmp_path / f"{n}.npz", x=x[n])
        files += ["--sample", tmp_path / f"{n}.npz"]
    found = command("quantize", perceptron, *files)
    assert found.code == 0, found.err
    assert "ranges from 1 sample" in found.out
    found = command("quantize", perceptron)
    assert found.code == 0, found.err
    assert "random inputs are used instead" in found.err


def bad(**arrays):
    return arrays


REFUSED = {
    "the model has no input 'z'": bad(z=np.ones(3, np.float32)),
    "expected float32[2, 8]": bad(x=np.ones((3, 2, 7), np.float32)),
    "the data are constant": bad(x=np.ones((3, 2, 8), np.float32)),
    "NaN or infinite": bad(x=np.full((3, 2, 8), np.nan, np.float32)),
    "there are no samples": bad(x=np.ones((0, 2, 8), np.float32)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_data_are_refused_and_nothing_is_written(
    command, perceptron, tmp_path, message
):
    np.savez(tmp_path / "bad.npz", **REFUSED[message])
    out = tmp_path / "q.onnx"
    found = command(
        "quantize", perceptron, "--calibrate", tmp_path / "bad.npz", "-o", out
    )
    assert found.code == 1
    assert message in found.err and len(found.err.splitlines()) == 1
    assert not out.exists()


def test_bad_options_are_refused(command, perceptron, data, tmp_path):
    given = ("quantize", perceptron, "--calibrate", data)
    found = command(*given, "--max-drop", "half")
    assert found.code == 2 and "expected a share, such as 0.5%" in found.err
    found = command(*given, "--smooth", "3")
    assert found.code == 2 and "smooth=3.0; give a number from 0 to 1" in found.err
    found = command(*given, "--percentile", "99")
    assert found.code == 2 and "leave it out, or choose the method" in found.err
    found = command(*given, "--keep", "haed")
    assert found.code == 2 and "head" in found.err
    found = command("quantize", perceptron, "--calibrate", tmp_path / "none.npz")
    assert found.code == 1 and "none.npz" in found.err


def test_the_accelerator_takes_the_same_data_and_methods(
    command, perceptron, data, tmp_path
):
    scales = tmp_path / "s.json"
    for method in ("min-max", "mse"):
        found = command(
            "quantize", perceptron, "--for", "vta", "--calibrate", data,
            "--method", method, "--by", "multiplier", "-o", scales,
        )  # fmt: skip
        assert found.code == 0, found.err
        assert "tensors from 12 samples" in found.out
    found = command("run", perceptron, "--target", "vta", "--scales", scales)
    assert found.code == 0, found.err


def test_extents_come_from_the_samples(command, symbolic, tmp_path):
    out = tmp_path / "q.onnx"

    def told(option, shape, *more):
        out.unlink(missing_ok=True)
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        np.savez(tmp_path / "data.npz", x=x)
        line = (option, tmp_path / "data.npz", "-o", out, *more)
        return command("quantize", symbolic, *line)

    for option, shape in (("--sample", (3, 8)), ("--calibrate", (2, 3, 8))):
        found = told(option, shape)
        assert found.code == 0, found.err
        (tensor,) = onnx.load(out).graph.input
        assert tensor.type.tensor_type.shape.dim[0].dim_value == 3
    # The first axis counts the samples; and --dim, where given, is what they must fit.
    for line, said in (
        (("--calibrate", (6, 8)), "--dim batch=1"),
        (("--sample", (3, 8), "--dim", "batch=2"), "[2, 8]"),
        (("--sample", (3, 7)), "[3, 8]"),
        (("--sample", (3, 8, 1)), "--dim batch=1"),
    ):
        found = told(*line)
        assert found.code == 1 and said in found.err, found.err
        assert not out.exists()


USES = {
    QuantizeUse.HOST: (),
    QuantizeUse.ACCELERATOR: ("--for", "vta"),
    QuantizeUse.WEIGHTS: ("--weights", "int4"),
}
# What options that are not choices take.
VALUES = {"group": "64", "percentile": "99", "smooth": "0.5", "max_drop": "1%"}
OTHERS = [(use, row) for use in QuantizeUse for row in OPTIONS if use not in row.uses]


@pytest.mark.parametrize(("use", "row"), OTHERS, ids=lambda x: x.name)
def test_an_option_without_effect_is_refused(command, perceptron, data, use, row):
    if row.name in ("weights", "machine"):
        pytest.skip("it chooses what is made")
    option = next(p for p in verb.params if p.name == row.name)
    value = VALUES.get(row.name, data)
    if isinstance(option.type, click.Choice):
        value = option.type.choices[-1]
    values = () if option.is_flag else (value,)
    found = command("quantize", perceptron, *USES[use], option.opts[0], *values)
    assert found.code == 2, found.out
    assert option.opts[0] in found.err and len(found.err.splitlines()) <= 2


@pytest.mark.parametrize("flag", ["--for", "--target"])
def test_the_target_has_the_spelling_of_the_other_verbs_too(
    command, perceptron, tmp_path, flag
):
    scales = tmp_path / "scales.json"
    found = command("quantize", perceptron, flag, "vta", "-o", scales)
    assert found.code == 0, found.err
    assert json.loads(scales.read_text())["machine"] == "vta"
    found = command("quantize", perceptron, flag, "vta", "--weights", "int8")
    assert found.code == 2 and "--for: not with --weights" in found.err, found.err


def test_a_model_with_operators_that_the_compiler_decomposes(command, tmp_path):
    """Resize has no other form in ONNX; the transposed convolution is a layer."""
    text = """<ir_version: 8, opset_import: ["": 13]>
      m (float[N, 2, 4, 4] x) => (float[N, c, h, w] y) {
        a = Resize<mode = "linear">(x, , s)  y = ConvTranspose<strides = [2, 2]>(a, k)
      }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(1)
    k = rng.standard_normal((2, 3, 2, 2), dtype=np.float32)
    for name, array in (("s", np.array([1, 1, 2, 2], np.float32)), ("k", k)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path, data, out = (tmp_path / n for n in ("m.onnx", "d.npz", "q.onnx"))
    onnx.save(model, path)
    np.savez(data, x=rng.standard_normal((4, 1, 2, 4, 4), dtype=np.float32))
    found = command(
        "quantize", path, "--calibrate", data, "-o", out, "--metric", "cosine"
    )
    assert found.code == 0, found.err
    assert "1 of 1 layers in 8 bits" in found.out
    kinds = [node.op_type for node in onnx.load(out).graph.node]
    assert "Resize" in kinds and "Conv" in kinds
