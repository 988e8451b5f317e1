"""Reductions to one result: by one block, or by many blocks and then one that combines their parts.

    for k in n: y[] add= x[k]    ->    blockIdx.x b: p[b] = 0; threadIdx.x: p[b] add= x[..]; a tree
                                       threadIdx.x: y[] add= p[..]; a tree

or, where any order will do (integers; floats with `math="fast"`), each block adds its part to the
result as one step of the device's memory:

    y[] = 0; blockIdx.x b: threadIdx.x: y[] add= x[..]; a tree; atomic y[] add= ..

Examples: softmax of one row, a norm, a total mean. Maps around them are launches by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilewright.compute.nodes import Computation
from tilewright.loops.passes.atomics import missing
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.inlining import inlined
from tilewright.schedule.space.nest import existing, extents, fuse_all
from tilewright.schedule.space.patterns import free_dims, reduction_dims
from tilewright.schedule.tree import find_loop
from tilewright.targets.simt.binding import bind_elements, over_threads
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.row_cost import Rows, lane_counts, part_counts
from tilewright.targets.simt.rows import ROUNDS, suits

THREADS: Final = 256  # of a block that has the device, or its unit, for itself
# How the parts of several blocks are combined.
LAUNCH: Final = "launch"
ATOMIC: Final = "atomic"


def is_total(computations: Sequence[Computation], machine: SimtMachine) -> bool:
    """Whether a group has reductions, and each of them has one result, or one for each output."""
    reductions = [c for c in computations if not c.is_map]
    alone = all(not free_dims(c) and reduction_dims(c) for c in reductions)
    return bool(reductions) and alone and all(map(suits, computations))


def by_parts(
    s: Schedule,
    computations: Sequence[Computation],
    machine: SimtMachine,
    choose: Choices,
) -> Schedule:
    """See the module's docstring. requires: `is_total`.

    parameters: those of `inlined`; `threads` of a block; `<reduction>.parts`, blocks that share it;
    `<reduction>.combined`, by a launch in one order, or by atomic updates in any.
    """
    rest = list(computations)
    if len(rest) > 1:
        s, rest = inlined(s, rest, choose)
    widest = max(extent for c in rest for extent in [1, *(d.extent for d in c.dims)])
    whole = Rows(1, widest, 4, len(rest), machine)
    counts = lane_counts(whole)
    threads = choose("threads", counts, max(n for n in counts if n <= THREADS))
    s = s.fork()
    for c in rest:
        loops = existing(s, [f"{c.name}.{d.var.name}" for d in c.dims])
        if loops and c.is_map:
            nest, _ = find_loop(s.kernel, loops[0], "bind")
            bind_elements(s, nest, threads)
        elif loops:
            _total(s, c, loops, threads, machine, choose)
    return s


def _total(
    s: Schedule,
    c: Computation,
    loops: Sequence[str],
    threads: int,
    machine: SimtMachine,
    choose: Choices,
) -> None:
    loop = fuse_all(s, loops)
    assert loop is not None
    width = extents(s.kernel)[loop]
    usual, possible = part_counts(machine, width, threads)
    parts = choose(f"{c.name}.parts", possible, usual)
    how = LAUNCH
    if parts > 1:
        how = choose(
            f"{c.name}.combined",
            [LAUNCH, ATOMIC] if atomic_works(c, machine) else [LAUNCH],
            LAUNCH,
        )
        part, loop = s.split(loop, -(-width // parts), "guard")
    if how == ATOMIC:
        s.atomic(part)
    elif parts > 1:
        made = s.rfactor(part, "global")
        s.merge(f"{part}.clear", part)
        part = f"{part}.clear"
        for name in made:
            s.cache_write(name, part, "register")
        s.bind(part, "blockIdx.x")
        over_threads(s, [f"{part.removesuffix('.clear')}.combine"], threads, ROUNDS)
    over_threads(s, [loop], threads, ROUNDS)


def atomic_works(c: Computation, machine: SimtMachine) -> bool:
    """Whether blocks may add parts of a reduction to its results, in any order."""
    tensor = c.outputs[0].tensor
    in_order = tensor.dtype.is_float and not machine.any_order
    return c.reducer is not None and not in_order and not missing(c.reducer, tensor)
