"""Kernels that operators define: which choices exist, and the loops that each produces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.base import events
from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel, Store, Update
from tilewright.loops.parser import parse
from tilewright.loops.sizes import with_sizes
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.schedule.space.choices import Choices
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context
from tilewright.targets.cpu.sketches.given import given

VECTORS = (0, 1, 2, 4, 8)
SHARED = ((True, False), False)


def kernel(head: str, *lines: str) -> Kernel:
    return parse([f"kernel k({head}:", *("  " + line for line in lines)])


def scheduled(
    plain: Kernel, cores: int = 2, **values: Any
) -> tuple[Kernel, dict[str, Any]]:
    """The scheduled kernel, and the choices it had: candidates and default by name."""
    at = Context(replace(machine("x86-64-v3"), cores=cores))
    choices = Choices({name.replace("_", "."): v for name, v in values.items()})
    made = given(plain, at, choices).kernel
    verify(made)
    asked = {p.name: (p.candidates, p.default) for p in choices.met}
    assert len(asked) == len(choices.met)
    return made, asked


def nests(made: Kernel, of: type) -> list[str]:
    """The loops around each statement of a kind: names, extents and kinds."""
    shown = {"serial": "", "unroll": "u", "vector": "v", "parallel": "p"}
    return [
        " ".join(f"{f.var.name}:{f.trips}{shown[f.kind]}" for f in place.loops)
        for place in walk(made.body)
        if isinstance(place.stmt, of)
    ]


def check_same(plain: Kernel, made: Kernel) -> None:
    rng = np.random.default_rng(0)
    data = [rng.integers(-3, 4, b.shape).astype(np.float32) for b in plain.params]
    found = [a.copy() for a in data]
    for k, arrays in ((plain, data), (made, found)):
        run(k, dict(zip(k.params, arrays, strict=True)))
    for got, want in zip(found, data, strict=True):
        np.testing.assert_array_equal(got, want)


def product(
    rows: int, depth: int, width: int, panels: int = 2, note: str = "products: 90000"
) -> Kernel:
    """Each sequence's state times the weights, which are in panels of columns."""
    return kernel(
        f"x: float32[{rows}, {depth}], w: float32[{panels}, {depth}, {width}]) -> "
        f"y: float32[{rows}, {panels * width}]",
        f"for p in {panels} {{{note}}}:",
        f"  for r in {rows}:",
        f"    for c in {width}:",
        f"      y[r, p * {width} + c] = 0.0",
        f"      for d in {depth}:",
        f"        y[r, p * {width} + c] add= x[r, d] * w[p, d, c]",
    )


@pytest.mark.parametrize(
    ("shape", "lanes", "rows", "unroll"),
    [
        ((9, 6, 64), ((4, 8, 16, 32), 16), ((1, 2, 4, 8), 4), (1, 2, 3)),
        ((3, 35, 12), ((4,), 4), ((1, 2, 3), 3), (1, 5, 7)),
        ((8, 4, 7), ((7,), 7), ((1, 2, 4, 8), 4), (1, 2, 4)),
        ((2, 1, 48), ((4, 8, 16), 16), ((1, 2), 2), None),
    ],
)
def test_tiles_that_may_be_chosen(
    shape: Any, lanes: Any, rows: Any, unroll: Any
) -> None:
    _, asked = scheduled(product(*shape))
    wanted = {"p.lanes": lanes, "p.rows": rows, "p.parallel": SHARED}
    if unroll is not None:
        wanted["p.unroll"] = (unroll, 1)
    assert asked == wanted


