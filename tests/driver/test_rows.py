"""Softmax over rows that hold what is not an ordinary number, wherever it lies in a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.runtime.machine import missing_features
from tilewright.targets.cpu.machine import machine

LENGTHS = (1, 5, 16, 37, 150, 768)
LEVELS = ("native", "x86-64-v3")


def model(op: str, rows: int, length: int) -> Any:
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        rows (float[{rows}, {length}] x) => (float[{rows}, {length}] y) {{
          y = {op} <axis = -1> (x)
        }}"""
    )


def softmax(x: Any, log: bool) -> Any:
    with np.errstate(all="ignore"):
        shifted = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
        total = np.exp(shifted).sum(axis=-1, keepdims=True)
        return shifted - np.log(total) if log else np.exp(shifted) / total


def rows_of(length: int) -> Any:
    """A row for each special value at each of some places, and whole rows of it."""
    rng = np.random.default_rng(length)
    rows = []
    for special in (
        np.nan,
        -np.nan,
        np.inf,
        -np.inf,
        1e-42,
        -1e-42,
        3e38,
        -3e38,
        100.0,
        -104.0,
    ):
        for place in {0, length // 2, length - 1, max(0, length - 17)}:
            row = rng.normal(size=length) * 3
            row[place] = special
            rows.append(row)
        rows.append(np.full(length, special))
    return np.array(rows, np.float32)


@pytest.mark.sampled(7)  # each level; less than a vector, and several
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("length", LENGTHS)
def test_softmax_of_rows_with_special_values(length: int, level: str) -> None:
    if missing_features(machine(level).features):
        pytest.skip(f"this processor is not {level}")
    x = rows_of(length)
    misaligned = np.empty(x.size + 1, np.float32)[1:].reshape(x.shape)
    misaligned[...] = x
    for op, log in (("Softmax", False), ("LogSoftmax", True)):
        exe = tw.compile(model(op, *x.shape), threads=1, mcpu=level)
        want = softmax(x, log)
        for data in (x, misaligned):
            np.testing.assert_allclose(
                exe(data), want, rtol=2e-6, atol=1e-6 if log else 1e-44
            )
