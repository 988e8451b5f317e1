"""prefetch of te and of Halide: a distance in bytes at the vectors that are loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright import te as t
from tilewright.base.errors import ScheduleError
from tilewright.loops.nodes import PREFETCH, Kernel
from tilewright.targets.registry import target

ROWS, COLUMNS = 24, 64
a = np.random.default_rng(0).random((ROWS, COLUMNS), np.float32)


def noted(kernel: Kernel) -> dict[str, Any]:
    return {loop: said[PREFETCH] for loop, said in kernel.notes.items()}


def doubled(by: int = 16) -> tuple[t.Schedule, t.Tensor, t.Tensor]:
    A = t.placeholder((ROWS, COLUMNS), name="A")
    C = t.compute((ROWS, COLUMNS), lambda y, x: A[y, x] * 2.0, name="C")
    s = t.create_schedule(C.op)
    if by:
        s[C].vectorize(s[C].split(s[C].op.axis[1], by)[1])
    return s, A, C


@pytest.mark.parametrize("runs_on", ["cpu", "interp"])
def test_rows_ahead_in_te(runs_on: str) -> None:
    s, A, C = doubled()
    s[C].prefetch(A, s[C].op.axis[0], 3)
    f = t.build(s, [A, C], target=runs_on)
    assert noted(f.kernel) == {"C.x.i": 3 * COLUMNS * 4}
    c = np.empty_like(a)
    f(a, c)
    np.testing.assert_array_equal(c, 2 * a)
    text = target("cpu").text(f.kernel, "k", "llvm")
    assert f"i64 {3 * COLUMNS * 4}" in text and "call void @llvm.prefetch" in text


def test_tiles_ahead_in_te() -> None:
    s, A, C = doubled()
    s[C].prefetch(A, s[C].leaf_iter_vars[1], 2)
    assert noted(s.kernel) == {"C.x.i": 2 * 16 * 4}


def test_what_cannot_be_fetched_ahead() -> None:
    s, A, C = doubled(by=0)
    s[C].prefetch(A, s[C].op.axis[0])
    with pytest.raises(ScheduleError, match=r"prefetch\(A, y, 1\).*no vector of A"):
        print(s)
    s, A, C = doubled()
    s[C].prefetch(C, s[C].op.axis[0])  # is stored, not loaded
    with pytest.raises(ScheduleError, match="no vector of C"):
        print(s)
    s, A, C = doubled()
    s[C].prefetch(A, s[C].op.axis[0], 1)
    s[C].prefetch(A, s[C].op.axis[0], 2)
    with pytest.raises(ScheduleError, match="fetches 256 bytes ahead already"):
        print(s)
    s, A, C = doubled()
    s[C].prefetch(t.placeholder((3,), name="B"), s[C].op.axis[0])
    with pytest.raises(ScheduleError, match="B is not a tensor of this program"):
        print(s)
    with pytest.raises(ScheduleError, match="how many iterations"):
        s[C].prefetch(A, s[C].op.axis[0], 0)


def blurred() -> tuple[Any, ...]:
    x, y = hl.Var("x"), hl.Var("y")
    image = hl.ImageParam(hl.Float(32), 2, "image")
    image.set(hl.Buffer(a))
    twice, f = hl.Func("twice"), hl.Func("f")
    twice[x, y] = image[x, y] * 2.0
    f[x, y] = twice[x, y] + twice[x, y + 1]
    f.vectorize(x, 16)
    return image, twice, f, x, y


def test_an_image_and_a_func_in_halide() -> None:
    image, twice, f, _, y = blurred()
    sizes = [COLUMNS, ROWS - 1]
    plain = np.asarray(f.realize(sizes))
    assert noted(f.kernel(sizes)) == {}
    assert f.prefetch(image, y, y, 2) is f
    assert list(noted(f.kernel(sizes)).values()) == [2 * COLUMNS * 4]
    np.testing.assert_array_equal(np.asarray(f.realize(sizes)), plain)
    twice.compute_root()
    f.prefetch(twice, y, y, 4, hl.PrefetchBoundStrategy.Clamp)
    with pytest.raises(ScheduleError, match=r"f, .*no vector of image"):
        f.kernel(sizes)  # which f does not read any more
    _, twice, f, _, y = blurred()
    twice.compute_root()
    f.prefetch(twice, y, y, 4)
    assert list(noted(f.kernel(sizes)).values()) == [4 * COLUMNS * 4]


def test_what_halide_cannot_fetch_ahead() -> None:
    _, twice, f, _, y = blurred()
    with pytest.raises(ScheduleError, match="there is no loop z"):
        f.prefetch(twice, hl.Var("z"), y)
    with pytest.raises(ScheduleError, match="the offset 0"):
        f.prefetch(twice, y, y, 0)
    f.prefetch(twice, y, y)
    with pytest.raises(ScheduleError, match=r"not in memory here.*not computed inline"):
        f.kernel([COLUMNS, ROWS - 1])
