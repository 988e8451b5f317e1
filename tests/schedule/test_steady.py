"""The steady state of loops: the same values, and no guards where they are decided."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.expr.nodes import Max, Min, Overlap, Select
from tilewright.ir.node import postorder
from tilewright.loops import interp
from tilewright.loops.nodes import For, If, Kernel
from tilewright.loops.parser import parse
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of
from tilewright.schedule import steady as module
from tilewright.schedule.steady import steady


def results(kernel: Kernel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        b: rng.integers(-9, 9, b.shape).astype(b.dtype.numpy) for b in kernel.params
    }
    interp.run(kernel, arrays)
    return [arrays[b] for b in kernel.outputs]


def checked(text: str) -> tuple[Kernel, Kernel]:
    """A kernel and its steady form, which is verified and computes the same."""
    kernel = parse(text.strip().split("\n"))
    verify(kernel)
    made = steady(kernel)
    verify(made)
    for found, want in zip(results(made), results(kernel), strict=True):
        np.testing.assert_array_equal(found, want)
    return kernel, made


def guards(root) -> int:
    return sum(
        isinstance(n, Min | Max | Overlap | Select | If) for n in postorder(root)
    )


def loop(kernel: Kernel, name: str) -> For:
    return next(f for f in loops_of(kernel.body) if f.var.name == name)


ROW = """
kernel k(x: int32[50]) -> y: int32[50]:
  for o in 7:
    for i in 8 vector:
      y[overlap(o * 8, 42) + i] = {value}
"""
CLAMPED = "x[max(min(overlap(o * 8, 42) + i {by}, 49), 0)]"


@pytest.mark.parametrize("by", ["- 3", "+ 3", "- 1", "+ 0", "- 11"])
def test_a_row_has_a_prologue_a_steady_state_and_an_epilogue(by):
    _, made = checked(ROW.format(value=CLAMPED.format(by=by)))
    assert guards(loop(made, "o")) == 0
    assert loop(made, "o").trips >= 4
    assert sum(f.trips for f in loops_of(made.body) if f.kind == "serial") == 7


@pytest.mark.parametrize("by", ["+ 3", "- 3"])
@pytest.mark.parametrize("d", [2, 3])
def test_quotients_are_clamped_in_the_epilogue_only(d, by):
    value = CLAMPED.replace("i {by}", f"i) // {d} {by}").replace("overlap", "(overlap")
    _, made = checked(ROW.format(value=value.replace("49", str(49 // d))))
    assert guards(loop(made, "o")) == 0 and loop(made, "o").trips >= 4


def test_several_clamps_have_the_shortest_steady_state():
    value = " + ".join(CLAMPED.format(by=by) for by in ("- 3", "+ 0", "+ 3"))
    _, made = checked(ROW.format(value=value))
    assert guards(loop(made, "o")) == 0 and loop(made, "o").trips == 4


def test_zeros_around_are_no_select_in_the_steady_state():
    at = "overlap(o * 8, 42) + i - 3"
    value = f"select((0 <= {at}) & ({at} < 50), x[{at}], 7_i32)"
    _, made = checked(ROW.format(value=value))
    assert guards(loop(made, "o")) == 0 and loop(made, "o").trips == 5


def test_a_guarded_tail_is_masked_in_the_last_vector_only():
    _, made = checked("""
kernel k(x: int32[50]) -> y: int32[50]:
  for o in 7:
    for i in 8 vector:
      if o * 8 + i < 50:
        y[o * 8 + i] = x[o * 8 + i]
""")
    assert loop(made, "o").trips == 6 and guards(loop(made, "o")) == 0
    assert guards(loop(made, "o.p1")) == 1


TILED = """
kernel k(x: int32[{rows}, 64]) -> y: int32[{rows}, 64]:
  for t in {tiles} parallel:
    for j in {rows}:
      for o in 2:
        for i in 8 vector:
          y[j, t * 16 + o * 8 + i] = x[max(j - 1, 0), max(min(t * 16 + o * 8 + i - 3, 63), 0)]
"""


def test_what_depends_on_loops_around_is_tested():
    """And rows, which are decided outside of the vectors, are not."""
    _, made = checked(TILED.format(tiles=4, rows=3))
    (test,) = [n for n in postorder(made.body) if isinstance(n, If)]
    assert test.otherwise is not None
    assert guards(test.then) == 1 and guards(test.otherwise) == 2
    assert repr(test.condition) == "3 <= t * 16 + o * 8"


def test_what_mostly_fails_is_not_copied():
    kernel, made = checked("""
