"""Row operands of 16 bits are converted once, in vectors, and not in each register tile."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.sketches.test_attention_pairs import attention, scheduled
from tilewright.base.dtypes import DType, bfloat16, float16, float32, int64
from tilewright.compute.build import cast, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Le, Lt, Select, const
from tilewright.loops import interp
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.testing.random_kernels import plain

PROCESSOR = "x86-64-v4"  # without dot products of 16 bits


def product(dtype: DType = float16, gathered: bool = False) -> list[Computation]:
    a, b = Buffer("a", (13, 12), dtype), Buffer("b", (12, 40), dtype)
    y, place = Buffer("y", (13, 40), float32), Buffer("place", (13,), int64)

    def step(i: Any, j: Any, k: Any) -> Any:
        row = a[place[i], k] if gathered else a[i, k]
        return cast(row, float32) * cast(b[k, j], float32)

    return [reduce_("mm", y, (12,), "add", step)]


def windows(padded: bool) -> list[Computation]:
    """A 3x3 convolution of 3 channels, whose vectors go along the results' channels."""
    side = 10 - 2 * (not padded)
    x, w = Buffer("x", (3, 10, 10), float16), Buffer("w", (3, 3, 3, 32), float16)
    y = Buffer("y", (side, side, 32), float32)

    def step(i: Any, j: Any, o: Any, c: Any, p: Any, q: Any) -> Any:
        row, column = (i + p - 1, j + q - 1) if padded else (i + p, j + q)
        pixel: Any = x[c, row, column]
        if padded:
            tests = [Le(const(0), row), Lt(row, const(10))]
            tests += [Le(const(0), column), Lt(column, const(10))]
            inside = tests[0] & tests[1] & tests[2] & tests[3]
            pixel = Select(inside, pixel, const(0.0, float16))
        return cast(pixel, float32) * cast(w[c, p, q, o], float32)

    return [reduce_("conv", y, (3, 3, 3), "add", step)]


def made(steps: list[Computation]) -> Kernel:
    """By the first sketch, which no primitive refuses."""
    first, *_ = sketches(plain(steps), steps, Context(machine(PROCESSOR)))
    kernel = first.default().schedule.kernel
    verify(kernel)
    want, got = (run(k) for k in (plain(steps), kernel))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    return kernel


def run(kernel: Kernel) -> Any:
    rng = np.random.default_rng(2)
    data = {
        b: rng.standard_normal(b.shape).astype(b.dtype.numpy)
        if b.dtype.is_float
        else rng.integers(0, 13, b.shape)
        for b in kernel.params
    }
    interp.run(kernel, data)
    return data[kernel.outputs[0]]


def wide(kernel: Kernel) -> set[str]:
    """The buffers that a kernel allocates of float32 in memory, but for sums."""
    return set(
        re.findall(r"alloc ([\w.]+): float32\[[\d, ]+\](?! in register)", str(kernel))
    )


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_rows_of_a_product_are_copied_in_vectors(dtype: DType) -> None:
    kernel = made(product(dtype))
    assert "a.pack" in wide(kernel)
    assert re.search(r"add= a\.pack\[.*\] \* f32\(b", str(kernel))


def test_numbers_that_need_no_conversion_stay() -> None:
    steps = [reduce_(
        "mm",
        Buffer("y", (13, 40), float32),
        (12,),
        "add",
        lambda i, j, k: A[i, k] * B[k, j],
    )]  # fmt: skip
    assert "a.pack" not in str(made(steps))


A, B = Buffer("a", (13, 12), float32), Buffer("b", (12, 40), float32)


def test_rows_at_places_that_are_read_stay() -> None:
    assert "a.pack" not in str(made(product(gathered=True)))


def test_arithmetic_on_the_narrow_numbers_stays() -> None:
    a, b = Buffer("a", (13, 12), float16), Buffer("b", (12, 40), float32)
    y = Buffer("y", (13, 40), float32)
    steps = [
        reduce_(
            "mm",
            y,
            (12,),
            "add",
            lambda i, j, k: cast(a[i, k] + a[i, k], float32) * b[k, j],
        )
    ]
    assert "a.pack" not in str(made(steps))


def test_windows_are_not_copied_once_for_each_that_a_number_is_in() -> None:
    assert "x" not in {n.partition(".")[0] for n in wide(made(windows(padded=False)))}


def test_padding_and_what_is_in_it_are_converted() -> None:
    assert "x.pad" in wide(made(windows(padded=True)))


def test_shares_of_attention_are_converted_where_they_are_rounded() -> None:
    steps = attention(17, 37, 6, 18, float16)
    kernel = scheduled(steps, machine(PROCESSOR))
    verify(kernel)
    assert {"p", "q.pack"} <= wide(kernel)
    assert "p.pack" not in str(kernel)
