"""Every kind of bad input that reaches a verb: exit code 1 or 2, one line, no partial output."""

import time
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.external_data_helper import convert_model_to_external_data

from tests.cli.conftest import make, perceptron_model
from tilewright.cli import explain, output

FLOAT = TensorProto.FLOAT
VERBS = ("run", "compile", "bench", "verify", "check")


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch):
    """A slow machine prints no more than a fast one."""
    monkeypatch.setattr(output, "_LINE_SECONDS", float("inf"))


def refused(found, *texts, code=1):
    """One line on stderr that holds the texts, nothing on stdout."""
    assert found.code == code, found.out + found.err
    lines = [line for line in found.err.splitlines() if "warning:" not in line]
    assert len(lines) == 1, found.err
    for text in texts:
        assert text in lines[0]
    assert "Traceback" not in found.err and "internal error" not in found.err
    assert found.out == ""


@pytest.fixture(params=VERBS)
def verb(request, command, tmp_path):
    """Each verb that takes a model; it must leave no artifact behind."""
    before = time.perf_counter()
    yield lambda path, *more: command(request.param, path, *more)
    assert not list(tmp_path.glob("*.tw")) and not list(tmp_path.glob(".writing*"))
    assert time.perf_counter() - before < 20


def save(tmp_path, model):
    path = tmp_path / "bad.onnx"
    onnx.save(model, path)
    return path


def test_missing_file(verb, tmp_path):
    refused(verb(tmp_path / "absent.onnx"), "absent.onnx", "no such file")


def test_a_folder(verb, tmp_path):
    refused(verb(tmp_path), "folder")


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff" * 500, b"not a model", b"\x08\x08"]
)
def test_bytes_that_are_no_model(verb, tmp_path, content):
    path = tmp_path / "noise.onnx"
    path.write_bytes(content)
    refused(verb(path), "noise.onnx", "not an ONNX model")


def test_truncated_model(verb, perceptron, tmp_path):
    path = tmp_path / "short.onnx"
    path.write_bytes(perceptron.read_bytes()[:-100])
    refused(verb(path), "short.onnx")


def test_unsupported_operators_all_at_once(verb, tmp_path):
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], "blk.3/foo", domain="com.acme"),
        helper.make_node("Foo", ["a"], ["b"], "blk.4/foo", domain="com.acme"),
        helper.make_node("Bar", ["b"], ["y"], "last", domain="com.acme"),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 3)]
    table = {"x": (FLOAT, [1, 3])}, {"y": (FLOAT, [1, 3])}
    found = verb(save(tmp_path, make(nodes, *table, opsets=opsets)))
    refused(found, "com.acme::Foo", "com.acme::Bar", "opset 3", "2 nodes", "blk.3/foo",
            "float32[1, 3]", "register")  # fmt: skip


def external(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    model = perceptron_model()
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, folder / "bad.onnx")
    model = onnx.load(folder / "bad.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (folder / "bad.onnx").write_bytes(model.SerializeToString())
    return folder


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin"]
)
def test_external_data_outside_the_folder(verb, tmp_path, location):
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    refused(
        verb(external(tmp_path, location) / "bad.onnx"), "bad.onnx", "external data"
    )


def test_external_data_behind_a_link(verb, tmp_path):
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    folder = external(tmp_path, "link.bin")
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    refused(verb(folder / "bad.onnx"), "outside the model's folder")


def test_external_data_missing_or_short(verb, tmp_path):
    folder = external(tmp_path, "gone.bin")
    refused(verb(folder / "bad.onnx"), "gone.bin", "does not exist")
    (folder / "gone.bin").write_bytes(bytes(10))
    refused(verb(folder / "bad.onnx"), "gone.bin")


def cyclic():
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
    ]
    return make(nodes, {"x": (FLOAT, [2])}, {"b": (FLOAT, [2])})


def dangling():
    return make(
        [helper.make_node("Relu", ["nowhere"], ["y"], "r")], {}, {"y": (FLOAT, [2])}
    )


