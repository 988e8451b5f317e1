"""store_at, slide, fold_storage: storage further out than its computation, and sliding windows.

Halide's `store_at(outer).compute_at(inner)` is, in these primitives: `compute_at(buffer, outer)`;
then `slide(buffer, inner)` where the windows of neighbouring iterations overlap, else
`store_at(buffer, outer, inner)`; then `fold_storage`, since only a window is live at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Buffer, Expr, Mod, Var, const
from tilewright.loops.access import reads, writes
from tilewright.loops.nodes import Alloc, Block, For, If, Kernel, Stmt, block
from tilewright.schedule import tree
from tilewright.schedule.legality import carried, check_kinds, show_pair
from tilewright.schedule.primitives.place import compute_at
from tilewright.schedule.region import Span, inside, region, span, uncovered
from tilewright.schedule.table import primitive


def _error(verb: str, buffer: str, message: str, hint: str) -> ScheduleError:
    return ScheduleError(f"{verb}: {message}", where=f"buffer {buffer}", hint=hint)


class _Home(NamedTuple):
    """Where a buffer is computed before a consumer's loop.

    stmt: the sequence of both; made: the statements that write the buffer; between: the others
    after the first of these, up to the loop and with what contains it.
    """

    place: tree.Place
    made: tuple[Stmt, ...]
    between: tuple[Stmt, ...]
    child: Stmt


def _allocated(kernel: Kernel, name: str, verb: str) -> tuple[Buffer, tree.Place]:
    buffer, alloc = tree.find_buffer(kernel, name, verb)
    if alloc is None:
        raise _error(
            verb, name, "it is a parameter, whose memory is the caller's", "cache_write it first"
        )
    return buffer, alloc


def _home(buffer: Buffer, alloc: tree.Place, consumer: tree.Place, verb: str) -> _Home:
    """The innermost sequence around the consumer's loop that computes the buffer before it."""
    path = (*consumer.above, consumer.stmt)
    name = buffer.name
    if alloc.stmt not in path:
        raise _error(verb, name, "it is not allocated around that loop", "name a loop in its scope")
    for depth in reversed(range(path.index(alloc.stmt) + 1, len(path) - 1)):
        home = path[depth]
        if not isinstance(home, Block):
            continue
        child = home.stmts.index(path[depth + 1])
        made = tuple(s for s in home.stmts[:child] if buffer in writes(s))
        if made:
            first = home.stmts.index(made[0])
            between = tuple(s for s in home.stmts[first : child + 1] if s not in made)
            found = _Home(tree.Place(home, path[:depth]), made, between, path[depth + 1])
            _check_movable(buffer, found, verb)
            return found
    raise _error(
        verb, name, "no statement before that loop computes it", "name a loop of its consumer"
    )


def _check_movable(buffer: Buffer, home: _Home, verb: str) -> None:
    """The nests may run later: what they use is not written until the consumer's loop has ended."""
    private: set[Buffer] = {buffer}
    for s in home.made:
        private |= tree.allocated(s)
    changed = {b for s in home.made for b in writes(s)} - private
    if changed:
        raise _error(
            verb,
            buffer.name,
            f"the nest that computes it also writes {sorted(b.name for b in changed)}",
            "fission the nest first",
        )
    used = {b for s in home.made for b in reads(s)}
    for s in home.between:
        lost = writes(s) & used
        if lost:
            raise _error(
                verb,
                buffer.name,
                f"{sorted(b.name for b in lost)}, which it needs or is, changes before it is used",
                "place it earlier",
            )


# -- slide


class _Window(NamedTuple):
    """Iteration v of the consumer reads rows `step*v + first .. step*v + last` of dimension `dim`.

    Rows are counted in iterations of the nests' loops, which compute row i + offset.
    """

    dim: int
    step: int
    last: int
    offset: Affine