kernel k(x: int32[64]) -> y: int32[64]:
  for o in 8:
    for i in 8 vector:
      y[o * 8 + i] = x[min(o * 8 + i, 30)] + x[max(o * 8 + i - 40, 0)]
""")
    assert made is kernel


def test_a_loop_of_few_iterations_is_in_no_parts():
    text = ROW.replace("50", "16").replace("in 7", "in 2").replace("42", "8")
    kernel, made = checked(text.format(value="x[max(o * 8 + i - 3, 0)]"))
    assert made is kernel


def test_an_index_that_is_read_is_left_alone():
    kernel, made = checked("""
kernel k(x: int64[64]) -> y: int64[64]:
  for o in 8:
    for i in 8 vector:
      y[o * 8 + i] = x[max(min(x[o * 8 + i], 63), 0)]
""")
    assert made is kernel


def test_order_stays_where_a_buffer_is_read_and_written():
    """Each element is the sum of those before: iterations may not change places."""
    _, made = checked("""
kernel k(x: int32[40]) -> y: int32[40]:
  for i in 40:
    y[i] = x[i] + y[max(i - 1, 0)] * select(1 <= i, 1_i32, 0_i32)
""")
    assert guards(loop(made, "i")) == 0 and loop(made, "i").trips == 39


def test_copies_have_buffers_of_their_own():
    _, made = checked("""
kernel k(x: int32[64]) -> y: int32[64]:
  for o in 8:
    for i in 8 vector:
      alloc s: int32[1] in stack:
        s[0] = 0_i32
        for r in 3:
          s[0] add= x[max(min(o * 8 + i + r - 1, 63), 0)]
        y[o * 8 + i] = s[0]
""")
    assert guards(loop(made, "o")) == 0 and loop(made, "o").trips == 6


def test_one_unrolled_iteration_may_be_another_side():
    """The two statements share no copy: each is tested for itself."""
    _, made = checked("""
kernel k(x: int32[64]) -> y: int32[64]:
  for t in 4 parallel:
    for o in 2:
      for u in 2 unroll:
        for i in 4 vector:
          y[t * 16 + o * 8 + u * 4 + i] = x[min(t * 16 + o * 8 + u * 4 + i + 5, 63)]
""")
    (test,) = [n for n in postorder(made.body) if isinstance(n, If)]
    assert repr(test.condition) == "t * 16 + o * 8 <= 51"


def test_code_grows_no_further_than_its_limit(monkeypatch):
    text = ROW.format(value=CLAMPED.format(by="- 3"))
    monkeypatch.setattr(module, "GROWTH", 8)
    kernel, made = checked(text)
    assert made is kernel
    monkeypatch.setattr(module, "GROWTH", 20_000)
    monkeypatch.setattr(module, "STATEMENT", 8)
    kernel, made = checked(text)
    assert made is kernel


@pytest.mark.parametrize("seed", range(12))
def test_random_windows(seed):
    """Tiles, offsets and strides by chance, in two dimensions."""
    rng = np.random.default_rng(seed)
    n, m, lanes = (int(v) for v in rng.choice([4, 5, 8], 3))
    width = n * m * lanes
    low, by = int(rng.integers(-9, 9)), int(rng.integers(1, 3))
    high = int(rng.integers(1, width))
    at = f"t * {m * lanes} + o * {lanes} + i"
    checked(f"""
kernel k(x: int32[{width}]) -> y: int32[{width}]:
  for t in {n}:
    for o in {m}:
      for i in {lanes} vector:
        y[{at}] = x[max(min(({at}) * {by} + {low}, {width - 1}), 0)]
      for i2 in {lanes} vector:
        if t * {m * lanes} + o * {lanes} + i2 <= {high}:
          y[{at}2] = y[{at}2] + x[max(t * {m * lanes} - {high}, 0)]
""")


def test_what_mostly_does_nothing_is_skipped():
    _, made = checked("""
kernel k(x: int32[64]) -> y: int32[64]:
  for t in 8 parallel:
    for i in 8 vector:
      if t * 8 + i < 5:
        y[t * 8 + i] = x[t * 8 + i]
""")
    (skip, _) = [n for n in postorder(made.body) if isinstance(n, If)][::-1]
    assert repr(skip.condition) == "5 <= t * 8" and guards(skip.then) == 0
