"""The error for an extent that a model does not fit names its dimension and the limit."""

from itertools import chain, repeat

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.errors import (
    ExecutionError,
    MemoryLimitError,
    ModelError,
    TilewrightError,
)
from tilewright.cli.app import run
from tilewright.frontends.onnx import load
from tilewright.graph import extent_limits
from tilewright.graph.extent_limits import blamed_on
from tilewright.graph.specialize import specialize

ROWS = 64
_TABLE = ", ".join(["0.5"] * (2 * ROWS))
POSITIONS = {
    "sliced": """
        zero = Constant<value = int64[1] {0}>()
        length = Shape<start = 1>(ids)
        position = Slice(table, zero, length, zero)
    """,
    "gathered": """
        zero = Constant<value = int64 {0}>()
        one = Constant<value = int64 {1}>()
        axis = Constant<value = int64[1] {0}>()
        shape = Shape<start = 1>(ids)
        length = Squeeze(shape, axis)
        range = Range(zero, length, one)
        position = Gather(table, range)
    """,
}


def embedding(positions: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        embedding (int64[batch, n] ids) => (float[batch, n, 2] y)
        <float[{ROWS}, 2] table = {{{_TABLE}}}>
        {{ {POSITIONS[positions]}
           word = Gather(table, ids)
           y = Add(word, position) }}
    """)


POOL = """
    <ir_version: 8, opset_import: ["" : 17]>
    pool (float[1, 1, h, w] x) => (float[1, 1, oh, ow] y)
    { y = AveragePool<kernel_shape = [7, 7]>(x) }
"""


@pytest.mark.parametrize(
    ("positions", "node"), [("sliced", "Add -> y"), ("gathered", "Gather -> position")]
)
def test_a_table_that_is_too_short(positions, node):
    graph = load(embedding(positions))
    with pytest.raises(TilewrightError) as found:
        specialize(graph, {"batch": 2, "n": 100})
    assert node in found.value.where
    assert found.value.hint == "n is 100: 64 would fit, 65 would not"
    specialize(graph, {"batch": 2, "n": ROWS})


def test_a_call_and_a_range_and_the_command_say_it_too(tmp_path, capsys):
    model = embedding("sliced")
    with pytest.raises(ModelError, match="n is 100: 64 would fit, 65 would not"):
        tw.compile(model)(np.zeros((2, 100), np.int64))
    path = tmp_path / "embedding.onnx"
    onnx.save(model, path)
    assert run(["run", str(path), "--dim", "batch=1", "--dim", "n=90"]) == 1
    assert "n is 90: 64 would fit, 65 would not" in capsys.readouterr().err
    assert run(["compile", str(path), "--dim", "batch=1", "--dim", "n=1..90"]) == 1
    assert ": 64 would fit, 65 would not" in capsys.readouterr().err


def test_an_extent_that_is_too_small():
    graph = load(onnx.parser.parse_model(POOL))
    with pytest.raises(ModelError, match="w is 1: 7 would fit, 6 would not"):
        specialize(graph, {"h": 9, "w": 1})
    with pytest.raises(ModelError) as found:  # neither alone is at fault
        specialize(graph, {"h": 2, "w": 1})
    assert found.value.hint == "The extents: h is 2, w is 1"


@pytest.mark.parametrize("kind", [ModelError, ExecutionError])
def test_a_hint_of_the_operator_stays(kind):
    with pytest.raises(kind) as found, blamed_on({"n": 8}, lambda e: e["n"] < 5):
        raise kind("it does not fit", hint="Export it again")
    assert found.value.hint == "Export it again"


def test_other_errors_and_graphs_without_dimensions_are_left_alone():
    with pytest.raises(MemoryLimitError) as large, blamed_on({"n": 8}, bool):
        raise MemoryLimitError("large")
    with pytest.raises(ModelError) as fixed, blamed_on({}, bool):
        raise ModelError("broken")
    assert large.value.hint is None and fixed.value.hint is None


def test_the_trials_end_in_time(monkeypatch):
    monkeypatch.setattr(extent_limits, "_SECONDS", 0.0)
    with pytest.raises(ModelError) as found, blamed_on({"n": 8}, lambda _: 1 / 0):
        raise ModelError("it does not fit")
    assert found.value.hint == "The extents: n is 8"


def test_extents_that_were_not_tried_in_time_are_not_said_to_fail(monkeypatch):
    """The first trial, of 50, is good, and the time ends with it: 99 would fit, too."""
    seconds = chain([0.0, 0.0], repeat(3.0))
    monkeypatch.setattr(extent_limits.time, "monotonic", lambda: next(seconds))
    with pytest.raises(ModelError) as found, blamed_on({"n": 100}, lambda _: True):
        raise ModelError("it does not fit")
    assert found.value.hint == "The extents: n is 100"
