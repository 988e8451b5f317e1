"""Numbers of few bits cut out of words, in native code against what it says, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.native import run_native
from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.expr.nodes import Buffer, Cast, Const, Expr, var
from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.targets.cpu.compile import llvm_ir
from tilewright.targets.cpu.machine import machine
from tilewright.targets.llvm.emit_bits import few_bits
from tilewright.targets.registry import target

LEVELS = ["x86-64-v2", "x86-64-v3", "x86-64-v4"]
WORDS = np.random.default_rng(0).integers(0, 1 << 32, 64, dtype=np.uint32)
WORDS[:2] = 0, (1 << 32) - 1


def cut(word: Expr, shift: Expr | int, mask: int, less: float | None) -> Expr:
    """`cast(word >> shift & mask, float32) - less`."""
    by = Const(shift, word.dtype) if isinstance(shift, int) else shift
    real = Cast((word >> by) & Const(mask, word.dtype), dtypes.float32)
    return real if less is None else real - Const(less, dtypes.float32)


def kernel(
    dtype: DType, lanes: int, shift: int | None, mask: int, less: float | None
) -> Kernel:
    """Of all WORDS; shift: None for one that is read for each word."""
    a, by = (Buffer(name, WORDS.shape, dtype) for name in ("a", "by"))
    out = Buffer("out", WORDS.shape, dtypes.float32)
    i, lane = var("i"), var("lane")
    at = i * lanes + lane
    value = cut(a[at], by[at] if shift is None else shift, mask, less)
    body = loop(
        i,
        WORDS.size // lanes,
        loop(lane, lanes, Store(out, (at,), value), "vector"),
    )
    return Kernel("k", (a, by, out), (out,), body)


def check(level: str, k: Kernel) -> None:
    if not target("cpu", level).runs_here:
        pytest.skip(f"this processor has not the instructions of {level}")
    a, by, out = k.params
    arrays: dict[Buffer, Any] = {
        a: WORDS.view(a.dtype.numpy),
        by: np.arange(WORDS.size, dtype=a.dtype.numpy) % 32,
    }
    want, got = ({**arrays, out: np.full(WORDS.shape, 7, np.float32)} for _ in "ab")
    run(k, want)
    assert run_native(k, got, machine=machine(level)) == 0
    bits = [x[out].view(np.uint32) for x in (got, want)]
    np.testing.assert_array_equal(*bits)


@pytest.mark.covering(1)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("less", [None, 0.0, -0.0, 8.0, -128.0, 65536.0, -65536.0])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_all_numbers_of_words(level: str, count: int, less: float | None) -> None:
    for dtype in (dtypes.int32, dtypes.uint32):
        for shift in {0, count, 15, 16 - count, 16, 17, 23, 30, 31, 32 - count}:
            check(level, kernel(dtype, 16, shift, (1 << count) - 1, less))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("lanes", [1, 2, 8, 32])
def test_vectors_of_other_lengths(level: str, lanes: int) -> None:
    for shift in (0, 4, 20):
        check(level, kernel(dtypes.int32, lanes, shift, 15, 8.0))


# What is no such number, or not one whose forms are exact: shift, mask, what is taken off.
OTHERS: dict[str, tuple[int | None, int, float | None]] = {
    "no shift of that many bits": (32, 15, 8.0),
    "a mask with a hole": (4, 5, 8.0),
    "a mask of no bits": (4, 0, 8.0),
    "more than 8 bits": (4, 511, 8.0),
    "all bits": (0, -1, 8.0),
    "a part is taken off": (4, 15, 0.1),
    "much is taken off": (4, 15, 2.0**24 - 1),
    "infinity is taken off": (4, 15, np.inf),
    "no number is taken off": (4, 15, np.nan),
    "each word has a shift of its own": (None, 15, 8.0),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("why", OTHERS)
def test_what_is_left_as_it_is(level: str, why: str) -> None:
    for lanes in (8, 16):
        check(level, kernel(dtypes.int32, lanes, *OTHERS[why]))


def test_the_forms_by_machine() -> None:
    def forms(level: str, less: float | None) -> set[str]:
        texts = [
            llvm_ir(kernel(dtypes.int32, 16, shift, 15, less), machine(level))
            for shift in (0, 4)
        ]
        names = {"permvar": "table", "fsub": "in place", "sitofp": "conversion"}
        return {form for key, form in names.items() for t in texts if key in t}

    assert forms("x86-64-v4", 8.0) == {"table", "in place"}
    assert forms("x86-64-v4", None) == {"table"}
    assert forms("x86-64-v3", 8.0) == {"in place"}
    assert forms("x86-64-v3", None) == {"conversion"}


def test_the_word_and_its_dtype() -> None:
    word = var("word", dtypes.int32)
    assert few_bits(cut(word, 4, 15, 8.0)) is not None
    for dtype in (dtypes.int64, dtypes.int16, dtypes.uint8):
        assert few_bits(cut(var("word", dtype), 4, 15, 8.0)) is None
    wide = Cast(word >> 4 & 15, dtypes.float64)
    assert few_bits(wide) is None
