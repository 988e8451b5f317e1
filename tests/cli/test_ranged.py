"""Ranges of shapes on the command line: compiled to one artifact, run at other extents."""

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.driver.ranges.test_ranged import MODELS, model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli-ranged")
    source = model(MODELS["rows"])
    onnx.save(source, path / "m.onnx")
    two = "(float[n, m] x) => (float[n, m] y) { y = Relu(x) }"
    onnx.save(model(two), path / "two.onnx")
    how = {"jit": False, "threads": 1, "cache": False}
    tw.compile(source, dims={"n": (1, 20)}, **how).save(path / "m.tw")
    return path


def test_all_shapes_are_compiled_to_one_artifact(command, folder, tmp_path):
    out = tmp_path / "few.tw"
    dim = ("--dim", "n=2,5,9")
    done = command("compile", folder / "m.onnx", *dim, "-o", out, "--json")
    assert done.code == 0, done.err
    assert done.json["artifact"] == str(out)
    assert done.json["shapes"] == {"alone": 3, "shared": 0}
    done = command("run", out, "--dim", "n=5", "--json")
    assert done.json["outputs"]["y"]["shape"] == [5, 6]
    assert "n is 4, and may be 2, 5, 9" in command("run", out, "--dim", "n=4").err


def test_a_range_has_a_step(command, folder, tmp_path):
    out = tmp_path / "steps.tw"
    done = command("compile", folder / "m.onnx", "--dim", "n=4..70..4", "-o", out)
    assert done.code == 0 and "17 shapes together" in done.out, done.err
    done = command("run", out, "--dim", "n=12", "--json")
    assert done.json["outputs"]["y"]["shape"] == [12, 6]
    said = command("run", out, "--dim", "n=14").err
    assert "n is 14, and may be 4 to 68 in steps of 4" in said and "12 or 16" in said
    for how in ((), ("--no-jit",)):
        run = ("run", folder / "m.onnx", "--dim", "n=4..70..4", *how, "--json")
        assert command(*run).json["outputs"]["y"]["shape"] == [68, 6]
    said = command("tune", folder / "m.onnx", "--dim", "n=4..70..4").err
    assert "n has no single value, but 4..70..4" in said


def test_the_artifact_runs_at_any_extent(command, folder):
    done = command("run", folder / "m.tw", "--dim", "n=7", "--json")
    assert done.code == 0 and "assumed" not in done.err
    assert done.json["outputs"]["y"]["shape"] == [7, 6]


@pytest.mark.parametrize(
    ("args", "rows"),
    [
        (("m.tw",), 20),
        (("m.onnx", "--dim", "n=2..9", "--no-jit"), 9),
        (("m.onnx", "--dim", "n=2..9"), 9),
    ],
)
def test_a_run_says_which_extents_it_assumes(command, folder, args, rows):
    name, *more = args
    done = command("run", folder / name, *more, "--json")
    assert done.json["outputs"]["y"]["shape"] == [rows, 6]
    said = f"'n' has a range: assumed {rows}, its greatest; --dim n=N changes it"
    assert done.err.count(said) == 1


def test_arrays_give_the_extents_of_a_run(command, folder, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 6), np.float32))
    x = f"x={tmp_path / 'x.npy'}"
    done = command("run", folder / "m.tw", "--input", x, "--json")
    assert done.json["outputs"]["y"]["shape"] == [3, 6], done.err
    assert "assumed" not in done.err


def test_the_artifact_is_timed_at_any_extent(command, folder):
    how = ("--rounds", 1, "--seconds", 0.01, "--json")
    done = command("bench", folder / "m.onnx", "--dim", "n=4..70..4", *how)
    assert done.code == 0 and done.json["failed"] == {}, done.err
    done = command("bench", folder / "m.tw", "--dim", "n=7", *how)
    assert done.code == 0, done.err
    assert done.json["failed"] == {} and done.json["times"]["tilewright"][0] > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["bench", "m.tw", "--dim", "n=21"], "n is 21, and may be 1 to 20"),
        (["run", "m.tw", "--dim", "n=21"], "n is 21, and may be 1 to 20"),
        (["run", "m.tw", "--dim", "n=21"], "compile with others: --dim n=..."),
        (["compile", "two.onnx", "--dim", "n=1..4"], "limit it: --dim m=1..8"),
        (["run", "m.tw", "--dim", "k=2"], "'k' has no one value"),
        (["run", "m.tw", "--dim", "n=1..4"], "give one value of: n: 1 to 20"),
        (
            ["compile", "m.onnx", "--dim", "n=1..4", "-o", "libm.so"],
            "a library (libm.so)",
        ),
        (["compile", "m.onnx", "--dim", "n=1..4", "--emit", "plan"], "--emit does not"),
        (["compile", "m.onnx", "--dim", "n=1..4", "--certify"], "compares one shape"),
        (["compile", "m.onnx", "--dim", "k=1..4"], "no dimension is called 'k'"),
        (["tune", "m.onnx", "--dim", "n=1..4"], "n has no single value"),
    ],
)
def test_what_takes_no_range_says_so(command, folder, args, message):
    before = set(folder.iterdir())
    verb, name, *rest = args
    rest = [folder / r if r.endswith(".so") else r for r in rest]
    done = command(verb, folder / name, *rest)
    assert done.code != 0
    assert message in " ".join(done.err.split())
    assert set(folder.iterdir()) == before


def test_a_range_says_how_its_kernels_run(command, folder, tmp_path):
    """By units, in the profile's records and on the page; one shape has its own schedule."""
    dim = (folder / "m.onnx", "--dim", "n=4..70", "--repeat", "1", "--threads", "1")
    for how, parts in (("--no-jit",), 2), ((), 0):
        done = command("run", *dim, "--profile", "--why", "--json", *how)
        (record,) = done.json["schedules"]
        assert len(record["parts"]) == parts and bool(record["values"]) != bool(parts)
    page = tmp_path / "page.html"
    done = command("explain", *dim, "-o", page, "--no-roofline", "--no-jit", "--json")
    (found,) = done.json["kernels"]
    assert (
        found["parts"][0] == "shared code for n 4 to 70" and found["sketch"] == "units"
    )
    assert (
        found["parts"][1] in page.read_text() and "float32[70, 6]" in page.read_text()
    )
    assert ["by units"] == [r["what"] for r in done.json["rewrites"] if not r["pass"]]
