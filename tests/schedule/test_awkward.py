"""Every primitive on programs that write their buffers in part: refused, or nothing changes.

All requests that name a loop or buffer of a program are tried, sensible or not; what is accepted is
verified and compared in every element of every output, those that the program leaves alone too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import permutations, product

import numpy as np
import pytest

from tests.schedule.awkward import KERNELS
from tests.targets.cpu.native import run_native
from tilewright.base.errors import ScheduleError
from tilewright.loops.interp import run
from tilewright.loops.nodes import AXES, Alloc, Kernel
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of, walk
from tilewright.schedule import Schedule, Step
from tilewright.schedule.primitives.pipeline import sequence
from tilewright.schedule.registry import PRIMITIVES


def _only_a_loop(name: str) -> bool:
    """Whether a loop is all that the primitive must be given."""
    _, first, *others = signature(PRIMITIVES[name]).parameters.values()
    given = (p.kind is p.VAR_POSITIONAL or p.default is not p.empty for p in others)
    return first.name == "loop" and all(given)


_ONE_LOOP = tuple(filter(_only_a_loop, PRIMITIVES))
_LOOP_PAIRS = ("reorder", "fuse", "merge")
_BUFFER_AND_LOOP = (
    *(
        "cache_write",
        "cache_read",
        "pack",
        "expand",
        "compute_at",
        "reverse_compute_at",
    ),
    *("duplicate", "slide", "double_buffer"),
)
_ONE_BUFFER = ("compute_inline", "reverse_compute_inline")
_MAPS = (
    "lambda i: (7 - i,)",
    "lambda i: (i // 2, i % 2)",
    "lambda i, j: (j, i)",
    "lambda i, j: (i // 2, j, i % 2)",
)


def requests(kernel: Kernel) -> Iterator[Step]:
    """Every request for a primitive about the loops and buffers of a kernel, in small numbers."""
    nests = loops_of(kernel.body)
    loops = [f.var.name for f in nests]
    inner = [p.stmt.buffer for p in walk(kernel.body) if isinstance(p.stmt, Alloc)]
    buffers = [b.name for b in (*kernel.params, *inner)]
    for f in nests:
        yield from _of_loop(f.var.name, len(sequence(f.body).stmts))
    for verb in _LOOP_PAIRS:
        yield from (Step(verb, pair) for pair in permutations(loops, 2))
    for own in inner:  # whose shape nobody else sees
        yield Step("reshape", (own.name, own.size))
        yield Step("reshape", (own.name, *reversed(own.shape)))
    for b in buffers:
        yield from _of_buffer(b)
        for f, g in permutations(loops, 2):
            yield Step("pack", (b, f, g))
        for f, g in product(loops, (None, *loops)):
            yield Step("store_at", (b, g, f))
    for b, f in product(buffers, loops):
        yield from (Step(verb, (b, f)) for verb in _BUFFER_AND_LOOP)
        yield Step("decompose_reduction", (b, f))
        yield Step("cache_read", (b, f), {"pad": True})
        yield Step("cache_write", (b, f), {"scope": "global"})
        yield Step("specialize", (f"{b}[{f}] < 1", f))
    yield from (Step("store_with", pair) for pair in permutations(buffers, 2))


def _of_loop(f: str, parts: int) -> Iterator[Step]:
    yield from (Step(verb, (f,)) for verb in _ONE_LOOP)
    for factor, tail in product((2, 3), ("exact", "guard", "overlap", "cut")):
        yield Step("split", (f, factor), {"tail": tail})
    for n in (1, 2):
        yield from (Step("partition_loop", (f, n)), Step("fission", (f, n)))
    yield from (Step("pad", (f, n)) for n in (2, 3, 4))
    yield from (Step("bind", (f, axis)) for axis in ("vthread", "blockIdx.x"))
    yield from (Step("specialize", (f"{f} < 2", at)) for at in (None, f))
    yield from (
        Step("pipeline", (f, *lags)) for lags in product((0, 1), repeat=min(parts, 4))
    )
    yield from (Step("persist", (f, n)) for n in (1, 2, 3))
    for start, to in ((0, 1), (0, 2), (1, 2), (1, 3)):
        yield Step("rotate", (f, start, start + 1, to))
    yield Step("annotate", (f, "note", 1))


def _of_buffer(b: str) -> Iterator[Step]:
    yield from (Step(verb, (b,)) for verb in _ONE_BUFFER)
    yield from (Step("transform_layout", (b, text)) for text in _MAPS)
    for dim, rows in product((0, 1), (1, 2, 3, 4)):
        yield Step("fold_storage", (b, dim, rows))
    yield from (Step("storage_align", (b, 0, 4, 1)), Step("set_scope", (b, "stack")))
    yield from (Step("cache_write", (b, None)), Step("cache_read", (b, None)))
    yield from (Step(verb, (b,)) for verb in ("swizzle", "convert"))
    yield Step("cache_read", (b, None), {"pad": True})


def test_every_primitive_is_asked_for():
    asked = {step.primitive for make in KERNELS for step in requests(make())}
    assert set(PRIMITIVES) - asked == {"rename", "tensorize", "tile"}


def attempt(s: Schedule, step: Step) -> Schedule | None:
    """The schedule with one more step; None where that is refused, in the words of a refusal."""
    trial = s.fork()
    try:
        trial.apply(step)
    except ScheduleError as error:
        assert step.primitive in error.message and error.where, repr(error)
        return None
    return trial


def check(base: Kernel, s: Schedule, results: Callable[..., list[np.ndarray]]) -> None:
    verify(s.kernel)
    for want, got in zip(results(base), results(s.kernel), strict=True):
        if not np.array_equal(want, got):
            raise AssertionError(f"{s.trace} changes {want} to {got}:\n{s.diff()}")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("make", KERNELS, ids=lambda make: make.__name__)
def test_each_request_is_refused_or_changes_nothing(make, results):
    kernel = make()
    verify(kernel)
    for step in requests(kernel):
        trial = attempt(Schedule(kernel), step)
        if trial is not None:
            check(kernel, trial, results)


@pytest.mark.slow
@pytest.mark.parametrize("make", KERNELS, ids=lambda make: make.__name__)
def test_requests_in_a_row(make, results):
    """Up to four requests in a row, chosen at random."""
    kernel, r = make(), random.Random(0)
    for _ in range(150):
        s = Schedule(kernel)
        for _ in range(4):
            while (trial := attempt(s, r.choice([*requests(s.kernel)]))) is None:
                pass
            s = trial
            check(kernel, s, results)


def compiled(seed: int) -> None:
    """A program after up to three requests: native code leaves what the interpreter leaves."""
    r = random.Random(seed)
    kernel = r.choice(KERNELS)()
    s = Schedule(kernel)
    for _ in range(r.randint(0, 3)):
        found = [*requests(s.kernel)]
        s = next((t for _ in range(30) if (t := attempt(s, r.choice(found)))), s)
    if any(f.kind in AXES for f in loops_of(s.kernel.body)):
        return
    rng = np.random.default_rng(seed)
    before = {
        b: rng.integers(-9, 9, b.shape).astype(b.dtype.numpy) for b in kernel.params
    }
    want = {b: a.copy() for b, a in before.items()}
    run(kernel, want)
    for threads in (1, 3):
        got = {b: a.copy() for b, a in before.items()}
        assert run_native(s.kernel, got, threads=threads) == 0
        for b in kernel.params:
            if not np.array_equal(got[b], want[b]):
                raise AssertionError(
                    f"{b.name} after {s.trace} is {got[b]}, not {want[b]}"
                )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("batch", range(3))
def test_compiled_programs_leave_what_the_interpreter_leaves(batch):
    for seed in range(batch, 30, 3):
        compiled(seed)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(20))
def test_2000_compiled_programs_leave_what_the_interpreter_leaves(batch):
    for seed in range(1000 + batch * 100, 1100 + batch * 100):
        compiled(seed)
