"""Unrolled loops that LLVM writes out: the same code and values, and only where all of it is."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from tests.targets.cpu.test_register_arrays import check, parsed
from tilewright.base.dtypes import float32
from tilewright.expr.nodes import Buffer, Expr, var
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.targets.cpu import emit
from tilewright.targets.cpu.compile import LEVEL, llvm_ir, optimized, target_machine
from tilewright.targets.cpu.machine import CpuMachine, machine
from tilewright.targets.cpu.processors import LEVELS
from tilewright.targets.llvm import emit_repeated
from tilewright.targets.llvm.emit_repeated import MOST, REPEATED
from tilewright.targets.permitted import IndexSet, Permitted

V4 = machine("x86-64-v4")

# What marks a loop that LLVM is still to write out: it numbers the marks anew.
STAYS = "llvm.loop.unroll.full"

SUMS = """
kernel k(A: float32[200, 6], B: float32[200, 2, 16]) -> C: float32[6, 2, 16]:
  for p in 4:
    alloc T: float32[6, 2, 16] in register:
      for n in 6 unroll:
        for m in 2 unroll:
          for x in 16 vector:
            T[n, m, x] = 0.0
      for k in 200:
        for n in 6 unroll:
          for m in 2 unroll:
            for x in 16 vector:
              T[n, m, x] add= A[k, n] * B[k, m, x]
      for n in 6 unroll:
        for m in 2 unroll:
          for x in 16 vector:
            C[n, m, x] = T[n, m, x] + A[p, 0]
"""

PLAIN = """
kernel k(A: float32[200, 16], I: int64[16]) -> C: float32[40, 16]:
  for p in 3:
    for n in 8 unroll:
      for x in 16 vector:
        C[n + p, x] = A[n, x] + 1.0
"""

BLOCK = """
kernel k(A: float32[200, 16]) -> C: float32[40, 16], D: float32[40, 16]:
  for p in 3:
    for n in 8 unroll:
      for x in 16 vector:
        C[n, x] = A[n + p, x] * A[p, 0]
      for m in 3 unroll:
        for x in 16 vector:
          D[3 * n + m, x] = A[n, x] - A[m, x]
"""

VALUE = " + ".join(f"(A[n, x] // A[n + {k}, x]) % {k + 2}_i8" for k in range(12))


def repeated(kernel: Kernel, m: CpuMachine = V4) -> int:
    """Loops that LLVM is asked to write out."""
    return llvm_ir(kernel, m).count(REPEATED)


def passed(kernel: Kernel, m: CpuMachine = V4) -> str:
    """The module after LLVM's passes."""
    return str(optimized(llvm_ir(kernel, m), m, kernel.name))


def assembled(kernel: Kernel) -> list[str]:
    module = optimized(llvm_ir(kernel, V4), V4, kernel.name)
    return str(target_machine(V4, LEVEL).emit_assembly(module)).splitlines()


@pytest.mark.parametrize(("text", "loops"), [(SUMS, 6), (PLAIN, 1), (BLOCK, 2)])
def test_llvm_writes_out_what_is_equal_but_for_addresses(text: str, loops: int) -> None:
    kernel = parsed(text)
    assert repeated(kernel) == loops
    check(kernel)
    after = passed(kernel)
    assert STAYS not in after
    assert "alloca" not in after


OF_MACHINES = {
    "sums": SUMS,
    "bfloat16": SUMS.replace("float32", "bfloat16").replace("0.0", "0.0_bf16"),
    "bytes": SUMS.replace("float32", "int8").replace("0.0", "0_i8"),
    "a block": BLOCK,
}


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("text", OF_MACHINES)
def test_every_processor_has_the_costs_that_llvm_needs(name: str, text: str) -> None:
    """LLVM keeps a loop if an instruction in it has no cost: a vector of copies of a number has
    none for RISC-V without vectors."""
    kernel, m = parsed(OF_MACHINES[text]), machine(name)
    assert (repeated(kernel, m) > 0) == (name != "riscv64")
    assert STAYS not in passed(kernel, m)


def test_the_code_is_that_of_a_loop_written_out_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = parsed(SUMS)
    short, code = llvm_ir(kernel, V4), assembled(kernel)
    monkeypatch.setattr(emit, "may_repeat", lambda *_: False)
    assert REPEATED not in llvm_ir(kernel, V4)
    assert len(short) < len(llvm_ir(kernel, V4))
    assert assembled(kernel) == code


