"""Random schedules: requests for primitives that name something in a kernel, sensible or not.

Coverage is counted in pairs of primitives that met: one was accepted on what another one had made
before. A generator that is given the counts asks for pairs that never met.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.nodes import Alloc, For, Kernel
from tilewright.loops.walk import loops_of, walk
from tilewright.schedule import Schedule, Step
from tilewright.schedule.primitives.pipeline import sequence


@dataclass(frozen=True, slots=True)
class Spot:
    """What a request may name.

    loop: one of the kernel's; next: the one that begins after it; nest: it and the loops directly
    nested in it; inside: it and all loops in it; parts: the statements of its body; buffer: one of
    the kernel's, parameters included; staged: one that is allocated in a loop, if there is one;
    made: an intermediate, if there is one; user: looks for a loop in which that is read.
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


Request = Callable[[random.Random, Spot], Step]


def _split(r: random.Random, at: Spot) -> Step:
    tail = r.choice(["exact", "guard", "overlap", "overlap", "cut"])
    return Step("split", (at.loop, r.randint(1, 4)), {"tail": tail})


def _tile(r: random.Random, at: Spot) -> Step:
    loops = at.nest[: r.randint(1, 3)]
    tail = r.choice(["exact", "guard", "overlap"])
    return Step("tile", (*loops, *(r.randint(1, 4) for _ in loops)), {"tail": tail})


def _reorder(r: random.Random, at: Spot) -> Step:
    return Step("reorder", tuple(r.sample(at.nest, len(at.nest))))


def _fuse(r: random.Random, at: Spot) -> Step:
    return Step("fuse", (at.loop, at.nest[min(1, len(at.nest) - 1)]))


def _kind(r: random.Random, at: Spot) -> Step:
    return Step(r.choice(["vectorize", "unroll", "parallel", "serial"]), (at.loop,))


def _specialize(r: random.Random, at: Spot) -> Step:
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
    return Step("specialize", (r.choice(tests), r.choice([None, at.loop])))


def _pack(r: random.Random, at: Spot) -> Step:
    some = r.sample(at.inside, r.randint(1, min(3, len(at.inside))))
    return Step("pack", (at.buffer, *some))


_MAPS = (
    "lambda i, j: (j, i)",
    "lambda i, j: (i // 2, j, i % 2)",
    "lambda i, j: (j // 3, i * 3 + j % 3)",
    "lambda i, j: (i, j // 2)",
    "lambda i: (i % 2, i // 2)",
)


# The likelier a primitive keeps a program interesting, the more often it is asked for.
REQUESTS: tuple[Request, ...] = (
    _split,
    _split,
    _tile,
    _reorder,
    _reorder,
    _fuse,
    _kind,
    lambda r, at: Step("bind", (at.loop, "vthread")),
    lambda r, at: Step("vthread", (at.loop,)),
    lambda r, at: Step(
        "pipeline", (at.loop, *(r.randint(0, 1) for _ in range(at.parts)))
    ),
    lambda r, at: Step("double_buffer", (at.staged,)),
    lambda r, at: Step("annotate", (at.loop, "note", r.randint(1, 9))),
    lambda r, at: Step("rename", (at.loop, f"{at.loop}.{r.randint(1, 3)}")),
    _pack,
    lambda r, at: Step("pad", (at.loop, r.randint(2, 4))),
    _specialize,
    lambda r, at: Step("partition_loop", (at.loop,)),
    lambda r, at: Step("partition_loop", (at.loop, r.randint(1, 4))),
    lambda r, at: Step("fission", (at.loop, r.randint(1, 2))),
    lambda r, at: Step("merge", (at.loop, at.next)),
    lambda r, at: Step("decompose_reduction", (at.buffer, at.loop)),
    lambda r, at: Step(
        "cache_write", (at.buffer, r.choice([None, at.loop])), {"scope": "stack"}
    ),
    lambda r, at: Step("cache_read", (at.buffer, r.choice([None, at.loop]))),
    lambda r, at: Step(
        "cache_read", (at.buffer, r.choice([None, at.loop])), {"pad": True}
    ),
    lambda r, at: Step("transform_layout", (at.buffer, r.choice(_MAPS))),
    lambda r, at: Step(
        "storage_align", (at.buffer, r.randint(0, 1), 4, r.randint(0, 3))
    ),
    lambda r, at: Step("expand", (at.buffer, at.loop)),
    lambda r, at: Step("compute_at", (at.made, at.user()), {"scope": "stack"}),
    lambda r, at: Step("compute_at", (at.made, at.user())),
    lambda r, at: Step("compute_at", (at.buffer, at.loop)),
    lambda r, at: Step("store_with", (at.staged, at.buffer)),
    lambda r, at: Step("duplicate", (at.made, at.user())),
    lambda r, at: Step("reverse_compute_at", (at.buffer, at.loop)),
    lambda r, at: Step("compute_inline", (at.buffer,)),
    lambda r, at: Step("reverse_compute_inline", (at.buffer,)),
    lambda r, at: Step("rfactor", (at.loop,)),
    lambda r, at: Step("set_scope", (at.buffer, "stack")),
)


def random_step(r: random.Random, kernel: Kernel) -> Step | None:
    """A request about `kernel`; None where it has no loop."""
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
    at = Spot(
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


def _user(r: random.Random, loops: Sequence[For], made: Buffer) -> str:
    readers = [g for g in loops if made in reads(g.body)]
    users = [g for g in readers if made not in writes(g.body)]
    return r.choice(users or loops).var.name


# How often the second primitive of a pair was accepted behind the first.
Coverage = Counter[tuple[str, str]]
# Of so many requests the one is made whose pairs are the rarest.
CANDIDATES = 3


class Crash(AssertionError):
    """The last of `steps` did not end as a primitive must."""

    def __init__(self, steps: tuple[Step, ...], reason: str) -> None:
        super().__init__(reason)
        self.steps = steps


def _rarest(steps: Sequence[Step], done: Sequence[Step], met: Coverage) -> Step:
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
    """`kernel` after those of `tries` random requests that are legal.

    after: called behind every step. met: the pairs of primitives that met so far, which steer what
    is asked for, and to which this schedule's are added. Raises Crash if a primitive ends
    in anything but a ScheduleError that names it and a place and gives a hint.
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
