"""Kernels that operators give: their products in tiles at every size, threads where it pays."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.driver import text


def recurrent(sequences: int, size: int) -> onnx.ModelProto:
    """An LSTM of as many sequences, with states of a size."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 4 * size, 5), "r": (1, 4 * size, size)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) * 0.3, n)
        for n, s in shapes.items()
    ]
    ends = ("x", [6, sequences, 5]), ("y", [6, 1, sequences, size])
    x, y = (helper.make_tensor_value_info(n, 1, s) for n, s in ends)
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=size)
    graph = helper.make_graph([node], "g", [x], [y], weights)
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def compiled(
    sequences: int, size: int, **options: Any
) -> tuple[Any, list[events.Event]]:
    with events.record() as log:
        exe = tw.compile(recurrent(sequences, size), cache=False, **options)
    return exe, list(log)


@pytest.mark.parametrize(("sequences", "size"), [(1, 8), (5, 7), (9, 33)])
def test_products_are_in_tiles_at_every_size(sequences: int, size: int) -> None:
    exe, log = compiled(sequences, size, threads=1, mcpu="x86-64-v3")
    assert not [e for e in log if e.kind == "kept-plain"]
    x = np.random.default_rng(1).standard_normal((6, sequences, 5)).astype(np.float32)
    plain = tw.compile(
        recurrent(sequences, size), threads=1, math="exact", fusion=False, cache=False
    )
    np.testing.assert_allclose(exe(x), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("size", "shared"), [(4, False), (256, True)])
def test_threads_share_products_that_are_worth_it(size: int, shared: bool) -> None:
    options = {"threads": 2, "mcpu": "x86-64-v3"}
    shown = text(recurrent(16, size), "schedule", **options)
    assert bool(re.search(r"\bi\d+\.parallel = True", shown)) == shared
    assert bool(re.search(r"s\.parallel\('i\d+'\)", shown)) == shared
