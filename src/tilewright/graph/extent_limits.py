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


@contextmanager
def blamed_on(extents: Extents, fits: Callable[[Extents], bool]) -> Iterator[None]:
    """A block that types a graph at these extents: an error of it names the one that is at fault.

    fits: whether the graph can be typed at other extents. The hint of a ModelError or
    ExecutionError without one states the dimension and two neighboring extents, of which only one
    fits. If no dimension alone is at fault, the hint lists the extents.
    """
    try:
        yield
    except (ModelError, ExecutionError) as error:
        if extents and error.hint is None:
            error.hint = _said(extents, fits)
        raise


def extents_of(graph: Graph, sized: Sequence[Value]) -> Extents:
    """The extents that the symbolic dimensions of the inputs have in `sized`, by name."""
    pairs = zip(graph.inputs, sized, strict=True)
    axes = (axis for v, s in pairs for axis in zip(v.shape or (), s.shape or ()))
    return {d: n for d, n in axes if isinstance(d, str) and isinstance(n, int)}


def _said(extents: Extents, fits: Callable[[Extents], bool]) -> str:
    end = time.monotonic() + _SECONDS
    for name, extent in extents.items():

        def good(n: int, name: str = name) -> bool:
            return time.monotonic() < end and fits({**extents, name: n})

        found = _nearest(extent, good)
        if found is not None:
            last, first = found, found + (1 if found < extent else -1)
            return f"{name} is {extent}: {last} would fit, {first} would not"
    return "The extents: " + ", ".join(f"{n} is {e}" for n, e in extents.items())


def _nearest(extent: int, good: Callable[[int], bool]) -> int | None:
    """An extent that is good, and the next one towards `extent` is not; None if none is found."""
    below = (extent >> n for n in range(1, extent.bit_length()))
    above = (extent << n for n in range(1, 15) if extent << n <= _GREATEST)
    tried = (*below, *(above if extent else ()))
    inside: int | None = next((n for n in tried if good(n)), None)
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
