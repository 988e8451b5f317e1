"""Schemas of JSON data, written as data, and the function that checks them.

    shape = Text | Count | Integer | Number             a string; integers from 0, of any sign; ...
          | Object | Anything                           an object of whatever members; whatever
          | One("mode", "a", "b")                       one of these strings; "mode" is for messages
          | Maybe(shape)                                or null
          | [shape]                                     a list of such
          | (shape, shape, ...)                         a list of exactly these
          | {"name": shape, ...}                        an object with exactly these members
          | Named(shape)                                an object with members of any name
          | Tagged("kind", "step", {"a": {...}, ...})   an object whose `kind` says which

What passes has no other types anywhere, so whoever decodes it checks values and no types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.text import plural

Shape = Any

_MOST: Final = 1 << 63


@dataclass(frozen=True)
class _Plain:
    """A shape without parts; `expected` completes "expected ..."."""

    expected: str


Text: Final = _Plain("str")
Count: Final = _Plain("a count")  # below 2^63
Integer: Final = _Plain("an integer")
Number: Final = _Plain("a number")
Object: Final = _Plain("dict")
Anything: Final = _Plain("anything")


@dataclass(frozen=True)
class Nullable:
    """The shape, or null."""

    shape: Shape


@dataclass(frozen=True)
class ObjectSchema:
    """An object of such members."""

    shape: Shape


class OneOf:
    """One of some strings; `noun` is what messages call it."""

    def __init__(self, noun: str, *choices: str) -> None:
        self.noun = noun
        self.choices = frozenset(choices)


@dataclass(frozen=True)
class TaggedUnion:
    """An object whose member `tag` is one of the cases, and which has the members of that case."""

    tag: str
    noun: str
    cases: Mapping[str, Mapping[str, Shape]]


def check(value: Any, shape: Shape, where: str = "") -> None:
    """Raise ValueError, saying where, unless the value has the shape."""
    match shape:
        case _Plain():
            _check_plain(value, shape, where)
        case OneOf():
            if not isinstance(value, str) or value not in shape.choices:
                raise ValueError(f"unknown {shape.noun} {_short(value)}{_at(where)}")
        case Nullable():
            if value is not None:
                check(value, shape.shape, where)
        case ObjectSchema():
            _require(value, dict, where)
            for name, part in value.items():
                check(part, shape.shape, f"{where}.{name}")
        case TaggedUnion():
            _require(value, dict, where)
            check(value.get(shape.tag), OneOf(shape.noun, *shape.cases), where)
            check(value, {shape.tag: Text, **shape.cases[value[shape.tag]]}, where)
        case dict():
            _check_members(value, shape, where)
        case list():
            _require(value, list, where)
            for number, part in enumerate(value):
                check(part, shape[0], f"{where}[{number}]")
        case tuple():
            _require(value, list, where)
            if len(value) != len(shape):
                raise ValueError(
                    f"expected {plural(len(shape), 'item')}, got {len(value)}{_at(where)}"
                )
            for number, (part, inner) in enumerate(zip(value, shape, strict=True)):
                check(part, inner, f"{where}[{number}]")


def _check_plain(value: Any, shape: _Plain, where: str) -> None:
    if shape is Text:
        _require(value, str, where)
    elif shape is Object:
        _require(value, dict, where)
    elif shape is not Anything and not _is_number(value, shape):
        raise ValueError(f"expected {shape.expected}, got {_short(value)}{_at(where)}")


def _is_number(value: Any, shape: _Plain) -> bool:
    if shape is Number and type(value) is float:
        return math.isfinite(value)
    return type(value) is int and (0 if shape is Count else -_MOST) <= value < _MOST


def _check_members(value: Any, shape: Mapping[str, Shape], where: str) -> None:
    _require(value, dict, where)
    if set(value) != set(shape):
        odd = ", ".join(sorted(map(_short, set(value) ^ set(shape))))
        raise ValueError(f"extra or missing members: {odd}{_at(where)}")
    for name, inner in shape.items():
        check(value[name], inner, f"{where}.{name}" if where else name)


def _require(value: Any, kind: type, where: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(
            f"expected {kind.__name__}, got {type(value).__name__}{_at(where)}"
        )


def _short(value: Any) -> str:
    """A value of any size, for a message."""
    try:
        text = repr(value)
    except (
        ValueError,
        RecursionError,
    ):  # an integer of thousands of digits, a deep list
        return type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}..."


def _at(where: str) -> str:
    return f" in {where[:80]}" if where else ""
