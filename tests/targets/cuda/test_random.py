"""Random GPU schedules as PTX: what the interpreter of PTX computes is what the kernel did."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tilewright.base.errors import ScheduleError, UnsupportedError
from tilewright.loops import interp
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import code_of
from tilewright.testing.ptx.device import load
from tilewright.testing.random_launches import random_launch
from tilewright.testing.random_programs import random_arrays
from tilewright.testing.schedule_runs import program

SM80 = machine("sm_80")


def check(seed: int) -> bool:
    """Whether the program of a seed has launches; they agree with it then."""
    kernel = random_launch(random.Random(seed), program(seed))
    try:
        launches = to_launches(kernel, 32)
        text = ptx(launches, SM80, contract=False)
    except (ScheduleError, UnsupportedError):
        return False
    arrays = random_arrays(kernel, seed)
    flat = [np.ascontiguousarray(arrays[b]) for b in kernel.params]
    load(code_of(launches, text, SM80).to_bytes())(
        [a.reshape(-1).view(np.uint8) for a in flat], False
    )
    interp.run(kernel, arrays)
    for b, ours in zip(kernel.params, flat, strict=True):
        wanted = arrays[b]
        if wanted.dtype.kind in "iub":
            np.testing.assert_array_equal(ours, wanted, err_msg=f"{seed} {b.name}")
        else:
            np.testing.assert_allclose(
                ours, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{seed} {b.name}"
            )
    return True


BATCHES = [
    pytest.param(range(n, n + 30), marks=pytest.mark.slow) for n in range(0, 240, 30)
]


@pytest.mark.parametrize("seeds", [range(15), *BATCHES], ids=str)
def test_random_launches_do_as_ptx_what_their_kernels_did(seeds):
    assert sum(map(check, seeds)) >= len(seeds) * 2 // 3
