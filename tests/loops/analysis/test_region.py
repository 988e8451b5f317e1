"""What a Store covers of what is read later, one condition per row, and against enumeration."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.base.dtypes import float32
from tilewright.expr.nodes import INDEX, Buffer, Lt, Var, const
from tilewright.loops.analysis.access import environment
from tilewright.loops.analysis.region import uncovered
from tilewright.loops.nodes import If, Stmt, Store, While, block, loop

T, X, Y = (Buffer(n, (8, 8), float32) for n in "txy")
H, I, J, K, L = (Var(n, INDEX) for n in "hijkl")  # noqa: E741
READ = loop(K, 4, loop(L, 4, Store(Y, (K, L), T[K, L])))


def square(body: Stmt) -> Stmt:
    return loop(I, 4, loop(J, 4, body))


# A program that reads 4 x 4 elements of t, and whether what it stores first covers them.
PROGRAMS: dict[str, tuple[Callable[[], Stmt], bool]] = {
    "all of it": (lambda: square(Store(T, (I, J), X[I, J])), True),
    "turned": (lambda: square(Store(T, (J, I), X[I, J])), True),
    "more": (lambda: loop(I, 5, loop(J, 8, Store(T, (I, J), X[I, J]))), True),
    "the diagonal": (lambda: loop(I, 4, Store(T, (I, I), X[I, I])), False),
    "a row too few": (lambda: loop(I, 3, loop(J, 4, Store(T, (I, J), X[I, J]))), False),
    "a row too low": (lambda: square(Store(T, (I + 1, J), X[I, J])), False),
    "every other column": (lambda: square(Store(T, (I, J * 2), X[I, J])), False),
    "where it holds": (
        lambda: square(If(Lt(X[I, J], const(0.0, float32)), Store(T, (I, J), X[I, J]), None)),
        False,
    ),
    "as long as it holds": (
        lambda: While(Lt(X[0, 0], const(0.0, float32)), square(Store(T, (I, J), X[I, J]))),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_stored_first_covers_what_is_read(name: str) -> None:
    made, covers = PROGRAMS[name]
    root = block(made(), READ)
    assert (uncovered(root, T, environment(root)) is None) is covers


@pytest.mark.parametrize("covers", [True, False])
def test_a_loop_around_both_is_the_same_for_both(covers: bool) -> None:
    """It may index twice: both are in one iteration of it."""
    store = loop(J, 4, Store(T, (H, H + J), X[H, J]))
    read = loop(L, 4, Store(Y, (H, L), T[H, H + L + (0 if covers else 1)]))
    root = loop(H, 4, block(store, read))
    assert (uncovered(root, T, environment(root)) is None) is covers


def test_a_read_that_comes_first_is_covered_by_nothing() -> None:
    root = block(READ, square(Store(T, (I, J), X[I, J])))
    assert uncovered(root, T, environment(root)) is not None


def test_later_writes_stay_inside_where_that_is_asked() -> None:
    first, outside = (
        square(Store(T, (I, J), X[I, J])),
        Store(T, (const(7), const(7)), X[0, 0]),
    )
    root = block(first, READ, outside)
    env = environment(root)
    assert uncovered(root, T, env) is None
    assert uncovered(root, T, env, writes_too=True) is not None
