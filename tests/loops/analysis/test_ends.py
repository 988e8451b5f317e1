"""Conflicts between the first iteration of a loop and its last, which are found without isl."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.base import dtypes as d
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, Lt, Overlap, Var, const, var
from tilewright.loops.analysis import isl
from tilewright.loops.analysis.access import guarded_accesses
from tilewright.loops.analysis.dependence import can_delay, can_fission, can_reorder
from tilewright.loops.analysis.verdict import Illegal, Legal, Witness
from tilewright.loops.nodes import For, If, Kernel, Stmt, Store, Update, block, loop

F = d.float32
X, Y, T = Buffer("x", (16,), F), Buffer("y", (16,), F), Buffer("t", (4, 99), F)
H, K = var("h"), var("i")


def kernel(*body: Stmt, extent: Expr | int = 8) -> Kernel:
    return Kernel("k", (X, Y, T), (Y, T), loop(H, 3, loop(K, extent, block(*body))))


def witness(k: Kernel) -> Witness | None:
    """Of the accesses of T in the loop i: the first that writes, and the first that reads."""
    assert isinstance(k.body, For) and isinstance(k.body.body, For)
    f = k.body.body
    found = [a for a in guarded_accesses(k.body, f) if a.buffer is T]
    one = next(a for a in found if a.writes)
    two = next(a for a in found if not a.writes)
    return isl.at_ends(one, two, [f])


def test_a_sum_that_its_loop_reads_is_refused_without_isl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("isl was asked")

    monkeypatch.setattr(isl, "sample", refuse)
    add = Update((T,), ((H, const(0)),), (X[K],), reducer("add", F))
    verdict = can_fission(kernel(add, Store(Y, (K,), T[H, 0])), "i", 1)
    assert isinstance(verdict, Illegal)
    assert verdict.witness == Witness({"h": 0, "i": 0}, {"h": 0, "i": 7}, "t[0, 0]")
    assert verdict.reason == "iterations (h=0, i=0) and (h=0, i=7) conflict at t[0, 0]"


def test_one_iteration_is_no_two() -> None:
    add = Update((T,), ((H, const(0)),), (X[K],), reducer("add", F))
    k = kernel(add, Store(Y, (K,), T[H, 0]), extent=1)
    assert witness(k) is None
    assert isinstance(can_fission(k, "i", 1), Legal)


def _written_if(condition: Callable[[Var], Expr]) -> Kernel:
    store = Store(T, (H, const(0)), const(1.0, F))
    return kernel(If(condition(K), store, None), Store(Y, (K,), T[H, 0]))


def test_guards_are_for_isl() -> None:
    assert witness(_written_if(lambda i: Lt(const(6), i))) is None
    assert witness(_written_if(lambda i: Lt(i, const(1)))) is None


def test_an_extent_that_is_no_number_is_for_isl() -> None:
    store = Store(T, (H, const(0)), const(1.0, F))
    assert witness(kernel(store, Store(Y, (K,), T[H, 0]), extent=H)) is None


@pytest.mark.parametrize(
    ("written", "read", "meet"),
    [
        (K, K + 1, False),  # elements that other iterations share
        (K, K - 7, True),
        (K + 14, K * 2, True),
        (K // 8, K // 8, False),  # not linear, though they meet
        # Starts of overlapping tiles, which others may read as if these did not overlap.
        (Overlap(K, const(0)), Overlap(K, const(0)), False),
        (const(5, INDEX), const(5, INDEX), True),
        (const(5, INDEX), const(6, INDEX), False),
    ],
)
def test_both_touch_one_element(written: Expr, read: Expr, meet: bool) -> None:
    store = Store(T, (H, written), const(1.0, F))
    found = witness(kernel(store, Store(Y, (K,), T[H, read])))
    assert (found is not None) == meet


def test_all_axes_count() -> None:
    store = Store(T, (H, const(0)), const(1.0, F))
    assert witness(kernel(store, Store(Y, (K,), T[H, 0]))) is not None
    assert witness(kernel(store, Store(Y, (K,), T[H + 1, 0]))) is None


def test_ends_count_only_where_the_question_is_about_them() -> None:
    """The first iteration and the last meet, eight apart; fewer apart, none do."""
    store = Store(T, (H, K + 7), const(1.0, F))
    read = Store(Y, (K,), T[H, K])
    assert isinstance(can_delay(kernel(store, read), "i", store, read, (1, 6)), Legal)
    late = can_delay(kernel(store, read), "i", store, read, (1, 7))
    assert isinstance(late, Illegal)
    # The first of all iterations and the last of all keep their order in any order of the loops.
    moved = Store(X, (K + H * 9,), X[K + H * 9 - 25])
    nest = Kernel("k", (X,), (X,), loop(H, 3, loop(K, 8, moved)))
    assert isinstance(can_reorder(nest, ["h", "i"]), Legal)
