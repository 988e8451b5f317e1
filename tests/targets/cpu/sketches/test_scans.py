"""Running results along any dimension: side by side in vectors, or rows interleaved; as NumPy."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int32
from tilewright.compute.nodes import Computation
from tilewright.driver.build_kernel import build_kernel
from tilewright.expr.nodes import Var
from tilewright.loops.lower import lower
from tilewright.loops.verify import verify
from tilewright.operators import PS, Buffer, reduce_
from tilewright.runtime.executable import Executable
from tilewright.schedule.space import Point
from tilewright.targets.cpu.machine import host
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.registry import target


def running(shape: Sequence[int], axis: int, op: str = "add") -> Computation:
    """`y = op.accumulate(x, axis)`."""
    x, y = (Buffer(n, tuple(shape), float32 if op == "add" else int32) for n in "xy")
    free = [*shape[:axis], *shape[axis + 1 :]]

    def place(*i: Var) -> tuple[Var, ...]:
        return (*i[:axis], i[-1], *i[axis:-1])

    return reduce_(
        "run",
        y,
        shape[axis : axis + 1],
        op,
        lambda *i: x[place(*i)],
        extents=free,
        index=place,
        combine=PS,
    )


def point(c: Computation, at: Context, seed: int | None = None) -> Point:
    x, y = c.inputs[0], c.outputs[0].tensor
    best = sketches(lower("k", [c], params=[x, y], outputs=[y]), [c], at)[0]
    assert best.name == "scan"
    found = best.default() if seed is None else best.random(random.Random(seed))
    verify(found.schedule.kernel)
    return found


def run(p: Point, x: np.ndarray, threads: int = 2) -> np.ndarray:
    exe = Executable(build_kernel(p.schedule.kernel, target("cpu")), threads=threads)
    result = exe(x)
    assert isinstance(result, np.ndarray)
    return result


CASES: list[tuple[tuple[int, ...], int]] = [
    ((1000,), 0),
    ((9, 100), 1),
    ((3, 100), 1),
    ((100, 9), 0),
    ((37, 131), 0),
    ((300, 257), 1),
    ((5, 40, 70), 1),
    ((40, 3, 5), 0),
    ((1, 6, 1, 33), 3),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums(case: tuple[tuple[int, ...], int]) -> None:
    shape, axis = case
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    p = point(running(shape, axis), Context(host(), exact=True))
    # Each result is the sum in order: exactly NumPy's.
    np.testing.assert_array_equal(run(p, x), np.cumsum(x, axis))


@pytest.mark.covering(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("axis", range(3))
def test_any_parameters_and_threads_give_the_same_maximum(axis: int, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-999, 999, (13, 70, 21)).astype(np.int32)
    p = point(running(x.shape, axis, "max"), Context(host()), seed)
    for threads in (1, 2):
        np.testing.assert_array_equal(
            run(p, x, threads), np.maximum.accumulate(x, axis)
        )


def test_scans_side_by_side_are_lanes_and_rows_are_interleaved() -> None:
    at = Context(host())
    beside = point(running((50, 256), 0), at).values
    assert {"run.vectors", "run.parallel"} <= beside.keys()
    assert "run.rows" not in beside
    rows = point(running((256, 50), 1), at)
    assert rows.values["run.rows"] == 8
    assert "float32[8, 1] in register" in repr(rows.schedule.kernel)
