"""Swizzled buffers as PTX: the same values, in banks that the closed form predicts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.cuda.running import SM80, load_counted, program, run
from tilewright.base.errors import CompileError
from tilewright.expr.swizzle import swizzled
from tilewright.targets.amdgpu.emit import assembly as amd_assembly
from tilewright.targets.amdgpu.machine import machine as amd_machine
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.opencl.emit import emit as opencl
from tilewright.targets.simt.cost import bank_turns
from tilewright.testing.ptx.traffic import AccessKind

# Threads write rows, an element each, and read columns, a chunk each.
TEXT = """
program p(x: float32[32, {n}]) -> y: float32[32, {n}]:
  launch p(x, y) grid [1, 1, 1] threads [32, 1, 1]:
    shared t: float32[32, {n}] in shared{how}
    for r in {n}:
      t[r * 32 // {n}, r * 32 % {n} + threadIdx.x] = x[r * 32 // {n}, r * 32 % {n} + threadIdx.x]
    barrier shared
    for c in {n} // 4:
      for l in 4 vector:
        y[threadIdx.x, c * 4 + l] = t[threadIdx.x, c * 4 + l]"""


def text(n: int, row: int) -> str:
    how = f" swizzled {row}" if row else ""
    return TEXT.format(n=n, how=how).replace(f"in {n} // 4:", f"in {n // 4}:")


@pytest.mark.parametrize("n", [32, 64])
@pytest.mark.parametrize("is_swizzled", [True, False])
def test_columns_are_read_without_conflicts(n, is_swizzled):
    row = 4 * n if is_swizzled else 0
    p = program(text(n, row))
    x = np.random.default_rng(n).random((32, n), np.float32)
    assert np.array_equal(run(p, [x])[0], x)
    found, _ = load_counted(p, SM80)
    turns = 0
    for c in range(n // 4):
        at = [swizzled(4 * n * lane + 16 * c, row) for lane in range(32)]
        turns += bank_turns(at, 32, 16)
    assert turns == (n if is_swizzled else 8 * n)
    assert found.turns[AccessKind("shared", False)] == turns
    assert found.turns[AccessKind("shared", True)] == n


@pytest.mark.parametrize("place", ["l, c", "l, c * 4 + l", "threadIdx.x, c * 3 + l"])
def test_lanes_in_several_chunks_are_refused(place):
    wrong = text(32, 128).replace("t[threadIdx.x, c * 4 + l]", f"t[{place}]")
    with pytest.raises(CompileError, match="swizzled, and accessed across its chunks"):
        ptx(program(wrong), SM80)


def test_other_back_ends():
    p = program(text(32, 128))
    assert "v_xor_b32" in amd_assembly(p, amd_machine("gfx942"))
    with pytest.raises(CompileError, match="swizzled, which OpenCL C is not"):
        opencl(p)
