"""Which buffers a statement reads and writes, and which of its updates commute."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Alloc, For, Stmt, Update, While
from tilewright.loops.walk import summary


def reads(stmt: Stmt) -> frozenset[Buffer]:
    """Buffers whose contents `stmt` uses, including the targets of an `Update`."""
    return summary(stmt).reads


def writes(stmt: Stmt) -> frozenset[Buffer]:
    """Buffers whose contents `stmt` may change."""
    return summary(stmt).writes


def allocated(root: Stmt) -> set[Buffer]:
    """The buffers that exist only inside `root`."""
    return set(summary(root).buffers)


def together(update: Update, above: Sequence[Stmt]) -> tuple[Buffer, ...]:
    """The buffers of an update, if its values form one tuple: if one conflicts, all of them do.

    Only then may the steps of a commutative reducer with several values be reordered: the index in
    an argmax depends on the value next to it. Formally: all are changed at one index, and each
    iteration of each loop in `above` (the loops around the update) reallocates all or none of the
    buffers. Otherwise empty.
    """
    if len(update.buffers) == 1:
        return update.buffers
    if len(set(update.indices)) > 1:
        return ()
    fresh: list[set[Buffer]] = [set()]
    for s in above:
        if isinstance(s, For | While):
            fresh.append(set())
        elif isinstance(s, Alloc):
            fresh[-1].add(s.buffer)
    mine = set(update.buffers)
    if all(mine & new in (set(), mine) for new in fresh):
        return update.buffers
    return ()


def conflict(a: Stmt, b: Stmt) -> frozenset[Buffer]:
    """The buffers through which the order of two statements matters."""
    return (writes(a) & (reads(b) | writes(b))) | (reads(a) & writes(b))
