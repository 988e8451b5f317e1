"""Maps that read across the order in which they write: in tiles, equal to NumPy."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.base.dtypes import DType, bfloat16, float32, int8, int64
from tilewright.compute.build import cast, padded
from tilewright.compute.nodes import Computation
from tilewright.driver.build_kernel import build_kernel
from tilewright.expr.nodes import Load, Var, call
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel, Unit
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.operators import Buffer, map_
from tilewright.runtime.executable import Executable
from tilewright.schedule.space import Point
from tilewright.targets.cpu.machine import host
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.registry import target


def permuted(
    shape: Sequence[int], axes: Sequence[int], dtype: DType = float32
) -> Computation:
    """`y = x.transpose(axes)`."""
    x, y = (
        Buffer("x", tuple(shape), dtype),
        Buffer("y", tuple(shape[n] for n in axes), dtype),
    )

    def read(*index: Var) -> Load:
        return x[tuple(index[list(axes).index(n)] for n in range(len(axes)))]

    return map_("t", y, read)


def plain(c: Computation) -> Kernel:
    out = c.outputs[0].tensor
    return lower(c.name, [c], params=[*c.inputs, out], outputs=[out])


def point(c: Computation, seed: int | None = None) -> Point:
    best = sketches(plain(c), [c], Context(host()))[0]
    asked = [x.name for x in best.default().parameters]
    tiles = {x: True for x in asked if x.endswith(".tiles")}
    found = best.at(tiles) if seed is None else best.random(random.Random(seed))
    verify(found.schedule.kernel)
    return found


def units(p: Point) -> int:
    return sum(isinstance(x.stmt, Unit) for x in walk(p.schedule.kernel.body))


def run(p: Point, *arrays: np.ndarray, threads: int = 2) -> np.ndarray:
    result = Executable(
        build_kernel(p.schedule.kernel, target("cpu")), threads=threads
    )(*arrays)
    assert isinstance(result, np.ndarray)
    return result


CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((300, 70), (1, 0)),
    ((37, 53), (1, 0)),
    ((4, 1001), (1, 0)),
    ((1001, 4), (1, 0)),
    ((2, 3, 14, 15), (0, 2, 3, 1)),
    ((2, 14, 15, 3), (0, 3, 1, 2)),
    ((2, 56, 56, 24), (0, 3, 1, 2)),
    ((2, 24, 7, 9), (0, 2, 3, 1)),
    ((3, 4, 5, 6), (3, 1, 2, 0)),
    ((2, 3, 4, 5, 6), (4, 0, 2, 1, 3)),
    ((2, 5, 3, 17, 19), (0, 4, 2, 1, 3)),
]


def numbers(shape: Sequence[int], dtype: DType) -> np.ndarray:
    return np.random.default_rng(0).integers(-99, 100, shape).astype(dtype.numpy)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [float32, bfloat16, int8, int64], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_permutations(
    case: tuple[tuple[int, ...], tuple[int, ...]], dtype: DType
) -> None:
    shape, axes = case
    x = numbers(shape, dtype)
    p = point(permuted(shape, axes, dtype))
    assert units(p) == 1
    np.testing.assert_array_equal(run(p, x), np.ascontiguousarray(x.transpose(axes)))


@pytest.mark.parametrize("seed", range(4))
def test_any_parameters_give_the_same(seed: int) -> None:
    x = numbers((131, 2, 270), float32)
    p = point(permuted(x.shape, (2, 1, 0)), seed)
    np.testing.assert_array_equal(run(p, x), x.transpose(2, 1, 0))


def test_the_parameters_of_a_transposition() -> None:
    names = [x.name for x in point(permuted((512, 512), (1, 0))).parameters]
    assert names[:3] == ["t.parallel", "t.tiles", "t.strip"]


def test_a_map_that_computes_reads_transposed_tiles() -> None:
    x, b, y = (
        Buffer("x", (3, 70, 45), float32),
        Buffer("b", (70,), float32),
        Buffer("y", (3, 45, 70), float32),
    )
    p = point(map_("t", y, lambda n, i, j: call("exp", x[n, j, i]) + b[j]))
    assert units(p) == 1
    a, c = np.random.default_rng(0).standard_normal((2, 3, 70, 45)).astype("float32")
    want = np.exp(a.transpose(0, 2, 1)) + c[0, :, 0]
    np.testing.assert_allclose(run(p, a, c[0, :, 0].copy()), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 70, 45), (1, 3, 300), (2, 16, 64)], ids=str)
def test_narrow_results_leave_their_tiles_transposed(
    shape: tuple[int, int, int],
) -> None:
    n, c, k = shape
    x, b, y = (
        Buffer("x", shape, float32),
        Buffer("b", (c,), float32),
        Buffer("y", (n, k, c), int8),
    )
    p = point(
        map_("t", y, lambda n, i, j: cast(call("round_even", x[n, j, i] * b[j]), int8))
    )
    assert units(p) == 1 and "transpose(y[" in str(p.schedule)
    a = np.random.default_rng(0).standard_normal(shape).astype("float32")
    scale = np.linspace(5, 90, c, dtype=np.float32)
    want = (
        np.clip(np.rint(a * scale[:, None]), -128, 127)
        .astype(np.int8)
        .transpose(0, 2, 1)
    )
    np.testing.assert_array_equal(run(p, a, scale), want)


def test_narrow_results_of_what_lies_both_ways_read_transposed_tiles() -> None:
    x, w = Buffer("x", (40, 33), float32), Buffer("w", (33, 40), float32)
    y = Buffer("y", (33, 40), int8)
    p = point(map_("t", y, lambda i, j: cast(x[j, i] + w[i, j], int8)))
    assert "transpose(x.local[" in str(p.schedule)
    a, b = numbers((40, 33), float32) // 2, numbers((33, 40), float32) // 2
    np.testing.assert_array_equal(run(p, a, b), (a.T + b).astype(np.int8))


def test_two_operands_read_across() -> None:
    x, w, y = (
        Buffer(n, s, float32)
        for n, s in [("x", (40, 33)), ("w", (40, 33)), ("y", (33, 40))]
    )
    p = point(map_("t", y, lambda i, j: x[j, i] * w[j, i]))
    assert units(p) == 2
    a, b = np.random.default_rng(0).standard_normal((2, 40, 33)).astype("float32")
    np.testing.assert_array_equal(run(p, a, b), (a * b).T)


@pytest.mark.parametrize("seed", range(3))
def test_a_matrix_and_its_transpose(seed: int) -> None:
    """One buffer read in both orders keeps its plain nest."""
    x, y = Buffer("x", (40, 40), float32), Buffer("y", (40, 40), float32)
    p = point(map_("t", y, lambda i, j: x[i, j] + x[j, i]), seed)
    assert units(p) == 0
    a = numbers((40, 40), float32)
    np.testing.assert_array_equal(run(p, a), a + a.T)


def test_what_is_contiguous_stays_in_vectors() -> None:
    assert units(point(permuted((8, 12, 64), (1, 0, 2)))) == 0
    assert units(point(permuted((8, 12, 1), (1, 0, 2)))) == 1


def test_what_data_chooses_is_read_element_by_element() -> None:
    """A tile's addresses are not checked one by one."""
    x, n, y = (
        Buffer("x", (20, 3, 30), float32),
        Buffer("n", (), int64),
        Buffer("y", (30, 20), float32),
    )
    p = point(map_("t", y, lambda i, j: x[j, n[()], i]))
    assert units(p) == 0
    a = numbers((20, 3, 30), float32)
    np.testing.assert_array_equal(run(p, np.array(2, np.int64), a), a[:, 2].T)


@pytest.mark.parametrize("extent", [21, 40])
def test_what_is_padded_keeps_its_vectors(extent: int) -> None:
    x, y = Buffer("x", (extent, 30), float32), Buffer("y", (32, extent + 2), float32)
    c = map_("t", y, lambda i, j: padded(x, (j - 1, i - 1), 0.0))
    p = point(c)
    assert "vector" in str(p.schedule)
    a = numbers((extent, 30), float32)
    np.testing.assert_array_equal(run(p, a), np.pad(a, 1).T)
