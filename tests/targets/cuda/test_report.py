"""What ptxas says of kernels, and the occupancy that follows; skipped only where it is absent."""

import pytest

from tests.targets.cuda.running import program
from tests.targets.cuda.test_emit import REVERSE, SUMS
from tilewright.base.errors import CompileError, UnsupportedError
from tilewright.targets.cuda import report
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.report import Resources, occupancy

needs_ptxas = pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
PRODUCT = """
program product(a: float32[64, 64], b: float32[64, 64]) -> c: float32[64, 64]:
  launch product(a, b, c) grid [4, 4, 1] threads [16, 16, 1]:
    shared s: float32[16, 16] in shared
    shared t: float32[16, 16] in shared
    alloc r: float32[] in register:
      r[] = 0.0
      for k in 4:
        s[threadIdx.y, threadIdx.x] = a[16 * blockIdx.y + threadIdx.y, 16 * k + threadIdx.x]
        t[threadIdx.y, threadIdx.x] = b[16 * k + threadIdx.y, 16 * blockIdx.x + threadIdx.x]
        barrier shared
        for l in 16:
          r[] add= s[threadIdx.y, l] * t[l, threadIdx.x]
        barrier shared
      c[16 * blockIdx.y + threadIdx.y, 16 * blockIdx.x + threadIdx.x] = r[]"""
# program, architecture: registers of a thread (a band), shared bytes, blocks at once, their limit
GOLDEN = {
    ("reverse", "sm_80"): (REVERSE, (6, 14), 256, 32, None),
    ("reverse", "sm_90a"): (REVERSE, (6, 14), 256, 32, None),
    ("sums", "sm_80"): (SUMS.format(n=32, width=32), (6, 18), 0, 32, "blocks"),
    ("sums", "sm_90a"): (SUMS.format(n=32, width=32), (6, 18), 0, 32, "blocks"),
    ("product", "sm_80"): (PRODUCT, (14, 40), 2048, (5, 8), None),
    ("product", "sm_90a"): (PRODUCT, (14, 40), 2048, (5, 8), None),
}


@needs_ptxas
@pytest.mark.parametrize(("name", "arch"), GOLDEN)
def test_a_kernel_takes_what_it_took(name, arch):
    text, registers, shared, blocks, limit = GOLDEN[name, arch]
    p, of = program(text), machine(arch)
    _, found = report.assemble(ptx(p, of), of)
    used = found[name]
    assert registers[0] <= used.registers <= registers[1]
    assert used.shared == shared
    assert used.stack == used.spill_stores == used.spill_loads == 0
    x, y, z = p.launches[0].threads
    held = occupancy(used, x * y * z, of)
    low, high = blocks if isinstance(blocks, tuple) else (blocks, blocks)
    assert low <= held.blocks <= high
    assert limit is None or held.limit == limit


@needs_ptxas
def test_text_that_is_no_ptx_is_refused_in_one_line():
    with pytest.raises(CompileError, match="ptxas rejects the code for sm_80"):
        report.assemble(".version 8.0\nnonsense", machine("sm_80"))


def test_without_ptxas_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.setattr(report, "ptxas", lambda: None)
    with pytest.raises(UnsupportedError, match="pip install nvidia-cuda-nvcc"):
        report.assemble("", machine("sm_80"))


SAID = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 128 bytes smem, 376 bytes cmem[0]
ptxas info    : Compiling entry function 'b' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""


def test_what_ptxas_prints_is_read():
    assert report.resources(SAID) == {
        "a": Resources(40, 1, 128, 16, 8, 12),
        "b": Resources(12),
    }


@pytest.mark.parametrize(
    ("used", "threads", "arch", "blocks", "limit"),
    [
        # 64 registers: 2,048 of a warp; 65,536 of them are 32 warps, which are 4 blocks of 8.
        (Resources(64), 256, "sm_80", 4, "registers"),
        (Resources(32), 256, "sm_80", 8, "threads"),
        (Resources(32), 256, "sm_86", 6, "threads"),
        (Resources(16), 32, "sm_80", 32, "blocks"),
        (Resources(16), 32, "sm_86", 16, "blocks"),
        # 64 KiB and the one that the system takes: two of 65 in 164.
        (Resources(32, shared=64 << 10), 128, "sm_80", 2, "shared memory"),
        (Resources(32, shared=64 << 10), 128, "sm_90a", 3, "shared memory"),
        (Resources(32, shared=100 << 10), 128, "sm_86", 0, "shared memory"),
        (Resources(255), 512, "sm_80", 0, "registers"),
    ],
)
def test_occupancy_follows_from_what_a_block_takes(used, threads, arch, blocks, limit):
    held = occupancy(used, threads, machine(arch))
    assert (held.blocks, held.limit) == (blocks, limit)
    assert held.share == blocks * threads / machine(arch).threads
