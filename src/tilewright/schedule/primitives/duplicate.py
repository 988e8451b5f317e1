"""duplicate: a consumer's loop reads a copy of a buffer, computed by its own nests."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import ScheduleError
from tilewright.base.names import fresh
from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.access import (
    Env,
    accesses,
    accesses_of,
    environment,
)
from tilewright.loops.analysis.effects import writes
from tilewright.loops.nodes import Alloc, Block, For, Kernel, Stmt, block
from tilewright.loops.walk import loops_of, names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.primitives.compute_at import producers
from tilewright.schedule.registry import primitive
from tilewright.schedule.staging import intermediate


@primitive
def duplicate(
    kernel: Kernel,
    buffer: str,
    loop: str,
) -> tuple[Kernel, tuple[str, ...]]:
    """Let a consumer's loop read a copy of an intermediate, computed by duplicated nests.

    args: the buffer; the loop that is to read the copy.
    requires: the loop reads the buffer and does not write it; the nests that write the buffer come
        before that loop in one sequence, are all that write it, and write nothing else (besides
        intermediates of the same shape, which are copied with it: the outputs of one reducer).
    A copied nest immediately follows its original and reads the same data: only the buffers
    themselves have changed, and it uses their copies. So copy and original are equal, and each can
    be placed (compute_at) near its readers. Names in the copy carry the suffix `.copy`. Returns the
    names of the buffers, then of the loops, in program order.
    before: alloc T: { T = f(); for i: A[i] = T[i]; for j: B[j] = T[j] }       duplicate('T', 'j')
    after:  alloc T: alloc T': { T = f(); T' = f(); for i: A[i] = T[i]; for j: B[j] = T'[j] }
    """
    f, place = tree.find_loop(kernel, loop, "duplicate")
    target, alloc = intermediate(kernel, buffer, "duplicate")
    if alloc.stmt not in place.above:
        raise _refused(buffer, f"it does not exist at loop {loop}")
    home, group, made, _ = producers(target, alloc, place, "duplicate")
    _check_uses(kernel, group, made, f)
    taken = names_of(kernel)
    copies: dict[Buffer, Buffer] = {}
    moves: dict[Buffer, edit.Move] = {}
    for b in group:
        name = fresh(taken, f"{b.name}.copy")
        copies[b] = Buffer(name, b.extents, b.dtype, b.scope, b.swizzle)
        moves[b] = edit.onto(copies[b])
    env = environment(kernel.body)
    again, loops = _copied(made, moves, taken, env)

    def reads_copies(new: For) -> Stmt:
        return edit.rewrite(new, env, moves=moves)  # type: ignore[no-any-return]

    assert isinstance(home.stmt, Block)
    parts: list[Stmt] = []
    for s in home.stmt.stmts:
        parts.append(edit.rewrite(s, env, fors={f.var: reads_copies}))
        if s in made:
            copied = again[made.index(s)]
            parts.append(copied)
    result = edit.put(kernel, home, block(*parts))
    for b, copy in copies.items():
        _, outer = tree.find_buffer(result, b.name, "duplicate")
        assert outer is not None and isinstance(outer.stmt, Alloc)
        both = Alloc(b, Alloc(copy, outer.stmt.body))
        result = edit.put(result, outer, both)
    return result, (*(c.name for c in copies.values()), *loops)


def _copied(
    made: Sequence[Stmt], moves: dict[Buffer, edit.Move], taken: set[str], env: Env
) -> tuple[list[Stmt], list[str]]:
    again = []
    loops = []
    for s in made:
        copy, table = edit.renamed(s, taken, ".copy")
        again.append(edit.rewrite(copy, env, moves=moves))
        loops += [table[f.var.name] for f in loops_of(s)]
    return again, loops


def _check_uses(
    kernel: Kernel, group: Sequence[Buffer], made: Sequence[Stmt], f: For
) -> None:
    used = accesses_of(f.body, *group)

    def count_writes(stmt: Stmt) -> int:
        return sum(a.writes and a.buffer in group for a in accesses(stmt))

    problem = None
    if not used:
        problem = "does not use it"
    elif any(b in writes(f) for b in group):
        problem = "also writes it"
    elif sum(map(count_writes, made)) != count_writes(kernel.body):
        problem = "is not after all nests that write it"
    if problem is not None:
        raise _refused(group[0].name, f"loop {f.var.name} {problem}")


def _refused(buffer: str, problem: str) -> ScheduleError:
    hint = "name a loop that only reads it, after all that computes it"
    return ScheduleError(f"duplicate: {problem}", where=f"buffer {buffer}", hint=hint)
