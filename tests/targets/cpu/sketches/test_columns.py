"""Reductions down columns of large data, or of what several cores hold: in memory order, by parts,
equal to NumPy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int32
from tilewright.compute.nodes import Computation
from tilewright.driver.build_kernel import build_kernel
from tilewright.expr.nodes import Var
from tilewright.loops.lower import lower
from tilewright.loops.nodes import For
from tilewright.loops.verify import verify
from tilewright.operators import Buffer, map_, reduce_
from tilewright.runtime.executable import Executable
from tilewright.schedule.space import Point
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.cpu.sketches.rules import default
from tilewright.targets.registry import target

SMALL = replace(host(), l2=2048, cores=2)  # so that small data is large


def reduced(
    shape: Sequence[int], axes: Sequence[int], op: str = "add"
) -> list[Computation]:
    """The reduction of `x` over some axes, and a map behind it where it is a sum of floats."""
    x = Buffer("x", tuple(shape), float32 if op == "add" else int32)
    kept = [n for n in range(len(shape)) if n not in axes]
    t, y = (Buffer(n, tuple(shape[k] for k in kept), x.dtype) for n in "ty")

    def read(*index: Var) -> object:
        place = dict(zip([*kept, *axes], index, strict=True))
        return x[tuple(place[n] for n in range(len(shape)))]

    total = reduce_("sum", t, tuple(shape[n] for n in axes), op, read)
    return [total, map_("twice", y, lambda *i: t[i] * 2.0)] if op == "add" else [total]


def choose(steps: list[Computation], at: Context, seed: int | None = None) -> Point:
    out = steps[-1].outputs[0].tensor
    plain = lower("k", steps, params=[steps[0].accesses[0].buffer, out], outputs=[out])
    best = sketches(plain, steps, at)[0]
    assert best.name == "columns"
    found = best.default() if seed is None else best.random(random.Random(seed))
    verify(found.schedule.kernel)
    return found


def run(p: Point, x: np.ndarray, threads: int = 2) -> np.ndarray:
    exe = Executable(build_kernel(p.schedule.kernel, target("cpu")), threads=threads)
    result = exe(x)
    assert isinstance(result, np.ndarray)
    return result


CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((64, 96), (0,)),
    ((65, 97), (0,)),
    ((1001, 5), (0,)),
    ((33, 301), (0,)),
    ((3, 40, 70), (1,)),
    ((40, 3, 70), (0,)),
    ((20, 3, 11, 17), (0, 2)),
    ((4, 5, 40, 33), (1, 2)),
]


def test_the_windows_of_a_pooling_are_tiled() -> None:
    """A few rows each: they are read side by side, and results stay in registers."""
    steps = reduced((896, 2, 14, 2, 6), (1, 3))[:1]
    out = steps[-1].outputs[0].tensor
    plain = lower("k", steps, params=[steps[0].accesses[0].buffer, out], outputs=[out])
    best = sketches(plain, steps, Context(SMALL))[0]
    assert best.name == "tiled"
    outermost = best.default().schedule.kernel.body
    assert isinstance(outermost, For) and outermost.kind == "parallel"


@pytest.mark.sampled(2)  # whole and partial vectors
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums(case: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    shape, axes = case
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    for exact in (False, True):
        p = choose(reduced(shape, axes), Context(SMALL, exact=exact))
        np.testing.assert_allclose(
            run(p, x), 2 * x.sum(axes, np.float64), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("seed", range(4))
def test_any_parameters_and_threads_give_the_same_maximum(seed: int) -> None:
    x = np.random.default_rng(seed).integers(-999, 999, (131, 270)).astype(np.int32)
    p = choose(reduced(x.shape, (0,), "max"), Context(SMALL), seed)
    for threads in (1, 2):
        np.testing.assert_array_equal(run(p, x, threads), x.max(0))


def test_rows_are_shared_out_unless_results_must_be_exact() -> None:
    for exact, parts in ((False, 2), (True, 1)):
        p = choose(reduced((64, 96), (0,)), Context(SMALL, exact=exact))
        assert p.values["sum.parts"] == parts
        assert (" parallel" in repr(p.schedule.kernel)) == (not exact)


@pytest.mark.parametrize(
    ("shape", "axes"), [((16, 16), (0,)), ((64, 96), (1,)), ((4, 8192), (0,))], ids=str
)
def test_small_data_rows_and_wide_results_are_left_to_other_sketches(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    steps = reduced(shape, axes)
    out = steps[-1].outputs[0].tensor
    plain = lower("k", steps, params=[steps[0].accesses[0].buffer, out], outputs=[out])
    assert "columns" not in [s.name for s in sketches(plain, steps, Context(SMALL))]
    verify(default(plain, steps, Context(SMALL)).kernel)


def sketch(shape: tuple[int, ...], axes: tuple[int, ...], at: Context) -> Point:
    steps = reduced(shape, axes)[:1]
    out = steps[-1].outputs[0].tensor
    plain = lower("k", steps, params=[steps[0].accesses[0].buffer, out], outputs=[out])
    return sketches(plain, steps, at)[0].default()


@pytest.mark.parametrize(
    ("shape", "cores", "parts"),
    [
        ((784, 144), 2, 2),
        ((784, 144), 6, 6),
        ((49, 1152), 2, 2),
        ((49, 1152), 4, 2),
        ((784, 144), 64, 32),
        # One core holds it all; few cores have rows enough; too little to wake others for.
        ((784, 144), 1, 0),
        ((49, 1152), 8, 0),
        ((49, 64), 2, 0),
    ],
)
def test_rows_that_several_cores_hold_stay_with_them(
    shape: tuple[int, ...], cores: int, parts: int
) -> None:
    at = Context(replace(machine("x86-64-v4"), l2=4 << 20, cores=cores))
    values = sketch(shape, (0,), at).values
    assert values.get("sum.parts", 0) == parts
    if parts:
        exactly = sketch(shape, (0,), replace(at, exact=True)).values
        assert "sum.parts" not in exactly  # its columns are shared
        assert "sum.parts" not in sketch((2, *shape), (1,), at).values


@pytest.mark.parametrize("shape", [(49, 1152), (784, 144)], ids=str)
def test_rows_of_several_cores_have_the_same_sums(shape: tuple[int, ...]) -> None:
    p = sketch(shape, (0,), Context(replace(host(), cores=2)))
    assert p.values["sum.parts"] == 2
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    np.testing.assert_allclose(run(p, x), x.sum(0, np.float64), rtol=1e-4, atol=1e-4)
