"""The cost of a tile of a product on a SIMT machine: closed forms and all their constants.

`traffic` returns, for each access of a block in a step, the number of requests of warps and the
cost of each: sectors of device memory, or transactions of the banks of shared memory. Constants are
from NVIDIA's documents of its architectures, and have not been measured here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from itertools import product as points
from typing import Final, NamedTuple

from tilewright.compute.nodes import Dim
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Expr, Load
from tilewright.expr.swizzle import swizzled
from tilewright.graph.blocks import BlockCosts
from tilewright.loops.passes.shared_room import room_for
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.tiling import AXES, Tiling

WORD: Final = 4  # bytes of a bank of shared memory, and of a register
SECTOR: Final = 32  # bytes that come from the device's memory together
OWN_REGISTERS: Final = 24  # of a thread, for addresses and loops
LATENCY: Final = 500.0  # nanoseconds until a load from the device's memory arrives
# Nanoseconds of a barrier, including the wait for the slowest thread.
SYNC: Final = 20.0
IN_FLIGHT: Final = 16  # multiply-adds of warps that keep a unit busy
USUAL_WARP: Final = 32  # threads
ALONE: Final = 3  # instructions of a multiply-add whose operands are both loaded for it
GAIN: Final = 1.1  # tiles are for products that they make faster by so much
SEEN: Final = 2  # warps of a phase that are looked at: the others are like them
STAGES: Final = (1, 2, 3, 4)  # tiles of an operand that a block may have at once
ROOMS: Final = (0, 1, 4)  # elements between rows of a tile that may be tried


class WarpRequest(NamedTuple):
    """Accesses of one kind that a block makes in one step.

    memory: "global" or "shared". requests: each of one warp. turns: of each request:
    sectors, or turns of the banks.
    """

    memory: str
    requests: int
    turns: int


class BlockResources(NamedTuple):
    """The resources of a block, and how many blocks a unit runs at once."""

    registers: int
    shared: int
    blocks: int


def in_step(machine: SimtMachine) -> int:
    """The threads that access memory together; for an unknown GPU the usual number."""
    return machine.warp if machine.warp > 1 else USUAL_WARP


def block_costs(machine: SimtMachine) -> BlockCosts:
    """What a write takes that waits for the one before, and what all units do in the meantime."""
    compared = machine.units * machine.rate * LATENCY
    return BlockCosts(beside=in_step(machine), compared=int(compared))


def sectors(addresses: Iterable[int], size: int = WORD) -> int:
    """How many sectors hold `size` bytes at each of these addresses."""
    return len({(a + n) // SECTOR for a in addresses for n in range(0, size, WORD)})


def bank_turns(addresses: Sequence[int], banks: int, size: int = WORD) -> int:
    """The transactions of banked memory for `size` bytes at the address of each thread.

    A word is read once for all threads. Threads that access more than a word each are served in
    groups that access one word per bank: half or quarter warps.
    """
    group = banks * WORD // max(size, WORD)
    return sum(
        _group_turns(addresses[start : start + group], banks, size)
        for start in range(0, len(addresses), group)
    )


def _group_turns(addresses: Iterable[int], banks: int, size: int) -> int:
    words = {(a + n) // WORD for a in addresses for n in range(0, size, WORD)}
    held = [0] * banks
    for word in words:
        held[word % banks] += 1
    return max(held)


def shared_bytes(plan: Tiling, rooms: Mapping[Load, int], stages: int) -> int:
    """Bytes of a block's shared memory."""
    total = 0
    for read, room in rooms.items():
        *outer, inner = plan.box(read) or (1,)
        size = math.prod(outer) * (inner + room) * read.dtype.itemsize
        total += room_for(size * stages)
    return total


def held(plan: Tiling, machine: SimtMachine, shared: int) -> BlockResources:
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
    return BlockResources(registers, shared, min(room))


def padding(plan: Tiling, read: Load, machine: SimtMachine) -> int:
    """The room between rows of an operand's tile that takes the fewest turns of the banks, and of
    such the fewest requests."""

    def asked(room: int) -> tuple[int, int]:
        found = store_request(plan, read, room, machine)
        both = (found, read_request(plan, read, room, machine))
        return sum(r.requests * r.turns for r in both), found.requests

    return min(ROOMS, key=asked)


