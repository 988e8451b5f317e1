"""Checking the arguments of a primitive against their declared types."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.loops.scopes import check_scope, check_written

_PLAIN: dict[str, type] = {
    "str": str,
    "Scope": str,
    "AnyScope": str,
    "int": int,
    "None": type(None),
}


def check_arguments(
    rewrite: Callable[..., Any],
    where: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    """Raise ScheduleError for a wrong number of arguments, or one of another type than declared.

    Checked are the parameters declared as names, numbers, None or memory scopes; the rest is the
    primitive's.
    """
    verb = rewrite.__name__
    try:
        given = _signature(rewrite).bind(None, *args, **options).arguments
    except TypeError as error:
        raise ScheduleError(
            f"{verb}: {error}",
            where=where,
            hint=f"its arguments are {_signature(rewrite)}",
        ) from None
    for name, (kinds, several) in _declared(rewrite).items():
        for value in (
            given.get(name, ()) if several else [given[name]] if name in given else []
        ):
            if not isinstance(value, kinds) or isinstance(value, bool):
                expected = " or ".join(_WORDS[k] for k in kinds)
                raise ScheduleError(
                    f"{verb}: {name} is {value!r}, not {expected}",
                    where=where,
                    hint="loops and buffers are given by name or handle, factors as integers",
                )
    for kind, name in _scopes(rewrite):
        if given.get(name) is not None:
            check_scope(given[name], where)
            if kind == "Scope":
                check_written(given[name], where)


_WORDS = {str: "a name", int: "an integer", type(None): "None"}


@cache
def _signature(rewrite: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(rewrite)


@cache
def _declared(rewrite: Callable[..., Any]) -> dict[str, tuple[tuple[type, ...], bool]]:
    """The parameters of plain types: these, and whether there are any number of arguments."""
    found = {}
    for p in _signature(rewrite).parameters.values():
        words = str(p.annotation).split(" | ")
        if all(w in _PLAIN for w in words):
            types = tuple(_PLAIN[w] for w in words)
            variadic = p.kind is p.VAR_POSITIONAL
            found[p.name] = (types, variadic)
    return found


@cache
def _scopes(rewrite: Callable[..., Any]) -> tuple[tuple[str, str], ...]:
    """The parameters that are memory scopes: the kind of each, and its name."""
    return tuple(
        (kind, p.name)
        for p in _signature(rewrite).parameters.values()
        for kind in str(p.annotation).split(" | ")
        if kind in ("Scope", "AnyScope")
    )
