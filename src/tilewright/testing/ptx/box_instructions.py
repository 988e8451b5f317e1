"""The instructions of boxes: `mbarrier` and `cp.async.bulk.tensor`, one thread after another.

A copy with a mask (`multicast::cluster`) is one into the memory of each block of the cluster whose
bit is set, at the same place, where the mbarrier at the same place counts it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from tilewright.testing.ptx.arithmetic import Array
from tilewright.testing.ptx.state import ThreadState

_SOURCE: Final = re.compile(r"\[(\S+), \{(.*)\}\]")


def run_boxes(
    state: ThreadState, modes: Sequence[str], operands: Sequence[str], who: Array
) -> None:
    """Run an instruction. Raises RuntimeError as `BoxesInFlight`."""
    rule = _RULES.get(modes[0])
    if rule is None or state.boxes is None:
        raise NotImplementedError(f"PTX mbarrier.{'.'.join(modes)}, or with no boxes")
    for one in np.split(who, who.size):
        rule(state, operands, one)


def _copy(state: ThreadState, operands: Sequence[str], one: Array) -> None:
    target, source, counted, *mask = operands
    found = _SOURCE.fullmatch(source)
    assert found is not None and state.boxes is not None
    coordinates: list[int] = []
    for name in found[2].split(","):
        value = state.get(name.strip(), "s32", one)
        coordinates.insert(0, int(value[0]))
    thread = int(one[0])
    barrier = _place(state, counted, one)
    of = state.map_at(f"[{found[1]}]", one)
    block = _block(state, one)
    blocks = [block]
    if mask:
        bits = state.get(mask[0], "b16", one)
        blocks = state.clusters.in_mask(block, int(bits[0]))
    if state.traffic is not None:
        state.traffic.boxes += of.nbytes
    for into in blocks:
        state.boxes.start(
            into,
            (barrier, thread),
            of,
            tuple(coordinates),
            _place(state, target, one),
        )


def _init(state: ThreadState, operands: Sequence[str], one: Array) -> None:
    place, count = operands
    assert state.boxes is not None
    number = int(state.get(count, "u32", one)[0])
    at = _place(state, place, one)
    state.boxes.make(_block(state, one), at, int(one[0]), number)


def _expect(state: ThreadState, operands: Sequence[str], one: Array) -> None:
    place, count = operands
    assert state.boxes is not None
    at = _place(state, place, one)
    thread = int(one[0])
    barrier = state.boxes.at(_block(state, one), at, thread)
    number = state.get(count, "u32", one)
    barrier.bytes_ += int(number[0])


def _arrive(state: ThreadState, operands: Sequence[str], one: Array) -> None:
    _, place = operands
    assert state.boxes is not None
    at = _place(state, place, one)
    barrier = state.boxes.at(_block(state, one), at, int(one[0]))
    barrier.pending -= 1
    barrier.advance()


def _try_wait(state: ThreadState, operands: Sequence[str], one: Array) -> None:
    result, place, parity = operands
    assert state.boxes is not None
    at = _place(state, place, one)
    turn = state.get(parity, "u32", one)
    block = _block(state, one)
    over = state.boxes.is_over(block, at, int(one[0]), int(turn[0]))
    state.asked[one] = not over
    state.set(result, np.array([over]), one)


def _block(state: ThreadState, one: Array) -> int:
    return int(state.block[one[0]])


def _place(state: ThreadState, operand: str, one: Array) -> int:
    return int(state.place_in_block(operand, one)[0])


_RULES: Final = {
    "async": _copy,
    "init": _init,
    "expect_tx": _expect,
    "arrive": _arrive,
    "try_wait": _try_wait,
}
