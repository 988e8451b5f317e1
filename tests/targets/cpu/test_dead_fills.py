"""Fills that are removed and fills that stay: reads of a buffer see the same values."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.loops import interp
from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import parse
from tilewright.loops.verify import verify
from tilewright.targets.cpu import dead_fills as module
from tilewright.targets.cpu.dead_fills import dead_fills

AROUND = """
kernel k(x: float32[64]) -> y: float32[64]:
  alloc t: float32[64]:
    for i in 64:
      t[i] = 0.0
    {}
    for j in 64:
      y[j] = t[j]
"""
STEPS = """
kernel k(x: float32[4, 8]) -> y: float32[4, 8]:
  alloc t: float32[8, 8]:
    for i in 8:
      for v in 8 vector:
        t[i, v] = 0.0
    for a in 8 vector:
      t[5, a] = x[0, a]
    for b in 8 vector:
      t[1, b] = t[5, b] + x[1, b]
    for j in 2 unroll:
      for c in 8 vector:
        y[j * 2, c] = t[j * 4 + 1, c]
"""


def results(kernel: Kernel) -> np.ndarray:
    x, y = kernel.params
    arrays = {x: np.random.default_rng(0).random(x.shape, np.float32)}
    arrays[y] = np.zeros(y.shape, np.float32)
    interp.run(kernel, arrays)
    return arrays[y]


def goes(text: str) -> bool:
    """Whether the fill is removed; the kernel computes the same."""
    kernel = parse(text.strip().split("\n"))
    verify(kernel)
    made = dead_fills(kernel)
    verify(made)
    np.testing.assert_array_equal(results(made), results(kernel))
    return made is not kernel


def written(*lines: str) -> str:
    return AROUND.format("\n    ".join(lines))


@pytest.mark.parametrize(
    "place", ["a * 8 + b", "a + b * 8", "63 - a - b * 8", "b * 8 + (7 - a)"]
)
def test_the_next_statement_writes_all(place: str) -> None:
    assert goes(
        written("for a in 8:", "  for b in 8:", f"    t[{place}] = x[a * 8 + b]")
    )


@pytest.mark.parametrize(
    "lines",
    [
        ("for a in 63:", "  t[a] = x[a]"),
        ("for a in 64:", "  t[63] = x[a]"),
        ("for a in 64:", "  if a < 63:", "    t[a] = x[a]"),
        ("for a in 64:", "  t[a] = x[a] + t[63 - a]"),
        ("for a in 64:", "  t[a] add= x[a]"),
        ("for a in 8:", "  for b in 8:", "    t[a * 7 + b] = x[a]"),
    ],
    ids=["one-left", "one-place", "condition", "read", "update", "overlap"],
)
def test_what_is_read_stays(lines: tuple[str, ...]) -> None:
    assert not goes(written(*lines))


def test_element_by_element() -> None:
    assert goes(STEPS)


def test_an_element_that_a_later_statement_leaves() -> None:
    assert not goes(STEPS.replace("t[5, a]", "t[6, a]"))
    assert not goes(STEPS.replace("for a in 8", "for a in 7"))
    assert not goes(STEPS.replace("j * 4", "j * 3"))


def test_large_buffers_are_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    assert goes(STEPS)
    monkeypatch.setattr(module, "SMALL", 63)
    assert not goes(STEPS)


def test_a_fill_that_other_values_follow() -> None:
    kernel = AROUND.format("for a in 64:\n      t[a] = x[a]").replace("= 0.0", "= x[0]")
    assert not goes(kernel)


def test_a_statement_that_never_runs_stores_nothing() -> None:
    """The even elements then keep the fill's value."""
    never = ("for z in {}:", "  for a in 32:", "    t[a * 2] = x[a]")
    odd = ("for b in 32:", "  t[b * 2 + 1] = x[b]")
    assert goes(written(*never, *odd).format(1))
    assert not goes(written(*never, *odd).format(0))


@pytest.mark.parametrize(("last", "is_read"), [(63, False), (64, True)])
def test_what_a_condition_keeps_inside(last: int, is_read: bool) -> None:
    """t[j + 1] is an element for j below 63 alone; the first one is never read."""
    text = written(f"for a in {last}:", "  t[a] = x[a]").replace(
        "y[j] = t[j]", "if j < 63:\n        y[j] = t[j + 1]"
    )
    assert goes(text) == is_read


def test_a_statement_that_never_runs_reads_nothing() -> None:
    never = ("for z in 0:", "  for a in 2:", "    y[z * 2 + a] = t[z * 2 + a]")
    assert goes(written(*never, "for b in 64:", "  t[b] = x[b]"))
