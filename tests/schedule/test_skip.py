"""skip: iterations that would change nothing do not run; all others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int32, int64
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Add, And, Buffer, Expr, Le, Lt, Or, Select, const
from tilewright.loops.interp import run
from tilewright.loops.lower import lower
from tilewright.loops.nodes import If, Kernel
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule

ROWS, KEYS, BLOCK = 3, 12, 4
X = Buffer("X", (ROWS, KEYS), float32)
N = Buffer("N", (ROWS,), int64)
Y = Buffer("Y", (ROWS,), float32)
LOWEST = const(float("-inf"), float32)
ZERO = const(0.0, float32)
Value = Callable[[Expr, Expr], Expr]


def reduced(value: Value, op: str = "max", inputs: Sequence[Buffer] = (X, N)) -> Kernel:
    """Y = op over the keys of a value of row and key."""
    return lower("r", [reduce_("r", Y, (KEYS,), op, value)], [*inputs, Y], [Y])


def in_blocks(kernel: Kernel) -> Schedule:
    s = Schedule(kernel)
    s.split("r.k", BLOCK)
    return s


def results(kernel: Kernel, count: Sequence[int]) -> np.ndarray:
    arrays = {b: np.zeros(b.shape, b.dtype.numpy) for b in kernel.params}
    arrays[X] = np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)
    arrays[N] = np.array(count, np.int64)
    run(kernel, arrays)
    return arrays[kernel.outputs[-1]]


def conditions_of(kernel: Kernel) -> list[str]:
    return [repr(p.stmt.condition) for p in walk(kernel.body) if isinstance(p.stmt, If)]


def below(i: Expr, k: Expr) -> Expr:
    return Select(Lt(k, N[i]), X[i, k], LOWEST)


def behind(i: Expr, k: Expr) -> Expr:
    return Select(Le(N[i], k), X[i, k], LOWEST)


def causal(i: Expr, k: Expr) -> Expr:
    return Select(Le(k, Add(i, const(5))), X[i, k], LOWEST)


def window(i: Expr, k: Expr) -> Expr:
    inside = And(Lt(k, N[i]), Le(N[i], Add(k, const(2))))
    return Select(inside, X[i, k], LOWEST)


@pytest.mark.parametrize(
    "value,tests",
    [
        (below, ["r.k.o * 4 + 1 <= N[r.i]"]),
        (behind, ["N[r.i] <= r.k.o * 4 + 3"]),
        (causal, ["r.k.o * 4 - 5 <= r.i"]),
        (window, ["(r.k.o * 4 + 1 <= N[r.i]) & (N[r.i] <= r.k.o * 4 + 5)"]),
    ],
)
@pytest.mark.parametrize(
    "count",
    [(0, 0, 0), (12, 12, 12), (1, 4, 5), (8, 11, 3), (99, -7, 0), (-(2**63), 2**63 - 1, 6)],
)  # fmt: skip
def test_blocks_that_are_hidden_do_not_run(
    value: Value, tests: list[str], count: tuple[int, ...], check_same: Callable[..., None]
) -> None:  # fmt: skip
    kernel = reduced(value)
    s = in_blocks(kernel)
    s.skip("r.k.o")
    assert conditions_of(s.kernel) == tests
    np.testing.assert_array_equal(results(s.kernel, count), results(kernel, count))
    check_same(kernel, s, exact=True)


def test_of_two_conditions_the_weaker_one_is_asked() -> None:
    """Where only the stronger one is false, there still is something to add."""
    more = lambda i, k: Select(Lt(k, N[i] + const(4)), X[i, k], LOWEST)  # noqa: E731
    kernel = reduced(
        lambda i, k: Select(Lt(below(i, k), more(i, k)), more(i, k), below(i, k))
    )
    s = in_blocks(kernel)
    s.skip("r.k.o")
    assert conditions_of(s.kernel) == ["r.k.o * 4 - 3 <= N[r.i]"]
    for count in ((0, 1, 2), (-4, -3, 5), (8, 9, 12)):
        np.testing.assert_array_equal(results(s.kernel, count), results(kernel, count))


def test_it_stands_in_the_program(golden: Callable[..., None]) -> None:
    s = in_blocks(reduced(below))
    s.skip("r.k.o")
    golden("schedule_skip", repr(s.kernel))


def test_what_is_inside_may_be_scheduled_before() -> None:
    """Accumulators of lanes, and rows in between, hold the one number as well."""
    e = Buffer("E", (ROWS, KEYS), float32)
    z = Buffer("Z", (ROWS,), float32)
    parts = [
        map_("e", e, lambda i, k: Select(Lt(k, N[i]), X[i, k] * X[i, k], ZERO)),
        reduce_("r", z, (KEYS,), "add", lambda i, k: e[i, k] * const(2.0, float32)),
        map_("y", Y, lambda i: z[i]),
    ]
    kernel = lower("r", parts, [X, N, Y], [Y])
    s = in_blocks(kernel)
    s.compute_at("E", "r.k.o")
    s.rfactor("r.k.i", "stack")
    s.skip("r.k.o")
    verify(s.kernel)
    for count in ((0, 5, 12), (4, 8, 1)):
        want = results(kernel, count)
        np.testing.assert_allclose(results(s.kernel, count), want, rtol=1e-6)


def refused(s: Schedule, loop: str = "r.k.o", match: str = "no condition") -> None:
    before = s.kernel
    with pytest.raises(ScheduleError, match=f"skip: .*{match}") as caught:
        s.skip(loop)
    assert caught.value.hint and s.kernel is before


def test_a_factor_of_zero_hides_nothing() -> None:
    """0 * NaN is NaN: what is behind the count counts."""
    half = lambda i, k: Select(Lt(k, N[i]), const(1.0, float32), ZERO) * X[i, k]  # noqa: E731
    refused(in_blocks(reduced(half, "add")))
    whole = lambda i, k: Select(Lt(k, N[i]), X[i, k], ZERO) * ZERO  # noqa: E731
    in_blocks(reduced(whole, "add")).skip("r.k.o")


@pytest.mark.parametrize(
    "value,op",
    [
        (lambda i, k: Select(Lt(k, N[i]), X[i, k], ZERO), "max"),
        (lambda i, k: Select(Lt(k, N[i]), X[i, k], LOWEST), "add"),
        (lambda i, k: Select(Lt(k, N[i]), LOWEST, X[i, k]), "max"),
        (lambda i, k: Select(Lt(k, N[i]), X[i, k], X[i, const(0)]), "max"),
        (
            lambda i, k: Select(Or(Lt(k, N[i]), Lt(X[i, k], ZERO)), X[i, k], LOWEST),
            "max",
        ),
        (lambda i, k: Select(Lt(X[i, k], ZERO), X[i, k], LOWEST), "max"),
        (lambda i, k: Select(Lt(k, const(99)), X[i, k], LOWEST), "max"),
        (lambda i, k: X[i, k], "max"),
    ],
    ids=[
        "not the identity of max",
        "not the identity of add",
        "the other arm",
        "an element",
        "another condition too",
        "a condition on data",
        "one that always holds",
        "nothing hidden",
    ],
)
def test_what_is_added_must_be_the_identity(value: Value, op: str) -> None:
    refused(in_blocks(reduced(value, op)))


def test_narrow_counts_wrap_around() -> None:
    narrow = Buffer("N", (ROWS,), int32)
    value = lambda i, k: Select(Lt(narrow[i], const(3, int32)), X[i, k], LOWEST)  # noqa: E731
    refused(in_blocks(reduced(value, inputs=(X, narrow))))


def test_a_count_of_each_key_says_nothing_of_the_block() -> None:
    counts = Buffer("C", (KEYS,), int64)
    value = lambda i, k: Select(Lt(k, counts[k]), X[i, k], LOWEST)  # noqa: E731
    refused(in_blocks(reduced(value, inputs=(X, counts))))


def test_a_count_that_the_kernel_writes() -> None:
    count = Buffer("C", (ROWS,), int64)
    parts = [
        map_("c", count, lambda i: N[i] + const(1)),
        reduce_("r", Y, (KEYS,), "max",
                lambda i, k: Select(Lt(k, count[i]), X[i, k], LOWEST)),
    ]  # fmt: skip
    for outputs in ([Y], [count, Y]):
        kernel = lower("r", parts, [X, N, *outputs], outputs)
        refused(in_blocks(kernel))


def test_a_result_that_is_stored_is_stored() -> None:
    made = Buffer("Z", X.shape, float32)
    hidden = lambda i, k: Select(Lt(k, N[i]), X[i, k], ZERO)  # noqa: E731
    s = Schedule(lower("m", [map_("m", made, hidden)], [X, N, made], [made]))
    s.split("m.k", BLOCK)
    refused(s, "m.k.o")


def test_lanes_run_together() -> None:
    s = in_blocks(reduced(below))
    s.vectorize("r.k.i")
    refused(s, "r.k.i", "vector loop")
    refused(s, "r.i", "no condition")


def test_there_is_no_such_loop() -> None:
    with pytest.raises(ScheduleError, match=r"r\.q"):
        in_blocks(reduced(below)).skip("r.q")
