"""What the verbs said, as schedule primitives, in this order.

1. Funcs that are computed inline: `compute_inline`, producers first.
2. Every other Func, consumers first: its place (`compute_at`; with storage further out `slide`
   along each loop in between, else `store_at`; then `fold_storage`), then the loops of its
   definitions in the order they were given (`split`, `fuse`, `reorder`). Consumers come first
   because a Func is placed into loops that must be there.
3. How loops run (`vectorize`, `unroll`, `parallel`), consumers first.
4. The memory of each Func (`set_scope`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.levels import Level, MemoryType, Scheduled
from tilewright.lang.halide.verbs import (
    Fuse,
    Kind,
    Plan,
    Rename,
    Reorder,
    Split,
    TailStrategy,
)
from tilewright.loops.nodes import For, Kernel
from tilewright.notation.halide.func import Func
from tilewright.notation.halide.lower import Lowered, kernel
from tilewright.notation.halide.pipeline import Pipeline
from tilewright.schedule import Schedule, tree
from tilewright.schedule.primitives.storage import live_window

# What fits here, inside a loop, goes to the stack.
STACK_BYTES = 1 << 15
_METHOD = {"vector": "vectorize", "unroll": "unroll", "parallel": "parallel", "serial": "serial"}


@dataclass(slots=True)
class Nest:
    """One copy of the nest of a definition: from the user's Vars to the names of loops."""

    func: Func
    stage: int
    loops: dict[str, str]


@dataclass(slots=True)
class Replay:
    """A pipeline's schedule while it is made. nests: every nest there is of each definition."""

    pipeline: Pipeline
    lowered: Lowered
    schedule: Schedule
    nests: list[Nest] = field(default_factory=list)

    def of(self, func: Func, stage: int | None = None) -> list[Nest]:
        """The nests of a Func, or of one of its definitions."""
        return [n for n in self.nests if n.func is func and stage in (None, n.stage)]

    def buffer(self, func: Func) -> str:
        """The name of the (first) buffer of a Func."""
        return self.lowered.buffers[func][0].name


def replay(pipeline: Pipeline, name: str) -> Replay:
    """The schedule of a pipeline; the steps and their order are this module's docstring.

    Raises ScheduleError, with the user's line, where a verb is not legal.
    """
    lowered = kernel(pipeline, _identifier(name))
    state = Replay(pipeline, lowered, Schedule(lowered.kernel))
    for f in pipeline.funcs:
        for n, stage in enumerate(lowered.stages[f]):
            state.nests.append(Nest(f, n, dict(stage.loops)))
    ordered = [f for f in reversed(pipeline.funcs) if isinstance(f, Scheduled)]
    for f in reversed(ordered):
        if _is_inline(f, pipeline):
            state.schedule.compute_inline(state.buffer(f))
            state.nests = [n for n in state.nests if n.func is not f]
    placed = [f for f in ordered if state.of(f)]
    for f in placed:
        _place(f, state)
        for plan in _plans(f):
            for nest in state.of(f, plan.stage):
                _shape(plan, nest, state)
    for f in placed:
        for plan in _plans(f):
            for nest in state.of(f, plan.stage):
                _run(plan, nest, state)
    for f in placed:
        _store(f, state)
    return state


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def _plans(f: Scheduled) -> list[Plan]:
    return [f.plan(n) for n in range(len(f.definitions))]


def _is_inline(f: Scheduled, pipeline: Pipeline) -> bool:
    return f.compute is None and f not in pipeline.outputs and len(f.definitions) == 1


@contextmanager
def _said(title: str, line: str) -> Iterator[None]:
    """Errors of primitives name the Func and the user's line."""
    try:
        yield
    except ScheduleError as error:
        raise error.at(f"{title}, {line}") from None


# -- placing