@primitive
def slide(kernel: Kernel, name: str, loop: str) -> tuple[Kernel, tuple[str, ...]]:
    """Sliding window: an iteration of a consumer's loop computes only what earlier ones have not.

    args: the buffer, computed by nests before the loop and allocated around both; the serial loop
        that reads it.
    requires: iteration v reads rows c*v + lo .. c*v + hi of one dimension (c >= 1, hi - lo >= c, so
        that neighbouring iterations share some), and what it reads of the others does not depend
        on v. The nests compute one row in each iteration i of one loop, and rows do not depend on
        one another. Nothing they use is written before the loop has ended. Formally: with p rows
        done before, p >= hi + 1 - c, row p + c*v + j (0 <= j < c) is computed in iteration v; each
        row is computed once, and before its first use: c*v + hi < p + c*(v + 1).
    The first rows are computed before the loop (its first window less one step); the names of
    those loops, `<loop>.warm`, are returned in program order.
    before: for i in n + 2: T[i] = f(i)
            for v in n: D[v] = T[v] + T[v+1] + T[v+2]
    after:  for i.warm in 2: T[i.warm] = f(i.warm)
            for v in n: { for i in 1: T[v + 2 + i] = f(v + 2 + i)
                          D[v] = T[v] + T[v+1] + T[v+2] }
    """
    f, place = tree.find_loop(kernel, loop, "slide")
    buffer, alloc = _allocated(kernel, name, "slide")
    if f.kind != "serial":
        raise _error("slide", name, f"loop {loop} is {f.kind}: no order to slide in", "keep serial")
    count = tree.trips(f, "slide")
    home = _home(buffer, alloc, place, "slide")
    _check_direct(buffer, home, f, place)
    env = tree.environment(kernel.body)
    window, rows = _window(buffer, f, home, env)
    before = _rows_before(buffer, home, window, env)
    done = max(window.last + 1 - window.step, before, rows - window.step * count, 0)
    if done >= rows:
        raise _error(
            "slide", name, f"all of it is used before loop {loop}", "slide the other uses first"
        )
    warm, names = _warm(home, buffer, window, (done, env, tree.names(kernel)))
    start = affine(const(done)) + Affine(((f.var, window.step),), 0)
    short = done + window.step * count > rows
    steps = [
        _restricted(s, buffer, window, (to_expr(start), window.step, rows if short else None), env)
        for s in home.made
    ]
    inner = For(f.var, f.extent, f.kind, block(*steps, f.body))
    result = _with_parts(kernel, home, place, warm, inner)
    check_kinds(result, [x.var.name for x in place.loops], "slide", "slide before kinds are set")
    return result, names


def _check_direct(buffer: Buffer, home: _Home, f: For, place: tree.Place) -> None:
    """The loop runs once per run of the nests: nothing but allocations is around it there."""
    for s in place.above[len(home.place.above) + 1 :]:
        if not isinstance(s, Block | Alloc):
            name = f"loop {s.var.name}" if isinstance(s, For) else f"a {type(s).__name__}"
            raise _error(
                "slide",
                buffer.name,
                f"{name} is between its computation and loop {f.var.name}",
                "slide it along that loop first, or use store_at",
            )


def _with_parts(
    kernel: Kernel, home: _Home, place: tree.Place, first: Sequence[Stmt], inner: Stmt
) -> Kernel:
    """`kernel` with `first` in the place of the nests, and `inner` in that of the loop."""
    within = tree.Place(place.stmt, place.above[len(home.place.above) :])
    sequence = home.place.stmt
    assert isinstance(sequence, Block)
    kept: list[Stmt] = []
    for s in sequence.stmts:
        if s is home.made[0]:
            kept += first
        if s is home.child:
            below = tree.Place(within.stmt, within.above[1:])
            s = inner if s is place.stmt else tree.put(Kernel("", (), (), s), below, inner).body
        if s not in home.made:
            kept.append(s)
    return tree.put(kernel, home.place, block(*kept))


def _window(buffer: Buffer, f: For, home: _Home, env: tree.Env) -> tuple[_Window, int]:
    """The window of the reads in `f`, and the number of rows that the nests compute."""
    found = [a for a in tree.accesses(f.body) if a.buffer is buffer]
    if not found:
        raise _error("slide", buffer.name, f"loop {f.var.name} does not read it", "name a consumer")
    moving = {d for a in found for d, i in enumerate(a.index) if f.var in tree.variables(i)}
    if len(moving) != 1:
        raise _error(
            "slide",
            buffer.name,
            f"loop {f.var.name} moves through {len(moving)} dimensions of it",
            "a window slides along one dimension",
        )
    dim = moving.pop()
    offset, rows = _row_loop(buffer, home.made, dim, env)
    spans = [span(a.index[dim], {x.var for x in a.loops}, env) for a in found]
    ends = [_relative(s, offset, f.var) for s in spans]
    steps = {e[0] for e in ends if e is not None}
    if None in ends or len(steps) != 1 or min(steps) < 1:
        raise _error(
            "slide",
            buffer.name,
            f"its reads {', '.join(sorted({str(a) for a in found}))} are no window that moves "
            f"forward with {f.var.name}",
            "use store_at, which computes the whole window each time",
        )
    step = steps.pop()
    first, last = min(e[1] for e in ends if e), max(e[2] for e in ends if e)
    if last - first < step or tree.trips(f, "slide") < 2:
        raise _error(
            "slide",
            buffer.name,
            f"iterations of loop {f.var.name} share nothing of it",
            "compute_at does no work twice here",
        )
    return _Window(dim, step, last, offset), rows


