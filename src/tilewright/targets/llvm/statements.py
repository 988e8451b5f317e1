"""Properties of statements that the emitter needs: which buffers they change, whether lanes share
control flow."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.expr.nodes import Buffer, Load
from tilewright.ir.node import postorder
from tilewright.loops.nodes import Alloc, For, Stmt, Store, Update, While
from tilewright.loops.walk import below


def statements(stmt: Stmt) -> Iterator[Stmt]:
    """`stmt` and the statements in it; expressions are skipped."""
    waiting = [stmt]
    while waiting:
        s = waiting.pop()
        yield s
        waiting += below(s)


def has_vector_loop(stmt: Stmt) -> bool:
    """Whether a vector loop is in `stmt`."""
    return any(isinstance(s, For) and s.kind == "vector" for s in statements(stmt))


def written(stmt: Stmt) -> frozenset[Buffer]:
    """Buffers that a statement may change."""
    found: set[Buffer] = set()
    for s in statements(stmt):
        if isinstance(s, Store):
            found.add(s.buffer)
        elif isinstance(s, Update):
            found.update(s.buffers)
    return frozenset(found)


def same_control_flow(loop: For) -> bool:
    """Whether all iterations run the same statements, but for branches, which can be masked."""
    inside = list(statements(loop.body))
    own = {loop.var, *(s.buffer for s in inside if isinstance(s, Alloc))}
    for s in inside:
        if isinstance(s, While):
            return False
        if isinstance(s, For) and s.trips is None:
            for part in postorder(s.extent):
                if part in own:
                    return False
                if isinstance(part, Load) and part.buffer in own:
                    return False
    return True
