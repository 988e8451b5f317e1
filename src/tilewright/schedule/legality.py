"""Checks shared by primitives: loop kinds with loop-carried dependences, axes used twice;
witnesses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.access import Access, environment, shared
from tilewright.loops.analysis.dependence import can_parallelize, covered_in
from tilewright.loops.analysis.effects import together, writes
from tilewright.loops.analysis.region import uncovered
from tilewright.loops.analysis.terms import loads
from tilewright.loops.analysis.verdict import Illegal, Unknown
from tilewright.loops.nodes import (
    ATOMICS,
    GPU_AXES,
    Alloc,
    For,
    If,
    Kernel,
    Stmt,
    Update,
)
from tilewright.loops.walk import loops_of, summary, walk
from tilewright.schedule.tree import find_loop


def refuse(
    primitive: str,
    loop: str,
    message: str,
    hint: str,
) -> ScheduleError:
    """The error of a primitive that would change the program's meaning."""
    return ScheduleError(f"{primitive}: {message}", where=f"loop {loop}", hint=hint)


def refuse_buffer(
    primitive: str, buffer: str, message: str, hint: str
) -> ScheduleError:
    """The error of a primitive that would change what a buffer holds, or whose it is."""
    return ScheduleError(f"{primitive}: {message}", where=f"buffer {buffer}", hint=hint)


@contextmanager
def part_of(primitive: str) -> Iterator[None]:
    """Errors of the primitives that a primitive calls carry its name: `tile: split: ...`."""
    try:
        yield
    except ScheduleError as error:
        error.message = f"{primitive}: {error.message}"
        raise


def show_pair(a: Access, b: Access) -> str:
    """Two accesses as text: what each does and where."""
    verb = {"load": "reads", "store": "writes", "update": "updates"}
    if str(a) == str(b) and a.kind == b.kind:
        return f"{verb[a.kind]} {a}"
    return f"{verb[a.kind]} {a} and {verb[b.kind]} {b}"


# The kinds of loops whose iterations may update one element by a commutative reduction: lanes of a
# vector, and threads of a block (loops/passes/thread_reductions.py); blocks where that is noted
# (loops/passes/atomics.py).
MAY_REDUCE = ("vector", *(axis for axis in GPU_AXES if axis.startswith("threadIdx")))


def check_kinds(
    kernel: Kernel, loops: Iterable[str], primitive: str, hint: str
) -> None:
    """Raise ScheduleError if a loop's kind promises what its iterations do not keep."""
    for name in loops:
        f, place = find_loop(kernel, name, primitive, sizes=True)
        if not f.together:
            continue
        covered = covered_in(f.body, environment(kernel.body), once=True)
        is_noted = ATOMICS in kernel.notes.get(name, ())
        may_reduce = f.kind in MAY_REDUCE or is_noted
        verdict = can_parallelize(
            kernel, place, covered, updates=may_reduce, halos=True
        )
        if not verdict:
            has = "has" if isinstance(verdict, Illegal) else "may have"
            what = f"this {f.kind} loop {has} a loop-carried dependence: {because(verdict)}"
            raise refuse(primitive, name, what, hint)


def check_steps(kernel: Kernel, primitive: str) -> None:
    """Raise ScheduleError if steps of a reduction may change places that are no longer one value.

    A primitive that moves one of several results parts what the steps change together (see
    `together`); loops around whose kind needs them to commute are checked again.
    """
    found: dict[str, None] = {}
    if not summary(kernel.body).joint:
        return
    for place in walk(kernel.body):
        if isinstance(place.stmt, Update) and not together(place.stmt, place.above):
            found |= dict.fromkeys(f.var.name for f in place.loops)
    check_kinds(kernel, found, primitive, f"{primitive} before the loop gets its kind")


