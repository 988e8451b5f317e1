"""Point-wise kernels: as few loops as the accesses allow, vectors inside, threads outside."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base import events
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.affine import Affine
from tilewright.expr.nodes import Call, Div, Load
from tilewright.ir.node import postorder
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    VECTORS,
    extents,
    fetched_ahead,
    vectorize_inner,
)
from tilewright.schedule.space.patterns import KernelPattern, address, free_dims, stride
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.inner_dimension import goes_on, inner_dimension
from tilewright.targets.cpu.sketches.register_transpose import (
    pays,
    shares,
    transpose,
    transposed_nest,
)

CHUNKS = (8, 16, 32, 64, 128, 256)  # vectors of a thread's part that may be tried


def maps(s: Schedule, pattern: KernelPattern, at: Context, choose: Choices) -> Schedule:
    """The schedule of one map.

    parameters: `<map>.parallel`; `<map>.tiles`, whether reads across the order of writes are
    transposed in registers, with the parameters of `transpose`; else `<map>.inner`, the vectorized
    dimension, `<map>.vectors`, in flight at a time, `<map>.chunk`, vectors that a thread takes of a
    single loop, `<map>.first`, whether the loop over vectors that are read element by element is
    the outermost, and `<map>.prefetch`.
    """
    (c,) = pattern.computations
    dims = free_dims(c)
    loops = [f"{c.name}.{d.var.name}" for d in dims]
    if not loops:
        return s
    costly = sum(isinstance(n, Call | Div) for n in postorder(c.outputs[0].value))
    costs = at.costs
    work = math.prod(d.extent for d in dims) * (1 + costs.call_operations * costly)
    taken = work * costs.point_ns + costs.moving(s.kernel.params, at.constants, c)
    threads = at.threads(choose, c.name, costs.worth_sharing(taken))
    crossed = transposed_nest(s, loops, at.machine)
    if crossed is not None and choose(
        f"{c.name}.tiles", (True, False), pays(crossed, costs)
    ):
        trial = s.fork()
        try:
            outer = transpose(trial, crossed, costs, choose, c.name)
        except (
            ScheduleError
        ) as error:  # what is guarded cannot be staged: element by element
            events.emit(
                "kept-across", kernel=s.kernel.name, map=c.name, reason=str(error)
            )
        else:
            if threads:
                at.share(trial, shares(trial, outer, costs), choose, c.name)
            return trial
    places = [o.tensor[o.index] for o in c.outputs]
    forms = [address(a) for a in (*c.accesses, *places)]
    _innermost(s, c, dims, loops, costs, choose)
    apart = _reads_apart(c, dims, at)
    inner, extent = _joined(s, loops, dims, forms)
    lanes = at.machine.lanes(c.outputs[0].tensor.dtype)
    good = 1 if costly > costs.cheap_calls else costs.in_flight
    good = 1 if apart else _whole_tiles(c, VECTORS, extent, lanes, good)
    unrolled = choose(f"{c.name}.vectors", VECTORS, good)
    if threads and not loops and extent >= costs.shared_vectors * lanes:
        chunk, inner = _chunks(s, c, inner, extent, costs, choose)
        loops = [chunk]
    elif apart and choose(f"{c.name}.first", (True, False), True):
        loops, inner = _columns_first(s, loops, inner, lanes * unrolled)
    vector = vectorize_inner(s, inner, lanes, unrolled)
    fetched_ahead(s, vector, choose, c.name)
    if threads:
        at.share(s, loops, choose, c.name)
    return s


def _joined(
    s: Schedule, loops: list[str], dims: Sequence[Dim], forms: Sequence[Affine]
) -> tuple[str, int]:
    """The last loop as one with those around it whose steps go on where it ends, which leave
    `loops`; and its extent."""
    inner = loops.pop()
    extent = dims[-1].extent
    depth = len(dims) - 1
    while loops and all(
        goes_on(f, dims[depth - 1], dims[depth], extent) for f in forms
    ):
        inner = s.fuse(loops.pop(), inner)
        depth -= 1
        extent *= dims[depth].extent
    return inner, extent


def _columns_first(
    s: Schedule, loops: Sequence[str], inner: str, size: int
) -> tuple[list[str], str]:
    """Tiles of `size` along the inner loop, each with all iterations of the loops around it."""
    if extents(s.kernel).get(inner, 1) <= size:
        return list(loops), inner
    tile, inner = s.split(inner, size, "overlap")
    s.reorder(tile, *loops)
    return [tile, *loops], inner


def _reads_apart(c: Computation, dims: Sequence[Dim], at: Context) -> bool:
    """Whether each element of a vector is read from a line of its own, whose other elements are
    read in the next steps of a loop around it, out of more than the first cache holds."""
    machine = at.machine
    vector, around = dims[-1].var, [d.var for d in dims[:-1]]

    def apart(read: Load) -> bool:
        form, size = address(read), read.dtype.itemsize
        step = stride(form, vector)
        near = [n for n in (stride(form, v) for v in around) if n is not None]
        return (
            step is not None
            and abs(step) * size >= machine.line
            and any(0 < abs(n) * size < machine.line for n in near)
            and read.buffer.size * size > machine.l1
        )

    return any(map(apart, c.accesses))


def _chunks(
    s: Schedule,
    c: Computation,
    loop: str,
    extent: int,
    costs: CostModel,
    choose: Choices,
) -> tuple[str, str]:
    """A single loop as chunks that threads share: the loop over them, and the one inside."""
    lanes = costs.machine.lanes(c.outputs[0].tensor.dtype)
    possible = [n for n in CHUNKS if n * lanes < extent]
    good = _whole_tiles(c, possible, extent, lanes, costs.chunk_vectors)
    count = choose(f"{c.name}.chunk", possible, good)
    chunk, inner = s.split(loop, count * lanes, "overlap")
    return chunk, inner


def _whole_tiles(
    c: Computation, possible: Sequence[int], extent: int, lanes: int, most: int
) -> int:
    """Vectors of a tile: at most as many, so that tiles do not overlap, if that is possible and
    the result may take the place of an operand, whose elements are then read only once."""
    out = c.outputs[0]
    shape, dtype = out.tensor.shape, out.tensor.dtype
    alike = len(c.outputs) == 1 and any(
        a.index == out.index and a.buffer.shape == shape and a.dtype == dtype
        for a in c.accesses
    )
    some = [n for n in (*possible, most) if n <= most]
    whole = [n for n in some if extent % (n * lanes) == 0]
    return whole[-1] if whole and alike else most


def _innermost(
    s: Schedule,
    c: Computation,
    dims: list[Dim],
    loops: list[str],
    costs: CostModel,
    choose: Choices,
) -> None:
    """Another dimension in the place of the last one, in the lists as well."""
    if len(dims) < 2:
        return
    names = [d.var.name for d in dims]
    usual = inner_dimension(c, dims, costs).var.name
    taken = choose(f"{c.name}.inner", names, usual)
    at = names.index(taken)
    if at < len(dims) - 1:
        dims.append(dims.pop(at))
        loops.append(loops.pop(at))
        s.reorder(*loops)
