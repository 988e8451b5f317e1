"""Kernels beside the measured peaks of a core."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
from benchmarks import causes, counts, kernels, models, peak
from tilewright.runtime.instruction_mix import Mix


def test_bandwidth_is_that_of_the_level_that_holds_the_data():
    peaks = peak.Peaks(100.0, ((1024.0, 50.0), (math.inf, 5.0)))
    assert [peaks.bandwidth(size) for size in (1, 1024, 1025, 1 << 40)] == [
        50.0,
        50.0,
        5.0,
        5.0,
    ]


@pytest.mark.slow
def test_the_peaks_of_this_core():
    found = peak.measure()
    sizes = [size for size, _ in found.gbs]
    assert sizes == sorted(sizes) and sizes[-1] == math.inf
    # Any core made in this century does more than one operation per nanosecond.
    assert 1 < found.gflops < 1000
    assert all(0.1 < rate < 10_000 for _, rate in found.gbs)


MIX = Mix(instructions=40, fmas=24, vectors=0, loads=14, stores=0, spills=0, width=64)
FACTS = causes.Facts(
    us=100.0,
    fma=0.5,
    stream=0.1,
    weights=0,
    others=1,
    transforms=0.0,
    epilogue=0.0,
    lanes=1.0,
    mix=MIX,
    vector=64,
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"fma": 0.81}, {}),
        ({"stream": 0.81}, {}),
        ({}, {causes.UNEXPLAINED: ""}),
        ({"mix": None}, {causes.UNEXPLAINED: ""}),
        ({"us": 3.04}, {"short": "3.0 us"}),
        ({"transforms": 0.21}, {"transforms": "21%"}),
        ({"epilogue": 0.21}, {"epilogue": "21%"}),
        ({"lanes": 0.71}, {"idle lanes": "29%"}),
        ({"mix": replace(MIX, spills=4)}, {"spills": "4 of 40"}),
        ({"mix": replace(MIX, width=32)}, {"narrow vectors": "32 of 64 bytes"}),
        (
            {"mix": replace(MIX, vectors=9)},
            {"other arithmetic": "9 beside 24 multiply-adds"},
        ),
        ({"mix": replace(MIX, loads=25)}, {"loads": "25 for 24 multiply-adds"}),
        ({"stream": 0.4}, {"arithmetic and traffic in turn": "50% + 40%"}),
        ({"us": 3.04, "transforms": 0.21}, {"short": "3.0 us", "transforms": "21%"}),
    ],
    ids=str,
)
def test_causes_are_told_by_their_numbers(
    changed: dict[str, Any], expected: dict[str, str]
) -> None:
    facts = replace(FACTS, **changed)
    assert causes.causes(facts) == expected
    assert facts.falls_short is bool(expected)


LAYERS = """
<ir_version: 10, opset_import: ["" : 21]>
layers (int64[5] at, float[1, 64, 16, 16] x) => (float[5, 8] rows, float[1, 64, 16, 16] y) {
  rows = Gather(table, at)
  t = Conv(x, narrow)
  u = Conv <pads = [1, 1, 1, 1]> (t, wide)
  y = Conv(u, narrow)
}
"""


def test_weights_count_as_they_are_read(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(LAYERS)
    for name, shape in {
        "table": (100, 8),
        "narrow": (64, 64, 1, 1),
        "wide": (64, 64, 3, 3),
    }.items():
        array = np.ones(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "layers.onnx")
    found = counts.counted(tmp_path / "layers.onnx", "x86-64-v4")
    gather = next(c for c in found.values() if c.constants == 100 * 8 * 4)
    assert gather.weights == 5 * 8 * 4  # rows that are looked up
    form = next(c for (name, _), c in found.items() if name.endswith("F(2,3)"))
    assert form.constants == 9 * 64 * 64 * 4 and form.weights == 16 * 64 * 64 * 4
    assert 0.05 < form.transforms < 0.2
    plain = [c for c in found.values() if c.constants == 64 * 64 * 4]
    assert plain and all(c.weights == c.constants and c.transforms == 0 for c in plain)


GELU = """
<ir_version: 10, opset_import: ["" : 21]>
gelu (float[48, 32] x) => (float[48, 34] y) {
  t = MatMul(x, w)
  y = Gelu(t)
}
"""


def test_an_operator_that_is_a_loop_program_has_nothing_to_count(
    tmp_path: Path,
) -> None:
    path = tmp_path / "topk.onnx"
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    one (float[4, 6] x) => (float[4, 2] v, int64[4, 2] i) <int64[1] k = {2}> { v, i = TopK (x, k) }
    """
    onnx.save(onnx.parser.parse_model(text), path)
    assert counts.Counts() in counts.counted(path, "x86-64-v4").values()


def test_operations_behind_the_sums_and_idle_lanes_are_counted(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(GELU)
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.ones((32, 34), "f4"), "w")
    )
    onnx.save(model, tmp_path / "gelu.onnx")
    found = {}
    for mcpu in ("x86-64-v3", "x86-64-v4"):
        (found[mcpu],) = counts.counted(tmp_path / "gelu.onnx", mcpu).values()
    assert found["x86-64-v3"].lanes == 34 / 40 and found["x86-64-v4"].lanes == 34 / 48
    assert 0.3 < found["x86-64-v4"].epilogue < found["x86-64-v3"].epilogue < 0.6


def test_all_networks_are_taken_where_none_is_named() -> None:
    assert kernels._names(None, None, ()) == list(models.RECIPES)
    assert kernels._names(None, None, ("resnet*",)) == ["resnet18", "resnet50"]


@pytest.mark.slow
def test_kernels_over_three_percent_are_listed(tmp_path: Path):
    name = "int8_conv1x1_256x56_64"
    arguments = [name, "--dir", str(tmp_path), "--repeat", "2", "--json"]
    result = CliRunner().invoke(kernels.main, arguments)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert rows and all(
        row["network"] == name and row["share"] > kernels.SHARE for row in rows
    )
    assert sum(row["share"] for row in rows) <= 1.001
    assert all(bool(row["causes"]) is row["falls_short"] for row in rows)
    table = CliRunner().invoke(kernels.main, arguments[:-1]).output
    assert f"of {len(rows)} kernels reach a bar" in table
    assert CliRunner().invoke(kernels.main, ["nothing"]).exit_code == 2
