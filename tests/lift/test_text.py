"""Programs and Computations as text, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.dtypes import float32, float64, int64
from tilewright.base.errors import InputError, TilewrightError, UnsupportedError
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import arg_reducer
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.nodes import (
    Buffer,
    Cast,
    Eq,
    Expr,
    Lt,
    Max,
    Min,
    Select,
    call,
    const,
)
from tilewright.ir.node import postorder
from tilewright.lift import express
from tilewright.lift.express import tidied
from tilewright.lift.infer import infer
from tilewright.lift.lambdas import applied, key
from tilewright.lift.nodes import Lambda, Param, UserFun
from tilewright.lift.patterns import WORDS, Fill, Map, Reduce, Zip, fun, parse
from tilewright.lift.printer import show_lines, show_part
from tilewright.lift.scalars import user_fun
from tilewright.testing.computations import computations
from tilewright.testing.lift_programs import lowered, random_program

f32 = WORDS["f32"]
A, B, V = (Buffer(*row, float32) for row in (("A", (4, 6)), ("B", (6, 5)), ("v", (7,))))
X, W = Buffer("X", (2, 3, 8, 8), float32), Buffer("W", (4, 3, 3, 3), float32)


def out(*shape: int, dtype=float32) -> Buffer:
    return Buffer("o", shape, dtype)


COMPUTATIONS = [
    map_("relu", out(4, 6), lambda i, j: Max(A[i, j], const(0.0, float32))),
    map_("transpose", out(6, 4), lambda i, j: A[j, i]),
    map_("reverse", out(7), lambda i: V[const(6) - i]),
    map_("every_other", out(4), lambda i: V[i * 2]),
    map_("middle", out(3), lambda i: V[i + 2]),
    map_("row", out(6), lambda j: A[2, j]),
    map_("broadcast", out(4, 7), lambda i, j: V[j] * 2.0),
    map_("numbers", out(7, dtype=int64), lambda i: i * 2),
    map_("shifted", out(7), lambda i: padded(V, (i - 2,), 0.0)),
    map_("outer", out(4, 6, 7), lambda i, j, k: call("exp", A[i, j]) - V[k]),
    reduce_("product", out(4, 5), (6,), "add", lambda i, j, k: A[i, k] * B[k, j]),
    reduce_("dot", out(1), (7,), "add", lambda i, k: V[k] * V[k]),
    reduce_(
        "wide_sum",
        out(4, dtype=float64),
        (6,),
        "add",
        lambda i, k: Cast(A[i, k], float64),
    ),
    reduce_(
        "prefix",
        out(7),
        (7,),
        "max",
        lambda i: V[i],
        extents=(),
        index=lambda i: (i,),
        combine="ps",
    ),
    reduce_(
        "convolution",
        out(2, 4, 3, 3),
        (3, 3, 3),
        "add",
        lambda n, k, y, x, c, r, s: X[n, c, y * 2 + r, x * 2 + s] * W[k, c, r, s],
    ),
    reduce_(
        "padded_convolution",
        out(2, 4, 8, 8),
        (3, 3, 3),
        "add",
        lambda n, k, y, x, c, r, s: (
            padded(X, (n, c, y + r - 1, x + s - 1), 0.0) * W[k, c, r, s]
        ),
    ),
    reduce_(
        "argmax",
        (out(4), out(4, dtype=int64)),
        (6,),
        arg_reducer("argmax", float32, int64),
        lambda i, k: (A[i, k], k),
    ),
]


def text(c: Computation) -> str:
    return canonical([c], [*c.inputs, *(o.tensor for o in c.outputs)])


@pytest.mark.parametrize("c", COMPUTATIONS, ids=lambda c: c.name)
def test_a_computation_reads_back_equal(c: Computation) -> None:
    assert text(express.parse(express.show(c))) == text(tidied(c))


def test_some_computations_as_programs(golden) -> None:
    golden("lift_text", "\n\n".join(express.show(c) for c in COMPUTATIONS[:-3]))


@pytest.mark.parametrize(
    ("c", "reason"),
    [
        (
            map_("diagonal", out(4), lambda i: A[i, i]),
            "i indexes in a way that no pattern has",
        ),
        (map_("wrapped", out(9), lambda i: V[i % 7]), "indexes in a way"),
        (
            map_("scattered", out(7), lambda i: V[i], index=lambda i: (const(6) - i,)),
            "the order of its dimensions",
        ),
    ],
    ids=lambda c: getattr(c, "name", ""),
)
def test_what_no_pattern_says(c: Computation, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        express.show(c)


@settings(max_examples=60, deadline=None)
@given(computations())
def test_any_computation_reads_back_equal_or_is_refused(c: Computation) -> None:
    with contextlib.suppress(UnsupportedError):
        assert text(express.parse(express.show(c))) == text(tidied(c))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_programs_read_back_equal(seed: int) -> None:
    rng = Random(seed)
    program = random_program(rng, rng.randint(1, 4))
    for p in (program, lowered(program, rng), applied(program)):
        again = parse(show_lines(p, 60))
        assert show_lines(again, 60) == show_lines(p, 60)
        assert key(applied(again)) is key(applied(p))
        assert infer(again).result is infer(p).result


def test_names_that_are_taken_are_changed() -> None:
    program = parse("fun(lambda n: n | Map(lambda x: x + x), f32[m])")
    assert show_part(program) == "fun(lambda n: n | Map(lambda x: x + x), f32[m])"
    shadow = parse(
        "fun(lambda x: x | Map(lambda y: y | Map(lambda x: x + 1.0)), f32[m, m])"
    )
    assert "lambda x:" in show_part(shadow)


INTEGER = ("popcount", "ldexp", "entry")  # not of floats alone
USER_FUNCTIONS = [
    lambda x: x * call("tanh", call("log1p", call("exp", x))),
    lambda x: Select(Lt(x, const(0.0, float32)), -x, call("sqrt", x)),
    lambda x: Cast(Cast(x, int64) + const(3, int64), float32) * 0.5,
    lambda x: Max(Min(x, const(6.0, float32)), const(0.0, float32)),
    lambda x: Select(Eq(x, const(1.0, float32)) & ~(x < 0.0), x, const(2.5, float32)),
    *(
        lambda x, name=name, f=f: call(name, *[x] * f.arity)
        for name, f in FUNCTIONS.items()
        if f.result is None and name not in INTEGER
    ),
]


@pytest.mark.parametrize("f", USER_FUNCTIONS)
def test_user_functions_that_call_others_read_back(f: Callable[[Expr], Expr]) -> None:
    """Words of their bodies are functions, whatever lengths and values are called."""
    own = user_fun("own", lambda x: f(x), float32)
    whole = fun(lambda cast, v: cast | Map(own), f32["const"], f32["float32"])
    again = parse(show_part(whole))
    assert show_part(again) == show_part(whole)
    [found] = [p for p in postorder(again) if isinstance(p, UserFun)]
    assert found.body is own.body


def test_user_functions_that_call_user_functions_read_back() -> None:
    square = user_fun("square", lambda x: x * x, float32)
    norm = user_fun("norm", lambda a, b: square(b) + square(a - b), float32, float32)
    own = user_fun("own", lambda x: call("sqrt", norm(square(x), x)), float32)
    whole = fun(lambda v: Zip(v, v) | Map(norm) | Map(own), f32["n"])
    again = parse(show_lines(whole))
    assert show_lines(again) == show_lines(whole)
    assert key(applied(again)) is key(applied(whole))
    for wrong in (lambda x: square(x, x), lambda x: square(Cast(x, int64))):
        with pytest.raises(
            InputError, match=r"user function f: square takes \(float32\)"
        ):
            user_fun("f", wrong, float32)


def test_a_function_that_pipes_its_arguments_is_a_composition() -> None:
    a, b = (Param(name, None) for name in "ab")
    pairs = Lambda((a, b), (Zip(a, b) | Map(WORDS["f32"].fun)))
    whole = Lambda((p := Param("v", f32["n", 4]),), p | Reduce(pairs, Fill(0.0, 4)))
    assert "Reduce(Zip >> Map(f32), Fill(0.0, 4))" in show_lines(whole)
    assert key(applied(parse(show_lines(whole)))) is key(applied(whole))


def test_a_user_function_is_a_lambda() -> None:
    for bad in ("userfun('f', exp, f32)", "userfun('f', 3, f32)"):
        with pytest.raises(InputError, match="write a lambda"):
            parse(f"fun(lambda v: v | Map({bad}), f32[n])")


@pytest.mark.parametrize(
    "bad",
    [
        "__import__('os').system('true')",
        "(lambda: 1).__class__",
        "[x for x in (1, 2)]",
        "Map(",
        "Map(3)",
        "x | 3",
        "9 ** 9 ** 9",
    ],
)
def test_other_text_is_refused(bad: str) -> None:
    with pytest.raises(TilewrightError):
        parse(bad)


def test_the_larger_number_of_floats_is_a_function() -> None:
    """It is none of the builtin operators, some of which floats do not have."""
    x = Buffer("x", (4, 3), float32)
    c = reduce_(
        "top", Buffer("y", (4,), float32), (3,), "max_number", lambda i, k: x[i, k]
    )
    assert "Reduce(lambda a, b: select(lt(a, b), b, a)" in str(express.program_of(c))


def test_a_program_of_several_computations_is_not_one() -> None:
    with pytest.raises(UnsupportedError, match="2 Computations"):
        express.parse("fun(lambda x: x | Reduce(add, 1.0), f32[8])")
    with pytest.raises(InputError):
        express.parse("fun(lambda x: x | Reduce(add, 1), f32[8])")