def _place(f: Scheduled, state: Replay) -> None:
    level = f.compute
    if f in state.pipeline.outputs:
        if level is not None and level.func is not None:
            raise ScheduleError(
                "it is the output, which is computed at root", where=f"{f.name()}, {level.line}"
            )
        return
    if level is None or level.func is None:
        return
    loop = _loop_at(f, level, "compute_at", state)
    store = f.store
    if store is None or _same(store, level):
        store = _along(f, level, state)
    if store is None:
        with _legal_places(f, level, state):
            state.schedule.compute_at(state.buffer(f), loop)
        return
    if store.func is not None:
        outer = _loop_at(f, store, "store_at", state)
        with _legal_places(f, store, state):
            state.schedule.compute_at(state.buffer(f), outer)
        chain = _between(state.schedule.kernel, outer, loop)
    else:
        chain = _between(state.schedule.kernel, None, loop)
    if not chain:
        raise ScheduleError(
            f"it is stored at {store.var}, inside the loop {level.var} it is computed at",
            where=f"{f.name()}, {store.line}",
            hint="store it further out",
        )
    _slide(f, level, chain, state)


def _same(a: Level, b: Level) -> bool:
    return a.func is b.func and a.var == b.var


def _along(f: Scheduled, level: Level, state: Replay) -> Level | None:
    """Where a consumer is stored that slides through the loop that `f` is computed at.

    The first rows of that consumer are computed before the loop, and `f` is needed there too.
    """
    for c in state.lowered.stages:
        if not isinstance(c, Scheduled) or c.store is None or c.compute is None:
            continue
        if not _same(c.compute, level) or _same(c.store, level):
            continue
        copies = [loop for nest in state.of(c) for loop in nest.loops.values()]
        if any(_uses(state.schedule.kernel, loop, state.buffer(f)) for loop in copies):
            return c.store
    return None


def _slide(f: Scheduled, level: Level, chain: list[str], state: Replay) -> None:
    """Compute `f` in the last loop of the chain, sliding along as many of them as can be."""
    name, s = state.buffer(f), state.schedule
    slid = False
    for n, loop in enumerate(chain):
        inside = [x for nest in _main(f, state) for x in nest.loops.values()]
        try:
            warm = s.slide(name, loop)
        except ScheduleError:
            if n == len(chain) - 1:
                with _legal_places(f, level, state):
                    s.store_at(name, None, loop)
            continue
        _add_copies(f, dict(zip(inside, warm, strict=False)), state)
        slid = True
    rank = len(f.args)
    for d, var in enumerate(reversed(f.args)):
        asked = f.folds.get(var.name())
        if asked is not None:
            with _said(f.name(), f.store.line if f.store else level.line):
                s.fold_storage(name, d, asked)
        elif slid and not f.folds and d < rank and _folded(name, d, s):
            break


def _folded(name: str, dim: int, s: Schedule) -> bool:
    """Fold a dimension to the least power of two that holds what is alive, if that saves memory."""
    least, _ = live_window(s.kernel, name, dim)
    ring = 1 << (least - 1).bit_length()
    buffer, _ = tree.find_buffer(s.kernel, name, "fold_storage")
    if ring >= buffer.shape[dim]:
        return False
    s.fold_storage(name, dim, ring)
    return True


def _main(f: Scheduled, state: Replay) -> list[Nest]:
    """The nests that `f` was lowered to; copies come later in the list."""
    return [state.of(f, n)[0] for n in range(len(f.definitions))]


def _add_copies(f: Scheduled, warm: dict[str, str], state: Replay) -> None:
    if not warm:
        return
    for nest in _main(f, state):
        loops = {var: warm[loop] for var, loop in nest.loops.items()}
        state.nests.append(Nest(f, nest.stage, loops))


def _between(kernel: Kernel, outer: str | None, inner: str) -> list[str]:
    """The loops from inside `outer` down to `inner`; empty where `inner` is not inside."""
    _, place = tree.find_loop(kernel, inner, "compute_at")
    path = [x.var.name for x in place.loops] + [inner]
    if outer is None:
        return path
    return path[path.index(outer) + 1 :] if outer in path[:-1] else []


def _loop_at(f: Scheduled, level: Level, verb: str, state: Replay) -> str:
    """The loop a level names: of the nest of that Func that uses `f`."""
    assert level.func is not None and level.var is not None
    found = [n.loops[level.var] for n in state.of(level.func) if level.var in n.loops]
    using = [x for x in found if _uses(state.schedule.kernel, x, state.buffer(f))]
    if not using:
        problem = "does not use it" if found else "there is no such loop"
        raise ScheduleError(
            f"{verb}({level.func.name()}, {level.var}): {problem}",
            where=f"{f.name()}, {level.line}",
            hint=legal_places(f, state),
        )
    return using[0]


