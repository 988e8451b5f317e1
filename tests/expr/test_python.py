"""Expressions as Python text, and back node for node; text that is not trusted."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.base import dtypes
from tilewright.base.dtypes import bool_, float32, float64, int32, int64, uint8
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.expr import nodes as n
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.expr.python import MAX_WRITTEN, evaluate, scope, show

x, y = Var("x", float32), Var("y", float32)
i, j = Var("i", int64), Var("j", int64)
b = Var("b", bool_)
A = Buffer("A", (4, 5), float32)
NAMES = {"x": x, "y": y, "i": i, "j": j, "b": b, "A": A}

SHOWN: dict[str, tuple[Expr, str]] = {
    "sum": (x + y * 2.0, "x + y * 2.0"),
    "brackets": ((x + y) * 2.0 - (x - y), "(x + y) * 2.0 - (x - y)"),
    "reflected": (1.0 - x, "1.0 - x"),
    "negative": (x * -10000.0, "x * -10000.0"),
    "negation": (-(x + y), "-(x + y)"),
    "negated constant": (n.Neg(const(3, int32)), "-const(3, int32)"),
    "constants": (n.Add(const(1, int32), const(2, int32)), "const(1, int32) + 2"),
    "floor": (n.FloorDiv(const(7), i), "const(7, int64) // i"),
    "index": (A[i // 2, j % 3 + 1], "A[i // 2, j % 3 + 1]"),
    "compare": (n.And(i < 3, n.Le(const(0), j)), "(i < 3) & (0 <= j)"),
    "equal": (n.Eq(i, j), "eq(i, j)"),
    "not": (~b | (x < y), "~b | (x < y)"),
    "xor": (n.Xor(b, const(True, bool_)), "b ^ True"),
    "shift": (n.Shr(i, const(2)), "shr(i, 2)"),
    "extremes": (n.Max(n.Min(x, y), const(0.0, float32)), "max(min(x, y), 0.0)"),
    "call": (n.call("exp", x - y), "exp(x - y)"),
    "cast": (n.Cast(x, float64), "cast(x, float64)"),
    "bits": (n.Bitcast(x, int32), "bitcast(x, int32)"),
    "select": (n.Select(b, x, const(0.0, float32)), "select(b, x, 0.0)"),
    "infinite": (n.Max(x, const(float("-inf"), float32)), "max(x, -inf)"),
    "large": (n.Cast(const(255, uint8), int64), "cast(const(255, uint8), int64)"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_text_and_back(name: str) -> None:
    e, text = SHOWN[name]
    assert show(e) == text
    assert evaluate(text, scope() | NAMES) is e


def test_every_dtype_has_a_name() -> None:
    names = scope()
    for t in dtypes.ALL:
        assert names["bool_" if t is bool_ else t.name] is t


def test_names_stand_for_parts() -> None:
    assert show(A[i, j] * x, {A[i, j]: "value", x: "w"}) == "value * w"


def test_a_shared_part_is_not_written_for_ever() -> None:
    e: Expr = x
    for _ in range(40):
        e = e + e
    with pytest.raises(UnsupportedError, match=str(MAX_WRITTEN)):
        show(e)


BAD: dict[str, tuple[str, str]] = {
    "attribute": ("x.__class__", "Attribute is not allowed"),
    "name": ("open", "unknown name 'open'"),
    "power": ("2 ** 9", "Pow is not allowed"),
    "comprehension": ("[v for v in A]", "is not allowed"),
    "walrus": ("(v := 1)", "is not allowed"),
    "string": ("f'{x}'", "is not allowed"),
    "syntax": ("x +", "not an expression"),
    "parameters": ("(lambda i, i: i)", "duplicate argument"),
    "meaning": ("exp(x, y)", "exp takes 1 arguments, not 2"),
    "types": ("x + i", "operands are float32 and int64"),
    "number": ("3(x)", "only what has a name"),
    "element": ("(1, 2)[0]", "only what has a name"),
    "numbers": ("max(1, 2)", "one of them has to be an expression"),
    "deep": ("(" * 500 + ")" * 500, "not an expression"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    text, message = BAD[name]
    names: dict[str, Any] = scope() | NAMES
    with pytest.raises(InputError, match=message):
        evaluate(text, names)
