"""Long sums of floats in parts, so that rounding errors grow with the parts and not with the sum.

An accumulator to which thousands of terms are added one by one rounds away what is below the last
place of all of them together. Here it adds up to a few hundred, and is then added to a total:

    total = 0
    for p in parts: { part = 0; for k in p: part += a[k]; total += part }

The error of n terms of either sign, m in a part, grows with sqrt(n*(m + n/m)) in place of n; that
of terms of one sign with m + n/m in place of n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import is_sum
from tilewright.schedule import Schedule
from tilewright.schedule.space.nest import divisors, existing, extents, fuse_all


@dataclass(frozen=True, slots=True)
class Terms:
    """How many terms the longest sum has that stays whole, and a part at least and at most."""

    whole: int
    least: int
    most: int


# Fewer terms in a part cost time, since the total is read and written after each: 0.5% of 512
# products on a Zen 5, 1% of 256. More round more than PyTorch's sums, by twice or so. Two parts of
# 768 products, as transformers' layers have, took 0.7% longer; whole, they round twice as much as
# PyTorch's. What is summed without products comes from memory, which takes longer than that.
PRODUCTS: Final = Terms(whole=768, least=128, most=512)
SUMS: Final = Terms(whole=512, least=32, most=128)
# Steps that are written out at most, which should divide the innermost loop of a part.
STEPS: Final = 8


def in_parts(
    s: Schedule, r: Computation, reduction: Sequence[str], inside: int = 1
) -> tuple[list[str], str | None]:
    """Sum in parts if that rounds less: the loops over the reduction in a part, and its results,
    in registers; without parts these loops and None.

    reduction: the loops directly around what is added, outermost first, that may be cut. inside:
    terms in each of their iterations. The totals keep their scope. In order if the reducer is no
    sum of floats, a loop's extent is not constant, or no divisor of one makes parts of as many
    terms as they may have.
    """
    loops = existing(s, reduction)
    counts = extents(s.kernel)
    if any(n in s.loops and n not in counts for n in reduction):
        return loops, None
    if r.reducer is None or not is_sum(r.reducer) or not r.reducer.dtypes[0].is_float:
        return loops, None
    terms = PRODUCTS if is_contraction(r) else SUMS
    cut = _cut([counts[n] for n in loops], inside, terms)
    if cut is None:
        return loops, None
    place, size = cut
    outer, inner = loops[: place + 1], loops[place + 1 :]
    if size > 1:
        outer[-1], step = s.split(outer[-1], size)
        inner = [step, *inner]
    counts = extents(s.kernel)
    apart = [counts[n] for n in outer[1:]]
    first, last = (s.loops.index(n) for n in (outer[0], outer[-1]))
    # Loops of one iteration may be between them.
    whole = fuse_all(s, s.loops[first : last + 1])
    assert whole is not None
    (part,) = s.rfactor(whole, "global")
    rest = f"{whole}.combine"
    s.compute_at(part, rest, scope="register")
    for count in reversed(apart):
        rest, _ = s.split(rest, count)
    return inner, part


def nests(s: Schedule, part: str) -> list[list[str]]:
    """The loops over the elements of a part's results: where they are cleared, and added."""
    return [
        existing(s, [n for n in s.loops if n.startswith(f"{part}.{nest}")])
        for nest in ("c", "m")
    ]


def _cut(counts: Sequence[int], inside: int, terms: Terms) -> tuple[int, int] | None:
    """Which of the loops of a sum, outermost first, is cut between its parts, and how many of its
    iterations a part has; None if the sum is short or no part has so many terms."""
    if math.prod(counts) * inside <= terms.whole:
        return None
    found = [
        (place, size)
        for place, count in enumerate(counts)
        for size in divisors(count)
        if terms.least <= size * math.prod(counts[place + 1 :]) * inside <= terms.most
    ]
    return max(found, key=lambda cut: _merit(cut, counts), default=None)


def _merit(cut: tuple[int, int], counts: Sequence[int]) -> tuple[int, int]:
    """Parts in whose innermost loop several steps can be written out, then long ones."""
    place, size = cut
    within = [size, *counts[place + 1 :]]
    return math.gcd(within[-1], STEPS), math.prod(within)
