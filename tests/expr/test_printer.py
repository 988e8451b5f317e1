"""Golden text of expressions."""

import ast

import pytest

from tilewright.base import dtypes
from tilewright.base.dtypes import float16, float32, float64, int4, int8, uint8
from tilewright.expr.nodes import (
    Bitcast,
    Buffer,
    Call,
    Cast,
    Max,
    Min,
    Neg,
    Rem,
    Select,
    Shl,
    Shr,
    const,
    var,
)
from tilewright.expr.printer import show

i, j = var("i"), var("j")
A = Buffer("A", (4, 8), float32)
v = var("v", float32)

GOLDEN = [
    (i + j + 1, "i + j + 1"),
    (i + (j + 1), "i + (j + 1)"),
    (i - (j - 1), "i - (j - 1)"),
    (i - j - 1, "i - j - 1"),
    (i + -1, "i - 1"),
    ((i + -1) * 2, "(i - 1) * 2"),
    ((i + j) * 3 // 4 % 5, "(i + j) * 3 // 4 % 5"),
    (i * (j % 3), "i * (j % 3)"),
    (i * j % 3, "i * j % 3"),
    (i // (j // 2), "i // (j // 2)"),
    (-(i + j), "-(i + j)"),
    (-i + j, "-i + j"),
    (-(-i), "--i"),
    (Neg(const(3)), "-(3)"),
    (const(-3), "-3"),
    (~(i < j), "~(i < j)"),
    ((i < 3) & (j >= 0), "(i < 3) & (0 <= j)"),
    ((i < 3) & (j < 3) | i.eq(j), "(i < 3) & (j < 3) | (i == j)"),
    ((i < j).eq(j < i), "(i < j) == (j < i)"),
    (i.ne(j + 1), "i != j + 1"),
    (Shl(i, j) + 1, "(i << j) + 1"),
    (Shr(i + 1, j), "i + 1 >> j"),
    (i & j ^ j, "i & j ^ j"),
    (Min(i, const(-3)), "min(i, -3)"),
    (Max(i + 1, Rem(i, j)), "max(i + 1, rem(i, j))"),
    (
        Select((i < 3), A[i, j + 1], const(0.0, float32)),
        "select(i < 3, A[i, j + 1], 0.0)",
    ),
    (Call("fma", (v, v, v)), "fma(v, v, v)"),
    (v / 2.0 + 1.5, "v / 2.0 + 1.5"),
    (const(1.0, float64), "1.0_f64"),
    (const(0.1, float16), "0.1_f16"),
    (const(-0.0, float32), "-0.0"),
    (const(float("inf"), float32), "inf"),
    (const(float("nan"), dtypes.bfloat16), "nan_bf16"),
    (const(7, uint8), "7_u8"),
    (const(-7, int8), "-7_i8"),
    (const(True, dtypes.bool_), "true"),
    (const(1j, dtypes.complex64), "1j_c64"),
    (Cast(A[i, j], float64), "f64(A[i, j])"),
    (Cast(i, int4), "i4(i)"),
    (Cast(i, dtypes.float8_e4m3fn), "float8_e4m3fn(i)"),
    (Cast(i < j, dtypes.bool_), "bool(i < j)"),
    (Bitcast(v, dtypes.int32), "bitcast(i32, v)"),
]


@pytest.mark.parametrize(("e", "text"), GOLDEN, ids=[text for _, text in GOLDEN])
def test_golden(e, text):
    assert show(e) == text
    assert repr(e) == text


_INFIX = set("ij 0123456789+-*/%()<=>&|^~!")


def test_python_groups_infix_the_same_way():
    plain = [(e, t) for e, t in GOLDEN if set(t) <= _INFIX and "i4" not in t]
    assert len(plain) > 15
    for e, text in plain:
        assert _python(ast.parse(text, mode="eval").body) == _full(e)


_WORDS = {
    "Add": "+", "Sub": "-", "Mult": "*", "FloorDiv": "//", "Mod": "%", "BitAnd": "&", "BitOr": "|",
    "BitXor": "^", "LShift": "<<", "RShift": ">>", "Lt": "<", "LtE": "<=", "Eq": "==",
    "NotEq": "!=", "USub": "-", "Invert": "~",
}  # fmt: skip


def _python(tree: ast.expr) -> str:
    """Python's reading of a text, with every parenthesis."""
    match tree:
        case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]):
            return f"({_python(left)} {_WORDS[type(op).__name__]} {_python(right)})"
        case ast.UnaryOp(op, operand):
            return f"({_WORDS[type(op).__name__]}{_python(operand)})"
        case ast.Name(name):
            return name
        case ast.Constant(value):
            return str(value)
    raise AssertionError(ast.dump(tree))


def _full(e) -> str:
    """The expression with every parenthesis."""
    from tilewright.expr.nodes import Add, Binary, Const, Not, Var
    from tilewright.expr.printer import INFIX

    if isinstance(e, Add) and isinstance(e.rhs, Const) and e.rhs.value < 0:
        return f"({_full(e.lhs)} - {-e.rhs.value})"
    if isinstance(e, Binary):
        return f"({_full(e.lhs)} {INFIX[type(e)][0]} {_full(e.rhs)})"
    if isinstance(e, Neg | Not):
        return f"({'-' if isinstance(e, Neg) else '~'}{_full(e.value)})"
    if isinstance(e, Const) and e.value < 0:
        return f"(-{-e.value})"
    return e.name if isinstance(e, Var) else str(e.value)


def test_deep_and_shared_terms_are_elided():
    e = i
    for _ in range(5_000):
        e = e + j
    text = show(e)
    assert len(text) < 10_000
    assert "…" in text
    for _ in range(60):
        e = e * e
    assert len(show(e)) < 20_000
    assert show(i + j * 2, limit=1) == "i + …"
