"""What each pattern means, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import InputError
from tilewright.lift.interp import interpret
from tilewright.lift.patterns import parse

X = np.arange(24, dtype=np.int64).reshape(4, 6) - 9
V = np.array([3, -1, 4, 1, -5, 9], np.int64)

# (body over x: i64[m, n] and v: i64[n], the same in NumPy)
MEANINGS: list[tuple[str, Callable[[], Any]]] = [
    ("x | Map(Map(relu))", lambda: np.maximum(X, 0)),
    ("x | Map(Reduce(add, 5)) | Join", lambda: X.sum(1) + 5),
    ("x | Map(PartRed(add, 0, 3))", lambda: X.reshape(4, 3, 2).sum(2)),
    ("v | Scan(max, -100)", lambda: np.maximum.accumulate(V)),
    ("v | Iterate(3, Map(lambda e: e * 2))", lambda: V * 8),
    ("x | Map(lambda r: Zip(r, v) | Map(sub))", lambda: X - V),
    ("Zip(v, Iota(n)) | Unzip", lambda: (V, np.arange(6))),
    ("x | At(2)", lambda: X[2]),
    ("v | Split(2)", lambda: V.reshape(3, 2)),
    ("x | Join", lambda: X.reshape(-1)),
    ("v | Slide(3, 1)", lambda: np.lib.stride_tricks.sliding_window_view(V, 3)),
    ("x | Slide2D(2, 1)", lambda: np.lib.stride_tricks.sliding_window_view(X, (2, 2))),
    ("v | Slide(2, 2)", lambda: V.reshape(3, 2)),
    ("x | Transpose", lambda: X.T),
    ("Concat(v | Drop(4), v | Take(2))", lambda: np.concatenate([V[4:], V[:2]])),
    ("v | Pad(2, 1, 'clamp')", lambda: np.pad(V, (2, 1), "edge")),
    ("v | Pad(2, 1, 'wrap')", lambda: np.pad(V, (2, 1), "wrap")),
    ("v | Pad(2, 1, 'mirror')", lambda: np.pad(V, (2, 1), "symmetric")),
    ("v | Pad(2, 1, 7)", lambda: np.pad(V, (2, 1), constant_values=7)),
    ("v | Gather('reverse')", lambda: V[::-1]),
    ("Filter(v, Iota(2) | Map(lambda i: i * 4))", lambda: V[[0, 4]]),
    ("Filter(x, v | Map(lambda e: max(0, min(e, 3))))", lambda: X[np.clip(V, 0, 3)]),
    ("v | Gather('stride', 2)", lambda: V.reshape(3, 2).T.reshape(-1)),
    ("v | Scatter('stride', 2)", lambda: V.reshape(2, 3).T.reshape(-1)),
    ("v | Gather('rotate', 2)", lambda: np.roll(V, -2)),
    ("v | asVector(2) | Map(Vectorize(2, neg)) | asScalar", lambda: -V),
    ("v | Map(lambda e: Tuple(e, f64(e)))", lambda: (V, V.astype(np.float64))),
    (
        "x | Reduce(lambda a, r: Zip(a, r) | Map(add), Fill(0, n)) | At(0)",
        lambda: X.sum(0),
    ),
    (
        "v | MapSeqSlide(Reduce(add, 0), 3, 1) | Join",
        lambda: np.convolve(V, [1, 1, 1], "valid"),
    ),
    (
        "let(v | Map(relu), lambda e: Zip(e, e) | Map(mul))",
        lambda: np.maximum(V, 0) ** 2,
    ),
    ("v | Map(userfun('f', lambda a: a * a + 1, i64))", lambda: V * V + 1),
]


@pytest.mark.parametrize(("body", "expected"), MEANINGS, ids=[m[0] for m in MEANINGS])
def test_meaning(body: str, expected: Callable[[], Any]) -> None:
    found = interpret(parse(f"fun(lambda x, v: {body}, i64[m, n], i64[n])"), X, V)
    want = expected()
    for got, w in zip(found, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_array_equal(got, w)
        assert got.dtype == w.dtype


@pytest.mark.parametrize(
    ("body", "arrays", "message"),
    [
        (
            "v",
            (X, V[:5]),
            r"argument 2: expected the shape \(n\) = \(6,\), found \(5,\)",
        ),
        ("v", (V, V), r"argument 1: expected 2 dimensions"),
        ("v", (X,), r"expected 2 arrays, found 1"),
        ("v", (X, V.astype(np.float32)), r"expected int64, found float32"),
        ("v | Split(4)", (X, V), r"4 \| n \(Split\(4\)\) does not hold"),
    ],
    ids=str,
)
def test_arrays_that_do_not_fit(
    body: str, arrays: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        interpret(parse(f"fun(lambda x, v: {body}, i64[m, n], i64[n])"), *arrays)
