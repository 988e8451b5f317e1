"""cache_write: stage the region written to a buffer."""

from __future__ import annotations

from tilewright.base.names import fresh
from tilewright.expr.nodes import Buffer, Load
from tilewright.loops.analysis.access import (
    Access,
    Env,
    Index,
    accesses_of,
    environment,
)
from tilewright.loops.analysis.region import Region, region, uncovered
from tilewright.loops.nodes import Alloc, For, Kernel, Stmt, Store, block
from tilewright.loops.scopes import Scope
from tilewright.loops.walk import StatementPlace, names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_kinds, refuse_buffer
from tilewright.schedule.registry import primitive_with
from tilewright.schedule.staging import StatementRange, all_writes, guarded, sweep


def body_of(
    verb: str,
    f: For,
    place: StatementPlace,
    buffer: str,
    alloc: StatementPlace | None,
) -> StatementRange:
    """The body of a loop that `buffer` exists around."""
    if alloc is not None and alloc.stmt not in place.above:
        raise refuse_buffer(
            verb,
            buffer,
            f"it does not exist around loop {f.var.name}",
            "name a loop in its scope",
        )
    return StatementRange(StatementPlace(f.body, (*place.above, f)))


@primitive_with(options=["name"])
def cache_write(
    kernel: Kernel,
    buffer: str,
    loop: str | None = None,
    scope: Scope = "register",
    name: str | None = None,
) -> tuple[Kernel, str]:
    """Work on what one iteration writes of `buffer` in its own buffer; returns its name.

    args: the buffer; the loop in whose body to stage it (None: around all nests that write it);
        the scope and name (default `<buffer>.acc`) of the new buffer.
    requires: the region one iteration touches has constant extents (bounds). Formally, with B the
        box around all elements that the body touches, S those that its first Store stores for sure
        (no guard, no gaps, before all else): if S = B, B is written back as the body leaves it;
        else B is read in first, so that what the body leaves alone is written back as it was, and
        no other iteration of a loop around that may run at the same time touches B.
    Nothing outside B is written: a program that writes a part of its result still does. The copy
    back is left out where the buffer is an intermediate that nothing else uses and the body reads
    nothing that it has not stored first; then the new buffer replaces it. The loops of these copies
    are `<new>.r<dimension>` and `<new>.w<dimension>`.
    before: for o: { C[o] = 0; for k: C[o] += A[o, k] }
    after:  for o: alloc c: { c[0] = 0; for k: c[0] += A[o, k]; C[o] = c[0] }
    """
    old, alloc = tree.find_buffer(kernel, buffer, "cache_write")
    env = environment(kernel.body)
    everywhere = _touching(kernel.body, old, "nothing writes it")
    if loop is None:
        part = all_writes(kernel, old, alloc)
    else:
        f, place = tree.find_loop(kernel, loop, "cache_write")
        part = body_of("cache_write", f, place, buffer, alloc)
    body = part.body
    touched = _touching(body, old, f"loop {loop} does not write it")
    box = region(old, touched, env, "cache_write")
    taken = names_of(kernel)
    new = Buffer(fresh(taken, name or f"{buffer}.acc"), box.shape, old.dtype, scope)

    def into_copy(index: Index) -> tuple[Buffer, Index]:
        return new, box.local(index)

    inner = edit.rewrite(body, env, moves={old: into_copy})
    private = alloc is not None and len(everywhere) == len(touched)
    if private and uncovered(body, old, env) is None:
        result = part.put(kernel, Alloc(new, inner))
        result = result.with_body(edit.without_alloc(result.body, old))
    else:
        parts = [inner, _copy(old, new, box, f"{new.name}.w", taken, env, back=True)]
        if uncovered(body, old, env, writes_too=True) is not None:
            filled = _copy(old, new, box, f"{new.name}.r", taken, env, back=False)
            parts.insert(0, filled)
        result = part.put(kernel, Alloc(new, block(*parts)))
        around = [x.var.name for x in part.place.loops]
        hint = "stage it before the loop gets its kind"
        check_kinds(result, around, "cache_write", hint)
    return result, new.name


def _touching(body: Stmt, buffer: Buffer, why_not: str) -> list[Access]:
    """The accesses to a buffer, at least one of which must write it."""
    found = accesses_of(body, buffer)
    if not any(a.writes for a in found):
        raise refuse_buffer(
            "cache_write", buffer.name, why_not, "cache_read stages reads"
        )
    return found


def _copy(
    old: Buffer,
    new: Buffer,
    box: Region,
    prefix: str,
    taken: set[str],
    env: Env,
    back: bool,
) -> Stmt:
    def body(local: Index) -> Stmt:
        point = box.point(local)
        if back:
            move = Store(old, point, Load(new, local))
        else:
            move = Store(new, local, Load(old, point))
        return guarded(point, old, env, move)

    return sweep(prefix, box.shape, taken, env, body)
