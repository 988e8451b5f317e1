"""What primitives refuse: kinds of loops whose iterations meet, axes used twice, with witnesses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Overlap
from tilewright.ir.node import postorder
from tilewright.loops.access import commute, together, writes
from tilewright.loops.dependence import Verdict, can_parallelize, meeting_point
from tilewright.loops.nodes import AXES, GPU_AXES, Alloc, For, If, Kernel, Stmt, Update
from tilewright.schedule.meeting import carried, covered_in, meeting, pairs, shared
from tilewright.schedule.region import uncovered
from tilewright.schedule.tree import (
    Access,
    environment,
    find_loop,
    loads,
    loops_of,
    variables,
    walk,
)


def refuse(primitive: str, loop: str, message: str, hint: str) -> ScheduleError:
    """The error of a primitive that would change the program's meaning."""
    return ScheduleError(f"{primitive}: {message}", where=f"loop {loop}", hint=hint)


@contextmanager
def part_of(primitive: str) -> Iterator[None]:
    """What a primitive is made of refuses in its name: `tile: split: ...`."""
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


# What may meet in a loop of each kind: steps of one commutative reduction, stores of overlapping
# tiles (see `carried`).
MAY_MEET = dict.fromkeys(("parallel", *AXES), (False, True)) | {
    "vector": (True, False),
    "unroll": (True, True),
}


def check_kinds(kernel: Kernel, loops: Iterable[str], primitive: str, hint: str) -> None:
    """Raise ScheduleError if a loop's kind promises what its iterations do not keep.

    What the digit lemma leaves open is asked of isl, which also names the two iterations.
    """
    env = environment(kernel.body)
    for name in loops:
        f, _ = find_loop(kernel, name, primitive)
        if f.kind == "serial":
            continue
        verdict: Verdict | None = None
        for a, b in carried(f.body, f.var, env, *MAY_MEET[f.kind]):
            if not commute(a, b):
                verdict = verdict or can_parallelize(
                    kernel, name, covered_in(f.body, env, once=True)
                )
                if verdict:
                    continue
            raise refuse(
                primitive,
                name,
                f"different iterations of this {f.kind} loop may meet: one {show_pair(a, b)}"
                f"{because(verdict) or evidence(kernel, name, a)}",
                hint,
            )


def check_steps(kernel: Kernel, primitive: str) -> None:
    """Raise ScheduleError if steps of a reduction may change places that are no longer one value.

    A primitive that moves one of several results parts what the steps change together (see
    `together`); loops around whose kind needs them to commute are checked again.
    """
    found: dict[str, None] = {}
    for place in walk(kernel.body):
        if isinstance(place.stmt, Update) and not together(place.stmt, place.above):
            found |= dict.fromkeys(f.var.name for f in place.loops)
    check_kinds(kernel, found, primitive, f"{primitive} before the loop gets its kind")


def check_tiles(before: Kernel, after: Kernel, primitive: str) -> None:
    """Raise ScheduleError if overlapping tiles no longer promise what a loop's kind relies on.

    The promise (`loops/overlap.py`) is about one Store, and about the start of a tile as split
    wrote it: a rewrite may make two of the one, or take the other apart. The loops that are not
    serial and have changed are checked again.
    """
    old = {f.var.name: f for f in loops_of(before.body)}
    found = []
    for f in loops_of(after.body):
        was = old.get(f.var.name)
        if f.kind != "serial" and f is not was and (_tiled(f) or (was and _tiled(was))):
            found.append(f.var.name)
    check_kinds(after, found, primitive, f"{primitive} before the loop gets its kind")


def _tiled(f: For) -> bool:
    return any(isinstance(n, Overlap) and f.var in variables(n) for n in postorder(f.body))


def check_steady(around: Iterable[For | If], part: Stmt, primitive: str, loop: str) -> None:
    """How often statements run must not change when they run apart from others, or with them.

    Formally: the extents and conditions of `around` read nothing that `part` writes. Raises
    ScheduleError at the loop.
    """
    for s in around:
        decides = s.extent if isinstance(s, For) else s.condition
        changed = sorted({x.buffer.name for x in loads(decides)} & {b.name for b in writes(part)})
        if changed:
            what = f"{decides!r} says how often it runs, and {', '.join(changed)} changes there"
            raise refuse(primitive, loop, what, "keep what is inside in one loop")


def check_one_place(f: For, buffer: Buffer, primitive: str) -> None:
    """A buffer that is to live longer is allocated in one place of the loop.

    In another place it is other memory, which may be that of each iteration of a loop further in.
    Raises ScheduleError at the buffer.
    """
    found = [p for p in walk(f.body) if isinstance(p.stmt, Alloc) and p.stmt.buffer is buffer]
    if len(found) > 1:
        raise ScheduleError(
            f"{primitive}: it is allocated in {len(found)} places of loop {f.var.name}",
            where=f"buffer {buffer.name}",
            hint="give each place a buffer of its own",
        )


def check_axes(kernel: Kernel, primitive: str) -> None:
    """Raise ScheduleError if a loop and one inside it are bound to the same axis of a GPU."""
    for place in walk(kernel.body):
        f = place.stmt
        if isinstance(f, For) and f.kind in GPU_AXES:
            for outer in place.loops:
                if outer.kind == f.kind:
                    what = f"loop {outer.var.name} around it is bound to {f.kind} already"
                    hint = "bind one of them to another axis, or make it serial"
                    raise refuse(primitive, f.var.name, what, hint)


def check_repeatable(kernel: Kernel, f: For, primitive: str, why: str, hint: str) -> None:
    """Running an iteration of `f` again after any others must give the same memory.

    Formally, with W(x), R(x) what iteration x writes and reads of the buffers that outlive it:
    x != y implies W(x) disjoint from W(y) and from R(y), and each element of R(x) & W(x) is stored
    by x before x reads or updates it. Raises ScheduleError; why: what repeats iterations.
    """
    env, name = environment(kernel.body), f.var.name
    for buffer, found in shared(f.body).items():
        late = uncovered(f.body, buffer, env)
        if late is not None:
            does = "updates" if late.kind == "update" else "reads"
            left = f"a repeated one {does} {late} as its first run left it"
            raise refuse(primitive, name, f"{why}, and {left}", hint)
        for a, b in pairs(found):
            agree = meeting(a, b, (f.var,), env)
            if agree is not None and f.var not in agree:
                met = f"one {show_pair(a, b)}{evidence(kernel, name, a)}"
                order = "out of order, and different ones may meet"
                raise refuse(primitive, name, f"{why} {order}: {met}", hint)


def evidence(kernel: Kernel, loop: str, access: Access) -> str:
    """Two iterations of `loop` that meet where `access` does, to end a sentence with."""
    return because(meeting_point(kernel, loop, access.buffer))


def because(verdict: Verdict | None) -> str:
    """The witness of a verdict, to end a sentence with."""
    return f" ({verdict.reason})" if verdict is not None else ""
