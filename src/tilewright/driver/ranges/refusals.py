"""Errors of ranges whose sizes cannot share code: where, at which sizes, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from tilewright.base.dims_hint import FEWER, DimsHint, Values
from tilewright.base.errors import UnsupportedError
from tilewright.plan.nodes import Plan

FEW: Final = 3  # numbers that an error shows
Extents = Mapping[str, int]


def differs(
    where: str,
    what: str,
) -> UnsupportedError:
    """The error for plans that differ by more than numbers."""
    return UnsupportedError(
        f"one kernel for a range of sizes is not possible: {what}",
        where=where,
        code="TW-JIT",
        hint=DimsHint(FEWER),
    )


def at_sizes(
    found: Sequence[Any],
    points: Sequence[Extents],
) -> str:
    """The first few distinct values with their sizes: `7 at h = 5, w = 7, 9 at h = 6, w = 7`."""
    first: dict[str, Extents] = {}
    for value, point in zip(found, points, strict=False):
        first.setdefault(str(value), point)
    few = list(first.items())[:FEW]
    return " and ".join(f"{value} at {sizes(point)}" for value, point in few)


def sizes(point: Extents) -> str:
    """As `h = 5, w = 7`."""
    return ", ".join(f"{name} = {n}" for name, n in point.items())


def alike_in(
    part: Mapping[str, Collection[int]],
    extents: Callable[[Extents], Extents],
) -> DimsHint:
    """The hint that a part of the range has shared code. extents: of its sizes."""
    shown: dict[str, Values] = {}
    for name, numbers in part.items():
        known = [extents({name: n})[name] for n in sorted(numbers)]
        steps = {b - a for a, b in pairwise(known)}
        ends = known[0], known[-1], *(steps - {1})
        shown[name] = ends if len(steps) == 1 else known
    return DimsHint("plans are alike in a part of the range, so name that").of(shown)


def other_steps(
    plans: Sequence[Plan],
    points: Sequence[Extents],
    name: str,
) -> UnsupportedError:
    """The error for plans with different numbers of steps, which names one that some lack."""
    first, at = plans[0], points[0]
    pairs = zip(plans, points, strict=False)
    other, there = next((p, e) for p, e in pairs if len(p.steps) != len(first.steps))
    if len(other.steps) > len(first.steps):
        first, at, other, there = other, there, first, at
    known = {s.name for s in other.steps}
    lacks = [s.name for s in first.steps if s.name not in known]
    counts = (
        f"{len(first.steps)} at {sizes(at)} and {len(other.steps)} at {sizes(there)}"
    )
    without = f", without step {lacks[0]}" if lacks else ""
    what = f"the number of steps is {counts}{without}"
    return differs(f"plan {name}", what)


def not_affine(
    what: str,
    at: Extents,
) -> UnsupportedError:
    """The error for an open plan that is correct only along each single dimension."""
    return UnsupportedError(
        "shared code for a range of sizes is not possible: at "
        f"{dict(at)}, {what} is not an affine function of the sizes",
        code="TW-JIT",
        hint=DimsHint(FEWER),
    )


def needs_own(
    most: int,
    what: str,
    at: Extents,
) -> UnsupportedError:
    """The error for too many sizes whose plans differ; what: does, at one of them."""
    return UnsupportedError(
        f"more than {most} combinations of extents need separate code; one is {dict(at)}, "
        f"at which {what} differs",
        code="TW-JIT",
        hint=DimsHint(FEWER),
    )
