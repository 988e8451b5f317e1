"""Attention over blocks of keys, where the scores of all keys are too many for a cache."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from tilewright.base import events
from tilewright.compute.online_softmax import online_softmax
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import FusionGroup, Step
from tilewright.plan.passes.split_groups import IsProfitable


def stream_attention(
    steps: Sequence[Step],
    kept: Collection[Buffer],
    is_profitable: IsProfitable,
    most: int,
) -> list[Step]:
    """The steps, attention by the law of `compute/online_softmax.py` where that makes one kernel.

    kept: what is used outside of the steps. is_profitable: whether Computations should be one
    kernel; attention that should be as it stands stays. most: keys of a block.
    """
    read = [set(s.reads) for s in steps]
    found: list[Step] = []
    for n, step in enumerate(steps):
        others = set(kept).union(*read[:n], *read[n + 1 :])
        if isinstance(step, FusionGroup):
            step = _streamed(step, others, is_profitable, most)
        found.append(step)
    return found


def _streamed(
    group: FusionGroup,
    used: Collection[Buffer],
    is_profitable: IsProfitable,
    most: int,
) -> FusionGroup:
    """The group over the largest blocks of keys that make it profitable as one kernel."""
    reduced = [c.combined_dims for c in group.computations if c.combined_dims]
    keys = max((d.extent for d in reduced[-1]), default=0) if reduced else 0
    if keys < 2 or is_profitable(group.computations):
        return group
    for size in _sizes(keys, most):
        blocks = online_softmax(group.computations, size, used)
        if blocks is None:
            return group
        if is_profitable(blocks):
            events.emit("streamed-attention", stage=group.name, keys=size)
            return replace(group, computations=blocks)
    return group


def _sizes(
    keys: int,
    most: int,
) -> Iterator[int]:
    """Keys of a block: at most `most`, then at most half as many, and so on."""
    while most > 1:
        if most < keys:
            yield _block(keys, most)
        most //= 2


def _block(
    keys: int,
    most: int,
) -> int:
    """Keys of a block: the most, of half as many at least, that divide all; else a fair part."""
    dividing = (n for n in range(most, most // 2, -1) if keys % n == 0)
    return next(dividing, -(-keys // -(-keys // most)))
