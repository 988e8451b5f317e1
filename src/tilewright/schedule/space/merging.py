"""Dimensions that move through memory together as one, while a kernel is scheduled.

What passes over a plan do to the groups of a model (`compute/merge.py`), by primitives, so that the
kernel of a notation keeps the tensors of its user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.space.nest import fuse_all
from tilewright.schedule.space.patterns import classify


@dataclass(frozen=True, slots=True)
class Merged:
    """A kernel, the plain nest of `source`, and the Computations with merged dimensions.

    views: by tensor of the kernel, the reshaped one.
    """

    kernel: Kernel
    source: tuple[Computation, ...]
    computations: tuple[Computation, ...]
    views: Mapping[Buffer, Buffer] = field(default_factory=dict)

    def start(self) -> Schedule:
        """A schedule of the kernel with the loops and tensors of `computations`."""
        s = Schedule(self.kernel)
        for b, view in self.views.items():
            s.reshape(b.name, *view.shape)
        for old, new in zip(self.source, self.computations, strict=True):
            for dims, dim in zip(_grouped(old, new), new.dims, strict=True):
                if len(dims) < 2:
                    continue
                fused = fuse_all(s, [f"{old.name}.{d.var.name}" for d in dims])
                assert fused is not None
                s.rename(fused, f"{new.name}.{dim.var.name}")
        return s

    def finish(self, s: Schedule) -> Schedule:
        """The schedule, ending with the tensors as the kernel has them."""
        for b in self.views:
            if b in self.kernel.params:  # the others are local
                s.reshape(b.name, *b.shape)
        return s


def merged(kernel: Kernel, computations: Sequence[Computation]) -> Merged:
    """The plain nest of a contraction and its epilogue with merged dimensions; unchanged if no
    dimensions can be merged, or if a primitive refuses.

    Other Computations do not benefit: maps fuse their loops, plans of models have merged dimensions
    already, and empty Computations do nothing.
    """
    source = tuple(computations)
    if any(d.extent == 0 for c in source for d in c.dims):
        return Merged(kernel, source, source)
    found, views = merge_dims(source)
    is_product = classify(found).name == "tiled"
    if not is_product or _loops(found) == _loops(source):
        return Merged(kernel, source, source)
    made = Merged(kernel, source, found, views)
    try:
        made.finish(made.start())
    except ScheduleError as error:
        events.emit("kept-dimensions", kernel=kernel.name, reason=str(error))
        return Merged(kernel, source, source)
    return made


def _loops(computations: Sequence[Computation]) -> int:
    return sum(d.extent != 1 for c in computations for d in c.dims)


def _grouped(old: Computation, new: Computation) -> list[list[Dim]]:
    """For each dimension of `new`, the dimensions of `old` that were merged into it, except extents
    of 1."""
    rest = [d for d in old.dims if d.extent != 1]
    found: list[list[Dim]] = []
    for dim in new.dims:
        taken: list[Dim] = []
        extent = 1
        while extent != dim.extent:
            taken.append(rest.pop(0))
            extent *= taken[-1].extent
        found.append(taken)
    return found