def check_tiles(before: Kernel, after: Kernel, primitive: str) -> None:
    """Raise ScheduleError if overlapping tiles no longer promise what a loop's kind relies on.

    The promise (`loops/analysis/overlap.py`) is about one Store, and about the start of a tile as
    split wrote it: a rewrite may make two of the one, or split the other. The loops that are
    not serial and have changed are checked again.
    """
    if not (summary(before.body).tiles or summary(after.body).tiles):
        return
    old = {f.var.name: f for f in loops_of(before.body)}
    found = []
    for f in loops_of(after.body):
        was = old.get(f.var.name)
        if not f.together or f is was:
            continue
        if any(f.var in summary(s).tiles for s in (f, was) if s is not None):
            found.append(f.var.name)
    check_kinds(after, found, primitive, f"{primitive} before the loop gets its kind")


def check_steady(
    around: Iterable[For | If], part: Stmt, primitive: str, loop: str
) -> None:
    """How often statements run must not change when they run separately from others, or with them.

    Formally: the extents and conditions of `around` read nothing that `part` writes. Raises
    ScheduleError at the loop.
    """
    for s in around:
        decides = s.extent if isinstance(s, For) else s.condition
        read = {x.buffer.name for x in loads(decides)}
        written = {b.name for b in writes(part)}
        changed = sorted(read & written)
        if changed:
            what = f"{decides!r} says how often it runs, and {', '.join(changed)} changes there"
            raise refuse(primitive, loop, what, "keep what is inside in one loop")


def check_one_place(f: For, buffer: Buffer, primitive: str) -> None:
    """Require that a buffer whose lifetime is extended is allocated in one place of the loop.

    A second allocation is different memory, possibly one per iteration of an inner loop. Raises
    ScheduleError naming the buffer.
    """
    allocs = [p.stmt for p in walk(f.body) if isinstance(p.stmt, Alloc)]
    found = [s for s in allocs if s.buffer is buffer]
    if len(found) > 1:
        raise ScheduleError(
            f"{primitive}: it is allocated in {len(found)} places of loop {f.var.name}",
            where=f"buffer {buffer.name}",
            hint="give each place a separate buffer",
        )


def check_axes(kernel: Kernel, primitive: str) -> None:
    """Raise ScheduleError if a loop and one inside it are bound to the same axis of a GPU."""
    for place in walk(kernel.body):
        f = place.stmt
        if isinstance(f, For) and f.kind in GPU_AXES:
            for outer in place.loops:
                if outer.kind == f.kind:
                    what = (
                        f"loop {outer.var.name} around it is bound to {f.kind} already"
                    )
                    hint = "bind one of them to another axis, or make it serial"
                    raise refuse(primitive, f.var.name, what, hint)


def check_repeatable(
    kernel: Kernel, f: For, primitive: str, why: str, hint: str
) -> None:
    """Require that rerunning an iteration of `f` after any others leaves the same memory.

    Formally, with W(x), R(x) the elements that iteration x writes and reads in buffers that outlive
    it: x != y implies W(x) disjoint from W(y) and from R(y), and each element of R(x) & W(x) is
    stored by x before x reads or updates it. Raises ScheduleError; why: the reason that iterations
    are repeated.
    """
    env = environment(kernel.body)
    name = f.var.name
    for buffer in shared(f.body):
        late = uncovered(f.body, buffer, env)
        if late is not None:
            does = "updates" if late.kind == "update" else "reads"
            left = f"a repeated one {does} {late} as its first run left it"
            raise refuse(primitive, name, f"{why}, and {left}", hint)
    verdict = can_parallelize(kernel, f, None, updates=False)
    if not verdict:
        carries = "with" if isinstance(verdict, Illegal) else "perhaps with"
        what = f"{why} out of order, {carries} a loop-carried dependence: {because(verdict)}"
        raise refuse(primitive, name, what, hint)


def because(verdict: Illegal | Unknown) -> str:
    """Why a verdict is not legal, to end a sentence with: the accesses, and the witness."""
    return f"one {show_pair(*verdict.pair)} ({verdict.reason})"