def test_a_tile_is_in_registers() -> None:
    """Separate nests clear and store it; the sum's loop is outside of its rows and vectors."""
    made, _ = scheduled(product(9, 6, 64))
    assert str(made).count("in register") == 2
    assert nests(made, Update) == [
        "p:2 r.o:2 d:6 r.i:4u c.o:4u c.i:16v",
        "p:2 r.t.o:1 r.t.i:1 d.t:6 c.t.o:4u c.t.i:16v",
    ]
    assert nests(made, Store) == [
        "p:2 r.o:2 r.i.init:4u c.init.o:4u c.init.i:16v",
        "p:2 r.o:2 y.acc.w0:4u y.acc.w1.o:4u y.acc.w1.i:16v",
        "p:2 r.t.o:1 r.t.i:1 c.t.init.o:4u c.t.init.i:16v",
        "p:2 r.t.o:1 y.acc_2.w1.o:4u y.acc_2.w1.i:16v",
    ]


def test_steps_of_the_sum_are_written_out() -> None:
    made, _ = scheduled(product(5, 6, 8), p_rows=2, p_unroll=2, p_lanes=4)
    assert nests(made, Update) == [
        "p:2 r.o:2 d.o:3 d.i:2u r.i:2u c.o:2u c.i:4v",
        "p:2 r.t.o:1 r.t.i:1 d.t.o:3 d.t.i:2u c.t.o:2u c.t.i:4v",
    ]


@pytest.mark.parametrize("shape", [(9, 6, 8), (11, 1, 4), (1, 4, 16), (2, 3, 7)])
def test_every_tile_gives_the_same_results(shape: Any) -> None:
    plain = product(*shape)
    _, asked = scheduled(plain)
    for rows in asked["p.rows"][0]:
        for unroll in asked.get("p.unroll", ((1,), 1))[0]:
            values = {"p_rows": rows, "p_lanes": asked["p.lanes"][0][0]}
            if unroll > 1:
                values["p_unroll"] = unroll
            check_same(plain, scheduled(plain, **values)[0])


# Optional parts of a product: panels, rows, both, or the sum.
ROWS = kernel(
    "x: float32[10, 6], w: float32[6, 8]) -> y: float32[10, 8]",
    "for r in 10 {products: 9}:",
    "  for c in 8:",
    "    y[r, c] = 0.0",
    "    for d in 6:",
    "      y[r, c] add= x[r, d] * w[d, c]",
)
PANELS = kernel(
    "x: float32[6], w: float32[3, 6, 8]) -> y: float32[24]",
    "for p in 3 {products: 9}:",
    "  for c in 8:",
    "    y[p * 8 + c] = 0.0",
    "    for d in 6:",
    "      y[p * 8 + c] add= x[d] * w[p, d, c]",
)
COLUMNS = kernel(
    "x: float32[6], w: float32[6, 8]) -> y: float32[8]",
    "for c in 8 {products: 9}:",
    "  y[c] = 0.0",
    "  for d in 6:",
    "    y[c] add= x[d] * w[d, c]",
)
NO_SUM = kernel(
    "x: float32[10], w: float32[8]) -> y: float32[10, 8]",
    "for r in 10 {products: 9}:",
    "  for c in 8:",
    "    y[r, c] = 0.0",
    "    y[r, c] add= x[r] * w[c]",
)
SCALED = kernel(
    "x: float32[6], w: float32[3, 6, 8], s: float32[8]) -> y: float32[24]",
    "for p in 3 {products: 9}:",
    "  for c in 8:",
    "    y[p * 8 + c] = 0.0",
    "    for d in 6:",
    "      y[p * 8 + c] add= x[d] * w[p, d, c] * s[c]",
)
NOTHING = kernel(
    "x: float32[8]) -> y: float32[8]",
    "for c in 8 {products: 9}:",
    "  y[c] = 0.0",
    "  y[c] add= x[c] * 2.0",
)


