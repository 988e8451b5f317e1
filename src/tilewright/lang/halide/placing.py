"""Placing Funcs: compute_at, sliding windows, and the legal alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Expr, Var
from tilewright.lang.halide.levels import Level, Scheduled
from tilewright.lang.halide.plan import LoopKind, PipelinePlan
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.lower import LoweredPipeline
from tilewright.lang.halide.syntax.pipeline import Pipeline
from tilewright.loops.analysis.access import accesses
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import SIZE, For, Kernel
from tilewright.loops.walk import below, walk
from tilewright.schedule import Schedule, tree
from tilewright.schedule.primitives.fold_storage import live_window


@dataclass(slots=True)
class Nest:
    """One copy of the nest of a definition: from the user's Vars to the names of loops.

    buffer: the (first) buffer it writes; plan: the directives for this copy; done: how many of its
    directives it has been through.
    """

    func: Func
    stage: int
    loops: dict[str, str]
    buffer: str
    plan: PipelinePlan | None = None
    done: int = 0


@dataclass(slots=True)
class Replay:
    """A pipeline's schedule while it is made. nests: every nest there is of each definition.

    buffers: of each Func the names of its values' buffers, once for each copy that is computed.
    """

    pipeline: Pipeline
    lowered: LoweredPipeline
    schedule: Schedule
    nests: list[Nest] = field(default_factory=list)
    buffers: dict[Func, list[tuple[str, ...]]] = field(default_factory=dict)

    def of(self, func: Func, buffer: str | None = None) -> list[Nest]:
        """The nests of a Func, or of one copy of it."""
        return [n for n in self.nests if n.func is func and buffer in (None, n.buffer)]

    def copies(self, func: Func) -> list[str]:
        """The name of the (first) buffer of each copy of a Func."""
        return [names[0] for names in self.buffers[func]]


@contextmanager
def at_line(title: str, line: str) -> Iterator[None]:
    """Errors of primitives name the Func and the user's line."""
    try:
        yield
    except ScheduleError as error:
        raise error.at(f"{title}, {line}") from None


def place(f: Scheduled, state: Replay) -> None:
    """Place `f` as requested, with a copy in each loop that the request names.

    By default, a Func with updates is placed at its readers (`_place_by_default`).
    """
    level = f.compute
    if f in state.pipeline.outputs:
        if level is not None and level.func is not None and not f.remembers:
            raise ScheduleError(
                "it is the output, which is computed at root",
                where=f"{f.name()}, {level.line}",
            )
    elif level is None:
        _place_by_default(f, state)
    elif level.func is not None:
        level = _level_of_readers(f, level, state)
        loops = _loops_at(f, level, "compute_at", state.copies(f)[0], state)
        for loop, buffer in _each(f, loops, state):
            _place_copy(f, level, loop, buffer, state)
            _check_extents(f, level, buffer, state)
    _fold(f, state)


def _level_of_readers(f: Scheduled, level: Level, state: Replay) -> Level:
    """The level that `f` is computed at: the level of its storage, if the readers in between are
    there.

    Such readers slide along a loop whose first iteration needs all of them.
    """
    store = f.store
    if store is None or store.func is None or not _named(level, state):
        return level
    if _using(f, level, state) or not _using(f, store, state):
        return level
    return store


def _named(level: Level, state: Replay) -> list[str]:
    """The loops that a level names."""
    assert level.func is not None and level.var is not None
    return [n.loops[level.var] for n in state.of(level.func) if level.var in n.loops]


def _using(f: Func, level: Level, state: Replay) -> list[str]:
    """Those of them that use `f`."""
    buffer = state.copies(f)[0]
    kernel = state.schedule.kernel
    return [x for x in _named(level, state) if _uses(kernel, x, buffer)]


def _check_extents(f: Scheduled, level: Level, buffer: str, state: Replay) -> None:
    """What is computed at a loop is as small as `bound_extent` has promised."""
    found, _ = tree.find_buffer(state.schedule.kernel, buffer, "bound_extent")
    for var, n in zip(reversed(f.args), found.shape, strict=True):
        first, extent = f.promised.get(var.name(), (None, n))
        if first is None and n > extent:
            raise ScheduleError(
                f"{n} of {var.name()} are needed at a time, {extent} are promised",
                where=f"{f.name()}, {level.line}",
                hint=f"bound_extent({var.name()}, {n}), or compute it further inside",
            )


def _fold(f: Scheduled, state: Replay) -> None:
    """The rings the user asked for, of each copy."""
    dims = {v.name(): d for d, v in enumerate(reversed(f.args))}
    for var, (extent, line) in f.folds.items():
        for buffer in (b for copy in state.buffers[f] for b in copy):
            with at_line(f.name(), line):
                state.schedule.fold_storage(buffer, dims[var], extent)


