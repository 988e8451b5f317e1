"""ring_buffer: a Func that is computed some iterations ahead, beside the `halide` package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import ScheduleError

theirs = pytest.importorskip("halide")
image = np.random.default_rng(0).integers(0, 99, (20, 24)).astype(np.int32)


def blur(m: Any) -> tuple[Any, ...]:
    x, y = m.Var("x"), m.Var("y")
    wide, tall, out = m.Func("wide"), m.Func("tall"), m.Func("out")
    given = m.Buffer(image)
    wide[x, y] = given[x, y] + given[x + 1, y]
    tall[x, y] = wide[x, y] * 2 - wide[x, y + 1]
    out[x, y] = tall[x, y] + tall[x + 1, y]
    return out, tall, wide, x, y


def ring(m: Any, extent: int) -> Any:
    out, tall, wide, _, y = blur(m)
    tall.compute_at(out, y).hoist_storage_root().ring_buffer(extent)
    wide.compute_at(out, y)
    return out


@pytest.mark.parametrize("extent", [1, 2, 3])
def test_results_are_those_of_halide(extent: int) -> None:
    mine, other = (np.asarray(ring(m, extent).realize([22, 19])) for m in (hl, theirs))
    np.testing.assert_array_equal(mine, other)


def test_what_it_needs_is_computed_ahead_too() -> None:
    text = str(ring(hl, 3).kernel([22, 19]))
    assert "alloc tall: int32[3, 1, 23]" in text
    assert "alloc wide.pro0: int32[2, 23] in stack" in text
    assert "out[out.y, out.x] = tall[out.y % 3, 0, out.x]" in text


@pytest.mark.parametrize("place", ["root", "stored", "parallel", "short"])
def test_where_there_is_no_ring_is_said(place: str) -> None:
    out, tall, _, _, y = blur(hl)
    tall.compute_at(out, y).ring_buffer(4)
    want = "ring_buffer: it is not computed in a loop that uses it"
    if place == "root":
        tall.compute_root()
    elif place == "stored":
        tall.store_root()
    elif place == "parallel":
        out.parallel(y)
        want = "pipeline: the loop is parallel"
    else:
        want = "at most 2"
    with pytest.raises(ScheduleError, match=want) as caught:
        out.realize([22, 3 if place == "short" else 19])
    assert "test_ring.py" in str(caught.value.where)