def dangling_output():
    return make(
        [helper.make_node("Relu", ["x"], ["a"])],
        {"x": (FLOAT, [2])},
        {"y": (FLOAT, [2])},
    )


def duplicate():
    nodes = [
        helper.make_node("Relu", ["x"], ["y"], "r1"),
        helper.make_node("Abs", ["x"], ["y"], "r2"),
    ]
    return make(nodes, {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])})


def mismatched():
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"], "product")]
    return make(nodes, {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 3])})


@pytest.mark.parametrize(
    ("build", "text"),
    [(cyclic, "cycl"), (dangling, "nowhere"), (dangling_output, "'y'"), (duplicate, "'y'"),
     (mismatched, "product")],
    ids=lambda v: getattr(v, "__name__", ""),
)  # fmt: skip
def test_broken_graphs(verb, tmp_path, build, text):
    refused(verb(save(tmp_path, build())), "bad.onnx", text)


def test_absurd_sizes_are_refused_before_allocation(verb, tmp_path):
    nodes = [helper.make_node("Expand", ["x", "shape"], ["y"], "huge")]
    model = make(nodes, {"x": (FLOAT, [1])}, {"y": (FLOAT, None)},
                 {"shape": np.array([10**6, 10**6])})  # fmt: skip
    refused(verb(save(tmp_path, model)), "huge", "memory limit")


def test_absurd_input_sizes(verb, tmp_path):
    model = make([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, [10**6, 10**6])},
                 {"y": (FLOAT, [10**6, 10**6])})  # fmt: skip
    refused(verb(save(tmp_path, model)), "'x'", "memory limit")


def test_the_limit_is_the_callers(verb, perceptron):
    found = verb(perceptron, "--memory-limit", "64")
    refused(found, "memory limit")


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (["--input", "z={x}"], "no input 'z'"),
        (["--input", "x={wide}"], "expected float32[2, 8], got float64[2, 8]"),
        (["--input", "x={tall}"], "expected float32[2, 8], got float32[3, 8]"),
        (["--input", "x={gone}"], "gone.npy"),
        (["--inputs", "{gone}"], "gone.npy"),
    ],
)
@pytest.mark.parametrize("name", ["run", "bench", "verify"])
def test_wrong_inputs(command, perceptron, tmp_path, name, option, text):
    files = {"x": np.ones((2, 8), np.float32), "wide": np.ones((2, 8)),
             "tall": np.ones((3, 8), np.float32)}  # fmt: skip
    for key, array in files.items():
        np.save(tmp_path / f"{key}.npy", array)
    places = {key: tmp_path / f"{key}.npy" for key in (*files, "gone")}
    refused(command(name, perceptron, *[o.format(**places) for o in option]), text)


@pytest.mark.parametrize(
    "arguments",
    [["--input", "x"], ["--dim", "batch"], ["--dim", "n=-1"],
     ["--dim", "n=x"], ["--dim", "n=3..1"], ["--dim", "n=1.."], ["--dim", "n=1,"],
     ["--dim", "n=1..9..0"], ["--dim", "n=1..9..2..1"], ["--dim", "n=9..1..2"],
     ["--threads", "0"], ["--threads", "x"], ["--memory-limit", "much"], ["--math", "sloppy"],
     ["--no-such-option"], ["--repeat", "0"], ["--seed", "-1"]],
    ids=" ".join,
)  # fmt: skip
def test_bad_usage_is_2(command, perceptron, arguments):
    found = command("run", perceptron, *arguments)
    assert found.code == 2 and "Error: " in found.err and found.out == ""
    assert command("run").code == 2


def test_unknown_target_and_processor(command, perceptron):
    refused(command("run", perceptron, "--target", "abacus"), "abacus", code=2)
    refused(command("run", perceptron, "--mcpu", "i286"), "i286", code=2)


def test_bad_flag(command, perceptron, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "many")
    refused(command("run", perceptron), "TILEWRIGHT_NUM_THREADS='many'")


