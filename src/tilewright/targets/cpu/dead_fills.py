"""Removing dead stores of constants: later stores overwrite them before any read.

A Func defined by Halide's `undef` starts as zeros, since no buffer may be read before it is
written. If updates write every element that is read, these zeros are removed:

    for x in 64: P[x] = 0                           for y in 8: for x in 8: P[y + x*8] = A[y, x]
    for y in 8: for x in 8: P[y + x*8] = A[y, x]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.expr.affine import affine
from tilewright.expr.nodes import Buffer, Const, Expr
from tilewright.loops.analysis.access import Access, accesses, accesses_of, environment
from tilewright.loops.analysis.dependence import stored_once
from tilewright.loops.nodes import Alloc, Block, For, Kernel, Stmt, Store, block
from tilewright.loops.walk import below, walk

SMALL = 4096  # elements that are gone through one by one

Values = np.ndarray[Any, np.dtype[np.int64]]
Places = tuple[Values, ...]


def dead_fills(kernel: Kernel) -> Kernel:
    """The kernel without nests that fill a buffer with constants that are never read.

    Formally: a nest of loops only stores constants; and for each of its buffers, either the next
    statement of the same sequence stores every element and reads none, or the buffer is small, is
    allocated around the sequence, and each element that a later statement reads is stored
    unconditionally by a statement before it.
    """
    body = _without(kernel.body, ())
    return kernel if body is kernel.body else kernel.with_body(body)


def _without(s: Stmt, own: tuple[Buffer, ...]) -> Stmt:
    """own: the buffers that are allocated directly around the statement."""
    inner = (*own, s.buffer) if isinstance(s, Alloc) else ()
    changed = {child: _without(child, inner) for child in below(s)}
    if any(new is not old for old, new in changed.items()):
        s = s.map(lambda c: changed.get(c, c))
    if not isinstance(s, Block):
        return s
    kept = []
    for n, nest in enumerate(s.stmts):
        behind = s.stmts[n + 1 :]
        if not _is_dead(nest, behind, own):
            kept.append(nest)
    if len(kept) == len(s.stmts):
        return s
    return block(*kept)


def _is_dead(nest: Stmt, behind: Sequence[Stmt], own: Sequence[Buffer]) -> bool:
    filled = _filled(nest)
    if not filled or not behind:
        return False
    for b in filled:
        if _writes_all(behind[0], b):
            continue
        if b not in own or not _reads_written(behind, b):
            return False
    return True


def _filled(nest: Stmt) -> set[Buffer]:
    """The buffers of a nest that stores nothing but constants; none of another."""
    found = set()
    for at in walk(nest):
        if isinstance(at.stmt, Store) and isinstance(at.stmt.value, Const):
            found.add(at.stmt.buffer)
        elif not isinstance(at.stmt, For | Block):
            return set()
    return found


def _writes_all(s: Stmt, buffer: Buffer) -> bool:
    """Whether the only access is a Store of as many different elements as there are."""
    found = [a for a in accesses(s, environment(s)) if a.buffer is buffer]
    if len(found) != 1 or found[0].kind != "store" or not buffer.static:
        return False
    [store] = found
    return _runs(store) == buffer.size and stored_once(store)


def _runs(a: Access) -> int | None:
    """How often an access happens; None where that is not the same each time."""
    if not all(isinstance(s, For | Alloc | Block) for s in a.place.above):
        return None
    counts = [f.trips for f in a.loops]
    if None in counts:
        return None
    return prod(n for n in counts if n is not None)


def _reads_written(stmts: Sequence[Stmt], buffer: Buffer) -> bool:
    """Whether what each statement reads is stored by those before it, element by element."""
    if not buffer.static or buffer.size > SMALL:
        return False
    known = np.zeros(buffer.shape, bool)
    for s in stmts:
        found = accesses_of(s, buffer)
        if not all(known[_most(a)].all() for a in found if a.kind != "store"):
            return False
        for a in found:
            if a.kind == "store" and (least := _least(a)) is not None:
                known[least] = True
    return True


def _most(a: Access) -> Places:
    """The elements that an access may touch: on each axis, all index values inside the buffer; an
    index that may be outside is guarded."""
    extents: dict[Expr, int | None] = {f.var: f.trips for f in a.loops}
    axes = []
    for e, n in zip(a.index, a.buffer.shape, strict=True):
        values = _values(e, extents)
        if values is None:
            axes.append(np.arange(n))
        else:
            axes.append(values[(values >= 0) & (values < n)])
    return np.ix_(*axes)


def _least(a: Access) -> Places | None:
    """The elements that are stored whenever the statement runs; None where that is not plain, or
    where a loop around does not run."""
    if not _runs(a):
        return None
    extents: dict[Expr, int | None] = {f.var: f.trips for f in a.loops}
    axes = [_values(e, extents) for e in a.index]
    used = [atom for e in a.index for atom, _ in affine(e).terms]
    if len(used) != len(set(used)):
        return None
    found = [v for v in axes if v is not None]
    return np.ix_(*found) if len(found) == len(axes) else None


def _values(e: Expr, extents: Mapping[Expr, int | None]) -> Values | None:
    """What an index is in the iterations of loops; None where it depends on something else."""
    form = affine(e)
    values = {form.const}
    for atom, factor in form.terms:
        trips = extents.get(atom)
        if trips is None or len(values) * trips > SMALL:
            return None
        values = {v + factor * n for v in values for n in range(trips)}
    return np.array(sorted(values), np.int64)
