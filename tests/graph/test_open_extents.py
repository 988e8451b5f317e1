"""The Kernels that count what they find, alone, against NumPy and ONNX's reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx.reference.ops.op_non_max_suppression import NonMaxSuppression

from tilewright.base import dtypes
from tilewright.base.dtypes import dtype_of, int64
from tilewright.graph.interp import run_natively
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.open_extents import DOMAIN
from tilewright.graph.ops.registry import OpCall, definition_of
from tilewright.graph.ops.topk import MANY, last_value

Array = np.ndarray[Any, Any]


def ran(
    op_type: str, *arrays: Any, known: Sequence[int] = (), **attributes: Any
) -> list[Array]:
    """The results of the operator's Kernel, interpreted, its outputs as it infers them.

    known: the operands whose values it may use for that.
    """
    inputs = tuple(
        None if a is None else Value(f"x{n}", dtype_of(a.dtype), a.shape)
        for n, a in enumerate(arrays)
    )
    draft = Operation(op_type, inputs, (), attributes, DOMAIN, 1, "it")
    definition = definition_of(draft)
    assert definition is not None
    constants = {inputs[n]: arrays[n] for n in known}
    types = definition.infer(OpCall(draft, constants))
    outputs = tuple(Value(f"y{n}", *t) for n, t in enumerate(types))
    op = Operation(op_type, inputs, outputs, attributes, DOMAIN, 1, "it")
    found = run_natively(op, arrays)
    assert found is not None
    return [np.asarray(a) for a in found]


SIGNS = np.array([[0, 1.5, np.nan], [-0.0, 0, -np.inf]], np.float32)


@pytest.mark.parametrize(
    "x",
    [
        SIGNS,
        np.zeros((2, 3), bool),
        np.ones((2, 1, 3), np.int64),
        np.zeros((3, 0), np.float64),
        np.array([0, 2, 0, 255], np.uint8),
        np.array(-1.5, np.float32),
        np.arange(38).reshape(2, 19) % 17 > 14,
        np.ones((2, 8), np.int8),
        np.arange(17) == 16,
        np.arange(80) % 31 == 15,
        np.arange(2 * 3 * 40).reshape(2, 3, 40) % 19 > 15,
        np.ones((3, 32), bool),
    ],
    ids=[
        *("signs and NaN", "none", "all", "empty", "bytes", "scalar"),
        *("some", "all of a matrix", "the last", "the last of pieces"),
        *("pieces and rests", "whole pieces"),
    ],
)
def test_nonzero_counts_and_orders(x: Array) -> None:
    places, count = ran("NonZero", x)
    want = np.array(np.nonzero(np.atleast_1d(x)))[: x.ndim]
    assert count == want.shape[1]
    np.testing.assert_array_equal(places[:, :count], want)
    assert not places[:, int(count) :].any()


KINDS = ("float32", "float16", "float64", "int8", "uint32", "int64", "bool")


def in_order(x: Array, count: int, largest: int, k: int) -> Array:
    """Places of the first k elements of a vector, those from `count` on as the last possible."""
    last = last_value(dtype_of(x.dtype), bool(largest))
    keys = np.where(np.arange(len(x)) < count, x, np.array(last, x.dtype))
    ranks = np.unique(keys, return_inverse=True)[1]
    return np.argsort(-ranks if largest else ranks, kind="stable")[:k]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("k, extent", [(3, 20), (MANY + 1, 60), (MANY + 1, 700)])
def test_the_best_of_those_that_count(
    k: int, extent: int, largest: int, kind: str
) -> None:
    """By a list, and by selection, also in pieces; in a memory full of bait."""
    rng = np.random.default_rng(extent)
    x = rng.integers(-9 * (kind[0] != "u"), 9, extent).astype(kind)
    if kind.startswith("float"):
        x[rng.random(extent) < 0.1] = -0.0
        x[rng.random(extent) < 0.1] = np.inf
        x[rng.random(extent) < 0.1] = -np.inf
        x[rng.random(extent) < 0.1] = np.nan
        x[rng.random(extent) < 0.1] = -np.nan
    for count in {-1, 0, 2, k, extent // 2, extent - 1, extent, 2 * extent}:
        how = {"known": [1], "axis": 0, "largest": largest}
        values, places = ran("TopK", x, np.array([k]), np.array(count), **how)
        want = in_order(x, count, largest, k)
        assert places.tolist() == want.tolist()
        here = want < count
        np.testing.assert_array_equal(values[here], x[want[here]])
        last = last_value(dtype_of(x.dtype), bool(largest))
        np.testing.assert_array_equal(values[~here], np.array(last, x.dtype))


def test_rows_of_a_matrix_that_count_by_another_axis() -> None:
    x = np.random.default_rng(3).standard_normal((50, 3)).astype(np.float32)
    values, places = ran("TopK", x, np.array([40]), np.array(45), known=[1], axis=0)
    for n in range(3):
        want = in_order(x[:, n], 45, 1, 40)
        assert places[:, n].tolist() == want.tolist()
        np.testing.assert_array_equal(values[:, n], x[want, n])


def suppressed(*operands: Any, center: int = 0) -> Array:
    """What ONNX's reference chooses."""
    kernel = NonMaxSuppression.__new__(NonMaxSuppression)
    (found,) = kernel._run(*operands, center_point_box=center)
    return np.asarray(found)


