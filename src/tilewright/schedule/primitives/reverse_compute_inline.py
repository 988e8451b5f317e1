"""reverse_compute_inline: a consumer's elementwise map applied where its input is stored."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.expr.bounds import proves, refine
from tilewright.expr.nodes import Buffer, Expr, Extent, Load, Var
from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.analysis.dependence import are_independent
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.analysis.region import IndexInterval, span
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.nodes import Alloc, Block, For, If, Kernel, Stmt, Store, block
from tilewright.loops.walk import StatementPlace, below, walk
from tilewright.schedule import edit
from tilewright.schedule.legality import check_kinds
from tilewright.schedule.registry import primitive
from tilewright.schedule.staging import intermediate, used_as_index, within

_VERB = "reverse_compute_inline"


def _error(buffer: str, message: str, hint: str) -> ScheduleError:
    return ScheduleError(f"{_VERB}: {message}", where=f"buffer {buffer}", hint=hint)


@primitive
def reverse_compute_inline(kernel: Kernel, buffer: str) -> tuple[Kernel, None]:
    """Apply the map that reads an intermediate where the intermediate is stored, in its place.

    args: the buffer, which vanishes.
    requires: one Store writes the buffer, all of it (a reduction does so after cache_write); one
        Store reads it, in a plain nest that follows in the same sequence, whose loops are the
        dimensions of that read and whose iterations do not depend on one another; the nests share
        nothing else, and what stands in between leaves what the consumer reads and writes alone.
    before: alloc T: { for i: { for k: a[0] += x; T[i] = a[0] }
                       for j: D[j] = g(T[j]) }
    after:  for i: { for k: a[0] += x; D[i] = g(a[0]) }
    """
    own, _ = intermediate(kernel, buffer, _VERB)
    kernel, made, used = _beside(kernel, own)
    common = _common(made, used)
    home = made.above[common - 1]
    assert isinstance(home, Block)
    producer = (*made.above, made.stmt)[common]
    nest = (*used.above, used.stmt)[common]
    loops = _plain(nest, used, own)
    env = environment(kernel.body)
    target, load = _checked_read(used, loops, own, env)
    assert isinstance(made.stmt, Store) and isinstance(used.stmt, Store)
    _check_separate(home, producer, nest, own, target)
    _check_covered(made, common, loops, load, env)

    point: dict[Any, Any] = {load: made.stmt.value}
    own_vars = {f.var for f in loops}
    for i, at in zip(load.index, made.stmt.index, strict=True):
        if isinstance(i, Var) and i in own_vars:
            point[i] = at
    index = []
    for i in used.stmt.index:
        moved = edit.rewrite(i, env, point)
        index.append(edit.tidy(moved, env))
    value = edit.rewrite(used.stmt.value, env, point)
    new = Store(target, tuple(index), value)
    inside = made.above[common:]
    changed = edit.put(
        kernel.with_body(producer), StatementPlace(made.stmt, inside), new
    ).body
    kept = (s for s in home.stmts if s is not nest)
    sequence = block(*(changed if s is producer else s for s in kept))
    result = edit.put(kernel, StatementPlace(home, made.above[: common - 1]), sequence)
    result = result.with_body(edit.without_alloc(result.body, own))
    around = [f.var.name for f in made.loops]
    check_kinds(result, around, _VERB, "inline it before the loops get their kinds")
    return result, None


def _beside(
    kernel: Kernel, buffer: Buffer
) -> tuple[Kernel, StatementPlace, StatementPlace]:
    """The Store that writes `buffer` and the one that reads it, with no Alloc between the nests."""
    made = [p for p in walk(kernel.body) if _writes(p.stmt, buffer)]
    used = [p for p in walk(kernel.body) if _reads(p.stmt, buffer)]
    if len(made) != 1 or not isinstance(made[0].stmt, Store):
        raise _error(
            buffer.name,
            "it is not written by a single Store",
            "cache_write it, so that one Store writes the final value",
        )
    if (
        len(used) != 1
        or not isinstance(used[0].stmt, Store)
        or used[0].stmt is made[0].stmt
    ):
        raise _error(
            buffer.name,
            "it is not read by a single Store",
            "compute_inline can serve several",
        )
    common = _common(made[0], used[0])
    home = made[0].above[common - 1] if common else None
    if not isinstance(home, Block) or common == len(used[0].above):
        raise _error(
            buffer.name,
            "it is not written in one nest of a sequence and read in another",
            "fission the loop around both",
        )
    later = used[0].above[common]
    if not isinstance(later, Alloc):
        return kernel, made[0], used[0]
    parts = [later.body if x is later else x for x in home.stmts]
    lifted = Alloc(later.buffer, block(*parts))
    sequence = StatementPlace(home, used[0].above[: common - 1])
    return _beside(edit.put(kernel, sequence, lifted), buffer)


def _writes(s: Stmt, buffer: Buffer) -> bool:
    return not below(s) and buffer in writes(s)


def _reads(s: Stmt, buffer: Buffer) -> bool:
    own = (e for e in s.children() if isinstance(e, Expr))
    return any(x.buffer is buffer for e in own for x in loads(e))


def _common(a: StatementPlace, b: StatementPlace) -> int:
    """How many statements are around both."""
    count = 0
    for x, y in zip(a.above, b.above):
        if x is not y:
            break
        count += 1
    return count


def _plain(nest: Stmt, used: StatementPlace, buffer: Buffer) -> list[For]:
    """The loops of the consumer, which are all there is around its Store."""
    loops: list[For] = []
    s = nest
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    if s is not used.stmt:
        raise _error(
            buffer.name,
            "its reader is not one Store in a plain nest",
            "reverse_compute_at can move any nest",
        )
    return loops


class _Read(NamedTuple):
    target: Buffer
    load: Load


def _checked_read(
    used: StatementPlace,
    loops: list[For],
    buffer: Buffer,
    env: Env,
) -> _Read:
    """Where the consumer stores and its one read, indexed by each loop once."""
    s = used.stmt
    assert isinstance(s, Store)
    reads_of: list[Load] = []
    for e in (*s.index, s.value):
        reads_of += loads(e)
    found = [x for x in reads_of if x.buffer is buffer]
    load = found[0]
    own = {f.var for f in loops}
    vars_ = [i for i in load.index if i in own]
    inner: set[Expr] = set()
    for i in load.index:
        inner |= variables(i) & own
    each_loop_once = len(vars_) == len(loops) and own == inner == set(vars_)
    if len(set(found)) != 1 or not each_loop_once:
        raise _error(
            buffer.name,
            f"it is read as {', '.join(map(repr, dict.fromkeys(found)))}, which is not each loop "
            "of the reader once",
            "only elementwise maps can be applied at the store",
        )
    for f in loops:
        extent = buffer.extents[load.index.index(f.var)]
        if f.count != extent or not are_independent(f, env):
            raise _error(
                buffer.name,
                f"loop {f.var.name} of its reader does not map all of it one to one",
                "only elementwise maps can be applied at the store",
            )
    if used_as_index(s, buffer):
        raise _error(buffer.name, "its reader uses it as an index", "keep it in memory")
    if s.buffer in {x.buffer for x in reads_of}:
        raise _error(
            buffer.name,
            f"its reader also reads {s.buffer.name}, which it writes",
            "keep it separate",
        )
    return _Read(s.buffer, load)


def _check_separate(
    home: Block, producer: Stmt, nest: Stmt, buffer: Buffer, target: Buffer
) -> None:
    start = home.stmts.index(producer)
    stop = home.stmts.index(nest)
    lost: set[Buffer] = set()
    for s in home.stmts[start:stop]:
        lost |= writes(s) & reads(nest)
        if target in reads(s) | writes(s):
            lost.add(target)
    lost -= {buffer}
    if lost:
        names = sorted(b.name for b in lost)
        problem = f"{names} is used in another way before its reader"
    elif stop < start:
        problem = "its reader comes first"
    else:
        return
    raise _error(buffer.name, problem, "move the statements in between first")


def _check_covered(
    made: StatementPlace, common: int, loops: list[For], load: Load, env: Env
) -> None:
    """The producer must store every element that the consumer's loops read, and only these."""
    store = made.stmt
    assert isinstance(store, Store)
    path = made.above[common:]
    inner = {s.var for s in path if isinstance(s, For)}
    own_vars = {f.var for f in loops}
    used: list[Expr] = []
    for d, (i, at) in enumerate(zip(load.index, store.index, strict=True)):
        found = span(at, inner, env)
        if isinstance(i, Var) and i in own_vars and found is not None:
            used += [v for v in variables(at) if v in inner]
            if _is_whole(found, store.buffer.extents[d]):
                continue
        elif i is at and not variables(at) & inner:
            continue
        raise _not_covered(store, d)
    runs = all(s.trips for s in path if isinstance(s, For))
    if not runs or len(used) != len(set(used)):
        raise _not_covered(store, 0)
    inside = within(store.index, store.buffer, {})
    assumed = refine(env, inside) if inside is not None else env
    for s, child in zip(path, (*path[1:], store), strict=True):
        if isinstance(s, If) and proves(s.condition, assumed) is (child is s.then):
            continue
        if not isinstance(s, For | Block | Alloc):
            raise _not_covered(store, 0)


def _is_whole(found: IndexInterval, size: Extent) -> bool:
    """Whether a span has every index of a dimension."""
    if found.base.terms or not found.dense:
        return False
    first = found.lo + found.base.const
    last = found.hi + found.base.const
    return isinstance(size, int) and first <= 0 and last >= size - 1


def _not_covered(store: Store, d: int) -> ScheduleError:
    return _error(
        store.buffer.name,
        f"{store.buffer.name}{list(store.index)} is not known to store all of it, in dimension {d}",
        "keep the buffer, or name one whose nest stores all of it",
    )
