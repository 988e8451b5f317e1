"""The benchmark of products with few bits: the same integers for all, and wrong results told."""

from __future__ import annotations

import numpy as np

from benchmarks import weight_only


def test_every_engine_is_right_and_beside_a_copy(monkeypatch) -> None:
    monkeypatch.setattr(weight_only, "FILLED", 40_000)  # three products
    rows = weight_only.measure(1, 256, 128, 32, threads=1, rounds=3)
    assert rows[0][:2] == ("memory", "copy") and rows[0][5] == "1.00"
    assert rows[1][:2] == ("memory", "read")
    mine = [row for row in rows if row[0] == "tilewright"]
    assert [row[1] for row in mine] == ["float", "bytes", "float32 weights"]
    assert not any("WRONG" in row[-1] for row in rows)


def test_a_wrong_result_is_told() -> None:
    times = {("memory", "copy"): [1.0], ("x", "float"): [2.0]}
    *_, share, error = weight_only._row(("x", "float"), times, 1e-2, 10)
    assert share == "0.50" and error.endswith("WRONG")
    assert weight_only._row(("x", "float"), times, float("nan"), 10)[-1].endswith(
        "WRONG"
    )


def test_the_error_is_that_of_all_products() -> None:
    x = np.ones((1, 64), np.float32)
    right = [x @ weight_only.real_weights(64, 32, 32, n) for n in range(2)]
    key = ("x", "float")
    assert weight_only.wrongness({key: right}, x, 32, 32)[key] < 1e-6
    assert weight_only.wrongness({key: [right[0]] * 2}, x, 32, 32)[key] > 0.1
    nan = [right[0] * np.nan, right[1]]
    assert np.isnan(weight_only.wrongness({key: nan}, x, 32, 32)[key])
