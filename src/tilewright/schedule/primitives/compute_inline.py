"""compute_inline: the value of an intermediate map in the place of its reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Expr, Extent, Load, Var
from tilewright.ir.node import Node, postorder
from tilewright.loops.analysis.access import (
    Access,
    Env,
    accesses,
    accesses_of,
    environment,
)
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.analysis.region import inside
from tilewright.loops.analysis.terms import is_zero
from tilewright.loops.nodes import Alloc, Block, For, Kernel, Stmt, Store, block
from tilewright.loops.walk import StatementPlace, walk
from tilewright.schedule import edit
from tilewright.schedule.registry import primitive
from tilewright.schedule.staging import intermediate


def _error(buffer: str, message: str, hint: str) -> ScheduleError:
    return ScheduleError(
        f"compute_inline: {message}",
        where=f"buffer {buffer}",
        hint=hint,
    )


@primitive
def compute_inline(kernel: Kernel, buffer: str) -> tuple[Kernel, None]:
    """Put the value of an intermediate map in the place of every read of it.

    requires: the buffer is computed by one Store in a plain nest, indexed by one loop (or the
        constant 0) per dimension and nothing else; all reads follow it in one sequence and are of
        elements that it stores (bounds, where the nest does not fill the buffer); what the value is
        computed from is not written in between.
    before: alloc T: { for i: T[i] = f(i)
                       for j: D[j] = g(T[h(j)]) }
    after:  for j: D[j] = g(f(h(j)))
    """
    target, alloc = intermediate(kernel, buffer, "compute_inline")
    users = accesses_of(alloc.stmt, target)
    stores = [a for a in users if a.writes]
    if len(stores) != 1 or stores[0].kind != "store":
        raise _error(
            buffer,
            "it is not computed by a single Store",
            "only maps can be inlined",
        )
    store = next(
        p
        for p in walk(alloc.stmt)
        if isinstance(p.stmt, Store) and p.stmt.buffer is target
    )
    home = max(n for n, s in enumerate(store.above) if isinstance(s, Block | Alloc))
    chain = (*store.above, store.stmt)[home + 1 :]
    loops = [s for s in chain[:-1] if isinstance(s, For)]
    vars_ = [i for i in stores[0].index if not is_zero(i)]
    if (
        len(loops) != len(chain) - 1
        or not isinstance(store.above[home], Block)
        or set(vars_) != {f.var for f in loops}
        or len(vars_) != len(loops)
    ):
        raise _error(
            buffer,
            f"{stores[0]} is not a plain nest with one loop per dimension",
            "compute_at can place any nest",
        )
    sequence = store.above[home]
    assert isinstance(sequence, Block) and isinstance(store.stmt, Store)
    _check_order(target, alloc.stmt, sequence, chain[0], users)
    value = store.stmt.value
    index = store.stmt.index
    env = environment(kernel.body)
    for a in users:
        if not a.writes:
            _check_stored(a, store.stmt, loops, env)

    def read(load: Load) -> Expr:
        pairs = zip(index, load.index, strict=True)
        point = {v: i for v, i in pairs if isinstance(v, Var)}
        result: Expr = edit.rewrite(value, env, point)
        return result

    others = block(*_others(sequence, chain[0]))
    without = edit.put(kernel, _place_of(kernel, sequence), others)
    body = _replace_loads(without.body, target, read)
    return kernel.with_body(edit.without_alloc(body, target)), None


def _check_stored(
    a: Access,
    store: Store,
    loops: Sequence[For],
    env: Env,
) -> None:
    """A read must be of an element that the nest stores, which may not fill the buffer."""
    counts: dict[Expr, Extent] = {f.var: f.count for f in loops}
    for d, (i, at) in enumerate(zip(a.index, store.index, strict=True)):
        stored = counts.get(at) if isinstance(at, Var) else 1
        extent = a.buffer.extents[d]
        if stored != extent and (stored is None or inside(i, stored, env) is not None):
            raise _error(
                a.buffer.name,
                f"{a} may be an element that is never stored, in dimension {d}",
                "keep the buffer in memory, or compute all of it",
            )


def _others(sequence: Block, nest: Stmt) -> list[Stmt]:
    return [s for s in sequence.stmts if s is not nest]


def _place_of(kernel: Kernel, stmt: Stmt) -> StatementPlace:
    return next(p for p in walk(kernel.body) if p.stmt is stmt)


def _check_order(
    buffer: Buffer, root: Stmt, sequence: Block, nest: Stmt, users: Sequence[Access]
) -> None:
    """All reads come after the nest in its sequence, and its inputs do not change until then."""
    later = sequence.stmts[sequence.stmts.index(nest) + 1 :]
    inside_ = sum(a.buffer is buffer for s in later for a in accesses(s))
    if inside_ != len(users) - 1:
        raise _error(
            buffer.name,
            "it is read outside the sequence it is computed in",
            "use compute_at",
        )
    changed = {b for s in later for b in writes(s)} & reads(nest)
    if changed:
        raise _error(
            buffer.name,
            f"{sorted(b.name for b in changed)}, which it is computed from, changes afterwards",
            "keep it in memory",
        )


def _replace_loads(root: Stmt, buffer: Buffer, read: Callable[[Load], Expr]) -> Stmt:
    done: dict[Node, Any] = {}
    for node in postorder(root):
        new = node.map(done.__getitem__)
        if isinstance(new, Load) and new.buffer is buffer:
            new = read(new)
        done[node] = block(*new.stmts) if isinstance(new, Block) else new
    result: Stmt = done[root]
    return result
