"""Which extent of a dimension does not fit a model, and where the ones that fit end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from tilewright.base.errors import ExecutionError, ModelError
from tilewright.graph.nodes import Graph, Value

Extents = Mapping[str, int]

_GREATEST: Final = 1 << 14  # tried for a dimension that is too small
_SECONDS: Final = 2.0  # for all trials together; a large model takes a second for one


@contextmanager
def blamed_on(extents: Extents, fits: Callable[[Extents], bool]) -> Iterator[None]:
    """A block that types a graph at these extents: an error of it names the one that is at fault.

    fits: whether the graph can be typed at given extents. The hint of a ModelError or
    ExecutionError without one states the dimension and two extents, of which only one fits:
    neighboring ones, if trials do not take too long. If no dimension alone is at fault, the hint
    lists the extents.
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

    def good(changed: Extents) -> bool | None:
        return fits({**extents, **changed}) if time.monotonic() < end else None

    # Else something is at fault that trials do not have, such as a value of an input.
    if good({}) is False:
        for name, extent in extents.items():
            found = _nearest(extent, partial(_alone, good, name))
            if found is not None:
                inside, outside = found
                return f"{name} is {extent}: {inside} would fit, {outside} would not"
    listed = [f"{name} is {extent}" for name, extent in extents.items()]
    return f"The extents: {', '.join(listed)}"


def _alone(good: Callable[[Extents], bool | None], name: str, n: int) -> bool | None:
    """Whether an extent is good if no other one changes."""
    return good({name: n})


def _nearest(extent: int, good: Callable[[int], bool | None]) -> tuple[int, int] | None:
    """An extent that is good, and the next one towards `extent`, which is not; None if none is
    found.

    good: None once there is no time for trials: then the other one may be farther.
    """
    inside = next(filter(good, _others(extent)), None)
    if inside is None:
        return None
    outside = extent
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        found = good(middle)
        if found is None:
            break
        if found:
            inside = middle
        else:
            outside = middle
    return inside, outside


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
