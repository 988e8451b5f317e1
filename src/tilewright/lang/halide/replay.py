"""Turning recorded directives into schedule primitives, in a fixed order.

1. Funcs that are computed inline: `compute_inline`, producers first.
2. Every other Func, consumers first: its place (`compute_at`; with storage further out `slide`
   along each loop in between, else `store_at`; then `fold_storage`), then the loops of its
   definitions in the order they were given (`split`, `fuse`, `reorder`). Consumers come first
   because a Func is placed into loops that must be there.
3. Loops that are shared (`merge`), consumers first.
4. How loops run (`vectorize`, `unroll`, `parallel`, and `bind` to the axes of a GPU), consumers
   first.
5. The memory of each Func (`transform_layout`, `set_scope`, `pipeline` of a ring), loops that are
   parted, and notes about those that are not and about what is fetched ahead.

A specialization copies the program (`specialize`) between 2 and 3, with the directives before it;
later ones follow on either copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Expr, Var, fixed
from tilewright.ir.node import postorder
from tilewright.lang.halide.conditions import condition_text, decided
from tilewright.lang.halide.gpu import BLOCKS, THREADS, axes, on_gpu
from tilewright.lang.halide.levels import MemoryType, Scheduled
from tilewright.lang.halide.placing import Nest, Replay, at_line, place
from tilewright.lang.halide.plan import (
    Fuse,
    LoopKind,
    Partition,
    PipelinePlan,
    Rename,
    Reorder,
    SpecializedCopy,
    Split,
    TailStrategy,
)
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.lower import kernel
from tilewright.lang.halide.syntax.pipeline import Pipeline
from tilewright.lang.halide.together import share_loops
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.analysis.terms import loads
from tilewright.loops.nodes import SIZE, WHOLE, For, Update
from tilewright.loops.walk import StatementPlace, names_of, walk
from tilewright.schedule import Schedule, edit, tree
from tilewright.schedule.ahead import prefetch_ahead
from tilewright.schedule.primitives.pipeline import sequence
from tilewright.schedule.primitives.split import Tail

# Buffers inside a loop that fit this limit are on the stack.
STACK_BYTES = 1 << 15
_TAILS: Final[Mapping[TailStrategy, Tail]] = {
    TailStrategy.RoundUp: "exact",
    TailStrategy.ShiftInwards: "overlap",
}  # all others are guards
_METHOD = {
    "vector": "vectorize",
    "unroll": "unroll",
    "parallel": "parallel",
    "serial": "serial",
}


def replay(pipeline: Pipeline, name: str) -> Replay:
    """The schedule of a pipeline; the steps and their order are this module's docstring.

    Raises ScheduleError, with the user's line, where a verb is not legal.
    """
    state = _inlined(pipeline, name)
    ordered = [f for f in reversed(pipeline.funcs) if isinstance(f, Scheduled)]
    placed = [f for f in ordered if state.of(f)]
    for f in placed:
        place(f, state)
        for nest in state.of(f):
            _shape(nest, state, until=_shared(nest))
    _specialize(placed, state)
    _on_each(placed, state, _shape)
    share_loops([nest for f in placed for nest in state.of(f)], state)
    _on_each(placed, state, _run)
    for f in placed:
        _store(f, state)
    for f in placed:
        _ring(f, state)
    _on_each(placed, state, _part)
    _on_each(placed, state, _fetch)
    return state


def _inlined(pipeline: Pipeline, name: str) -> Replay:
    """The first step, and the nests of the other Funcs with their directives."""
    inlined = [f for f in pipeline.funcs if _is_inline(f, pipeline)]
    lowered = kernel(pipeline, identifier(name), inlined)
    state = Replay(pipeline, lowered, Schedule(lowered.kernel))
    for f in inlined:
        for buffer in lowered.buffers[f]:
            state.schedule.compute_inline(buffer.name)
    for f in pipeline.funcs:
        state.buffers[f] = [tuple(b.name for b in lowered.buffers[f])]
        if f in inlined:
            continue
        first = state.buffers[f][0][0]
        for n, stage in enumerate(lowered.stages[f]):
            state.nests.append(Nest(f, n, dict(stage.loops), first))
    for nest in state.nests:
        if isinstance(nest.func, Scheduled):
            nest.plan = nest.func.plan(nest.stage)
    return state


def _on_each(
    funcs: Sequence[Scheduled], state: Replay, step: Callable[[Nest, Replay], None]
) -> None:
    for f in funcs:
        for nest in state.of(f):
            step(nest, state)


def identifier(name: str) -> str:
    """The name of the kernel of a pipeline."""
    return "".join(c if c.isalnum() else "_" for c in name)


def _is_inline(f: Func, pipeline: Pipeline) -> bool:
    placed = isinstance(f, Scheduled) and f.compute is not None
    return not placed and f not in pipeline.outputs and len(f.definitions) == 1


def _shared(nest: Nest) -> int | None:
    """How many directives come before the first specialization; None: all."""
    special = [] if nest.plan is None else nest.plan.special
    return special[0].shared if special else None


def _shape(nest: Nest, state: Replay, until: int | None = None) -> None:
    """Go through the directives of a nest from where it is."""
    plan = nest.plan
    s = state.schedule
    loops = nest.loops
    if plan is None:
        return
    for directive, line in plan.directives[nest.done : until]:
        with at_line(plan.title, line):
            match directive:
                case Split():
                    pair = _split(s, plan, loops.pop(directive.old), directive)
                    loops[directive.outer], loops[directive.inner] = pair
                case Fuse():
                    outer = loops.pop(directive.outer)
                    inner = loops.pop(directive.inner)
                    loops[directive.fused] = s.fuse(outer, inner)
                case Reorder():
                    s.reorder(*(loops[v] for v in reversed(directive.vars)))
                case Rename():
                    loops[directive.new] = loops.pop(directive.old)
                case LoopKind():
                    pass
    nest.done = len(plan.directives) if until is None else until


def _specialize(placed: Sequence[Scheduled], state: Replay) -> None:
    """Copy the program for each condition; in the copy the definition has its own directives.

    The first condition that holds counts: a copy for it keeps its directives in later copies.
    """
    plans = list(dict.fromkeys(n.plan for f in placed for n in state.of(f)))
    for plan in plans:
        for special in () if plan is None else plan.special:
            with at_line(special.plan.title, special.line):
                known = decided(special.condition, state.pipeline)
                if known is None:
                    _copy(plan, special, state)
            plans.append(special.plan)
            if known:
                for nest in state.nests:
                    if nest.plan is plan:
                        nest.plan, nest.done = special.plan, 0
                break


def _copy(plan: PipelinePlan | None, special: SpecializedCopy, state: Replay) -> None:
    """The program again, for when a condition holds, and its nests and buffers."""
    before = state.schedule.kernel
    _, named = edit.renamed(before.body, names_of(before), ".s")
    condition = condition_text(special.condition, state.pipeline)
    state.schedule.specialize(condition)
    there = names_of(state.schedule.kernel)
    for nest in list(state.nests):
        own = nest.plan is plan
        loops = {v: named[x] for v, x in nest.loops.items() if named[x] in there}
        if loops or not nest.loops:
            buffer = named.get(nest.buffer, nest.buffer)
            directives = (special.plan, 0) if own else (nest.plan, nest.done)
            state.nests.append(Nest(nest.func, nest.stage, loops, buffer, *directives))
    for copies in state.buffers.values():
        made = [tuple(named.get(b, b) for b in names) for names in copies]
        copies += [names for names in made if there.issuperset(names)]
    for copies in state.buffers.values():
        copies[:] = dict.fromkeys(c for c in copies if there.issuperset(c))
    state.nests = [n for n in state.nests if there.issuperset(n.loops.values())]


def _split(
    s: Schedule,
    plan: PipelinePlan,
    loop: str,
    directive: Split,
) -> tuple[str, str]:
    f, _ = tree.find_loop(s.kernel, loop, "split")
    count = f.trips
    factor = directive.factor
    tail = directive.tail
    if count is None:
        return _pair(s.split(loop, factor, _open_tail(tail)))
    if count % factor == 0:
        return _pair(s.split(loop, factor))
    if tail is TailStrategy.Auto:
        if plan.stage == 0 and factor < count and not on_gpu(plan):
            try:
                return _pair(s.split(loop, factor, "overlap"))
            except ScheduleError:
                pass
        tail = TailStrategy.GuardWithIf
    return _pair(s.split(loop, factor, _TAILS.get(tail, "guard")))


def _open_tail(tail: TailStrategy) -> Tail:
    """How a loop that only a call can count ends: by default under a guard."""
    kinds: dict[TailStrategy, Tail] = {
        TailStrategy.Auto: "guard",
        TailStrategy.GuardWithIf: "guard",
        TailStrategy.ShiftInwards: "overlap",
    }
    return kinds.get(tail, "exact")


def _pair(names: tuple[str, ...]) -> tuple[str, str]:
    return names[0], names[1]


def _run(nest: Nest, state: Replay) -> None:
    plan = nest.plan
    if plan is None:
        return
    kinds = {
        d.var: (d.kind, line) for d, line in plan.directives if isinstance(d, LoopKind)
    }
    with at_line(plan.title, "its loops on a GPU"):
        bound = dict(axes(plan.vars, {var: kind for var, (kind, _) in kinds.items()}))
    for var, (kind, line) in kinds.items():
        loop = nest.loops.get(var)
        if loop is not None and var in bound:
            with at_line(plan.title, line):
                _bind(loop, bound[var], plan.atomic, state.schedule)
            continue
        if loop is not None:
            with at_line(plan.title, line):
                if plan.atomic and kind in ("vector", "parallel"):
                    _privatize(nest, loop, kind, state.schedule)
                getattr(state.schedule, _METHOD[kind])(loop)


def _bind(loop: str, axis: str, atomic: bool, s: Schedule) -> None:
    """A loop on an axis of a GPU. atomic: its blocks may update the same elements, one by one."""
    f, _ = tree.find_loop(s.kernel, loop, "atomic")
    updates = (x.stmt for x in walk(f.body) if isinstance(x.stmt, Update))
    if (
        atomic
        and axis.startswith("blockIdx")
        and any(_is_shared(u, f.var) for u in updates)
    ):
        s.atomic(loop, axis)
    else:
        s.bind(loop, axis)


def _is_shared(update: Update, var: Var) -> bool:
    """Whether iterations may update one element: the loop is not in its index, or data decide."""
    if not _depends(update.indices, var):
        return True
    return any(loads(i) for index in update.indices for i in index)


def _privatize(nest: Nest, loop: str, kind: str, s: Schedule) -> None:
    """Partial results for each iteration of a loop along which the same elements are updated."""
    f, _ = tree.find_loop(s.kernel, loop, "atomic")
    if any(
        isinstance(x.stmt, Update) and not _depends(x.stmt.indices, f.var)
        for x in walk(f.body)
    ):
        scope = "register" if kind == "vector" else "global"
        s.rfactor(loop, scope, buffer=nest.buffer)


def _depends(indices: Sequence[Sequence[Expr]], var: Var) -> bool:
    return any(var in set(postorder(i)) for index in indices for i in index)


def _part(nest: Nest, state: Replay) -> None:
    """The loops to be parted, from the outermost in, and notes at those that are not to be."""
    plan = nest.plan
    for var in reversed(plan.vars if plan is not None else ()):
        if plan is None or var not in plan.parted or var not in nest.loops:
            continue
        policy, said_at = plan.parted[var]
        with at_line(plan.title, said_at):
            if policy is Partition.Always:
                state.schedule.partition_loop(nest.loops[var])
            elif policy is Partition.Never:
                state.schedule.annotate(nest.loops[var], WHOLE, 1)


def _fetch(nest: Nest, state: Replay) -> None:
    """What is fetched ahead, as notes at the loops that there are in the end."""
    plan = nest.plan
    if plan is None:
        return
    for ahead in plan.ahead:
        if ahead.var not in nest.loops:
            continue
        with at_line(plan.title, ahead.line):
            for name in _names_of(ahead.owner, state):
                loop = nest.loops[ahead.var]
                prefetch_ahead(state.schedule, name, loop, ahead.iterations)


def _names_of(owner: Any, state: Replay) -> list[str]:
    """The buffers of a Func or image that a pipeline has."""
    if owner in state.pipeline.names and not isinstance(owner, Func):
        return [state.pipeline.names[owner]]
    copies = state.buffers.get(owner, [])
    found = [name for copy in copies for name in copy]
    inlined = isinstance(owner, Func) and _is_inline(owner, state.pipeline)
    if not found or inlined:
        raise ScheduleError(
            f"prefetch: {owner!r} is not in memory here",
            hint="name an image that is read, or a Func that is not computed inline",
        )
    return found


# -- memory


def _store(f: Scheduled, state: Replay) -> None:
    if f in state.pipeline.outputs:
        return
    for buffer in (name for copy in state.buffers[f] for name in copy):
        _check_limits(f, buffer, state.schedule)
        if f.layout is not None:
            state.schedule.transform_layout(buffer, _permuted(f, f.layout))
        _pad(f, buffer, state.schedule)
        found, alloc = tree.find_buffer(state.schedule.kernel, buffer, "store_in")
        scope = f.memory.value
        if scope is None and alloc is not None:
            scope = _usual_scope(found, alloc)
        if scope is not None and scope != found.scope:
            state.schedule.set_scope(buffer, scope)


def _ring(f: Scheduled, state: Replay) -> None:
    """Memory for several iterations, and the loop that runs through it."""
    iterations, said_at = f.ring or (1, "")
    for copy in state.buffers[f] if iterations > 1 else ():
        with at_line(f.name(), said_at):
            _ahead(copy, iterations - 1, state.schedule)


def _ahead(buffers: tuple[str, ...], iterations: int, s: Schedule) -> None:
    """Compute buffers some iterations of the loop around them before they are used."""
    found = {tree.find_buffer(s.kernel, name, "ring_buffer")[0] for name in buffers}
    _, alloc = tree.find_buffer(s.kernel, buffers[0], "ring_buffer")
    around = alloc.loops if alloc is not None else ()
    lags: list[int] = []
    needed: set[Buffer] = set(found)
    for stmt in reversed(sequence(around[-1].body).stmts if around else ()):
        first = bool(writes(stmt) & needed)
        lags.insert(0, 0 if first else iterations)
        if first:
            needed |= reads(stmt)
    if 0 not in lags or not any(lags):
        raise ScheduleError(
            "ring_buffer: it is not computed in a loop that uses it too",
            hint="compute_at a loop of a consumer; with store_at its rows are a ring already",
        )
    s.pipeline(around[-1].var.name, *lags)


def _usual_scope(b: Buffer, alloc: StatementPlace) -> str | None:
    """Put small buffers inside a loop on the stack, and a block's buffers in its shared memory."""
    around = [x.kind for x in alloc.above if isinstance(x, For) and x.kind != SIZE]
    if any(k.startswith(BLOCKS) for k in around):
        if not any(k.startswith(THREADS) for k in around):
            return MemoryType.GPUShared.value
    small = b.static and b.size * b.dtype.itemsize <= STACK_BYTES
    return MemoryType.Stack.value if around and small else None


