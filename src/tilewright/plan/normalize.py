"""Normalizing groups to the form that schedules expect.

Dimensions that belong together are merged, and mixed-radix splits left by a reshape become separate
dimensions; only a reduction writes its result; a part of a tensor is written from element 0 on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

from tilewright.compute.join_axes import join_axes
from tilewright.compute.local_results import local_results
from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import Computation
from tilewright.compute.split_axes import split_axes
from tilewright.compute.transforms import on_tensors
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.offsets import from_zero


@dataclass(frozen=True, eq=False, slots=True)
class KernelSignature:
    """A group ready to compile: its Computations or Kernel on the kernel's own buffers.

    params: the kernel's parameters, in the order of `values`, the model's buffers; outputs come
    last. offsets: for each value, the byte offset that the kernel receives. source: the group's
    Computations, on `values`, before renaming, merging or moving. group: its name.
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
        """The kernel without a schedule."""
        if self.kernel is not None:
            return self.kernel
        return lower(self.name, self.computations, self.params, self.outputs)


def kernel_signature(
    group: FusionGroup, live: Collection[Buffer], parts: bool = True
) -> KernelSignature:
    """The group with unique names and merged dimensions. `live`: buffers used elsewhere.

    parts: write a part of a tensor from element 0 on, relative to where it begins.
    """
    if group.kernel is not None:
        return _of_kernel(group.kernel, group.name)
    names: dict[str, int] = {}
    named = []
    for c in group.computations:
        number = names.get(c.name, 0) + 1
        names[c.name] = number
        if number > 1:
            c = replace(c, name=f"{c.name}{number}")
        named.append(c)
    outputs = [b for b in group.writes if b in live]
    joined, seen = join_axes(_distinct(named, (*group.reads, *outputs)))
    live = {seen.get(b, b) for b in live}
    split = split_axes(joined, live)
    computations, views = merge_dims(local_results(split))
    values = (*group.reads, *outputs)
    params = []
    for b in values:
        own = seen.get(b, b)
        params.append(views.get(own, own))
    outs = tuple(params[len(group.reads) :])
    off: Mapping[Buffer, int] = {}
    if parts:
        computations, off = from_zero(computations, outs)
    return KernelSignature(
        name=_kernel_name(names),
        computations=computations,
        kernel=None,
        values=values,
        params=tuple(params),
        outputs=outs,
        offsets=tuple(off.get(p, 0) for p in params),
        source=group.computations,
        group=group.name,
    )


def _distinct(
    group: Sequence[Computation], values: Collection[Buffer]
) -> list[Computation]:
    """The group with names for its own tensors that no other tensor has: schedules find a tensor
    by its name, and two uses of an operator in one group give theirs the same ones."""
    taken = {b.name for b in values}
    found: dict[Buffer, Buffer] = {}
    for b in dict.fromkeys(o.tensor for c in group for o in c.outputs):
        if b in values:
            continue
        numbers = (f"{b.name}{n}" for n in count(2))
        name = next(name for name in chain([b.name], numbers) if name not in taken)
        taken.add(name)
        if name != b.name:
            found[b] = Buffer(name, b.extents, b.dtype, b.scope)
    return [on_tensors(c, found) for c in group] if found else list(group)


def _of_kernel(
    kernel: Kernel,
    group: str,
) -> KernelSignature:
    """The signature of a hand-written Kernel, which uses the model's own buffers."""
    return KernelSignature(
        name=kernel.name,
        computations=(),
        kernel=kernel,
        values=kernel.params,
        params=kernel.params,
        outputs=kernel.outputs,
        offsets=(0,) * len(kernel.params),
        group=group,
    )


def _kernel_name(
    computations: Iterable[str],
) -> str:
    """A kernel's name from the names of its Computations."""
    words = "_".join(computations)
    return re.sub(r"\W", "_", words)[:48]


def merged(
    group: Sequence[Computation], constants: Collection[Buffer] = ()
) -> tuple[tuple[Computation, ...], set[Buffer]]:
    """Computations with merged dimensions, in the form in which targets see them, and their
    constant tensors."""
    computations, views = merge_dims(group)
    held = set()
    for c in group:
        for b in c.inputs:
            if b in constants:
                held.add(views.get(b, b))
    return computations, held
