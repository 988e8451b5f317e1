"""pipeline: the next iteration's first statements before this one's last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from tilewright.expr.nodes import Buffer, Expr, Mod, const
from tilewright.loops.analysis.access import Env, accesses, commute, environment
from tilewright.loops.analysis.dependence import can_delay
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.analysis.verdict import Pair
from tilewright.loops.nodes import Alloc, Block, For, Kernel, Stmt, block, loop
from tilewright.loops.walk import StatementPlace, names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import because, check_one_place, refuse, show_pair
from tilewright.schedule.primitives.annotate import check_unmarked
from tilewright.schedule.registry import primitive
from tilewright.schedule.simplify_guards import simplify_guards


class _Body(NamedTuple):
    """What a loop runs: the statements in a sequence, and the buffers allocated around them."""

    buffers: tuple[Buffer, ...]
    stmts: tuple[Stmt, ...]


def sequence(s: Stmt) -> _Body:
    """The sequence of a loop's body, its allocations moved around all of it."""
    if isinstance(s, Alloc):
        inner = sequence(s.body)
        return _Body((s.buffer, *inner.buffers), inner.stmts)
    if isinstance(s, Block):
        buffers: list[Buffer] = []
        stmts: list[Stmt] = []
        for part in map(sequence, s.stmts):
            buffers += part.buffers
            stmts += part.stmts
        return _Body(tuple(buffers), tuple(stmts))
    return _Body((), (s,))


def inside(buffers: Sequence[Buffer], s: Stmt) -> Stmt:
    """A statement in the scope of its own buffers."""
    for b in reversed(buffers):
        s = Alloc(b, s)
    return s


@primitive
def pipeline(
    kernel: Kernel, loop: str, *stages: int, spare: int = 0
) -> tuple[Kernel, None]:
    """Run each statement of a loop's body some iterations late, so that iterations overlap.

    args: the loop; for each statement of its body, in order, by how many iterations it lags
        (allocations do not count, and are moved around the sequence); spare: further copies of the
        buffers that have several, for what goes on when the next iteration begins.
    requires: a serial loop of constant extent, more than the largest lag; one lag per statement,
        the least of them 0; where two statements conflict, outside the buffers allocated in
        the body, they do so in the same order as before (lemma, else isl); within an iteration, a
        statement does not lag behind one that uses what it writes; each of those buffers is
        allocated in one place of the body.
    The loop keeps its name and runs the steady state; what it lacks at both ends is written out
    before and after it (suffix `.pro<k>` and `.epi<k>`). A buffer of the body that is used at
    different lags has as many alternating copies as iterations use it at a time, and the spare
    ones.
    before: for i in n: alloc b: { b = load(i); use(i, b) }                   pipeline('i', 0, 1)
    after:  alloc b[2]: { b[0] = load(0)
                          for i in n-1: { b[(i+1) % 2] = load(i+1); use(i, b[i % 2]) }
                          use(n-1, b[(n-1) % 2]) }
    """
    f, place = tree.find_loop(kernel, loop, "pipeline")
    return pipelined(kernel, f, place, stages, "pipeline", spare), None


def pipelined(
    kernel: Kernel,
    f: For,
    place: StatementPlace,
    stages: Sequence[int],
    verb: str,
    spare: int = 0,
) -> Kernel:
    """`kernel` with a loop whose statements lag by `stages`; errors carry the name `verb`."""
    n = tree.trips(f, verb)
    if spare < 0:
        raise refuse(verb, f.var.name, f"spare is {spare}", "give 0 or more")
    body = sequence(f.body)
    check_unmarked(kernel, (f.var.name,), verb)
    for b in body.buffers:
        check_one_place(f, b, verb)
    _check_stages(f, n, body, stages, verb)
    _check_order(kernel, f, body, stages, verb)
    used = {b: _copies(b, body, stages) for b in body.buffers}
    copies = {b: n + spare if n > 1 else n for b, n in used.items()}
    parts = _Parts(kernel, f, body, stages, copies)
    depth = max(stages)
    prologue = [parts.end(t, f".pro{t}", range(t + 1)) for t in range(depth)]
    steady = parts.steady(depth, n - depth)
    epilogue = []
    for t in range(depth):
        running = range(t + 1, depth + 1)
        epilogue.append(parts.end(n + t, f".epi{t}", running))
    versions = [parts.versions[b] for b in body.buffers if copies[b] > 1]
    new = inside(versions, block(*prologue, steady, *epilogue))
    return edit.put(kernel, place, new)


