"""reverse_compute_at: the consumer comes to its producer, part by part."""

from __future__ import annotations

import pytest

from tests.schedule.test_matmul import matmul
from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import cast, map_, padded, reduce_
from tilewright.compute.reducer import arg_reducer
from tilewright.expr.nodes import INDEX, Buffer, Var
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc, Block, Kernel, Store, block, loop
from tilewright.schedule import Schedule

f32, i32 = dtypes.float32, dtypes.int32


@pytest.mark.parametrize(
    "tail, m, n", [("exact", 12, 48), ("overlap", 13, 50), ("guard", 13, 50)]
)
def test_epilogue_in_the_tile(tail, m, n, check_same, golden):
    kernel = matmul(m, n, 7)
    s = Schedule(kernel)
    _, jo, _, _ = s.tile("mm.i", "mm.j", 4, 16, tail=tail)
    s.reverse_compute_at("D", jo)
    check_same(kernel, s, exact=True)
    s.cache_write("C", jo)
    check_same(kernel, s, exact=True)
    golden(f"schedule_reverse_{tail}", repr(s.kernel))


def test_epilogue_in_parallel_rows_of_tiles(check_same):
    kernel = matmul(12, 48, 7)
    s = Schedule(kernel)
    io, _, _, _ = s.tile("mm.i", "mm.j", 4, 16)
    s.parallel(io)
    s.reverse_compute_at("D", io)
    check_same(kernel, s, exact=True)


@pytest.mark.parametrize(
    "tiles, forward", [(4, True), (4, False), (2, True), (1, True)]
)
def test_tiles_in_any_order(tiles, forward, check_same):
    o, i, j = (Var(name, INDEX) for name in "oij")
    x, y, t = (Buffer(name, (8 * tiles,), i32) for name in "XYT")
    at = (o if forward else tiles - 1 - o) * 8 + i
    first = loop(o, tiles, loop(i, 8, Store(t, (at,), x[at] * 3)))
    second = loop(j, 8 * tiles, Store(y, (j,), t[j] + 1))
    kernel = Kernel("tiles", (x, y), (y,), Alloc(t, block(first, second)))
    s = Schedule(kernel)
    s.reverse_compute_at("Y", "o")
    assert "for j in 8:" in repr(s.kernel)
    check_same(kernel, s, exact=True)


def sums(stencil: bool = False) -> Kernel:
    """T = 3 X; R = row sums of T (of T and its right neighbor)."""
    x, t = Buffer("X", (6, 10), i32), Buffer("T", (6, 10), i32)
    r = Buffer("R", (6,), i32)

    def value(i, j):
        return t[i, j] + padded(t, (i, j + 1), 0) if stencil else t[i, j]

    steps = [
        map_("t", t, lambda i, j: x[i, j] * 3),
        reduce_("r", r, (10,), "add", value),
    ]
    return lower("sums", steps, [x, r], [r])


def test_a_reduction_follows_its_row(check_same):
    s = Schedule(sums())
    s.reverse_compute_at("R", "t.i")
    check_same(sums(), s, exact=True)
    assert s.loops == ("t.i", "t.j", "r.j") or s.loops == ("t.i", "t.j", "r.i", "r.j")


def test_its_initialization_moves_ahead(check_same, golden):
    s = Schedule(sums())
    s.decompose_reduction("R", "r.i")
    jo, ji = s.split("t.j", 4, tail="guard")
    s.reorder(jo, "t.i", ji)
    s.reverse_compute_at("R", jo)
    check_same(sums(), s, exact=True)
    golden("schedule_reverse_reduction", repr(s.kernel))


def argmax() -> Kernel:
    x, y = Buffer("X", (6, 20), f32), Buffer("Y", (6,), f32)
    v, i = Buffer("V", (6,), f32), Buffer("I", (6,), INDEX)
    op = arg_reducer("argmax", f32, INDEX)
    steps = [
        reduce_("a", (v, i), (20,), op, lambda r, k: (x[r, k], k)),
        map_("y", y, lambda r: v[r] * cast(i[r], f32)),
    ]
    return lower("argmax", steps, [x, y], [y])


def test_all_outputs_of_the_producer_are_ready(check_same):
    s = Schedule(argmax())
    ro, _ = s.split("a.r", 2)
    s.reverse_compute_at("Y", ro)
    check_same(argmax(), s, exact=True)


def three_maps() -> Kernel:
    """T = X; U = T; Y = T + U reversed."""
    x, y = Buffer("X", (8,), i32), Buffer("Y", (8,), i32)
    t, u = Buffer("T", (8,), i32), Buffer("U", (8,), i32)
    steps = [
        map_("t", t, lambda i: x[i]),
        map_("u", u, lambda i: t[i]),
        map_("y", y, lambda i: t[i] + u[7 - i]),
    ]
    return lower("chain", steps, [x, y], [y])


def in_between() -> Schedule:
    """The same with U allocated around all three nests."""
    kernel = three_maps()
    assert isinstance(kernel.body, Alloc) and isinstance(kernel.body.body, Block)
    first, rest = kernel.body.body.stmts
    assert isinstance(rest, Alloc)
    nests = block(first, rest.body)
    return Schedule(
        kernel.with_body(Alloc(rest.buffer, Alloc(kernel.body.buffer, nests)))
    )


