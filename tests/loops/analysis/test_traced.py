"""The analyses behind legality, against a trace of random programs: what they promise is so."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tests.schedule.tracing import Run, Tracer, crossings, uncovered_reads
from tilewright.base.errors import ScheduleError
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.access import (
    Access,
    Env,
    accesses,
    environment,
    pairs,
    shared,
)
from tilewright.loops.analysis.dependence import are_independent, can_parallelize
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.analysis.lemmas import agreeing
from tilewright.loops.analysis.region import Region, region, uncovered
from tilewright.loops.nodes import Kernel, While
from tilewright.loops.walk import loops_of, walk
from tilewright.testing.random_programs import random_arrays, random_program
from tilewright.testing.random_schedules import random_schedule

SEEDS = 48


def some(seed: int) -> Kernel:
    """A random program, every second one after some random steps."""
    r = random.Random(seed)
    kernel = random_program(r)
    if seed % 2:
        kernel = random_schedule(r, kernel, tries=8).kernel
    assert not any(isinstance(p.stmt, While) for p in walk(kernel.body))
    return kernel


@pytest.mark.sampled(4)  # each batch draws of all forms
@pytest.mark.parametrize("batch", range(4))
def test_what_a_trace_shows(batch):
    for seed in range(batch, SEEDS, 4):
        kernel = some(seed)
        env = environment(kernel.body)
        for runs in Tracer(kernel).loops:
            if runs:
                check_crossings(kernel, runs, env)
                check_covered(runs[0], env)


def check_crossings(kernel: Kernel, runs: list[Run], env: Env) -> None:
    """Of a loop that is said to be parallel no two iterations meet."""
    f = runs[0].loop
    private = allocated(f.body)
    for updates in (False, True):
        met = list(crossings(runs, private, updates))
        verdict = can_parallelize(kernel, f, None, updates=updates)
        assert not verdict or not met, f"{f.var.name} in {kernel}: {met[0]}"
    met = list(crossings(runs, private, updates=False))
    assert not are_independent(f, env) or not met, f"{f.var.name} in {kernel}: {met[0]}"


def check_covered(run: Run, env: Env) -> None:
    """What is said to be covered, is; and boxes hold what is touched, wholly defined where said."""
    body = run.loop.body
    late = uncovered_reads(run)
    for b in {a.buffer for a in accesses(body)} - allocated(body):
        if uncovered(body, b, env) is None:
            assert b not in late, f"{b.name} in {run.loop}"
        found = [a for a in accesses(body) if a.buffer is b]
        touched = {e.element[1] for e in run.events if e.element[0] is b}
        box = elements(region(b, found, env, "test"), run, b)
        assert touched <= box, f"{b.name} in {run.loop}"
        if uncovered(body, b, env, writes_too=True) is None:
            stored = {
                e.element[1]
                for e in run.events
                if e.element[0] is b and e.kind != "load"
            }
            assert box <= stored, f"{b.name} in {run.loop}"


def elements(box: Region, run: Run, b: Buffer) -> set[tuple[int, ...]]:
    """The elements of the buffer that are in the box, seen from a run."""
    try:
        base = [int(evaluate(e, run.env)) for e in box.base]
    except Exception as error:
        raise AssertionError(
            f"{box} depends on more than what is around {run.loop}"
        ) from error
    ranges = (
        range(max(i, 0), min(i + n, extent))
        for i, n, extent in zip(base, box.shape, b.shape, strict=True)
    )
    return set(product(*ranges))


@pytest.mark.sampled(4)  # each batch draws of all forms
@pytest.mark.parametrize("batch", range(4))
def test_where_accesses_meet(batch):
    """`agreeing` against all pairs of iterations of every loop, alone and with the one inside."""
    for seed in range(100 + batch, 100 + SEEDS, 4):
        kernel = some(seed)
        env = environment(kernel.body)
        arrays = random_arrays(kernel, 0)
        for place in walk(kernel.body):
            loops = (
                (*place.loops, place.stmt)
                if place.stmt in loops_of(kernel.body)
                else ()
            )
            for n in range(max(len(loops) - 2, 0), len(loops)):
                band = [f.var for f in loops[n:]]
                outer = [f.var for f in loops[:n]]
                for found in shared(loops[-1].body, env).values():
                    for a, b in pairs(found):
                        check_meeting(a, b, (outer, band), env, arrays)


def check_meeting(a: Access, b: Access, around, env: Env, arrays) -> None:
    outer, band = around
    try:
        agree = agreeing(a, b, band)
    except ScheduleError:
        return
    one, two = (touched(x, outer, band, env, arrays) for x in (a, b))
    for key in one.keys() & two.keys():
        assert agree is not None, f"{a} and {b} conflict at {key}"
        for n, v in enumerate(band):
            if v in agree:
                values = {p[n] for p in one[key]} | {q[n] for q in two[key]}
                assert len(values) == 1, (
                    f"{a} and {b} conflict at {key} for {v.name} in {values}"
                )


def touched(a: Access, outer, band, env: Env, arrays):
    """By the iteration of the outer loops and the element: the iterations of the band."""
    every = [*outer, *band, *(f.var for f in a.loops)]
    spaces = [range(env[v][1] + 1) if v in env else range(3) for v in every]
    found: dict[tuple, set[tuple[int, ...]]] = {}
    for point in product(*spaces):
        values = dict(zip(every, point, strict=True))

        def load(buffer, index):
            return arrays[buffer][tuple(int(i) for i in index)]

        try:
            at = tuple(int(evaluate(i, values, load)) for i in a.index)
        except (KeyError, IndexError):
            continue
        key = (point[: len(outer)], at)
        found.setdefault(key, set()).add(point[len(outer) : len(outer) + len(band)])
    return found
