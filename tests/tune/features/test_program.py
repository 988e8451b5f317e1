"""What all sets of features read: loops, accesses, regions. Numbers are worked out in comments."""

from __future__ import annotations

import pytest

from tests.tune.features import kernels
from tilewright.base.dtypes import float32, int64
from tilewright.compute.build import map_
from tilewright.expr.nodes import (
    Buffer,
    FloorDiv,
    Load,
    Max,
    Min,
    Mod,
    Mul,
    Overlap,
    const,
    var,
)
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc, Block, Kernel, Store, block, for_sizes, loop
from tilewright.schedule import Schedule
from tilewright.tune.features.indices import STAND_IN, Indices
from tilewright.tune.features.program import program


def of(kernel: Kernel, line: int = 0):
    return program(kernel).lines[line]


def test_loops_and_operations_of_the_product():
    found = program(kernels.product())
    init, main = found.lines
    assert [(f.trips, f.kind) for f in main.loops] == [
        (4, "parallel"),
        (4, "serial"),
        (4, "serial"),
        (2, "unroll"),
        (4, "vector"),
    ]
    assert (init.executions, main.executions) == (32, 512)
    assert (init.reduces, main.reduces) == (False, True)
    assert [f.depth for f in found.loops] == [0, 1, 2, 0, 1, 2, 3, 4]
    counts = {(k.__name__, d.name): n for (k, d), n in main.operations.items()}
    assert counts == {("Mul", "float32"): 1, ("Add", "float32"): 1}
    assert not init.operations


def test_regions_of_the_product():
    c, a, b = of(kernels.product(), 1).touches
    # At level n the loops from depth n on run, of (i, k.o, k.i, j.o, j.i).
    assert c.elements == [32, 8, 8, 8, 4, 1]  # neither loop of k is in it
    assert a.elements == [64, 16, 4, 1, 1, 1]
    assert b.elements == [128, 128, 32, 8, 4, 1]
    assert (c.reads, c.writes, a.reads, a.writes) == (True, True, True, False)
    # Four whole rows of b, 8 floats each, are 128 bytes in a piece; 4 floats of a are in a line.
    assert (b.lines(2), a.lines(2), c.lines(2)) == (2, 1, 1)
    assert (b.lines(0), a.lines(0), c.lines(0)) == (8, 4, 2)
    assert b.accesses[0].strides == {1: 32, 2: 8, 3: 4, 4: 1}


def test_points_of_a_stencil_have_one_box():
    y, x = of(kernels.stencil()).touches
    # One execution reads 3 neighbors, a vector of them 6, a row 18, all of it 5 * 18.
    assert x.elements == [90, 18, 6, 3]
    assert y.elements == [80, 16, 4, 1]
    # A row of 18 floats is 72 bytes, more than a line; rows lie behind one another.
    assert (x.lines(1), x.lines(0), x.lines(3)) == (72 / 64, 90 * 4 / 64, 1)


def test_accesses_that_move_in_different_ways_have_one_box():
    x = Buffer("x", (9, 9), float32)
    y = Buffer("y", (4, 3), float32)
    made = map_("s", y, lambda i, j: x[i, j] + x[j, 2 * i])
    _, touched = of(lower("p", [made], [x, y], [y])).touches
    # j over 3: columns 0..2 of row 0, and rows 0..2 of column 0. i over 4 as well: rows 0..3 and
    # 0..2, columns 0..2 and 0..6.
    assert touched.elements == [4 * 7, 9, 1]


def test_a_gather_is_erratic_in_the_loop_that_it_depends_on():
    line = of(kernels.gather())
    assert [(f.trips, f.kind) for f in line.loops] == [(8, "serial"), (4, "vector")]
    y, table, ids = line.touches
    (read,) = table.accesses
    assert read.erratic == {1} and read.strides == {0: 1} and read.moves(1)
    # Four rows at most are read, of one column or of eight; an id for each.
    assert table.elements == [32, 4, 1] and ids.elements == [4, 4, 1]
    assert y.accesses[0].strides == {0: 1, 1: 8}