@pytest.fixture
def artifact(command, perceptron, tmp_path):
    path = tmp_path / "keep" / "m.tw"
    path.parent.mkdir()
    assert command("compile", perceptron, "-o", path).code == 0
    return path


def test_corrupted_artifacts(command, artifact):
    whole = artifact.read_bytes()
    places = np.linspace(0, len(whole) - 1, 12).astype(int)
    for place in places:
        artifact.write_bytes(
            whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]
        )
        found = command("run", artifact)
        # A bit that means nothing, such as a time stamp, may change; nothing may crash.
        assert found.code == 0 or "m.tw" in found.err, found.err
        assert "internal error" not in found.err
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        artifact.write_bytes(whole[:size])
        refused(command("run", artifact), "m.tw")


def test_artifacts_where_a_model_is_needed(command, artifact):
    for name in ("compile", "check"):
        refused(command(name, artifact), "m.tw", ".onnx")
    refused(command("verify", artifact), "m.tw", "has no certificate")


def test_missing_artifact(command, tmp_path):
    refused(command("run", tmp_path / "absent.tw"), "absent.tw", "no such file")


def test_a_corrupted_cache_repairs_itself(command, perceptron, tmp_path):
    assert command("run", perceptron).code == 0
    entries = [
        p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.name[0] != "."
    ]
    assert entries
    for path in entries:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        found = command("run", perceptron)
    assert found.code == 0
    assert "warning: " in found.err and "damaged and was deleted" in found.err
    assert command("run", perceptron).err == ""


@pytest.mark.parametrize(
    ("verb", "option"),
    [("run", "-o"), ("run", "--trace"), ("compile", "-o")],
)
def test_the_output_cannot_be_written(command, perceptron, tmp_path, verb, option):
    target = tmp_path / "no" / "such" / "file"
    refused(
        command(verb, perceptron, option, target), "does not exist", str(target.parent)
    )
    refused(command(verb, perceptron, option, tmp_path), "it is a folder")
    refused(command(verb, perceptron, option, "-"), "and not standard output")


@pytest.mark.parametrize("name", ["perceptron.onnx", "m.bin", "m"])
def test_an_artifact_is_not_written_where_nothing_would_run_it(
    command, perceptron, tmp_path, name
):
    """The model itself may be there."""
    target = tmp_path / name
    target.write_bytes(perceptron.read_bytes())
    for model, dims in (perceptron, []), (target, ["--dim", "n=1..4"]):
        found = command("compile", model, "-o", target, *dims)
        named = f"Name it {target.with_suffix('.tw').name}, or a library *.so, *.a, *.o, *.wasm"
        refused(found, "the name of an artifact ends in .tw", named)
        assert target.read_bytes() == perceptron.read_bytes()


def test_a_full_disk_names_the_file(command, perceptron, tmp_path, monkeypatch):
    def full(path, write):
        whole(path, refuse)

    def refuse(file):
        raise OSError(28, "No space left on device")

    whole = explain.write_whole
    monkeypatch.setattr(explain, "write_whole", full)
    target = tmp_path / "report.html"
    found = command("explain", perceptron, "-o", target)
    refused(found, f"{target}: No space left on device")
    assert "Errno" not in found.err


@pytest.mark.parametrize(
    ("verb", "option"), [("run", "-o"), ("run", "--trace"), ("compile", "-o")]
)
def test_results_for_nobody(command, perceptron, verb, option):
    found = command(verb, perceptron, option, "/dev/null")
    assert (found.code, found.err) == (0, "")
    refused(command(verb, perceptron, option, ""), "file name is empty")


def test_a_file_of_inputs_that_is_absent_or_no_file_of_numpys(
    command, perceptron, tmp_path
):
    absent, text = tmp_path / "absent.npy", tmp_path / "text.npy"
    text.write_text("text")
    found = command("run", perceptron, "--input", f"x={absent}")
    refused(found, f"{absent}: No such file")
    assert "Errno" not in found.err
    refused(command("run", perceptron, "--input", f"x={text}"), "not a NumPy file")


