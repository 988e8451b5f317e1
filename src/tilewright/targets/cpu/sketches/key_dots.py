"""Scores of few queries: dot products along the keys, which are read once and in their order.

Packed in tiles as for many queries, the keys would be written and read again for each that is read.
"""

from __future__ import annotations

from tilewright.compute.nodes import Dim
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.patterns import (
    KernelPattern,
    free_dims,
    uses,
)
from tilewright.targets.cpu.sketches.attention import AttentionProduct

TOGETHER = (1, 2, 4, 8)  # keys that may be interleaved


def key_dots(
    s: Schedule,
    pattern: KernelPattern,
    p: AttentionProduct,
    choose: Choices,
) -> None:
    """The scores of a block, key by key, each for all of its queries: several sums at a time.

    parameters: `<scores>.keys`, keys that are interleaved.
    """
    key = p.loops[p.plan.vector]
    count = p.plan.vector.extent
    queries = [p.loops[d] for d in _queries(pattern)]
    together = choose(f"{p.name}.keys", [n for n in TOGETHER if n <= count], 1)
    if queries:
        s.reorder(key, *queries)
    s.compute_at(p.target, [key, *queries][-1], scope="register")
    along = f"{p.name}.{p.plan.reduction[-1].var.name}"
    _, lane = s.split(along, p.plan.tile.lanes, "guard")
    before = set(s.loops)
    s.rfactor(lane, "register")
    for loop in [lane, *(n for n in s.loops if n not in before)]:
        s.vectorize(loop)
    if together > 1:
        _, key = s.split(key, together, "overlap")
        s.vthread(key)
    for query in queries:
        s.vthread(query)


def _queries(pattern: KernelPattern) -> list[Dim]:
    """The innermost of the dimensions that the keys have no part in: queries of one key."""
    r = pattern.reduction
    assert r is not None and pattern.vector is not None
    along = pattern.vector.var
    keys = next(a for a in r.accesses if any(uses(i, along) for i in a.index))
    return [d for d in free_dims(r) if not any(uses(i, d.var) for i in keys.index)][-1:]
