"""Casts of clamped floats to integers: NaN becomes 0, without a test where the clamp does it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.targets.cpu.test_kernels import check as run
from tests.targets.cpu.test_operations import check
from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Cast, Const, Expr, Max, Min, const, var
from tilewright.loops.nodes import Kernel, Update, loop
from tilewright.targets.cpu.compile import assembly
from tilewright.targets.cpu.machine import machine

SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    -0.0,
    0.0,
    0.4,
    -0.4,
    0.99,
    -0.99,
    1.0,
    -1.0,
    2.7,
    300.0,
]
FLOATS = (dtypes.float32, dtypes.float64, dtypes.bfloat16)


def clamps(x: Expr) -> list[Expr]:
    """Both orders of operands and of clamps; bounds that the rule takes, and others."""

    def c(value: float) -> Const:
        return Const(value, x.dtype)

    almost = 1 - 2.0**-40  # 1 as a float32
    near = [Max(x, c(bound)) for bound in (0.0, -0.0, 0.5, -0.5, 0.99)]
    far = [Max(x, c(bound)) for bound in (1.0, -1.0, 7.0, -7.0, almost, -almost)]
    upper = (255.0, 0.0, 0.5, -3.0, -0.5)
    return [
        *near,
        *far,
        Max(c(0.0), x),
        Max(Min(x, c(255.0)), c(0.0)),
        Max(c(0.0), Min(c(255.0), x)),
        *(Min(Max(x, c(0.0)), c(bound)) for bound in upper),
        *(Min(c(bound), Max(c(0.0), x)) for bound in upper),
        *(Min(Min(Max(x, c(0.0)), c(300.0)), c(bound)) for bound in upper),
        Min(c(300.0), Min(Max(x, c(0.0)), c(2.0))),
        Min(Max(x, c(-7.0)), c(255.0)),
        Min(x, c(5.0)),
    ]


@pytest.mark.covering(1)  # each integer, each float
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "target",
    [dtypes.uint8, dtypes.int8, dtypes.int32, dtypes.uint32, dtypes.int64],
    ids=str,
)
def test_a_cast_of_a_clamp_is_what_the_interpreter_computes(
    dtype: DType, target: DType
) -> None:
    x = var("x", dtype)
    numbers = np.resize(np.array(SPECIAL), 64).astype(dtype.numpy)
    results: list[Expr] = [Cast(e, target) for e in clamps(x)]
    # Used as a float as well: NaN stays there.
    both = Max(x, Const(0.0, dtype))
    positions = [Cast(Cast(e, dtypes.int32), INDEX) for e in clamps(x)]
    check([*results, *positions, both, Cast(both, target)], {x: numbers})


@pytest.mark.parametrize(("low", "high"), [(-3.0, 3.0), (0.0, 6.0), (-0.5, 2.0)])
@pytest.mark.parametrize("whole", [dtypes.int32, dtypes.int16, dtypes.uint32], ids=str)
def test_positions_may_be_negative(low: float, high: float, whole: DType) -> None:
    """Scalar code: what scatters does not run in vectors."""
    a, b = Buffer("a", (64,), dtypes.float32), Buffer("b", (10,), dtypes.int32)
    i = var("i")
    top = Min(a[i], Const(high, dtypes.float32))
    at = Cast(Cast(Max(top, Const(low, dtypes.float32)), whole), INDEX) + 3
    step = Update(
        (b,), ((at,),), (const(1, dtypes.int32),), reducer("add", dtypes.int32)
    )
    numbers = np.resize(np.array(SPECIAL), 64).astype(np.float32)
    run([a, b], [b], loop(i, 64, step), a=numbers, b=np.zeros(10, np.int32))


def test_positions_that_floats_give_take_four_instructions() -> None:
    """A bin of a histogram: two clamps, a conversion, and the addition in memory."""
    a, b = Buffer("a", (64,), dtypes.float32), Buffer("b", (256,), dtypes.int32)
    i = var("i")
    inside = Max(Min(a[i], Const(255.0, dtypes.float32)), Const(0.0, dtypes.float32))
    at = Cast(Cast(inside, dtypes.int32), INDEX)
    step = Update(
        (b,), ((at,),), (const(1, dtypes.int32),), reducer("add", dtypes.int32)
    )
    text = assembly(Kernel("k", (a, b), (b,), loop(i, 64, step)), machine("x86-64-v3"))
    found = re.findall(
        r"^\s+(v\w+ss\w*|mov\w*|cmov\w*|inc\w|shl\w)\b", text, re.MULTILINE
    )
    step = found[found.index("vminss") : found.index("incl") + 1]
    assert step == ["vminss", "vmaxss", "vcvttss2si", "incl"]
