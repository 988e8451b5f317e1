"""Which sizes of ranges are planned: those that a plan is made from, and those it is compared at.

A few combinations of extents are all compared, and so are up to 256 if some of them do not tell.
Of more, only those are at which a plan may have another form: ends, small extents, powers of two
and their neighbors, each remainder of a divided dimension, and random ones. Those of all dimensions
are compared together, where all plans agree: each point then tells as much of each dimension as one
that differs from the pattern only there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from tilewright.base.errors import UnsupportedError
from tilewright.driver.dims import combinations, count
from tilewright.driver.ranges.size_terms import Extents, SizeTerm, Terms, points_of
from tilewright.runtime.dispatch import Allowed

FEW: Final = 64  # most combinations that are all compared at once
COMPARED: Final = 256  # most that are all compared, if some of them do not tell
SAMPLED: Final = 48  # about how many to compare if there are more,
PART: Final = 8  # and at least one of so many of a short dimension
CHECKED: Final = 4  # neighbors of the pattern that check divided dimensions
DENSE: Final = 12  # more of them, if conditions depend on divided dimensions
ENDS: Final = 3  # extents at either end of a dimension that are compared first


def tries(allowed: Allowed) -> tuple[bool, ...]:
    """Whether to compare some of the combinations only; the next try is for a failed one."""
    number = count(allowed)
    if number <= FEW:
        return (False,)
    return (True,) if number > COMPARED else (True, False)


def compared_in_turn(
    allowed: Allowed,
    points: Sequence[Extents],
    terms: Terms,
    compared: Mapping[tuple[int, ...], bool],
    some: bool = True,
) -> Iterator[list[Extents]]:
    """Yield combinations to compare, until enough are known.

    some: not all of them. compared: which agree, by their values; it has those of one step before
    the next is asked for. Of some combinations of several dimensions: ends and corners; if the
    others agree, the extents of all dimensions together, in random pairs; otherwise, or if one of
    these does not agree, all of `compared_points`, which show along which dimension.
    """
    if not some:
        yield list(combinations(allowed))
        return
    if len(terms) > 1:
        lines = _lines(allowed, points[0], terms)
        yield [*points, *_outermost(allowed, points[0]), *corners(allowed)]
        inside = _agreeing(allowed, points[0], compared)
        if inside is not None:
            together = _together(lines, inside, points[0])
            yield together
            if all(compared[tuple(p.values())] for p in together):
                return
    yield compared_points(allowed, points, terms)


def compared_points(
    allowed: Allowed,
    points: Sequence[Extents],
    terms: Terms,
) -> list[Extents]:
    """Some combinations: along each dimension, at corners, and at random.

    For a divided dimension, also one with each remainder.
    """
    start = points[0]
    lines = _lines(allowed, start, terms).items()
    found: list[Extents] = [{**start, name: n} for name, line in lines for n in line]
    if len(terms) > 1:
        chance = random.Random(0)
        found += corners(allowed)
        for _ in range(SAMPLED // 4):
            found.append({n: chance.choice(list(e)) for n, e in allowed.items()})
    return [*points, *found]


def _lines(
    allowed: Allowed,
    start: Extents,
    terms: Terms,
) -> dict[str, list[int]]:
    """The extents of each dimension at which a plan may have another form."""
    found = {}
    for name in terms:
        period = math.lcm(*(t.divisor for t in terms[name]))
        if period > COMPARED:
            raise UnsupportedError(
                f"extents along {name} come again only after {period:,} sizes",
                code="TW-JIT",
                hint=f"name at most {COMPARED} combinations of extents",
            )
        beside = [start[name] + n for n in range(1, period)]
        known = [n for n in beside if n in allowed[name]]
        most = min(SAMPLED // len(terms), len(allowed[name]) // PART)
        found[name] = _telling(allowed[name], most, known)
    return found


def corners(allowed: Allowed) -> list[Extents]:
    """The corners, and those one step inside."""
    ends = {n: (min(e), max(e)) for n, e in allowed.items()}
    inner = {n: (sorted(e)[min(1, len(e) - 1)], max(e)) for n, e in allowed.items()}
    return [*combinations(ends), *combinations(inner)]


def _outermost(
    allowed: Allowed,
    start: Extents,
) -> list[Extents]:
    """The extents at both ends of each dimension, with the others as at the start."""
    found: list[Extents] = []
    for name, extents in allowed.items():
        values = sorted(extents)
        found += [{**start, name: n} for n in (*values[:ENDS], *values[-ENDS:])]
    return found


def _agreeing(
    allowed: Allowed,
    start: Extents,
    compared: Mapping[tuple[int, ...], bool],
) -> dict[str, range] | None:
    """The box around the start that is left without ends that do not agree.

    None if another combination does not agree, or an end of the box is not compared.
    """
    found: dict[str, range] = {}
    for name, extents in allowed.items():
        values = sorted(extents)
        same = [compared.get(tuple({**start, name: n}.values())) for n in values]
        middle_one = values.index(start[name])
        wrong = [n for n, known in enumerate(same) if known is False]
        first = max((n + 1 for n in wrong if n < middle_one), default=0)
        last = min((n - 1 for n in wrong if n > middle_one), default=len(values) - 1)
        if not (same[first] and same[last]):
            return None
        found[name] = range(values[first], values[last] + 1)
    for key, known in compared.items():
        inside = all(n in e for n, e in zip(key, found.values(), strict=True))
        if inside and not known:
            return None
    return found


def _together(
    lines: Mapping[str, Sequence[int]],
    inside: Mapping[str, range],
    start: Extents,
) -> list[Extents]:
    """Combinations in the box in which each extent of each line occurs, in random order."""
    chance = random.Random(0)
    orders = {}
    for name, line in lines.items():
        orders[name] = [n for n in line if n in inside[name]]
        chance.shuffle(orders[name])
    return [
        {**start, **{name: order[n % len(order)] for name, order in orders.items()}}
        for n in range(max(map(len, orders.values())))
    ]


def _telling(
    extents: Collection[int],
    most: int,
    beside: Sequence[int],
) -> list[int]:
    """Extents at which plans may change form: ends, small ones, those near powers of two, and those
    beside the pattern; of few, random ones as well, so that there are `most`."""
    values = sorted(extents)
    wished = [values[0], values[-1], values[-2], *values[1:8]]
    for power in range(1, values[-1].bit_length() + 1):
        wished += [(1 << power) - 1, 1 << power, (1 << power) + 1]
    known = dict.fromkeys(n for n in (*wished, *beside) if n in extents)
    chance = random.Random(len(values))
    while len(known) < min(most, len(values)):
        known[chance.choice(values)] = None
    return list(known)


def pattern(allowed: Allowed) -> dict[str, int]:
    """The pattern. It is not at an end of a range, where a plan may have another form, as for an
    extent of 1.

    Nor are two of its sizes equal: constants of one size each, such as the weights of a resize
    along both axes, would be equal, too, and be one in the plan. The last dimensions take others.
    """
    found: dict[str, int] = {}
    for name, extents in allowed.items():
        wished = middle(extents, 2)
        values = sorted(extents, key=lambda n: (abs(n - wished), n))
        free = (n for n in values if n not in found.values())
        found[name] = next(free, wished) if len(values) > 1 else wished
    return found


def first_points(
    allowed: Allowed,
    terms: Terms,
) -> Sequence[Extents]:
    """The pattern, and for each dimension points that differ from it only there and distinguish its
    terms: a distant one, and neighbors; then one where all differ, which distinguishes a product
    of two sizes from a sum, and some that check divided dimensions."""
    start = pattern(allowed)
    found: list[Extents] = [start]
    for name, known in terms.items():
        values = sorted(allowed[name])
        near = sorted(values, key=lambda n: abs(n - start[name]))
        found += points_of(start, known, [middle(values, 1), *near])
    divided = [name for name, known in terms.items() if len(known) > 1]
    changed = [*terms] if len(terms) > 1 else divided
    others = {name: _other(allowed[name], terms[name], start) for name in changed}
    checks = [{**start, **others}, *_beside(allowed, divided, CHECKED)]
    return [*found, *(p for p in checks if p not in found)]


def _other(
    extents: Collection[int],
    terms: Sequence[SizeTerm],
    start: Extents,
) -> int:
    """An extent at which as many terms as possible differ from the start: if several sizes have
    one, a sum of terms is distinguished from a product. A whole period away if there is one, where
    what grows in a period has grown, also where terms cancel; at an end only if that tells more."""
    (name,) = {t.size for t in terms}
    ends = min(extents), max(extents)
    period = math.lcm(*(t.divisor for t in terms))

    def changed(n: int) -> tuple[int, bool, bool, int]:
        here = sum(t.at({name: n}) != t.at(start) for t in terms)
        away = n - start[name]
        return here, away % period == 0, n not in ends, -abs(away)

    return max(sorted(extents), key=changed)


def dense_points(
    allowed: Allowed,
    terms: Terms,
) -> Sequence[Extents]:
    """More neighbors of the pattern, along each divided dimension and along all at once, with every
    remainder."""
    divided = [name for name, known in terms.items() if len(known) > 1]
    alone = (p for name in divided for p in _beside(allowed, [name], DENSE))
    found = [*alone, *_beside(allowed, divided, DENSE)]
    return [*(p for p in first_points(allowed, terms) if p not in found), *found]


def _beside(
    allowed: Allowed,
    names: Sequence[str],
    count: int,
) -> list[Extents]:
    """Neighbors of the pattern, with the extents of all names reduced or, if impossible, increased
    by the same amount."""
    start = pattern(allowed)
    found: list[Extents] = []
    for n in range(1, count + 1) if names else ():
        for away in (-n, n):
            beside = {name: start[name] + away for name in names}
            if all(value in allowed[name] for name, value in beside.items()):
                found.append({**start, **beside})
                break
    return found


def middle(
    extents: Collection[int],
    thirds: int,
) -> int:
    """An extent in the middle; of a wide range, the geometric middle, a more typical extent."""
    values = sorted(extents)
    if len(values) <= COMPARED:
        return values[min(len(values) * thirds // 3, len(values) - 1)]
    least = max(values[0], 1)
    wished = least * (values[-1] / least) ** (thirds / 3)
    return min(values, key=lambda n: abs(n - wished))
