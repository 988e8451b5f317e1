"""Rows in vectors: the same values to the last bit, where and only where no order changes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.cpu.native import run_native
from tilewright.loops import interp
from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import parse
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of
from tilewright.targets.cpu.compile import finished
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.row_vectors import row_vectors

V3 = machine("x86-64-v3")  # 8 lanes of float32


def filled(kernel: Kernel) -> dict:
    rng = np.random.default_rng(0)
    return {b: rng.integers(0, 9, b.shape).astype(b.dtype.numpy) for b in kernel.params}


def vectors(text: str) -> list[str]:
    """The vector loops of the result, with their lanes; it is verified and computes the same."""
    kernel = parse(text.strip().split("\n"))
    verify(kernel)
    made = row_vectors(kernel, V3)
    verify(made)
    want = filled(kernel)
    interp.run(kernel, want)
    for run in (interp.run, run_native):
        found = filled(made)
        run(made, found)
        for b in made.params:
            np.testing.assert_array_equal(found[b], want[b])
    old = {f.var.name for f in loops_of(kernel.body) if f.kind == "vector"}
    new = [f for f in loops_of(made.body) if f.kind == "vector"]
    return [f"{f.var.name} {f.trips}" for f in new if f.var.name not in old]


ROW = """
kernel k(A: float32[3, 200], B: float32[3, 100]) -> C: float32[3, 100]:
  for y in 3:
    for x in {n}{kind}:
      C[{target}] = A[{read}] + B[y, 5]
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["x.i 8", "x.t 4"]),
        ({"n": 96}, ["x.i 8"]),
        ({"n": 4}, ["x.i 4"]),
        ({"n": 3}, []),
        ({"n": 7}, ["x.i 4", "x.t 3"]),
        ({"n": 97}, ["x.i 8", "x.t 1"]),
        ({"kind": " unroll", "n": 16}, []),
        ({"kind": " parallel"}, []),
        ({"read": "y, x * 2"}, ["x.i 8", "x.t 4"]),
        ({"read": "y, x // 2"}, ["x.i 8", "x.t 4"]),
        ({"read": "y, 99 - x"}, ["x.i 8", "x.t 4"]),
        ({"read": "y, max(x - 3, 0)"}, ["x.i 8", "x.t 4"]),
        ({"read": "x % 3, x"}, []),  # no few vectors cover these
        ({"read": "y, x * 7 % 200"}, []),
        ({"target": "y, 99 - x"}, []),  # not in the order of the row
        ({"target": "y, x // 2"}, []),
    ],
)
def test_rows(given: dict[str, object], expected: list[str]) -> None:
    options = {"n": 100, "kind": "", "target": "y, x", "read": "y, x"} | given
    assert vectors(ROW.format(**options)) == expected


def test_lanes_are_those_of_the_widest_elements() -> None:
    text = """
kernel k(A: uint8[64], B: {dtype}[64]) -> C: uint8[64]:
  for x in 64:
    C[x] = select(B[0] < B[x], A[x], A[0])
"""
    assert vectors(text.format(dtype="uint8")) == ["x.i 32"]
    assert vectors(text.format(dtype="float64")) == ["x.i 4"]


def test_each_element_of_a_row_has_its_own_sum() -> None:
    assert vectors("""
kernel k(A: float32[3, 5], B: float32[5, 16]) -> C: float32[3, 16]:
  for y in 3:
    for k in 5:
      for x in 16:
        C[y, x] add= A[y, k] * B[k, x]
""") == ["x.i 8"]


@pytest.mark.parametrize(
    "text",
    [
        # A sum would add in another order.
        """
kernel k(A: float32[40]) -> C: float32[1]:
  for x in 40:
    C[0] add= A[x]
""",
        # Each iteration reads what the one before has stored.
        """
kernel k(A: float32[40]) -> C: float32[41]:
  for x in 40:
    C[x + 1] = C[x] + A[x]
""",
        # Two statements, the second of which overwrites what the next iteration's first stores.
        """
kernel k(A: float32[40]) -> C: float32[41]:
  for x in 40:
    C[x] = A[x]
    C[x + 1] = 2.0
""",
        # Where is read depends on memory: a gather.
        """
kernel k(A: float32[40], I: int64[40]) -> C: float32[40]:
  for x in 40:
    C[x] = A[max(min(I[x], 39), 0)]
""",
        # A loop inside.
        """
kernel k(A: float32[40, 3]) -> C: float32[40]:
  for x in 40:
    for k in 3:
      C[x] add= A[x, k]
""",
        # Lanes already.
        """
kernel k(A: float32[8, 40]) -> C: float32[8, 40]:
  for y in 8 vector:
    for x in 40:
      C[y, x] = A[y, x]
""",
        # Memory that each iteration has for itself.
        """
kernel k(A: float32[40]) -> C: float32[40]:
  for x in 40:
    alloc T: float32[1]:
      T[0] = A[x]
      C[x] = T[0] * T[0]
""",
    ],
)
def test_what_stays(text: str) -> None:
    assert vectors(text) == []


def test_an_element_that_all_lanes_read_is_not_stored_between() -> None:
    """C[0] changes in the first iteration, and all others read it."""
    assert (
        vectors("""
kernel k(A: float32[40]) -> C: float32[40]:
  for x in 40:
    C[x] = A[x] + C[0]
""")
        == []
    )


def test_bounds_are_decided_in_the_steady_state() -> None:
    kernel = parse(
        """
kernel k(A: float32[100]) -> C: float32[100]:
  for x in 100:
    C[x] = A[max(x - 3, 0)]
""".strip().split("\n")
    )
    text = repr(finished(kernel, V3))
    assert "= A[(x.o + 1) * 8 + x.i - 3]" in text


def test_a_loop_with_nothing_in_it() -> None:
    text = """
kernel k(A: float32[8]) -> C: float32[8]:
  for w in 4:
    pass
  for x in 8:
    C[x] = A[x]
"""
    assert vectors(text) == ["x.i 8"]
