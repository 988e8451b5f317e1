"""Loads and the conditions around them."""

from __future__ import annotations

from tilewright.base import dtypes as d
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Buffer, Le, Lt, Select, const, var
from tilewright.expr.reads import reads, reads_memory, variables

X, AT = Buffer("x", (8,), d.float32), Buffer("at", (8,), d.int64)
M, N = var("m"), var("n")


def test_each_load_with_its_conditions() -> None:
    inner = Select(Lt(N, const(4)), X[M], X[N])
    e = Select(Le(const(1), M), inner, X[M + 1])
    found = {(r.load, r.guards): r for r in reads((e,), {M: (0, 7), N: (0, 7)})}
    outer, narrow = Le(const(1), M), Lt(N, const(4))
    assert set(found) == {
        (X[M], ((outer, True), (narrow, True))),
        (X[N], ((outer, True), (narrow, False))),
        (X[M + 1], ((outer, False),)),
    }
    assert bounds(N, found[X[N], ((outer, True), (narrow, False))].ranges) == (4, 7)
    assert bounds(M + 1, found[X[M + 1], ((outer, False),)].ranges) == (1, 1)


def test_a_shared_load_is_found_under_each_condition() -> None:
    e = Select(Lt(N, const(4)), X[M], X[M] * 2.0)
    assert [r.guards for r in reads((e, X[M]), {})] == [
        ((Lt(N, const(4)), True),),
        ((Lt(N, const(4)), False),),
        (),
    ]


def test_inner_loads_come_first() -> None:
    assert [r.load.buffer for r in reads((X[AT[N]],), {})] == [AT, X]
    assert reads_memory(AT[N] + 1) and not reads_memory(N + 1)
    assert list(variables(X[AT[N] + M])) == [N, M]
