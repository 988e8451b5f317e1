"""Small steps that sketches share: vectors at the bottom of a nest, threads at its top."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base import events
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Expr, Load, Var
from tilewright.expr.reads import loads
from tilewright.ir.node import postorder
from tilewright.loops.nodes import PREFETCH, Kernel, Update
from tilewright.loops.walk import loops_of, walk
from tilewright.schedule import Schedule
from tilewright.schedule.primitives.split import Tail
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.tree import find_buffer

VECTORS = (1, 2, 4, 8)  # how many vectors of one loop may be in flight
UNROLLED = (2, 3, 4, 5, 7, 8)  # how many steps of a loop may be written out
AHEAD = (0, 256, 512, 1024, 2048, 4096)  # bytes of a prefetch that may be tried


def place(s: Schedule, name: str, stack: int) -> None:
    """A buffer into registers if it is one element, onto the stack if it has at most `stack` bytes,
    else into the workspace."""
    buffer, _ = find_buffer(s.kernel, name, "set_scope")
    size = buffer.size * buffer.dtype.itemsize
    scope = "register" if buffer.size == 1 else "stack" if size <= stack else "global"
    s.set_scope(name, scope)


def extents(kernel: Kernel) -> dict[str, int]:
    """The extent of every loop of constant extent, by name."""
    return {f.var.name: f.trips for f in loops_of(kernel.body) if f.trips is not None}


def divisors(n: int) -> list[int]:
    """The divisors of `n`, least first."""
    return [d for d in range(1, n + 1) if n % d == 0]


def existing(s: Schedule, names: Sequence[str]) -> list[str]:
    """Those of the loops that exist and run more than once."""
    found = extents(s.kernel)
    return [n for n in names if found.get(n, 1) > 1]


def vectorize_inner(
    s: Schedule, name: str, lanes: int, unrolled: int = 1, tail: Tail = "overlap"
) -> str | None:
    """Vectors of `lanes` along a loop, `unrolled` of them at a time; the last ones as `tail` says.

    The vector loop's name; None where the loop is too short.
    """
    extent = extents(s.kernel).get(name, 1)
    if extent < 2:
        return None
    if extent < lanes:
        s.vectorize(name)
        return name
    unrolled = max(1, min(unrolled, extent // lanes))
    if extent <= lanes * unrolled:
        return tile_vectors(s, name, lanes)
    outer, inner = s.split(name, lanes * unrolled, tail)
    if tail == "guard" and extent % (lanes * unrolled):
        tile_vectors(s, last_tile(s, outer, inner), lanes)
    return tile_vectors(s, inner, lanes)


def last_tile(s: Schedule, outer: str, inner: str) -> str:
    """The last of the tiles that a split with guards made, peeled off, so that no other has a
    guard.

    The loop in it. The place is named, because padding in the body has its own places.
    """
    s.partition_loop(outer, extents(s.kernel)[outer] - 1)
    return f"{inner}.p1"


def tile_vectors(s: Schedule, tile: str, lanes: int) -> str:
    """A tile of whole vectors, several of them written out; the vector loop."""
    size = extents(s.kernel)[tile]
    if size > lanes:
        block, tile = s.split(tile, lanes)
        s.vectorize(tile)
        s.unroll(block)
    elif size == lanes:
        s.vectorize(tile)
    return tile


def register_vectors(s: Schedule, name: str, lanes: int) -> tuple[str, ...]:
    """A loop over a register tile's columns as unrolled vectors; the loops, outermost first."""
    extent = extents(s.kernel).get(name, 1)
    if extent <= lanes:
        s.vectorize(name)
        return (name,)
    outer, inner = s.split(name, lanes)
    s.unroll(outer)
    s.vectorize(inner)
    return (outer, inner)


