"""Blocks that compute one tile after another: waits and barriers between tiles, and faults there.

A tile is the sum of two boxes, backwards, which goes through shared memory, as results of products
do. The boxes of the next tile are copied before this one is stored.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.loops.test_clusters import edited, found
from tests.targets.cuda.running import load_counted
from tilewright.base.errors import ExecutionError, ScheduleError
from tilewright.expr.nodes import Buffer
from tilewright.loops import interp, launch_interp
from tilewright.loops.launch import Barrier, LaunchProgram, Wait
from tilewright.loops.nodes import BULK, CLUSTER, Kernel, block
from tilewright.loops.parser import parse
from tilewright.loops.passes.bulk_copies import groups_at_once
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of
from tilewright.schedule import Schedule
from tilewright.targets.cuda.machine import machine
from tilewright.targets.llvm.emit_boxes import BoxRing
from tilewright.targets.llvm.emit_text import integer

SM90A = machine("sm_90a")
TILES = """\
kernel f(x: float32[112, 64]) -> y: float32[2, 7, 32]:
  for z in 2:
    for t in 7:
      alloc a: float32[2, 16, 32] in shared swizzled 128:
        alloc s: float32[32] in shared:
          for r in 16:
            for c in 32:
              a[0, r, c] = x[t * 16 + r, c]
          for q in 16:
            for d in 32:
              a[1, q, d] = x[t * 16 + q, d + 32]
          for i in 32 threadIdx.x:
            s[i] = a[0, z, 31 - i] + a[1, 15, 31 - i]
          for j in 32 threadIdx.x:
            y[z, t, j] = s[31 - j]"""
Arrays = dict[Buffer, np.ndarray]


def tiled(blocks: int = 3, ahead: bool = True, cluster: bool = False) -> Kernel:
    """Some blocks for seven tiles. ahead: they fetch the next one early. cluster: both of z do that
    together."""
    s = Schedule(parse(TILES.split("\n")))
    s.bind("z", "blockIdx.y")
    _, tiles = s.persist("t", blocks)
    if ahead:
        s.rotate(tiles, 0, 2, 3)
    for f in loops_of(s.kernel.body):
        if f.var.name.split(".")[0] in "rq":
            s.annotate(f.var.name, BULK, 1)
    if cluster:
        s.annotate("z", CLUSTER, 2)
    verify(s.kernel)
    return s.kernel


def lowered(kernel: Kernel) -> LaunchProgram:
    return to_launches(kernel, 32, bulk_copies=True, own_room=0)


def given(kernel: Kernel) -> Arrays:
    values = np.random.default_rng(0).integers(0, 1000, kernel.params[0].shape)
    made: Arrays = {b: np.zeros(b.shape, np.float32) for b in kernel.params}
    made[kernel.params[0]] = values.astype(np.float32)
    return made


def check(kernel: Kernel, p: LaunchProgram, is_ptx: bool, seed: int = 0) -> None:
    wanted, arrays = given(kernel), given(kernel)
    interp.run(kernel, wanted)
    if is_ptx:
        _, (made,) = load_counted(p, SM90A, given(kernel))
    else:
        launch_interp.run(p, arrays, seed)
        made = arrays[p.outputs[0]]
    np.testing.assert_array_equal(made, wanted[kernel.outputs[0]])


def is_found(kernel: Kernel, p: LaunchProgram, is_ptx: bool) -> bool:
    """Whether a faulty program is: by an error, or by its results."""
    try:
        for seed in range(1 if is_ptx else 4):
            check(kernel, p, is_ptx, seed)
    except (ExecutionError, RuntimeError, AssertionError):
        return True
    return False


FORMS = [
    {"blocks": 3, "ahead": ahead, "cluster": cluster}
    for ahead in (False, True)
    for cluster in (False, True)
]
OTHERS = [{"blocks": n, "ahead": True} for n in (2, 7)]


@pytest.mark.parametrize("how", [*FORMS, *OTHERS], ids=str)
def test_both_interpreters_agree_with_the_program(how):
    kernel = tiled(**how)
    p = lowered(kernel)
    for seed in range(3):
        check(kernel, p, False, seed)
    check(kernel, p, True)


@pytest.mark.parametrize("how", FORMS, ids=str)
def test_no_wait_and_no_barrier_is_missing_or_needless(how):
    """What is left out is found: each by the interpreter of launches, waits by that of PTX too."""
    kernel = tiled(**how)
    p = lowered(kernel)
    assert found(p, Wait)
    for left_out in (*found(p, Wait), *found(p, Barrier)):
        wrong = edited(p, {left_out: block()})
        assert is_found(kernel, wrong, False), (left_out, str(p))
        if isinstance(left_out, Wait):
            assert is_found(kernel, wrong, True), (left_out, str(p))


def test_the_next_tile_is_copied_while_this_one_is_stored(golden):
    """The threads meet between what reads a tile and the next copy, and around what they store."""
    p = lowered(tiled())
    golden("persistent_blocks", str(p))
    (launch,) = p.launches
    ring, results = launch.shared
    assert ring.name == "a" and results.name == "s"
    assert not launch.places  # results have no room of what arrives meanwhile
    assert groups_at_once(launch.body) == 2


@pytest.mark.parametrize("is_ptx", [False, True])
def test_results_in_the_room_of_the_next_tile_are_found(is_ptx):
    """No barrier is between what is stored there and what arrives."""
    kernel = tiled()
    p = lowered(kernel)
    (launch,) = p.launches
    over = replace(launch, places=dict.fromkeys(launch.shared, 0))
    assert not is_found(kernel, p, is_ptx)
    assert is_found(kernel, replace(p, launches=(over,)), is_ptx)


def test_the_phase_of_an_mbarrier_goes_on_from_tile_to_tile(monkeypatch):
    """A wait for the phase of the first tile is over at once in the second one: its boxes are not
    there yet."""
    kernel = tiled()
    p = lowered(kernel)
    check(kernel, p, True)
    plain = BoxRing.wait

    def wait(ring: BoxRing, pending: int) -> None:
        binary = ring.x.binary

        def same(op, a, b):
            return integer(0, "i32") if op == "udiv" else binary(op, a, b)

        monkeypatch.setattr(ring.x, "binary", same, raising=False)
        plain(ring, pending)
        monkeypatch.setattr(ring.x, "binary", binary, raising=False)

    monkeypatch.setattr(BoxRing, "wait", wait)
    assert is_found(kernel, p, True)


def test_blocks_of_a_cluster_have_equally_many_tiles():
    """What decides that does not depend on the number of a block in its cluster."""
    s = Schedule(parse(TILES.split("\n")))
    s.bind("z", "blockIdx.y")
    block_loop, _ = s.persist("t", 4)
    for name in ("r", "q"):
        s.annotate(name, BULK, 1)
    s.annotate(block_loop, CLUSTER, 2)
    with pytest.raises(ScheduleError, match="no cluster of blocks"):
        lowered(s.kernel)


UNREAD = """\
kernel f(x: float32[64, 32]) -> y: float32[2, 2, 32], u: float32[2, 2, 32]:
  for z in 2 blockIdx.y:
    alloc a: float32[16, 32] in shared swizzled 128:
      alloc b: float32[16, 32] in shared swizzled 128:
        for t in 2:
          for r in 16:
            for c in 32:
              b[r, c] = x[t * 16 + r, c]
          for j in 32 threadIdx.x:
            u[z, t, j] = x[t, j]
          for q in 16:
            for d in 32:
              a[q, d] = x[t * 16 + q + 32, d]
          for i in 32 threadIdx.x:
            y[z, t, i] = b[z, 31 - i]"""


def test_a_wait_stays_where_another_one_would_wait_for_more_instead():
    """What is copied last is not needed when what is copied first is read, only before the next
    tile. One wait for both would be enough, but too early."""
    notes = {"z": {CLUSTER: 2}, "r": {BULK: 1}, "q": {BULK: 1}}
    kernel = replace(parse(UNREAD.split("\n")), notes=notes)
    p = lowered(kernel)
    assert [s.pending for s in found(p, Wait)] == [1, 0]
    wanted, arrays = given(kernel), given(kernel)
    interp.run(kernel, wanted)
    launch_interp.run(p, arrays)
    for b in kernel.outputs:
        np.testing.assert_array_equal(arrays[b], wanted[b])
