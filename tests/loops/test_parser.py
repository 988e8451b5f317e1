"""Kernels from their text: what is printed is read back and does the same."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import InputError
from tilewright.compute.build import reduce_
from tilewright.compute.parser import parse_reducer
from tilewright.compute.printer import show_reducer
from tilewright.compute.reducer import arg_reducer, reducer
from tilewright.expr.nodes import Buffer, Expr, Lt, const, var
from tilewright.loops.interp import run
from tilewright.loops.lower import lower
from tilewright.loops.nodes import (
    Alloc,
    For,
    If,
    Kernel,
    Store,
    Unit,
    Update,
    While,
    block,
    loop,
)
from tilewright.loops.parser import parse
from tilewright.loops.verify import verify
from tilewright.testing.random_kernels import plain, random_computations

X, Y = Buffer("x", (4, 6), float32), Buffer("y", (4,), float32)


def again(kernel: Kernel, *operators: object) -> Kernel:
    """The kernel of its text."""
    texts = {str(op): parse_reducer(show_reducer(op), "text") for op in operators}  # type: ignore[arg-type]
    made = parse(str(kernel).split("\n"), None, texts)
    assert str(made) == str(kernel)
    return made


def alike(one: Kernel, two: Kernel) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(b.shape).astype(b.dtype.numpy) for b in one.params]
    found = []
    for kernel in (one, two):
        verify(kernel)
        memory = {b: a.copy() for b, a in zip(kernel.params, arrays, strict=True)}
        run(kernel, memory)
        found.append([memory[b] for b in kernel.outputs])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def every_statement() -> Kernel:
    i, j, k = var("i"), var("j"), var("k")
    t, n = Buffer("t.1", (2,), float32, "stack"), Buffer("n", (1,), int64, "register")
    zero = const(0)
    body = Alloc(
        t,
        block(
            For(j, const(2), "vector", Store(t, (j,), X[i, j * 3])),
            Alloc(
                n,
                block(
                    Store(n, (zero,), i),
                    While(
                        Lt(n[zero], const(3)),
                        block(
                            Update(
                                (t,), ((zero,),), (X[i, 1],), reducer("max", float32)
                            ),
                            Store(n, (zero,), n[zero] + 1),
                        ),
                    ),
                ),
            ),
            If(Lt(i, const(2)), Store(Y, (i,), t[zero]), Store(Y, (i,), t[const(1)])),
            If(Lt(const(2), i), Unit("kept", None, (), loop(k, 2, block())), None),
        ),
    )
    notes = {"i": {"chunk": 2, "why": "it's {rows}: a test"}}
    return Kernel("all", (X, Y), (Y,), For(i, const(4), "parallel", body), notes)


def test_every_statement_is_read_back() -> None:
    kernel = every_statement()
    made = again(kernel)
    alike(kernel, made)
    assert made.notes == kernel.notes


@pytest.mark.parametrize("seed", range(20))
def test_so_are_plain_nests(seed: int) -> None:
    again(plain(random_computations(random.Random(seed))))


def test_operators_are_looked_up() -> None:
    best, at = Buffer("best", (4,), float32), Buffer("at", (4,), int64)
    op = arg_reducer("argmax", float32, int64)

    def value(i: Expr, k: Expr) -> tuple[Expr, Expr]:
        return X[i, k], k

    c = reduce_("best", (best, at), (6,), op, value)
    kernel = lower("best", (c,), (X, best, at), (best, at))
    alike(kernel, again(kernel, op))
    with pytest.raises(InputError, match="unknown operator 'argmax'"):
        again(kernel)


def test_parameters_may_exist_already() -> None:
    kernel = every_statement()
    made = parse(str(kernel).split("\n"), {"x": X, "y": Y})
    assert made.params == (X, Y)
    with pytest.raises(
        InputError, match=r"x was declared as x: float32\[4\], and here as"
    ):
        parse(str(kernel).split("\n"), {"x": Buffer("x", (4,), float32)})


TEXT = """\
kernel k(x: float32[4, 6]) -> y: float32[4]:
  for i in 4:
    y[i] = x[i, 0]"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("x[i, 0]", "x[i, 0], 1.0", r"line 3: expected 1 value\(s\), found 2"),
        ("x[i, 0]", "z[i, 0]", "line 3: expected an expression, found 'z'"),
        ("in 4:", "in 4 sideways:", "line 2: a loop is 'sideways', not one of serial"),
        ("in 4:", "in 4", "line 2: expected ':', found the end"),
        ("in 4:", "in 4 {what}:", "line 2: the notes 'what' are not key: value"),
        ("    y[i]", "  y[i]", "expected a statement below the line above"),
        ("    y[i]", "      y[i]", "expected a statement below the line above"),
        ("y[i] =", "y[i] +=", r"expected = or an operator, found '\+'"),
        (
            "    y[i] = x[i, 0]",
            "    dot(x[i, 0])",
            "expected a buffer that was declared",
        ),
        ("float32[4]", "float33[4]", "line 1: expected a dtype"),
    ],
)
def test_another_text_is_refused(right: str, wrong: str, message: str) -> None:
    assert str(parse(TEXT.split("\n"))) == TEXT
    with pytest.raises(InputError, match=message):
        parse(TEXT.replace(right, wrong).split("\n"))
