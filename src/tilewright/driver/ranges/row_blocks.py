"""Kernels of an open plan in blocks of rows, for intermediate tensors with two sizes."""

from __future__ import annotations

from dataclasses import replace

from tilewright.base import events
from tilewright.base.errors import VerifyError
from tilewright.base.names import fresh
from tilewright.compute.nodes import Computation
from tilewright.driver.ranges.part_assembly import decline, tell_fault
from tilewright.expr.nodes import INDEX, Expr, Max, Var, const
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, transform
from tilewright.loops.lower import lower
from tilewright.loops.nodes import For, If, Kernel, Stmt, block, loop
from tilewright.loops.sizes import statement, with_statement
from tilewright.loops.verify import verify
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.rows import rows
from tilewright.targets.base import Target


def by_rows(kernel: Kernel, group: FusionGroup, target: Target) -> Kernel | None:
    """The scheduled kernel of a group as parallel loops over blocks of rows.

    kernel: unscheduled. None if the group has no rows, or requires its sizes to be positive.
    """
    found = rows(group.computations, kernel.params)
    if found is None:
        decline(kernel, "rows", "it has no intermediate tensor of two sizes, in rows")
        return None
    if isinstance(statement(kernel), If):
        decline(kernel, "rows", "it needs positive sizes")
        return None
    taken = {b.name for b in kernel.params} | {v.name for v in kernel.sizes}
    nests: list[Stmt] = []
    parts: list[Computation] = []
    done: Expr = const(0, INDEX)
    # Sizes too small for one window give a number of rows below zero, whose remainder is above it.
    sizes = dict.fromkeys(kernel.sizes, (0, None))
    some_rows = Max(found.size, const(0, INDEX))
    total = simplify(some_rows, sizes)
    left = total
    step = target.open_costs.row_step
    counts = [step * step, step, 1]
    for count in counts:
        size = const(count, INDEX)
        unit = Var(fresh(taken, f"rows.{count}"), INDEX)
        some = found.some(count, done + unit * size, taken)
        nest = lower(kernel.name, some, kernel.params, kernel.outputs)
        nests.append(loop(unit, left // size, statement(nest)))
        parts += some
        done, left = total // size * size, total % size
    whole = with_statement(kernel, block(*nests))
    try:
        verify(whole)
    except VerifyError as error:
        tell_fault(error)
        events.emit("kept-whole", kernel=kernel.name, reason=str(error))
        return None
    made = target.default_schedule(whole, parts, ()).kernel
    events.emit("rows", kernel=kernel.name, at_a_time=counts)
    units = {n.var.name for n in nests if isinstance(n, For)}

    def shared(node: Node) -> Node:
        if not isinstance(node, For) or node.kind not in ("serial", "parallel"):
            return node
        kind = "parallel" if node.var.name in units else "serial"
        return node.replace(kind=kind)

    return replace(made, body=transform(made.body, shared))
