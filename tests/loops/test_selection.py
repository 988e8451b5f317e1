"""The first elements of a row by selection: orders that fill its room, ties, and its limits."""

import numpy as np
import pytest

from tests.graph.one_operator import model_of, run
from tilewright.graph.ops.topk import LONG, MANY
from tilewright.loops.selection import LEAST_ROOM, PIECE

RNG = np.random.default_rng(1)
MOST = float(np.finfo(np.float32).max)


def orders(extent):
    """Rows of float32, with what each is to show."""
    x = RNG.standard_normal(extent).astype(np.float32)
    rising = np.sort(x)
    yield "few candidates", x
    yield "the first ones come first", rising[::-1]
    yield "every element is a candidate", rising
    yield "only ties", np.zeros(extent, np.float32)
    yield "ties in the leading bits", (1 + 1e-6 * rising).astype(np.float32)
    higher = (np.arange(extent) >= extent // 2) * np.finfo(np.float32).eps
    yield "the next number behind ties", (1 + higher).astype(np.float32)
    yield "ties behind all others", np.maximum(x, 2)
    yield "ties before all others", np.minimum(x, -1)
    yield "both zeros", np.where(x > 0, 0.0, -0.0).astype(np.float32)
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, MOST, 1e-45], np.float32)
    yield "numbers that are none", RNG.choice(odd, extent)
    yield "the first key of all", np.full(extent, np.nan, np.float32)
    yield "the last key of all", np.where(x > 0.5, x, -MOST).astype(np.float32)


def order_of(x, largest):
    """The places along the last axis; both zeros are equal, as are all NaN, which are largest."""
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    return np.argsort(-ranks if largest else ranks, -1, kind="stable")


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("extent", "k"),
    [
        (LEAST_ROOM, MANY + 1),
        (LEAST_ROOM + 1, MANY + 1),
        (LEAST_ROOM + PIECE - 1, 129),
        (4 * LEAST_ROOM, 200),
        (4 * LEAST_ROOM + 7, MANY + 1),
        (LEAST_ROOM + PIECE, LEAST_ROOM + PIECE),
        (LONG + 1, 1),
    ],
)
def test_stable_in_every_order(extent, k, largest):
    rows = dict(orders(extent))
    x = np.stack(list(rows.values()))
    made = model_of("TopK", [x, np.array([k])], known=[1], outputs=2, largest=largest)
    values, places = run(made, [x])
    want = order_of(x, largest)[:, :k]
    for name, found, order in zip(rows, places, want, strict=True):
        assert found.tolist() == order.tolist(), name
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, -1))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    "kind", ["float64", "float16", "int64", "uint64", "int32", "int8", "uint8"]
)
def test_keys_of_other_types(kind, largest):
    """By all of their bits, of which 64-bit numbers that are near differ in the last ones."""
    extent, k = 3 * LEAST_ROOM, 40
    whole = RNG.integers(0, 90, (2, extent))
    x = whole.astype(kind)
    if kind == "float64":
        x = 1 + whole * np.finfo(kind).eps
    elif kind == "float16":  # also those below the normal ones
        x = (whole - 45).astype(kind) * np.finfo(kind).smallest_subnormal
    elif kind != "uint8":
        limits = np.iinfo(kind)
        x[0] = (limits.max - whole[0].astype(kind)).astype(kind)
        x[1, ::2] = limits.min
    made = model_of("TopK", [x, np.array([k])], known=[1], outputs=2, largest=largest)
    values, places = run(made, [x])
    want = order_of(x, largest)[:, :k]
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, -1))


def test_columns():
    """Along another axis than the last."""
    x = RNG.standard_normal((3 * LEAST_ROOM, 3)).astype(np.float32)
    k = np.array([50])
    made = model_of("TopK", [x, k], known=[1], outputs=2, axis=0)
    want = np.argsort(-x, 0, kind="stable")[:50]
    np.testing.assert_array_equal(run(made, [x])[1], want)
