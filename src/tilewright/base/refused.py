"""Names that a notation does not have: each says what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from tilewright.base.errors import UnsupportedError


class UnsupportedName:
    """A name that is not here: calling it, or asking it for a part, raises UnsupportedError."""

    def __init__(self, source: str, name: str, hint: str) -> None:
        self.__name__ = name
        self.__doc__ = f"Raises UnsupportedError. Instead: {hint}."
        self._source = source
        self._hint = hint

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        raise UnsupportedError(
            f"{self._source}'s {self.__name__} is not supported",
            where=self.__name__,
            hint=self._hint,
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self()


def refusing(source: str, table: Mapping[str, str]) -> Callable[[Any, str], Any]:
    """A `__getattr__` of a class: names of the table, with their hints, are refused."""

    def get(self: Any, name: str) -> Any:
        if name in table:
            return UnsupportedName(source, name, table[name])
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    return get