def _check_stages(
    f: For, n: int, body: _Body, stages: Sequence[int], verb: str
) -> None:
    if f.kind != "serial":
        raise refuse(verb, f.var.name, f"the loop is {f.kind}", f"{verb} a serial loop")
    one_each = len(stages) == len(body.stmts)
    from_zero = min(stages, default=1) == 0
    if one_each and from_zero and max(stages) < n:
        return
    given = ", ".join(map(str, stages)) or "(none)"
    lines = []
    for k, s in enumerate(body.stmts):
        first_line = repr(s).splitlines()[0]
        lines.append(f"{k}: {first_line}")
    raise refuse(
        verb,
        f.var.name,
        f"the lags {given} are not one per statement from 0 on, at most {n - 1}",
        f"its {len(body.stmts)} statements are: {'; '.join(lines)}",
    )


def _copies(b: Buffer, body: _Body, stages: Sequence[int]) -> int:
    """How many iterations use a buffer of the body at a time."""
    used = []
    for lag, s in zip(stages, body.stmts, strict=True):
        if b in reads(s) | writes(s):
            used.append(lag)
    if used:
        return max(used) - min(used) + 1
    return 1


def _check_order(
    kernel: Kernel, f: For, body: _Body, stages: Sequence[int], verb: str
) -> None:
    """Require that statement a of iteration i and b of j keep their order if they conflict, for i
    <= j.

    a runs at i + stages[a], b at j + stages[b]; if a lags behind b by d, the order is violated for
    i - j from 0 (if a comes first in the text) up to d (d itself if b comes first).
    """
    for a, first in enumerate(body.stmts):
        for b, second in enumerate(body.stmts):
            lag = stages[a] - stages[b]
            if lag <= 0:
                continue
            verdict = can_delay(
                kernel, f, first, second, (int(a > b), lag - int(a < b))
            )
            own = _own_pair(body, first, second) if a < b else None
            if own is not None:
                reason = f"one {show_pair(*own)}"
            elif not verdict:
                reason = because(verdict)
            else:
                continue
            raise refuse(
                verb,
                f.var.name,
                f"statement {a} would run {lag} iterations after statement {b}, which it must "
                f"precede: {reason}",
                f"let statement {b} lag by {stages[a]} at least",
            )


def _own_pair(body: _Body, first: Stmt, second: Stmt) -> Pair | None:
    """Two accesses of a buffer that each iteration has for itself, one of each statement."""
    # With what is reallocated in each iteration: `together` asks for it.
    found = [accesses(inside(body.buffers, s)) for s in (first, second)]
    for x, y in product(*found):
        if x.buffer is not y.buffer or x.buffer not in body.buffers:
            continue
        conflict = x.writes or y.writes
        if conflict and not commute(x, y):
            return x, y
    return None


class _Parts:
    """The statements at chosen iterations, in the alternating copies of the body's buffers."""

    def __init__(
        self,
        kernel: Kernel,
        f: For,
        body: _Body,
        stages: Sequence[int],
        copies: Mapping[Buffer, int],
    ) -> None:
        self.loop = f
        self.body = body
        self.stages = stages
        self.env = environment(kernel.body)
        self.taken = names_of(kernel)
        self.versions: dict[Buffer, Buffer] = {}
        for b, n in copies.items():
            if n > 1:
                shape = (n, *b.extents)
                self.versions[b] = Buffer(b.name, shape, b.dtype, b.scope, b.swizzle)

    def _at(self, iteration: Expr, stmt: Stmt, env: Env) -> Stmt:
        moves = {old: _version(new, iteration) for old, new in self.versions.items()}
        values: dict[Any, Any] = {self.loop.var: iteration}
        new: Stmt = edit.rewrite(stmt, env, values, moves)
        return simplify_guards(new, env)

    def _with_buffers(self, stmts: Sequence[Stmt]) -> Stmt:
        """The statements, with the buffers that need no copies allocated around them."""
        new = block(*stmts)
        used = reads(new) | writes(new)
        return inside([b for b in self.body.buffers if b in used], new)

    def steady(self, depth: int, trips: int) -> Stmt:
        """The steady-state loop, over the iterations in which every statement runs."""
        var = self.loop.var
        env = {**self.env, var: (0, trips - 1)}
        stmts = []
        for lag, s in zip(self.stages, self.body.stmts, strict=True):
            iteration = var + (depth - lag) if depth > lag else var
            stmts.append(self._at(iteration, s, env))
        return loop(var, trips, self._with_buffers(stmts))

    def end(self, time: int, suffix: str, lags: range) -> Stmt:
        """The statements of some lags at one time, in a copy with its own names."""
        stmts = [
            self._at(const(time - q), s, self.env)
            for q, s in zip(self.stages, self.body.stmts, strict=True)
            if q in lags
        ]
        return edit.renamed(self._with_buffers(stmts), self.taken, suffix)[0]


def _version(buffer: Buffer, iteration: Expr) -> edit.Move:
    return lambda index: (buffer, (Mod(iteration, const(buffer.shape[0])), *index))