def test_loops_that_stay_are_not_written_out() -> None:
    loop = "    for n in 8 unroll:\n"
    text = PLAIN.replace(loop, loop + "      for q in 4:\n").replace(
        "      for x in 16 vector:\n  ", "        for x in 16 vector:\n    "
    )
    stays = parsed(text.replace("n + p", "n + q"))
    assert repeated(stays) == 0
    one = parsed(PLAIN.replace("for p in 3", "for p in 2").replace("8 u", "4 u"))
    starts = [x for x in passed(one).splitlines() if re.match(r"loop\.p\.\d+:", x)]
    assert len(starts) == 1
    assert passed(one).count("store <16 x float>") == 4


WRITTEN_OUT = {
    "a value of the variable": ("A[n, x] + 1.0", "A[n, x] + f32(n)"),
    "a condition": ("A[n, x] + 1.0", "select(n < 5, A[n, x], 1.0)"),
    "a quotient in an address": ("A[n, x] + 1.0", "A[n // 3, x]"),
    "a quotient in where it is written": ("C[n + p, x]", "C[n // 2 + p, x]"),
    "an address that depends on data": ("A[n, x] + 1.0", "A[n, I[n]]"),
    "an address that data decide once": ("A[n, x] + 1.0", "A[n, I[p]]"),
    "lanes that are apart": ("A[n, x] + 1.0", "A[n, 15 - x]"),
    "a function": ("A[n, x] + 1.0", "sqrt(A[n, x])"),
    "too few": ("8 unroll", "3 unroll"),
    "another loop inside": ("    for n in 8 unroll", "    for n in 8"),
    "a branch inside": ("C[n + p, x] =", "if A[n, x] < 3.0:\n          C[n + p, x] ="),
}


@pytest.mark.parametrize("why", WRITTEN_OUT)
def test_what_differs_in_another_way_is_written_out(why: str) -> None:
    old, new = WRITTEN_OUT[why]
    assert PLAIN.count(old) == 1
    kernel = parsed(PLAIN.replace(old, new))
    assert repeated(kernel) == 0
    check(kernel)


BLOCKS = {
    "a loop inside that stays": ("for m in 3 unroll", "for m in 3"),
    "too few of several": ("for n in 8 unroll", "for n in 2 unroll"),
}


@pytest.mark.parametrize("why", BLOCKS)
def test_blocks_are_written_out_as_their_parts_are(why: str) -> None:
    text = BLOCK if "stays" in why else BLOCK.replace("for m in 3 u", "for m in 1 u")
    old, new = BLOCKS[why]
    assert text.count(old) == 1
    kernel = parsed(text.replace(old, new))
    assert repeated(kernel) == 0
    check(kernel)


def test_arrays_that_are_values_have_no_address() -> None:
    text = """
kernel k(A: float32[9, 16]) -> C: float32[8, 16]:
  for p in 2:
    alloc T: float32[16] in register:
      for x in 16 vector:
        T[x] = A[p, x]
      for n in 8 unroll:
        for x in 16 vector:
          C[n, x] = T[x] + A[n, x]
"""
    kernel = parsed(text)
    assert repeated(kernel) == 0
    check(kernel)
    assert "alloca" not in llvm_ir(kernel, V4)


def test_a_loop_that_an_outer_one_makes_plain_stays_written_out() -> None:
    """Before the outer loop is written out, an address is a product, so T is values; after that,
    the address is plain, but T has none that a variable could be in."""
    text = """
kernel k(A: float32[40, 16]) -> C: float32[16, 16]:
  for p in 2:
    alloc T: float32[4, 16] in register:
      for n in 3 unroll:
        for m in 4 unroll:
          for x in 16 vector:
            T[m, x] = A[n * m, x] + 1.0
        for m in 4 unroll:
          for x in 16 vector:
            C[n + m // 2 + 2 * p, x] = T[m, x]
"""
    kernel = parsed(text)
    assert repeated(kernel) == 0
    check(kernel)
    assert "alloca" not in llvm_ir(kernel, V4)
    alone = parsed(text.replace("T[m, x] =", "C[m, x] =").replace("= T[m", "= A[m"))
    assert repeated(alone) == 3


SIZES = """
kernel k(A: float32[s, 16]) -> C: float32[s, 16]:
  for s in 2147483648 size:
    for p in s // 8:
      for n in 8 unroll:
        for x in 16 vector:
          C[n + 8 * p, x] = A[n + 8 * p, x] + 1.0
"""


def test_buffers_have_sizes_of_a_call() -> None:
    kernel = parsed(SIZES)
    assert repeated(kernel) == 1
    assert STAYS not in passed(kernel)
    assert passed(kernel).count("store <16 x float>") == 8


def test_a_size_is_no_number_that_a_variable_is_multiplied_by() -> None:
    text = SIZES.replace("[s, 16]", "[16, s]").replace("s // 8", "2")
    assert repeated(parsed(text)) == 0