def _each(f: Func, loops: list[str], state: Replay) -> Iterator[tuple[str, str]]:
    """Each loop with a copy of `f` for it, the first with the original."""
    original = state.copies(f)[0]
    main = state.of(f, original)
    for loop in loops[1:]:
        made = state.schedule.duplicate(original, loop)
        count = len(state.buffers[f][0])
        state.buffers[f].append(made[:count])
        _copied(main, made[count:], made[0], state)
        yield loop, made[0]
    if loops:
        yield loops[0], original


def _copied(
    nests: list[Nest], loops: Sequence[str], buffer: str, state: Replay
) -> None:
    """Each nest again: `loops` are the copies of all their loops, in order."""
    inside = [x for nest in nests for x in nest.loops.values()]
    copies = dict(zip(inside, loops, strict=True))
    for nest in nests:
        own = {var: copies[x] for var, x in nest.loops.items()}
        state.nests.append(Nest(nest.func, nest.stage, own, buffer, nest.plan))


def _place_by_default(f: Func, state: Replay) -> None:
    """Into the innermost loops around its readers that need different parts; else at root."""
    before = state.schedule.fork(), list(state.nests), list(state.buffers[f])
    try:
        for loop, buffer in _each(f, _innermost(f, state), state):
            state.schedule.compute_at(buffer, loop)
    except ScheduleError:
        state.schedule, state.nests, state.buffers[f] = before


def _innermost(f: Func, state: Replay) -> list[str]:
    """The innermost loop that each reader's places depend on; none where some depend on none."""
    own = {x for n in state.of(f) for x in n.loops.values()}
    needed: dict[tuple[For, ...], set[Expr]] = {}
    for a in accesses(state.schedule.kernel.body):
        around = {x.var.name for x in a.loops}
        if a.buffer.name in state.buffers[f][0] and not own & around:
            used = needed.setdefault(a.loops, set())
            for used_here in map(variables, a.index):
                if all(isinstance(v, Var) for v in used_here):
                    used |= used_here  # an element that data choose may be any
    found: dict[For, tuple[For, ...]] = {}
    for loops, used in needed.items():
        needed_at = [n for n, x in enumerate(loops) if x.var in used and x.kind != SIZE]
        if not needed_at:
            return []
        innermost = needed_at[-1]
        found[loops[innermost]] = loops[:innermost]
    return [x.var.name for x, outer in found.items() if not set(outer) & set(found)]


def _place_copy(
    f: Scheduled, level: Level, loop: str, buffer: str, state: Replay
) -> None:
    store = f.store
    s = state.schedule
    if store is None or _same(store, level):
        store = _along(f, level, buffer, state)
    if store is None:
        with _legal_places(f, level, state):
            s.compute_at(buffer, loop)
        return
    outer = None
    if store.func is not None:
        outers = _loops_at(f, store, "store_at", buffer, state)
        outer = next((x for x in outers if _between(s.kernel, x, loop)), None)
        if outer is not None:
            with _legal_places(f, store, state):
                s.compute_at(buffer, outer)
    chain = _between(s.kernel, outer, loop)
    if not chain or (outer is None and store.func is not None):
        raise ScheduleError(
            f"it is stored at {store.var}, inside the loop {level.var} it is computed at",
            where=f"{f.name()}, {store.line}",
            hint="store it further out",
        )
    _slide(f, level, chain, buffer, state)


def _same(a: Level, b: Level) -> bool:
    return a.func is b.func and a.var == b.var


def _along(
    f: Scheduled,
    level: Level,
    buffer: str,
    state: Replay,
) -> Level | None:
    """Where a consumer is stored that slides through the loop that `f` is computed at.

    The first rows of that consumer are computed before the loop, and `f` is needed there too.
    """
    for c in state.lowered.stages:
        if not isinstance(c, Scheduled) or c.store is None or c.compute is None:
            continue
        if not _same(c.compute, level) or _same(c.store, level):
            continue
        copies = [loop for nest in state.of(c) for loop in nest.loops.values()]
        if any(_uses(state.schedule.kernel, loop, buffer) for loop in copies):
            return c.store
    return None


def _slide(
    f: Scheduled, level: Level, chain: list[str], buffer: str, state: Replay
) -> None:
    """Compute `f` in the last loop of the chain, sliding along as many of them as can be."""
    s = state.schedule
    slid = False
    main = state.of(f, buffer)[: len(f.definitions)]
    for n, loop in enumerate(chain):
        try:
            warm = s.slide(buffer, loop)
        except ScheduleError:
            # What the first rows of a consumer need all of is computed with them, before the loop.
            if n == len(chain) - 1 and not _is_used_before(f, buffer, loop, state):
                with _legal_places(f, level, state):
                    s.store_at(buffer, None, loop)
            continue
        if warm:
            _copied(main, warm, buffer, state)
        slid = True
    if slid and not f.folds:
        any(_folded(buffer, d, s) for d in range(len(f.args)))  # the first that can be


