"""Arrays that are values of a function: the same results, and memory where they must be memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.cpu.native import run_native
from tilewright.loops import interp
from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import parse
from tilewright.targets.cpu.compile import llvm_ir
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.llvm.emit_registers import _are_apart
from tilewright.targets.permitted import IndexSet, Permitted

SUMS = """
kernel k(A: float32[200, 3], B: float32[200, 16]) -> C: float32[3, 16]:
  for p in 4:
    alloc T: float32[3, 16] in register:
      for n in 3 unroll:
        for x in 16 vector:
          T[n, x] = 0.0
      for k in 200:
        for n in 3 unroll:
          for x in 16 vector:
            T[n, x] add= A[k, n] * B[k, x]
      for n in 3 unroll:
        for x in 16 vector:
          C[n, x] = T[n, x]
"""

NESTED = """
kernel k(A: float32[90, 50, 8]) -> C: float32[8]:
  for p in 2:
    alloc T: float32[8] in register:
      for x in 8 vector:
        T[x] = 1.0
      for k in 90:
        for x in 8 vector:
          T[x] = A[k, 0, x] - T[x]
        for j in 50:
          for x in 8 vector:
            T[x] add= A[k, j, x]
      for x in 8 vector:
        C[x] = T[x]
"""

# The second element is first written in the loop, and read there and behind it.
LATE = """
kernel k(A: int64[90]) -> C: int64[90], D: int64[2]:
  for p in 2:
    alloc T: int64[2] in register:
      T[0] = 0
      for k in 90:
        T[1] = T[0] + A[k]
        C[k] = T[1]
        T[0] = T[1] - A[0]
      D[0] = T[0]
      D[1] = T[1]
"""

# Only from the second iteration on is anything read that was written.
BEFORE = """
kernel k(A: int64[90]) -> C: int64[90]:
  for p in 2:
    alloc T: int64[1] in register:
      for q in 70:
        for k in 90:
          C[k] = select(k * k < 1, A[k], T[0])
          T[0] = A[k] + q
"""

# The lanes of the store run one after another: each takes its own from a vector.
LANES = """
kernel k(A: float32[16], I: int64[16]) -> C: float32[16]:
  for x in 16:
    C[x] = 0.0
  for p in 2:
    alloc T: float32[16] in register:
      for x in 16 vector:
        T[x] = A[x] * 2.0
      for y in 16 vector:
        C[I[y]] = T[y]
"""

REDUCED = """
kernel k(A: float32[90, 16]) -> C: float32[1]:
  for p in 2:
    alloc T: float32[1] in register:
      T[0] = 0.0
      for k in 90:
        for x in 16 vector:
          T[0] add= A[k, x]
      C[0] = T[0]
"""

BYTES = """
kernel k(A: int8[90, 16], B: bool[16]) -> C: int8[16], D: bool[16]:
  for p in 2:
    alloc T: int8[16] in register:
      alloc F: bool[16] in register:
        for x in 16 vector:
          T[x] = A[0, x]
          F[x] = B[x]
        for k in 90:
          for x in 16 vector:
            T[x] = T[x] + A[k, x]
            F[x] = F[x] & (A[k, x] < A[0, x])
        for x in 16 vector:
          C[x] = T[x]
          D[x] = F[x]
"""


def parsed(text: str) -> Kernel:
    return parse(text.strip().split("\n"))


def check(kernel: Kernel) -> None:
    """Native code does what the interpreter does."""
    rng = np.random.default_rng(0)
    want = {}
    for b in kernel.params:
        values = rng.integers(0, 7, b.shape)
        if b.name == "I":
            values = rng.permutation(b.size)
        want[b] = values.astype(b.dtype.numpy)
    found = {b: v.copy() for b, v in want.items()}
    interp.run(kernel, want)
    assert run_native(kernel, found, machine=host()) == 0
    for b in kernel.params:
        np.testing.assert_array_equal(found[b], want[b])


def in_memory(kernel: Kernel) -> bool:
    return "alloca" in llvm_ir(kernel, machine("x86-64-v4"))


@pytest.mark.parametrize("text", [SUMS, NESTED, LATE, BEFORE, LANES, REDUCED, BYTES])
def test_an_array_with_constant_places_is_values(text: str) -> None:
    kernel = parsed(text)
    check(kernel)
    assert not in_memory(kernel)


def test_a_loop_has_one_phi_for_each_value_that_it_changes() -> None:
    text = llvm_ir(parsed(SUMS), machine("x86-64-v4"))
    assert text.count("phi <16 x float>") == 3


STAYS = {
    "a place that a loop decides": SUMS.replace(
        "for n in 3 unroll:\n        for x in 16 vector:\n          C",
        "for n in 3:\n        for x in 16 vector:\n          C",
    ),
    "lanes apart": """
kernel k(A: float32[16]) -> C: float32[8]:
  for p in 2:
    alloc T: float32[16] in register:
      for x in 8 vector:
        T[2 * x] = A[x]
      for x in 8 vector:
        C[x] = T[2 * x] - T[8]
""",
    "values that overlap": """
kernel k(A: float32[16]) -> C: float32[8]:
  for p in 2:
    alloc T: float32[12] in register:
      for x in 8 vector:
        T[x] = A[x]
      for x in 8 vector:
        T[x + 4] = A[x + 8]
      for x in 8 vector:
        C[x] = T[x]
""",
    "a place that data decide": LANES.replace("C[I[y]] = T[y]", "C[y] = T[I[y]]"),
    "parts of values": SUMS.replace("C[n, x] = T[n, x]", "C[n, x] = T[n, x] + T[0, 0]"),
    "lanes that are no neighbors": NESTED.replace("C[x] = T[x]", "C[x] = T[7 - x]"),
    "a change under a condition": LATE.replace(
        "        T[0] = T[1] - A[0]",
        "        if A[k] < 4:\n          T[0] = T[1] - A[0]",
    ),
    "a loop that may not run": LATE.replace("for k in 90:", "for k in A[0]:"),
}


@pytest.mark.parametrize("why", STAYS)
def test_another_array_is_memory(why: str) -> None:
    kernel = parsed(STAYS[why])
    assert str(kernel) != str(parsed(SUMS))
    check(kernel)
    assert in_memory(kernel)


def test_slots_that_overlap_or_leave_the_array_are_refused() -> None:
    assert _are_apart({0: 4, 4: 4, 8: 1}, 9)
    assert not _are_apart({0: 4, 3: 1}, 8)
    assert not _are_apart({4: 4}, 7)
    assert not _are_apart({-1: 1}, 7)


def test_sanitized_code_keeps_each_access() -> None:
    kernel = parsed(LATE)
    everywhere = {
        b: Permitted(*[(IndexSet.over(0, [(1, b.size)]),)] * 2) for b in kernel.params
    }
    text = llvm_ir(kernel, machine("x86-64-v4"), permitted=everywhere)
    assert "alloca [2 x i64]" in text
