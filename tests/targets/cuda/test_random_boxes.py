"""Random kernels that copy boxes, in launches and as PTX: they compute what they did, nobody races,
and a wait or barrier that is left out is missed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from tests.loops.test_clusters import edited, found
from tests.targets.cuda.running import load_counted
from tilewright.base.errors import ExecutionError, ScheduleError
from tilewright.loops import interp, launch_interp
from tilewright.loops.launch import Barrier, LaunchProgram, Wait
from tilewright.loops.nodes import BULK, Kernel, block
from tilewright.loops.parser import parse
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.cuda.machine import machine
from tilewright.testing.random_boxes import random_boxes

SM90A = machine("sm_90a")
Arrays = dict[object, np.ndarray]


def lowered(seed: int) -> tuple[Kernel, LaunchProgram] | None:
    """The kernel of a seed, and its launches; None where it is refused. In those of odd seeds
    buffers share room."""
    kernel = random_boxes(random.Random(seed))
    room = 0 if seed % 2 else None
    try:
        return kernel, to_launches(kernel, 32, bulk_copies=True, own_room=room)
    except ScheduleError as error:
        assert error.code == "TW-LAUNCH" and error.where and error.hint
        return None


def given(kernel: Kernel) -> Arrays:
    values = np.random.default_rng(0).integers(0, 1000, kernel.params[0].shape)
    made: Arrays = {b: np.zeros(b.shape, np.float32) for b in kernel.params}
    made[kernel.params[0]] = values.astype(np.float32)
    return made


def check(kernel: Kernel, p: LaunchProgram, seed: int, is_ptx: bool) -> None:
    wanted, arrays = given(kernel), given(kernel)
    interp.run(kernel, wanted)
    if is_ptx:
        _, outputs = load_counted(p, SM90A, given(kernel))
        arrays |= dict(zip(p.outputs, outputs, strict=True))
    else:
        launch_interp.run(p, arrays, seed)
    for b in kernel.outputs:
        text = f"{seed}\n{p}"
        np.testing.assert_array_equal(wanted[b], arrays[b], err_msg=text)


def checked(seeds: Iterable[int]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        made = lowered(seed)
        if made is None:
            seen["refused"] += 1
            continue
        kernel, p = made
        check(kernel, p, seed, False)
        check(kernel, p, seed, True)
        (launch,) = p.launches
        text = str(kernel)
        seen["parts"] += "for p in" in text
        seen["ahead"] += "if p + 1 < " in text or ".pro in" in text
        seen["clusters"] += launch.cluster != (1, 1, 1)
        seen["rooms"] += bool(launch.places)
        seen["one thread"] += launch.threads == (1, 1, 1)
        seen["in flight"] += any(s.pending for s in found(p, Wait))
        scopes = {s.scope for s in found(p, Barrier)}
        seen["both scopes"] += {"shared", "cluster"} <= scopes
    return seen


HUNDREDS = [
    pytest.param(range(n, n + 25), marks=pytest.mark.slow) for n in range(100, 400, 25)
]


FEW = range(16, 22)


@pytest.mark.parametrize("seeds", [FEW, *HUNDREDS], ids=str)
def test_random_boxes_are_there_when_they_are_used(seeds):
    seen = checked(seeds)
    assert seen["refused"] <= 0.3 * len(seeds), seen
    kinds = ["clusters", "rooms", "parts", "ahead"]
    if seeds is FEW:
        kinds += ["one thread", "in flight", "both scopes"]
    assert all(seen[kind] for kind in kinds), seen


def is_missed(kernel: Kernel, p: LaunchProgram, seed: int, is_ptx: bool) -> bool:
    """Whether a faulty program is found."""
    try:
        check(kernel, p, seed, is_ptx)
    except (ExecutionError, RuntimeError, AssertionError):
        return True
    return False


@pytest.mark.parametrize("seeds", [5, pytest.param(30, marks=pytest.mark.slow)])
def test_what_is_left_out_is_missed(seeds):
    """Each wait by both interpreters, each barrier by that of launches."""
    for seed in range(seeds):
        made = lowered(seed)
        if made is None:
            continue
        kernel, p = made
        for left_out in (*found(p, Wait), *found(p, Barrier)):
            wrong = edited(p, {left_out: block()})
            assert is_missed(kernel, wrong, seed, False), (seed, left_out, str(p))
            if isinstance(left_out, Wait):
                assert is_missed(kernel, wrong, seed, True), (seed, left_out, str(p))


OVER = """\
kernel f(x: float32[16, 32]) -> y: float32[32]:
  for b in 1 blockIdx.x:
    alloc t: float32[16, 32] in shared swizzled 128:
      t[0, 0] = x[0, 0] + x[0, 0]
      for r in 16:
        for c in 32:
          t[r, c] = x[r, c]
      for i in 32 threadIdx.x:
        y[i] = t[0, i]"""


def test_a_box_overwrites_what_its_own_thread_wrote_behind_a_barrier():
    """Units have another path to memory, for which the barrier has a fence."""
    kernel = replace(parse(OVER.split("\n")), notes={"r": {BULK: 1}})
    p = to_launches(kernel, 32, bulk_copies=True)
    assert [s.scope for s in found(p, Barrier)] == ["shared"]
    check(kernel, p, 0, False)
    check(kernel, p, 0, True)
    (meeting,) = found(p, Barrier)
    wrong = edited(p, {meeting: block()})
    with pytest.raises(RuntimeError, match=r"no fence\.proxy\.async since"):
        check(kernel, wrong, 0, True)
