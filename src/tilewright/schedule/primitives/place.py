"""compute_at, compute_inline: where the value of an intermediate buffer is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import Buffer, Expr, Load, Var, const
from tilewright.ir.node import Node, postorder
from tilewright.loops.access import reads, writes
from tilewright.loops.nodes import Alloc, Block, For, If, Kernel, Stmt, Store, block
from tilewright.schedule import tree
from tilewright.schedule.legality import carried, show_pair
from tilewright.schedule.region import Region, inside, region
from tilewright.schedule.table import primitive


def _error(primitive_: str, buffer: str, message: str, hint: str) -> ScheduleError:
    return ScheduleError(f"{primitive_}: {message}", where=f"buffer {buffer}", hint=hint)


def _intermediate(kernel: Kernel, name: str, primitive_: str) -> tuple[Buffer, tree.Place]:
    buffer, place = tree.find_buffer(kernel, name, primitive_)
    if place is None:
        raise _error(
            primitive_,
            name,
            "it is a parameter, so its whole value must be in memory",
            "cache_write it at the root first, which makes an intermediate and a copy",
        )
    return buffer, place


def _producers(
    buffer: Buffer, alloc: tree.Place, consumer: tree.Place, primitive_: str
) -> tuple[tree.Place, tuple[Stmt, ...], tuple[Stmt, ...]]:
    """The sequence that holds both sides, the statements that write `buffer`, those in between."""
    path = (*consumer.above, consumer.stmt)
    start = path.index(alloc.stmt)
    for depth in range(start + 1, len(path) - 1):
        home = path[depth]
        if not isinstance(home, Block):
            continue
        child = home.stmts.index(path[depth + 1])
        before = home.stmts[:child]
        made = tuple(s for s in before if buffer in writes(s))
        if made:
            first = home.stmts.index(made[0])
            between = tuple(s for s in home.stmts[first : child + 1] if s not in made)
            return tree.Place(home, path[:depth]), made, between
    raise _error(
        primitive_,
        buffer.name,
        "no statement before that loop computes it",
        "name a loop of a nest that follows the one that computes it",
    )


def _check_movable(
    buffer: Buffer, made: Sequence[Stmt], between: Sequence[Stmt], primitive_: str
) -> None:
    """The producers may run later: nothing they read or write is touched in between."""
    private: set[Buffer] = {buffer}
    used: set[Buffer] = set()
    changed: set[Buffer] = set()
    for s in made:
        private |= tree.allocated(s)
        used |= reads(s)
        changed |= writes(s)
    others = changed - private
    if others:
        raise _error(
            primitive_,
            buffer.name,
            f"the nest that computes it also writes {sorted(b.name for b in others)}",
            "fission the nest first",
        )
    for s in between:
        lost = writes(s) & (used - private)
        if lost:
            raise _error(
                primitive_,
                buffer.name,
                f"{sorted(b.name for b in lost)}, which it needs, changes before it is used",
                "place it earlier",
            )


@primitive
def compute_at(
    kernel: Kernel, name: str, loop: str, scope: str | None = None
) -> tuple[Kernel, None]:
    """Compute an intermediate buffer inside a consumer's loop, only the part needed there.

    args: the buffer; the loop of the consumer; the memory scope of the part (default: as before).
    requires: every use of the buffer besides its own computation is inside the loop; its nests come
        before that loop in one sequence, write nothing else, and read nothing that is written in
        between; each dimension that is restricted is indexed by one loop of its nests, whose
        iterations do not depend on one another.
    The buffer keeps its name and shrinks to the region that one iteration reads (bounds; the base
    may depend on outer loops, `min` of overlapping tiles included). Values may be computed again
    in several iterations. Where the region may stick out of the computed domain, a guard is left.
    before: alloc T: { for i: for j: T[i, j] = f(i, j)
                       for o: for x in 8: for j: D[o*8 + x, j] = g(T[o*8 + x, j]) }
    after:  for o: alloc T: { for i in 8: for j: T[i, j] = f(o*8 + i, j)
                              for x in 8: for j: D[o*8 + x, j] = g(T[x, j]) }
    """
    f, place = tree.find_loop(kernel, loop, "compute_at")
    buffer, alloc = _intermediate(kernel, name, "compute_at")
    if alloc.stmt not in place.above:
        raise _error(
            "compute_at", name, f"it does not exist at loop {loop}", "name a loop that reads it"
        )
    home, made, between = _producers(buffer, alloc, place, "compute_at")
    _check_movable(buffer, made, between, "compute_at")
    needed = [a for a in tree.accesses(f.body) if a.buffer is buffer]
    if any(a.writes for a in needed):
        raise _error(
            "compute_at", name, f"loop {loop} also writes it", "name a loop that only reads"
        )
    total = sum(a.buffer is buffer for a in tree.accesses(kernel.body))
    own = sum(a.buffer is buffer for s in made for a in tree.accesses(s))
    if not needed or len(needed) + own != total:
        raise _error(
            "compute_at",
            name,
            f"it is also used outside loop {loop}" if needed else f"loop {loop} does not use it",
            "move those uses into the loop first, or name a loop around all of them",
        )
    env = tree.environment(kernel.body)
    box = region(buffer, needed, env, "compute_at")
    part = Buffer(buffer.name, box.shape, buffer.dtype, scope or buffer.scope)

    def local(index: tree.Index) -> tuple[Buffer, tree.Index]:
        return part, box.local(index)

    nests = [_restricted(s, buffer, box, env, local) for s in made]
    body = tree.rewrite(f.body, env, moves={buffer: local})
    inner = For(f.var, f.extent, f.kind, Alloc(part, block(*nests, body)))
    # The loop is replaced first, then the old nests are dropped from the sequence around it.
    replaced = tree.put(Kernel(kernel.name, (), (), home.stmt), _below(place, home), inner).body
    rest = replaced.stmts if isinstance(replaced, Block) else (replaced,)
    new = tree.put(kernel, home, block(*(s for s in rest if s not in made)))
    return new.with_body(tree.without_alloc(new.body, buffer)), None


def _below(place: tree.Place, home: tree.Place) -> tree.Place:
    return tree.Place(place.stmt, place.above[len(home.above) :])


def _restricted(
    nest: Stmt,
    buffer: Buffer,
    box: Region,
    env: tree.Env,
    local: Callable[[tree.Index], tuple[Buffer, tree.Index]],
) -> Stmt:
    """`nest` computing only `box` of `buffer`, into the part."""
    found = [a for a in tree.accesses(nest) if a.buffer is buffer]
    env = dict(env)
    values: dict[Any, Any] = {}
    fors: dict[Var, Callable[[For], Stmt]] = {}
    for d, (base, size, extent) in enumerate(zip(box.base, box.shape, buffer.shape, strict=True)):
        if tree.is_zero(base) and size == extent:
            continue
        for a in found:
            form = affine(a.index[d])
            f = next((x for x in a.loops if form.coefficient(x.var) == 1), None)
            alone = f is not None and len(form.terms) == 1
            offset = form - affine(base)
            if form.is_const and offset.is_const and 0 <= offset.const < size:
                continue
            if f is None or not alone or sum(f.var in tree.variables(i) for i in a.index) > 1:
                raise _error(
                    "compute_at",
                    buffer.name,
                    f"dimension {d} of {a} is not one loop, so it cannot be restricted to a part",
                    "place it at a loop that needs the whole dimension",
                )
            if f.var in values:
                continue
            _check_separate(buffer, f, env)
            at = to_expr(affine(base) + Affine(((f.var, 1),), -form.const))
            values[f.var] = at
            env[f.var] = (0, size - 1)
            fors[f.var] = _shrunk(size, inside(at, tree.trips(f, "compute_at"), env))
    # Bounds of the shrunk loops must be in place before indices are put in linear form.
    result: Stmt = tree.rewrite(nest, env, values, {buffer: local}, fors)
    return result


def _check_separate(buffer: Buffer, f: For, env: tree.Env) -> None:
    """Iterations of a restricted loop may be left out: none uses what another one made."""
    found = next(carried(f.body, f.var, env, updates=False, overlap=False), None)
    if found is not None:
        raise _error(
            "compute_at",
            buffer.name,
            f"loop {f.var.name} cannot be restricted to a part, since its iterations depend on one "
            f"another: one {show_pair(*found)}",
            "place it at a loop that needs the whole dimension",
        )


def _shrunk(size: int, guard: Expr | None) -> Callable[[For], Stmt]:
    def change(f: For) -> Stmt:
        body = f.body if guard is None else If(guard, f.body, None)
        return For(f.var, const(size), f.kind, body)

    return change


@primitive
def compute_inline(kernel: Kernel, name: str) -> tuple[Kernel, None]:
    """Put the value of an intermediate map in the place of every read of it.

    requires: the buffer is computed by one Store in a plain nest, indexed by one loop (or the
        constant 0) per dimension and nothing else; all reads follow it in one sequence; what the
        value is computed from is not written in between.
    before: alloc T: { for i: T[i] = f(i)
                       for j: D[j] = g(T[h(j)]) }
    after:  for j: D[j] = g(f(h(j)))
    """
    buffer, alloc = _intermediate(kernel, name, "compute_inline")
    users = [a for a in tree.accesses(alloc.stmt) if a.buffer is buffer]
    stores = [a for a in users if a.writes]
    if len(stores) != 1 or stores[0].kind != "store":
        raise _error(
            "compute_inline",
            name,
            "it is not computed by a single Store",
            "only maps can be inlined",
        )
    store = next(
        p for p in tree.walk(alloc.stmt) if isinstance(p.stmt, Store) and p.stmt.buffer is buffer
    )
    home = max(n for n, s in enumerate(store.above) if isinstance(s, Block | Alloc))
    chain = (*store.above, store.stmt)[home + 1 :]
    loops = [s for s in chain[:-1] if isinstance(s, For)]
    vars_ = [i for i in stores[0].index if not tree.is_zero(i)]
    if (
        len(loops) != len(chain) - 1
        or not isinstance(store.above[home], Block)
        or set(vars_) != {f.var for f in loops}
        or len(vars_) != len(loops)
    ):
        raise _error(
            "compute_inline",
            name,
            f"{stores[0]} is not a plain nest with one loop per dimension",
            "compute_at can place any nest",
        )
    sequence = store.above[home]
    assert isinstance(sequence, Block) and isinstance(store.stmt, Store)
    _check_order(buffer, alloc.stmt, sequence, chain[0], users)
    value, index = store.stmt.value, store.stmt.index
    env = tree.environment(kernel.body)

    def read(load: Load) -> Expr:
        point = {v: i for v, i in zip(index, load.index, strict=True) if isinstance(v, Var)}
        result: Expr = tree.rewrite(value, env, point)
        return result

    without = tree.put(kernel, _place_of(kernel, sequence), block(*_others(sequence, chain[0])))
    body = _replace_loads(without.body, buffer, read)
    return kernel.with_body(tree.without_alloc(body, buffer)), None


def _others(sequence: Block, nest: Stmt) -> list[Stmt]:
    return [s for s in sequence.stmts if s is not nest]


def _place_of(kernel: Kernel, stmt: Stmt) -> tree.Place:
    return next(p for p in tree.walk(kernel.body) if p.stmt is stmt)


def _check_order(
    buffer: Buffer, root: Stmt, sequence: Block, nest: Stmt, users: Sequence[tree.Access]
) -> None:
    """All reads come after the nest in its sequence, and its inputs do not change until then."""
    later = sequence.stmts[sequence.stmts.index(nest) + 1 :]
    inside_ = sum(a.buffer is buffer for s in later for a in tree.accesses(s))
    if inside_ != len(users) - 1:
        raise _error(
            "compute_inline",
            buffer.name,
            "it is read outside the sequence it is computed in",
            "use compute_at",
        )
    changed = {b for s in later for b in writes(s)} & reads(nest)
    if changed:
        raise _error(
            "compute_inline",
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
