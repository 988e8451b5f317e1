"""Transposed tiles by shuffles: every dtype, any extents, strides, vectors of 16 to 64 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.native import run_native
from tilewright.base.dtypes import DType, bfloat16, float16, float32, uint8
from tilewright.base.errors import CompileError, ScheduleError
from tilewright.loops.lower import lower
from tilewright.loops.verify import verify
from tilewright.operators import Buffer, map_
from tilewright.schedule import Schedule
from tilewright.targets.cpu.compile import assembly, compile_kernel
from tilewright.targets.cpu.intrinsics import TRANSPOSES, WORD_TRANSPOSES
from tilewright.targets.cpu.machine import host, machine

DTYPES = list(TRANSPOSES)
# A level, and a feature without which its code does not run.
LEVELS = {"x86-64-v4": "avx512vl", "x86-64-v3": "avx2", "x86-64-v2": "ssse3"}


def transposed(
    rows: int, columns: int, dtype: DType, at: tuple[int, int] = (0, 0)
) -> Schedule:
    """`out[i, j] = a[j + at, i + at]` as one Unit, of an input that is larger by 2 * at."""
    a = Buffer("a", (rows + 2 * at[0], columns + 2 * at[1]), dtype)
    out = Buffer("out", (columns, rows), dtype)
    copy = map_("t", out, lambda i, j: a[j + at[0], i + at[1]])
    s = Schedule(lower("t", [copy], params=[a, out], outputs=[out]))
    s.tensorize("t.i", TRANSPOSES[dtype])
    verify(s.kernel)
    return s


def _bytes(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> np.ndarray[Any, Any]:
    """Any bits; a bool's are 0 and 1."""
    rng = np.random.default_rng(seed)
    high = 2 if dtype.is_bool else 256
    raw = rng.integers(0, high, (*shape, dtype.itemsize), dtype=np.uint8)
    found: np.ndarray[Any, Any] = raw.view(dtype.numpy).reshape(shape)
    return found


def _check(s: Schedule, at: tuple[int, int], mcpu: str) -> None:
    a, out = s.kernel.params
    arrays = {a: _bytes(a.shape, a.dtype), out: _bytes(out.shape, out.dtype, 1)}
    assert run_native(s.kernel, arrays, machine=machine(mcpu)) == 0
    columns, rows = out.shape
    part = arrays[a][at[0] : at[0] + rows, at[1] : at[1] + columns]
    word = np.dtype(f"u{a.dtype.itemsize}")  # bits: a NaN is not equal to itself
    np.testing.assert_array_equal(
        arrays[out].view(word), np.ascontiguousarray(part.T).view(word)
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("level", ["native", *LEVELS])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tile_is_transposed(dtype: DType, level: str) -> None:
    if level != "native" and not host().has(LEVELS[level]):
        pytest.skip(f"this processor has no {LEVELS[level]}")
    for shape in ((16, 16), (13, 29)):
        _check(transposed(*shape, dtype, (1, 3)), (1, 3), level)


@pytest.mark.parametrize("rows", [2, 3, 4, 7, 8, 12, 31])
def test_any_extents(rows: int) -> None:
    for columns in (2, 3, 5, 8, 9, 16, 33):
        _check(transposed(rows, columns, float32), (0, 0), "native")


@pytest.mark.parametrize("shape", [(16, 16), (16, 9), (5, 33)], ids=str)
def test_words_of_two_are_transposed(shape: tuple[int, int]) -> None:
    """`out[i, j, k] = a[j + 1, 2 * i + 1 + k]`: words that begin at any element of a row."""
    rows, columns = shape
    a = Buffer("a", (rows + 2, 2 * columns + 3), bfloat16)
    out = Buffer("out", (columns, rows, 2), bfloat16)
    copy = map_("t", out, lambda i, j, k: a[j + 1, 2 * i + 1 + k])
    s = Schedule(lower("t", [copy], params=[a, out], outputs=[out]))
    s.tensorize("t.i", WORD_TRANSPOSES[bfloat16])
    s.verify()
    arrays = {b: _bytes(b.shape, b.dtype, n) for n, b in enumerate(s.kernel.params)}
    assert run_native(s.kernel, arrays, machine=machine("native")) == 0
    part = arrays[a].view(np.uint16)[1 : 1 + rows, 1 : 1 + 2 * columns]
    words = part.reshape(rows, columns, 2).transpose(1, 0, 2)
    np.testing.assert_array_equal(arrays[out].view(np.uint16), words)


def test_words_that_are_not_neighbors_are_none() -> None:
    a, out = Buffer("a", (16, 16, 4), bfloat16), Buffer("out", (16, 16, 2), bfloat16)
    copy = map_("t", out, lambda i, j, k: a[j, i, 2 * k])
    s = Schedule(lower("t", [copy], params=[a, out], outputs=[out]))
    with pytest.raises(ScheduleError, match="stride"):
        s.tensorize("t.i", WORD_TRANSPOSES[bfloat16])


def test_the_interpreter_agrees() -> None:
    s = transposed(5, 6, float32)
    s.verify()


def _mnemonics(s: Schedule, mcpu: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in assembly(s.kernel, machine(mcpu)).splitlines():
        if line.startswith("\tv"):
            name = line.split()[0].removesuffix("64").removesuffix("32")
            found[name] = found.get(name, 0) + 1
    return found


def test_the_instructions_it_should_have() -> None:
    """log2(n) shuffles for each of n rows, and nothing else than loads and stores."""
    wide = _mnemonics(transposed(16, 16, float32), "x86-64-v4")
    assert wide.pop("vmovdqu") == 32
    assert wide.pop("vzeroupper") == 1
    assert sum(wide.values()) == 4 * 16
    narrow = _mnemonics(transposed(8, 8, float32), "x86-64-v3")
    assert narrow.pop("vmovups") <= 16
    assert narrow.pop("vzeroupper") == 1
    assert sum(narrow.values()) <= 3 * 8
    four = _mnemonics(transposed(16, 64, uint8), "x86-64-v4")  # squares side by side
    assert sum(count for name, count in four.items() if "punpck" in name) == 4 * 16


@pytest.mark.covering(1)
@pytest.mark.parametrize("columns", [16, 40, 64, 75])
@pytest.mark.parametrize("rows", [2, 4, 8, 14, 16])
def test_squares_side_by_side(rows: int, columns: int) -> None:
    for dtype in (uint8, float16, float32):
        _check(transposed(rows, columns, dtype), (0, 0), "native")


def test_both_sides_are_contiguous_or_refused() -> None:
    a, out = Buffer("a", (8, 8, 2), float32), Buffer("out", (8, 8), float32)
    copy = map_("t", out, lambda i, j: a[j, i, 0])
    s = Schedule(lower("t", [copy], params=[a, out], outputs=[out]))
    with pytest.raises(ScheduleError, match="a has stride 1 along axis 1, found 2"):
        s.tensorize("t.i", TRANSPOSES[float32])


def test_a_large_tile_is_refused() -> None:
    with pytest.raises(
        CompileError, match="a tile of 128 x 64 is written out as a whole"
    ) as found:
        compile_kernel(transposed(128, 64, float32).kernel, host())
    assert "tile the loops" in str(found.value)
