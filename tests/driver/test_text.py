"""Stages of models with symbolic dimensions, as text."""

from __future__ import annotations

import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.errors import FlagError, InputError
from tilewright.driver import text
from tilewright.driver.show import KINDS

MODEL = """
<ir_version: 10, opset_import: ["" : 17]>
s (float[n, 64] x) => (float[n, 64] y) { y = Relu(x) }"""


@pytest.mark.parametrize("kind", ["plan", "computation", "kernel", "llvm", "asm"])
def test_a_symbolic_dimension_needs_a_value_behind_the_graph(kind):
    model = onnx.parser.parse_model(MODEL)
    assert "x: float32[n, 64]" in text(model, "graph")
    assert "x: float32[3, 64]" in text(model, "graph", dims={"n": 3})
    with pytest.raises(InputError, match="the shape of 'x' is symbolic"):
        text(model, kind)
    assert "relu" in text(model, kind, dims={"n": 3})


def test_every_stage_is_written_into_a_folder(tmp_path, monkeypatch):
    model = onnx.parser.parse_model(MODEL)
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path / "dump"))
    tw.compile(model, dims={"n": 3})
    passes = (
        "lower fuse concat-in-place stream-attention split-groups merge-siblings winograd "
        "split-windows split-deep-sums separate-windows pool-in-blocks merge-products "
        "split-positions add-halos recompute plan-memory"
    )
    plans = [f"s.plan.{n}-{name}.txt" for n, name in enumerate(passes.split())]
    kinds = [f"s.{kind}.txt" for kind in KINDS]
    assert {*kinds, *plans} == {p.name for p in (tmp_path / "dump").iterdir()}
    before, after = ((tmp_path / "dump" / name).read_text() for name in plans[-2:])
    assert (tmp_path / "dump" / "s.plan.txt").read_text() == before
    assert before.startswith("plan s:\n") and after.startswith(
        "plan s, arena of 0 bytes:\n"
    )
    kernel = (tmp_path / "dump" / "s.kernel.txt").read_text()
    assert kernel == text(model, "kernel", dims={"n": 3}) + "\n"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path / "file"))
    with pytest.raises(FlagError, match=r"TILEWRIGHT_DUMP=.*cannot be written"):
        tw.compile(model, dims={"n": 3})
