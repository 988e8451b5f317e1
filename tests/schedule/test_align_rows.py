"""Rows of intermediate buffers begin at lines of the cache."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.loops import interp
from tilewright.loops.nodes import Alloc, Kernel
from tilewright.loops.parser import parse
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.schedule.align_rows import align_rows

ROWS = """
kernel k(x: float32[3, {n}]) -> y: float32[3, {n}]:
  alloc t: float32[3, {n}] in {scope}:
    for j in 3:
      for i in {n}:
        t[j, i] = x[j, i]
    for j2 in 3:
      for i2 in {n}:
        y[j2, i2] = t[2 - j2, i2]
"""


def results(kernel: Kernel) -> np.ndarray:
    x, y = kernel.params
    arrays = {x: np.random.default_rng(0).random(x.shape, np.float32)}
    arrays[y] = np.zeros(y.shape, np.float32)
    interp.run(kernel, arrays)
    return arrays[y]


def aligned(text: str) -> tuple[Kernel, Kernel]:
    kernel = parse(text.strip().split("\n"))
    made = align_rows(kernel)
    verify(made)
    np.testing.assert_array_equal(results(made), results(kernel))
    return kernel, made


@pytest.mark.parametrize("n, row", [(130, 144), (1534, 1536), (1020, 1040)])
def test_rows_are_whole_lines_and_not_whole_pages(n, row):
    _, made = aligned(ROWS.format(n=n, scope="global"))
    (alloc,) = [p.stmt for p in walk(made.body) if isinstance(p.stmt, Alloc)]
    assert alloc.buffer.shape == (3, row)
    assert [b.shape for b in made.params] == [(3, n), (3, n)]


@pytest.mark.parametrize(
    "n, scope", [(128, "global"), (100, "stack"), (130, "register")]
)
def test_rows_that_stay(n, scope):
    kernel, made = aligned(ROWS.format(n=n, scope=scope))
    assert made is kernel


@pytest.mark.parametrize("shape, index", [("[200]", "[0]"), ("[]", "[]")])
def test_what_has_no_rows_stays(shape, index):
    kernel, made = aligned(f"""
kernel k(x: float32[1]) -> y: float32[1]:
  alloc t: float32{shape} in stack:
    t{index} = x[0]
    y[0] = t{index}
""")
    assert made is kernel
