"""Products with packed block weights: what is of the pattern, and all schedules of it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int32
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.interp import run
from tilewright.loops.lower import lower
from tilewright.loops.verify import verify
from tilewright.schedule.space.choices import Point
from tilewright.schedule.space.patterns import classify, nested_dims
from tilewright.schedule.space.selection import default_point
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.registry import target

M, G, N, W, J = 3, 2, 21, 2, 4
A = Buffer("a", (M, G * W * J), float32)
WORDS = Buffer("words", (G, W, N), int32)
SCALE = Buffer("scale", (G, N), float32)
SUMS = Buffer("sums", (M, G, N), float32)
Y = Buffer("y", (M, N), float32)


def _inside(m: Any, g: Any, n: Any, w: Any, j: Any) -> Any:
    q = (WORDS[g, w, n] >> cast(j * 8, int32)) & 255
    return A[m, g * (W * J) + w * J + j] * (cast(q, float32) - 128.0)


INNER = reduce_("inner", SUMS, (W, J), "add", _inside)
OUTER = reduce_("outer", Y, (G,), "add", lambda m, n, g: SUMS[m, g, n] * SCALE[g, n])


def test_the_pattern() -> None:
    found = classify([INNER, OUTER])
    assert found.name == "block_scaled"
    assert found.vector is OUTER.dims[1]
    z = Buffer("z", (M, N), float32)
    after = map_("after", z, lambda m, n: Y[m, n] + Y[m, n])
    assert classify([INNER, OUTER, after]).name == "block_scaled"


def _others() -> dict[str, list[Computation]]:
    floats = Buffer("floats", (G, W, N), float32)

    def real(m: Any, g: Any, n: Any, w: Any, j: Any) -> Any:
        return A[m, g * (W * J) + w * J + j] * floats[g, w, n]

    z = Buffer("z", (M, N), float32)
    square = Buffer("square", (G, G), float32)
    return {
        "the other sum reads no results of the first": [
            INNER,
            reduce_("outer", Y, (G,), "add", lambda m, n, g: A[m, g] * SCALE[g, n]),
        ],
        "a result is read twice": [
            INNER,
            reduce_(
                "outer", Y, (G,), "add", lambda m, n, g: SUMS[m, g, n] * SUMS[m, g, 0]
            ),
        ],
        "results are read at other points": [
            INNER,
            reduce_(
                "outer", Y, (G,), "add", lambda m, n, g: SUMS[m, g, N - 1 - n] * 2.0
            ),
        ],
        "the other one is not a sum": [
            INNER,
            reduce_("outer", Y, (G,), "max", lambda m, n, g: SUMS[m, g, n]),
        ],
        "nothing is cut out of words": [
            reduce_("inner", SUMS, (W, J), "add", real),
            OUTER,
        ],
        "the map behind reads the inner sums too": [
            INNER,
            OUTER,
            map_("after", z, lambda m, n: Y[m, n] + SUMS[m, 0, n]),
        ],
        "the sums have no column": [
            INNER,
            reduce_("outer", square, (N,), "add", lambda m, g, n: SUMS[m, g, n] * 2.0),
        ],
    }


@pytest.mark.parametrize("why", _others())
def test_what_is_not_of_the_pattern(why: str) -> None:
    assert classify(_others()[why]).name != "block_scaled"


def test_nested_dimensions() -> None:
    found = nested_dims(INNER, OUTER)
    assert found is not None
    assert [found[d].var.name for d in OUTER.dims] == ["m", "n", "g"]


@pytest.mark.sampled(5)  # each level once
@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_keep_the_result(mcpu: str, seed: int) -> None:
    kernel = lower("k", [INNER, OUTER], [A, WORDS, SCALE, Y], [Y])
    at = Context(replace(machine(mcpu), cores=2), constants={WORDS, SCALE})
    draw = random.Random(seed)
    numbers = np.random.default_rng(seed)
    arrays = {
        A: numbers.standard_normal(A.shape).astype(np.float32),
        WORDS: numbers.integers(-(2**31), 2**31, WORDS.shape, dtype=np.int32),
        SCALE: numbers.uniform(0.1, 1, SCALE.shape).astype(np.float32),
    }
    made = next(s for s in sketches(kernel, [INNER, OUTER], at))
    assert made.name == "block_scaled"
    for n in range(3):
        point = default_point("k", [made]) if n == 0 else made.random(draw)
        after = point.schedule.kernel
        verify(after)
        before, found = ({**arrays, Y: np.zeros(Y.shape, np.float32)} for _ in range(2))
        run(kernel, before)
        run(after, found)
        np.testing.assert_allclose(found[Y], before[Y], 1e-4, 1e-3)


def _few_rows(mcpu: str, l1: int = 1 << 10, rows: int = 1) -> Point:
    """The default schedule for 256 columns and 8 blocks of 16, two words of each."""
    a = Buffer("a", (rows, 8 * 16), float32)
    words = Buffer("words", (8, 2, 256), int32)
    scale = Buffer("scale", (8, 256), float32)
    sums = Buffer("sums", (rows, 8, 256), float32)
    y = Buffer("y", (rows, 256), float32)

    def inside(m: Any, g: Any, n: Any, w: Any, j: Any) -> Any:
        q = (words[g, w, n] >> cast(j * 4, int32)) & 15
        return a[m, g * 16 + w * 8 + j] * cast(q, float32)

    def across(m: Any, n: Any, g: Any) -> Any:
        return sums[m, g, n] * scale[g, n]

    steps = [
        reduce_("inner", sums, (2, 8), "add", inside),
        reduce_("outer", y, (8,), "add", across),
    ]
    kernel = lower("k", steps, [a, words, scale, y], [y])
    at = Context(replace(machine(mcpu), l1=l1), constants={words, scale})
    return default_point("k", [next(iter(sketches(kernel, steps, at)))])


@pytest.mark.parametrize(
    ("mcpu", "rows", "vectors"),
    [("znver5", 1, 8), ("znver4", 1, 4), ("znver4", 2, 4), ("x86-64-v3", 1, 4)],
)
def test_as_many_vectors_as_products_wait_for_one_another(
    mcpu: str, rows: int, vectors: int
) -> None:
    """A Zen 5 starts two products of four cycles at once, a Zen 4 one; with 16 registers, words
    leave room for no more than four. None takes fewer than `in_flight`."""
    assert _few_rows(mcpu, rows=rows).values["outer.vectors"] == vectors


def test_weights_that_the_first_cache_does_not_hold_are_fetched_ahead() -> None:
    """However many rows there are: 64 are twice as large as the words."""
    size = 16 * 256 * 4  # bytes of the words
    for mcpu, l1, rows, ahead in (
        ("znver5", size - 1, 1, 4096),
        ("znver5", size, 1, 0),
        ("znver5", size, 64, 0),
        ("znver4", size - 1, 1, 0),
    ):
        assert _few_rows(mcpu, l1, rows).values["outer.prefetch"] == ahead


def test_words_are_fetched_once_for_all_integers_in_them() -> None:
    """Eight vectors of words, which a loop that is written out reads eight times."""
    kernel = _few_rows("znver5").schedule.kernel
    text = target("cpu", "znver5").text(kernel, "k", "llvm")
    assert text.count("call void @llvm.prefetch") == 8
