"""Random schedules: requests for primitives that name something in a kernel, sensible or not.

Coverage is counted in pairs of primitives: one was accepted on what another one had made
before. A generator that is given the counts steers to pairs not seen yet.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.nodes import Alloc, For, Kernel
from tilewright.loops.walk import loops_of, walk
from tilewright.schedule import Schedule, Step
from tilewright.schedule.primitives.pipeline import sequence


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The names that a request may use.

    loop: a loop of the kernel; next: the loop that begins after it; nest: `loop` and the loops
    perfectly nested in it; inside: `loop` and all loops in it; parts: the number of statements in
    its body; buffer: a buffer of the kernel, parameters included; staged: a buffer allocated in a
    loop, if any; made: an intermediate, if any; user: finds a loop that reads `made`.
    """

    loop: str
    next: str
    nest: tuple[str, ...]
    inside: tuple[str, ...]
    parts: int
    buffer: str
    staged: str
    made: str
    user: Callable[[], str]


Request = Callable[[random.Random, RequestTarget], Step]
Argument = Callable[[random.Random, RequestTarget], Any]


def _asks(
    primitive: str,
    *arguments: Any,
    **options: Any,
) -> Request:
    """A request; callable arguments are drawn or looked up, in order."""

    def request(r: random.Random, at: RequestTarget) -> Step:
        found = [a(r, at) if callable(a) else a for a in arguments]
        return Step(primitive, tuple(found), dict(options))

    return request


def _named(field: str) -> Argument:
    return lambda r, at: getattr(at, field)


LOOP = _named("loop")
NEXT = _named("next")
BUFFER = _named("buffer")
STAGED = _named("staged")
MADE = _named("made")


def _user_of_made(r: random.Random, at: RequestTarget) -> str:
    return at.user()


def _loop_or_none(r: random.Random, at: RequestTarget) -> str | None:
    return r.choice([None, at.loop])


def _number(low: int, high: int) -> Argument:
    return lambda r, at: r.randint(low, high)


def _split(r: random.Random, at: RequestTarget) -> Step:
    tail = r.choice(["exact", "guard", "overlap", "overlap", "cut"])
    factor = r.randint(1, 4)
    return Step("split", (at.loop, factor), {"tail": tail})


def _tile(r: random.Random, at: RequestTarget) -> Step:
    count = r.randint(1, 3)
    loops = at.nest[:count]
    tail = r.choice(["exact", "guard", "overlap"])
    factors = [r.randint(1, 4) for _ in loops]
    return Step("tile", (*loops, *factors), {"tail": tail})


def _reorder(r: random.Random, at: RequestTarget) -> Step:
    count = len(at.nest)
    order = r.sample(at.nest, count)
    return Step("reorder", tuple(order))


def _fuse(r: random.Random, at: RequestTarget) -> Step:
    *_, inner = at.nest[:2]
    return Step("fuse", (at.loop, inner))


def _kind(r: random.Random, at: RequestTarget) -> Step:
    kind = r.choice(["vectorize", "unroll", "parallel", "serial"])
    return Step(kind, (at.loop,))


def _pipeline(r: random.Random, at: RequestTarget) -> Step:
    stages = [r.randint(0, 1) for _ in range(at.parts)]
    return Step("pipeline", (at.loop, *stages))


def _rotate(r: random.Random, at: RequestTarget) -> Step:
    places = sorted(r.randint(0, at.parts) for _ in range(3))
    return Step("rotate", (at.loop, *places))


def _rename(r: random.Random, at: RequestTarget) -> Step:
    name = f"{at.loop}.{r.randint(1, 3)}"
    return Step("rename", (at.loop, name))


def _specialize(r: random.Random, at: RequestTarget) -> Step:
    loop = at.loop
    tests = [
        f"{loop} < {r.randint(1, 4)}",
        f"0 < {loop} < {r.randint(2, 6)}",
        f"{loop} % 2 == 0",
        "X[0, 0] < 1",
        f"not B[0] == 2 or {loop} == 1",
        # These may change meanwhile.
        f"Y[0, 0] < {loop}",
        f"Z[{loop}, 0] < 1",
    ]
    test = r.choice(tests)
    where = _loop_or_none(r, at)
    return Step("specialize", (test, where))


def _pack(r: random.Random, at: RequestTarget) -> Step:
    most = min(3, len(at.inside))
    count = r.randint(1, most)
    some = r.sample(at.inside, count)
    return Step("pack", (at.buffer, *some))


_MAPS = (
    "lambda i, j: (j, i)",
    "lambda i, j: (i // 2, j, i % 2)",
    "lambda i, j: (j // 3, i * 3 + j % 3)",
    "lambda i, j: (i, j // 2)",
    "lambda i: (i % 2, i // 2)",
)


def _map(r: random.Random, at: RequestTarget) -> str:
    return r.choice(_MAPS)


