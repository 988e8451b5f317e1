"""The programs that were compiled for the last values of some sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final

from tilewright.lang.function.program import Program

if TYPE_CHECKING:
    from tilewright.lang.function import Function

KEPT: Final = 64  # programs kept, least recently used out


class ProgramCache:
    """Programs by key, created on demand."""

    def __init__(self) -> None:
        self._made: Final[OrderedDict[Hashable, Program]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Program]) -> Program:
        """The program of a key."""
        if key not in self._made:
            self._made[key] = make()
            if len(self._made) > KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return self._made[key]

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions of all kept programs, the most recently used last."""
        return tuple(f for made in self._made.values() for f in made.functions)
