"""Where each allocation of a kernel lives: the function's stack, or an offset in the workspace.

The workspace holds what all threads share first, then one part per thread. Allocations that are
never alive together share their place. Small ones go to the stack first: those that LLVM can keep
in registers, which it does with nothing in the workspace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError
from tilewright.expr.nodes import INDEX, Buffer, Extent, Max, as_expr, const
from tilewright.ir.node import Node
from tilewright.loops.nodes import Alloc, For, Kernel, Stmt
from tilewright.runtime.abi import ALIGNMENT, REPORT_SIZE
from tilewright.targets.llvm.statements import has_vector_loop

STACK_LIMIT = 64 << 10
# Bytes between the parts of two threads. A processor fetches ahead of what it reads, to the end of
# the page at most; without a gap it takes lines that another thread is writing. With parts of one
# page that made the second of two threads up to twice as slow as the first
# (`python -m benchmarks.te_programs gemm-6-parallel --threads 2`).
THREADS_APART = 4096


@dataclass(slots=True)
class FrameLayout:
    """Offsets in bytes of the buffers in the workspace; those on the stack have none.

    shared: bytes of the common part. thread: bytes from one thread's part to the next. report: the
    offset of the report of sanitized code. They are expressions of the kernel's sizes where a
    buffer is.
    """

    offsets: dict[Buffer, Extent] = field(default_factory=dict)
    of_thread: set[Buffer] = field(default_factory=set)
    shared: Extent = 0
    thread: Extent = 0
    on_stack: set[Buffer] = field(default_factory=set)
    report: Extent | None = None


def plan_memory(kernel: Kernel, reports: bool = False) -> FrameLayout:
    """Place every Alloc, and the report that sanitized code writes.

    Raises CompileError for a memory scope this target does not have.
    """
    plan = FrameLayout()
    sizes: dict[Buffer, int] = {}
    for b, lanes in _wanted(kernel.body, 1):
        size = _bytes(b, lanes)
        if isinstance(size, int):
            sizes[b] = sizes.get(b, 0) + size
    left = STACK_LIMIT
    for b in sorted(sizes, key=lambda b: sizes[b]):
        left -= sizes[b]
        if left >= 0:
            plan.on_stack.add(b)
    _place(kernel.body, plan, 0, False, 1)
    if plan.of_thread:
        plan.thread = plan.thread + THREADS_APART
    if reports:
        plan.report = plan.shared
        plan.shared = plan.shared + REPORT_SIZE
    return plan


def _wanted(node: Node, lanes: int) -> Iterator[tuple[Buffer, int]]:
    """The buffers that may be on the stack, and the lanes that have one each."""
    if isinstance(node, For):
        lanes = _lanes(node, lanes)
    elif isinstance(node, Alloc) and node.buffer.scope in ("stack", "register"):
        yield node.buffer, lanes
    for child in node.children():
        if isinstance(child, Stmt):
            yield from _wanted(child, lanes)


def _lanes(loop: For, around: int) -> int:
    if loop.kind == "vector" and not has_vector_loop(loop.body):
        return loop.trips or 1
    return around


def _place(
    node: Node, plan: FrameLayout, offset: Extent, parallel: bool, lanes: int
) -> None:
    if isinstance(node, For):
        lanes = _lanes(node, lanes)
        if node.kind == "parallel" and not parallel:
            offset, parallel = 0, True
    elif isinstance(node, Alloc):
        offset = _allocate(node.buffer, plan, offset, parallel, lanes)
    for child in node.children():
        if isinstance(child, Stmt):
            _place(child, plan, offset, parallel, lanes)


def _allocate(
    buffer: Buffer, plan: FrameLayout, offset: Extent, parallel: bool, lanes: int
) -> Extent:
    if buffer.scope not in ("global", "stack", "register"):
        raise CompileError(
            f"the memory scope {buffer.scope!r} does not exist on a processor",
            code="TW-SCOPE",
            where=f"buffer {buffer.name}",
            hint="use global, stack or register",
        )
    if buffer in plan.on_stack:
        return offset
    size = _bytes(buffer, lanes)
    plan.offsets[buffer] = offset
    if parallel:
        plan.of_thread.add(buffer)
        plan.thread = _larger(plan.thread, offset + size)
    else:
        plan.shared = _larger(plan.shared, offset + size)
    return offset + size


def _bytes(buffer: Buffer, lanes: int) -> Extent:
    """What a buffer takes, one for each lane."""
    count: Extent = buffer.dtype.itemsize * lanes
    for extent in buffer.extents:
        # A size may make an extent negative: then there are no elements.
        count = count * (extent if isinstance(extent, int) else Max(extent, const(0)))
    return (count + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


def _larger(a: Extent, b: Extent) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return Max(as_expr(a, INDEX), as_expr(b, INDEX))