def _relative(s: Span | None, offset: Affine, var: Var) -> tuple[int, int, int] | None:
    """A span as (step, first, last) of the row `step*v + first ..`; None if it is no such."""
    if s is None:
        return None
    form = s.base - offset
    step = form.coefficient(var)
    if any(atom is not var for atom, _ in form.terms):
        return None
    return step, form.const + s.lo, form.const + s.hi


def _row_loop(buffer: Buffer, made: Sequence[Stmt], dim: int, env: tree.Env) -> tuple[Affine, int]:
    """The offset and number of the rows that the nests compute, one in each iteration of a loop."""
    found: set[tuple[Affine, int]] = set()
    for s in made:
        for a in tree.accesses(s):
            if a.buffer is buffer:
                f = _loop_of_row(a, dim)
                offset = affine(a.index[dim]) - affine(f.var)
                found.add((offset, tree.trips(f, "slide")))
                pair = next(carried(f.body, f.var, env, updates=False, overlap=False), None)
                if pair is not None:
                    raise _error(
                        "slide",
                        buffer.name,
                        f"its rows depend on one another: one {show_pair(*pair)}",
                        "keep it whole",
                    )
    if len(found) != 1:
        raise _error(
            "slide",
            buffer.name,
            f"its nests compute different parts of dimension {dim}",
            "keep it whole",
        )
    return found.pop()


def _loop_of_row(a: tree.Access, dim: int) -> For:
    form = affine(a.index[dim])
    own = [f for f in a.loops if form.coefficient(f.var)]
    elsewhere = [i for d, i in enumerate(a.index) if d != dim]
    if (
        len(own) != 1
        or form.coefficient(own[0].var) != 1
        or any(own[0].var in tree.variables(i) for i in elsewhere)
    ):
        raise _error(
            "slide",
            a.buffer.name,
            f"dimension {dim} of {a} is not one loop of its nest",
            "slide before the loops of the nest are split",
        )
    return own[0]


def _rows_before(buffer: Buffer, home: _Home, window: _Window, env: tree.Env) -> int:
    """How many rows are used before the loop."""
    need = 0
    for s in home.between[:-1]:
        for a in tree.accesses(s):
            if a.buffer is buffer:
                _, hi = bounds(to_expr(affine(a.index[window.dim]) - window.offset), env)
                if hi is None:
                    raise _error(
                        "slide", buffer.name, f"{a} has no bounds, before the loop", "clamp it"
                    )
                need = max(need, hi + 1)
    return need


def _warm(
    home: _Home, buffer: Buffer, window: _Window, scope: tuple[int, tree.Env, set[str]]
) -> tuple[list[Stmt], tuple[str, ...]]:
    """The nests of the first `done` rows, copies with names of their own."""
    done, env, taken = scope
    nests: list[Stmt] = []
    names: list[str] = []
    for s in home.made if done else ():
        part = _restricted(s, buffer, window, (const(0), done, None), env)
        copy, table = tree.renamed(part, taken, ".warm")
        nests.append(copy)
        names += [table[f.var.name] for f in tree.loops_of(part)]
    return nests, tuple(names)


def _restricted(
    nest: Stmt,
    buffer: Buffer,
    window: _Window,
    part: tuple[Expr, int, int | None],
    env: tree.Env,
) -> Stmt:
    """`nest` for `count` rows from `start` on, guarded where they may reach `limit`."""
    start, count, limit = part
    own = {_loop_of_row(a, window.dim) for a in tree.accesses(nest) if a.buffer is buffer}
    env = env | {f.var: (0, count - 1) for f in own}
    values: dict[Any, Any] = {f.var: to_expr(affine(start) + affine(f.var)) for f in own}
    fors: dict[Var, Callable[[For], Stmt]] = {}
    for f in own:
        guard = None if limit is None else inside(values[f.var], limit, env)
        fors[f.var] = _shrunk(count, guard)
    result: Stmt = tree.rewrite(nest, env, values, fors=fors)
    return result


