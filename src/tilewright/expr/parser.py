"""Expressions from the text that `expr/printer.py` writes of them.

`parse(show(e), names)` prints as `e` did and means the same. `x - 1` on signed integers is read as
`x + (-1)`, which prints alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.nodes import (
    INDEX,
    Bitcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Neg,
    Select,
    Sub,
    const,
)
from tilewright.expr.printer import CALLED, INFIX, PREFIX, short
from tilewright.ir.scanner import Scanner

# The meaning of a word: a variable, another expression, or a buffer.
Names = Mapping[str, Expr | Buffer]

_INFIX: Final = {word: (kind, level) for kind, (word, level) in INFIX.items()}
_CALLED: Final = {word: kind for kind, word in CALLED.items()}
_PREFIX: Final = {word: kind for kind, word in PREFIX.items()}
# Dtypes by their short names.
TYPES: Final = {short(t): t for t in dtypes.ALL}
_NUMBER: Final = re.compile(r"(inf|nan|[\d.]+(?:e[+-]?\d+)?)(?:_(\w+))?")

# Words that expressions use themselves; no variable or buffer can be named so.
WORDS: Final = frozenset(
    {*FUNCTIONS, *_CALLED, *TYPES, "select", "bitcast", "true", "false", "inf", "nan"}
)


def parse(
    text: str,
    names: Names,
    where: str = "expression",
) -> Expr:
    """The expression of a text over `names`. Raises InputError (TW-SYNTAX) naming the column."""
    scanner = Scanner(text, where)
    found = expression(scanner, names)
    scanner.end()
    return found


def expression(s: Scanner, names: Names) -> Expr:
    """Parse the expression here; leaves the scanner after it."""
    return _infix(s, names, 0)


def place(
    s: Scanner,
    names: Names,
) -> tuple[Buffer, tuple[Expr, ...]]:
    """`buffer[i, j]`."""
    word = s.next.text
    buffer = names.get(s.take("word", "a buffer"))
    if not isinstance(buffer, Buffer):
        s.position -= 1
        raise s.wrong(f"a buffer that was declared, not {word!r},")
    return buffer, _index(s, names)


def separated(
    s: Scanner,
    read: Callable[[], object],
    close: str,
) -> None:
    """`read` as often as there are items before `close`, with commas between them."""
    while not s.accept(close):
        read()
        if not s.at(close):
            s.expect(",")


def _infix(
    s: Scanner,
    names: Names,
    tightness: int,
) -> Expr:
    left = _prefix(s, names)
    while s.next.kind == "mark" and s.next.text in _INFIX:
        kind, level = _INFIX[s.next.text]
        if level < tightness:
            break
        s.position += 1
        left = _binary(s, kind, left, _infix(s, names, level + 1))
    return left


def _binary(
    s: Scanner,
    kind: type[Expr],
    left: Expr,
    right: Expr,
) -> Expr:
    signed = left.dtype.is_int and left.dtype.is_signed
    if kind is Sub and signed and isinstance(right, Const) and right.value.real > 0:
        return left + const(-int(right.value.real), right.type)
    return _made(s, kind, left, right)


def _made(
    s: Scanner,
    kind: Callable[..., Expr],
    *parts: object,
) -> Expr:
    """A node; what has no meaning is an error of the text."""
    try:
        return kind(*parts)
    except TypeError as error:
        raise s.refusal(str(error)) from None


def _prefix(s: Scanner, names: Names) -> Expr:
    if s.next.kind == "mark" and s.next.text in _PREFIX:
        kind = _PREFIX[s.next.text]
        s.position += 1
        if kind is Neg and s.next.kind == "number":
            return _number(s, -1)
        return _made(s, kind, _prefix(s, names))
    if s.accept("("):
        inner = expression(s, names)
        s.expect(")")
        return inner
    if s.next.kind == "number":
        return _number(s, 1)
    return _word(s, names)


def _number(s: Scanner, sign: int) -> Const:
    found = _NUMBER.fullmatch(s.next.text)
    if found is None:
        raise s.wrong("a number")
    text = found[1]
    suffix = found[2]
    whole = text.isdigit()
    dtype = _dtype(s, suffix) if suffix else (INDEX if whole else dtypes.float32)
    s.position += 1
    if dtype.is_int or dtype.is_bool:
        return const(sign * int(text), dtype)
    return Const(sign * float(text), dtype)


def _dtype(s: Scanner, word: str) -> DType:
    if word not in TYPES:
        raise s.wrong("the short name of a dtype")
    return TYPES[word]


def _word(s: Scanner, names: Names) -> Expr:
    word = s.next.text
    found = names.get(word)
    if isinstance(found, Buffer):
        buffer, index = place(s, names)
        return _made(s, Load, buffer, index)
    if isinstance(found, Expr):
        s.position += 1
        return found
    if word in ("true", "false"):
        s.position += 1
        return Const(word == "true", dtypes.bool_)
    if s.next.kind != "word" or word not in WORDS:
        raise s.wrong("an expression")
    s.position += 1
    s.expect("(")
    return _called(s, names, word)


def _called(s: Scanner, names: Names, word: str) -> Expr:
    """What follows `word(`."""
    if word == "bitcast":
        dtype = _dtype(s, s.take("word"))
        s.expect(",")
        (value,) = _arguments(s, names, 1)
        return _made(s, Bitcast, value, dtype)
    if word == "select":
        return _made(s, Select, *_arguments(s, names, 3))
    if word in _CALLED:
        return _made(s, _CALLED[word], *_arguments(s, names, 2))
    if word in FUNCTIONS:
        arguments = _arguments(s, names, FUNCTIONS[word].arity)
        return _made(s, Call, word, arguments)
    (value,) = _arguments(s, names, 1)
    return _made(s, Cast, value, TYPES[word])


def _arguments(
    s: Scanner,
    names: Names,
    count: int,
) -> tuple[Expr, ...]:
    found: list[Expr] = []
    separated(s, lambda: found.append(expression(s, names)), ")")
    if len(found) != count:
        raise s.refusal(f"expected {count} argument(s), found {len(found)}")
    return tuple(found)


def _index(s: Scanner, names: Names) -> tuple[Expr, ...]:
    s.expect("[")
    found: list[Expr] = []
    separated(s, lambda: found.append(expression(s, names)), "]")
    return tuple(found)
