"""Short sums written out: the same values, where and only where the loop around reads again."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.loops import interp
from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import parse
from tilewright.loops.passes.write_out import write_out
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of


def results(kernel: Kernel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {b: rng.normal(size=b.shape).astype(b.dtype.numpy) for b in kernel.params}
    interp.run(kernel, arrays)
    return [arrays[b] for b in kernel.outputs]


def written_out(text: str) -> list[str]:
    """The loops that are written out in the result, which is verified and computes the same."""
    kernel = parse(text.strip().split("\n"))
    verify(kernel)
    made = write_out(kernel)
    verify(made)
    for found, want in zip(results(made), results(kernel), strict=True):
        np.testing.assert_array_equal(found, want)
    old = {f.var.name for f in loops_of(kernel.body) if f.kind == "unroll"}
    new = {f.var.name for f in loops_of(made.body) if f.kind == "unroll"}
    assert (made is kernel) == (new == old)
    return sorted(new - old)


PRODUCT = """
kernel k(A: float32[6, {k}], B: float32[{k}, 8]) -> C: float32[6, 8]:
  for y in 6{y}:
    for k in {k}{kind}:
      for u in {u} unroll:
        for x in 8 vector:
          C[y, x] add= A[y, k] * B[k, x]
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["k"]),
        ({"y": " parallel"}, ["k"]),
        ({"y": " unroll"}, []),  # written out itself
        ({"k": 8}, ["k"]),
        ({"k": 9}, []),  # too many steps
        ({"k": 1}, []),
        ({"k": 4, "u": 4}, ["k"]),
        ({"k": 4, "u": 5}, []),  # too many copies
        ({"kind": " unroll"}, []),
    ],
)
def test_short_sums_are_written_out(
    given: dict[str, object], expected: list[str]
) -> None:
    options = {"k": 4, "u": 2, "y": "", "kind": ""} | given
    assert written_out(PRODUCT.format(**options)) == expected


@pytest.mark.parametrize(
    "text",
    [
        # Each iteration around reads other elements.
        """
kernel k(A: float32[6, 4]) -> C: float32[6]:
  for y in 6:
    for k in 4:
      C[y] add= A[y, k]
""",
        # A loop that runs once reads nothing again.
        """
kernel k(A: float32[6, 4]) -> C: float32[6]:
  for y in 6:
    for z in 1:
      for k in 4:
        C[y] add= A[y, k]
""",
        # Scalars.
        """
kernel k(A: float32[6], B: float32[4]) -> C: float32[6]:
  for y in 6:
    for k in 4:
      C[y] add= A[y] * B[k]
""",
        # What is read changes in the loop around.
        """
kernel k(A: float32[6, 4]) -> C: float32[6, 8], D: float32[4, 8]:
  for y in 6:
    for k in 4:
      for x in 8 vector:
        C[y, x] add= D[k, x] * A[y, k]
    for z in 8 vector:
      D[y % 4, z] = 2.0
""",
        # Where is read depends on memory.
        """
kernel k(I: int64[4], B: float32[4, 8]) -> C: float32[6, 8]:
  for y in 6:
    for k in 4:
      for x in 8 vector:
        C[y, x] add= B[max(min(I[k], 3), 0), x]
""",
        # Conditions may keep the body from running.
        """
kernel k(B: float32[4, 8]) -> C: float32[6, 8]:
  for y in 6:
    for k in 4:
      if k < y:
        for x in 8 vector:
          C[y, x] add= B[k, x]
""",
        # A loop that runs inside of it.
        """
kernel k(B: float32[4, 8]) -> C: float32[6, 8]:
  for y in 6:
    for k in 4:
      for z in y:
        for x in 8 vector:
          C[y, x] add= B[k, x]
""",
        # No sum: parts of a row, each in its own place.
        """
kernel k(A: float32[6, 32], B: float32[32]) -> C: float32[6, 32]:
  for y in 6:
    for x in 4:
      for v in 8 vector:
        C[y, x * 8 + v] add= A[y, x * 8 + v] * B[x * 8 + v]
""",
        """
kernel k(A: float32[6, 4], B: float32[4]) -> C: float32[6]:
  for y in 6:
    for k in 4:
      C[y] = C[y] * A[y, k] + B[k]
""",
        # One element in all steps: it is read before them as they are.
        """
kernel k(A: float32[6], B: float32[1]) -> C: float32[6]:
  for y in 6:
    for k in 4:
      C[y] add= B[0]
""",
        # No loop around, from which anything could be read again.
        """
kernel k(B: float32[4]) -> C: float32[1]:
  for k in 4:
    C[0] add= B[k]
""",
        # Conditions may keep the body from running.
        """
kernel k(A: float32[6], B: float32[4]) -> C: float32[6]:
  for y in 6:
    for k in 4:
      if k < y:
        C[y] add= B[k]
""",
        # A loop that runs inside of it.
        """
kernel k(B: float32[4]) -> C: float32[6]:
  for y in 6:
    for k in 4:
      for z in y:
        C[y] add= B[k]
""",
    ],
)
def test_what_stays(text: str) -> None:
    assert written_out(text) == []


def test_statements_around_the_loop_keep_their_order() -> None:
    found = written_out("""
kernel k(A: float32[6, 4], B: float32[4, 8]) -> C: float32[6, 8], D: float32[6, 8]:
  for y in 6:
    for x in 8 vector:
      C[y, x] = 1.0
    for k in 4:
      for v in 8 vector:
        C[y, v] add= A[y, k] + B[k, v]
    for z in 8 vector:
      D[y, z] = C[y, z] - 1.0
""")
    assert found == ["k"]