def _uses(kernel: Kernel, loop: str, buffer: str) -> bool:
    f, _ = tree.find_loop(kernel, loop, "compute_at")
    return any(a.buffer.name == buffer for a in tree.accesses(f.body))


@contextmanager
def _legal_places(f: Scheduled, level: Level, state: Replay) -> Iterator[None]:
    try:
        yield
    except ScheduleError as error:
        error.hint = legal_places(f, state)
        name = level.func.name() if level.func is not None else "root"
        raise error.at(f"{f.name()}, {level.line}, at ({name}, {level.var})") from None


def legal_places(f: Scheduled, state: Replay) -> str:
    """Every place `f` can be computed at: the loops around all of its uses, as the user says it."""
    own = {x for n in state.of(f) for x in n.loops.values()}
    names = {x: (n.func, var) for n in state.nests for var, x in n.loops.items()}
    buffer = state.buffer(f)
    common: list[str] | None = None
    for place in tree.walk(state.schedule.kernel.body):
        path = [x.var.name for x in place.loops]
        if tree.below(place.stmt) or own & set(path):
            continue
        if any(a.buffer.name == buffer for a in tree.accesses(place.stmt)):
            common = path if common is None else [x for x in common if x in path]
    told = [names[x] for x in common or () if x in names]
    places = [
        f"compute_at({func.name()}, {var})" for func, var in told if not _is_vector(func, var)
    ]
    return "legal places: " + ", ".join(["compute_root()", *places])


def _is_vector(func: Func, var: str) -> bool:
    plans = _plans(func) if isinstance(func, Scheduled) else []
    return any(d == Kind(var, "vector") for plan in plans for d, _ in plan.directives)


# -- loops


def _shape(plan: Plan, nest: Nest, state: Replay) -> None:
    s, loops = state.schedule, nest.loops
    for directive, line in plan.directives:
        with _said(plan.title, line):
            match directive:
                case Split():
                    pair = _split(s, plan, loops.pop(directive.old), directive)
                    loops[directive.outer], loops[directive.inner] = pair
                case Fuse():
                    outer, inner = loops.pop(directive.outer), loops.pop(directive.inner)
                    loops[directive.fused] = s.fuse(outer, inner)
                case Reorder():
                    s.reorder(*(loops[v] for v in reversed(directive.vars)))
                case Rename():
                    loops[directive.new] = loops.pop(directive.old)
                case Kind():
                    pass


def _split(s: Schedule, plan: Plan, loop: str, directive: Split) -> tuple[str, str]:
    f, _ = tree.find_loop(s.kernel, loop, "split")
    count, factor = tree.trips(f, "split"), directive.factor
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
    kind = {TailStrategy.GuardWithIf: "guard", TailStrategy.ShiftInwards: "overlap"}.get(tail)
    return _pair(s.split(loop, factor, kind or "exact"))  # type: ignore[arg-type]


def _pair(names: tuple[str, ...]) -> tuple[str, str]:
    return names[0], names[1]


def _run(plan: Plan, nest: Nest, state: Replay) -> None:
    kinds = {d.var: (d.kind, line) for d, line in plan.directives if isinstance(d, Kind)}
    for var, (kind, line) in kinds.items():
        loop = nest.loops.get(var)
        if loop is not None:
            with _said(plan.title, line):
                getattr(state.schedule, _METHOD[kind])(loop)


# -- memory


def _store(f: Scheduled, state: Replay) -> None:
    if f in state.pipeline.outputs:
        return
    for buffer in state.lowered.buffers[f]:
        found, alloc = tree.find_buffer(state.schedule.kernel, buffer.name, "store_in")
        scope = f.memory.value
        if scope is None and alloc is not None and any(isinstance(x, For) for x in alloc.above):
            small = found.size * found.dtype.itemsize <= STACK_BYTES
            scope = MemoryType.Stack.value if small else None
        if scope is not None and scope != found.scope:
            state.schedule.set_scope(buffer.name, scope)