@pytest.mark.parametrize("seed", range(6))
def test_suppression_is_that_of_the_reference(seed: int) -> None:
    """Tied scores, boxes with swapped corners and none at all, any limit."""
    rng = np.random.default_rng(seed)
    boxes = rng.random((2, 9, 4)).astype(np.float32)
    boxes[:, 3] = boxes[:, 4]
    boxes[:, 5, 2:] = boxes[:, 5, :2]
    scores = (rng.integers(0, 4, (2, 3, 9)) / 4).astype(np.float32)
    most = np.array([[0, 2, 100][seed % 3]])
    overlap, score = (np.array([v], np.float32) for v in (0.3, 0.25))
    operands = (boxes, scores, most, overlap, score)
    rows, count = ran("NonMaxSuppression", *operands, center_point_box=seed % 2)
    want = suppressed(*operands, center=seed % 2)
    assert count == len(want)
    np.testing.assert_array_equal(rows[:count], want)


def test_a_nan_score_is_above_no_threshold_and_last_without_one() -> None:
    boxes = np.array([[[0, k, 1, k + 1] for k in range(4)]], np.float32)
    scores = np.array([[[0.5, np.nan, 0.9, np.nan]]], np.float32)
    most, overlap = np.array(4), np.array(0.5, np.float32)
    rows, count = ran("NonMaxSuppression", boxes, scores, most, overlap)
    assert rows[:count, 2].tolist() == [2, 0, 1, 3]
    threshold = np.array(-np.inf, np.float32)
    rows, count = ran("NonMaxSuppression", boxes, scores, most, overlap, threshold)
    assert rows[:count, 2].tolist() == [2, 0]


@pytest.mark.parametrize("boxes, want", [(2, [0, 1]), (-1, []), (99, [3, 2, 0, 1])])
def test_suppression_trusts_no_count_beyond_its_bound(
    boxes: int, want: list[int]
) -> None:
    corners = np.array([[[0, k, 1, k + 1] for k in range(4)]], np.float32)
    scores = np.array([[[0.4, 0.3, 0.8, 0.9]]], np.float32)
    operands = (corners, scores, np.array(9), np.array(0.5, np.float32), None)
    rows, count = ran("NonMaxSuppression", *operands, np.array(boxes))
    assert rows[:count, 2].tolist() == want


def test_suppression_compares_with_every_box_that_was_kept() -> None:
    """More than a chunk of them: the last box overlaps the first alone."""
    far = np.array([[0, 2 * k, 1, 2 * k + 1] for k in range(140)], np.float32)
    boxes = np.concatenate([far, far[:1], far[139:]])[None]
    scores = np.linspace(1, 0, len(boxes[0]), dtype=np.float32)[None, None]
    operands = (boxes, scores, np.array(500), np.array(0.5, np.float32))
    rows, count = ran("NonMaxSuppression", *operands)
    assert rows[:count, 2].tolist() == list(range(140))


def slices(x: Array, axis: int) -> list[tuple[float, ...]]:
    """The slices along an axis as what can be compared: NaN after all numbers."""
    rows = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    return [tuple(np.inf if np.isnan(v) else float(v) for v in r) for r in rows]


@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("axis, count", [(0, None), (1, None), (0, 3), (1, 0)])
def test_unique_slices(ordered: int, axis: int, count: int | None) -> None:
    rng = np.random.default_rng(axis)
    x = rng.integers(0, 2, (5, 6)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    x[:, 4], x[2], x[0, 0] = x[:, 1], x[3], -0.0
    given = [] if count is None else [np.array(count)]
    how = {"axis": axis, "sorted": ordered}
    values, first, inverse, counts, found = ran("Unique", x, *given, **how)
    keys = slices(x, axis)[:count]
    distinct = sorted(set(keys)) if ordered else list(dict.fromkeys(keys))
    n = len(distinct)
    assert found == n
    assert first[:n].tolist() == [keys.index(k) for k in distinct]
    assert inverse[: len(keys)].tolist() == [distinct.index(k) for k in keys]
    assert counts[:n].tolist() == [keys.count(k) for k in distinct]
    want = np.take(x, first[:n], axis)
    np.testing.assert_array_equal(np.take(values, range(n), axis), want)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool", "float16", "bfloat16"])
def test_unique_of_every_kind_of_element(dtype: str) -> None:
    x = np.array(
        [3, 1, 0, 1, 3, 2], getattr(dtypes, dtype + "_" * (dtype == "bool")).numpy
    )
    values, *_, found = ran("Unique", x, axis=0)
    np.testing.assert_array_equal(values[:found], np.unique(x))


def test_results_are_counted_in_int64() -> None:
    op = Operation("NonZero", (Value("x", int64, (4,)),), (), {}, DOMAIN)
    definition = definition_of(op)
    assert definition is not None
    assert definition.infer(OpCall(op)) == [(int64, (1, 4)), (int64, ())]
