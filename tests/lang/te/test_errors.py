"""What te refuses, and that it says which line, what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import InputError, ScheduleError, UnsupportedError

A = t.placeholder((8, 6))
N = t.placeholder((8,), "int32")
k = t.reduce_axis((0, 6))
l = t.reduce_axis((0, 6))  # noqa: E741


def _one(f: Callable[..., Any], shape: tuple[int, ...] = (8,)) -> Any:
    return t.compute(shape, f, name="C")


EXPRESSIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "few-indices": (
        lambda: A[0] + 1.0,
        "tensor A: indexed with 1 expressions, it has 2 dimensions",
    ),
    "part": (lambda: _one(lambda i: A[i]), "A: indexed with 1 expressions"),
    "many-indices": (lambda: A[0][1, 2], "A: indexed with 3 expressions"),
    "whole": (lambda: A + 1.0, r"arithmetic on a whole tensor; compute\(A.shape"),
    "constant": (lambda: A[0, 6], r"tensor A, dimension 1: index 6 is outside 0\.\.5"),
    "negative": (lambda: A[-1, 0], "index -1 is outside"),
    "float-index": (lambda: A[0.5, 0], "the index is 0.5. an index is an integer"),
    "float-expression": (lambda: A[A[0, 0], 0], "the index is float32.*astype"),
    "slice": (lambda: A[0:2, 0], "an index is an integer"),
    "twice": (
        lambda: _one(lambda i: t.sum(A[i, k], axis=[k, k])),
        "sum: axis k is given twice",
    ),
    "not-reduced": (
        lambda: _one(lambda i: A[i, k]),
        r"compute C: k is neither an axis of the tensor nor reduced over.*sum\(\.\.\., axis=k\)",
    ),
    "free-axis": (
        lambda: _one(lambda i: t.sum(A[i, k], axis=i)),
        "i is an axis of the tensor, not one to reduce over",
    ),
    "no-axis": (lambda: _one(lambda i: t.sum(A[i, k])), "sum: it needs axis="),
    "bad-axis": (
        lambda: _one(lambda i: t.sum(A[i, 0], axis=0)),
        "axis=0 is not an axis",
    ),
    "nested": (
        lambda: _one(lambda i: t.sum(A[i, k], axis=k) + 1.0),
        r"a reduction \(add\) is the whole body of a compute.*a separate compute",
    ),
    "nested-right": (
        lambda: _one(lambda i: 1.0 - t.max(A[i, k], axis=k)),
        r"a reduction \(max\)",
    ),
    "in-reduction": (
        lambda: _one(lambda i: t.sum(t.sum(A[k, l], axis=l), axis=k)),
        r"a reduction \(add\)",
    ),
    "in-function": (
        lambda: _one(lambda i: t.exp(t.sum(A[i, k], axis=k))),
        r"a reduction \(add\)",
    ),
    "two-reductions": (
        lambda: _one(lambda i: (t.sum(A[i, k], axis=k), t.max(A[i, k], axis=k))),
        "several reductions in one body",
    ),
    "condition": (
        lambda: _one(lambda i: t.if_then_else(i, 1.0, 2.0)),
        "the condition is int64, not bool",
    ),
    "identity-compare": (
        lambda: _one(lambda i: t.if_then_else(A[i, 0] == 0.0, 1.0, 2.0)),
        r"the condition is False, no expression.*a\.eq\(b\)",
    ),
    "identity-compare-all": (
        lambda: _one(lambda i: t.if_then_else(t.all(i == 3, i < 5), 1.0, 2.0)),
        "all: the condition is False, no expression",
    ),
    "where": (
        lambda: _one(lambda i: t.sum(A[i, k], axis=k, where=A[i, k])),
        "sum, where=: the condition is float32, not bool",
    ),
    "truth": (lambda: _one(lambda i: 1.0 if i < 4 else 2.0), "no truth value"),
    "arguments": (
        lambda: _one(lambda i, j: A[i, j]),
        "the function takes 2 indices, the shape has 1 dimension",
    ),
    "no-expression": (lambda: _one(lambda i: "x"), "the body is 'x', no expression"),
    "size": (lambda: t.placeholder((8.5,)), "the extent 8.5 is not a size"),
    "dtype": (lambda: t.placeholder((8,), "float13"), "float13"),
    "domain": (lambda: t.reduce_axis(8), r"the domain is 8. give \(low, high\)"),
    "components": (
        lambda: _one(lambda i: t.argmax((A[i, k], A[i, k]), axis=k)),
        "argmax: it takes a value, or a value and an integer index",
    ),
    "conditions": (
        lambda: _one(lambda i: t.all(A[i, k], axis=k)),
        "it is for conditions",
    ),
    "identity": (
        lambda: _one(
            lambda i: t.comm_reducer(lambda a, b: a, lambda d: A[0, 0])(A[i, k], k)
        ),
        "the identity is not a constant",
    ),
    "scan-axis": (
        lambda: _one(lambda i: t.scan_op(t.sum)(A[i, k], axis=k)),
        "no axis of the tensor to scan along",
    ),
    "bounds": (
        lambda: t.create_schedule(_one(lambda i: A[i + 1, 0]).op),
        r"compute C: index i \+ 1 of dimension 0 of A leaves 0\.\.7",
    ),
    "placeholder": (lambda: t.create_schedule(A.op), "A is given by the caller"),
    "nothing": (lambda: t.create_schedule(3), "3 is not a tensor"),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions(name: str) -> None:
    make, message = EXPRESSIONS[name]
    with pytest.raises(InputError, match=message):
        make()


def _state(
    init: Any, step: Callable[[Any], Any], shape: tuple[int, int] = (5, 6)
) -> Any:
    state = t.placeholder(shape)
    return t.scan(init, step(state), state)


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(lambda s: s, id="the-current-step"),
        pytest.param(lambda s: s + 1, id="a-later-step"),
        pytest.param(lambda s: 2 - s, id="earlier-from-the-second-step-on"),
        pytest.param(lambda s: t.max(s - 2, 1), id="the-current-step-at-first"),
    ],
)
def test_a_state_is_read_at_earlier_steps_only(index: Callable[[Any], Any]) -> None:
    first = t.compute((1, 6), lambda _, i: A[0, i])
    with pytest.raises(InputError, match="not proven to be of an earlier step"):
        _state(first, lambda state: t.compute((5, 6), lambda s, i: state[index(s), i]))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda p, s, i: p[s // 2, i], id="by-halves"),
        pytest.param(lambda p, s, i: p[0, i], id="the-first"),
        pytest.param(
            lambda p, s, i: t.if_then_else(s > 1, p[s - 2, i], p[s - 1, i]),
            id="guarded",
        ),
    ],
)
def test_earlier_steps_are_found_exactly(value: Callable[..., Any]) -> None:
    first = t.compute((1, 6), lambda _, i: A[0, i])
    found = _state(first, lambda p: t.compute((5, 6), lambda s, i: value(p, s, i)))
    assert found.shape == (5, 6)


def test_recurrences() -> None:
    first = t.compute((1, 6), lambda _, i: A[0, i])

    def step(state: t.Tensor) -> t.Tensor:
        return t.compute((5, 6), lambda s, i: state[s - 1, i] + A[s, i])

    assert _state(first, step).shape == (5, 6)
    with pytest.raises(InputError, match="different shapes"):
        _state(first, lambda s: t.compute((4, 6), lambda n, i: s[n - 1, i]))
    with pytest.raises(InputError, match=r"reads .* at another step than its own"):

        def skewed(state: t.Tensor) -> t.Tensor:
            half = t.compute((5, 6), lambda s, i: state[s - 1, i] * 0.5)
            return t.compute((5, 6), lambda s, i: half[s - 1, i])

        _state(first, skewed)
    early = _state(
        first, lambda s: t.compute((5, 6), lambda n, i: s[n - 2, i] + A[n, i])
    )
    with pytest.raises(InputError, match=r"leaves 0\.\.4"):
        str(t.create_schedule(early.op))


def product() -> tuple[t.Schedule, t.Tensor, list[t.Tensor]]:
    X, Y, k = t.placeholder((8, 8)), t.placeholder((8, 8)), t.reduce_axis((0, 8))
    C = t.compute((8, 8), lambda y, x: t.sum(X[y, k] * Y[k, x], axis=k))
    return t.create_schedule(C.op), C, [X, Y, C]


def test_structural_errors_come_at_once() -> None:
    s, C, _ = product()
    y, x = s[C].op.axis
    yo, _ = s[C].split(y, 4)
    here = r"s\[C\]\.split\(y, factor=4\) \(test_errors\.py:\d+\)"
    with pytest.raises(
        ScheduleError, match=rf"y is no longer a loop since {here}.*y\.o, y\.i"
    ):
        s[C].vectorize(y)
    with pytest.raises(
        ScheduleError, match=r"s\[C\]\.split\(x\).*give factor= or nparts="
    ):
        s[C].split(x)
    with pytest.raises(ScheduleError, match="give n loops and then n factors"):
        s[C].tile(yo, x, 4)
    with pytest.raises(ScheduleError, match="a loop is named twice"):
        s[C].reorder(x, x)
    with pytest.raises(ScheduleError, match=r"x is not the loop directly inside y\.o"):
        s[C].fuse(yo, x)
    with pytest.raises(ScheduleError, match="combined differently"):
        s[C].fuse(x, s[C].op.reduce_axis[0])
    with pytest.raises(ScheduleError, match=r"no axis 'gridIdx\.x'.*blockIdx\.x"):
        s[C].bind(x, t.thread_axis("gridIdx.x"))
    with pytest.raises(ScheduleError, match="cannot be computed inside itself"):
        s[C].compute_at(s[C], x)
    with pytest.raises(ScheduleError, match="x is not a loop of the reduction"):
        s.rfactor(C, x)
    with pytest.raises(
        ScheduleError, match=r"s\.cache_read\(C, 'stack'\).*nothing reads C"
    ):
        s.cache_read(C, "stack")
    with pytest.raises(InputError, match=r"A.* is not a stage. the stages are C"):
        s[A]


def test_what_a_primitive_refuses_names_the_line() -> None:
    s, C, args = product()
    (k,) = s[C].op.reduce_axis
    s[C].parallel(k)  # recorded; refused when the program is asked for
    line = r"s\[C\]\.parallel\(k\) \(test_errors\.py:\d+\): loop C\.k: parallel: "
    for ask in (lambda: str(s), lambda: t.lower(s, args), lambda: t.build(s, args)):
        with pytest.raises(ScheduleError, match=line):
            ask()
    s, C, args = product()
    s[C].compute_inline()
    with pytest.raises(
        ScheduleError, match=r"s\[C\]\.compute_inline\(\).*it is a parameter"
    ):
        str(s)


def test_a_loop_that_is_gone() -> None:
    X = t.placeholder((8, 8))
    P = t.compute((8, 8), lambda i, j: X[i, j] + 1.0)
    C = t.compute((8, 8), lambda i, j: P[i, j] * 2.0)
    s = t.create_schedule(C.op)
    s[P].compute_at(s[C], s[C].op.axis[0])
    s[C].split(s[C].op.axis[0], 4)
    with pytest.raises(
        ScheduleError,
        match=r"s\[P\]\.compute_at\(s\[C\], i\).*i is no longer a loop of C",
    ):
        str(s)


def test_arguments() -> None:
    s, C, (X, Y, _) = product()
    with pytest.raises(InputError, match="Y is not among the arguments"):
        t.lower(s, [X, C])
    assert str(t.lower(s, [C, X, Y])) == str(t.lower(s, [X, Y, C]))
    with pytest.raises(InputError, match="the argument 3 is not a tensor"):
        t.lower(s, [X, Y, 3])  # type: ignore[list-item]
    with pytest.raises(InputError, match="is not a schedule"):
        t.build(C, [X, Y, C])  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="unknown target 'abacus'"):
        t.build(s, [X, Y, C], target="abacus")
    s[C].unroll(s[C].op.axis[0])
    with pytest.raises(ScheduleError, match="auto=True schedules everything"):
        t.build(s, [X, Y, C], auto=True)


def test_symbolic_arguments() -> None:
    n = t.var("n")
    X = t.placeholder((n + 1,))
    C = t.compute((n,), lambda i: X[i] + X[i + 1])
    f = t.build(t.create_schedule(C.op), [X, C])
    x, c = np.arange(5, dtype=np.float32), np.zeros(4, np.float32)
    f(x, c)
    np.testing.assert_array_equal(c, x[1:] + x[:-1])
    with pytest.raises(
        InputError, match=r"dimension 0 of X.*: expected 5 where n = 4, got 6"
    ):
        f(np.zeros(6, np.float32), c)
    with pytest.raises(InputError, match="1 array given, 2 expected: X: float32"):
        f(x)
    X = t.placeholder((n * 2,))
    D = t.compute((n * 2,), lambda i: X[i] * 2.0)
    with pytest.raises(InputError, match="no parameter has n alone as an extent"):
        t.build(t.create_schedule(D.op), [X, D])


def test_a_line_says_at_once_what_is_wrong_with_it() -> None:
    X = t.placeholder((8,))
    C = t.compute((8,), lambda i: X[i] + 1.0)
    s = t.create_schedule(C.op)
    with pytest.raises(ScheduleError, match=r"unknown tail 'ragged'.*exact, guard"):
        s[C].split(s[C].op.axis[0], 4, tail="ragged")  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"args: the arguments are None. a list of tensors"
    ):
        t.build(s, None)  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match="create_schedule: there is nothing to compute"
    ):
        t.create_schedule([])


def test_stages_are_not_computed_inside_one_another():
    a = t.placeholder((8,), name="A")
    b = t.compute((8,), lambda i: a[i] + 1, name="B")
    c = t.compute((8,), lambda i: b[i] + 1, name="C")
    d = t.compute((8,), lambda i: c[i] + 1, name="D")
    s = t.create_schedule(d.op)
    s[b].compute_at(s[c], s[c].op.axis[0])
    s[c].compute_at(s[d], s[d].op.axis[0])
    with pytest.raises(ScheduleError, match="cannot be computed inside itself"):
        s[d].compute_at(s[b], s[b].op.axis[0])
    t.lower(s, [a, d])
