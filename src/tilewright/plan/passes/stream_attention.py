"""Attention over blocks of keys, where the scores of all keys are too many for a cache."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from tilewright.base import events
from tilewright.compute.online_softmax import online_softmax
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import DefUse, FusionGroup, Step
from tilewright.plan.passes.fuse import without_unused
from tilewright.plan.passes.inline_masks import Data, inline_masks
from tilewright.plan.passes.split_groups import IsProfitable


def stream_attention(
    steps: Sequence[Step],
    kept: Collection[Buffer],
    is_profitable: IsProfitable,
    most: int,
    data: Data,
) -> list[Step]:
    """The steps, attention by the law of `compute/online_softmax.py` where that makes one kernel.

    kept: what is used outside of the steps. is_profitable: whether Computations should be one
    kernel; attention that should be as it stands stays. most: keys of a block. data: constants.
    Masks by position go into the kernel, so that it reads no block that they hide.
    """
    read = [set(s.reads) for s in steps]
    flow = DefUse(steps)
    found: list[Step] = []
    for n, step in enumerate(steps):
        others = set(kept).union(*read[:n], *read[n + 1 :])
        if isinstance(step, FusionGroup):
            masked = inline_masks(step, flow, data)
            streamed = _streamed(masked, others, is_profitable, most)
            step = step if streamed is masked else streamed
        found.append(step)
    return without_unused(found, frozenset(kept))


def _streamed(
    group: FusionGroup,
    used: Collection[Buffer],
    is_profitable: IsProfitable,
    most: int,
) -> FusionGroup:
    """The group over the largest blocks of keys that make it profitable as one kernel."""
    keys = _keys(group)
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


def _keys(group: FusionGroup) -> int:
    """The longest axis of the last reduction: the keys, where the group is attention."""
    keys = 0
    for c in group.computations:
        dims = c.combined_dims
        if dims:
            keys = max(d.extent for d in dims)
    return keys


def _sizes(
    keys: int,
    most: int,
) -> Iterator[int]:
    """Keys of a block: the most, up to `most`, that divide all; then at most half as many, ..."""
    size = min(most, keys - 1)
    while size > 1:
        divides = keys % size == 0
        if divides:
            yield size
            size //= 2
        else:
            size -= 1
