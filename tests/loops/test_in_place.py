"""What a kernel's output may overwrite, and for each condition a kernel that would go wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.base.dtypes import float16, float32, int32
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Cast, Expr, Load, Lt, Min, Var, const
from tilewright.loops.intrinsic import Instance
from tilewright.loops.nodes import (
    Alloc,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    While,
    block,
    loop,
)
from tilewright.loops.passes.in_place import overwritable, without_self_copy
from tilewright.targets.cpu.intrinsics import TRANSPOSES

X, Y, Z = (Buffer(n, (8, 8), float32) for n in "xyz")
H, J, K = (Var(n, INDEX) for n in "hjk")


def nest(body: Stmt, i: int = 8, j: int = 8) -> Kernel:
    """Two loops around a statement that reads x and z and writes y."""
    return Kernel("k", (X, Z, Y), (Y,), loop(H, i, loop(J, j, body)))


def test_an_input_read_where_the_output_is_written() -> None:
    assert overwritable(nest(Store(Y, (H, J), X[H, J] + X[H, J]))) == (X, Z)
    assert overwritable(nest(Store(Y, (H, J), X[H, J] + Z[J, H]))) == (X,)
    row = Buffer("row", (8,), float32)
    shared = loop(H, 8, loop(J, 8, Store(Y, (H, J), X[H, J] + row[J])))
    assert overwritable(Kernel("k", (X, row, Y), (Y,), shared)) == (X,)
    split = loop(
        H, 8, loop(J, 2, loop(K, 4, Store(Y, (H, J * 4 + K), X[H, J * 4 + K])))
    )
    assert overwritable(Kernel("k", (X, Y), (Y,), split)) == (X,)
    digits = loop(H, 64, Store(Y, (H // 8, H % 8), X[H // 8, H % 8]))
    assert overwritable(Kernel("k", (X, Y), (Y,), digits)) == (X,)


ELSEWHERE: dict[str, Callable[[], Stmt]] = {
    "transposed": lambda: Store(Y, (H, J), X[H, J] + X[J, H]),
    "a neighbor": lambda: Store(Y, (H, J), X[H, Min(J + 1, const(7))]),
    "in a condition": lambda: If(Lt(X[J, H], X[H, J]), Store(Y, (H, J), X[H, J]), None),
    "in the index of another": lambda: Store(
        Y, (H, J), Z[Cast(X[J, H], INDEX), J] + X[H, J]
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_not_one_that_is_read_elsewhere(name: str) -> None:
    assert X not in overwritable(nest(ELSEWHERE[name]()))


def test_not_where_a_point_is_written_twice() -> None:
    """The second time it would read what the first wrote."""
    again = loop(K, 2, Store(Y, (H, J), X[H, J]))
    assert not overwritable(nest(again))
    assert overwritable(nest(loop(K, 1, Store(Y, (H, J), X[H, J]))))
    tiles = loop(
        K, 2, Store(Y, (H, Min(J * 3, const(5)) + K), X[H, Min(J * 3, const(5)) + K])
    )
    assert not overwritable(nest(tiles, j=3))
    overlapping = loop(K, 5, Store(Y, (H, J * 3 + K), X[H, J * 3 + K]))
    assert not overwritable(nest(overlapping, j=2))
    unknown = loop(K, Cast(Z[H, J], INDEX), Store(Y, (H, K), X[H, K]))
    assert not overwritable(nest(unknown))
    step = While(Lt(X[H, J], const(3.0, float32)), Store(Y, (H, J), X[H, J]))
    assert not overwritable(nest(step))


def test_not_where_something_else_is_written() -> None:
    one = Store(Y, (H, J), X[H, J])
    assert not overwritable(nest(block(one, Store(Y, (H, J), X[H, J] + Y[H, J]))))
    assert not overwritable(
        nest(Update((Y,), ((H, J),), (X[H, J],), reducer("add", float32)))
    )
    local = Buffer("l", (8, 8), float32)
    assert not overwritable(nest(Alloc(local, Store(local, (H, J), X[H, J]))))
    both = Kernel("k", (X, Y, Z), (Y, Z), loop(H, 8, loop(J, 8, one)))
    assert not overwritable(both)


def test_not_by_an_intrinsic_which_does_many_points_at_once() -> None:
    unit = Unit(
        "u",
        Instance(next(iter(TRANSPOSES.values())), "compute", ()),
        (),
        Store(Y, (H, J), X[H, J]),
    )
    assert not overwritable(nest(unit))


@pytest.mark.parametrize("dtype", [float16, int32])
def test_elements_of_one_size_only(dtype: object) -> None:
    other = Buffer("h", (8, 8), dtype)  # type: ignore[arg-type]
    value: Expr = Cast(Load(other, (H, J)), float32)
    body = loop(H, 8, loop(J, 8, Store(Y, (H, J), value)))
    found = overwritable(Kernel("k", (other, Y), (Y,), body))
    assert found == ((other,) if dtype is int32 else ())


def test_tensors_of_one_shape_only() -> None:
    """The same index is another place in memory."""
    wide = Buffer("w", (8, 9), float32)
    body = loop(H, 8, loop(J, 8, Store(Y, (H, J), wide[H, J])))
    assert not overwritable(Kernel("k", (wide, Y), (Y,), body))


def test_a_block_that_is_only_kept_together_is_none() -> None:
    unit = Unit("u", None, (), Store(Y, (H, J), X[H, J]))
    assert overwritable(nest(unit)) == (X, Z)


# ------------------------------------------------------------------- without the copy of an input

ROW = Store(Y, (const(3), J), Z[const(0), J])
COPY = loop(H, 8, loop(J, 8, Store(Y, (H, J), X[H, J])))


def copying(*stmts: Stmt) -> Kernel:
    return Kernel("k", (X, Z, Y), (Y,), block(*stmts), {"h": {"a": 1}, "k": {"b": 2}})


def test_a_copy_into_the_same_memory_is_left_out() -> None:
    row = loop(K, 8, Store(Y, (const(3), K), Z[const(0), K]))
    made = without_self_copy(copying(COPY, row), X)
    assert made is not None
    assert (made.params, made.outputs, made.body) == ((Z, Y), (Y,), row)
    assert made.notes == {"k": {"b": 2}}


TALL = Buffer("taller", (9, 8), float32)
NO_COPIES: dict[str, tuple[Kernel, Buffer]] = {
    "another input": (copying(COPY, loop(J, 8, ROW)), Z),
    "read again behind": (
        copying(COPY, loop(K, 8, Store(Y, (const(3), K), X[const(0), K]))),
        X,
    ),
    "read again in an index": (
        copying(
            COPY, loop(K, 8, Store(Y, (Cast(X[K, K], INDEX), K), Z[const(0), K]))
        ),
        X,
    ),
    "behind other writes": (copying(loop(K, 8, ROW), COPY), X),
    "changed": (
        copying(loop(H, 8, loop(J, 8, Store(Y, (H, J), X[H, J] + X[H, J]))), ROW),
        X,
    ),
    "turned": (
        copying(loop(H, 8, loop(J, 8, Store(Y, (H, J), X[J, H]))), ROW),
        X,
    ),
    "and more in the loop": (
        copying(loop(H, 8, block(Store(Y, (H, H), X[H, H]), Store(Y, (H, H), Z[H, H]))), ROW),
        X,
    ),
    "of another shape": (
        Kernel(
            "k", (TALL, Z, Y), (Y,),
            block(loop(H, 8, loop(J, 8, Store(Y, (H, J), TALL[H, J]))), loop(K, 8, ROW)),
        ),
        TALL,
    ),
    "of a kernel of two results": (
        Kernel(
            "k", (X, Y, Z), (Y, Z),
            block(COPY, loop(K, 8, Store(Z, (K, K), const(1.0, float32)))),
        ),
        X,
    ),
    "that is all": (Kernel("k", (X, Y), (Y,), COPY), X),
}  # fmt: skip


@pytest.mark.parametrize("what", NO_COPIES)
def test_what_is_no_copy_into_the_same_memory_stays(what: str) -> None:
    kernel, source = NO_COPIES[what]
    assert without_self_copy(kernel, source) is None
