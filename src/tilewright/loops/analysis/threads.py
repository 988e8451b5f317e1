"""Which accesses of two threads of a block, or of two blocks, touch one element.

A thread's program is analyzed as the loop nest over block and thread indices that it represents.
Two accesses conflict if one of them writes (an `Update` does, whatever its reducer is: threads do
not take turns). The questions, about iterations p of `a` and q of `b` that agree as `Together`
says:

    threads_conflict   p and q are of different threads of one block; of one cluster, if these share
                       the buffer
                       carried: and p is so many iterations of one loop before q
    blocks_conflict    p and q are of different blocks

and the answer is None only if no two of them touch the same element. It comes from the lemmas, or
otherwise from isl, with the two threads as a witness.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Extent,
    Var,
    as_expr,
)
from tilewright.loops.analysis.access import Access, guarded_accesses
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.analysis.isl import Relation, ask
from tilewright.loops.analysis.lemmas import agreeing
from tilewright.loops.analysis.verdict import Illegal, Unknown
from tilewright.loops.launch import AXIS
from tilewright.loops.nodes import For, Stmt, loop
from tilewright.loops.scopes import OF_CLUSTER
from tilewright.loops.walk import StatementPlace

BLOCKS: Final = tuple(v for axis, v in AXIS.items() if axis.startswith("blockIdx"))
THREADS: Final = tuple(v for axis, v in AXIS.items() if axis.startswith("threadIdx"))
Conflict = Illegal | Unknown | None


def shared_accesses(
    body: Stmt,
    grid: Sequence[Extent],
    threads: Sequence[int],
    also: Collection[Buffer] = (),
    cluster: Var | None = None,
) -> dict[Buffer, list[Access]]:
    """A thread's accesses to memory shared with other threads, by buffer, for buffers that are
    written. also: other buffers whose accesses are wanted. cluster: the axis of blocks that share
    memory.

    The places begin with the loops over the blocks and the threads; that over the blocks of a
    cluster is bound to their axis.
    """
    numbers = dict(zip((*BLOCKS, *THREADS), (*grid, *threads), strict=True))
    whole = body
    for var, extent in reversed(numbers.items()):
        kind = var.name if var is cluster else "serial"
        whole = loop(var, as_expr(extent, INDEX), whole, kind)
    private = set(allocated(body)).difference(also)
    found: dict[Buffer, list[Access]] = {}
    for a in guarded_accesses(whole):
        if a.buffer not in private:
            found.setdefault(a.buffer, []).append(a)
    return {
        b: some for b, some in found.items() if b in also or any(a.writes for a in some)
    }


def _shares(f: For, buffer: Buffer) -> bool:
    """Whether different iterations of a loop share the memory of a buffer, and can meet."""
    if buffer.scope == OF_CLUSTER and f.kind in AXIS:
        return True
    return f.var in THREADS


def blocks_conflict(a: Access, b: Access) -> Conflict:
    """Whether `a` in one block and `b` in another one touch one element."""
    blocks = [f for f in a.loops if f.var in BLOCKS and f.trips != 1]
    return _ask(a, b, (), blocks, _apart)


def threads_conflict(
    a: Access,
    b: Access,
    same: Collection[For],
    carrier: For | None = None,
    distance: str = ">= 1",
    own: bool = False,
) -> Conflict:
    """Whether `a` in one thread and `b` in another thread, of the block or of the cluster that has
    the buffer, touch the same element.

    same: loops around both that are in the same iteration. carrier: a loop of which `b` is in a
    later iteration than `a`, at this distance. own: also count one and the same thread.
    """
    shared = [f for f in a.loops if _shares(f, a.buffer)]
    blocks = [f for f in a.loops if f.var in BLOCKS and f not in shared]
    threads = [f for f in shared if own or f.trips != 1]
    equal = [*blocks, *(f for f in a.loops if f in same)]
    differ = _whichever if own else _apart
    if carrier is None:
        return _ask(a, b, equal, threads, differ, None, own)

    def relation(p: Sequence[str], q: Sequence[str]) -> str:
        return f"({differ(p[:-1], q[:-1])}) and {q[-1]} - {p[-1]} {distance}"

    return _ask(a, b, equal, threads, relation, carrier, own)


def _ask(
    a: Access,
    b: Access,
    equal: Sequence[For],
    differ: Sequence[For],
    relation: Relation,
    carrier: For | None = None,
    own: bool = False,
) -> Conflict:
    """The question, for loops that are `equal` in both and others of which some `differ`.

    own: the others may also all be equal.
    """
    if not differ:
        return None
    band = [*differ] if carrier is None else [*differ, carrier]
    one, two = (_reordered(x, equal, band) for x in (a, b))
    agreed = agreeing(one, two, [f.var for f in band])
    if agreed is None or (not own and all(f.var in agreed for f in differ)):
        return None
    if carrier is not None and carrier.var in agreed:
        return None
    return ask(one, two, band, relation, pair=(a, b))


def _apart(p: Sequence[str], q: Sequence[str]) -> str:
    return " or ".join(f"{x} != {y}" for x, y in zip(p, q, strict=True))


def _whichever(p: Sequence[str], q: Sequence[str]) -> str:
    return "0 = 0"


def _reordered(
    a: Access,
    equal: Sequence[For],
    band: Sequence[For],
) -> Access:
    """The access with the loops of equal iterations outermost, and then the band."""
    first = [*equal, *band]
    rest = [s for s in a.place.above if s not in first]
    return replace(a, place=StatementPlace(a.place.stmt, (*first, *rest)))
