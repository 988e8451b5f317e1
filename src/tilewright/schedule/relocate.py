"""Shared parts of primitives that move rows of a buffer: the nests that compute it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import Buffer, Var
from tilewright.loops.analysis.access import (
    Access,
    Env,
    accesses,
    accesses_of,
)
from tilewright.loops.analysis.dependence import are_independent
from tilewright.loops.analysis.effects import allocated, reads, writes
from tilewright.loops.analysis.region import span
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import Alloc, Block, For, Kernel, Stmt, block
from tilewright.loops.walk import StatementPlace, below
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import refuse_buffer, show_pair
from tilewright.schedule.slice_nest import Slice, indexing_loop, slice_nest


class BufferHome(NamedTuple):
    """Where a buffer is computed before a consumer's loop.

    stmt: the sequence of both; made: the statements that write the buffer; between: the others
    after the first of these, up to the loop and with what contains it.
    """

    place: StatementPlace
    made: tuple[Stmt, ...]
    between: tuple[Stmt, ...]
    child: Stmt


def own_buffer(
    kernel: Kernel,
    name: str,
    verb: str,
) -> tuple[Buffer, StatementPlace]:
    """The buffer and its Alloc. Raises ScheduleError for a parameter."""
    buffer, alloc = tree.find_buffer(kernel, name, verb)
    if alloc is None:
        raise refuse_buffer(
            verb,
            name,
            "it is a parameter, whose memory is the caller's",
            "cache_write it first",
        )
    return buffer, alloc


def home_of(
    buffer: Buffer,
    alloc: StatementPlace,
    consumer: StatementPlace,
    verb: str,
) -> BufferHome:
    """The innermost sequence around the consumer's loop that computes the buffer before it."""
    path = (*consumer.above, consumer.stmt)
    name = buffer.name
    if alloc.stmt not in path:
        raise refuse_buffer(
            verb,
            name,
            "it is not allocated around that loop",
            "name a loop in its scope",
        )
    for depth in reversed(range(path.index(alloc.stmt) + 1, len(path) - 1)):
        home = path[depth]
        if not isinstance(home, Block):
            continue
        child = home.stmts.index(path[depth + 1])
        made = tuple(s for s in home.stmts[:child] if buffer in writes(s))
        if made:
            first = home.stmts.index(made[0])
            between = tuple(s for s in home.stmts[first : child + 1] if s not in made)
            found = BufferHome(
                StatementPlace(home, path[:depth]), made, between, path[depth + 1]
            )
            _check_movable(buffer, found, verb)
            return found
    raise refuse_buffer(
        verb,
        name,
        "no statement before that loop computes it",
        "name a loop of its consumer",
    )


def _check_movable(
    buffer: Buffer,
    home: BufferHome,
    verb: str,
) -> None:
    """The nests may run later: what they use is not written until the consumer's loop has ended."""
    private: set[Buffer] = {buffer}
    for s in home.made:
        private |= allocated(s)
    changed = {b for s in home.made for b in writes(s)} - private
    if changed:
        raise refuse_buffer(
            verb,
            buffer.name,
            f"the nest that computes it also writes {sorted(b.name for b in changed)}",
            "fission the nest first",
        )
    used = {b for s in home.made for b in reads(s)}
    body = home.place.stmt
    assert isinstance(body, Block)
    first = body.stmts.index(home.made[0])
    last = body.stmts.index(home.made[-1])
    others = [s for s in body.stmts[first:last] if s not in home.made]
    if any(buffer in reads(s) for s in others):
        raise refuse_buffer(
            verb,
            buffer.name,
            "it is read before all of its nests have run",
            "keep it where it is",
        )
    for s in home.between:
        lost = writes(s) & used
        if lost:
            raise refuse_buffer(
                verb,
                buffer.name,
                f"{sorted(b.name for b in lost)}, which it needs or is, changes before it is used",
                "place it earlier",
            )


