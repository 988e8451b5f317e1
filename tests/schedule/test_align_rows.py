"""Rows of intermediate buffers begin at lines of the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.loops import interp
from tilewright.loops.intrinsic import (
    Formal,
    HardwareCall,
    decl_tensor_intrinsic,
    hardware_intrinsic,
)
from tilewright.loops.nodes import Alloc, Kernel, Unit
from tilewright.loops.parser import parse
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.operators import Buffer, map_
from tilewright.schedule import Schedule
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


TWO = """
kernel k(x: float32[2, 130]) -> y: float32[2, 130]:
  alloc t: float32[2, 130]:
    for j in 2:
      for i in 130:
        t[j, i] = x[j, i]
    alloc u: float32[2, 130]:
      for j2 in 2:
        for i2 in 130:
          u[j2, i2] = t[j2, i2]
      for j3 in 2:
        for i3 in 130:
          y[j3, i3] = u[1 - j3, i3] + 1.0
"""


def _declared(name: str, gaps: bool) -> None:
    x, y = Buffer("x", (2, 130), float32), Buffer("y", (2, 130), float32)

    def lower(inputs: Sequence[Formal], outputs: Sequence[Formal]) -> HardwareCall:
        (x,), (y,) = inputs, outputs
        strides = (y.strides[0], x.strides[0]) if gaps else ()
        return hardware_intrinsic(
            "rows", y.access_ptr("w"), x.access_ptr("r"), *strides
        )

    decl_tensor_intrinsic(map_("rows", y, lambda i, j: x[i, j]), lower, name=name)


_declared("test.align_rows.any", gaps=True)
_declared("test.align_rows.whole", gaps=False)


@pytest.mark.parametrize(
    "nest, name, rows",
    [
        ("j", "any", {"t": 144, "u": 144}),
        ("j", "whole", {"t": 130, "u": 144}),
        ("j2", "whole", {"t": 130, "u": 130}),
    ],
)
def test_units_have_the_operands_of_their_bodies(nest, name, rows):
    s = Schedule(parse(TWO.strip().split("\n")))
    s.tensorize(nest, f"test.align_rows.{name}")
    made = align_rows(s.kernel)
    verify(made)
    np.testing.assert_array_equal(results(made), results(s.kernel))
    found = [p.stmt for p in walk(made.body)]
    assert {
        x.buffer.name: x.buffer.shape[1] for x in found if isinstance(x, Alloc)
    } == rows
    (unit,) = [x for x in found if isinstance(x, Unit)]
    assert [o.strides[0] for o in unit.operands] == [
        o.buffer.shape[1] for o in unit.operands
    ]
