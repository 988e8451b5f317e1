"""Each thread computes neighboring elements of a map, with vector loads and stores.

    for i in m: for j in n: y[i, j] = f(x[i, j], b[j])
    ->  blockIdx.x, threadIdx.x: for l in 4 vector: y[.., 4*j + l] = f(x[.., 4*j + l], b[4*j + l])

A warp accesses the same sectors of memory in a quarter of the requests. This applies to nests of
stores in which each access is contiguous along the innermost loop or does not depend on it, and no
condition depends on it: then a thread's groups are whole. A group that does not begin at a multiple
of its length is correct, too, but takes more loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.expr.nodes import Load, Select, Var
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import accesses, environment
from tilewright.loops.nodes import Block, For, If, Stmt, Store
from tilewright.schedule.space.patterns import address, stride, uses
from tilewright.targets.simt.machine import SimtMachine


def element_widths(nest: For, machine: SimtMachine) -> list[int]:
    """How many elements a thread may compute together, one first."""
    chain = list(_chain(nest))
    body, last = chain[-1].body, chain[-1]
    if machine.warp == 1 or not last.trips or not _is_dense(body, last.var):
        return [1]
    widest = max(a.buffer.dtype.itemsize for a in accesses(nest, environment(nest)))
    most = max(machine.vector_bytes // widest, 1)
    common = math.gcd(last.trips, 1 << most.bit_length() - 1)
    return [1 << n for n in range(common.bit_length())]


def usual_width(nest: For, widths: list[int], machine: SimtMachine) -> int:
    """The widest that leaves work for all units."""
    elements = math.prod(f.trips or 1 for f in _chain(nest))
    least = machine.units * machine.usual_threads
    return max(n for n in widths if n == 1 or elements >= n * least)


def _chain(nest: For) -> Iterator[For]:
    """The loops that are directly inside one another."""
    s: Stmt = nest
    while isinstance(s, For):
        yield s
        s = s.body


def _is_dense(body: Stmt, lane: Var) -> bool:
    """Whether it is stores only, with accesses and conditions as the module's docstring says."""
    stores = body.stmts if isinstance(body, Block) else (body,)
    nodes = list(postorder(body))
    conditions = (n.condition for n in nodes if isinstance(n, Select | If))
    found = [n for n in nodes if isinstance(n, Load)]
    found += [Load(x.buffer, x.index) for x in stores if isinstance(x, Store)]
    return (
        all(isinstance(x, Store) for x in stores)
        and all(a.buffer.static for a in found)
        and not any(uses(c, lane) for c in conditions)
        and all(stride(address(a), lane) in (0, 1) for a in found)
        and any(stride(address(a), lane) == 1 for a in found)
    )
