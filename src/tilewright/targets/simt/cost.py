"""What a tile of a product costs on a SIMT machine: closed forms, and every constant of them.

`traffic` says, for each of the accesses that a block makes in a step, how many requests a warp
makes and what each of them takes: sectors of the device's memory, or turns of the banks of shared
memory. Constants are from NVIDIA's documents of its architectures, and have not been measured here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from itertools import product as points
from typing import Final, NamedTuple

from tilewright.compute.nodes import Dim
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Load
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.tiling import AXES, Tiling

WORD: Final = 4  # bytes of a bank of shared memory, and of a register
SECTOR: Final = 32  # bytes that come from the device's memory together
OWN_REGISTERS: Final = 24  # of a thread, for addresses and loops
LATENCY: Final = 500.0  # nanoseconds until a load from the device's memory arrives
# Nanoseconds of a barrier, with all that threads wait for each other.
SYNC: Final = 20.0
IN_FLIGHT: Final = 16  # multiply-adds of warps that keep a unit busy
USUAL_WARP: Final = 32  # threads
ALONE: Final = 3  # instructions of a multiply-add whose operands are both loaded for it
GAIN: Final = 1.1  # tiles are for products that they make faster by so much
SEEN: Final = 2  # warps of a phase that are looked at: the others are like them
ROOMS: Final = (0, 1, 4)  # elements between rows of a tile that may be tried


class Request(NamedTuple):
    """Accesses of one kind that a block makes in one step.

    memory: "global" or "shared". requests: each of one warp. turns: of each request:
    sectors, or turns of the banks.
    """

    memory: str
    requests: int
    turns: int


class Held(NamedTuple):
    """What a block has, and how many a unit runs at once."""

    registers: int
    shared: int
    blocks: int


def in_step(machine: SimtMachine) -> int:
    """The threads that access memory together; of an unknown GPU as many as most have."""
    return machine.warp if machine.warp > 1 else USUAL_WARP


def sectors(addresses: Iterable[int]) -> int:
    """How many sectors hold these bytes."""
    return len({a // SECTOR for a in addresses})


def bank_turns(addresses: Iterable[int], banks: int) -> int:
    """The turns that banks take for the words of these bytes; one word is read once for all."""
    words = {a // WORD for a in addresses}
    held = [0] * banks
    for word in words:
        held[word % banks] += 1
    return max(held, default=0)


def shared_bytes(plan: Tiling, rooms: Mapping[Load, int], stages: int) -> int:
    """Bytes of a block's shared memory."""
    total = 0
    for read, room in rooms.items():
        *outer, inner = plan.box(read) or (1,)
        total += math.prod(outer) * (inner + room) * read.dtype.itemsize
    return total * stages


def held(plan: Tiling, machine: SimtMachine, shared: int) -> Held:
    """Registers of a thread, bytes of a block, and the blocks that a unit has room for."""
    p = plan.product
    rows, columns = plan.each(p.rows), plan.each(p.columns)
    words = -(-p.itemsize // WORD)
    registers = rows * columns * words + rows + columns + OWN_REGISTERS
    threads = plan.block_threads
    room = [machine.unit_threads // threads, machine.unit_blocks]
    room.append(machine.registers // (registers * threads))
    if shared:
        room.append(machine.shared // shared)
    return Held(registers, shared, min(room))


def padding(plan: Tiling, read: Load, machine: SimtMachine) -> int:
    """The room between rows of an operand's tile that takes the fewest turns of the banks."""

    def turns(room: int) -> int:
        found = (store_request(plan, read, room, machine),)
        both = (*found, read_request(plan, read, room, machine))
        return sum(r.requests * r.turns for r in both)

    return min(ROOMS, key=turns)


def traffic(
    plan: Tiling, machine: SimtMachine, rooms: Mapping[Load, int]
) -> Iterator[Request]:
    """What a block does in one step: fetch both tiles, store them, read them."""
    for read, room in rooms.items():
        yield fetch_request(plan, read, machine)
        yield store_request(plan, read, room, machine)
        yield read_request(plan, read, room, machine)


def fetch_request(plan: Tiling, read: Load, machine: SimtMachine) -> Request:
    """The loads of an operand's tile from the device's memory, at an even address."""
    b = read.buffer
    strides = tuple(b.strides)
    places = _places(plan.box(read), strides, b.dtype.itemsize, in_step(machine))
    worst = max((sectors(a) for a in places), default=0)
    return Request("global", _fetches(plan, read, machine), worst)


def store_request(plan: Tiling, read: Load, room: int, machine: SimtMachine) -> Request:
    """The stores of what was fetched into shared memory."""
    strides, size = _pitched(plan, read, room), read.dtype.itemsize
    places = _places(plan.box(read), strides, size, in_step(machine))
    worst = max((bank_turns(a, machine.banks) for a in places), default=0)
    return Request("shared", _fetches(plan, read, machine), worst)


def read_request(plan: Tiling, read: Load, room: int, machine: SimtMachine) -> Request:
    """The loads of an operand by all threads, for the products of one step.

    Each element that a thread needs is loaded once, and stays in a register.
    """
    strides = _pitched(plan, read, room)
    steps = {
        v: sum(
            s * affine(i).coefficient(v)
            for s, i in zip(strides, read.index, strict=True)
        )
        for v in (d.var for d in plan.sizes)
    }
    axes = _by_axis(plan)
    size = read.dtype.itemsize
    lanes = []
    for number in range(min(in_step(machine), plan.block_threads)):
        place, rest = 0, number
        for axis, n in plan.threads.items():
            place += steps[axes[axis].var] * (rest % n)
            rest //= n
        lanes.append(place * size)
    used = {v for i in read.index for v, _ in affine(i).terms}
    mine = [d for d in plan.shares if d.var in used]
    count = plan.each(mine) * plan.depth * _warps(plan, machine)
    return Request("shared", count, bank_turns(lanes, machine.banks))


def _by_axis(plan: Tiling) -> Mapping[str, Dim]:
    return {s.axis: d for d, s in plan.shares.items() if s.axis in AXES}


def _warps(plan: Tiling, machine: SimtMachine) -> int:
    return -(-plan.block_threads // in_step(machine))


def _fetches(plan: Tiling, read: Load, machine: SimtMachine) -> int:
    return -(-math.prod(plan.box(read)) // in_step(machine))


def _pitched(plan: Tiling, read: Load, room: int) -> tuple[int, ...]:
    """Elements from one index of an operand's tile to the next, by dimension."""
    steps = [1]
    box = plan.box(read)
    for n, extent in enumerate(reversed(box[1:])):
        steps.insert(0, steps[0] * (extent + (room if n == 0 else 0)))
    return tuple(steps) if box else ()


@cache
def _places(
    box: tuple[int, ...], strides: tuple[int, ...], size: int, warp: int
) -> tuple[tuple[int, ...], ...]:
    """The bytes that each of the first warps touches, of a tile that they go through in order."""
    numbers = points(*(range(n) for n in box))
    total = min(math.prod(box), SEEN * warp)
    places = tuple(
        size * sum(i * s for i, s in zip(number, strides, strict=True))
        for number in islice(numbers, total)
    )
    return tuple(places[start : start + warp] for start in range(0, total, warp))
