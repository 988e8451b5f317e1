"""Global work items as blocks of threads.

    for i in 100 blockIdx.x: B(i)             for i in 4 blockIdx.x:
                                       ->       for i_item in 25 threadIdx.x: B(i * 25 + i_item)

`MapGlb` says that each element has its own work item, and not which of them are a group. Loops
over blocks that are directly in one another, and have no loops over threads inside, are such items.
"""

from __future__ import annotations

from typing import Final

from tilewright.base.names import fresh
from tilewright.expr.nodes import INDEX, Var
from tilewright.ir.node import substitute
from tilewright.loops.nodes import Alloc as Memory
from tilewright.loops.nodes import Block, For, Kernel, Stmt, block, loop
from tilewright.loops.walk import loops_of, names_of

ITEMS: Final = 64  # of a group, at most; of two dimensions as many together


def grouped(kernel: Kernel) -> Kernel:
    """The kernel with its global work items in groups, of a size that divides their number."""
    names = names_of(kernel)
    return kernel.with_body(_grouped(kernel.body, names))


def _grouped(s: Stmt, names: set[str]) -> Stmt:
    if isinstance(s, Block):
        return block(*(_grouped(inner, names) for inner in s.stmts))
    if isinstance(s, Memory):
        return Memory(s.buffer, _grouped(s.body, names))
    if not _is_grid(s):
        return s
    nest: list[For] = []
    body = s
    while _is_grid(body):
        assert isinstance(body, For)
        nest.append(body)
        body = body.body
    if any("Idx" in f.kind for f in loops_of(body)):
        return s
    return _in_groups(nest, body, names)


def _is_grid(s: Stmt) -> bool:
    return isinstance(s, For) and s.kind.startswith("blockIdx") and s.trips is not None


def _in_groups(nest: list[For], body: Stmt, names: set[str]) -> Stmt:
    """The nest, the innermost dimension with as many items of a group as there can be."""
    most = ITEMS
    inner: list[For] = []
    outer: list[For] = []
    for f in reversed(nest):
        n = f.trips or 1
        size = max(d for d in range(1, min(n, most) + 1) if n % d == 0)
        most //= size
        item = Var(fresh(names, f"{f.var.name}_item"), INDEX)
        axis = f.kind.replace("blockIdx", "threadIdx")
        body = substitute(body, {f.var: f.var * size + item})
        inner.append(loop(item, size, body, axis))
        outer.append(loop(f.var, n // size, body, f.kind))
    for f in (*inner, *outer):
        body = f.replace(body=body)
    return body
