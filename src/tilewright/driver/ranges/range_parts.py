"""Ranges in parts: the sizes that share code, and those that are left.

Which sizes agree is known of some. Where a model's plans change their form at a size (a window
that is larger than the image below it, for example), the sizes on either side have shared code of
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Final

from tilewright.driver.ranges.sample_points import pattern
from tilewright.driver.ranges.size_terms import Extents
from tilewright.runtime.dispatch import Allowed
from tilewright.runtime.ranged_model import Cover, Key

FEW: Final = 3  # most extents at an end that are parts of their own


def box_of(
    allowed: Allowed, compared: Mapping[Key, bool]
) -> dict[str, Collection[int]] | None:
    """The interval of each dimension around the pattern in which all compared sizes agree.

    The other dimensions are as in the pattern. None if it does not agree itself.
    """
    start = tuple(pattern(allowed).values())
    found: dict[str, Collection[int]] = {}
    for axis, (name, extents) in enumerate(allowed.items()):
        line = {
            key[axis]: same
            for key, same in compared.items()
            if key[:axis] + key[axis + 1 :] == start[:axis] + start[axis + 1 :]
        }
        wrong = [n for n, same in line.items() if not same]
        below = max((n for n in wrong if n < start[axis]), default=-1)
        above = min((n for n in wrong if n > start[axis]), default=max(extents) + 1)
        right = [n for n, same in line.items() if same and below < n < above]
        if not right:
            return None
        found[name] = _between(extents, min(right), max(right))
    return found


def cover_of(
    inside: Allowed, compared: Mapping[Key, bool]
) -> tuple[Cover, frozenset[Key]]:
    """The cover of the box, and the combinations in it that do not agree."""
    covers = Cover(tuple(inside.values()), frozenset())
    odd = frozenset(k for k, same in compared.items() if k in covers and not same)
    return covers, odd


def without_odd(
    inside: Allowed,
    odd: Collection[Key],
    start: Key,
) -> dict[str, Collection[int]]:
    """Cut the box at its ends to exclude odd combinations, if possible, but not the pattern."""
    left = {name: list(extents) for name, extents in inside.items()}
    for key in sorted(odd):
        if not all(n in e for n, e in zip(key, left.values(), strict=True)):
            continue
        for value, kept, extents in zip(key, start, left.values(), strict=True):
            if value != kept and value in (extents[0], extents[-1]):
                extents.remove(value)
                break
    return {
        name: range(e[0], e[-1] + 1) if isinstance(inside[name], range) else tuple(e)
        for name, e in left.items()
    }


def outside(allowed: Allowed, inside: Allowed) -> Iterator[Allowed]:
    """The allowed sizes outside the box, as disjoint parts.

    Of the extents of a dimension below the box, and of those above, each is a part if there are at
    most `FEW`: a plan may have a form of its own there, as at an extent of 1. More are one part.
    """
    before: dict[str, Collection[int]] = {}
    names = list(allowed)
    for n, name in enumerate(names):
        after = {later: allowed[later] for later in names[n + 1 :]}
        values = sorted(allowed[name])
        least = min(inside[name])
        left = [value for value in values if value not in inside[name]]
        below = [value for value in left if value < least]
        for ends in filter(None, (below, left[len(below) :])):
            whole = _between(allowed[name], ends[0], ends[-1])
            for part in [whole] if len(ends) > FEW else [(value,) for value in ends]:
                yield {**before, name: part, **after}
        before[name] = inside[name]


def of_one_form(
    allowed: Allowed, form_at: Callable[[Extents], Hashable]
) -> dict[str, Collection[int]] | None:
    """The interval of each dimension around the pattern, with the others as in the pattern, whose
    ends have the pattern's form, and so have half of it, a quarter, and so on; None if that is all.

    form_at: of a plan; asked about the pattern first.
    """
    start = pattern(allowed)
    wanted = form_at(start)
    found: dict[str, Collection[int]] = {}
    for name, extents in allowed.items():
        values = sorted(extents)
        middle = values.index(start[name])

        def same(
            n: int,
            name: str = name,
            values: Sequence[int] = values,
        ) -> bool:
            return form_at({**start, name: values[n]}) == wanted

        first, last = (_edge(same, middle, end) for end in (0, len(values) - 1))
        found[name] = _between(extents, values[first], values[last])
    smaller = any(len(found[name]) < len(e) for name, e in allowed.items())
    return found if smaller else None


def _edge(
    same: Callable[[int], bool],
    inner: int,
    end: int,
) -> int:
    """The last number of which that holds, between one of which it does and an end."""
    if inner == end or same(end):
        return end
    while abs(end - inner) > 1:
        middle = (inner + end) // 2
        inner, end = (middle, end) if same(middle) else (inner, middle)
    return inner


def _between(
    extents: Collection[int],
    least: int,
    most: int,
) -> Collection[int]:
    """The extents between two of them, both included, in the same order."""
    if isinstance(extents, range):
        first, last = sorted(map(extents.index, (least, most)))
        return extents[first : last + 1]
    return tuple(n for n in extents if least <= n <= most)
