"""Point-wise kernels: as few loops as the accesses allow, vectors inside, threads outside."""

from __future__ import annotations

import math

from tilewright.compute.nodes import Computation
from tilewright.expr.affine import Affine
from tilewright.expr.nodes import Call, Div
from tilewright.ir.node import postorder
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.targets.cpu.machine import Machine
from tilewright.targets.cpu.schedules.classify import address, free_dims, stride
from tilewright.targets.cpu.schedules.nest import (
    UNROLLED_VECTORS,
    existing,
    spread,
    vectorize_inner,
)

PARALLEL_POINTS = 65_536  # points of one arithmetic operation that take about 10 us


def maps(kernel: Kernel, c: Computation, machine: Machine) -> Schedule:
    """The schedule of one map."""
    s = Schedule(kernel)
    dims = free_dims(c)
    loops = [f"{c.name}.{d.var.name}" for d in dims]
    if not loops:
        return s
    forms = [address(a) for a in c.accesses] + [_place(c)]
    inner = loops.pop()
    extent = dims[-1].extent
    at = len(dims) - 1
    while loops and all(_contiguous(f, dims[at - 1], dims[at], extent) for f in forms):
        inner = s.fuse(loops.pop(), inner)
        at -= 1
        extent *= dims[at].extent
    lanes = machine.lanes(c.outputs[0].tensor.dtype)
    costly = sum(isinstance(n, Call | Div) for n in postorder(c.outputs[0].value))
    unrolled = 1 if costly > 2 else UNROLLED_VECTORS
    points = math.prod(d.extent for d in dims)
    work = points * (1 + 4 * costly)
    if not loops and work >= PARALLEL_POINTS and extent >= 64 * lanes:
        chunk, inner = s.split(inner, 16 * lanes, "overlap")
        loops = [chunk]
    vectorize_inner(s, inner, lanes, unrolled)
    spread(s, existing(s, loops), work, PARALLEL_POINTS)
    return s


def _place(c: Computation) -> Affine:
    o = c.outputs[0]
    return address(o.tensor[o.index])


def _contiguous(form: Affine, outer: object, inner: object, extent: int) -> bool:
    """Whether one step of `outer` moves as far as `extent` steps of `inner`."""
    a = stride(form, outer.var)  # type: ignore[attr-defined]
    b = stride(form, inner.var)  # type: ignore[attr-defined]
    return a is not None and b is not None and a == b * extent
