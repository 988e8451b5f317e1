"""The benchmark of products with few bits: the same integers for all, and wrong results told."""

from __future__ import annotations

from benchmarks import weight_only


def test_every_engine_is_right_and_beside_reading() -> None:
    rows = weight_only.measure(1, 256, 128, 32, threads=1, rounds=3)
    assert rows[0][:2] == ("memory", "read") and rows[0][5] == "1.00"
    mine = [row for row in rows if row[0] == "tilewright"]
    assert [row[1] for row in mine] == ["float", "bytes", "float32 weights"]
    assert not any("WRONG" in row[-1] for row in rows)


def test_a_wrong_result_is_told() -> None:
    times = {("memory", "read"): [1.0], ("x", "float"): [2.0]}
    *_, share, error = weight_only._row(("x", "float"), times, 1e-2, 10)
    assert share == "0.50" and error.endswith("WRONG")
    assert weight_only._row(("x", "float"), times, float("nan"), 10)[-1].endswith(
        "WRONG"
    )