# The likelier a primitive keeps a program interesting, the more often it is requested.
REQUESTS: tuple[Request, ...] = (
    _split,
    _split,
    _tile,
    _reorder,
    _reorder,
    _fuse,
    _kind,
    _asks("bind", LOOP, "vthread"),
    _asks("vthread", LOOP),
    _pipeline,
    _asks("double_buffer", STAGED),
    _rotate,
    _asks("persist", LOOP, _number(1, 4)),
    _asks("annotate", LOOP, "note", _number(1, 9)),
    _rename,
    _pack,
    _asks("pad", LOOP, _number(2, 4)),
    _specialize,
    _asks("partition_loop", LOOP),
    _asks("partition_loop", LOOP, _number(1, 4)),
    _asks("fission", LOOP, _number(1, 2)),
    _asks("merge", LOOP, NEXT),
    _asks("decompose_reduction", BUFFER, LOOP),
    _asks("cache_write", BUFFER, _loop_or_none, scope="stack"),
    _asks("cache_read", BUFFER, _loop_or_none),
    _asks("cache_read", BUFFER, _loop_or_none, pad=True),
    _asks("transform_layout", BUFFER, _map),
    _asks("storage_align", BUFFER, _number(0, 1), 4, _number(0, 3)),
    _asks("expand", BUFFER, LOOP),
    _asks("compute_at", MADE, _user_of_made, scope="stack"),
    _asks("compute_at", MADE, _user_of_made),
    _asks("compute_at", BUFFER, LOOP),
    _asks("store_with", STAGED, BUFFER),
    _asks("duplicate", MADE, _user_of_made),
    _asks("reverse_compute_at", BUFFER, LOOP),
    _asks("compute_inline", BUFFER),
    _asks("reverse_compute_inline", BUFFER),
    _asks("rfactor", LOOP),
    _asks("set_scope", BUFFER, "stack"),
    _asks("convert", BUFFER),
)


def random_step(r: random.Random, kernel: Kernel) -> Step | None:
    """A request about `kernel`; None if it has no loop."""
    loops = loops_of(kernel.body)
    if not loops:
        return None
    allocated: list[Buffer] = []
    staged: list[str] = []
    for p in walk(kernel.body):
        if isinstance(p.stmt, Alloc):
            allocated.append(p.stmt.buffer)
            if p.loops:
                staged.append(p.stmt.buffer.name)
    buffers = [b.name for b in (*allocated, *kernel.params)]
    f = r.choice(loops)
    made = r.choice(allocated or [*kernel.params])
    nest = [f]
    while isinstance(nest[-1].body, For):
        nest.append(nest[-1].body)
    inside = loops_of(f)
    following = loops[loops.index(f) + len(inside) :]
    at = RequestTarget(
        loop=f.var.name,
        next=(following or loops)[0].var.name,
        nest=tuple(g.var.name for g in nest),
        inside=tuple(g.var.name for g in inside),
        parts=len(sequence(f.body).stmts),
        buffer=r.choice(buffers),
        staged=r.choice(staged or buffers),
        made=made.name,
        user=partial(_user, r, loops, made),
    )
    return r.choice(REQUESTS)(r, at)


def _user(
    r: random.Random,
    loops: Sequence[For],
    made: Buffer,
) -> str:
    readers = [g for g in loops if made in reads(g.body)]
    users = [g for g in readers if made not in writes(g.body)]
    return r.choice(users or loops).var.name


# How often the second primitive of a pair was accepted after the first.
Coverage = Counter[tuple[str, str]]
# The number of requests drawn for a step; the one with the rarest pairs is made.
CANDIDATES = 3


class Crash(AssertionError):
    """The last of `steps` did not end as a primitive must."""

    def __init__(self, steps: tuple[Step, ...], reason: str) -> None:
        super().__init__(reason)
        self.steps = steps


def _rarest(
    steps: Sequence[Step],
    done: Sequence[Step],
    met: Coverage,
) -> Step:
    def weight(step: Step) -> float:
        return sum(1 / (1 + met[earlier.primitive, step.primitive]) for earlier in done)

    return max(steps, key=weight)


def random_schedule(
    r: random.Random,
    kernel: Kernel,
    tries: int = 30,
    after: Callable[[Schedule, Step], None] | None = None,
    met: Coverage | None = None,
) -> Schedule:
    """`kernel` after the legal ones of `tries` random requests.

    after: called after every step. met: counts of pairs of primitives, which steer the requests and
    to which this schedule's pairs are added. Raises Crash if a primitive fails other than by a
    ScheduleError that names the primitive and a place and has a hint.
    """
    s = Schedule(kernel)
    candidates = 1 if met is None else CANDIDATES
    for _ in range(tries):
        asked = [random_step(r, s.kernel) for _ in range(candidates)]
        steps = [step for step in asked if step is not None]
        if not steps:
            break
        done = s.trace.steps
        if met is None:
            step = steps[0]
        else:
            step = _rarest(steps, done, met)
        try:
            s.apply(step)
        except ScheduleError as error:
            if not (step.primitive in error.message and error.where and error.hint):
                reason = f"{step}: a poor refusal: {error!r}"
                raise Crash((*done, step), reason) from error
            continue
        except Exception as error:
            reason = f"{step}: {type(error).__name__}: {error}"
            raise Crash((*done, step), reason) from error
        if met is not None:
            met.update({(earlier.primitive, step.primitive) for earlier in done})
        if after is not None:
            after(s, step)
    return s