def with_parts(
    kernel: Kernel,
    home: BufferHome,
    place: StatementPlace,
    first: Sequence[Stmt],
    inner: Stmt,
) -> Kernel:
    """`kernel` with the nests replaced by `first` and the loop by `inner`."""
    within = StatementPlace(place.stmt, place.above[len(home.place.above) :])
    sequence = home.place.stmt
    assert isinstance(sequence, Block)
    kept: list[Stmt] = []
    for s in sequence.stmts:
        if s is home.made[0]:
            kept += first
        if s is home.child:
            inside = StatementPlace(within.stmt, within.above[1:])
            if s is place.stmt:
                s = inner
            else:
                s = edit.put(Kernel("", (), (), s), inside, inner).body
        if s not in home.made:
            kept.append(s)
    return edit.put(kernel, home.place, block(*kept))


def row_loop(
    buffer: Buffer, made: Sequence[Stmt], dim: int, env: Env, verb: str
) -> tuple[Affine, int]:
    """The offset and number of the rows that the nests compute, one in each iteration of a loop."""
    found: set[tuple[Affine, int]] = set()
    for s in made:
        for a in accesses(s):
            if a.buffer is buffer:
                f = _loop_of_row(a, dim, verb)
                offset = affine(a.index[dim]) - affine(f.var)
                found.add((offset, tree.trips(f, verb)))
                verdict = are_independent(f, env)
                if not verdict:
                    what = f"its rows depend on one another: one {show_pair(*verdict.pair)}"
                    raise refuse_buffer(verb, buffer.name, what, "keep it whole")
    if len(found) != 1:
        raise refuse_buffer(
            verb,
            buffer.name,
            f"its nests compute different parts of dimension {dim}",
            "keep it whole",
        )
    return found.pop()


def _loop_of_row(
    a: Access,
    dim: int,
    verb: str,
) -> For:
    """The loop whose iterations index a dimension; ScheduleError where it is not exactly one."""
    f = indexing_loop(a, dim)
    if f is None:
        raise refuse_buffer(
            verb,
            a.buffer.name,
            f"dimension {dim} of {a} is not one loop of its nest",
            "do it before the loops of the nest are split",
        )
    return f


def restrict_to_rows(
    nest: Stmt, buffer: Buffer, dim: int, rows: Slice, env: Env, verb: str
) -> Stmt:
    """`nest` for some of the rows that it computes along a dimension, which `row_loop` has checked.

    Raises ScheduleError, in the name of `verb`, where these need more of it than themselves.
    """
    own = {_loop_of_row(a, dim, verb) for a in accesses_of(nest, buffer)}
    return slice_nest(nest, {f.var: rows for f in own}, env, verb)


def reads_in(
    buffer: Buffer,
    f: For,
    verb: str,
) -> list[Access]:
    """The reads of the buffer in a loop. Raises ScheduleError if it has none, or writes there."""
    found = accesses_of(f.body, buffer)
    if not found or any(a.writes for a in found):
        problem = "also writes" if found else "does not read"
        raise refuse_buffer(
            verb,
            buffer.name,
            f"loop {f.var.name} {problem} it",
            "name a consumer",
        )
    return found


def rows_of(
    a: Access, dim: int, offset: Affine, var: Var, env: Env
) -> tuple[Affine, Affine] | None:
    """The first and the last row of an access in one iteration of the loop of `var`, relative to
    `offset`, in terms of `var` alone; None where they have no bounds or other terms."""
    inner = {f.var for f in a.loops} - {var}
    found = span(a.index[dim], inner, env, wide=True)
    if found is None:
        return None
    form = found.base - offset
    if any(set(variables(atom)) != {var} for atom, _ in form.terms):
        return None
    return form + Affine((), found.lo), form + Affine((), found.hi)


def in_order(stmts: Iterable[Stmt]) -> Iterator[Stmt]:
    """The statements that run one after the other, those in sequences and scopes included."""
    for s in stmts:
        if isinstance(s, Block | Alloc):
            yield from in_order(below(s))
        else:
            yield s
