"""compute_at: where the value of an intermediate buffer is computed."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer, const
from tilewright.expr.reads import reads_memory
from tilewright.loops.analysis.access import (
    Access,
    Env,
    accesses,
    accesses_of,
    environment,
)
from tilewright.loops.analysis.effects import allocated, reads, writes
from tilewright.loops.analysis.region import Region, region, uncovered
from tilewright.loops.nodes import Alloc, Block, For, Kernel, Stmt, While, block
from tilewright.loops.scopes import Scope
from tilewright.loops.walk import StatementPlace
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_axes
from tilewright.schedule.registry import primitive_with
from tilewright.schedule.slice_nest import restrict_to_boxes
from tilewright.schedule.staging import intermediate


def _error(
    buffer: str,
    message: str,
    hint: str,
    verb: str = "compute_at",
) -> ScheduleError:
    return ScheduleError(f"{verb}: {message}", where=f"buffer {buffer}", hint=hint)


def producers(
    buffer: Buffer,
    alloc: StatementPlace,
    consumer: StatementPlace,
    verb: str = "compute_at",
) -> tuple[StatementPlace, tuple[Buffer, ...], tuple[Stmt, ...], tuple[Stmt, ...]]:
    """The sequence that contains producer and consumer, and the statements in it that write
    `buffer`.

    Returned: the sequence, the buffers that these statements write, the statements, and everything
    from the first of them up to the consumer.
    """
    path = (*consumer.above, consumer.stmt)
    start = path.index(alloc.stmt)
    for depth in range(start + 1, len(path) - 1):
        home = path[depth]
        if not isinstance(home, Block):
            continue
        child = home.stmts.index(path[depth + 1])
        before = home.stmts[:child]
        if any(buffer in writes(s) for s in before):
            group, made = _made_together(buffer, before, consumer, verb)
            first = home.stmts.index(made[0])
            run = home.stmts[first : child + 1]
            return StatementPlace(home, path[:depth]), group, made, run
    raise _error(
        buffer.name,
        "no statement before that loop computes it",
        "name a loop of a nest that follows the one that computes it",
        verb,
    )


def _made_together(
    buffer: Buffer,
    stmts: Sequence[Stmt],
    consumer: StatementPlace,
    verb: str,
) -> tuple[tuple[Buffer, ...], tuple[Stmt, ...]]:
    """The buffer with those that its statements write too (a reducer's outputs), and these."""
    exist = {s.buffer for s in consumer.above if isinstance(s, Alloc)}
    group: dict[Buffer, None] = {buffer: None}
    while True:
        made = tuple(s for s in stmts if writes(s) & set(group))
        private = {b for s in made for b in allocated(s)}
        written = (a.buffer for s in made for a in accesses(s) if a.writes)
        others = [
            b for b in dict.fromkeys(written) if b not in private and b not in group
        ]
        if not others:
            return tuple(group), made
        for b in others:
            if b not in exist or b.extents != buffer.extents:
                what = (
                    "not an intermediate of the loop"
                    if b not in exist
                    else "of another shape"
                )
                raise _error(
                    buffer.name,
                    f"the nest that computes it also writes {b.name}, which is {what}",
                    "fission the nest first",
                    verb,
                )
        group |= dict.fromkeys(others)


def _check_movable(
    group: Sequence[Buffer],
    made: Sequence[Stmt],
    run: Sequence[Stmt],
) -> None:
    """The producers may run at the end of `run`: nothing they read is changed in it."""
    private = set(group) | {b for s in made for b in allocated(s)}
    used = {b for s in made for b in reads(s)} - private
    for s in run:
        lost = writes(s) & used
        if lost:
            raise _error(
                group[0].name,
                f"{sorted(b.name for b in lost)}, which it needs, changes before it is used",
                "place it earlier",
            )


def _check_not_kept(
    alloc: StatementPlace,
    home: StatementPlace,
    group: Sequence[Buffer],
    part: Stmt,
    env: Env,
) -> None:
    """Nothing of the buffers is kept from one iteration of a loop around `home` to the next.

    Formally, where a loop is between the allocation and the sequence: each element that `part`, the
    nests and the consumer, reads of the buffers is stored by `part` before.
    """
    around = home.above[len(alloc.above) :]
    if not any(isinstance(s, For | While) for s in around):
        return
    for b in group:
        kept = uncovered(part, b, env)
        if kept is not None:
            raise _error(
                b.name,
                f"{kept} may have been stored in an earlier iteration of a loop around both, and "
                "would not be kept",
                "leave it where it is, or initialize all of it in the loop first",
            )


@primitive_with(options=["scope"])
def compute_at(
    kernel: Kernel,
    buffer: str,
    loop: str,
    scope: Scope | None = None,
) -> tuple[Kernel, None]:
    """Compute an intermediate buffer inside a consumer's loop, only the part needed there.

    args: the buffer; the loop of the consumer; the memory scope of the part (default: as before).
    requires: every use of the buffer besides its own computation is inside the loop; its nests come
        before that loop in one sequence, write nothing else (besides intermediates of the same
        shape, which move with it: the outputs of one reducer), and read nothing that is written in
        between; each dimension that is restricted is indexed by one loop of its nests (one
        whose index is read from memory stays whole), whose
        iterations do not depend on one another, nor the rest of a nest on all of them
        (`slice_nest`); and where the buffer outlives an iteration of a
        loop around that sequence, what is read of it was stored in the same iteration, first.
    The buffer keeps its name and shrinks to the region that one iteration reads (bounds; the base
    may depend on outer loops, `min` of overlapping tiles included). Values may be computed again
    in several iterations. Where the region may stick out of the computed domain, a guard is left.
    before: alloc T: { for i: for j: T[i, j] = f(i, j)
                       for o: for x in 8: for j: D[o*8 + x, j] = g(T[o*8 + x, j]) }
    after:  for o: alloc T: { for i in 8: for j: T[i, j] = f(o*8 + i, j)
                              for x in 8: for j: D[o*8 + x, j] = g(T[x, j]) }
    """
    f, place = tree.find_loop(kernel, loop, "compute_at")
    target, alloc = intermediate(kernel, buffer, "compute_at")
    if alloc.stmt not in place.above:
        raise _error(
            buffer,
            f"it does not exist at loop {loop}",
            "name a loop that reads it",
        )
    home, group, made, run = producers(target, alloc, place)
    _check_movable(group, made, run)
    needed = _needed(kernel, group, made, f)
    env = environment(kernel.body)
    _check_not_kept(alloc, home, group, block(*made, run[-1]), env)
    box = region(target, needed, env, "compute_at", wide=True)
    box = _with_steps(box, group, made)
    parts: dict[Buffer, Buffer] = {}
    moves: dict[Buffer, edit.Move] = {}
    for b in group:
        parts[b] = Buffer(b.name, box.shape, b.dtype, scope or b.scope)
        moves[b] = _into(box, parts[b])
    boxes = dict.fromkeys(group, box)
    nests = []
    for s in made:
        nest, _ = restrict_to_boxes(kernel, s, boxes, "compute_at", moves=moves)
        nests.append(nest)
    inner: Stmt = block(*nests, edit.rewrite(f.body, env, moves=moves))
    for part in reversed(parts.values()):
        inner = Alloc(part, inner)
    new_loop = For(f.var, f.extent, f.kind, inner)
    body = _moved(kernel, home, made, place, new_loop)
    for b in group:
        body = edit.without_alloc(body, b)
    result = kernel.with_body(body)
    check_axes(result, "compute_at")
    return result, None


def _moved(
    kernel: Kernel,
    home: StatementPlace,
    made: Sequence[Stmt],
    place: StatementPlace,
    new_loop: For,
) -> Stmt:
    """The kernel's body with the consumer's loop replaced and the old nests dropped.

    The loop goes first, inside the sequence that holds both: dropping the nests rebuilds it.
    """
    sequence = Kernel(kernel.name, (), (), home.stmt)
    replaced = edit.put(sequence, _below(place, home), new_loop).body
    stmts = replaced.stmts if isinstance(replaced, Block) else (replaced,)
    rest = block(*(s for s in stmts if s not in made))
    return edit.put(kernel, home, rest).body


def _with_steps(box: Region, group: Sequence[Buffer], made: Sequence[Stmt]) -> Region:
    """The box, extended to the whole buffer in dimensions in which the nests scan or scatter.

    A scan step reads a different element than it writes, so elements outside the box may matter.
    For an index read from memory, the iterations that write into the box are unknown.
    """
    whole: set[int] = set()
    for s in made:
        found = accesses_of(s, *group)
        for a in found:
            if a.writes:
                whole |= {d for d, i in enumerate(a.index) if reads_memory(i)}
            for b in found:
                if b.writes and not a.writes and a.place.stmt is b.place.stmt:
                    whole |= _steps(a, b)
    base = list(box.base)
    shape = list(box.shape)
    for d in whole:
        base[d] = const(0)
        shape[d] = group[0].extents[d]
    return Region(tuple(base), tuple(shape))


def _steps(a: Access, b: Access) -> set[int]:
    """The dimensions in which the indices of two accesses differ."""
    places = enumerate(zip(a.index, b.index, strict=True))
    return {d for d, (i, j) in places if i is not j}


def _into(box: Region, part: Buffer) -> edit.Move:
    return lambda index: (part, box.local(index))


def _below(place: StatementPlace, home: StatementPlace) -> StatementPlace:
    return StatementPlace(place.stmt, place.above[len(home.above) :])


def _needed(
    kernel: Kernel,
    group: Sequence[Buffer],
    made: Sequence[Stmt],
    f: For,
) -> list[Access]:
    """The loop's reads of the buffers, which nothing else may use except their producer nests."""
    needed = accesses_of(f.body, *group)
    own = [a.buffer for s in made for a in accesses_of(s, *group)]
    every = [a.buffer for a in accesses_of(kernel.body, *group)]
    for b in group:
        uses = [a for a in needed if a.buffer is b]
        if any(a.writes for a in uses):
            raise _error(
                b.name,
                f"loop {f.var.name} also writes it",
                "name a loop that only reads",
            )
        if len(uses) + own.count(b) != every.count(b):
            raise _error(
                b.name,
                f"it is also used outside loop {f.var.name}",
                "move those uses into the loop first, or name a loop around all of them",
            )
    if not needed:
        raise _error(
            group[0].name,
            f"loop {f.var.name} does not use it",
            "name a loop that does",
        )
    return needed
