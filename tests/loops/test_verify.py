"""Every invariant of a kernel, broken once: the message names the culprit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilewright.base import dtypes as d
from tilewright.base.errors import UnprovenError, VerifyError
from tilewright.compute.isl import IslLimitReached
from tilewright.compute.reducer import arg_reducer, reducer
from tilewright.expr.nodes import (
    And,
    Buffer,
    Cast,
    Expr,
    Le,
    Load,
    Lt,
    Max,
    Min,
    Select,
    Var,
    const,
    var,
)
from tilewright.loops.nodes import (
    Alloc,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Update,
    While,
    block,
    loop,
)
from tilewright.loops.verify import verify

F = d.float32
ZERO = const(0.0, F)


def x() -> Buffer:
    return Buffer("x", (8,), F)


def kernel(
    body: Stmt, *params: Buffer, outputs: tuple[Buffer, ...] | None = None
) -> Kernel:
    return Kernel("k", params, params if outputs is None else outputs, body)


def output_no_param() -> Kernel:
    return Kernel("k", (), (x(),), block())


def same_param_name() -> Kernel:
    return kernel(block(), x(), x())


def same_loop_name() -> Kernel:
    a, i, j = x(), var("i"), var("i")
    return kernel(
        block(loop(i, 8, Store(a, (i,), ZERO)), loop(j, 8, Store(a, (j,), ZERO))), a
    )


def wrong_kind() -> Kernel:
    a, i = x(), var("i")
    return kernel(loop(i, 8, Store(a, (i,), ZERO), "fast"), a)


def unbound() -> Kernel:
    a = x()
    return kernel(Store(a, (var("i"),), ZERO), a)


def bound_elsewhere() -> Kernel:
    a, i = x(), var("i")
    return kernel(block(loop(i, 8, Store(a, (i,), ZERO)), Store(a, (i,), ZERO)), a)


def no_such_buffer() -> Kernel:
    a, t = x(), Buffer("t", (1,), F)
    return kernel(block(Alloc(t, block()), Store(a, (const(0),), t[0])), a)


def allocated_twice() -> Kernel:
    t = Buffer("t", (1,), F)
    return kernel(Alloc(t, Alloc(t, block())))


def input_written() -> Kernel:
    a = x()
    return kernel(Store(a, (const(0),), ZERO), a, outputs=())


def wrong_value() -> Kernel:
    a = x()
    return kernel(Store(a, (const(0),), const(1)), a)


def wrong_condition() -> Kernel:
    return kernel(If(const(1), block(), None))


def wrong_while() -> Kernel:
    return kernel(While(const(1), block()))


def wrong_extent() -> Kernel:
    return kernel(For(var("i"), const(3, d.int32), "serial", block()))


def wrong_loop_variable() -> Kernel:
    return kernel(For(Var("i", d.int32), const(3), "serial", block()))


def wrong_update() -> Kernel:
    a = x()
    return kernel(Update((a,), ((const(0),),), (const(1),), reducer("add", d.int64)), a)


def components_missing() -> Kernel:
    a = x()
    return kernel(
        Update((a,), ((const(0),),), (ZERO,), arg_reducer("argmax", F, d.int64)), a
    )


def index_missing() -> Kernel:
    return argmax(((const(0),),))


def short_index() -> Kernel:
    return argmax(((const(0),), ()))


def second_outside() -> Kernel:
    i = var("i")
    return argmax(((i,), (i + 1,)), lambda step: loop(i, 4, step))


def argmax(indices: Any, around: Any = lambda step: step) -> Kernel:
    a, b = Buffer("a", (4,), F), Buffer("b", (4,), d.int64)
    step = Update((a, b), indices, (ZERO, const(0)), arg_reducer("argmax", F, d.int64))
    return kernel(around(step), a, b)


def narrow_index() -> Kernel:
    a, i = x(), var("i")
    narrow = Cast(i, d.int32)
    return kernel(loop(i, 8, Store(a, (i,), Load(a, (narrow,)))), a)


def missing_index() -> Kernel:
    a = x()
    return kernel(Store(a, (), ZERO), a)


def beyond() -> Kernel:
    a, i = x(), var("i")
    return kernel(loop(i, 9, Store(a, (i,), ZERO)), a)


def before() -> Kernel:
    a, i = x(), var("i")
    return kernel(loop(i, 8, Store(a, (i,), a[i - 1])), a)


def beyond_by_sum() -> Kernel:
    a, i, j = x(), var("i"), var("j")
    return kernel(loop(i, 4, loop(j, i + 3, Store(a, (i + j,), ZERO))), a)


def vector_carries() -> Kernel:
    a, i = x(), var("i")
    return kernel(loop(i, 7, Store(a, (i,), a[i + 1]), "vector"), a)


def noted_elsewhere() -> Kernel:
    a, i = x(), var("i")
    body = loop(i, 7, Store(a, (i,), ZERO))
    return replace(kernel(body, a), notes={"j": {"unroll": 4}})


def axis_twice() -> Kernel:
    a, i, j = Buffer("x", (8, 8), F), var("i"), var("j")
    inner = loop(j, 8, Store(a, (i, j), ZERO), "threadIdx.x")
    return kernel(loop(i, 8, inner, "threadIdx.x"), a)


BROKEN = [
    (output_no_param, "TW-OUTPUTS", "output x is not a parameter"),
    (same_param_name, "TW-PARAMS", "two parameters are named x"),
    (noted_elsewhere, "TW-NOTES", "loop j is annotated but does not exist"),
    (axis_twice, "TW-LOOP-AXIS", "loop j is bound to threadIdx.x, as i around it is"),
    (same_loop_name, "TW-LOOP-NAME", "two loops are named i"),
    (wrong_kind, "TW-LOOP-KIND", "loop i is 'fast'"),
    (unbound, "TW-UNBOUND", "i is used where no loop binds it"),
    (bound_elsewhere, "TW-UNBOUND", "i is used where no loop binds it"),
    (no_such_buffer, "TW-BUFFER-SCOPE", "t is neither a parameter nor allocated"),
    (allocated_twice, "TW-BUFFER-SCOPE", "t is allocated inside its own scope"),
    (input_written, "TW-INPUT-WRITTEN", "x is written"),
    (wrong_value, "TW-TYPE", "int64 is stored into x: float32"),
    (wrong_condition, "TW-TYPE", "condition of `if 1:` is int64"),
    (wrong_while, "TW-TYPE", "condition of `while 1:` is int64"),
    (wrong_extent, "TW-TYPE", "extent of loop i is int32"),
    (wrong_loop_variable, "TW-TYPE", "loop i is int32"),
    (wrong_update, "TW-TYPE", "add combines int64, not int64 into x: float32"),
    (components_missing, "TW-TYPE", "argmax has 2 components"),
    (index_missing, "TW-TYPE", "2 buffers, 1 indices"),
    (short_index, "TW-INDEX-TYPE", "indexed with 0 expressions"),
    (second_outside, "TW-BOUNDS", r"dimension 0 of b\[i \+ 1\]"),
    (narrow_index, "TW-INDEX-TYPE", "is int32, not int64"),
    (missing_index, "TW-INDEX-TYPE", "indexed with 0 expressions"),
    (beyond, "TW-BOUNDS", r"dimension 0 of x\[i\] leaves 0..7 at i = 8"),
    (before, "TW-BOUNDS", r"x\[i - 1\] leaves 0..7 at i = 0"),
    (beyond_by_sum, "TW-BOUNDS", "leaves 0..7 at i = 3, j = 5"),
    (
        vector_carries,
        "TW-LOOP-DEPENDENCE",
        "iterations of vector loop i depend on one another",
    ),
]


@pytest.mark.parametrize(
    ("make", "code", "message"), BROKEN, ids=lambda p: getattr(p, "__name__", "")
)
def test_rejects(make, code: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message) as caught:
        verify(make())
    assert caught.value.code == code
    assert not isinstance(caught.value, UnprovenError)
    assert str(caught.value).startswith("kernel k: ")


def product_of_a_variable() -> Kernel:
    """Inside, as i * i - i is 0, 0, 2 and 6, but nothing proves it."""
    a, i = Buffer("x", (7,), F), var("i")
    return kernel(loop(i, 4, Store(a, (i * i - i,), ZERO)), a)


def squares_apart() -> Kernel:
    """No two iterations touch one element, but nothing proves it."""
    a, i = x(), var("i")
    return kernel(loop(i, 3, Store(a, (i * i % 8,), ZERO), "vector"), a)


def test_what_is_not_proven_is_not_said_to_be_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UnprovenError, match=r"is not proven inside 0\.\.6") as caught:
        verify(product_of_a_variable())
    assert caught.value.code == "TW-BOUNDS"
    with pytest.raises(UnprovenError, match="vector loop i depend") as caught:
        verify(squares_apart())
    assert caught.value.code == "TW-LOOP-DEPENDENCE"

    def limited(*_: object) -> None:
        raise IslLimitReached

    monkeypatch.setattr("tilewright.loops.verify.sample", limited)
    with pytest.raises(UnprovenError, match="within the operation limit"):
        verify(beyond())


def triangle(i: Var, j: Var, a: Buffer) -> Stmt:
    return loop(i, 8, loop(j, const(8) - i, Store(a, (i + j,), ZERO)))


def tail_by_min(i: Var, j: Var, a: Buffer) -> Stmt:
    return loop(
        i, 3, loop(j, Min(const(3), const(8) - i * 3), Store(a, (i * 3 + j,), ZERO))
    )


def tail_by_guard(i: Var, j: Var, a: Buffer) -> Stmt:
    at = i * 3 + j
    return loop(i, 3, loop(j, 3, If(Lt(at, const(8)), Store(a, (at,), ZERO), None)))


def padding(i: Var, j: Var, a: Buffer) -> Stmt:
    at = i + j - 1
    inside: Expr = And(Le(const(0), at), Lt(at, const(8)))
    return loop(i, 8, loop(j, 3, Store(a, (i,), Select(inside, a[at], ZERO))))


def even_only(i: Var, j: Var, a: Buffer) -> Stmt:
    """Needs isl: the parity says that i is never 8."""
    odd = (i % 2).eq(1)
    return loop(i, 9, If(odd, Store(a, (i,), ZERO), None))


def otherwise_arm(i: Var, j: Var, a: Buffer) -> Stmt:
    return loop(i, 9, If(Lt(const(7), i), block(), Store(a, (i,), ZERO)))


@pytest.mark.parametrize(
    "body", [triangle, tail_by_min, tail_by_guard, padding, even_only, otherwise_arm]
)
def test_accepts(body) -> None:
    a = x()
    verify(kernel(body(var("i"), var("j"), a), a))


@pytest.mark.parametrize("clamp", [None, (Min, 7), (Max, 0)])
def test_a_checked_read_is_left_to_run_time(clamp) -> None:
    a, at, i = x(), Buffer("at", (8,), d.int64), var("i")
    place = at[i] if clamp is None else clamp[0](at[i], const(clamp[1]))
    body = loop(i, 8, Store(a, (i,), a[place]))
    verify(kernel(body, at, a, outputs=(a,)))


def test_dependences_may_be_left_out() -> None:
    verify(vector_carries(), dependences=False)
    with pytest.raises(VerifyError, match="used where no loop binds it"):
        verify(kernel(Store(x(), (var("i"),), ZERO), x()), dependences=False)


def test_a_loop_that_is_there_may_be_noted() -> None:
    a, i = x(), var("i")
    body = loop(i, 7, Store(a, (i,), ZERO))
    verify(replace(kernel(body, a), notes={"i": {"unroll": 4}}))


def test_an_update_has_an_index_for_each_buffer() -> None:
    a = Buffer("a", (4,), F)
    with pytest.raises(TypeError, match="one index, a tuple, for each of its buffers"):
        Update((a,), (const(0),), (ZERO,), reducer("add", F))  # type: ignore[arg-type]
