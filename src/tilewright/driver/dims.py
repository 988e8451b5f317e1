"""The values of symbolic dimensions in `dims`: one value, a range, or a list."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

from tilewright.base.dims_hint import DimsHint
from tilewright.base.errors import InputError
from tilewright.base.numbers import ceil_div, whole
from tilewright.base.text import listing
from tilewright.graph.nodes import Graph
from tilewright.runtime.conditions import check_conditions
from tilewright.runtime.dispatch import UNLIMITED, Allowed, show

Dims = Mapping[str, int | tuple[int, int] | tuple[int, int, int] | Sequence[int]]

_FILTERED: Final = 1 << 14  # most extents that are looked at one by one
_HINT: Final = DimsHint(
    "give N, (least, most), (least, most, step), or a list of values"
)


def parted(
    dims: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Collection[int]]]:
    """The dimensions with one value, and the extents that the others may have.

    A tuple of two is a range that includes both ends; a third number is its step. A list has the
    values themselves, at least one. Raises InputError for anything else, and for an empty range.
    """
    fixed: dict[str, Any] = {}
    allowed: dict[str, Collection[int]] = {}
    for name, given in dims.items():
        if not isinstance(given, tuple | list):
            fixed[name] = given
        elif len(extents := _extents(name, given)) > 1:
            allowed[name] = extents
        else:
            (fixed[name],) = extents
    return fixed, allowed


def greatest_of(dims: Mapping[str, Any]) -> dict[str, int]:
    """The greatest extent that each dimension may have. Raises as `parted`."""
    fixed, allowed = parted(dims)
    return fixed | {name: max(extents) for name, extents in allowed.items()}


def said_by(graph: Graph) -> dict[str, Collection[int]]:
    """The extents that the model itself allows for dimensions of its inputs, if it limits them."""
    known = symbols(graph)
    return {
        name: _multiples(r.least, r.most, r.step)
        for name, r in graph.ranges.items()
        if name in known and r.most is not None
    }


def made_for(graph: Graph) -> dict[str, range]:
    """The extents that calls may have, of dimensions that the model limits.

    The conditions on extents that an importer resolved may have other results at other extents.
    """
    known = symbols(graph)
    return {
        name: _multiples(r.accepted, UNLIMITED if r.most is None else r.most, r.step)
        for name, r in graph.ranges.items()
        if name in known and (r.accepted or r.most is not None or r.step > 1)
    }


def _multiples(least: int, most: int, step: int) -> range:
    """The multiples of `step` between two numbers, both included."""
    return range(ceil_div(least, step) * step, most + 1, step)


def check_made_for(graph: Graph, dims: Dims) -> None:
    """Raise InputError for extents in `dims` for which the model is not made (TW-SIZE)."""
    limits = made_for(graph)
    fixed, allowed = parted(dims)
    given = {n: (extent,) for n, extent in fixed.items()} | allowed
    for name in given.keys() & limits.keys():
        for extent in (min(given[name]), max(given[name])):
            if extent not in limits[name]:
                raise InputError(
                    f"{name} is {extent}, and the model is made for {show(limits[name])}",
                    code="TW-SIZE",
                    hint="export it with other bounds of Dim(...)",
                )


def possible(graph: Graph, allowed: Allowed) -> dict[str, Collection[int]]:
    """The extents without those at which a condition on one of them alone does not hold.

    Very many are left as they are: calls are checked. Raises InputError if none is left (TW-SIZE).
    """
    found = dict(allowed)
    for name, extents in allowed.items():
        alone = [c for c in graph.conditions if c.names == (name,)]
        if not alone or len(extents) > _FILTERED:
            continue
        kept = [n for n in extents if all(c.holds({name: n}) for c in alone)]
        if not kept:
            check_conditions(alone, {name: min(extents)})
        step = math.gcd(*(n - kept[0] for n in kept)) or 1
        regular = range(kept[0], kept[-1] + 1, step)
        whole = isinstance(extents, range) and len(regular) == len(kept)
        found[name] = regular if whole else tuple(kept)
    return found


def _extents(name: str, given: Sequence[Any]) -> Collection[int]:
    found = [whole(n, 0) for n in given]
    values = [n for n in found if n is not None]
    ends = isinstance(given, tuple)
    wrong = len(values) not in (2, 3) or 0 in values[2:] if ends else not values
    if len(values) < len(found) or wrong:
        raise InputError(
            f"dimension {name!r} is {given!r}", hint=_HINT.of({name: (1, 64)})
        )
    if not ends:
        return tuple(sorted(set(values)))
    least, most, *step = values
    if least > most:
        raise InputError(
            f"dimension {name!r} has the empty range from {least} to {most}",
            hint=_HINT.of({name: (1, 64)}),
        )
    return range(least, most + 1, *step)


def steps_of(allowed: Allowed, lists: bool) -> dict[str, range]:
    """The extents that have a step other than 1; lists: also those of listed values."""
    found = {}
    for name, extents in allowed.items():
        if isinstance(extents, range):
            known = extents
        else:
            least, most = min(extents), max(extents)
            step = math.gcd(*(n - least for n in extents)) if lists else 1
            known = range(least, most + 1, step or 1)
        if known.step != 1:
            found[name] = known
    return found


def numbered(
    allowed: Allowed, steps: Mapping[str, range]
) -> dict[str, Collection[int]]:
    """The extents, and the numbers of those with a step: 0, 1, 2, ..."""
    found = dict(allowed)
    for name, known in steps.items():
        extents = allowed[name]
        found[name] = (
            range(len(extents))
            if isinstance(extents, range)
            else tuple((n - known.start) // known.step for n in extents)
        )
    return found


def of_numbers(steps: Mapping[str, range], sizes: Mapping[str, int]) -> dict[str, int]:
    """The extents of sizes as in `numbered`, also beyond the end of a range."""
    return {
        n: steps[n].start + steps[n].step * size if n in steps else size
        for n, size in sizes.items()
    }


def check_named(graph: Graph, allowed: Allowed) -> None:
    """Raise InputError for a dimension that no input has."""
    known = symbols(graph)
    for name in allowed:
        if name not in known:
            have = listing([repr(s) for s in known]) if known else "none"
            raise InputError(
                f"no dimension is called {name!r}", hint=f"the inputs have: {have}"
            )


def symbols(graph: Graph) -> list[str]:
    """The names of the symbolic dimensions of the inputs, sorted."""
    return sorted(
        {d for v in graph.inputs for d in v.shape or () if isinstance(d, str)}
    )


def count(allowed: Allowed) -> int:
    """The number of combinations of extents."""
    return math.prod(map(len, allowed.values()))


def combinations(allowed: Allowed) -> Iterator[dict[str, int]]:
    """Every combination of extents, by name."""
    for values in product(*allowed.values()):
        yield dict(zip(allowed, values, strict=True))