def _shrunk(count: int, guard: Expr | None) -> Callable[[For], Stmt]:
    def change(f: For) -> Stmt:
        body = f.body if guard is None else If(guard, f.body, None)
        return For(f.var, const(count), f.kind, body)

    return change


# -- store_at


@primitive
def store_at(kernel: Kernel, name: str, loop: str | None, compute: str) -> tuple[Kernel, None]:
    """Compute a buffer inside a consumer's loop, its memory allocated further out.

    args: the buffer; the loop in whose body to allocate it (None: where it is); the consumer's
        loop, inside of that one, to compute it in.
    requires: as compute_at, of the outer loop; then: all uses besides its own computation are in
        the inner loop, and one run of the nests initialises all that they update. Iterations may
        compute elements again, so that loops in between which run at once are refused.
    before: for i in n + 2: T[i] = f(i)
            for o: for v: D[o*8 + v] = g(T[o*8 + v])
    after:  for o: alloc T: for v: { T[v] = f(o*8 + v); D[o*8 + v] = g(T[v]) }
    """
    if loop is not None:
        kernel, _ = compute_at(kernel, name, loop)
    f, place = tree.find_loop(kernel, compute, "store_at")
    buffer, alloc = _allocated(kernel, name, "store_at")
    home = _home(buffer, alloc, place, "store_at")
    env = tree.environment(kernel.body)
    _check_uses(kernel, buffer, f, home)
    late = uncovered(block(*home.made), buffer, env)
    if late is not None:
        raise _error(
            "store_at", name, f"computing it again would find {late} changed", "use compute_at"
        )
    needed = [a for a in tree.accesses(f.body) if a.buffer is buffer]
    box = region(buffer, needed, env, "store_at")
    steps = list(home.made)
    for d, (base, size) in enumerate(zip(box.base, box.shape, strict=True)):
        if tree.is_zero(base) and size == buffer.shape[d]:
            continue
        offset, rows = _row_loop(buffer, steps, d, env)
        window = _Window(d, 1, 0, offset)
        start = to_expr(affine(base) - offset)
        steps = [_restricted(s, buffer, window, (start, size, rows), env) for s in steps]
        env = env | {v: r for s in steps for v, r in tree.environment(s).items()}
    inner = For(f.var, f.extent, f.kind, block(*steps, f.body))
    result = _with_parts(kernel, home, place, (), inner)
    around = [x.var.name for x in (*place.loops, f)]
    check_kinds(result, around, "store_at", "compute_at gives each iteration memory of its own")
    return result, None


def _check_uses(kernel: Kernel, buffer: Buffer, f: For, home: _Home) -> None:
    def uses(stmts: Iterable[Stmt]) -> int:
        return sum(a.buffer is buffer for s in stmts for a in tree.accesses(s))

    if uses([f.body]) == 0 or uses([kernel.body]) != uses([f.body]) + uses(home.made):
        raise _error(
            "store_at",
            buffer.name,
            f"it is also used outside loop {f.var.name}, or not inside",
            "name a loop around all of its uses",
        )


# -- fold_storage


class _Phase(NamedTuple):
    """What one statement, or iteration v of a loop, touches: rows from `first` on, writing up to
    `newest`; both move by `step` per iteration, `times` times."""

    stmt: Stmt
    step: int
    times: int
    first: int
    newest: int | None


