"""Normalizing groups to the form that schedules expect.

Dimensions that belong together are merged, and mixed-radix splits left by a reshape become separate
dimensions; only a reduction writes its result; a part of a tensor is written from element 0 on.

Tensors of a plan may share a name, as those inside two softmaxes do. Those of a kernel must not:
schedules, and what calls a kernel, know its tensors by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.compute.canonical import canonical
from tilewright.compute.join_axes import join_axes
from tilewright.compute.local_results import local_results
from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import Computation
from tilewright.compute.split_axes import split_axes
from tilewright.compute.transforms import on_tensors
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc, Kernel
from tilewright.loops.passes.on_buffers import on_buffers
from tilewright.loops.walk import walk
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.offsets import from_zero, in_second_place, place_of


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

    @property
    def on_values(self) -> Kernel:
        """A given Kernel on the model's buffers."""
        assert self.kernel is not None
        if self.params == self.values:
            return self.kernel
        values = dict(zip(self.params, self.values, strict=True))
        return on_buffers(self.kernel, values)


def kernel_signature(
    group: FusionGroup, live: Collection[Buffer], parts: bool = True
) -> KernelSignature:
    """The group with unique names and merged dimensions. `live`: buffers used elsewhere.

    parts: write a part of a tensor from element 0 on, relative to where it begins.
    """
    if group.kernel is not None:
        return of_kernel(group.kernel, group.name)
    names = dict.fromkeys(c.name for c in group.computations)
    named = with_own_names(group.computations)
    outputs = [b for b in group.writes if b in live]
    computations, views = _normalized(named, live)
    values = (*group.reads, *outputs)
    params = [views.get(b, b) for b in values]
    outs = tuple(params[len(group.reads) :])
    off: Mapping[Buffer, int] = {}
    if parts:
        computations, off = from_zero(computations, outs)
    offsets = tuple(off.get(p, 0) for p in params)
    made = [o.tensor for c in computations for o in c.outputs]
    renamed = _renamed([*params, *made])
    if renamed:
        computations = tuple(on_tensors(c, renamed) for c in computations)
        params = [renamed.get(p, p) for p in params]
    return KernelSignature(
        name=_kernel_name(names),
        computations=computations,
        kernel=None,
        values=values,
        params=tuple(params),
        outputs=tuple(params[len(group.reads) :]),
        offsets=offsets,
        source=group.computations,
        group=group.name,
    )


class SharedSignatures:
    """`kernel_signature` of the groups of a model.

    Groups that are equal but for the names of tensors and the parts of tensors that they fill have
    the Computations of the first of them. apart: the names of groups that have their own, since
    choices for them name their tensors.
    """

    def __init__(self, apart: Collection[str] = ()) -> None:
        self._apart = apart
        self._known: dict[Hashable, KernelSignature] = {}

    def of(self, group: FusionGroup, live: Collection[Buffer]) -> KernelSignature:
        """As `kernel_signature(group, live)`."""
        if group.kernel is not None or group.name in self._apart:
            return kernel_signature(group, live)
        tensors = (*group.reads, *group.writes)
        anywhere = (
            tuple(c.name for c in group.computations),
            tuple(b in live for b in tensors),
            canonical(in_second_place(group.computations), ()),
        )
        outputs = [b for b in group.writes if b in live]
        places = [place_of(group.computations, b) for b in outputs]
        offsets = (*[0 for _ in group.reads], *places)
        here = (anywhere, offsets)
        known = self._known.get(anywhere) or self._known.get(here)
        if known is None:
            known = kernel_signature(group, live)
            # Else it begins elsewhere, and is the same only for groups that fill the same part.
            self._known[anywhere if known.offsets == offsets else here] = known
            return known
        return replace(
            known,
            values=(*group.reads, *outputs),
            offsets=offsets if anywhere in self._known else known.offsets,
            source=group.computations,
            group=group.name,
        )


def with_own_names(
    computations: Iterable[Computation],
) -> tuple[Computation, ...]:
    """The Computations, each with a name of its own, the prefix of the names of its loops."""
    taken: set[str] = set()
    found = []
    for c in computations:
        name = fresh(taken, c.name, "")
        found.append(c if name == c.name else replace(c, name=name))
    return tuple(found)


def of_kernel(
    kernel: Kernel,
    group: str,
) -> KernelSignature:
    """The signature of a given Kernel, which uses the model's own buffers."""
    tensors = list(kernel.params)
    for place in walk(kernel.body):
        s = place.stmt
        if isinstance(s, Alloc):
            tensors.append(s.buffer)
    renamed = _renamed(tensors)
    made = on_buffers(kernel, renamed) if renamed else kernel
    return KernelSignature(
        name=kernel.name,
        computations=(),
        kernel=made,
        values=kernel.params,
        params=made.params,
        outputs=made.outputs,
        offsets=(0,) * len(kernel.params),
        group=group,
    )


def _renamed(
    tensors: Iterable[Buffer],
) -> dict[Buffer, Buffer]:
    """For each tensor of a kernel whose name an earlier one has, one with a name of its own."""
    taken: set[str] = set()
    found: dict[Buffer, Buffer] = {}
    for b in dict.fromkeys(tensors):
        name = fresh(taken, b.name)
        if name == b.name:
            continue
        found[b] = Buffer(
            name,
            b.extents,
            b.dtype,
            b.scope,
            b.swizzle,
        )
    return found


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
    return computations, _held(group, constants, views)


def normalized(
    group: Sequence[Computation], constants: Collection[Buffer] = ()
) -> tuple[tuple[Computation, ...], set[Buffer]]:
    """As `merged`, in the form in which they are compiled, if others read only what the group
    itself does not read."""
    made = {o.tensor for c in group for o in c.outputs}
    live = made.difference(b for c in group for b in c.inputs)
    computations, views = _normalized(with_own_names(group), live)
    return computations, _held(group, constants, views)


def _normalized(
    group: tuple[Computation, ...], live: Collection[Buffer]
) -> tuple[tuple[Computation, ...], dict[Buffer, Buffer]]:
    """The group in normal form, and the view of each tensor that changed shape."""
    joined, seen = join_axes(group)
    split = split_axes(joined, {seen.get(b, b) for b in live})
    computations, views = merge_dims(local_results(split))
    return computations, {**views, **{b: views.get(v, v) for b, v in seen.items()}}


def _held(
    group: Sequence[Computation],
    constants: Collection[Buffer],
    views: Mapping[Buffer, Buffer],
) -> set[Buffer]:
    """The views of the constant tensors that a group reads."""
    read = {b for c in group for b in c.inputs}
    return {views.get(b, b) for b in read if b in constants}
