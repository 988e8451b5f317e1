"""Random pipelines under random schedules: whatever is accepted computes the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tilewright import halide as hl
from tilewright.base.errors import ScheduleError
from tilewright.loops.interp import run
from tilewright.loops.verify import verify

x, y = hl.Var("x"), hl.Var("y")
INNER = {"x": hl.Var("xi"), "y": hl.Var("yi")}
OUTER = {"x": hl.Var("xo"), "y": hl.Var("yo")}


WAYS = ["inline", "root", "at", "at", "store", "store"]


@st.composite
def reads(draw, f):
    """A sum of reads of `f` around a point, at the same scale, at half or at double of it."""
    scale = draw(
        st.sampled_from([lambda v: v, lambda v: v, lambda v: 2 * v, lambda v: v // 2])
    )
    total = None
    for _ in range(draw(st.integers(1, 3))):
        dx, dy = draw(st.integers(-2, 2)), draw(st.integers(-2, 2))
        value = f[scale(x) + dx, scale(y) + dy] * draw(st.integers(1, 3))
        total = value if total is None else total + value
    return total


@st.composite
def pipelines(draw):
    """Funcs in order, the last one the output; some are reductions."""
    image = np.random.default_rng(0).integers(-9, 9, (9, 11)).astype(np.int32)
    funcs = [hl.BoundaryConditions.repeat_edge(hl.Buffer(image, name="image"))]
    for n in range(draw(st.integers(1, 4))):
        f = hl.Func(f"f{n}")
        sources = draw(
            st.lists(st.sampled_from(funcs[-2:]), min_size=1, max_size=2, unique=True)
        )
        parts = [draw(reads(g)) for g in sources]
        value = parts[0] if len(parts) == 1 else hl.max(*parts)
        if draw(st.integers(0, 3)) == 0:
            r = hl.RDom([(0, draw(st.integers(1, 3)))], f"r{n}")
            f[x, y] = value
            f[x, y] += sources[0][x + r, y] * r
        else:
            f[x, y] = value
        funcs.append(f)
    return funcs


def split_output(draw, out):
    """Split, order and run the loops of the output somehow; the names of its loops."""
    loops = ["y", "x"]
    for axis in ("x", "y"):
        if draw(st.booleans()):
            old = hl.Var(axis)
            tail = draw(
                st.sampled_from([hl.TailStrategy.Auto, hl.TailStrategy.GuardWithIf])
            )
            out.split(old, OUTER[axis], INNER[axis], draw(st.integers(1, 5)), tail)
            at = loops.index(axis)
            loops[at : at + 1] = [OUTER[axis].name(), INNER[axis].name()]
    order = draw(st.permutations(loops))
    out.reorder(*(hl.Var(n) for n in reversed(order)))
    return order


def wrap(draw, funcs):
    """Somebody, or everybody, reads a wrapper or a clone of a Func instead."""
    at = draw(st.integers(0, len(funcs) - 2))
    source = funcs[at]
    readers = [f for f in funcs[at + 1 :] if f.reads(source.symbols)]
    if readers:
        some = draw(st.lists(st.sampled_from(readers), min_size=1, unique=True))
        verb = draw(st.sampled_from([source.in_, source.clone_in]))
        funcs.insert(at + 1, source.in_() if draw(st.booleans()) else verb(some))


def schedule(draw, funcs):
    """Say something about every Func."""
    *producers, out = funcs
    loops = split_output(draw, out)
    ways = ["root"] if draw(st.integers(0, 2)) == 0 else WAYS
    for f in producers:
        way = draw(st.sampled_from(ways))
        if way == "root" or (way == "inline" and len(f.definitions) > 1):
            f.compute_root()
        elif way != "inline":
            at = draw(st.integers(0, len(loops) - 1))
            f.compute_at(out, hl.Var(loops[at]))
            if way == "store" and at > 0 and draw(st.booleans()):
                f.store_at(out, hl.Var(loops[draw(st.integers(0, at - 1))]))
            elif way == "store":
                f.store_root()
        if way != "inline" and draw(st.integers(0, 2)) == 0:
            f.vectorize(f.args[0], draw(st.sampled_from([2, 4])))
    if draw(st.booleans()):
        out.parallel(hl.Var(loops[0]))
    if draw(st.booleans()):
        getattr(out, draw(st.sampled_from(["vectorize", "unroll"])))(hl.Var(loops[-1]))


def share(draw, funcs):
    """Some neighbors share loops, of their pure definitions, that both still have."""
    for f, g in itertools.pairwise(
        f for f in funcs if f.compute is not None or f is funcs[-1]
    ):
        loops = [v for v in f.plan(0).vars if v in g.plan(0).vars]
        if loops and draw(st.booleans()):
            first, second = draw(st.permutations([f, g]))
            first.compute_with(
                second, hl.Var(loops[-1] if draw(st.booleans()) else loops[0])
            )


def interpreted(kernel):
    arrays = {b: np.zeros(b.shape, b.dtype.numpy) for b in kernel.outputs}
    image = np.random.default_rng(0).integers(-9, 9, (9, 11)).astype(np.int32)
    run(kernel, arrays | dict.fromkeys(kernel.inputs, image))
    return arrays[kernel.outputs[0]]


def check(data, native):
    funcs = data.draw(pipelines())
    out, sizes = funcs[-1], [7, 6]
    want = interpreted(out.kernel(sizes))
    if data.draw(st.booleans()):
        wrap(data.draw, funcs)
    schedule(data.draw, funcs)
    share(data.draw, funcs)
    try:
        kernel = out.kernel(sizes)
    except ScheduleError as error:
        event("refused")
        assert error.where and error.hint is not None
        return
    event("accepted")
    verify(kernel)
    np.testing.assert_array_equal(interpreted(kernel), want)
    if native:
        np.testing.assert_array_equal(np.asarray(out.realize(sizes, threads=2)), want)


SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=40, **SETTINGS)
@given(st.data())
def test_random_schedules(data):
    check(data, native=False)


@settings(max_examples=12, **SETTINGS)
@given(st.data())
def test_random_schedules_compiled(data):
    check(data, native=True)


@pytest.mark.slow
@settings(max_examples=1000, **SETTINGS)
@given(st.data())
def test_many_random_schedules(data):
    check(data, native=True)


def test_a_vector_wider_than_its_buffer_writes_nothing_beside_it():
    image = np.random.default_rng(0).integers(-9, 9, (9, 11)).astype(np.int32)
    f, g = hl.Func("f"), hl.Func("g")
    f[x, y] = (
        hl.BoundaryConditions.repeat_edge(hl.Buffer(image, name="image"))[x, y] * 1
    )
    g[x, y] = f[x, y - 1] + f[x - 1, y - 1]
    want = interpreted(g.kernel([7, 6]))
    f.compute_at(g, x).vectorize(x, 4)
    np.testing.assert_array_equal(np.asarray(g.realize([7, 6])), want)