@pytest.mark.parametrize(
    ("plain", "nest", "asked"),
    [
        (ROWS, "r.o:2 d:6 r.i:4u c:8v", {"r.rows", "r.lanes", "r.unroll"}),
        (PANELS, "p:3 d:6 c:8v", {"p.rows", "p.lanes", "p.unroll", "p.parallel"}),
        (COLUMNS, "c.o:1 d:6 c.i:8v", {"c.rows", "c.lanes", "c.unroll"}),
        (NO_SUM, "r.o:2 r.i:4u c:8v", {"r.rows", "r.lanes"}),
        (NOTHING, "c.o:1 c.i:8v", {"c.rows", "c.lanes"}),
        (SCALED, "p:3 d:6 c:8v", {"p.rows", "p.lanes", "p.unroll", "p.parallel"}),
    ],
    ids=["rows", "panels", "columns", "no sum", "columns alone", "scaled"],
)
def test_products_without_panels_rows_or_a_sum(
    plain: Kernel, nest: str, asked: set[str]
) -> None:
    made, found = scheduled(plain)
    assert nests(made, Update)[0] == nest
    loop, *_ = nest.replace(".o", "").split(":")
    assert {n for n in found if n.startswith(f"{loop}.") and ".o." not in n} == asked
    if "r" not in loop:
        assert found[f"{loop}.rows"] == ((1,), 1)
    check_same(plain, made)


def test_rows_whose_number_is_open_are_guarded() -> None:
    plain = kernel(
        "x: float32[n, 6], w: float32[2, 6, 8]) -> y: float32[n, 16]",
        "for n in 100 size:",
        "  for p in 2 {products: 9}:",
        "    for r in n:",
        "      for c in 8:",
        "        y[r, p * 8 + c] = 0.0",
        "        for d in 6:",
        "          y[r, p * 8 + c] add= x[r, d] * w[p, d, c]",
    )
    made, _ = scheduled(plain)
    assert "if r.o * 4 + r.i < n" in str(made)
    for n in (0, 1, 4, 7):
        check_same(*(with_sizes(k, dict.fromkeys(k.sizes, n)) for k in (plain, made)))


def test_sums_whose_length_is_open_are_not_written_out() -> None:
    plain = kernel(
        "x: float32[4, n], w: float32[2, n, 8]) -> y: float32[4, 16]",
        "for n in 100 size:",
        "  for p in 2 {products: 9}:",
        "    for r in 4:",
        "      for c in 8:",
        "        y[r, p * 8 + c] = 0.0",
        "        for d in n:",
        "          y[r, p * 8 + c] add= x[r, d] * w[p, d, c]",
    )
    made, asked = scheduled(plain)
    assert asked.keys() == {"p.rows", "p.lanes", "p.parallel"}
    assert "register" in str(made)


def test_each_product_is_in_tiles() -> None:
    """Two in the steps of one loop; a third is marked as one, but has no sum."""
    plain = kernel(
        "x: float32[4, 3], w: float32[2, 3, 8], v: float32[2, 3, 4]) -> "
        "y: float32[4, 16], z: float32[4, 8], u: float32[4]",
        "for t in 5:",
        "  for p in 2 {products: 9}:",
        "    for r in 4:",
        "      for c in 8:",
        "        y[r, p * 8 + c] = 0.0",
        "        for d in 3:",
        "          y[r, p * 8 + c] add= x[r, d] * w[p, d, c]",
        "  for q in 2 {products: 9}:",
        "    for s in 4:",
        "      for e in 4:",
        "        z[s, q * 4 + e] = 0.0",
        "        for f in 3:",
        "          z[s, q * 4 + e] add= x[s, f] * v[q, f, e]",
        "  for a in 4 {products: 9}:",
        "    u[a] = 1.0",
    )
    made, asked = scheduled(plain)
    assert nests(made, Update) == [
        "t:5 p:2 r.o:1 d:3 r.i:4u c:8v",
        "t:5 q:2 s.o:1 f:3 s.i:4u e:4v",
    ]
    assert {"p.parallel", "q.parallel", "a.parallel"} <= set(asked)
    check_same(plain, made)


def test_what_cannot_be_in_tiles_stays() -> None:
    """The sum reads its own result."""
    plain = kernel(
        "x: float32[4, 6]) -> y: float32[4, 8]",
        "for r in 4 {products: 9}:",
        "  for c in 8:",
        "    y[r, c] = 0.0",
        "    for d in 6:",
        "      y[r, c] add= x[r, d] * y[d % 4, c]",
    )
    with events.record() as log:
        made, _ = scheduled(plain)
    assert made.body is plain.body
    assert [e.fields["part"] for e in log if e.kind == "kept-plain"] == ["r"]