def _is_used_before(f: Func, buffer: str, loop: str, state: Replay) -> bool:
    """Whether a statement outside the loop reads the buffer, except the nests that compute it."""
    own = {x for n in state.of(f) for x in n.loops.values()}
    for a in accesses(state.schedule.kernel.body):
        around = {x.var.name for x in a.loops}
        if a.buffer.name == buffer and not a.writes and not around & {loop, *own}:
            return True
    return False


def _folded(name: str, dim: int, s: Schedule) -> bool:
    """Fold a dimension to the smallest power of two that holds the live elements, if that saves
    memory."""
    least, _ = live_window(s.kernel, name, dim)
    ring = 1 << (least - 1).bit_length()
    buffer, _ = tree.find_buffer(s.kernel, name, "fold_storage")
    if ring >= buffer.shape[dim]:
        return False
    s.fold_storage(name, dim, ring)
    return True


def _between(kernel: Kernel, outer: str | None, inner: str) -> list[str]:
    """The loops from inside `outer` down to `inner`; empty where `inner` is not inside."""
    _, place = tree.find_loop(kernel, inner, "compute_at")
    path = [x.var.name for x in place.loops] + [inner]
    if outer is None:
        return path
    if outer in path[:-1]:
        return path[path.index(outer) + 1 :]
    return []


def _loops_at(
    f: Scheduled, level: Level, verb: str, buffer: str, state: Replay
) -> list[str]:
    """The loops a level names: of the nests of that Func that use the buffer."""
    assert level.func is not None and level.var is not None
    found = [
        n.loops[level.var]
        for n in state.of(level.func)
        if level.var in n.loops and level.stage in (None, n.stage)
    ]
    using = [x for x in found if _uses(state.schedule.kernel, x, buffer)]
    if not using:
        problem = "does not use it" if found else "there is no such loop"
        raise ScheduleError(
            f"{verb}({level.func.name()}, {level.var}): {problem}",
            where=f"{f.name()}, {level.line}",
            hint=legal_places(f, state),
        )
    return using


def _uses(kernel: Kernel, loop: str, buffer: str) -> bool:
    f, _ = tree.find_loop(kernel, loop, "compute_at")
    return any(a.buffer.name == buffer for a in accesses(f.body))


@contextmanager
def _legal_places(f: Scheduled, level: Level, state: Replay) -> Iterator[None]:
    try:
        yield
    except ScheduleError as error:
        error.hint = legal_places(f, state)
        name = level.func.name() if level.func is not None else "root"
        raise error.at(f"{f.name()}, {level.line}, at ({name}, {level.var})") from None


def legal_places(f: Scheduled, state: Replay) -> str:
    """Every place `f` can be computed at, as the user says it: those that `compute_at` accepts."""
    own = {x for n in state.of(f) for x in n.loops.values()}
    names = {x: (n.func, var) for n in state.nests for var, x in n.loops.items()}
    buffers = state.copies(f)
    common: list[tuple[Func, str]] | None = None
    for place in walk(state.schedule.kernel.body):
        path = [x.var.name for x in place.loops]
        if below(place.stmt) or own & set(path):
            continue
        if any(a.buffer.name in buffers for a in accesses(place.stmt)):
            told = [names[x] for x in path if x in names]
            common = told if common is None else [x for x in common if x in told]
    places = [
        f"compute_at({func.name()}, {var})"
        for func, var in common or ()
        if not _is_vector(func, var) and _accepts(f, func, var, state)
    ]
    return "legal places: " + ", ".join(["compute_root()", *places])


def _accepts(f: Scheduled, func: Func, var: str, state: Replay) -> bool:
    """Whether every copy of `f` can be computed at that loop of its readers, tried on a fork."""
    trial = state.schedule.fork()
    loops = [n.loops[var] for n in state.of(func) if var in n.loops]
    try:
        for buffer in state.copies(f):
            using = [x for x in loops if _uses(trial.kernel, x, buffer)]
            if not using:
                return False
            for loop in using[1:]:
                trial.compute_at(trial.duplicate(buffer, loop)[0], loop)
            trial.compute_at(buffer, using[0])
    except ScheduleError:
        return False
    return True


def _is_vector(func: Func, var: str) -> bool:
    if not isinstance(func, Scheduled):
        return False
    wanted = LoopKind(var, "vector")
    for n in range(len(func.definitions)):
        directives = func.plan(n).directives
        if any(directive == wanted for directive, _ in directives):
            return True
    return False
