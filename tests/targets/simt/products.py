"""Products of all forms that the tiles of a GPU are tested with, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType, float16, float32, float64, int8, int32
from tilewright.compute import interp
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import And, Buffer, Cast, Expr, Select, const
from tilewright.loops import launch_interp
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.passes.to_launches import to_launches
from tilewright.schedule.space import Point
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.schedules import sketches
from tilewright.testing.random_kernels import plain

Case = Sequence[Computation]


def product(
    m: int, n: int, k: int, dtype: DType = float32, wide: DType | None = None
) -> Case:
    """A times B, of a dtype, summed in a wider one if so."""
    a, b = Buffer("A", (m, k), dtype), Buffer("B", (k, n), dtype)
    y = Buffer("Y", (m, n), wide or dtype)

    def value(i: Expr, j: Expr, k: Expr) -> Expr:
        left, right = a[i, k], b[k, j]
        return Cast(left, y.dtype) * Cast(right, y.dtype) if wide else left * right

    return [reduce_("mm", y, (k,), "add", value)]


def transposed(m: int, n: int, k: int) -> Case:
    a, b, y = _buffers((k, m), (n, k), (m, n))
    return [reduce_("mm", y, (k,), "add", lambda i, j, k: a[k, i] * b[j, k])]


def batch(count: int, m: int, n: int, k: int) -> Case:
    a, b, y = _buffers((count, m, k), (count, k, n), (count, m, n))
    return [reduce_("mm", y, (k,), "add", lambda c, i, j, k: a[c, i, k] * b[c, k, j])]


def followed(m: int, n: int, k: int) -> Case:
    """A product, a bias and a rectifier."""
    a, b, y = _buffers((m, k), (k, n), (m, n))
    t, bias = Buffer("T", (m, n), float32), Buffer("bias", (n,), float32)
    return [
        reduce_("mm", t, (k,), "add", lambda i, j, k: a[i, k] * b[k, j]),
        map_(
            "relu",
            y,
            lambda i, j: Select(
                (t[i, j] + bias[j]) > 0.0, t[i, j] + bias[j], const(0.0, float32)
            ),
        ),
    ]


def turned(m: int, n: int, k: int) -> Case:
    """A product whose results are stored by columns."""
    a, b, y = _buffers((m, k), (k, n), (n, m))
    t = Buffer("T", (m, n), float32)
    return [
        reduce_("mm", t, (k,), "add", lambda i, j, k: a[i, k] * b[k, j]),
        map_("turn", y, lambda j, i: t[i, j]),
    ]


def convolution(
    channels: int, size: int, filters: int, window: int, stride: int, last: bool = False
) -> Case:
    """With padding of half a window; channels first, or last."""
    pad = window // 2
    out = (size + 2 * pad - window) // stride + 1
    shapes = (
        (channels, size, size),
        (filters, channels, window, window),
        (filters, out, out),
    )
    if last:
        shapes = (
            (size, size, channels),
            (window, window, channels, filters),
            (out, out, filters),
        )
    a, b, y = _buffers(*shapes)

    def read(c: Expr, i: Expr, j: Expr) -> Expr:
        inside = And(And(i >= 0, i < size), And(j >= 0, j < size))
        point = (i, j, c) if last else (c, i, j)
        return Select(inside, a[point], const(0.0, float32))

    def first_value(f: Expr, i: Expr, j: Expr, c: Expr, u: Expr, v: Expr) -> Expr:
        return read(c, i * stride + u - pad, j * stride + v - pad) * b[f, c, u, v]

    def last_value(i: Expr, j: Expr, f: Expr, u: Expr, v: Expr, c: Expr) -> Expr:
        return read(c, i * stride + u - pad, j * stride + v - pad) * b[u, v, c, f]

    if last:
        return [reduce_("mm", y, (window, window, channels), "add", last_value)]
    return [reduce_("mm", y, (channels, window, window), "add", first_value)]


def _buffers(*shapes: tuple[int, ...]) -> list[Buffer]:
    return [Buffer(n, s, float32) for n, s in zip("ABY", shapes, strict=True)]


CASES: dict[str, Callable[[], Case]] = {
    "even": lambda: product(32, 64, 32),
    "odd": lambda: product(37, 29, 41),
    "thin": lambda: product(3, 65, 9),
    "tall": lambda: product(65, 3, 40),
    "transposed": lambda: transposed(33, 20, 35),
    "batch": lambda: batch(3, 17, 18, 19),
    "followed": lambda: followed(33, 31, 34),
    "turned": lambda: turned(33, 31, 34),
    "float16": lambda: product(18, 19, 33, float16, float32),
    "float64": lambda: product(18, 19, 33, float64),
    "int8": lambda: product(18, 19, 33, int8, int32),
    "convolution": lambda: convolution(5, 9, 18, 3, 1),
    "strided": lambda: convolution(3, 11, 9, 3, 2),
    "channels last": lambda: convolution(6, 7, 20, 3, 1, last=True),
    "pointwise": lambda: convolution(20, 6, 17, 1, 1),
}


def tiled(case: Case, machine: SimtMachine, **values: Any) -> Point:
    """The schedule in tiles, with defaults for what is not named."""
    found = sketches(plain(case), case, machine)
    sketch = next(s for s in found if s.name == "tiles")
    return sketch.at({f"mm.{k}" if k != "A.room" else k: v for k, v in values.items()})


def program(point: Point, machine: SimtMachine) -> LaunchProgram:
    """Its launches."""
    return to_launches(point.schedule.kernel, machine.warp)


def arrays(p: LaunchProgram, seed: int = 0) -> dict[Buffer, Any]:
    """Small integers for what is read, so that every sum is exact; zeros for the results."""
    rng = np.random.default_rng(seed)
    return {
        b: rng.integers(-3, 4, b.shape).astype(b.dtype.numpy)
        if b not in p.outputs
        else np.zeros(b.shape, b.dtype.numpy)
        for b in p.params
    }


def expected(case: Case, given: dict[Buffer, Any]) -> Any:
    """What the Computations mean."""
    found = interp.evaluate(case, given)
    return found[case[-1].outputs[0].tensor]


def interpreted(p: LaunchProgram, given: dict[Buffer, Any], seed: int = 0) -> Any:
    """The result by the interpreter of launches."""
    launch_interp.run(p, given, seed)
    return given[p.outputs[0]]