def fetch_width(plan: Tiling, read: Load, room: int, machine: SimtMachine) -> int:
    """Neighboring elements of an operand's tile that a thread copies at once.

    A power of two that divides rows of the tile, their starts, and rows of the tensor, so that each
    group is aligned in both memories, and either entirely inside the tensor or entirely outside.
    """
    b, box = read.buffer, plan.box(read)
    wide = [
        n for n, extent in enumerate(box) if b.static and (extent, b.shape[n]) != (1, 1)
    ]
    if machine.warp == 1 or not wide or (room and wide[-1] != len(box) - 1):
        return 1
    last = wide[-1]
    row = affine(read.index[last])
    if any(c < 0 for _, c in row.terms):
        return 1
    steps: dict[Expr, int] = {d.var: n for d, n in plan.sizes.items() if n < d.extent}
    starts = [row.const, *(c * steps.get(v, 0) for v, c in row.terms)]
    of_tensor = b.strides[last - 1] if last else b.shape[last]
    most = max(machine.vector_bytes // b.dtype.itemsize, 1)
    inner = box[last]
    common = math.gcd(inner, inner + room, of_tensor, *starts)
    return math.gcd(common, 1 << (most.bit_length() - 1))


def traffic(
    plan: Tiling, machine: SimtMachine, rooms: Mapping[Load, int]
) -> Iterator[WarpRequest]:
    """The memory traffic of a block's step: fetch both tiles, store them, read them."""
    for read, room in rooms.items():
        yield from copies(plan, read, room, machine)
        yield read_request(plan, read, room, machine)


def copies(
    plan: Tiling, read: Load, room: int, machine: SimtMachine, swizzle: int = 0
) -> tuple[WarpRequest, WarpRequest]:
    """The requests that copy an operand's tile into shared memory in a step."""
    return (
        fetch_request(plan, read, room, machine),
        store_request(plan, read, room, machine, swizzle),
    )


def fetch_request(
    plan: Tiling, read: Load, room: int, machine: SimtMachine
) -> WarpRequest:
    """The loads of an operand's tile from the device's memory, at an even address."""
    strides = tuple(read.buffer.strides)
    size, count, places = _copied(plan, read, room, strides, machine)
    worst = max((sectors(a, size) for a in places), default=0)
    return WarpRequest("global", count, worst)


def store_request(
    plan: Tiling, read: Load, room: int, machine: SimtMachine, swizzle: int = 0
) -> WarpRequest:
    """The stores of fetched tiles into shared memory. swizzle: as of a buffer."""
    strides = _pitched(plan, read, room)
    size, count, places = _copied(plan, read, room, strides, machine)
    stored = [[swizzled(byte, swizzle) for byte in warp] for warp in places]
    worst = max((bank_turns(a, machine.banks, size) for a in stored), default=0)
    return WarpRequest("shared", count, worst)


def _copied(
    plan: Tiling,
    read: Load,
    room: int,
    strides: tuple[int, ...],
    machine: SimtMachine,
) -> tuple[int, int, tuple[tuple[int, ...], ...]]:
    """Bytes per thread, requests, and addresses of the first warps, for a tile's copy."""
    width = fetch_width(plan, read, room, machine)
    size, box = read.dtype.itemsize, plan.box(read)
    places = _places(box, strides, size, in_step(machine), width)
    count = -(-math.prod(box) // (in_step(machine) * width))
    return width * size, count, places


def read_request(
    plan: Tiling, read: Load, room: int, machine: SimtMachine
) -> WarpRequest:
    """The loads of an operand by all threads, for the products of one step.

    Each element that a thread needs is loaded once, and stays in a register.
    """
    steps = tile_steps(plan, read, room)
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
    return WarpRequest("shared", count, bank_turns(lanes, machine.banks, size))


def tile_steps(plan: Tiling, read: Load, room: int) -> dict[Expr, int]:
    """Elements in an operand's tile from one iteration of a dimension to the next."""
    strides = _pitched(plan, read, room)
    return {
        v: sum(
            s * affine(i).coefficient(v)
            for s, i in zip(strides, read.index, strict=True)
        )
        for v in (d.var for d in plan.sizes)
    }


def _by_axis(plan: Tiling) -> Mapping[str, Dim]:
    return {s.axis: d for d, s in plan.shares.items() if s.axis in AXES}


def _warps(plan: Tiling, machine: SimtMachine) -> int:
    return -(-plan.block_threads // in_step(machine))


def _pitched(plan: Tiling, read: Load, room: int) -> tuple[int, ...]:
    """Elements from one index of an operand's tile to the next, by dimension."""
    steps = [1]
    box = plan.box(read)
    for n, extent in enumerate(reversed(box[1:])):
        steps.insert(0, steps[0] * (extent + (room if n == 0 else 0)))
    return tuple(steps) if box else ()


@cache
def _places(
    box: tuple[int, ...], strides: tuple[int, ...], size: int, warp: int, width: int
) -> tuple[tuple[int, ...], ...]:
    """The byte offset of each thread's `width` elements, for each of the first warps: threads
    traverse a tile in order."""
    numbers = points(*(range(n) for n in box))
    total = min(math.prod(box), SEEN * warp * width)
    places = tuple(
        size * sum(i * s for i, s in zip(number, strides, strict=True))
        for number in islice(numbers, 0, total, width)
    )
    return tuple(places[n : n + warp] for n in range(0, len(places), warp))
