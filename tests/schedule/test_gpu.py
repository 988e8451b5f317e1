"""GPU schedules by the primitives alone: tiles in shared memory, filled together; parts of sums."""

from __future__ import annotations

import pytest

from tests.loops.gpu_kernels import barriers, judged, without_barrier
from tests.schedule.test_matmul import matmul
from tilewright.base.dtypes import float32, int32
from tilewright.base.errors import ExecutionError, ScheduleError
from tilewright.compute.build import reduce_
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.walk import loops_of
from tilewright.schedule import Schedule

TILE = 16


def bound(s: Schedule, *loops: str) -> None:
    """Bind loops of a block to its threads, the last one to x, where they are there."""
    names = {f.var.name for f in loops_of(s.kernel.body)}
    for loop, axis in zip(reversed(loops), ("threadIdx.x", "threadIdx.y")):
        if loop in names:
            s.bind(loop, axis)


def tiled(m: int, n: int, k: int, tile: int = TILE, depth: int = 8) -> Schedule:
    """A product in tiles: a thread has an element, and a block its parts of A and B."""
    s = Schedule(matmul(m, n, k, epilogue=False))
    io, ii = s.split("mm.i", tile, tail="guard")
    jo, ji = s.split("mm.j", tile, tail="guard")
    s.reorder(io, jo, ii, ji)
    acc = s.cache_write("C", jo, "register")
    bound(s, f"{acc}.r0", f"{acc}.r1")
    bound(s, f"{acc}.w0", f"{acc}.w1")
    bound(s, *s.decompose_reduction(acc, ii))
    ko, ki = s.split("mm.k", depth, tail="guard")
    s.reorder(ko, ii, ji, ki)
    for operand in "AB":
        new = s.cache_read(operand, ko, "shared")
        bound(s, f"{new}.r0", f"{new}.r1")
    bound(s, ii, ji)
    s.bind(io, "blockIdx.y")
    s.bind(jo, "blockIdx.x")
    return s


def check(s: Schedule) -> int:
    """The launches do what the kernel does, and need each barrier; how many they have."""
    p = to_launches(s.kernel)
    judged(s.kernel, p)
    for n in range(len(barriers(p))):
        with pytest.raises(ExecutionError):
            judged(None, without_barrier(p, n))
    return len(barriers(p))


def test_a_tiled_product(golden):
    s = tiled(32, 32, 16)
    golden("gpu_tiled_product", repr(to_launches(s.kernel)))
    assert check(s) == 2


@pytest.mark.parametrize("sizes", [(20, 24, 10), (2, 33, 11), (17, 3, 16)])
def test_a_tiled_product_of_ragged_sizes(sizes):
    assert check(tiled(*sizes)) == 2


def test_a_tiled_product_in_two_buffers_has_one_barrier_in_its_loop():
    """The next tiles are fetched while these are used."""
    s = tiled(16, 16, 32)
    s.pipeline("mm.k.o", 0, 0, 1)
    found = to_launches(s.kernel)
    loop = next(f for f in loops_of(found.launches[0].body) if f.var.name == "mm.k.o")
    assert len(barriers(found)) == 2 and repr(loop.body).count("barrier") == 1
    check(s)


def test_rows_of_a_shared_buffer_may_be_apart():
    s = tiled(16, 16, 16)
    s.storage_align("A.local", 0, 32, 1)
    assert to_launches(s.kernel).launches[0].shared[1].shape == (16, 33)
    check(s)


def test_a_fetch_by_all_threads_of_a_block():
    """The loops of a copy, fused and split anew: neighbors read neighbors."""
    s = Schedule(matmul(32, 32, 16, epilogue=False))
    io, jo, ii, ji = s.tile("mm.i", "mm.j", 16, 16)
    new = s.cache_read("B", jo, "shared")
    flat = s.fuse(f"{new}.r0", f"{new}.r1")
    _, t = s.split(flat, 64 * 4)
    t, lanes = s.split(t, 4)
    s.bind(t, "threadIdx.x")
    s.vectorize(lanes)
    both = s.fuse(ii, ji)
    _, t = s.split(both, 64)
    s.bind(t, "threadIdx.x")
    s.bind(io, "blockIdx.y")
    s.bind(jo, "blockIdx.x")
    assert check(s) == 1


def test_virtual_threads_share_what_does_not_depend_on_them():
    s = Schedule(matmul(32, 32, 8, epilogue=False))
    io, jo, ii, ji = s.tile("mm.i", "mm.j", 16, 16)
    v, t = s.split(ji, 8)
    s.reorder(io, jo, v, ii, t)
    s.vthread(v)
    s.bind(io, "blockIdx.y")
    s.bind(jo, "blockIdx.x")
    s.bind(ii, "threadIdx.y")
    check(s)


def total(n: int, dtype=int32) -> Kernel:
    x, y = Buffer("x", (n,), dtype), Buffer("y", (1,), dtype)
    made = reduce_("sum", y, (n,), "add", lambda _, k: x[k])
    return lower("total", [made], params=[x, y], outputs=[y])


def test_a_split_reduction_is_a_launch_for_the_parts_and_one_for_their_sum():
    """Each block adds a part, in order, and one thread the parts: the same bits in each run."""
    s = Schedule(total(250, float32))
    s.split("sum.k", 16, tail="guard")
    s.rfactor("sum.k.o", "global")
    s.bind("sum.k.o", "blockIdx.x")
    s.bind("sum.k.o.clear", "blockIdx.x")
    p = to_launches(s.kernel)
    assert [launch.grid[0] for launch in p.launches] == [1, 16, 16, 1]
    judged(s.kernel, p, 1)
    judged(s.kernel, p, 2)


def test_a_race_is_refused_with_the_two_iterations_that_meet():
    s = Schedule(total(256))
    with pytest.raises(
        ScheduleError, match=r"\(sum.k=0\) and \(sum.k=255\) conflict at y\[0\]"
    ):
        s.bind("sum.k", "blockIdx.x")