# Innermost loops: those that only store, with a block of stores, and those that add; one in vectors
# already, one that runs once, and one around another; and a statement outside of all loops.
LOOPS = (
    "x: float32[6, 20]) -> y: float32[6, 20], z: float32[6], u: float32[6, 20], v: float32[6]",
    "for i in 6:",
    "  for j in 20:",
    "    y[i, j] = x[i, j] * 2.0",
    "    u[i, j] = x[i, j] + 1.0",
    "for k in 6:",
    "  z[k] = 0.0",
    "  for l in 20:",
    "    z[k] add= x[k, l]",
    "for m in 1:",
    "  for n in 4 vector:",
    "    v[n + m] = 1.0",
    "for o in 2:",
    "  v[o + 4] = 1.0",
    "for q in 3:",
    "  v[q] = 2.0",
    "  v[q] add= 1.0",
    "v[4] = 7.0",
)


def test_what_may_be_chosen_for_loops_without_notes() -> None:
    _, asked = scheduled(kernel(*LOOPS))
    assert asked == {
        "j.vectors": (VECTORS, 0),
        "j.unroll": ((1, 2, 4, 5), 1),
        "l.unroll": ((1, 2, 4, 5), 1),
        "o.vectors": (VECTORS, 0),
        "o.unroll": ((1, 2), 1),
        "q.unroll": ((1, 3), 1),
        "i.parallel": SHARED,
        "k.parallel": SHARED,
        "o.parallel": SHARED,
        "q.parallel": SHARED,
    }
    _, alone = scheduled(kernel(*LOOPS), cores=1)
    assert alone.keys() == {name for name in asked if not name.endswith("parallel")}


def test_loops_without_notes_as_they_are_chosen() -> None:
    plain = kernel(*LOOPS)
    values = {"j_vectors": 1, "l_unroll": 4, "k_parallel": True}
    made, _ = scheduled(plain, **values)
    assert nests(made, Update) == ["k:6p l.o:5 l.i:4u", "q:3"]
    assert nests(made, Store)[0].startswith("i:6 ") and ":8v" in nests(made, Store)[0]
    check_same(plain, made)
    assert nests(scheduled(plain)[0], Store) == nests(plain, Store)


def test_loops_with_open_extents_or_conditions_stay() -> None:
    """Only how many steps of the one with a condition are written out."""
    plain = kernel(
        "x: float32[n], y: float32[8]) -> z: float32[n], u: float32[8]",
        "for n in 9 size:",
        "  for i in n:",
        "    z[i] = x[i]",
        "  for j in 8:",
        "    if j < 5:",
        "      u[j] = y[j]",
    )
    _, asked = scheduled(plain)
    assert asked == {"j.unroll": ((1, 2, 4, 8), 1)}


@pytest.mark.parametrize(("steps", "shared"), [(20_000, False), (40_000, True)])
def test_threads_share_steps_that_are_worth_it(steps: int, shared: bool) -> None:
    """Asked once, though the loop is an outermost one."""
    lines = [
        line.replace("for k in 6", f"for k in 6 {{steps: {steps}}}") for line in LOOPS
    ]
    made, asked = scheduled(kernel(*lines))
    assert asked["k.parallel"] == ((True, False), shared)
    assert nests(made, Update)[0].split()[0] == ("k:6p" if shared else "k:6")


def test_panels_of_a_large_product_are_shared() -> None:
    made, asked = scheduled(product(9, 6, 64, note="products: 1000000000"))
    assert asked["p.parallel"] == ((True, False), True)
    assert nests(made, Update)[0].startswith("p:2p r.o:2 ")
    made, asked = scheduled(product(9, 6, 64, note="other: 1"))
    assert asked == {"d.unroll": ((1, 2, 3), 1)} and "register" not in str(made)
