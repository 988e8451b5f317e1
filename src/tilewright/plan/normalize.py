"""Normalizing groups to the form that schedules expect, in this one place.

Dimensions that belong together are one, and those that a reshape left as digits of a number are
several; a reduction has its result to itself; a part of a tensor is written from element 0 on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tilewright.compute.join_axes import join_axes
from tilewright.compute.local_results import local_results
from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import Computation
from tilewright.compute.split_axes import split_axes
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.offsets import from_zero


@dataclass(frozen=True, eq=False, slots=True)
class KernelSignature:
    """A group ready to compile: its Computations or Kernel on buffers of the kernel's own.

    params: what the kernel sees, in the order of `values`, the model's buffers; outputs come last.
    offsets: bytes into each value at which the kernel gets it. source: the group's Computations,
    on `values`, as they were before anything was renamed, merged or moved. group: its name.
    """

    name: str
    computations: tuple[Computation, ...]
    kernel: Kernel | None
    values: tuple[Buffer, ...]
    params: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    source: tuple[Computation, ...] = ()
    group: str = ""

    def plain(self) -> Kernel:
        """The kernel before any schedule."""
        if self.kernel is not None:
            return self.kernel
        return lower(self.name, self.computations, self.params, self.outputs)


def kernel_signature(group: FusionGroup, live: Collection[Buffer]) -> KernelSignature:
    """The group with unique names and merged dimensions; `live`: buffers used elsewhere."""
    if group.kernel is not None:
        k = group.kernel
        offsets = (0,) * len(k.params)
        return KernelSignature(
            k.name, (), k, k.params, k.params, k.outputs, offsets, group=group.name
        )
    names: dict[str, int] = {}
    named = []
    for c in group.computations:
        count = names[c.name] = names.get(c.name, 0) + 1
        named.append(c if count == 1 else replace(c, name=f"{c.name}{count}"))
    outputs = [b for b in group.writes if b in live]
    joined, seen = join_axes(named)
    live = {seen.get(b, b) for b in live}
    computations, views = merge_dims(local_results(split_axes(joined, live)))
    values = (*group.reads, *outputs)
    params = tuple(views.get(seen.get(b, b), seen.get(b, b)) for b in values)
    name = re.sub(
        r"\W", "_", "_".join(dict.fromkeys(c.name for c in group.computations))
    )[:48]
    outs = params[len(group.reads) :]
    computations, off = from_zero(computations, outs)
    offsets = tuple(off.get(p, 0) for p in params)
    source = group.computations
    return KernelSignature(
        name, computations, None, values, params, outs, offsets, source, group.name
    )


def merged(
    group: Sequence[Computation], constants: Collection[Buffer] = ()
) -> tuple[tuple[Computation, ...], set[Buffer]]:
    """Computations as a target is asked about them, with merged dimensions, and which of their
    tensors are among the constants."""
    computations, views = merge_dims(group)
    return computations, {
        views.get(b, b) for c in group for b in c.inputs if b in constants
    }