def written_out(
    s: Schedule, loops: Sequence[str], choose: Choices, name: str, most: int = 1
) -> None:
    """Several steps of the innermost of the loops, one after another.

    parameter: `<name>.unroll`, how many: 1, and divisors of all; by default the largest that is at
    most `most`.
    """
    there = existing(s, loops)
    if not there:
        return
    extent = extents(s.kernel)[there[-1]]
    counts = [n for n in UNROLLED if extent % n == 0]
    if not counts:
        return
    good = max(n for n in (1, *counts) if n <= max(1, most))
    count = choose(f"{name}.unroll", (1, *counts), good)
    if count == extent:
        s.unroll(there[-1])
    elif count > 1:
        _, inner = s.split(there[-1], count)
        s.unroll(inner)


def fetched_ahead(
    s: Schedule, loop: str | None, choose: Choices, name: str, good: int = 0
) -> None:
    """What a vector loop will read, brought into the caches before.

    parameter: `<name>.prefetch`, how many bytes ahead; 0 for not at all.
    """
    if loop is None:
        return
    ahead = choose(f"{name}.prefetch", AHEAD, good)
    if ahead:
        s.annotate(loop, PREFETCH, ahead)


def fuse_all(s: Schedule, names: Sequence[str]) -> str | None:
    """Directly nested loops as one; None if there is none."""
    fused: str | None = None
    for n in names:
        fused = n if fused is None else s.fuse(fused, n)
    return fused


def spread(s: Schedule, names: Sequence[str]) -> None:
    """Run the outermost loops on all threads.

    A loop that may not run so ends the list; the event `kept-serial` says why.
    """
    loops = existing(s, names)
    # Each on its own first: legality is plain to see before the loops are fused.
    done: list[str] = []
    for name in loops:
        try:
            s.parallel(name)
        except ScheduleError as error:
            events.emit(
                "kept-serial", kernel=s.kernel.name, loop=name, reason=str(error)
            )
            break
        done.append(name)
    fuse_all(s, done)


def start_apart(
    s: Schedule, target: str, tile: Sequence[str], batch: Sequence[str] = ()
) -> dict[str, str]:
    """Initialize the accumulators of a tile in a separate nest; returns its loops, by loop of the
    tile.

    tile: loops over the accumulators in the requested order. batch: loops that may be in between.
    """
    nest = [name for name in s.loops if name in {*tile, *batch}]
    nest = nest[min(map(nest.index, tile)) :]  # loops of one iteration may be between
    inside = s.loops[s.loops.index(nest[0]) :]
    starts = dict(zip(inside, s.decompose_reduction(target, nest[0]), strict=False))
    if [name for name in nest if name in tile] != [*tile]:
        s.reorder(*(starts[name] for name in tile))
    return starts


def indexing(
    s: Schedule, buffer: str, names: Sequence[str], along: Sequence[str] = ()
) -> list[str]:
    """Those of the loops that the single read of the buffer depends on, in the order given.

    along: of several reads, only those that depend on one of these loops count.
    """
    found = [set().union(*map(_loops_in, load.index)) for load in reads(s, buffer)]
    if len(found) > 1:
        found = [used for used in found if not used.isdisjoint(along)]
    return [n for n in names if n in found[0]] if len(found) == 1 else []


def reads(s: Schedule, buffer: str) -> set[Load]:
    """The different reads of a buffer by the kernel's statements."""
    return {
        load
        for place in walk(s.kernel.body)
        if isinstance(place.stmt, Update)
        for value in place.stmt.values
        for load in loads(value)
        if load.buffer.name == buffer
    }


def axes_along(s: Schedule, buffer: str, names: Sequence[str]) -> list[int]:
    """The axes of the buffer along which its reads move with one of the loops."""
    found = {
        axis
        for load in reads(s, buffer)
        for axis, index in enumerate(load.index)
        if not _loops_in(index).isdisjoint(names)
    }
    return sorted(found)


def _loops_in(index: Expr) -> set[str]:
    """The loops that an index depends on."""
    return {n.name for n in postorder(index) if isinstance(n, Var)}
