"""A block's shared memory is counted to the last byte, by the check and by what is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.loops.gpu_kernels import kernel
from tests.targets.cuda.test_tensor_tiles import launches, scheduled
from tests.targets.simt.attention import attention
from tests.targets.simt.groups import running, softmax, transpose
from tests.targets.simt.products import CASES, product
from tilewright.base.dtypes import bfloat16, float16, float32, uint8
from tilewright.base.errors import CompileError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.launch import Launch
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.block_memory import BlockMemory
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.tensor_choice import GROUPS
from tilewright.targets.cuda.tensor_tiles import TensorCores
from tilewright.targets.simt.machine import GENERIC, SimtMachine
from tilewright.targets.simt.schedules import sketches
from tilewright.targets.simt.target import check_block
from tilewright.testing.random_kernels import plain

SM90A = machine("sm_90a")
CORES = TensorCores(SM90A, exact=False, kind=GROUPS)


def in_boxes() -> Launch:
    """A product whose tiles are boxes, which two mbarriers count."""
    case = product(64, 128, 192, bfloat16, float32)
    how = {"group_tile": (64, 128, 64, 1, 1), "stages": 2, "boxes": True}
    (launch,) = launches(scheduled(case, CORES, **how), SM90A).launches
    return launch


def accepts(launch: Launch, shared: int) -> bool:
    """Whether a machine with so many bytes for a block takes a launch. The refusal has both."""
    try:
        check_block(launch, replace(SM90A.simt, shared=shared))
    except CompileError as error:
        assert error.code == "TW-LAUNCH"
        need = BlockMemory.of(launch).nbytes
        assert f"{need:,} bytes of shared memory" in str(error)
        assert f"at most {shared:,}" in str(error)
        return False
    return True


def test_mbarriers_are_part_of_a_blocks_memory():
    launch = in_boxes()
    buffers = 2 * (64 + 128) * 128
    assert BlockMemory.of(launch).ring == 2
    assert accepts(launch, buffers + 2 * 8)
    assert not accepts(launch, buffers + 2 * 8 - 1)
    assert not accepts(launch, buffers)


def test_bytes_between_buffers_are_part_of_a_blocks_memory():
    """Swizzled tiles of `wgmma` begin at multiples of 1,024 bytes."""
    launch = in_boxes()
    small = Buffer("small", (4,), uint8, "shared")
    before = replace(launch, shared=(small, *launch.shared), places={})
    memory = BlockMemory.of(before)
    tiles = [b for b in launch.shared if b.swizzle]
    assert tiles and all(memory.places[b] % 1024 == 0 for b in tiles)
    sizes = sum(b.size * b.dtype.itemsize for b in before.shared)
    assert memory.nbytes >= sizes + 1020 + 8 * memory.ring
    assert accepts(before, memory.nbytes) and not accepts(before, memory.nbytes - 1)


Group = tuple[Kernel, Sequence[Computation]]
STEPS = """\
kernel f(x: float32[16, 90]) -> y: float32[16, 90]:
  for r in 16:
    alloc t: float32[90]:
      alloc u: float32[90]:
        for i in 90:
          t[i] = x[r, i]
        for k in 5:
          for j in 90:
            u[j] = t[89 - j]
          for l in 90:
            t[l] = u[89 - l] + 1.0
        for m in 90:
          y[r, m] = t[m]"""


def tiled(name: str) -> Group:
    case = CASES[name]()
    return plain(case), case


# By name of the sketch: groups whose blocks have buffers of odd sizes.
SHARING: dict[str, Callable[[], Group]] = {
    "rows": lambda: softmax(70, 4099, float16),
    "scan": lambda: running(33, 127),
    "transpose": lambda: transpose(70, 3, uint8),
    "tiles": lambda: tiled("int8"),
    "attention": lambda: attention(17, 45, 15, 13),
    "phases": lambda: (kernel(STEPS), ()),
}


def largest(name: str, group: Group, of: SimtMachine) -> tuple[int, int] | None:
    """What the largest block of a default takes, and what its buffers have without the room
    between them; None if the machine has no such sketch."""
    found = [s for s in sketches(*group, of) if s.name == name]
    if not found:
        return None
    made = to_launches(found[0].default().schedule.kernel, of.warp)
    most = max(made.launches, key=lambda launch: BlockMemory.of(launch).nbytes)
    sizes = sum(b.size * b.dtype.itemsize for b in most.shared)
    return BlockMemory.of(most).nbytes, sizes


@pytest.mark.parametrize("name", SHARING)
def test_what_is_chosen_fits_whatever_the_limit_is(name):
    group = SHARING[name]()
    for of in (GENERIC, SM90A.simt):
        usual = largest(name, group, of)
        assert usual is not None
        need, sizes = usual
        for limit in {sizes, need - 1, need - 16, need // 2}:
            found = largest(name, group, replace(of, shared=limit))
            assert found is None or found[0] <= limit
