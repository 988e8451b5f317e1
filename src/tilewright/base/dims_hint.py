"""Hints that end with values for dimensions, in the forms of `dims` and of the command line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import EllipsisType
from typing import Final

Values = int | tuple[int, ...] | list[int] | EllipsisType
FEWER: Final = "name fewer values, at most 16 combinations"


class DimsHint(str):
    """A hint, such as `give a step: dims={'h': (8, 60, 4)}`; without values until `of` adds them.

    flags: the same for the command line, `give a step: --dim h=8..60..4`.
    """

    flags: str = ""

    def of(self, dims: Mapping[str, Values]) -> DimsHint:
        """With values by dimension: a number, the ends of a range and its step, or a list."""
        shown = ", ".join(f"{n!r}: {_python(v)}" for n, v in dims.items())
        found = DimsHint(f"{self}: dims={{{shown}}}")
        found.flags = (
            f"{self}: {' '.join(f'--dim {n}={flag_value(v)}' for n, v in dims.items())}"
        )
        return found


def flag_value(values: Values) -> str:
    """As --dim takes them: `8`, `1..64`, `16..64..16`, or `1,8,64`."""
    if isinstance(values, tuple | list):
        return (".." if isinstance(values, tuple) else ",").join(map(str, values))
    return _python(values)


def _python(values: Values) -> str:
    return "..." if values is ... else str(values)


def some_of(allowed: Mapping[str, Collection[int]]) -> dict[str, Values]:
    """A few values of each dimension: at most 16 combinations, of the first four dimensions."""
    found: dict[str, Values] = {}
    for n, (name, extents) in enumerate(allowed.items()):
        most = max(extents)
        middle = sorted(extents)[len(extents) // 2]
        few = {min(extents), most} | ({middle} if len(allowed) < 3 else set())
        found[name] = sorted(few) if n < 4 else most
    return found