def test_a_buffer_without_elements_that_is_never_read() -> None:
    text = PLAIN.replace("A: float32[200, 16]", "A: float32[0, 16]")
    kernel = parsed(text.replace("A[n, x] + 1.0", "select(p < 0, A[n, x], 2.0)"))
    assert repeated(kernel) == 1
    check(kernel)
    assert STAYS not in passed(kernel)


def test_a_value_that_is_used_often_counts_once() -> None:
    """Its nodes are few, the paths to them many."""
    p, n, x = var("p"), var("n"), var("x")
    a, c = Buffer("A", (40, 16), float32), Buffer("C", (40, 16), float32)
    value: Expr = a[n, x]
    for _ in range(20):
        value = value + value
    body = loop(x, 16, Store(c, (n + p, x), value), "vector")
    kernel = Kernel("k", (a, c), (c,), loop(p, 3, loop(n, 8, body, "unroll")))
    assert repeated(kernel) == 1
    check(kernel)


def test_loops_inside_of_lanes_are_written_out() -> None:
    text = """
kernel k(A: float32[9, 16]) -> C: float32[8, 16]:
  for x in 16 vector:
    for n in 4 unroll:
      C[n, x] = A[n, x] + 1.0
      C[n + 4, x] = A[n, x] - 1.0
"""
    kernel = parsed(text)
    assert repeated(kernel) == 0
    check(kernel)


STRIPS = """
kernel k(A: float32[9, 96]) -> C: float32[9, 96]:
  for p in 2:
    for n in 8 unroll:
      for x in 96 vector:
        C[n, x] = A[n, x] + 1.0
"""

LANES_INSIDE = """
kernel k(A: float32[9, 16]) -> C: float32[9, 16]:
  for p in 2:
    for n in 8 unroll:
      for x in 16 vector:
        for m in 2 unroll:
          C[n + m, x] add= A[n, x] + 1.0
"""

VECTORS_INSIDE = LANES_INSIDE.replace("16 vector", "4 vector").replace(
    "m in 2 unroll", "m in 2 vector"
)


@pytest.mark.parametrize("text", [STRIPS, LANES_INSIDE, VECTORS_INSIDE])
def test_lanes_that_are_not_one_vector_are_written_out(text: str) -> None:
    """More lanes than a vector has are run in a loop, which would be written out too."""
    kernel = parsed(text)
    assert repeated(kernel) == 0
    check(kernel)


def test_loops_of_other_lanes_are_written_out() -> None:
    """Only some lanes may store, which a guard of the lanes says."""
    text = """
kernel k(A: float32[16]) -> C: float32[8, 16]:
  for x in 16 vector:
    if A[x] < 3.0:
      for n in 4 unroll:
        C[n, x] = 1.0
        C[n + 4, x] = 2.0
"""
    kernel = parsed(text)
    assert repeated(kernel) == 0
    check(kernel)


def test_sanitized_code_is_written_out() -> None:
    kernel = parsed(PLAIN)
    everywhere = {
        b: Permitted(*[tuple(IndexSet.over(0, [(1, e)]) for e in b.shape)] * 2)
        for b in kernel.params
    }
    assert REPEATED in llvm_ir(kernel, V4)
    assert REPEATED not in llvm_ir(kernel, V4, permitted=everywhere)


def test_the_most_that_llvm_is_asked_for_it_writes_out() -> None:
    """Casts and quotients of integers are the nodes of the most instructions."""
    text = PLAIN.replace("float32[", "int8[").replace("A[n, x] + 1.0", VALUE)
    trips = [n for n in range(4, 40) if repeated(parsed(text.replace("8 u", f"{n} u")))]
    assert 4 <= len(trips) < 36
    after = passed(parsed(text.replace("8 u", f"{trips[-1]} u")))
    assert after.count("store <16 x i8>") == trips[-1]
    assert STAYS not in after


def test_more_is_written_out_here(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = parsed(PLAIN)
    size = next(n for n in range(1, MOST) if _repeats_with(monkeypatch, kernel, n))
    assert not _repeats_with(monkeypatch, kernel, size - 1)


def _repeats_with(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, most: int) -> bool:
    monkeypatch.setattr(emit_repeated, "MOST", most)
    return repeated(kernel) > 0


def test_labels_name_loops_that_stay_only() -> None:
    labels = [x for x in passed(parsed(SUMS)).splitlines() if x.startswith("loop.")]
    names = [x.split(".")[1] for x in labels]
    assert names == ["p", "k"]
    assert all(a != b for a, b in pairwise(labels))
