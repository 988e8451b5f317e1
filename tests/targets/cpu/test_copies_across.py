"""Copies across the order of memory become the machine's transposition, where they are one."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.loops import interp
from tilewright.loops.nodes import Kernel, Unit
from tilewright.loops.parser import parse
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.targets.cpu.copies_across import copies_across
from tilewright.targets.registry import target

NEST = """
kernel k(a: float32[32, 16], b: float32[32, 16]) -> x: float32[16, 32], y: float32[16, 32]:
  for i in 16 {}:
    for j in 32 {}:
      {}
      {}
"""
BOTH = "x[i, j] = a[j, i]", "y[i, j] = b[j, i]"


def results(kernel: Kernel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {b: rng.random(b.shape).astype(b.dtype.numpy) for b in kernel.params}
    interp.run(kernel, arrays)
    return [arrays[b] for b in kernel.outputs]


def calls(text: str) -> int:
    """How many transpositions a kernel has; it computes the same."""
    kernel = parse(text.strip().split("\n"))
    verify(kernel)
    machine = target("cpu").machine  # type: ignore[attr-defined]
    made = copies_across(kernel, machine.transpose)
    verify(made)
    for found, want in zip(results(made), results(kernel), strict=True):
        np.testing.assert_array_equal(found, want)
    units = [at.stmt for at in walk(made.body) if isinstance(at.stmt, Unit)]
    assert bool(units) == (made is not kernel)
    return len(units)


@pytest.mark.parametrize("kinds", [("unroll", "vector"), ("vector", "unroll")])
def test_each_copy_is_a_call(kinds: tuple[str, str]) -> None:
    assert calls(NEST.format(*kinds, *BOTH)) == 2


@pytest.mark.parametrize(
    "stores",
    [
        ("x[i, j] = a[j, i]", "y[i, j] = x[i, j]"),
        ("x[i, j] = a[j, i]", "y[i, j] = b[j, i] + 1.0"),
        ("x[i, j] = a[j, i]", "x[i, j] = b[j, i]"),
        ("x[i, j] = a[j, i]", "y[i, j] = b[i, j // 2]"),
    ],
    ids=["reads-what-is-written", "computes", "twice", "along"],
)
def test_other_nests_stay(stores: tuple[str, str]) -> None:
    assert not calls(NEST.format("unroll", "vector", *stores))


def test_the_schedule_decides() -> None:
    for kinds in (("", "vector"), ("unroll", "unroll"), ("parallel", "vector")):
        assert not calls(NEST.format(*kinds, *BOTH).replace(" :", ":"))


def test_large_tiles_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.targets.cpu.copies_across.TILE", 511)
    assert not calls(NEST.format("unroll", "vector", *BOTH))


def test_rows_of_open_sizes_stay() -> None:
    n = te.var("n")
    a = te.placeholder((n, 16), name="a")
    x = te.compute((16, n), lambda i, j: a[j, i], name="x")
    s = te.create_schedule(x.op)
    i, j = s[x].op.axis
    outer, inner = s[x].split(j, 16)
    s[x].reorder(outer, i, inner)
    s[x].unroll(i)
    s[x].vectorize(inner)
    given = np.random.default_rng(0).random((37, 16), np.float32)
    found = np.zeros((16, 37), np.float32)
    te.build(s, [a, x])(given, found)
    np.testing.assert_array_equal(found, given.T)


def test_lanes_do_no_copies() -> None:
    """The machine has no instruction that transposes a tile in each lane."""
    text = """
kernel k(a: float32[2, 16, 16]) -> x: float32[2, 16, 16]:
  for u in 2{}:
    if u < 2:
      for i in 16 unroll:
        for j in 16 vector:
          x[u, i, j] = a[u, j, i]
"""
    assert calls(text.format("")) == 1
    assert not calls(text.format(" vector"))


@pytest.mark.parametrize("store", ["x[i, j] = a[{} + j, i]", "x[{} + i, j] = a[j, i]"])
def test_places_that_depend_on_data_stay(store: str) -> None:
    text = """
kernel k(a: float32[32, 16], p: int64[1]) -> x: float32[32, 16]:
  for i in 16 unroll:
    for j in 16 vector:
      {}
"""
    assert calls(text.format(store.format("16"))) == 1
    assert not calls(text.format(store.format("p[0]")))
