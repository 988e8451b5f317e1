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

from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import is_sum
from tilewright.schedule import Schedule
from tilewright.schedule.space.nest import divisors, existing, extents, fuse_all

# Terms of the longest sum that stays whole.
LONG: Final = 512
# The least and the most terms of a part. Fewer cost time, since the total is read and written after
# each part: 0.5% of 512 products on a Zen 5, 1% of 256. More round more than PyTorch's sums, by
# twice or so. What is summed without products comes from memory, which takes longer than that.
PRODUCTS: Final = (128, 512)
SUMS: Final = (32, 128)
STEPS: Final = (
    8  # written out at most, which should divide the innermost loop of a part
)


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


def _cut(
    counts: Sequence[int], inside: int, terms: tuple[int, int]
) -> tuple[int, int] | None:
    """Which of the loops of a sum, outermost first, is cut between its parts, and how many of its
    iterations a part has; None if the sum is short or no part has so many terms."""
    if math.prod(counts) * inside <= LONG:
        return None
    least, most = terms
    found = [
        (place, size)
        for place, count in enumerate(counts)
        for size in divisors(count)
        if least <= size * math.prod(counts[place + 1 :]) * inside <= most
    ]
    return max(found, key=lambda cut: _merit(cut, counts), default=None)


def _merit(cut: tuple[int, int], counts: Sequence[int]) -> tuple[int, int]:
    """Parts in whose innermost loop several steps can be written out, then long ones."""
    place, size = cut
    within = [size, *counts[place + 1 :]]
    return math.gcd(within[-1], STEPS), math.prod(within)
