"""Arrays that go to the stack, and arrays that stay where they are."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.expr.nodes import Buffer, var
from tilewright.loops import interp
from tilewright.loops.nodes import Alloc, If, Kernel, Store, block, loop
from tilewright.loops.parser import parse
from tilewright.loops.passes.promote import promote
from tilewright.loops.verify import verify

ROWS = """
kernel k(x: float32[8, 4, 8]) -> y: float32[8, 4, 8]:
  for i in 8:
    {alloc}:
      for {fill}:
        for a in 8 vector:
          t[f, a] = x[i, f, a] * 2.0
      for {use}:
        for b in 8 vector:
          y[i, u, b] = t[{index}, b] + t[3, b]
"""


def promoted(
    alloc: str = "alloc t: float32[4, 8]",
    fill: str = "f in 4 unroll",
    use: str = "u in 4 unroll",
    index: str = "3 - u",
    most: int = 128,
) -> bool:
    """Whether the array goes to the stack; the kernel computes the same."""
    text = ROWS.format(alloc=alloc, fill=fill, use=use, index=index)
    return changed(text, most)


def changed(text: str, most: int = 128) -> bool:
    kernel = parse(text.strip().split("\n"))
    verify(kernel)
    made = promote(kernel, most)
    verify(made)
    assert ("in stack" in str(made)) == (made is not kernel)
    np.testing.assert_array_equal(results(made), results(kernel))
    return made is not kernel


def results(kernel: Kernel) -> np.ndarray:
    x, y = kernel.params
    arrays = {x: np.random.default_rng(0).random(x.shape, np.float32)}
    arrays[y] = np.zeros(y.shape, np.float32)
    interp.run(kernel, arrays)
    return arrays[y]


def test_indices_of_written_out_loops_are_constants() -> None:
    assert promoted()


@pytest.mark.parametrize(
    "change",
    [
        {"fill": "f in 4"},
        {"use": "u in 4"},
        {"use": "u in 4 parallel"},
        {"use": "u in i // 2 + 1 unroll"},
        {"index": "(u + i) % 4"},
        {"alloc": "alloc t: float32[4, 9]", "most": 128},
        {"most": 127},
    ],
    ids=["filled", "used", "threads", "open", "outer", "gap", "large"],
)
def test_what_cannot_be_in_registers_stays(change: dict[str, object]) -> None:
    assert not promoted(**change)  # type: ignore[arg-type]


def test_threads_share_what_is_stored_before_them() -> None:
    """Each index is a constant, but a part of the code that others run has its address."""
    assert not changed("""
kernel k(x: float32[4]) -> y: float32[8]:
  for o in 1:
    alloc t: float32[4]:
      for a in 4 vector:
        t[a] = x[a]
      for p in 2 parallel:
        for b in 4 vector:
          y[p * 4 + b] = t[b]
""")


def test_what_no_loop_repeats_stays() -> None:
    assert not changed("""
kernel k(x: float32[4]) -> y: float32[4]:
  alloc t: float32[4]:
    for a in 4 vector:
      t[a] = x[a]
    for b in 4 vector:
      y[b] = t[3 - b]
""")


def test_all_places_of_an_array_are_alike() -> None:
    """Threads share it in the second one, where one that writes a vector would write for others."""
    i32 = dtypes.int32
    x, y, t = Buffer("x", (4,), i32), Buffer("y", (4,), i32), Buffer("t", (4,), i32)
    o, p, a, b, c = map(var, "opabc")
    own = loop(a, 4, Store(t, (a,), x[a]), "vector")
    first = loop(
        o, 2, Alloc(t, block(own, loop(b, 4, Store(y, (b,), t[3 - b]), "unroll")))
    )
    half = If((c % 2).eq(p), Store(t, (c,), x[c]), None)
    shared = loop(p, 2, loop(c, 4, half, "vector"), "parallel")
    for body, fits in [(first, True), (block(first, Alloc(t, shared)), False)]:
        made = promote(Kernel("k", (x, y), (y,), body), 128)
        assert ("in stack" in str(made)) == fits