@pytest.mark.parametrize("amount", ["-1", "nan", "inf", "much"])
def test_amounts_that_are_none(command, perceptron, amount):
    for verb, option in (("verify", "--tolerance"), ("bench", "--seconds")):
        found = command(verb, perceptron, option, amount)
        assert found.code == 2 and "expected a number of at least 0" in found.err


@pytest.mark.parametrize("amount", ["-1", "0", "nan", "inf", "s", "2d", ""])
def test_times_that_are_none(command, perceptron, amount):
    for verb in ("tune", "explore", "optimize"):
        found = command(verb, perceptron, "--time", amount)
        assert found.code == 2 and "such as 90s, 10m or 1.5h" in found.err


def test_options_of_compiling_are_refused_for_an_artifact(
    command, perceptron, tmp_path
):
    artifact = tmp_path / "m.tw"
    assert command("compile", perceptron, "-o", artifact).code == 0
    assert command("run", artifact, "--threads", 1).code == 0
    for options in (("--mcpu", "x86-64-v3"), ("--math", "fast"), ("--dim", "n=3"),
                    ("--fallback", "warn"), ("--no-cache",), ("--sanitize",)):  # fmt: skip
        refused(
            command("run", artifact, *options),
            f"{options[0]}: an artifact is already compiled",
            code=2,
        )


def test_a_device_is_no_model(command):
    for device in ("/dev/zero", "/dev/null"):
        refused(command("run", device), "it is a device")


def test_an_index_out_of_range_is_an_error(command, tmp_path):
    nodes = [helper.make_node("Gather", ["table", "i"], ["y"], "lookup")]
    model = make(nodes, {"i": (TensorProto.INT64, [3])}, {"y": (FLOAT, [3, 2])},
                 {"table": np.ones((4, 2), np.float32)})  # fmt: skip
    path = save(tmp_path, model)
    np.save(tmp_path / "i.npy", np.array([0, 4, 10**12]))
    found = command("run", path, "--input", f"i={tmp_path / 'i.npy'}")
    refused(found, "lookup")


def test_not_a_number_flows_through(command, perceptron, tmp_path):
    x = np.ones((2, 8), np.float32)
    x[0, 0], x[1, 1] = np.nan, np.inf
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "y.npz"
    assert (
        command("run", perceptron, "--input", f"x={tmp_path / 'x.npy'}", "-o", out).code
        == 0
    )
    with np.load(out) as archive:
        assert np.isnan(archive["y"][0]).all()


@pytest.mark.parametrize("name", ["y.txt", "y"])
def test_outputs_are_not_written_under_the_name_of_another_format(
    command, perceptron, tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    found = command("run", perceptron, "-o", name)
    refused(found, name, ".npz file", "name it y.npz")
    assert "compiled" not in found.out and not (tmp_path / name).exists()
    assert command("run", perceptron, "-o", "/dev/null").code == 0


def test_errors_as_json(command, tmp_path):
    found = command("run", tmp_path / "absent.onnx", "--json")
    assert found.code == 1
    assert found.json["error"]["code"] == "TW-MODEL"
    assert "absent.onnx" in found.json["error"]["where"]


def test_a_machine_that_compiles_no_models_is_not_timed(command, perceptron):
    refused(command("bench", perceptron, "--target", "npu"), "npu", "known: cpu")


@pytest.mark.parametrize(
    ("channels", "group", "text"),
    [
        (5, 1, "has 5 channels, but the weights [4, 3, 3, 3] with group=1 take 3"),
        (9, 3, "group=3 does not divide the 4 output channels"),
    ],
)
def test_a_convolution_of_other_channels(command, tmp_path, channels, group, text):
    node = helper.make_node("Conv", ["x", "w"], ["y"], "c", group=group)
    inputs = {"x": (FLOAT, [1, channels, 8, 8]), "w": (FLOAT, [4, 3, 3, 3])}
    model = make([node], inputs, {"y": (FLOAT, [1, 4, 6, 6])})
    refused(command("check", save(tmp_path, model)), "node 'c' (Conv)", text)