def overlapped() -> Schedule:
    s = Schedule(sums())
    s.decompose_reduction("R", "r.i")
    s.split("t.j", 4, tail="overlap")
    s.reorder("t.j.o", "t.i", "t.j.i")
    return s


def behind_reduction() -> Schedule:
    s = Schedule(matmul(8, 8, 4))
    s.decompose_reduction("C", "mm.i")
    s.reorder("mm.k", "mm.i", "mm.j")
    return s


REFUSED = [
    (
        lambda: Schedule(matmul(8, 8, 4)),
        ("D", "relu.i"),
        "no nest that writes it follows",
    ),
    (
        lambda: Schedule(matmul(8, 8, 4)),
        ("D", "mm.k"),
        "C.*also written outside loop mm.k",
    ),
    (behind_reduction, ("D", "mm.j"), "loop mm.k computes the same part again"),
    (
        lambda: Schedule(sums()),
        ("R", "t.j"),
        r"do not say when R\[r.i\] is to be written",
    ),
    (
        lambda: Schedule(sums(stencil=True)),
        ("R", "t.j"),
        "needs another part of the loop",
    ),
    (
        lambda: Schedule(three_maps()),
        ("Y", "t.i"),
        "rest of the nest needs all of it: one writes U",
    ),
    (in_between, ("Y", "t.i"), r"a statement in between uses \['T'\]"),
    (
        overlapped,
        ("R", "t.j.o"),
        "parts overlap, which repeats iterations, .*updates R",
    ),
]


@pytest.mark.parametrize("make, step, message", REFUSED, ids=[m for _, _, m in REFUSED])
def test_refusals(make, step, message):
    s = make()
    before = s.kernel
    with pytest.raises(ScheduleError, match=message) as caught:
        s.reverse_compute_at(*step)
    assert caught.value.hint and caught.value.where and s.kernel is before


@pytest.mark.parametrize("tail, m, n", [("exact", 12, 48), ("overlap", 13, 50)])
def test_epilogue_where_the_tile_is_written_back(tail, m, n, check_same, golden):
    kernel = matmul(m, n, 7)
    s = Schedule(kernel)
    _, jo, _, _ = s.tile("mm.i", "mm.j", 4, 16, tail=tail)
    s.cache_write("C", jo)
    s.reverse_compute_inline("C")
    check_same(kernel, s, exact=True)
    golden(f"schedule_reverse_inline_{tail}", repr(s.kernel))


def transposed(extent: int = 8) -> Kernel:
    """T = X + 1; Y[j, i] = T[i, j] ** 2 for i < extent."""
    x, t = Buffer("X", (8, 6), i32), Buffer("T", (8, 6), i32)
    y = Buffer("Y", (6, extent), i32)
    steps = [
        map_("t", t, lambda i, j: x[i, j] + 1),
        map_("y", y, lambda j, i: t[i, j] * t[i, j]),
    ]
    return lower("k", steps, [x, y], [y])


def test_a_guard_of_the_producer_serves_the_consumer(check_same):
    s = Schedule(transposed())
    io, *_ = s.tile("t.i", "t.j", 3, 4, tail="guard")
    s.parallel(io)
    s.reverse_compute_inline("T")
    check_same(transposed(), s, exact=True)
    assert s.loops == (io, "t.j.o", "t.i.i", "t.j.i")


def partly() -> Schedule:
    """T is stored by two nests."""
    s = Schedule(transposed())
    s.split("t.i", 3, tail="cut")
    return s


def two_steps() -> Kernel:
    """T = X; Z = X; Y = T + Z[0]; then X is output too."""
    x, y = Buffer("X", (8,), i32), Buffer("Y", (8,), i32)
    t, z = Buffer("T", (8,), i32), Buffer("Z", (8,), i32)
    steps = [
        map_("t", t, lambda i: x[i] * 2),
        map_("z", z, lambda i: x[i] + 1),
        map_("y", y, lambda i: t[i] + z[7 - i]),
    ]
    return lower("k", steps, [x, z, y], [z, y])


NOT_INLINED = [
    (
        lambda: Schedule(matmul(8, 8, 4)),
        "C",
        "not written by a single Store",
        "cache_write",
    ),
    (lambda: Schedule(transposed()), "Y", "it is a parameter", "cache_write"),
    (
        lambda: Schedule(transposed(5)),
        "T",
        "does not map all of it one to one",
        "elementwise",
    ),
    (partly, "T", "not written by a single Store", "cache_write"),
    (
        lambda: Schedule(three_maps()),
        "T",
        "not read by a single Store",
        "compute_inline",
    ),
    (
        lambda: Schedule(two_steps()),
        "T",
        r"\['Z'\] is used in another way",
        "statements in betw",
    ),
    (lambda: Schedule(sums()), "T", "not read by a single Store", "compute_inline"),
]


@pytest.mark.parametrize(
    "make, name, message, hint", NOT_INLINED, ids=[x[2] for x in NOT_INLINED]
)
def test_refusals_to_inline(make, name, message, hint):
    s = make()
    before = s.kernel
    with pytest.raises(ScheduleError, match=message) as caught:
        s.reverse_compute_inline(name)
    assert hint in caught.value.hint and caught.value.where and s.kernel is before
