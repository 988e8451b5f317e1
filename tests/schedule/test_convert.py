"""convert: a buffer holds the numbers that its reads are converted to."""

from __future__ import annotations

import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import parse
from tilewright.schedule import Schedule
from tilewright.schedule.tree import find_buffer

STORED = "t[i] = f16(f32(x[i]) * 2.0)"
READ = "y[k] add= f32(t[k]) * z[k]"


def staged(read: str = READ, stored: str = STORED) -> Kernel:
    """A buffer of float16 that one loop writes and another reads."""
    return parse(
        f"""\
kernel k(x: float16[8], z: float32[8]) -> y: float32[8]:
  alloc t: float16[8]:
    for i in 8:
      {stored}
    for k in 8:
      y[k] = 0.0
      {read}""".split("\n")
    )


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(STORED, id="once"),
        pytest.param("t[i] = x[i]\n      t[i] = f16(f32(t[i]) * 3.0)", id="in place"),
    ],
)
def test_numbers_are_converted_where_they_are_stored(stored, check_same):
    """They are rounded to the narrow dtype before."""
    before = staged(stored=stored)
    s = Schedule(before)
    s.convert("t")
    assert find_buffer(s.kernel, "t", "test")[0].dtype is float32
    assert "f32(t[" not in str(s.kernel)
    check_same(before, s, exact=True)


def test_a_read_at_a_place_that_is_read(check_same):
    """No read of the narrow buffer is left in an index."""
    before = parse(
        """\
kernel k(z: float32[8]) -> y: float32[8]:
  alloc t: int32[8]:
    for i in 8:
      t[i] = 7_i32 - i32(i)
    for k in 8:
      y[k] = z[i64(t[i64(t[k])])]""".split("\n")
    )
    s = Schedule(before)
    s.convert("t")
    assert "y[k] = z[t[t[k]]]" in str(s.kernel)
    check_same(before, s, exact=True)


REFUSED = {
    "as it is": (
        staged("y[k] add= f32(t[k]) * f32(t[k] + x[k])"),
        "t",
        "read as it is, too",
    ),
    "several": (
        staged("y[k] add= f32(t[k]) * f32(f64(t[k]))"),
        "t",
        "converted to several dtypes",
    ),
    "never": (staged("y[k] add= z[k]"), "t", "nothing reads it"),
    "sums": (staged(stored="t[i] = x[i]\n      t[i] add= x[i]"), "t", "updates it"),
    "parameter": (staged(), "x", "is a parameter"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_buffers_are_refused(name):
    before, buffer, why = REFUSED[name]
    s = Schedule(before)
    with pytest.raises(ScheduleError, match=f"convert: .*{why}"):
        s.convert(buffer)
    assert s.kernel is before


def test_what_an_intrinsic_moves_keeps_its_dtype():
    before = staged()
    s = Schedule(before)
    s.blockize("i")
    with pytest.raises(ScheduleError, match="a Unit reads or writes it"):
        s.convert("t")