@primitive
def fold_storage(kernel: Kernel, name: str, dim: int, factor: int) -> tuple[Kernel, None]:
    """Keep only `factor` rows of a buffer, one dimension used as a ring: index mod factor.

    args: the buffer; the dimension (0 the outermost); the size of the ring.
    requires: at each step all rows touched lie among the `factor` newest: with M(t) the largest row
        written up to and including step t, every row e touched in step t has e > M(t) - factor.
        Then two rows of one place in the ring are never alive at once. A step is an iteration of a
        serial loop directly in the buffer's scope through which rows move forward by a constant,
        or any other statement there as a whole.
    before: alloc T[n + 2]: for v in n: { T[v + 2] = f(v + 2); D[v] = T[v] + T[v + 2] }
    after:  alloc T[4]: for v in n: { T[(v + 2) % 4] = f(v + 2); D[v] = T[v % 4] + T[(v+2) % 4] }
    """
    buffer, alloc = _allocated(kernel, name, "fold_storage")
    if not 0 <= dim < len(buffer.shape):
        raise _error("fold_storage", name, f"it has no dimension {dim}", "0 is the outermost")
    if not 1 <= factor < buffer.shape[dim]:
        extent = buffer.shape[dim]
        raise _error(
            "fold_storage",
            name,
            f"{factor} is not in 1..{extent - 1}, the sizes below that of dimension {dim}",
            "there is nothing to fold",
        )
    least, stmt = live_window(kernel, name, dim)
    if factor < least:
        loop = f"loop {stmt.var.name}" if isinstance(stmt, For) else "a statement before the loop"
        raise _error(
            "fold_storage",
            name,
            f"{least} rows are alive at once in {loop}, more than {factor}",
            f"fold by at least {least}",
        )
    shape = tuple(factor if d == dim else n for d, n in enumerate(buffer.shape))
    new = Buffer(buffer.name, shape, buffer.dtype, buffer.scope)

    def move(index: tree.Index) -> tuple[Buffer, tree.Index]:
        ring = Mod(index[dim], const(factor))
        return new, tuple(ring if d == dim else i for d, i in enumerate(index))

    env = tree.environment(kernel.body)
    body = tree.rewrite(alloc.stmt, env, moves={buffer: move})
    result = tree.put(kernel, alloc, tree.with_allocs(body, {buffer: new}))
    kinds = [f.var.name for f in tree.loops_of(alloc.stmt) if f.kind != "serial"]
    check_kinds(result, kinds, "fold_storage", "fold before kinds are set")
    return result, None


def live_window(kernel: Kernel, name: str, dim: int) -> tuple[int, Stmt]:
    """The least factor that `fold_storage` accepts, and the statement that needs it."""
    buffer, alloc = _allocated(kernel, name, "fold_storage")
    env = tree.environment(kernel.body)
    newest: int | None = None
    least: tuple[int, Stmt] = (1, alloc.stmt)
    for s in _in_order(tree.below(alloc.stmt)):
        phase = _phase(s, buffer, dim, env)
        if phase is None:
            continue
        written = [m for m in (newest, phase.newest) if m is not None]
        if written and max(written) - phase.first + 1 > least[0]:
            least = (max(written) - phase.first + 1, s)
        if phase.newest is not None:
            last = phase.newest + phase.step * (phase.times - 1)
            newest = last if newest is None else max(newest, last)
    return least


def _in_order(stmts: Iterable[Stmt]) -> Iterator[Stmt]:
    """The statements that run one after the other, those in sequences and scopes included."""
    for s in stmts:
        if isinstance(s, Block | Alloc):
            yield from _in_order(tree.below(s))
        else:
            yield s


def _phase(s: Stmt, buffer: Buffer, dim: int, env: tree.Env) -> _Phase | None:
    found = [a for a in tree.accesses(s) if a.buffer is buffer]
    if not found:
        return None
    moving = _moving(s, found, dim, env) if isinstance(s, For) and s.kind == "serial" else None
    if moving is not None:
        return moving
    ends = [bounds(a.index[dim], env) for a in found]
    if any(lo is None or hi is None for lo, hi in ends):
        raise _error("fold_storage", buffer.name, f"dimension {dim} has no bounds", "clamp it")
    written = [hi for (_, hi), a in zip(ends, found, strict=True) if a.writes and hi is not None]
    first = min(lo for lo, _ in ends if lo is not None)
    return _Phase(s, 0, 1, first, max(written, default=None))


def _moving(f: For, found: Sequence[tree.Access], dim: int, env: tree.Env) -> _Phase | None:
    """The phase of a loop whose accesses all move forward by one step; None if they do not."""
    ends = []
    for a in found:
        inner = {x.var for x in a.loops} - {f.var}
        ends.append(_relative(span(a.index[dim], inner, env), Affine((), 0), f.var))
    steps = {e[0] for e in ends if e is not None}
    if None in ends or len(steps) != 1 or min(steps) < 1 or f.trips is None:
        return None
    pairs = [(e, a) for e, a in zip(ends, found, strict=True) if e is not None]
    written = [e[2] for e, a in pairs if a.writes]
    first = min(e[1] for e, _ in pairs)
    return _Phase(f, steps.pop(), f.trips, first, max(written, default=None))
