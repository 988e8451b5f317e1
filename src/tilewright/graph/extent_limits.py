"""Which extent of a dimension does not fit a model, and where the ones that fit end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from tilewright.base.errors import ExecutionError, ModelError
from tilewright.graph.nodes import Graph, Value

Extents = Mapping[str, int]

_GREATEST: Final = 1 << 14  # tried for a dimension that is too small
_SECONDS: Final = 2.0  # for all trials together; a large model takes a second for one


class _OutOfTime(Exception):
    """No more extents are tried: what is not known yet is not said."""


@contextmanager
def blamed_on(extents: Extents, fits: Callable[[Extents], bool]) -> Iterator[None]:
    """A block that types a graph at these extents: an error of it names the one that is at fault.

    fits: whether the graph can be typed at other extents. The hint of a ModelError or
    ExecutionError without one states the dimension and two neighboring extents, of which only one
    fits. If no dimension alone is at fault, or the time of the trials ends before these two are
    known, the hint lists the extents.
    """
    try:
        yield
    except (ModelError, ExecutionError) as error:
        if extents and error.hint is None:
            error.hint = _said(extents, fits)
        raise


def extents_of(graph: Graph, sized: Sequence[Value]) -> Extents:
    """The extents that the symbolic dimensions of the inputs have in `sized`, by name."""
    found: dict[str, int] = {}
    for value, given in zip(graph.inputs, sized, strict=True):
        for name, extent in zip(value.shape or (), given.shape or ()):
            if isinstance(name, str) and isinstance(extent, int):
                found[name] = extent
    return found


def _said(extents: Extents, fits: Callable[[Extents], bool]) -> str:
    end = time.monotonic() + _SECONDS
    for name, extent in extents.items():

        def good(n: int, name: str = name) -> bool:
            if time.monotonic() >= end:
                raise _OutOfTime
            return fits({**extents, name: n})

        try:
            last = _nearest(extent, good)
        except _OutOfTime:
            break
        if last is None:
            continue
        if last < extent:
            first = last + 1
        else:
            first = last - 1
        return f"{name} is {extent}: {last} would fit, {first} would not"
    listed = [f"{name} is {extent}" for name, extent in extents.items()]
    return f"The extents: {', '.join(listed)}"


def _nearest(extent: int, good: Callable[[int], bool]) -> int | None:
    """An extent that is good, and the next one towards `extent` is not; None if none is found."""
    inside = next(filter(good, _others(extent)), None)
    if inside is None:
        return None
    outside = extent
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        if good(middle):
            inside = middle
        else:
            outside = middle
    return inside


def _others(extent: int) -> Iterator[int]:
    """Half the extent and so on down to 1, then twice the extent and so on."""
    smaller = extent // 2
    while smaller:
        yield smaller
        smaller //= 2
    larger = max(1, extent * 2)
    while larger <= _GREATEST:
        yield larger
        larger *= 2
