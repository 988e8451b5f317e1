"""Random GPU schedules: launches compute the same as the kernels, and no two threads race."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from tests.loops.gpu_kernels import barriers, without_barrier
from tilewright.base.errors import ExecutionError, ScheduleError
from tilewright.loops import interp, launch_interp
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.nodes import Kernel, Update
from tilewright.loops.parser import parse_program
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.walk import walk
from tilewright.testing.random_launches import random_launch
from tilewright.testing.random_programs import random_arrays
from tilewright.testing.schedule_runs import program

BATCHES = 40
LARGE = (27, 150)  # programs that take as long as all others of their hundred


def lowered(seed: int) -> tuple[Kernel, LaunchProgram] | None:
    """The scheduled program of a seed, and its launches; None where it is refused. In those of odd
    seeds buffers share room where they can."""
    kernel = random_launch(random.Random(seed), program(seed))
    try:
        return kernel, to_launches(kernel, own_room=0 if seed % 2 else None)
    except ScheduleError as error:
        assert error.code in ("TW-LAUNCH", "TW-RACE") and error.where and error.hint
        return None


def check(kernel: Kernel, launches: LaunchProgram, seed: int) -> None:
    arrays = random_arrays(kernel, seed)
    wanted = {b: a.copy() for b, a in arrays.items()}
    interp.run(kernel, wanted)
    launch_interp.run(launches, arrays, seed)
    for b in kernel.outputs:
        np.testing.assert_array_equal(
            wanted[b], arrays[b], err_msg=f"{seed}\n{launches}"
        )


def checked(seeds: Iterable[int]) -> Counter[str]:
    """Check the programs of all seeds. Returns how often each feature of the generator occurs."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        found = lowered(seed)
        if found is None:
            seen["refused"] += 1
            continue
        check(*found, seed)
        launches = found[1].launches
        seen["blocks"] += any(launch.grid != (1, 1, 1) for launch in launches)
        seen["threads"] += any(launch.threads != (1, 1, 1) for launch in launches)
        seen["two axes"] += any(min(launch.threads[:2]) > 1 for launch in launches)
        seen["shared"] += any(launch.shared for launch in launches)
        seen["rooms"] += any(launch.places for launch in launches)
        seen["barriers"] += bool(barriers(found[1]))
    return seen


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_300_random_launches_do_what_their_kernels_did(first):
    """Of 100 seeds at least three quarters are lowered, the others refused."""
    seeds = range(first, first + 100)
    seen = checked(seed for seed in seeds if seed not in LARGE)
    assert seen["refused"] <= 25 - sum(seed in seeds for seed in LARGE), seen
    least = {"blocks": 40, "threads": 40, "two axes": 5, "shared": 30, "barriers": 20}
    assert seen["rooms"]
    assert all(seen[what] >= n for what, n in least.items()), seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", LARGE)
def test_a_large_random_launch_does_what_its_kernel_did(seed):
    assert checked([seed])["refused"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_4000_random_launches_do_what_their_kernels_did(batch):
    checked(range(1000 + batch * 100, 1100 + batch * 100))


@pytest.mark.parametrize("seeds", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_a_barrier_that_is_dropped_is_missed(seeds):
    """Affine indices need each barrier; with indices from memory, this run may not."""
    found = []
    for seed in range(500, 500 + seeds):
        made = lowered(seed)
        for n in range(0 if made is None else len(barriers(made[1]))):
            try:
                check(made[0], without_barrier(made[1], n), seed)
            except (ExecutionError, AssertionError):
                found.append(True)
            else:
                found.append(False)
    assert len(found) >= seeds * 2 // 3
    assert sum(found) >= 0.9 * len(found), (sum(found), len(found))


@pytest.mark.parametrize("seeds", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_the_text_of_random_launches_is_read_back(seeds):
    for seed in range(600, 600 + seeds):
        made = lowered(seed)
        if made is not None:
            text = str(made[1])
            updates = (at.stmt for x in made[1].launches for at in walk(x.body))
            named = {
                s.reducer.name: s.reducer for s in updates if isinstance(s, Update)
            }
            assert str(parse_program(text.split("\n"), named)) == text
