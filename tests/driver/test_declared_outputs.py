"""Extents of outputs that a call decides have the names that the model declares, as elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
import tilewright.onnxruntime_compat as ours
from tilewright.cli import app
from tilewright.driver.tiered import TieredExecutable
from tilewright.frontends.onnx.export import to_onnx
from tilewright.frontends.onnx.load import load

# The second axis of `found` and the first of `kept` depend on data; `free` has no name for it.
PICKS = """
<ir_version: 10, opset_import: ["" : 21]>
picks (float[n, 4] x) =>
  (int64[2, count] found, int64[2, ?] free, float[some, 4] kept, float[n, 4] z)
{
  found = NonZero(x)
  free = NonZero(z)
  axis = Constant<value = int64[1] {1}>()
  largest = ReduceMax<keepdims = 0>(x, axis)
  half = Constant<value = float {0.5}>()
  above = Greater(largest, half)
  kept = Compress<axis = 0>(x, above)
  z = Relu(x)
}
"""
TYPES = "found: int64[2, count], free: int64[2, ?], kept: float32[some, 4], z: float32[{n}, 4]"


@pytest.fixture(scope="module")
def model() -> Any:
    return onnx.parser.parse_model(PICKS)


@pytest.fixture(scope="module")
def made(model: Any) -> Any:
    return tw.compile(model, dims={"n": 3})


def test_an_executable_says_them(model: Any, made: Any, tmp_path: Path) -> None:
    types = TYPES.format(n=3)
    assert f"-> ({types})" in repr(made)
    assert "int64[2, count]" in made._repr_html_()
    assert [t.shape for t in made.outputs] == [(2, None), (2, None), (None, 4), (3, 4)]
    made.save(tmp_path / "picks.tw")
    assert f"-> ({types})" in repr(tw.load(tmp_path / "picks.tw"))
    assert f"-> ({types})" in repr(TieredExecutable(made, None))
    assert f"-> ({TYPES.format(n='n')})" in repr(tw.compile(model))


def test_a_session_gives_them_as_onnx_runtime_does(model: Any) -> None:
    theirs = pytest.importorskip("onnxruntime")
    data = model.SerializeToString()

    def shapes(ort: Any) -> list[Any]:
        session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
        return [v.shape for v in session.get_outputs()]

    assert shapes(ours) == shapes(theirs)
    options = ours.SessionOptions()
    options.add_free_dimension_override_by_name("n", 3)
    found = ours.InferenceSession(data, options).get_outputs()
    assert [v.shape for v in found] == [[2, "count"], [2, None], ["some", 4], [3, 4]]


def test_the_command_line_says_them(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(model, tmp_path / "picks.onnx")
    assert app.run(["check", str(tmp_path / "picks.onnx"), "--dim", "n=3"]) == 0
    assert f"outputs     {TYPES.format(n=3)}" in capsys.readouterr().out


def test_a_model_that_is_written_again_keeps_them(model: Any) -> None:
    again = to_onnx(load(model))
    types = [[v.type_text for v in load(m).shown_outputs] for m in (model, again)]
    assert types[0] == types[1] and types[0][0] == "int64[2, count]"


def test_names_of_another_rank_are_not_taken(model: Any) -> None:
    graph = load(model)
    assert graph.shown_outputs[0].shape == (2, "count")
    for names in ((), ("a",), ("a", "b", "c"), 2, None):
        other = replace(graph, declared={"found": names})
        assert other.shown_outputs[0].shape == (2, None)


def test_extents_that_follow_from_the_inputs_are_not_renamed(model: Any) -> None:
    graph = load(model)
    other = replace(graph, declared={"z": ("m", "four"), "kept": ("m", "four")})
    assert [v.shape for v in other.shown_outputs[2:]] == [("m", 4), ("n", 4)]


def test_results_do_not_depend_on_them(made: Any) -> None:
    x = np.array([[0, 1, 0, 0.2], [0.3, 0, 0, 0], [0.1, 0, 0.6, 0]], np.float32)
    found, free, kept, z = made(x)
    np.testing.assert_array_equal(found, np.nonzero(x))
    np.testing.assert_array_equal(free, np.nonzero(x))
    np.testing.assert_array_equal(kept, x[[0, 2]])
    np.testing.assert_array_equal(z, x)