@pytest.mark.parametrize(
    ("make", "terms", "const_", "span"),
    [
        (lambda i: i * 3 + 2, {0: 3}, 2, 21),
        (lambda i: 5 - i, {0: -1}, 5, 7),
        (lambda i: FloorDiv(i + 4, const(4)), {0: 0.25}, 1, 1.75),
        (lambda i: Mod(i, const(4)), {0: 1}, 0, 3),
        (lambda i: Mod(i, const(4)) * 10, {0: 10}, 0, 30),
        (lambda i: Overlap(i * 8, const(50)), {0: 8}, 0, 56),
        (lambda i: Min(const(50), i * 8), {0: 8}, 0, 56),
        (lambda i: Max(i - 1, const(0)), {0: 1}, -1, 7),
        (lambda i: -(i + 1), {0: -1}, -1, 7),
        (lambda i: Mul(const(2), i), {0: 2}, 0, 14),
        (lambda i: i + FloorDiv(const(9), const(4)), {0: 1}, 2, 7),
        (
            lambda i: i + Min(const(9), const(4)) + Max(const(9), const(4)),
            {0: 1},
            13,
            7,
        ),
        (lambda i: i + Mod(const(9), const(4)), {0: 1}, 1, 7),
    ],
)
def test_sums_of_an_index(make, terms, const_, span):
    i = var("i")
    found = Indices({i: 0}, {}, {})(make(i))
    assert (found.terms, found.const) == (terms, const_)
    assert found.span(0, 8) == span and not found.erratic


def test_indices_that_are_no_sums_are_erratic():
    i, j = var("i"), var("j")
    ids = Buffer("ids", (8,), int64)
    read = Indices({i: 0, j: 1}, {}, {})
    for e in (i * j, FloorDiv(const(8), j + 1) + i * 0 + i * j, ids[i + j]):
        assert read(e).erratic == {0, 1}, e
    (load,) = read(ids[i + j]).loads
    assert isinstance(load, Load) and not read(i * j).loads
    assert read(Mod(i, j)).erratic == {0, 1}


def test_arithmetic_of_an_index():
    i, j = var("i"), var("j")
    found = Indices({i: 0, j: 1}, {}, {})(i * 8 + j + 3)
    assert (found.additions, found.products) == (2, 1)
    zero = Indices({}, {}, {})(const(0))
    assert (zero.additions, zero.products) == (0, 0)


def test_loops_of_one_trip_are_left_out_and_those_of_none_with_what_they_run():
    x = Buffer("x", (8,), float32)
    i, j, k = var("i"), var("j"), var("k")
    one = loop(i, 1, loop(j, 8, Store(x, (i * 8 + j,), const(1.0, float32))))
    none = loop(k, 0, Store(x, (k,), const(2.0, float32)))
    found = program(Kernel("p", (x,), (x,), block(one, none)))
    assert [f.var for f in found.loops] == [j] and len(found.lines) == 1
    assert found.lines[0].target.strides == {0: 1}


def test_extents_that_are_no_numbers():
    n, i, j = var("n"), var("i"), var("j")
    x = Buffer("x", (n, 9), float32)
    inner = loop(j, Min(const(4), 9 - i * 4), Store(x, (i, j), const(1.0, float32)))
    kernel = Kernel("p", (x,), (x,), for_sizes([n], loop(i, n, inner)))
    found = program(kernel)
    # The larger of 4 and 9 - 4 i at i = 0 is cut to 4; a size that a call gives is a stand-in.
    assert [f.trips for f in found.loops] == [STAND_IN, 4]
    assert found.parameters[0].extents == (STAND_IN, 9)


def test_allocations_are_where_they_live():
    t, y = Buffer("t", (4,), float32), Buffer("y", (3,), float32)
    i = var("i")
    body = Store(y, (i,), t[const(0)])
    inner = loop(i, 3, Alloc(t, Block((Store(t, (const(0),), y[i]), body))))
    found = program(Kernel("p", (y,), (y,), inner))
    (allocation,) = found.all_allocations
    assert allocation.buffer is t and [f.var for f in allocation.loops] == [i]
    outside = program(Kernel("p", (y,), (y,), Alloc(t, loop(i, 3, body))))
    assert [a.loops for a in outside.allocations] == [()]


def test_a_nest_that_a_schedule_keeps_is_read_once():
    s = Schedule(kernels.plain_product())
    s.decompose_reduction("c", "m.i")
    before = program(s.kernel)
    s.vectorize("m.j")
    after = program(s.kernel)
    assert before.nests[0] is after.nests[0]
    assert before.nests[1] is not after.nests[1]


def test_an_index_that_is_loaded_is_a_read_too():
    accesses = of(kernels.gather()).accesses
    assert [a.buffer.name for a in accesses] == ["y", "table", "ids"]
    assert [(a.reads, a.writes) for a in accesses] == [
        (False, True),
        (True, False),
        (True, False),
    ]
