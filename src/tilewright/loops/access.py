"""Which buffers a statement reads and writes."""

from __future__ import annotations

from tilewright.expr.nodes import Buffer, Load
from tilewright.ir.node import postorder
from tilewright.loops.nodes import Stmt, Store, Update


def reads(stmt: Stmt) -> set[Buffer]:
    """Buffers whose contents `stmt` uses, those of an `Update`'s targets included."""
    found: set[Buffer] = set()
    for node in postorder(stmt):
        if isinstance(node, Load):
            found.add(node.buffer)
        elif isinstance(node, Update):
            found.update(node.buffers)
    return found


def writes(stmt: Stmt) -> set[Buffer]:
    """Buffers whose contents `stmt` may change."""
    found: set[Buffer] = set()
    for node in postorder(stmt):
        if isinstance(node, Store):
            found.add(node.buffer)
        elif isinstance(node, Update):
            found.update(node.buffers)
    return found


def conflict(a: Stmt, b: Stmt) -> set[Buffer]:
    """The buffers through which the order of two statements matters."""
    return (writes(a) & (reads(b) | writes(b))) | (reads(a) & writes(b))
