"""Serial innermost loops along rows run as vectors, where that changes nothing else.

    for x in 100: B[y, x] = A[y, 2*x] + 1.0

becomes, with 16 lanes,

    for x.o in 6: for x.i in 16 vector: B[y, x.o*16 + x.i] = A[y, x.o*32 + 2*x.i] + 1.0
    for x.t in 4 vector: B[y, x.t + 96] = A[y, 2*x.t + 192] + 1.0
"""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.expr.bounds import Env
from tilewright.expr.nodes import Expr, Max, Min, Var
from tilewright.expr.simplify import simplify
from tilewright.loops.analysis.access import Access, accesses, environment
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import Block, For, Kernel, Store, Unit, Update
from tilewright.loops.walk import StatementPlace, walk
from tilewright.schedule.primitives.split import split
from tilewright.schedule.primitives.vectorize import vectorize
from tilewright.schedule.tree import find_loop
from tilewright.targets.cpu.machine import CpuMachine
from tilewright.targets.llvm.emit_memory import MAX_LANES
from tilewright.targets.llvm.emit_near import parts
from tilewright.targets.llvm.emit_places import address
from tilewright.targets.llvm.lanes import lanes_of

FEW = 4  # iterations: fewer stay scalars


def row_vectors(kernel: Kernel, machine: CpuMachine) -> Kernel:
    """The kernel with its serial innermost loops along rows as vectors of whole registers.

    Such a loop has FEW or more iterations, and nothing in it but stores and updates. Each of these
    writes neighbors; what each reads is one element, or is so near that few vectors cover it; and
    `vectorize` proves that no iteration depends on another one. So no sum changes its order: every
    element is computed by the same operations. What is left over is its own vector.
    """
    for place in list(walk(kernel.body)):
        if isinstance(place.stmt, For) and _is_row(place.stmt, place):
            kernel = _in_vectors(kernel, place.stmt, machine) or kernel
    return kernel


def _is_row(f: For, place: StatementPlace) -> bool:
    """Whether it is an innermost loop of statements that may be lanes."""
    if f.kind != "serial" or f.trips is None or f.trips < FEW:
        return False
    if any(isinstance(s, Unit) for s in place.above):
        return False
    if any(around.kind == "vector" for around in place.loops):
        return False
    inside = [at.stmt for at in walk(f.body) if not isinstance(at.stmt, Block)]
    return bool(inside) and all(isinstance(s, Store | Update) for s in inside)


def _in_vectors(kernel: Kernel, f: For, machine: CpuMachine) -> Kernel | None:
    """The kernel with one row in vectors; None where that is not legal, or gains nothing."""
    n = _lanes(f, machine)
    try:
        made, (_, *tiles) = split(kernel, f.var.name, n, tail="cut")
        for name in tiles:
            tile, _ = find_loop(made, name, "vectorize")
            if not _is_near(tile, environment(made.body)):
                return None
            made, _ = vectorize(made, name)
    except ScheduleError:
        return None
    return made


def _lanes(f: For, machine: CpuMachine) -> int:
    """Lanes of a register for the widest elements, at most the loop's iterations."""
    size = max(a.buffer.dtype.itemsize for a in accesses(f.body))
    most = min(MAX_LANES, machine.vector_bits // 8 // size, f.trips or 1)
    return 1 << most.bit_length() - 1


def _is_near(tile: For, env: Env) -> bool:
    """Whether the lanes write neighbors, and read one element or what few vectors cover."""
    return all(_is_covered(a, tile, env) for a in accesses(tile.body))


def _is_covered(a: Access, tile: For, env: Env) -> bool:
    count = tile.trips or 1
    steps = [0] * count
    for atom, factor in address(a.buffer, a.index).terms:
        inner = atom if a.writes else _within(atom, tile.var)
        found = lanes_of(simplify(inner, env), tile.var, count)
        if found is None:
            return False
        steps = [n + factor * step for n, step in zip(steps, found.steps, strict=True)]
    if a.writes:
        return steps == list(range(count))
    is_uniform = len(set(steps)) == 1
    return is_uniform or parts(steps, min(steps), max(steps)) is not None


def _within(e: Expr, lane: Var) -> Expr:
    """An index without the bounds that keep it in a row: they are decided for most lanes."""
    while isinstance(e, Min | Max):
        inside = [x for x in (e.lhs, e.rhs) if lane in variables(x)]
        if len(inside) != 1:
            break
        e = inside[0]
    return e
