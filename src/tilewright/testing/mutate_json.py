"""Damage to JSON-like data that knows its structure: a part is retyped, removed, doubled, moved."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, Final

Data = Any
Path = tuple[Any, ...]

# `written` replaces it by text that nests deeper than any recursive reader can go.
_DEEP: Final = "@deep@"
# What programs that read data tend to forget.
ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 7, 64, 1 << 31, (1 << 31) - 1, 1 << 32, -(1 << 31), 1 << 62,
    1 << 63, 1 << 64, -(1 << 63), 10**30, 0.0, -0.0, 0.5, 1e308, -1e308, float("nan"),
    float("inf"), float("-inf"), "", "x", "\0", "..", "/etc/passwd", "é" * 50, "a" * 5000,
    "float32", "object", "string", "arena", "\ud800", [], [[]], [None], {}, {"": {}}, {"$float": 1},
    {"$float": "nan"}, {"$bytes": "AAAA"}, {"$array": ["float32", [1], "AAAAAA=="]},
    _DEEP, {"$array": ["string", [2, -1], ["a"]]}, {"$array": ["float32", [1 << 40, 1 << 40], ""]},
)  # fmt: skip


def mutated(
    rng: Random,
    data: Data,
    most: int = 3,
) -> tuple[Data, str]:
    """A damaged copy, and the damage."""
    made = copy.deepcopy(data)
    done = []
    for _ in range(rng.randint(1, most)):
        places = list(_places(made))
        if not places:
            break
        change, name = rng.choice(_CHANGES)
        path = _weighted(rng, places)
        change(rng, made, path, places)
        done.append(f"{name} {'.'.join(map(str, path))}")
    return made, "; ".join(done)


def written(text: str) -> bytes:
    """The text of damaged data, as bytes."""
    nested = "[" * 20_000 + "]" * 20_000
    whole = text.replace(f'"{_DEEP}"', nested)
    return whole.encode("utf-8", "replace")


def _weighted(rng: Random, places: Sequence[Path]) -> Path:
    """A place; all depths are equally likely, although there are more places deep down."""
    depth = rng.choice(sorted({len(path) for path in places}))
    return rng.choice([path for path in places if len(path) == depth])


def _places(data: Data) -> list[Path]:
    """The paths of all parts."""
    found: list[Path] = []
    left: list[tuple[Path, Any]] = [((), data)]
    while left:
        path, value = left.pop()
        if path:
            found.append(path)
        parts: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            parts = value.items()
        elif isinstance(value, list):
            parts = enumerate(value)
        left.extend(((*path, key), part) for key, part in parts)
    return sorted(found, key=repr)


def _at(data: Data, path: Path) -> Any:
    for key in path:
        data = data[key]
    return data


def _put(
    data: Data,
    path: Path,
    value: Any,
) -> None:
    holder = _at(data, path[:-1])
    holder[path[-1]] = value


def _retype(
    rng: Random,
    data: Data,
    path: Path,
    places: Sequence[Path],
) -> None:
    _put(data, path, copy.deepcopy(rng.choice(ODD)))


def _remove(
    rng: Random,
    data: Data,
    path: Path,
    places: Sequence[Path],
) -> None:
    del _at(data, path[:-1])[path[-1]]


def _double(
    rng: Random,
    data: Data,
    path: Path,
    places: Sequence[Path],
) -> None:
    holder = _at(data, path[:-1])
    value = copy.deepcopy(_at(data, path))
    if isinstance(holder, list):
        holder.insert(rng.randint(0, len(holder)), value)
    else:
        between = rng.choice(("", "s", "_", " "))
        holder[f"{path[-1]}{between}x"] = value


def _move(
    rng: Random,
    data: Data,
    path: Path,
    places: Sequence[Path],
) -> None:
    other = _at(data, rng.choice(places))
    _put(data, path, copy.deepcopy(other))


def _nudge(
    rng: Random,
    data: Data,
    path: Path,
    places: Sequence[Path],
) -> None:
    """A number a little or much off, a string with a character changed; all else is retyped."""
    value = _at(data, path)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        _retype(rng, data, path, places)
    elif isinstance(value, str):
        at = rng.randint(0, len(value))
        character = rng.choice(("", "x", "\0", "/", "é", "%"))
        _put(data, path, value[:at] + character + value[at + 1 :])
    else:
        large = value * 1e30
        if isinstance(value, int):
            large = value << 40
        numbers = (value + 1, value - 1, -value, value * 1000, large)
        _put(data, path, rng.choice(numbers))


def _nest(
    rng: Random,
    data: Data,
    path: Path,
    places: Sequence[Path],
) -> None:
    value = _at(data, path)
    for _ in range(rng.choice((1, 3, 100))):
        if rng.random() < 0.5:
            value = [value]
        else:
            value = {"x": value}
    _put(data, path, value)


_CHANGES: Final[tuple[tuple[Callable[..., None], str], ...]] = tuple(
    (change, change.__name__.strip("_"))
    for change in (_retype, _retype, _remove, _double, _move, _nudge, _nudge, _nest)
)
