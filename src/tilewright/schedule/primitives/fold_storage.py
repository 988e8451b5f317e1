"""fold_storage: a dimension of an intermediate as a ring of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Buffer, Mod, const
from tilewright.ir.node import substitute
from tilewright.loops.analysis.access import (
    Access,
    Env,
    Index,
    accesses_of,
    environment,
)
from tilewright.loops.nodes import For, Kernel, Stmt
from tilewright.loops.walk import below, loops_of
from tilewright.schedule import edit
from tilewright.schedule.legality import check_kinds, refuse_buffer
from tilewright.schedule.registry import primitive
from tilewright.schedule.relocate import (
    in_order,
    own_buffer,
    rows_of,
)


class _Phase(NamedTuple):
    """What one statement, or loop, touches: rows from `least` on, written up to `newest`; of its
    own rows up to `alive` must be kept at once."""

    least: int
    newest: int | None
    alive: int


@primitive
def fold_storage(
    kernel: Kernel, buffer: str, dim: int, factor: int
) -> tuple[Kernel, None]:
    """Keep only `factor` rows of a buffer, one dimension used as a ring: index mod factor.

    args: the buffer; the dimension (0 the outermost); the size of the ring.
    requires: at each step all rows touched are among the `factor` newest: with M(t) the largest row
        written up to and including step t, every row e touched in step t has e > M(t) - factor.
        Then two rows of one place in the ring are never alive at once. A step is an iteration of a
        serial loop directly in the buffer's scope in which the rows written never move back, or any
        other statement there as a whole.
    before: alloc T[n + 2]: for v in n: { T[v + 2] = f(v + 2); D[v] = T[v] + T[v + 2] }
    after:  alloc T[4]: for v in n: { T[(v + 2) % 4] = f(v + 2); D[v] = T[v % 4] + T[(v+2) % 4] }
    """
    target, alloc = own_buffer(kernel, buffer, "fold_storage")
    if not 0 <= dim < len(target.extents):
        raise refuse_buffer(
            "fold_storage",
            buffer,
            f"it has no dimension {dim}",
            "0 is the outermost",
        )
    extent = target.extents[dim]
    if factor < 1 or (isinstance(extent, int) and factor >= extent):
        raise refuse_buffer(
            "fold_storage",
            buffer,
            f"{factor} is not in 1..{extent - 1}, the sizes below that of dimension {dim}",
            "there is nothing to fold",
        )
    least, stmt = live_window(kernel, buffer, dim)
    if factor < least:
        loop = (
            f"loop {stmt.var.name}"
            if isinstance(stmt, For)
            else "a statement before the loop"
        )
        raise refuse_buffer(
            "fold_storage",
            buffer,
            f"{least} rows are alive at once in {loop}, more than {factor}",
            f"fold by at least {least}",
        )
    shape = tuple(factor if d == dim else n for d, n in enumerate(target.extents))
    new = Buffer(target.name, shape, target.dtype, target.scope)

    def move(index: Index) -> tuple[Buffer, Index]:
        ring = Mod(index[dim], const(factor))
        return new, tuple(ring if d == dim else i for d, i in enumerate(index))

    env = environment(kernel.body)
    body = edit.rewrite(alloc.stmt, env, moves={target: move})
    result = edit.put(kernel, alloc, edit.with_allocs(body, {target: new}))
    kinds = [f.var.name for f in loops_of(alloc.stmt) if f.kind != "serial"]
    check_kinds(result, kinds, "fold_storage", "fold before kinds are set")
    return result, None


def live_window(
    kernel: Kernel,
    name: str,
    dim: int,
) -> tuple[int, Stmt]:
    """The least factor that `fold_storage` accepts, and the statement that needs it."""
    buffer, alloc = own_buffer(kernel, name, "fold_storage")
    env = environment(kernel.body)
    newest: int | None = None
    least: tuple[int, Stmt] = (1, alloc.stmt)
    for s in in_order(below(alloc.stmt)):
        phase = _phase(s, buffer, dim, env)
        if phase is None:
            continue
        needed = phase.alive
        if newest is not None:
            needed = max(needed, newest - phase.least + 1)
        if needed > least[0]:
            least = (needed, s)
        if phase.newest is not None:
            newest = phase.newest if newest is None else max(newest, phase.newest)
    return least


def _phase(
    s: Stmt,
    buffer: Buffer,
    dim: int,
    env: Env,
) -> _Phase | None:
    found = accesses_of(s, buffer)
    if not found:
        return None
    if isinstance(s, For) and s.kind == "serial":
        moving = _moving(s, found, dim, env)
    else:
        moving = None
    if moving is not None:
        return moving
    ends = [bounds(a.index[dim], env) for a in found]
    if any(lo is None or hi is None for lo, hi in ends):
        raise refuse_buffer(
            "fold_storage",
            buffer.name,
            f"dimension {dim} has no bounds",
            "clamp it",
        )
    written = [
        hi
        for (_, hi), a in zip(ends, found, strict=True)
        if a.writes and hi is not None
    ]
    first = min(lo for lo, _ in ends if lo is not None)
    newest = max(written, default=None)
    return _Phase(first, newest, 1 if newest is None else newest - first + 1)


def _moving(
    f: For,
    found: Sequence[Access],
    dim: int,
    env: Env,
) -> _Phase | None:
    """The phase of a loop in which the rows written move forward; None if they do not."""
    firsts: list[Affine] = []
    written: list[Affine] = []
    for a in found:
        rows = rows_of(a, dim, Affine((), 0), f.var, env)
        if rows is None:
            return None
        firsts.append(rows[0])
        if a.writes:
            written.append(rows[1])
            following = substitute(to_expr(rows[1]), {f.var: f.var + 1})
            growth, _ = bounds(to_expr(affine(following) - rows[1]), env)
            if growth is None or growth < 0:
                return None
    least = [bounds(to_expr(e), env)[0] for e in firsts]
    newest = [bounds(to_expr(e), env)[1] for e in written]
    apart = [bounds(to_expr(top - e), env)[1] for top in written for e in firsts]
    if f.trips is None or None in (*least, *newest, *apart):
        return None
    return _Phase(
        min(n for n in least if n is not None),
        max((n for n in newest if n is not None), default=None),
        max((n + 1 for n in apart if n is not None), default=1),
    )
