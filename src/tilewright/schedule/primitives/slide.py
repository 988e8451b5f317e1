"""slide: a consumer's iteration computes only what earlier iterations have not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Buffer, Expr, Load, Min, Var, const
from tilewright.expr.simplify import simplify
from tilewright.ir.node import substitute
from tilewright.loops.analysis.access import Access, Env, accesses, environment
from tilewright.loops.nodes import Alloc, Block, For, Kernel, Stmt, block
from tilewright.loops.walk import StatementPlace, loops_of, names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_kinds, refuse_buffer
from tilewright.schedule.registry import primitive
from tilewright.schedule.relocate import (
    BufferHome,
    home_of,
    own_buffer,
    reads_in,
    restrict_to_rows,
    row_loop,
    rows_of,
    with_parts,
)
from tilewright.schedule.slice_nest import Slice


class _Window(NamedTuple):
    """Iteration v of the consumer reads rows up to `last`, of v, along dimension `dim`.

    Rows are counted in iterations of the nests' loops, which compute row i + offset. From one
    iteration to the next `last` grows, by `least` to `most` rows. rows: how many there are.
    """

    dim: int
    last: Affine
    least: int
    most: int
    offset: Affine
    rows: int

    def done(
        self,
        v: Var,
        count: Expr,
    ) -> Affine:
        """How many rows iteration `count` has read some of, all before it included."""
        end = substitute(to_expr(self.last), {v: count})
        return affine(simplify(end)) + Affine((), 1)


@primitive
def slide(
    kernel: Kernel,
    buffer: str,
    loop: str,
) -> tuple[Kernel, tuple[str, ...]]:
    """Sliding window: an iteration of a consumer's loop computes only what earlier ones have not.

    args: the buffer, computed by nests before the loop and allocated around both; the serial loop
        that reads it.
    requires: iteration v reads rows of one dimension up to last(v), which grows with v by at most
        as many rows as are read (none is left out), such as c*v + hi or (v + 1) // 2; the index of
        no other one depends on v, but that of data may: each row is computed whole.
        The nests compute one row in each iteration i of one loop, and rows do not depend on one
        another, nor on what is kept next to other ones (`slice_nest`).
        Nothing they use is written before the loop has ended. Formally: with P(v) = last(v) + 1 + x
        for a number x that makes P(-1) no less than what is read before the loop, rows P(v - 1) up
        to P(v) are computed in iteration v; each row is computed once, and before its first use.
    The first rows are computed before the loop (its first window less one step); the names of
    those loops, `<loop>.warm`, are returned in program order.
    before: for i in n + 2: T[i] = f(i)
            for v in n: D[v] = T[v] + T[v+1] + T[v+2]
    after:  for i.warm in 2: T[i.warm] = f(i.warm)
            for v in n: { for i in 1: T[v + 2 + i] = f(v + 2 + i)
                          D[v] = T[v] + T[v+1] + T[v+2] }
    """
    f, place = tree.find_loop(kernel, loop, "slide")
    target, alloc = own_buffer(kernel, buffer, "slide")
    _check_in_order(buffer, f)
    count = tree.trips(f, "slide")
    home = home_of(target, alloc, place, "slide")
    _check_direct(target, home, f, place)
    env = environment(kernel.body)
    window = _window(target, f, home, env)
    rows = window.rows
    before = _rows_before(target, _before(home, place), window, env)
    start, end = (window.done(f.var, const(n)) for n in (-1, count - 1))
    if not (start.is_const and end.is_const):
        raise _no_window(buffer, reads_in(target, f, "slide"), f)
    done = max(start.const, before, start.const + rows - end.const, 0)
    if done >= rows:
        raise refuse_buffer(
            "slide",
            buffer,
            f"all of it is used before loop {loop}",
            "slide the other uses first",
        )
    warm, names = _warm(home, target, window, (done, env, names_of(kernel)))
    new = _new_rows(window, f.var, done - start.const, env)
    steps = [
        restrict_to_rows(s, target, window.dim, new, env, "slide") for s in home.made
    ]
    inner = For(f.var, f.extent, f.kind, block(*steps, f.body))
    result = with_parts(kernel, home, place, warm, inner)
    around = [x.var.name for x in place.loops]
    check_kinds(result, around, "slide", "slide before kinds are set")
    return result, names


def _check_in_order(buffer: str, f: For) -> None:
    """The loop's iterations run one after another: earlier ones have left their rows."""
    if f.kind != "serial":
        raise refuse_buffer(
            "slide",
            buffer,
            f"loop {f.var.name} is {f.kind}: no order to slide in",
            "keep serial",
        )


def _check_direct(
    buffer: Buffer,
    home: BufferHome,
    f: For,
    place: StatementPlace,
) -> None:
    """The loop runs once per run of the nests: nothing but allocations is around it there."""
    for s in place.above[len(home.place.above) + 1 :]:
        if not isinstance(s, Block | Alloc):
            name = (
                f"loop {s.var.name}" if isinstance(s, For) else f"a {type(s).__name__}"
            )
            raise refuse_buffer(
                "slide",
                buffer.name,
                f"{name} is between its computation and loop {f.var.name}",
                "slide it along that loop first, or use store_at",
            )


