"""Pooling in the kernel of the preceding convolution, block by block, if that is faster.

Convolution results that no cache holds are written to memory and read again by the pooling after
it. In one kernel, the convolution computes a block of rows, which is pooled at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tilewright.base import events
from tilewright.compute.contraction import is_contraction
from tilewright.expr.nodes import Buffer
from tilewright.plan.decisions import Choose, estimated, reason_now
from tilewright.plan.nodes import DefUse, FusionGroup, Step, merge
from tilewright.plan.questions import Cost, dearer


def pool_in_blocks(
    steps: Sequence[Step],
    keep: Collection[Buffer],
    data: Collection[Buffer],
    cost: Cost,
    choose: Choose = estimated,
) -> list[Step]:
    """The steps with convolutions and the pooling of their results merged where profitable.

    keep: buffers that must exist. data: the constants. cost: the target's estimate of Computations
    as one kernel in nanoseconds, None if it cannot handle them well. choose: who decides instead
    of the estimate; see `plan.decisions`.

    requires of the pooling
        it consists of Computations; the first is a reduction that reads only the convolution's
        results, and the others do not read these
    of the convolution
        it is a product and at most one map after it
        no other step reads or writes what it writes, and none of that is in `keep`
    of both
        the target handles them well as one kernel, and estimates it to be no slower than both
    """
    flow = DefUse(steps)
    out: list[Step] = []
    for step in steps:
        before = _before(step, flow, keep)
        # What was merged itself, such as a convolution that reads another one's results, is gone.
        if before is None or before not in out or not isinstance(step, FusionGroup):
            out.append(step)
            continue
        both = (*before.computations, *step.computations)
        parts = [cost(g.computations, data) for g in (before, step)]
        expected = cost(both, data)
        reason = dearer(expected, parts)
        if expected is not None:
            reason = reason_now(choose, (before, step), reason)
        said: dict[str, Any] = {"rule": "pooling"}
        said |= {"producer": before.name, "into": step.name}
        sources = (*before.sources, *step.sources)
        if reason:
            events.emit("not-fused", **said, sources=sources, reason=reason)
            out.append(step)
            continue
        out.remove(before)
        merged = merge(before, step, both)
        events.emit("fuse", **said, sources=merged.sources)
        out.append(merged)
    return out


def _before(
    step: Step,
    flow: DefUse,
    keep: Collection[Buffer],
) -> FusionGroup | None:
    """The convolution whose results the step pools."""
    if not isinstance(step, FusionGroup) or step.kernel is not None:
        return None
    first, *rest = step.computations
    if first.is_map or len(first.inputs) != 1:
        return None
    (tensor,) = first.inputs
    if any(tensor in c.inputs for c in rest):
        return None
    writers = flow.writers.get(tensor, ())
    if len(writers) != 1 or flow.sole_reader(tensor) is not step:
        return None
    (found,) = writers
    if found.kernel is not None or len(found.computations) > 2:
        return None
    product, *maps = found.computations
    if not is_contraction(product) or not all(c.is_map for c in maps):
        return None
    if any(b in keep for b in found.writes):
        return None
    others = [b for b in found.writes if b is not tensor]
    if any(flow.readers.get(b) or len(flow.writers[b]) > 1 for b in others):
        return None
    return found
