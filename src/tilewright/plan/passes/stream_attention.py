"""Attention over blocks of keys, if the scores of all keys do not fit into a cache."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from tilewright.base import events
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
from tilewright.plan.questions import PlanCosts, Questions


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

    The block size is the largest divisor of the number of keys that makes one profitable kernel, or
    one that leaves fewer keys for the last block if that is estimated to be faster; with a
    position mask, the one whose blocks are estimated to be fastest. If something is rounded to 16
    bits and the target names sizes for that, it is one of these.
    """
    whole = group.computations
    narrow = _is_rounded(whole)
    asked = hidden_blocks(whole, narrow)
    is_good = ask.is_profitable(whole)
    if is_good and asked is None:
        return []
    far, tests = asked or (None, ())
    least = (ask.estimated_cost(whole) if is_good else None) or math.inf
    best: Sequence[Computation] = ()
    divisors, ragged = _sizes(_keys(group), ask.costs, narrow)
    for size in (*divisors, *ragged):
        if best and asked is None and size in divisors:
            continue
        blocks = online_softmax(whole, size, used, far, narrow)
        cost = None if blocks is None else ask.estimated_cost(blocks)
        if blocks is None or cost is None:
            continue
        time = cost + sum(ask.estimated_cost((c,)) or 0.0 for c in tests)
        if time < least:
            best, least = blocks, time
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


def _is_rounded(group: Sequence[Computation]) -> bool:
    """Whether something in a group is rounded to 16 bits."""
    return any(o.tensor.dtype in NARROW for c in group for o in c.outputs)


def _sizes(
    keys: int, costs: PlanCosts, narrow: bool
) -> tuple[Sequence[int], Sequence[int]]:
    """Block sizes, descending: divisors of the number of keys, and others.

    Divisors: the largest one, then at most half as many, and so on. Others: where that is less than
    half of what a block may have, multiples of the least block for 1, 2, 4, ... times as many
    blocks as are needed.
    """
    most = min(costs.key_block, keys - 1)
    if narrow and costs.narrow_keys:
        return (), [n for n in costs.narrow_keys if n <= most]
    divisors: list[int] = []
    size = most
    while size > 1:
        divides = keys % size == 0
        if divides:
            divisors.append(size)
        size = size // 2 if divides else size - 1
    ragged: list[int] = []
    step = costs.few_keys
    if step and 2 * max(divisors, default=1) <= most:
        blocks = math.ceil(keys / most)
        while blocks * step < 2 * keys:
            ragged.append(math.ceil(keys / blocks / step) * step)
            blocks *= 2
    return divisors, [n for n in dict.fromkeys(ragged) if n <= most]