def _new_rows(
    window: _Window,
    v: Var,
    ahead: int,
    env: Env,
) -> Slice:
    """What iteration v computes: rows from P(v - 1) up to P(v), where there are that many."""
    shift = Affine((), ahead)
    start = window.done(v, v - 1) + shift
    limits: list[Expr] = []
    if window.least != window.most:
        limits.append(to_expr(window.done(v, v) + shift))
    _, last = bounds(to_expr(start + Affine((), window.most - 1)), env)
    if last is None or last >= window.rows:
        limits.append(const(window.rows))
    limit = limits[0] if limits else None
    if len(limits) > 1:
        limit = Min(limits[0], limits[1])
    return Slice(start, window.most, limit)


def _window(
    buffer: Buffer,
    f: For,
    home: BufferHome,
    env: Env,
) -> _Window:
    """The window of the reads in `f`."""
    found = reads_in(buffer, f, "slide")
    moving: set[int] = set()
    for a in found:
        moving |= {d for d, i in enumerate(a.index) if _moves(i, f.var)}
    if len(moving) != 1:
        raise refuse_buffer(
            "slide",
            buffer.name,
            f"loop {f.var.name} moves through {len(moving)} dimensions of it",
            "a window slides along one dimension",
        )
    dim = moving.pop()
    offset, rows = row_loop(buffer, home.made, dim, env, "slide")
    ends = [rows_of(a, dim, offset, f.var, env) for a in found]
    tops = [e[1] for e in ends if e is not None]
    last = _greatest(tops, env)
    if None in ends or last is None:
        raise _no_window(buffer.name, found, f)
    # The first step is from what iteration -1 would have read.
    previous = affine(substitute(to_expr(last), {f.var: f.var - 1}))
    least, most = bounds(to_expr(last - previous), env)
    if least is None or most is None or least < 0 or most < 1:
        raise _no_window(buffer.name, found, f)
    read = [bounds(to_expr(last - e[0]), env)[0] for e in ends if e is not None]
    if max(n for n in read if n is not None) + 1 < most:
        raise refuse_buffer(
            "slide",
            buffer.name,
            f"iterations of loop {f.var.name} leave rows of it out",
            "use compute_at or store_at, which compute what is read",
        )
    return _Window(dim, last, least, most, offset, rows)


def _moves(index: Expr, v: Var) -> bool:
    """Whether an index depends on v itself: where data choose a row, v may choose the data."""
    waiting: list[Any] = [index]
    while waiting:
        node = waiting.pop()
        if node is v:
            return True
        if not isinstance(node, Load):
            waiting += node.children()
    return False


def _greatest(forms: Sequence[Affine], env: Env) -> Affine | None:
    """The form that is never below another one; None where there is none."""
    for form in forms:
        lows = [bounds(to_expr(form - other), env)[0] for other in forms]
        if all(low is not None and low >= 0 for low in lows):
            return form
    return None


def _no_window(buffer: str, found: Sequence[Access], f: For) -> ScheduleError:
    return refuse_buffer(
        "slide",
        buffer,
        f"its reads {', '.join(sorted({str(a) for a in found}))} are not a window that moves "
        f"forward with {f.var.name}",
        "use store_at, which computes the whole window each time",
    )


def _before(home: BufferHome, place: StatementPlace) -> list[Stmt]:
    """The statements that run between the nests and the loop."""
    found = list(home.between[:-1])
    path = (*place.above, place.stmt)
    for s, inner in pairwise(path[len(home.place.above) + 1 :]):
        if isinstance(s, Block):
            found += s.stmts[: s.stmts.index(inner)]
    return found


def _rows_before(
    buffer: Buffer, stmts: Sequence[Stmt], window: _Window, env: Env
) -> int:
    """How many rows are used before the loop."""
    need = 0
    for s in stmts:
        for a in accesses(s):
            if a.buffer is buffer:
                _, hi = bounds(
                    to_expr(affine(a.index[window.dim]) - window.offset), env
                )
                if hi is None:
                    raise refuse_buffer(
                        "slide",
                        buffer.name,
                        f"{a} has no bounds, before the loop",
                        "clamp it",
                    )
                need = max(need, hi + 1)
    return need


def _warm(
    home: BufferHome, buffer: Buffer, window: _Window, scope: tuple[int, Env, set[str]]
) -> tuple[list[Stmt], tuple[str, ...]]:
    """The nests of the first `done` rows, copies with their own names."""
    done, env, taken = scope
    nests: list[Stmt] = []
    names: list[str] = []
    for s in home.made if done else ():
        first = Slice(Affine((), 0), done, None)
        part = restrict_to_rows(s, buffer, window.dim, first, env, "slide")
        copy, table = edit.renamed(part, taken, ".warm")
        nests.append(copy)
        names += [table[f.var.name] for f in loops_of(part)]
    return nests, tuple(names)
