"""Parts of sums on tensor cores, of the last wave or of all tiles: which there are, their times."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.targets.cuda.cost import best_stages, time_on_tensor_cores
from tilewright.targets.cuda.machine import WARP, CudaMachine
from tilewright.targets.cuda.tensor_tiling import TensorTiling
from tilewright.targets.simt.last_wave import LastWave, best_wave, last_waves
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.tiles import shared_sums
from tilewright.targets.simt.tiling import Tiling


def tensor_waves(
    t: TensorTiling, machine: CudaMachine, in_boxes: bool = False
) -> list[LastWave]:
    """The forms of the last wave of blocks that are no clusters and do not persist, the fastest
    first. Tensor cores add in their own order, or integers, so sums may be in parts."""
    timed = partial(_launch_time, t, machine, in_boxes)
    return last_waves(t.plan, machine.simt, timed, exact=False)


def best_tensor_wave(
    t: TensorTiling, machine: CudaMachine, in_boxes: bool = False
) -> tuple[LastWave, float | None]:
    """The fastest of these, and its nanoseconds; None if the tiles do not fit the machine."""
    timed = partial(_launch_time, t, machine, in_boxes)
    return best_wave(t.plan, machine.simt, timed, exact=False)


def shared_tensor_sums(t: TensorTiling, simt: SimtMachine) -> list[int]:
    """How many blocks may share the sum of each tile, as of `shared_sums`; 1 alone if nothing else
    is possible.

    Several where warps compute tiles, stored row by row, that fill the results: a warp clears its
    accumulators by instructions for all of them, under no condition.
    """
    is_plain = t.unit.threads == WARP and not t.columns_first
    is_whole = all(d.extent % n.size == 0 for d, n in t.plan.shares.items())
    return shared_sums(t.plan, simt) if is_plain and is_whole else [1]


def _launch_time(
    t: TensorTiling, machine: CudaMachine, in_boxes: bool, plan: Tiling
) -> float | None:
    """Nanoseconds of one launch of tiles, with the best number of stages; None if they do not fit,
    or are no boxes: of two steps of a part, the last one has to be whole for that."""
    own = replace(t, plan=plan)
    if in_boxes and plan.share is not None and plan.steps <= 2:
        if t.along.extent % (plan.steps * t.tile.depth):
            return None
    stages = best_stages(own, machine, in_boxes)
    return time_on_tensor_cores(own, machine, stages, in_boxes)
