"""Copies across the order of memory, written out by the schedule, go through the registers.

    for y in 16 unroll: for x in 16 vector: T[y, x] = A[x, y]

gathers each vector element by element. Where the machine has an intrinsic that transposes tiles,
the nest becomes a call of it. Several such copies in one nest become their own nests before.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtypes import DType
from tilewright.expr.nodes import Load
from tilewright.expr.reads import reads_memory
from tilewright.loops.intrinsic import intrinsic
from tilewright.loops.match import match
from tilewright.loops.nodes import Block, For, Kernel, Stmt, Store, Unit, block, loop
from tilewright.loops.operands import OperandMismatch
from tilewright.loops.walk import below, names_of
from tilewright.schedule import edit

TILE = 1024  # elements of a tile at most, which is written out as a whole


def copies_across(kernel: Kernel, named: Callable[[DType], str | None]) -> Kernel:
    """The kernel with nests that transpose replaced by the machine's transposition.

    named: the intrinsic that transposes tiles of a dtype, if there is one. Such a nest is a vector
    loop and an unrolled one, in either order, with constant extents and not inside another vector
    loop, around Stores of values loaded from buffers that none of them writes, at indices that do
    not depend on data.
    """
    taken = names_of(kernel)
    body = _changed(kernel.body, named, taken)
    return kernel if body is kernel.body else kernel.with_body(body)


def _changed(s: Stmt, named: Callable[[DType], str | None], taken: set[str]) -> Stmt:
    if isinstance(s, Unit):
        return s
    made = _tiles(s, named, taken) if isinstance(s, For) else None
    if made is not None:
        return made
    if isinstance(s, For) and s.kind == "vector":
        return s
    changed = {child: _changed(child, named, taken) for child in below(s)}
    if all(new is old for old, new in changed.items()):
        return s
    new: Stmt = s.map(lambda c: changed.get(c, c))
    return new


def _tiles(
    outer: For, named: Callable[[DType], str | None], taken: set[str]
) -> Stmt | None:
    """A nest as calls of the intrinsic, one for each Store; None for one that is not a copy
    across."""
    inner = outer.body
    if not isinstance(inner, For) or {outer.kind, inner.kind} != {"vector", "unroll"}:
        return None
    if not 1 < (outer.trips or 0) * (inner.trips or 0) <= TILE:
        return None
    stores = inner.body.stmts if isinstance(inner.body, Block) else (inner.body,)
    calls = [_call(s, (outer, inner), named, taken) for s in stores]
    found = [c for c in calls if c is not None]
    written = {c.operands[-1].buffer for c in found}
    read = {c.operands[0].buffer for c in found}
    apart = len(written) == len(found) and written.isdisjoint(read)
    return block(*found) if len(found) == len(stores) and apart else None


def _call(
    s: Stmt,
    loops: tuple[For, For],
    named: Callable[[DType], str | None],
    taken: set[str],
) -> Unit | None:
    if not isinstance(s, Store) or not isinstance(s.value, Load):
        return None
    name = named(s.buffer.dtype)
    static = s.buffer.static and s.value.buffer.static
    if name is None or not static or any(map(reads_memory, (*s.index, *s.value.index))):
        return None
    nest: Stmt = s
    for f in reversed(loops):
        nest = loop(f.var, f.extent, nest)
    nest, _ = edit.renamed(nest, taken, ".t")
    try:
        use, operands = match(intrinsic(name), nest)
    except OperandMismatch:
        return None
    return Unit(use.call.name, use, operands, nest)
