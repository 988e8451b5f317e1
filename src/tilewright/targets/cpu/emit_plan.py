"""Where each allocation of a kernel lives: the function's stack, or an offset in the workspace.

The workspace holds what all threads share first, then one part per thread. Allocations that are
never alive together share their place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.base.errors import CompileError
from tilewright.expr.nodes import Buffer
from tilewright.ir.node import Node
from tilewright.loops.nodes import Alloc, For, Kernel, Stmt
from tilewright.runtime.abi import ALIGNMENT

STACK_LIMIT = 64 << 10


@dataclass(slots=True)
class Plan:
    """Offsets in bytes of the buffers in the workspace; those on the stack have none.

    shared: bytes of the common part. thread: bytes of each thread's part.
    """

    offsets: dict[Buffer, int] = field(default_factory=dict)
    of_thread: set[Buffer] = field(default_factory=set)
    shared: int = 0
    thread: int = 0
    stack: int = 0


def plan_memory(kernel: Kernel) -> Plan:
    """Place every Alloc. Raises CompileError for a memory scope this target does not have."""
    plan = Plan()
    _place(kernel.body, plan, 0, False, 1)
    return plan


def _place(node: Node, plan: Plan, offset: int, parallel: bool, lanes: int) -> None:
    if isinstance(node, For):
        if node.kind == "vector" and not has_vector_loop(node.body):
            lanes = node.trips or 1
        if node.kind == "parallel" and not parallel:
            offset, parallel = 0, True
    elif isinstance(node, Alloc):
        offset = _allocate(node.buffer, plan, offset, parallel, lanes)
    for child in node.children():
        if isinstance(child, Stmt):
            _place(child, plan, offset, parallel, lanes)


def _allocate(buffer: Buffer, plan: Plan, offset: int, parallel: bool, lanes: int) -> int:
    if buffer.scope not in ("global", "stack", "register"):
        raise CompileError(
            f"the memory scope {buffer.scope!r} does not exist on a processor",
            code="TW-SCOPE",
            where=f"buffer {buffer.name}",
            hint="use global, stack or register",
        )
    size = buffer.size * buffer.dtype.itemsize * lanes
    size = -(-size // ALIGNMENT) * ALIGNMENT
    if buffer.scope != "global" and plan.stack + size <= STACK_LIMIT:
        plan.stack += size
        return offset
    plan.offsets[buffer] = offset
    if parallel:
        plan.of_thread.add(buffer)
        plan.thread = max(plan.thread, offset + size)
    else:
        plan.shared = max(plan.shared, offset + size)
    return offset + size


def has_vector_loop(stmt: Stmt) -> bool:
    """Whether a vector loop is in `stmt`."""
    if isinstance(stmt, For) and stmt.kind == "vector":
        return True
    return any(isinstance(c, Stmt) and has_vector_loop(c) for c in stmt.children())
