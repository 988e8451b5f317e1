"""ArgMax and ArgMin in vectors: NumPy's indices, whatever the lanes are and leave over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tilewright as tw
from tilewright.base.dtypes import float32, int64
from tilewright.compute.reducer import arg_reducer
from tilewright.operators import Buffer, reduce_
from tilewright.targets.cpu.compile import finished
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.testing.random_kernels import plain

SHAPES = [((3, 7), 1), ((3, 9), 1), ((2, 64), 1), ((2, 137), 1), ((2, 1000), 1)]
SHAPES += [((37, 83), 0), ((2, 19, 16), 1), ((5, 3), 0)]
SPECIAL: dict[Any, list[list[float]]] = {
    np.float32: [
        [0.0, -0.0, 1.0, -1.0],
        [np.nan, np.inf, -np.inf, 0.0],
        [-np.inf],
        [np.inf],
        [np.nan],
        [0.0, -0.0],
    ],
    np.int32: [[-(1 << 31), (1 << 31) - 1, 0], [-(1 << 31)], [(1 << 31) - 1], [0, 1]],
    np.uint8: [[0, 255, 3], [0], [255]],
}


def model(name: str, shape: tuple[int, ...], axis: int, last: bool, dtype: Any) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = shape[:axis] + shape[axis + 1 :]
    x = helper.make_tensor_value_info("x", kind, shape)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.INT64, made)
    how = {"axis": axis, "keepdims": 0, "select_last_index": int(last)}
    graph = helper.make_graph(
        [helper.make_node(name, ["x"], ["y"], **how)], "g", [x], [y]
    )
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


@pytest.mark.parametrize("dtype", SPECIAL, ids=lambda t: t.__name__)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_ties_extremes_and_nans(
    shape: tuple[int, ...], axis: int, name: str, last: bool, dtype: Any
) -> None:
    exe = tw.compile(model(name, shape, axis, last, dtype), threads=1, fallback="error")
    find = np.argmax if name == "ArgMax" else np.argmin
    for seed, some in enumerate(SPECIAL[dtype]):
        x = np.random.default_rng(seed).choice(np.array(some, dtype), shape)
        if some == SPECIAL[np.float32][0]:  # rare NaNs among usual values
            x.flat[:: x.size // 3] = np.nan
        want = find(np.flip(x, axis) if last else x, axis=axis)
        want = shape[axis] - 1 - want if last else want
        np.testing.assert_array_equal(exe(x), want)


def scheduled(mcpu: str, rows: int, steps: int, across: bool) -> tuple[Any, str]:
    """The vectors in flight, and the program as it is compiled."""
    shape = (steps, rows) if across else (rows, steps)
    x = Buffer("x", shape, float32)
    v, n = Buffer("v", (rows,), float32), Buffer("n", (rows,), int64)
    c = reduce_(
        "best",
        (v, n),
        (steps,),
        arg_reducer("argmax", float32, int64),
        lambda i, k: (x[k, i] if across else x[i, k], k),
    )
    m = replace(machine(mcpu), cores=1)
    point = sketches(plain([c]), [c], Context(m))[0].default()
    return point.values["best.vectors"], str(finished(point.schedule.kernel, m))


@pytest.mark.parametrize(("mcpu", "count"), [("x86-64-v3", 2), ("x86-64-v4", 4)])
@pytest.mark.parametrize("across", [False, True])
def test_steps_in_order_compare_no_indices(mcpu: str, count: int, across: bool) -> None:
    """As many vectors at a time as leave half of the registers: of results, each takes three."""
    vectors, text = scheduled(mcpu, 256, 1000, across)
    assert vectors == count and text.count("argmax_in_order=") == 1


def test_what_is_left_of_a_row_is_in_vectors_too() -> None:
    _, text = scheduled("x86-64-v4", 3, 64 * 3 + 16 * 2 + 9, False)
    assert (
        "for best.k.t.i in 16 vector" in text and "for best.k.t.t in 9 vector" in text
    )
    _, text = scheduled("x86-64-v4", 3, 64 * 3 + 9, False)
    assert "for best.k.t in 9 vector" in text
