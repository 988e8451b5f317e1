"""Attention over blocks of keys, if the scores of all keys do not fit into a cache."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from tilewright.base import events
from tilewright.base.dtypes import DType, bfloat16
from tilewright.compute.attention import NARROW, may_be_attention
from tilewright.compute.nodes import Computation
from tilewright.compute.online_softmax import (
    hidden_blocks,
    online_softmax,
)
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import DefUse, FusionGroup, Step
from tilewright.plan.passes.fuse import without_unused
from tilewright.plan.passes.inline_masks import Data, inline_masks
from tilewright.plan.questions import Questions


def stream_attention(
    steps: Sequence[Step],
    kept: Collection[Buffer],
    ask: Questions,
    data: Data,
) -> list[Step]:
    """The steps, with attention rewritten by `compute/online_softmax.py` if that makes one kernel.

    kept: buffers used outside the steps. data: constants. Attention that is already profitable
    stays, unless blocks hidden by a position mask make the streamed form cheaper. Such masks are
    inlined into the kernel, so that it skips the blocks they hide.
    """
    flow = DefUse(steps)
    found: list[Step] = []
    for step in steps:
        if isinstance(step, FusionGroup) and may_be_attention(step.computations):
            others = set(kept).union(*(s.reads for s in steps if s is not step))
            masked = inline_masks(step, flow, data)
            found += _streamed(masked, others, ask) or [step]
        else:
            found.append(step)
    return without_unused(found, frozenset(kept))


def _streamed(
    group: FusionGroup,
    used: Collection[Buffer],
    ask: Questions,
) -> list[FusionGroup]:
    """The group over blocks of keys, after those that check if hidden keys count; or nothing.

    The block size is the largest divisor of the number of keys that makes one profitable kernel;
    with a position mask, the one whose blocks are estimated to be fastest. If something
    is rounded to 16 bits and the target names sizes for that, it need not be a divisor; elsewhere
    float16 stays whole, and bfloat16, which has float32's range, does as float32.
    """
    whole = group.computations
    rounded = _narrow_dtypes(whole)
    ragged = ask.costs.narrow_keys if rounded else ()
    narrow = bool(ragged) or rounded == {bfloat16}
    asked = hidden_blocks(whole, narrow)
    is_good = ask.is_profitable(whole)
    if is_good and asked is None:
        return []
    far, tests = asked or (None, ())
    least = (ask.estimated_cost(whole) if is_good else None) or math.inf
    best: Sequence[Computation] = ()
    for size in _sizes(_keys(group), ask.costs.key_block, ragged):
        blocks = online_softmax(whole, size, used, far, narrow)
        cost = None if blocks is None else ask.estimated_cost(blocks)
        if blocks is None or cost is None:
            continue
        time = cost + sum(ask.estimated_cost((c,)) or 0.0 for c in tests)
        if time < least:
            best, least = blocks, time
        if asked is None and not ragged:
            break
    if not best:
        return []
    size = best[0].outputs[0].tensor.shape[-1]
    events.emit("streamed-attention", stage=group.name, keys=size)
    asking = [FusionGroup(c.name, (c,), group.sources) for c in tests]
    return [*asking, replace(group, computations=tuple(best))]


def _keys(group: FusionGroup) -> int:
    """The longest axis of the last reduction: the keys, if the group is attention."""
    keys = 0
    for c in group.computations:
        dims = c.combined_dims
        if dims:
            keys = max(d.extent for d in dims)
    return keys


def _narrow_dtypes(group: Sequence[Computation]) -> set[DType]:
    """The types of 16 bits that something in a group is rounded to."""
    return {o.tensor.dtype for c in group for o in c.outputs}.intersection(NARROW)


def _sizes(
    keys: int,
    most: int,
    ragged: Sequence[int],
) -> Iterator[int]:
    """Block sizes: the largest divisor up to `most`, then at most half as many, and so on; or the
    `ragged` ones, if there are any."""
    if ragged:
        yield from (n for n in ragged if n < min(most + 1, keys))
        return
    size = min(most, keys - 1)
    while size > 1:
        divides = keys % size == 0
        if divides:
            yield size
            size //= 2
        else:
            size -= 1
