"""Where the shared buffers of a block are: those that are never needed together share room.

    alloc r in shared:                        shared r at 0
      alloc t in shared:                      shared t at 0
        for k: t[..] = x[..]; ... t[..]  ->   for k: t[..] = x[..]; barrier; ... t[..]; barrier
        r[..] = ...                           barrier
      y[..] = r[..]                           r[..] = ...; barrier; y[..] = r[..]

Two buffers may share room if

    one after the other   all accesses of one are in earlier statements than all of the other, of a
                          sequence that all threads come to together (`gaps.py`)
    in each iteration     every loop around both sequences is around the allocations of both, so
                          that neither keeps anything from one iteration to the next

Accesses of two such buffers conflict wherever they are, so barriers and waits come between:
nobody reads one any more, all copies into it are there, and no unit multiplies it, before the other
is written. That costs time, so buffers stay apart where a block's memory is so small that it does
not decide how many blocks run at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import prod
from typing import Final

from tilewright.base.dtypes import uint8
from tilewright.expr.nodes import Buffer, Var, const
from tilewright.expr.swizzle import PATTERN
from tilewright.loops.analysis.access import Access, accesses
from tilewright.loops.nodes import For, Stmt, While
from tilewright.loops.passes.bulk_copies import BOX_KINDS, box_copy
from tilewright.loops.passes.gaps import Path, Sequences, distinct
from tilewright.loops.passes.thread_program import ThreadProgram
from tilewright.loops.passes.warp_units import warp_units
from tilewright.loops.scopes import OF_CLUSTER
from tilewright.loops.walk import loops_of

ALIGNMENT: Final = 16  # bytes: of every parameter, and of what a block shares
# Any element of buffers that share room, as the analysis of dependences sees it.
_ROOM: Final = Buffer("room", (1,), uint8, "shared")

Places = Mapping[Buffer, int]


def room_of(b: Buffer) -> int:
    """Bytes of a block's memory that a buffer, or its slice of one of the cluster, takes."""
    own = b.shape[1:] if b.scope == OF_CLUSTER else b.shape
    return room_for(prod(own) * b.dtype.itemsize)


def room_for(nbytes: int) -> int:
    """Bytes of a block's memory that a buffer of so many bytes takes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def end_of(places: Places) -> int:
    """Bytes that buffers at these places take."""
    return max((at + room_of(b) for b, at in places.items()), default=0)


def apart(shared: Sequence[Buffer], body: Stmt) -> dict[Buffer, int]:
    """Where each buffer begins if they are one after another."""
    needs = alignments(shared, body)
    places: dict[Buffer, int] = {}
    for b in shared:
        places[b] = _aligned(end_of(places), needs[b])
    return places


def shared_places(program: ThreadProgram, own: int) -> dict[Buffer, int]:
    """Where each buffer of a block begins, if some share room; empty if none do.

    own: bytes for each thread, up to which a block's buffers stay apart.
    """
    if program.cluster is not None:
        return {}  # other blocks use its memory, too
    usual = end_of(apart(program.shared, program.body))
    if usual <= own * prod(program.threads):
        return {}
    separable = set(_separable(program))
    needs = alignments(program.shared, program.body)
    places: dict[Buffer, int] = {}
    for b in sorted(program.shared, key=room_of, reverse=True):
        taken: dict[Buffer, int] = {}
        for o, at in places.items():
            if frozenset((b, o)) not in separable:
                taken[o] = at
        free = []
        for end in (0, *_ends(taken)):
            start = _aligned(end, needs[b])
            if not _meets(b, start, taken):
                free.append(start)
        places[b] = min(free)
    return places if end_of(places) < usual else {}


def overlapping(places: Places) -> Iterator[tuple[Buffer, Buffer]]:
    """The pairs of buffers that share room."""
    for one, other in combinations(places, 2):
        alone = {other: places[other]}
        if _meets(one, places[one], alone):
            yield one, other


def anywhere_in_room(a: Access) -> Access:
    """An access as one that any access of a buffer in the same room conflicts with."""
    return replace(a.anywhere, buffer=_ROOM, index=(const(0),))


def alignments(shared: Sequence[Buffer], body: Stmt) -> dict[Buffer, int]:
    """What the start of each buffer of a block is a multiple of, in bytes."""
    found = dict.fromkeys(shared, ALIGNMENT)
    for f in loops_of(body):
        if f.kind in BOX_KINDS:  # copied in an order that follows from the address
            found[box_copy(f).target] = PATTERN
    for unit in warp_units(body):
        assert unit.intrinsic is not None
        of = unit.intrinsic.intrinsic
        operands = unit.operands[-len(of.tensors) :]
        for tensor, o in zip(of.tensors, operands):
            if o.buffer in found:
                need = of.alignment.get(tensor.name, 1)
                found[o.buffer] = max(found[o.buffer], need)
    return found


def _aligned(at: int, to: int) -> int:
    return -(-at // to) * to


def _ends(places: Places) -> list[int]:
    return [at + room_of(b) for b, at in places.items()]


def _meets(b: Buffer, at: int, others: Places) -> bool:
    """Whether a buffer at a place has room of one of the others."""
    end = at + room_of(b)
    for o, place in others.items():
        its_end = place + room_of(o)
        if at < its_end and place < end:
            return True
    return False


def _separable(program: ThreadProgram) -> Iterator[frozenset[Buffer]]:
    """The pairs of buffers that may share room."""
    tree = Sequences(distinct(program.body))
    paths: dict[Buffer, list[Path]] = {b: [] for b in program.shared}
    for a in accesses(tree.body):
        if a.buffer in paths:
            paths[a.buffer].append(tree.path(a.place))
    for one, other in combinations(program.shared, 2):
        begins = program.homes[one] & program.homes[other]
        pairs = product(paths[one], paths[other])
        orders = {_order(p, q, begins) for p, q in pairs}
        first = all(n < 0 for n in orders)
        last = all(n > 0 for n in orders)
        if first or last:
            yield frozenset((one, other))


def _order(one: Path, other: Path, begins: Collection[Var]) -> int:
    """Which of two accesses is in the earlier statement: below 0, the first one; 0: neither, or
    some loop around both is not one of those in which both buffers begin anew."""
    common = [(p, q) for p, q in zip(one, other) if p.sequence is q.sequence]
    owners = [p.sequence.owner for p, _ in common]
    around = {s.var for s in owners if isinstance(s, For)}
    if any(isinstance(s, While) for s in owners) or not around <= set(begins):
        return 0
    first, then = common[-1]
    return first.number - then.number
