"""Constants: the table for integers agrees with the interpreter on every dtype and operation."""

import itertools
import math

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.expr.fold import COMPARE, INTEGER, LOGICAL, SHIFTS, fold, wrap
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Add,
    Bitcast,
    Call,
    Cast,
    Div,
    FloorDiv,
    Max,
    Mod,
    Neg,
    Not,
    Rem,
    Select,
    Shr,
    const,
    var,
)
from tilewright.expr.simplify import simplify

INTS = [t for t in dtypes.ALL if t.is_int]


def edges(dtype) -> list[int]:
    lo, hi = int(dtype.min), int(dtype.max)
    return sorted({lo, lo + 1, *range(max(lo, -3), min(hi, 4)), hi - 1, hi})


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers(dtype):
    values = edges(dtype)
    for kind in (*INTEGER, *SHIFTS, *COMPARE):
        x, y = var("x", dtype), var("y", dtype)
        pairs = list(itertools.product(values, values))
        left, right = (np.array(side, dtype.numpy) for side in zip(*pairs, strict=True))
        expected = evaluate(kind(x, y), {x: left, y: right})
        for (a, b), want in zip(pairs, expected.tolist(), strict=True):
            found = fold(kind(const(a, dtype), const(b, dtype)))
            assert found is const(want, found.type), (kind.__name__, dtype, a, b)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_unary_integers(dtype):
    for kind, a in itertools.product((Neg, Not), edges(dtype)):
        e = kind(const(a, dtype))
        assert fold(e) is const(int(evaluate(e, {})), dtype)


def test_truth_values():
    t = dtypes.bool_
    for kind, a, b in itertools.product(
        (*LOGICAL, *COMPARE), (False, True), (False, True)
    ):
        e = kind(const(a, t), const(b, t))
        assert fold(e) is const(bool(evaluate(e, {})), t)
    assert fold(Not(const(True, t))) is const(False, t)


@pytest.mark.parametrize(
    ("e", "value"),
    [
        (Div(const(-7), const(2)), -3),
        (FloorDiv(const(-7), const(2)), -4),
        (Mod(const(-7), const(2)), 1),
        (Rem(const(-7), const(2)), -1),
        (Div(const(7), const(0)), 0),
        (FloorDiv(const(7), const(0)), 0),
        (Mod(const(7), const(0)), 0),
        (Rem(const(7), const(0)), 0),
        (Add(const(127, dtypes.int8), const(1, dtypes.int8)), -128),
        (Neg(const(-128, dtypes.int8)), -128),
        (FloorDiv(const(-128, dtypes.int8), const(-1, dtypes.int8)), -128),
        (Shr(const(-5), const(64)), -1),
        (Cast(const(300.7, dtypes.float32), dtypes.int8), 127),
        (Cast(const(math.nan, dtypes.float32), dtypes.int32), 0),
        (Cast(const(300), dtypes.uint8), 44),
        (Cast(const(0.5, dtypes.float32), dtypes.bool_), True),
        (Bitcast(const(1.0, dtypes.float32), dtypes.int32), 0x3F800000),
        (
            Add(const(0.1, dtypes.float32), const(0.2, dtypes.float32)),
            float(np.float32(0.3)),
        ),
        (Add(const(1.0, dtypes.bfloat16), const(2**-9, dtypes.bfloat16)), 1.0),
        (Call("sqrt", (const(4.0, dtypes.float32),)), 2.0),
        (Call("isnan", (const(math.nan, dtypes.float32),)), True),
        (Select(const(False, dtypes.bool_), const(1), const(2)), 2),
    ],
    ids=repr,
)
def test_examples(e, value):
    assert simplify(e) is const(value, e.dtype)


def test_max_of_a_nan_is_a_nan():
    nan, one = const(math.nan, dtypes.float32), const(1.0, dtypes.float32)
    for e in (Max(nan, one), Max(one, nan)):
        assert math.isnan(simplify(e).value)


def test_nothing_is_folded_that_is_not_constant():
    assert fold(var("x") + 1) is None
    assert fold(var("x")) is None
    assert fold(const(1)) is None


def test_wrap():
    assert [wrap(n, dtypes.int8) for n in (127, 128, -129, 256)] == [127, -128, 127, 0]
    assert [wrap(n, dtypes.uint4) for n in (15, 16, -1)] == [15, 0, 15]
