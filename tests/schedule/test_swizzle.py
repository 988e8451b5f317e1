"""swizzle: chunks change places within blocks of a shared buffer; programs mean the same."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.dtypes import DType, complex128, float16, float32
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer
from tilewright.expr.swizzle import BLOCK, swizzled
from tilewright.loops.lower import lower
from tilewright.loops.parser import parse
from tilewright.schedule import Schedule
from tilewright.schedule.tree import find_buffer


def staged(rows: int, columns: int, dtype: DType = float16) -> Schedule:
    """A transpose through a copy of its input, `x.local`."""
    x, y = Buffer("x", (rows, columns), dtype), Buffer("y", (columns, rows), dtype)
    turned = map_("turned", y, lambda i, j: x[j, i])
    s = Schedule(lower("k", [turned], params=[x, y], outputs=[y]))
    s.cache_read("x", scope="shared")
    return s


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "row"),
    [(64, 64, float16, 128), (16, 128, float16, 256), (8, 8, float32, 128)],
)
def test_only_where_elements_are_stored_changes(rows, columns, dtype, row):
    s = staged(rows, columns, dtype)
    before = s.kernel
    s.swizzle("x.local")
    buffer, _ = find_buffer(s.kernel, "x.local", "test")
    assert buffer.swizzle == row
    text = str(s.kernel)
    assert text.replace(f" swizzled {row}", "") == str(before)
    assert str(parse(text.split("\n"))) == text


@pytest.mark.parametrize("row", [128, 256, 1024])
def test_bytes_change_places_within_a_block_and_chunks_stay_whole(row):
    at = np.array([swizzled(n, row) for n in range(16 * row)])
    assert np.array_equal(np.sort(at), np.arange(16 * row))
    assert np.array_equal(at // BLOCK, np.arange(16 * row) // BLOCK)
    assert (at.reshape(-1, 16) - at[::16, None] == np.arange(16)).all()
    column = at.reshape(16, row)[:, 0] % BLOCK  # of the first chunk of each row
    assert len(set(column[:8])) == 8


def test_buffers_of_several_iterations_are_swizzled_alike():
    s = staged(32, 64)
    s.cache_read("x.local", "turned.i", "shared", name="part")
    s.storage_align("part", 0, 8, 0)
    s.swizzle("part")
    s.double_buffer("part")
    part, _ = find_buffer(s.kernel, "part", "test")
    assert part.shape == (2, 32, 8) and part.swizzle == 128


REFUSED = {
    "rows": ((64, 48), "a row has 96 bytes, which is not a power of two"),
    "short": ((64, 4), "a row has 8 bytes"),
    "blocks": ((7, 8), "whole blocks of 128 bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_such_chunks_is_refused(name):
    shape, why = REFUSED[name]
    with pytest.raises(ScheduleError, match=f"swizzle: .*{why}"):
        staged(*shape).swizzle("x.local")


def test_other_memories_are_refused():
    s = staged(64, 64)
    s.set_scope("x.local", "stack")
    with pytest.raises(ScheduleError, match="it is in stack memory"):
        s.swizzle("x.local")
    with pytest.raises(ScheduleError, match="the buffer is a parameter"):
        s.swizzle("x")
    wide = staged(8, 8, complex128)
    wide.swizzle("x.local")  # an element is a chunk
