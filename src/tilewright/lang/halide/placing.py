"""Where Funcs are computed and stored: compute_at, sliding windows, and what is legal instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.levels import Level, Scheduled
from tilewright.lang.halide.verbs import Kind, Plan
from tilewright.loops.nodes import Kernel
from tilewright.notation.halide.func import Func
from tilewright.notation.halide.lower import Lowered
from tilewright.notation.halide.pipeline import Pipeline
from tilewright.schedule import Schedule, tree
from tilewright.schedule.primitives.storage import live_window


@dataclass(slots=True)
class Nest:
    """One copy of the nest of a definition: from the user's Vars to the names of loops.

    plan: what is said about this copy; done: how many of its directives it has been through.
    """

    func: Func
    stage: int
    loops: dict[str, str]
    plan: Plan | None = None
    done: int = 0


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


@contextmanager
def said(title: str, line: str) -> Iterator[None]:
    """Errors of primitives name the Func and the user's line."""
    try:
        yield
    except ScheduleError as error:
        raise error.at(f"{title}, {line}") from None


def place(f: Scheduled, state: Replay) -> None:
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
            with said(f.name(), f.store.line if f.store else level.line):
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
        state.nests.append(Nest(f, nest.stage, loops, nest.plan))


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
    if not isinstance(func, Scheduled):
        return False
    plans = [func.plan(n) for n in range(len(func.definitions))]
    return any(d == Kind(var, "vector") for plan in plans for d, _ in plan.directives)
