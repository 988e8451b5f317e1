"""Constants of a range: they are paired by their uses, whenever a size folds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.graph.infer import FOLD_ELEMENTS
from tilewright.runtime.ranged import RangedExecutable

ROWS = (8, 60)
WIDE, NARROW = 1000, 80

TABLES = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 1] x) => (float[n, {WIDE}] y, float[n, {NARROW}] z)
<int64 zero = {{0}}, int64 one = {{1}}, int64[1] last = {{1}}>
{{
    shape = Shape <end = 1> (x)
    count = Squeeze (shape)
    rows = Range (zero, count, one)
    column = Unsqueeze (rows, last)
    wide = Mul (column, w)
    table = Cast <to = 1> (wide)
    narrow = Mul (column, v)
    other = Cast <to = 1> (narrow)
    y = Add (x, table)
    z = Mul (x, other)
}}"""


def tables() -> onnx.ModelProto:
    """The two tables, row r of which is r * (1, 2, ..., columns)."""
    source = onnx.parser.parse_model(TABLES)
    for name, columns in (("w", WIDE), ("v", NARROW)):
        numbers = np.arange(1, columns + 1, dtype=np.int64)[None]
        source.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    return source


def test_constants_that_only_some_sizes_know_when_they_type_are_one_constant() -> None:
    least, most = ROWS
    # The wide table folds after typing at all sizes, the narrow one at large sizes alone.
    assert least * NARROW < FOLD_ELEMENTS < min(most * NARROW, least * WIDE)
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe = tw.compile(tables(), dims={"n": ROWS}, **how)
    assert isinstance(exe, RangedExecutable)
    assert not exe.model.single
    for n in (least, 43, FOLD_ELEMENTS // NARROW, FOLD_ELEMENTS // NARROW + 1, most):
        x = np.linspace(-1, 1, n, dtype=np.float32)[:, None]
        rows = np.arange(n, dtype=np.float32)[:, None]
        y, z = exe(x=x)
        np.testing.assert_array_equal(y, x + rows * np.arange(1, WIDE + 1, dtype="f4"))
        np.testing.assert_array_equal(
            z, x * (rows * np.arange(1, NARROW + 1, dtype="f4"))
        )


STORED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 128] x) => (float[n, 64] y) { t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t) }"""


def stored() -> tuple[onnx.ModelProto, np.ndarray[Any, Any]]:
    """A product with weights stored the other way around, and those weights: 32 KiB."""
    source = onnx.parser.parse_model(STORED)
    weights = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    source.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return source, weights


# 13 times the weights end among the types at the sizes that `between` compares.
@pytest.mark.parametrize(
    ("dims", "limit"),
    [((1, 64), "48K"), ((1, 5000), "432K"), ([4, 9, 20], "48K")],
    ids=["plans", "types", "single"],
)
def test_each_size_may_make_as_many_constants_as_a_compilation(
    dims: Any, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, weights = stored()
    assert weights.size > FOLD_ELEMENTS  # folded once per plan, by a pass
    # All plans in this process: what they made counts in it alone.
    monkeypatch.setattr("tilewright.driver.ranges.compared_plans.workers", lambda *_: 1)
    monkeypatch.setenv("TILEWRIGHT_FOLD_LIMIT", limit)
    how: Any = {"jit": False, "threads": 1, "cache": False}
    with events.record() as happened:
        exe = tw.compile(source, dims={"n": dims}, **how)
    assert isinstance(exe, RangedExecutable)
    plans = [e for e in happened if e.fields.get("name") == "merge-products"]
    folded = [e for e in happened if e.kind == "fold"]
    assert len(plans) > 2
    assert len(folded) == len(plans)  # the weights, for each
    for n in (4, 9, 20):
        x = np.linspace(-1, 1, n * 128, dtype=np.float32).reshape(n, 128)
        np.testing.assert_allclose(exe(x=x), x @ weights.T, 1e-4, 1e-4)
    if isinstance(dims, tuple):
        assert not exe.model.single
