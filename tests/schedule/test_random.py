"""Random programs under random primitives: what is permitted never changes a result."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import cast, map_, padded, reduce_
from tilewright.compute.nodes import PS, Computation
from tilewright.expr.nodes import Buffer, Max, Sub
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc, For, Kernel
from tilewright.loops.verify import verify
from tilewright.schedule import Schedule, Step, replay
from tilewright.schedule.tree import walk

# Integers wrap around, so that every order of a reduction gives the same bits.
i32 = dtypes.int32


def stage(r: random.Random, n: int, source: Buffer) -> tuple[Computation, Buffer]:
    """One Computation that reads `source`, and its result."""
    h, w = source.shape
    out, kind = Buffer(f"t{n}", (h, w), i32), r.randrange(8)
    name = f"s{n}"
    if kind == 0:
        return map_(name, out, lambda i, j: source[i, j] * 3 + source[h - 1 - i, j]), out
    if kind == 1:
        other = Buffer(f"t{n}", (w, h), i32)
        return map_(name, other, lambda i, j: source[j, i] + 1), other
    if kind == 2:
        k = r.randint(2, 4)
        return reduce_(name, out, (w,), "add", lambda i, j, k: source[i, k] * source[k % h, j]), out
    if kind == 3:
        return reduce_(
            name, out, (3,), "max", lambda i, j, k: padded(source, (i, j + k - 1), -(2**31))
        ), out
    if kind == 4:
        row = Buffer(f"r{n}", (h, 1), i32)
        return reduce_(
            name, row, (w,), "add", lambda i, j: source[i, j], extents=(h,), index=lambda i: (i, 0)
        ), row
    if kind == 5:
        return reduce_(
            name, out, (w,), "add", lambda i, j: source[i, j], extents=(h,), combine=PS,
            index=lambda i, j: (i, j),
        ), out  # fmt: skip
    s, k, q = r.randint(1, 2), r.randint(1, 3), r.randint(1, 2)
    if kind == 6:
        deep = Buffer(f"t{n}", (h, (w + 1) // s), i32)
        return reduce_(
            name, deep, (k, 2), "add",
            lambda i, j, u, v: (
                padded(source, (i + u * q - 1, j * s + v - 1), 0) * (cast(u + v, i32) + 1)
            ),
        ), deep  # fmt: skip
    small = Buffer(f"t{n}", ((h + 1) // s, w), i32)
    return reduce_(
        name, small, (k,), "add",
        lambda i, j, k: padded(source, (i * s + k - 1, j), 0),
    ), small  # fmt: skip


def program(r: random.Random) -> Kernel:
    x = Buffer("X", (r.randint(1, 7), r.randint(2, 9)), i32)
    computations, source, inputs = [], x, [x]
    for n in range(r.randint(1, 3)):
        c, source = stage(r, n, source)
        computations.append(c)
    h, w = source.shape
    y = Buffer("Y", (h, w), i32)
    b = Buffer("B", (w,), i32)
    computations.append(
        map_("last", y, lambda i, j: Max(source[i, j], Sub(b[j], source[i, (w - 1) - j])))
    )
    return lower("p", computations, [*inputs, b, y], [y])


def attempt(r: random.Random, kernel: Kernel) -> Step:
    """A primitive with arguments that name something in the kernel, sensible or not."""
    loops = [p.stmt for p in walk(kernel.body) if isinstance(p.stmt, For)]
    buffers = [p.stmt.buffer.name for p in walk(kernel.body) if isinstance(p.stmt, Alloc)]
    buffers += [b.name for b in kernel.params]
    if not loops:
        return Step("set_scope", (r.choice(buffers), "stack"))
    f = r.choice(loops)
    name, buffer = f.var.name, r.choice(buffers)
    chain = [f]
    while isinstance(chain[-1].body, For):
        chain.append(chain[-1].body)
    order = [g.var.name for g in chain]
    r.shuffle(order)
    inner = [p.stmt.var.name for p in walk(f) if isinstance(p.stmt, For)]
    tail = r.choice(["exact", "guard", "overlap", "cut"])
    some = r.sample(inner, r.randint(1, min(3, len(inner))))
    return r.choice([
        Step("split", (name, r.randint(1, 4)), {"tail": tail}),
        Step("split", (name, r.randint(1, 4)), {"tail": tail}),
        Step("reorder", tuple(order)),
        Step("reorder", tuple(order)),
        Step("fuse", (name, chain[1].var.name if len(chain) > 1 else name)),
        Step(r.choice(["vectorize", "unroll", "parallel", "serial"]), (name,)),
        Step("fission", (name, r.randint(1, 2))),
        Step("decompose_reduction", (buffer, name)),
        Step("cache_write", (buffer, r.choice([None, name])), {"scope": "stack"}),
        Step("cache_read", (buffer, r.choice([None, name]))),
        Step("cache_read", (buffer, r.choice([None, name])), {"pad": True}),
        Step("pack", (buffer, *some)),
        Step("expand", (buffer, name)),
        Step("compute_at", (buffer, name), {"scope": "stack"}),
        Step("compute_at", (buffer, name)),
        Step("compute_inline", (buffer,)),
        Step("rfactor", (name,)),
        Step("set_scope", (buffer, "stack")),
    ])  # fmt: skip


def run_once(seed: int, results, tries: int = 25) -> Schedule:
    r = random.Random(seed)
    kernel = program(r)
    s, want = Schedule(kernel), results(kernel)
    for _ in range(tries):
        step = attempt(r, s.kernel)
        before = s.fork()
        try:
            s.apply(step)
        except ScheduleError as error:
            assert step.primitive in error.message and error.where and error.hint
            continue
        try:
            verify(s.kernel)
            for a, b in zip(want, results(s.kernel), strict=True):
                np.testing.assert_array_equal(b, a)
        except Exception as error:
            raise AssertionError(
                f"{step} broke:\n{before.kernel}\ngiving:\n{s.kernel}\nby {error}"
            ) from error
    assert repr(replay(kernel, s.trace)) == repr(s.kernel)
    return s


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**9))
def test_random_schedules_keep_the_result(seed, results):
    run_once(seed, results)


@pytest.mark.slow
def test_many_random_schedules_keep_the_result(results):
    for seed in range(3000):
        run_once(seed, results)
