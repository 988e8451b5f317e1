"""Bounds of what a buffer holds: only of what is stored before it is read, and bounded wherever it
is stored."""

from __future__ import annotations

import pytest

from tilewright.base.dtypes import int64
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.loops.analysis.contents import contents
from tilewright.loops.nodes import Alloc, Kernel, Stmt, Store, block
from tilewright.loops.parser import parse

KERNEL = """
kernel k(x: int32[16], z: float32[32]) -> y: float32[16]:
  alloc at: int32[16]:
{body}
    for j in 16:
      y[j] = z[i64(at[j]) + 8]
"""
BOUNDED = "max(min(x[i], 7_i32), -8_i32)"


def found(body: str) -> dict[str, object]:
    text = KERNEL.format(body="\n".join(f"    {line}" for line in body.split("\n")))
    return {b.name: r for b, r in contents(parse(text.strip().split("\n"))).items()}


def test_a_buffer_that_is_filled_first():
    assert found(f"for i in 16:\n  at[i] = {BOUNDED}") == {"at": (-8, 7)}


def test_all_stores_count():
    body = f"for i in 16:\n  at[i] = {BOUNDED}\nat[3] = 11_i32"
    assert found(body) == {"at": (-8, 11)}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("for i in 16:\n  at[i] = x[i]", id="any value of its type"),
        pytest.param(f"for i in 15:\n  at[i] = {BOUNDED}", id="not all of it"),
        pytest.param(f"for i in 8:\n  at[i * 2] = {BOUNDED}", id="with gaps"),
        pytest.param(
            f"for i in 16:\n  if x[i] < 3_i32:\n    at[i] = {BOUNDED}",
            id="under a guard",
        ),
        pytest.param(
            f"for i in 16:\n  at[i] = {BOUNDED}\nfor i2 in 16:\n  at[i2] add= 1_i32",
            id="updated",
        ),
    ],
)
def test_what_is_not_known(body):
    assert found(body).get("at", (-(1 << 31), (1 << 31) - 1)) == (
        -(1 << 31),
        (1 << 31) - 1,
    )


def test_a_buffer_that_is_no_index_is_not_looked_at():
    body = "alloc t: int32[4]:\n  for i in 4:\n    t[i] = 1_i32\n  for i3 in 16:\n    at[i3] = t[1]"
    assert "t" not in found(body)


def test_a_buffer_that_is_allocated_twice():
    """What one of its two lives holds says nothing of the other one."""
    t = Buffer("t", (1,), int64)
    x, z, y = (
        Buffer("x", (8,), int64),
        Buffer("z", (8,), int64),
        Buffer("y", (8,), int64),
    )

    def life(n: int, value: Expr) -> Stmt:
        here = (const(0),)
        body = block(Store(t, here, value), Store(y, (const(n),), z[t[0]]))
        return Alloc(t, body)

    bounded, any_value = life(0, const(3)), life(1, x[0])
    assert contents(Kernel("k", (x, z, y), (y,), bounded)) == {t: (3, 3)}
    for parts in ((bounded, any_value), (any_value, bounded)):
        assert contents(Kernel("k", (x, z, y), (y,), block(*parts))) == {}
