"""Convolutions with a filter for each channel: right, what is one, and what a thread reads."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.targets.cuda.test_traffic import counted
from tests.targets.opencl.running import run
from tests.targets.simt.products import (
    Case,
    arrays,
    convolution,
    expected,
    interpreted,
    product,
    program,
)
from tilewright.base.dtypes import DType, float32, float64, int32
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import And, Buffer, Cast, Expr, Select, const
from tilewright.schedule.space import Sketch
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda.machine import machine
from tilewright.targets.simt.machine import GENERIC, MALI, POCL, SimtMachine
from tilewright.targets.simt.products import product_of, window_of
from tilewright.targets.simt.schedules import sketches
from tilewright.targets.simt.windows import (
    WindowShare,
    planned,
    window_loads,
    window_shares,
)
from tilewright.testing.ptx.traffic import AccessKind
from tilewright.testing.random_kernels import plain

SM80 = machine("sm_80").simt


def depthwise(
    channels: int,
    size: int,
    window: int,
    stride: int = 1,
    last: bool = True,
    pad: bool = True,
    dilation: int = 1,
    dtype: DType = float32,
    followed: bool = False,
) -> Case:
    """Channels last or first; padded by half a window or not; followed by a rectifier or not."""
    around = dilation * (window // 2) if pad else 0
    out = (size + 2 * around - dilation * (window - 1) - 1) // stride + 1

    def shape(n: int) -> tuple[int, ...]:
        return (n, n, channels) if last else (channels, n, n)

    a, b = Buffer("A", shape(size), dtype), Buffer("B", shape(window), dtype)
    y = Buffer("Y", shape(out), dtype)
    t = Buffer("T", shape(out), dtype) if followed else y

    def value(*at: Expr) -> Expr:
        (i, j, c), (u, v) = (at[:3] if last else (*at[1:3], at[0])), at[3:]
        i, j = (x * stride + w * dilation - around for x, w in ((i, u), (j, v)))
        read = a[i, j, c] if last else a[c, i, j]
        if pad:
            inside = And(And(i >= 0, i < size), And(j >= 0, j < size))
            read = Select(inside, read, const(0, dtype))
        return read * (b[u, v, c] if last else b[c, u, v])

    made = [reduce_("mm", t, (window, window), "add", value)]
    if followed:
        zero = const(0, dtype)
        made.append(map_("relu", y, lambda *x: Select(t[x] > zero, t[x], zero)))
    return made


CASES = {
    "last": depthwise(20, 9, 3),
    "first": depthwise(20, 9, 3, last=False),
    "strided": depthwise(5, 11, 5, 2),
    "strided first": depthwise(5, 11, 3, 2, last=False, pad=False),
    "dilated": depthwise(9, 13, 3, dilation=2),
    "followed": depthwise(17, 8, 3, followed=True),
    "followed first": depthwise(6, 19, 3, last=False, followed=True),
    "float64": depthwise(9, 7, 3, dtype=float64),
    "int32": depthwise(9, 7, 3, last=False, dtype=int32),
}


def windows(case: Case, of: SimtMachine) -> Sketch:
    return next(s for s in sketches(plain(case), case, of) if s.name == "windows")


def right(case, point, of, result):
    p = program(point, of)
    given = arrays(p)
    want = expected(case, given)
    np.testing.assert_array_equal(result(p, given), want)


def on_pocl(p, given):
    return run(p, given)[p.outputs[0]]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_windows_are_right_on_pocl(name):
    case = CASES[name]
    for share in ((4, 8, 2), (2, 16, 1)):
        possible = window_shares(window_of(classify(case)), GENERIC)
        share = share if share in possible else possible[0]
        point = windows(case, GENERIC).at({"mm.share": WindowShare(*share)})
        right(case, point, GENERIC, on_pocl)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("of", [GENERIC, MALI, SM80], ids=lambda of: of.name)
@pytest.mark.parametrize("name", CASES)
def test_each_point_is_right_and_has_no_race(name, of):
    case = CASES[name]
    sketch = windows(case, of)
    points = [sketch.default(), *(sketch.random(random.Random(n)) for n in range(2))]
    for point in points:
        right(case, point, of, interpreted)


def one_axis(last: bool) -> Case:
    """A window along the only place; channels last or first."""
    a = Buffer("A", (12, 8) if last else (8, 12), float32)
    b, y = Buffer("B", (3, 8), float32), Buffer("Y", (10, 8), float32)
    if last:
        return [reduce_("mm", y, (3,), "add", lambda i, c, k: a[i + k, c] * b[k, c])]
    y = Buffer("Y", (8, 10), float32)
    return [reduce_("mm", y, (3,), "add", lambda c, i, k: a[c, i + k] * b[k, c])]


def test_one_axis_is_enough_where_channels_are_last():
    """Else no dimension is left along which a thread may have several places."""
    case = one_axis(True)
    right(
        case, windows(case, GENERIC).at({"mm.share": (4, 8, 1)}), GENERIC, interpreted
    )
    assert window_of(classify(one_axis(False))) is None


def pool() -> Case:
    """Sums of windows: there is no filter."""
    a, y = Buffer("A", (12, 8), float32), Buffer("Y", (10, 8), float32)
    return [reduce_("mm", y, (3,), "add", lambda i, c, k: a[i + k, c])]


def local() -> Case:
    """Each place has a filter of its own."""
    a, b = Buffer("A", (12, 8), float32), Buffer("B", (3, 10, 8), float32)
    y = Buffer("Y", (10, 8), float32)
    return [reduce_("mm", y, (3,), "add", lambda i, c, k: a[i + k, c] * b[k, i, c])]


def gathered() -> Case:
    """A tensor says where a window is."""
    a, b = Buffer("A", (12, 8), float32), Buffer("B", (3, 8), float32)
    at, y = Buffer("P", (10,), int32), Buffer("Y", (10, 8), float32)

    def value(i: Expr, c: Expr, k: Expr) -> Expr:
        return a[Cast(at[i], i.dtype) + k, c] * b[k, c]

    return [reduce_("mm", y, (3,), "add", value)]


def skewed() -> Case:
    """A window that moves along two dimensions at once."""
    a, b = Buffer("A", (32, 8), float32), Buffer("B", (3, 8), float32)
    y = Buffer("Y", (10, 5, 8), float32)

    def value(i: Expr, j: Expr, c: Expr, k: Expr) -> Expr:
        return a[i + j + k, c] * b[k, c]

    return [reduce_("mm", y, (3,), "add", value)]


NONE = {
    "a product": lambda: product(16, 16, 16),
    "all channels": lambda: convolution(8, 9, 16, 3, 1, last=True),
    "pool": pool,
    "local": local,
    "gathered": gathered,
    "skewed": skewed,
}


@pytest.mark.parametrize("name", NONE)
def test_other_sums_are_no_windows(name):
    case = NONE[name]()
    assert window_of(classify(case)) is None
    assert "windows" not in [s.name for s in sketches(plain(case), case, GENERIC)]


@pytest.mark.parametrize("name", CASES)
def test_windows_are_no_products(name):
    assert product_of(classify(CASES[name])) is None


@pytest.mark.parametrize(
    ("name", "there"), [("last", True), ("first", False), ("int32", True)]
)
def test_exact_sums_of_floats_keep_their_order(name, there):
    """Places below one another are along the outer dimension of the window."""
    case = CASES[name]
    found = sketches(plain(case), case, GENERIC, exact=True)
    assert ("windows" in [s.name for s in found]) == there


def test_a_machine_without_the_registers_has_another_schedule():
    few = replace(GENERIC, thread_registers=8)
    assert "windows" not in [
        s.name for s in sketches(plain(CASES["last"]), CASES["last"], few)
    ]


@pytest.mark.parametrize("of", [MALI, POCL], ids=lambda of: of.name)
def test_the_convolutions_of_mobile_networks_are_windows(of):
    """Where the model expects a gain; in a tiny one most of the time is the launch."""
    for case, first in (
        (depthwise(32, 112, 3), "windows"),
        (depthwise(144, 56, 3, 2), "windows"),
        (depthwise(4, 4, 3), "by element"),
    ):
        assert sketches(plain(case), case, of)[0].name == first


@pytest.mark.sampled(4)
@pytest.mark.parametrize("share", [(1, 32, 1), (2, 32, 4), (4, 32, 2), (8, 64, 1)])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_thread_reads_what_the_model_says(share, stride):
    """What its windows share it reads once: counted by the interpreter of PTX."""
    share = WindowShare(*share)
    case = depthwise(64, 3 + 7 * stride, 3, stride, pad=False)  # 8 x 8 places
    of = window_of(classify(case))
    whole = planned(of, share)
    assert all(d.extent % s.size == 0 for d, s in whole.shares.items())
    found = counted(program(windows(case, SM80).at({"mm.share": share}), SM80))
    warps = whole.blocks * whole.block_threads // 32
    reads = found.requests[AccessKind("global", False)]
    assert reads == warps * window_loads(of, share.places)
