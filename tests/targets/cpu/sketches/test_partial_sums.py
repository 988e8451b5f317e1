"""Long sums in parts: which are, what each part has, and that the results stay what they were."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import DType, float32, int32
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import INDEX, Buffer, Var
from tilewright.loops.interp import run
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.operators import reduce_
from tilewright.schedule import Schedule
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.cpu.sketches.partial_sums import (
    PRODUCTS,
    SUMS,
    Terms,
    _cut,
    in_parts,
)
from tilewright.targets.cpu.sketches.rules import default

WIDE = machine("x86-64-v4")


def product(
    depth: Sequence[int], dtype: DType = float32, op: str = "add"
) -> Computation:
    """The sum of products of a row and 16 columns over some axes."""
    a, b = Buffer("a", (4, *depth), dtype), Buffer("b", (*depth, 16), dtype)
    y = Buffer("y", (4, 16), dtype)
    return reduce_("mm", y, tuple(depth), op, lambda i, j, *k: a[(i, *k)] * b[(*k, j)])


def test_loops_of_one_iteration_may_be_between() -> None:
    c = product((9, 600))
    params = [a.buffer for a in c.accesses] + [c.outputs[0].tensor]
    s = Schedule(lower("k", [c], params=params, outputs=params[-1:]))
    s.decompose_reduction("y", "mm.j")
    s.reorder("mm.k", "mm.l", "mm.j")
    _, inner = s.split("mm.l", 600)
    _, part = in_parts(s, c, ["mm.k", inner])
    assert part is not None
    found, expected = result(s)
    assert np.array_equal(found, expected)


def scheduled(c: Computation) -> tuple[Schedule, list[str], str | None]:
    """The reduction outermost but for a loop over rows, in parts."""
    params = [a.buffer for a in c.accesses] + [c.outputs[0].tensor]
    s = Schedule(lower("k", [c], params=params, outputs=params[-1:]))
    sums = [f"mm.{d.var.name}" for d in c.dims[2:]]
    s.decompose_reduction("y", "mm.j")
    s.reorder(*sums, "mm.j")
    loops, part = in_parts(s, c, sums)
    verify(s.kernel)
    return s, loops, part


def result(s: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel makes of small integers, which are exact in any order, and the product."""
    rng = np.random.default_rng(0)
    given = {
        b: rng.integers(-4, 5, b.shape).astype(b.dtype.numpy) for b in s.kernel.params
    }
    run(s.kernel, given)
    a, b, y = given.values()
    return y, a.reshape(4, -1) @ b.reshape(-1, 16)


@pytest.mark.parametrize(
    "depth", [(PRODUCTS.whole + 8,), (3, 3, 96), (9, 600), (2, 700)]
)
def test_a_sum_in_parts_is_the_same_sum(depth) -> None:
    s, _, part = scheduled(product(depth))
    assert part is not None
    found, expected = result(s)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    "counts, inside, cut",
    [
        ((4096,), 1, (0, 512)),  # the longest
        ((1000,), 1, (0, 200)),  # in steps of eight
        ((3, 3, 256), 1, (1, 1)),  # between loops
        ((3, 3, 1024), 1, (2, 512)),
        ((128, 7, 7), 1, (0, 8)),  # what is inside counts
        ((60,), 49, (0, 4)),
        ((768,), 1, None),
        ((776,), 1, (0, 388)),
        ((8,), 96, None),
        ((8,), 97, (0, 4)),
        ((1021,), 1, None),  # a prime number
        ((3, 521), 1, None),
    ],
)
def test_where_a_sum_of_products_is_cut(counts, inside, cut) -> None:
    assert _cut(counts, inside, PRODUCTS) == cut


@pytest.mark.parametrize(
    "terms, cut", [(SUMS, (0, 128)), (PRODUCTS, None), (Terms(639, 640, 640), (0, 640))]
)
def test_sums_without_products_have_shorter_parts(terms: Terms, cut: Any) -> None:
    assert _cut((640,), 1, terms) == cut


WHOLE = {
    "short": product((PRODUCTS.whole,)),
    "no divisor": product((1021,)),
    "integers": product((1024,), int32),
    "maximum": product((1024,), float32, "max"),
}


@pytest.mark.parametrize("why", WHOLE)
def test_what_stays_whole(why) -> None:
    _, loops, part = scheduled(WHOLE[why])
    assert part is None
    assert loops == [f"mm.{d.var.name}" for d in WHOLE[why].dims[2:]]
    assert scheduled(product((1024,)))[2] is not None


def test_a_sum_of_open_length_stays_whole() -> None:
    n = Var("n", INDEX)
    x, y = Buffer("x", (n, 1024, 16), float32), Buffer("y", (16,), float32)
    c = reduce_("mm", y, (n, 1024), "add", lambda j, k, m: x[k, m, j])
    s = Schedule(lower("k", [c], params=[x, y], outputs=[y]))
    s.decompose_reduction("y", "mm.j")
    s.reorder("mm.k", "mm.m", "mm.j")
    before = s.kernel
    assert in_parts(s, c, ["mm.k", "mm.m"])[1] is None
    assert s.kernel == before


def tiles(exact: bool) -> dict[str, str]:
    """The scopes of what the default schedule of a product keeps."""
    c = product((1024,))
    params = [a.buffer for a in c.accesses] + [c.outputs[0].tensor]
    kernel = lower("k", [c], params=params, outputs=params[-1:])
    at = Context(WIDE, exact=exact)
    found = default(kernel, [c], at).kernel
    verify(found)
    return {
        p.stmt.buffer.name: p.stmt.buffer.scope
        for p in walk(found.body)
        if isinstance(p.stmt, Alloc)
    }


def test_the_parts_of_a_product_are_in_registers_and_its_total_in_memory() -> None:
    scopes = tiles(exact=False)
    assert scopes["y.acc"] == "stack"
    assert scopes["y.acc.rf"] == "register"


def test_an_exact_product_has_no_parts() -> None:
    assert "y.acc.rf" not in tiles(exact=True)


@pytest.mark.parametrize("seed", range(3))
def test_any_schedule_of_a_long_product_is_the_product(seed: int) -> None:
    c = product((7, 128) if seed else (896,))
    params = [a.buffer for a in c.accesses] + [c.outputs[0].tensor]
    kernel = lower("k", [c], params=params, outputs=params[-1:])
    tiled = sketches(kernel, [c], Context(WIDE, constants=params[1:2]))[0]
    assert tiled.name == "tiled"
    s = tiled.random(random.Random(seed)).schedule
    verify(s.kernel)
    assert "y.acc.rf" in str(s.kernel)
    found, expected = result(s)
    assert np.array_equal(found, expected)
