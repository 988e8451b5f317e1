"""Text of expressions: infix with the fewest parentheses, as Python would read it.

Integers without a suffix are int64, decimals without one are float32; any other constant carries
its dtype (`1.0_f64`, `3_i32`). A dtype's name around one argument is a cast: `f32(x)`.
"""

from __future__ import annotations

import re

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.expr.nodes import (
    INDEX,
    Add,
    And,
    Binary,
    Bitcast,
    Call,
    Cast,
    Const,
    Div,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Load,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Neg,
    Not,
    Or,
    Overlap,
    Rem,
    Select,
    Shl,
    Shr,
    Sub,
    Var,
    Xor,
)
from tilewright.ir.node import Node

# Python's own precedence, lowest first; comparisons do not chain, so both sides bind tighter.
INFIX: dict[type[Expr], tuple[str, int]] = {
    Lt: ("<", 1),
    Le: ("<=", 1),
    Eq: ("==", 1),
    Ne: ("!=", 1),
    Or: ("|", 2),
    Xor: ("^", 3),
    And: ("&", 4),
    Shl: ("<<", 5),
    Shr: (">>", 5),
    Add: ("+", 6),
    Sub: ("-", 6),
    Mul: ("*", 7),
    Div: ("/", 7),
    FloorDiv: ("//", 7),
    Mod: ("%", 7),
}
PREFIX: dict[type[Expr], str] = {Neg: "-", Not: "~"}
CALLED: dict[type[Expr], str] = {Min: "min", Overlap: "overlap", Max: "max", Rem: "rem"}
_UNARY = 8
_COMPARE = 1

_SHORT = {"float": "f", "int": "i", "uint": "u", "complex": "c"}

Piece = str | tuple[Node, int]


def short(dtype: DType) -> str:
    """A dtype's short name: `f32`, `i64`, `u8`, `bf16`, `bool`; longer names stay unchanged."""
    if dtype is dtypes.bfloat16:
        return "bf16"
    if re.fullmatch(r"[a-z]+\d+", dtype.name):
        return f"{_SHORT[dtype.kind]}{dtype.bits}"
    return dtype.name


def literal(e: Const) -> str:
    """Text of a constant, with its dtype unless that is int64, float32 or bool."""
    if e.type.is_bool:
        return "true" if e.value else "false"
    text = repr(e.value)
    # A dtype that is not one of the table is a sort of a rule's pattern.
    plain = e.type in (INDEX, dtypes.float32) or e.type not in dtypes.ALL
    return text if plain else f"{text}_{short(e.type)}"


def show(e: Node, limit: int = 2000) -> str:
    """The expression as text; after `limit` nodes the rest is elided as `…`.

    Works on terms of any depth, and on DAGs whose tree would be exponentially large.
    """
    out: list[str] = []
    stack: list[Piece] = [(e, 0)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            out.append(item)
        elif limit <= 0 and item[0].children():
            out.append("…")
        else:
            limit -= 1
            stack.extend(reversed(_pieces(*item)))
    return "".join(out)


def _pieces(e: Node, tightness: int) -> list[Piece]:
    """One node as words and children; each child comes with the precedence its place needs."""
    if isinstance(e, Add) and isinstance(e.rhs, Const) and e.dtype.is_int:
        # `x + (-1)` is written `x - 1`, which equals it.
        if isinstance(e.rhs.value, int) and e.rhs.value < 0:
            positive = Const(-e.rhs.value, e.rhs.type)
            return _pieces(Sub(e.lhs, positive), tightness)
    if isinstance(e, Binary) and type(e) in INFIX:
        word, own = INFIX[type(e)]
        left = own + 1 if own == _COMPARE else own
        body: list[Piece] = [
            (e.lhs, left),
            f" {word} ",
            (e.rhs, own + 1),
        ]
        return ["(", *body, ")"] if own < tightness else body
    match e:
        case Const():
            return [literal(e)]
        case Var():
            return [e.name]
        case Neg() | Not():
            # -(3) is a negation; -3 is a constant.
            bare = isinstance(e.value, Const)
            inner: list[Piece] = [(e.value, _UNARY)]
            if bare:
                inner = ["(", (e.value, 0), ")"]
            return [PREFIX[type(e)], *inner]
        case Binary():
            return [f"{CALLED[type(e)]}(", *_list((e.lhs, e.rhs)), ")"]
        case Call():
            return [f"{e.function}(", *_list(e.args), ")"]
        case Cast():
            return [f"{short(e.type)}(", (e.value, 0), ")"]
        case Bitcast():
            return [f"bitcast({short(e.type)}, ", (e.value, 0), ")"]
        case Select():
            return ["select(", *_list((e.condition, e.then, e.otherwise)), ")"]
        case Load():
            return [f"{e.buffer.name}[", *_list(e.index), "]"]
    # A node of another family (a pattern's hole, a target's own): its fields in order.
    return [f"{type(e).__name__}(", *_list(e.children()), ")"]


def _list(items: tuple[Node, ...]) -> list[Piece]:
    out: list[Piece] = []
    for n, item in enumerate(items):
        out += [", "] * bool(n) + [(item, 0)]
    return out