def _check_limits(f: Scheduled, buffer: str, s: Schedule) -> None:
    found, _ = tree.find_buffer(s.kernel, buffer, "bound_storage")
    for v, stored in zip(reversed(f.args), found.extents, strict=True):
        if v.name() not in f.limited:
            continue
        limit, said_at = f.limited[v.name()]
        extent = fixed(stored, f"{f.name()}, {said_at}")
        if extent > limit:
            raise ScheduleError(
                f"bound_storage: {extent} coordinates of {v.name()} are stored, not {limit}",
                where=f"{f.name()}, {said_at}",
                hint="compute_at or fold_storage store fewer",
            )


def _pad(f: Scheduled, buffer: str, s: Schedule) -> None:
    """Room at the end of rows, from the innermost out; the outermost needs none."""
    order = f.layout or tuple(v.name() for v in f.args)
    for axis, var in zip(range(len(order) - 2, -1, -1), order, strict=False):
        if var in f.padded:
            alignment, said_at = f.padded[var]
            found, _ = tree.find_buffer(s.kernel, buffer, "align_storage")
            with at_line(f.name(), said_at):
                s.storage_align(buffer, axis, alignment * found.strides[axis + 1])


def _permuted(f: Scheduled, order: tuple[str, ...]) -> str:
    """The index map of a storage order, innermost first."""
    names = [f"i{n}" for n in range(len(f.args))]
    at = dict(zip((v.name() for v in f.args), reversed(names), strict=True))
    return f"lambda {', '.join(names)}: ({', '.join(at[v] for v in reversed(order))},)"
