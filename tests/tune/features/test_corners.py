"""Features of cases that small kernels do not reach."""

from __future__ import annotations

from dataclasses import replace

from tests.tune.features import kernels
from tests.tune.features.kernels import FACTS, rows
from tilewright.base.dtypes import float32, int64
from tilewright.expr.nodes import Buffer, Cast, Expr, Overlap, const, var
from tilewright.loops.intrinsic import INTRINSICS, Instance
from tilewright.loops.nodes import Kernel, Stmt, Store, Unit, block, loop
from tilewright.targets.registry import intrinsics
from tilewright.tune.features import Fast, PerStore
from tilewright.tune.features.program import UNIT, program
from tilewright.tune.features.touches import around

P, J, K = var("p"), var("j"), var("k")
X, Y = Buffer("x", (8, 16), float32), Buffer("y", (8, 16), float32)
IDS = Buffer("ids", (8,), int64)
LONG = Buffer("long", (8,), int64)


def of(body: Stmt):
    return program(Kernel("p", (X, IDS, Y, LONG), (Y, LONG), body))


def store(value: Expr) -> Stmt:
    return Store(LONG, (P,), value)


def test_a_read_counts_once_though_it_is_an_index_and_a_value():
    value = Cast(X[IDS[P], const(0)], int64) + IDS[P]
    (line,) = of(loop(P, 8, store(value))).lines
    assert [a.buffer.name for a in line.accesses] == ["long", "x", "ids"]


def test_arithmetic_of_loaded_integers_is_no_index():
    (line,) = of(loop(P, 8, store(IDS[P] * IDS[P] + P * 3))).lines
    counts = {kind.__name__: n for (kind, _), n in line.operations.items()}
    assert counts == {"Add": 1, "Mul": 2}


def test_the_start_of_a_tile_in_a_value_is_a_minimum():
    (line,) = of(loop(P, 8, store(Overlap(P * 8, const(50))))).lines
    counts = {kind.__name__: n for (kind, _), n in line.operations.items()}
    assert counts == {"Min": 1, "Mul": 1}


def test_loops_inside_of_an_instruction_are_of_their_own_kind():
    intrinsics("cpu")
    found = next(i for i in INTRINSICS.values() if i.update is not None)
    body = loop(J, 4, loop(K, 4, Store(Y, (P, J * 4 + K), const(1.0, float32))))
    instance = Instance(found, "update", (4, 4))
    for intrinsic, kinds in ((instance, [UNIT, UNIT]), (None, ["serial", "serial"])):
        inside = Unit("u", intrinsic, (), body)
        loops = of(loop(P, 8, inside)).loops
        assert [f.kind for f in loops] == ["serial", *kinds]


def test_lines_of_parts_of_rows():
    part = loop(P, 5, loop(J, 4, Store(Y, (P, J), X[P, J])))
    _, x = of(part).lines[0].touches
    # Rows of 16 floats are a line each; of five of them four floats.
    assert x.lines(0) == 5 and x.lines(1) == 1


def test_what_goes_beyond_a_tensor_is_as_large_as_it():
    far = loop(P, 4, loop(J, 3, loop(K, 3, Store(LONG, (P * 4 + J + K,), IDS[P]))))
    written = of(far).lines[0].touches[0]
    # 3 elements, then 5, then 12 more: there are 8.
    assert written.elements == [8, 5, 3, 1]
    four = Buffer("four", (4,), int64)
    beyond = loop(P, 4, loop(J, 3, loop(K, 3, Store(four, (P * 4 + J + K,), IDS[P]))))
    assert of(beyond).lines[0].touches[0].elements == [4, 4, 3, 1]


def test_accumulators_that_hide_the_latency_are_enough():
    quick = Fast(replace(FACTS, latency=0.5))
    (row,) = rows(quick, kernels.product())
    assert row["tile_overlap"] == 1  # two, of which one would do


def test_threads_in_loops_in_threads():
    body = Store(Y, (P, J * 4 + K), X[P, const(0)])
    inner = loop(J, 4, loop(K, 4, body), "parallel")
    between = loop(var("s"), 3, inner)
    found = around(of(loop(P, 8, between, "parallel")))
    # Of the loop over P by those of the loop directly inside: 8 * 16 by 16; of J by those of K.
    assert found[0].patterns[0].thread_count == 8
    assert found[2].patterns[0].thread_count == 4
    # x[i, 0] is invariant in both.
    assert found[0].patterns[1].thread_count == 8
    assert found[2].patterns[1].thread_reuse == 4


def test_of_several_stores_the_one_that_runs_most_is_described():
    main = loop(P, 8, loop(J, 16, Store(Y, (P, J), X[P, J])))
    tail = loop(K, 3, Store(Y, (K, const(0)), X[K, const(0)]))
    for body in (block(main, tail), block(tail, main)):
        kernel = Kernel("p", (X, Y), (Y,), body)
        (row,) = rows(PerStore(), kernel)
        assert (row["outer_prod"], row["num_loops"]) == (128, 2)
