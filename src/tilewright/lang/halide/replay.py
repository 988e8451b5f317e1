"""Turning recorded directives into schedule primitives, in a fixed order.

1. Funcs that are computed inline: `compute_inline`, producers first.
2. Every other Func, consumers first: its place (`compute_at`; with storage further out `slide`
   along each loop in between, else `store_at`; then `fold_storage`), then the loops of its
   definitions in the order they were given (`split`, `fuse`, `reorder`). Consumers come first
   because a Func is placed into loops that must be there.
3. Loops that are shared (`merge`), consumers first.
4. How loops run (`vectorize`, `unroll`, `parallel`), consumers first.
5. The memory of each Func (`transform_layout`, `set_scope`).

A specialization of the output copies the program (`specialize`) between 2 and 3, with the
directives before it; later ones follow on either copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.conditions import condition_text
from tilewright.lang.halide.levels import MemoryType, Scheduled
from tilewright.lang.halide.placing import Nest, Replay, at_line, place
from tilewright.lang.halide.plan import (
    Fuse,
    Kind,
    Plan,
    Rename,
    Reorder,
    Split,
    TailStrategy,
)
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.lower import kernel
from tilewright.lang.halide.syntax.pipeline import Pipeline
from tilewright.lang.halide.together import share_loops
from tilewright.loops.nodes import For
from tilewright.schedule import Schedule, tree

# What fits here, inside a loop, goes to the stack.
STACK_BYTES = 1 << 15
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
    _on_each(placed, state, _specialize)
    _on_each(placed, state, _shape)
    share_loops([nest for f in placed for nest in state.of(f)], state)
    _on_each(placed, state, _run)
    for f in placed:
        _store(f, state)
    return state


def _inlined(pipeline: Pipeline, name: str) -> Replay:
    """The first step, and the nests of the other Funcs with their directives."""
    inlined = [f for f in pipeline.funcs if _is_inline(f, pipeline)]
    lowered = kernel(pipeline, _identifier(name), inlined)
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


def _identifier(name: str) -> str:
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
                case Kind():
                    pass
    nest.done = len(plan.directives) if until is None else until


def _specialize(nest: Nest, state: Replay) -> None:
    """Copy the program for each condition; the nest of each copy goes on with its own plan."""
    for special in nest.plan.special if nest.plan is not None else ():
        with at_line(special.plan.title, special.line):
            if nest.func not in state.pipeline.outputs:
                raise ScheduleError(
                    "specialize: it is not the output", hint="specialize the output"
                )
            condition = condition_text(special.condition, state.pipeline)
            made = set(state.schedule.specialize(condition))
        for other in list(state.nests):
            loops = {v: f"{x}.s" for v, x in other.loops.items() if f"{x}.s" in made}
            plan = special.plan if other is nest else other.plan
            done = 0 if other is nest else other.done
            state.nests.append(
                Nest(other.func, other.stage, loops, other.buffer, plan, done)
            )


def _split(
    s: Schedule,
    plan: Plan,
    loop: str,
    directive: Split,
) -> tuple[str, str]:
    f, _ = tree.find_loop(s.kernel, loop, "split")
    count = tree.trips(f, "split")
    factor = directive.factor
    tail = directive.tail
    if count % factor == 0:
        return _pair(s.split(loop, factor))
    if tail is TailStrategy.Auto:
        if plan.stage == 0 and factor < count:
            try:
                return _pair(s.split(loop, factor, "overlap"))
            except ScheduleError:
                pass
        tail = TailStrategy.GuardWithIf
    kind = {
        TailStrategy.GuardWithIf: "guard",
        TailStrategy.ShiftInwards: "overlap",
    }.get(tail)
    return _pair(s.split(loop, factor, kind or "exact"))  # type: ignore[arg-type]


def _pair(names: tuple[str, ...]) -> tuple[str, str]:
    return names[0], names[1]


def _run(nest: Nest, state: Replay) -> None:
    plan = nest.plan
    if plan is None:
        return
    kinds = {
        d.var: (d.kind, line) for d, line in plan.directives if isinstance(d, Kind)
    }
    for var, (kind, line) in kinds.items():
        loop = nest.loops.get(var)
        if loop is not None:
            with at_line(plan.title, line):
                getattr(state.schedule, _METHOD[kind])(loop)


# -- memory


def _store(f: Scheduled, state: Replay) -> None:
    if f in state.pipeline.outputs:
        return
    for buffer in (name for copy in state.buffers[f] for name in copy):
        if f.layout is not None:
            state.schedule.transform_layout(buffer, _permuted(f, f.layout))
        found, alloc = tree.find_buffer(state.schedule.kernel, buffer, "store_in")
        scope = f.memory.value
        if (
            scope is None
            and alloc is not None
            and any(isinstance(x, For) for x in alloc.above)
        ):
            small = found.size * found.dtype.itemsize <= STACK_BYTES
            scope = MemoryType.Stack.value if small else None
        if scope is not None and scope != found.scope:
            state.schedule.set_scope(buffer, scope)


def _permuted(f: Scheduled, order: tuple[str, ...]) -> str:
    """The index map of a storage order, innermost first."""
    names = [f"i{n}" for n in range(len(f.args))]
    at = dict(zip((v.name() for v in f.args), reversed(names), strict=True))
    return f"lambda {', '.join(names)}: ({', '.join(at[v] for v in reversed(order))},)"
