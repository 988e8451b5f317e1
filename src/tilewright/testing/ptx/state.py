"""The state of a grid's threads while they run a PTX kernel: registers and memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from tilewright.testing.ptx.arithmetic import TYPES, Array
from tilewright.testing.ptx.async_proxy import AsyncProxy
from tilewright.testing.ptx.boxes import BoxesInFlight, EncodedMap
from tilewright.testing.ptx.clusters import Extents, clusters_of
from tilewright.testing.ptx.copies import CopiesInFlight
from tilewright.testing.ptx.memory import CallerMemory
from tilewright.testing.ptx.peer_memory import RANK, PeerMemory
from tilewright.testing.ptx.text import PtxKernel, names_in
from tilewright.testing.ptx.traffic import WarpTraffic

WARP: Final = 32
# Addresses of a block's memory begin there, a thread's at twice that.
_SPACE: Final = 1 << 40
_CONSTANT: Final = 4 * _SPACE  # behind the addresses of parameters
_CLUSTER: Final = (
    5  # times _SPACE: addresses of shared memory of all blocks of a cluster
)
_PLACE: Final = re.compile(r"\[([^\]+]+)(?:\+(-?\d+))?\]")
_HEX: Final = re.compile(r"0([fFdD])([0-9A-Fa-f]+)")
_UNSET: Final = np.uint64((1 << 64) - 1)


class ThreadState:
    """The state of all threads of a grid."""

    def __init__(
        self,
        kernel: PtxKernel,
        grid: Extents,
        threads: Extents,
        memory: CallerMemory,
        arguments: Sequence[int | EncodedMap],
        dynamic: int,
        constants: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        self.kernel = kernel
        self.memory = memory
        self.traffic: WarpTraffic | None = None
        self.per_block = prod(threads)
        self.count = prod(grid) * self.per_block
        number = np.arange(self.count)
        self.block = number // self.per_block
        self.thread = number % self.per_block
        self.special = {
            **_axes("%ctaid", self.block, grid),
            **_axes("%tid", self.thread, threads),
        }
        given = dict(zip(kernel.params, arguments, strict=True))
        self.params = {n: x for n, x in given.items() if isinstance(x, int)}
        self.maps = {n: x for n, x in given.items() if isinstance(x, EncodedMap)}
        self.places: dict[str, int] = {}
        shared = self.lay(kernel.shared, _SPACE, dynamic)
        self.lay(dict.fromkeys(kernel.params, 8), 3 * _SPACE, 0)
        local = self.lay(kernel.local, 2 * _SPACE, 0)
        self.constant = np.zeros(self.lay(kernel.const, _CONSTANT, 0), np.uint8)
        for name, held in constants.items():
            start = self.places[name] - _CONSTANT
            self.constant[start : start + held.size] = held
        self.shared = np.zeros((prod(grid), shared), np.uint8)
        self.local = np.zeros((self.count, local), np.uint8)
        self.clusters = clusters_of(grid, kernel.cluster, self.per_block, shared)
        self.peers = self.peer_memory()
        self.registers: dict[str, Array] = {}
        self.pc = np.zeros(self.count, np.int64)
        self.waiting = np.zeros(self.count, bool)
        self.asked = np.zeros(self.count, bool)  # for a box, in vain
        self.barrier = np.zeros(self.count, np.int64)  # that each waits at
        self.copies = CopiesInFlight(np.zeros(self.count, int))
        self.proxy: AsyncProxy | None = None
        products = [i for i in kernel.code if i.op.startswith("wgmma.mma_async")]
        self.boxes: BoxesInFlight | None = None
        copies = any(i.op.startswith("cp.async.bulk") for i in kernel.code)
        if products or copies:
            writer = np.zeros(self.shared.shape, np.int32)
            names = {name for i in products for name in names_in(i.operands[0])}
            unfenced = {name: np.zeros(self.count, bool) for name in names}
            self.proxy = AsyncProxy(writer, np.zeros(self.count, int), unfenced)
            if copies:
                self.boxes = BoxesInFlight(
                    memory.bytes,
                    self.shared,
                    self.proxy,
                    self.per_block,
                    self.clusters,
                )

    def peer_memory(self) -> PeerMemory | None:
        """What is kept of memory that blocks of a cluster read of one another, if some do."""
        code = self.kernel.code
        if not any(i.op.startswith("mapa") for i in code):
            return None
        shape = self.shared.shape
        written = np.zeros(shape, np.int32)
        used = np.zeros(shape, np.int32)
        return PeerMemory(self.clusters, self.block, written, used)

    def lay(
        self,
        arrays: dict[str, int],
        base: int,
        dynamic: int,
    ) -> int:
        at = 0
        for name, size in arrays.items():
            alignment = self.kernel.alignments.get(name, 16)
            at = -(-at // alignment) * alignment
            self.places[name] = base + at
            at += -(-(size or dynamic) // 16) * 16
        return at

    def get(
        self,
        operand: str,
        kind: str,
        who: Array,
    ) -> Array:
        type = TYPES[kind]
        if operand in self.special:
            return self.special[operand][who].astype(type)
        if operand.startswith("%"):
            raw = self.register(operand)[who]
            if self.proxy is not None:
                self.proxy.touched(operand, who, False)
            if kind == "pred":
                return raw.astype(bool)
            bits = np.dtype(type).itemsize * 8
            dtype = getattr(np, f"uint{bits}")
            return raw.astype(dtype).view(type)
        filler = self.number(operand, type)
        return np.full(who.size, filler, type)

    def number(self, operand: str, type: Any) -> Any:
        if operand in self.places:
            return type(self.places[operand])
        if found := _HEX.fullmatch(operand):
            bits = int(found[2], 16)
            kind = found[1].lower()
            if kind == "f":
                return np.uint32(bits).view(type)
            return np.uint64(bits).view(type)
        size = np.dtype(type).itemsize * 8
        value = int(operand.removesuffix("U"), 0) & (1 << size) - 1
        return np.array(value, f"uint{size}").view(type)[()]

    def register(self, name: str) -> Array:
        """The register of each thread; initially a bit pattern that is NaN in every float
        format."""
        if name not in self.registers:
            self.registers[name] = np.full(self.count, _UNSET, np.uint64)
        return self.registers[name]

    def set(
        self,
        register: str,
        value: Array,
        who: Array,
    ) -> None:
        held = self.register(register)
        value = np.broadcast_to(value, who.shape)
        if self.proxy is not None:
            self.proxy.touched(register, who, True)
        if value.dtype == bool:
            held[who] = value
            return
        bits = 8 * value.dtype.itemsize
        raw = np.ascontiguousarray(value).view(f"uint{bits}")
        held[who] = raw.astype(np.uint64)

    def warps(self, who: Array) -> Array:
        """A number for the warp of each thread."""
        of_block = -(-self.per_block // WARP)
        found: Array = self.block[who] * of_block + self.thread[who] // WARP
        return found

    def wrote(
        self,
        at: Array,
        size: int,
        who: Array,
    ) -> None:
        """Threads have written `size` bytes each."""
        if self.proxy is not None and at.size and at[0] // np.uint64(_SPACE) == 1:
            first = (at % np.uint64(_SPACE)).astype(np.int64)
            self.proxy.wrote(self.block[who], first[:, None] + np.arange(size), who)
        if self.peers is not None and self.is_shared(at):
            home, first = self.place_in_cluster(at, who)
            self.peers.wrote(home, first[:, None] + np.arange(size), who)

    def is_shared(self, at: Array) -> bool:
        """Whether addresses are in shared memory, of the own block or of the cluster."""
        return bool(at.size) and int(at[0]) // _SPACE in (1, _CLUSTER)

    def is_of_cluster(self, at: Array) -> bool:
        """Whether addresses say of which block of the cluster the memory is."""
        return bool(at.size) and int(at[0]) // _SPACE == _CLUSTER

    def mapped(
        self,
        at: Array,
        rank: Array,
    ) -> Array:
        """The addresses of the same places in the memory of blocks of the cluster."""
        place = at % np.uint64(RANK)
        start = rank.astype(np.uint64) * np.uint64(RANK)
        space = np.uint64(_CLUSTER * _SPACE)
        found: Array = space + start + place
        return found

    def place_in_cluster(
        self,
        at: Array,
        who: Array,
    ) -> tuple[Array, Array]:
        """The block that has each address in shared memory, and where it is there."""
        first = (at % np.uint64(_SPACE)).astype(np.int64)
        if self.peers is None or not self.is_of_cluster(at):
            return self.block[who], first
        return self.peers.home(first // RANK, who), first % RANK

    def address(
        self,
        place: str,
        width: int,
        who: Array,
    ) -> Array:
        """The address of an access of `width` bytes."""
        found = _PLACE.fullmatch(place)
        assert found is not None
        offset = int(found[2] or 0) % (1 << 64)
        at: Array = self.get(found[1], "u64", who) + np.uint64(offset)
        if (at % np.uint64(width)).any():
            raise IndexError(f"{self.kernel.name}: a misaligned access")
        return at

    def elsewhere(self, at: Array) -> Array:
        """Which addresses are in other memory than the first one."""
        spaces = at // np.uint64(_SPACE)
        found: Array = spaces != spaces[:1]
        return found

    def note(
        self,
        writes: bool,
        at: Array,
        width: int,
        who: Array,
    ) -> None:
        """Count a memory request."""
        if self.traffic is None or not who.size:
            return
        space = int(at[0] // np.uint64(_SPACE))
        first = at % np.uint64(RANK if space == _CLUSTER else _SPACE)
        lanes = self.thread[who] % WARP
        self.traffic.note(space, writes, first, width, (self.warps(who), lanes))

    def map_at(self, place: str, who: Array) -> EncodedMap:
        """The description of a box whose address is an operand."""
        at = int(self.address(place, 1, who)[0])
        found = {self.places[name]: of for name, of in self.maps.items()}
        return found[at]

    def place_in_block(self, place: str, who: Array) -> Array:
        """Where an operand is in the shared memory of a block."""
        at = self.address(place, 1, who) % np.uint64(_SPACE)
        return at.astype(np.int64)

    def param(self, place: str, who: Array) -> Array:
        """The argument of a parameter, by name or by an address in a register."""
        match = _PLACE.fullmatch(place)
        assert match is not None
        place = match[1]
        if not place.startswith("%"):
            filler = self.params[place]
            return np.full(who.size, filler, np.uint64)
        found = {self.places[name]: value for name, value in self.params.items()}
        at = self.get(place, "u64", who).tolist()
        return np.array([found[address] for address in at], np.uint64)

    def bytes_of(
        self,
        at: Array,
        size: int,
        who: Array,
    ) -> tuple[Array, tuple[Array, ...]]:
        """The bytes of each thread: an array, and indices into it."""
        spaces = at // np.uint64(_SPACE)
        space = int(spaces[0])
        if (spaces != space).any():
            raise NotImplementedError("threads that access different spaces at once")
        first = (at % np.uint64(_SPACE)).astype(np.int64)
        inside = first[:, None] + np.arange(size)
        if space == 0:
            self.check_global(inside)
            return self.memory.bytes, (inside,)
        if self.is_constant(at):
            if inside.max() >= self.constant.size:
                raise IndexError(f"{self.kernel.name}: outside constant memory")
            return self.constant, (inside,)
        if space in (1, _CLUSTER):
            memory = self.shared
            row, first = self.place_in_cluster(at, who)
            inside = first[:, None] + np.arange(size)
            if self.boxes is not None:
                self.boxes.touched(row, inside, who)
        else:
            memory = self.local
            row = who
        if inside.max() >= memory.shape[1]:
            raise IndexError(f"{self.kernel.name}: an access outside a block's memory")
        if space in (1, _CLUSTER):
            self.clusters.use(row, inside, who)
        return memory, (row[:, None], inside)

    def is_constant(self, at: Array) -> bool:
        """Whether addresses are in constant memory."""
        return bool(at.size) and int(at[0]) // _SPACE == _CONSTANT // _SPACE

    def check_global(self, places: Array) -> None:
        valid = self.memory.valid
        is_far = places >= valid.size
        if is_far.any() or not valid[places].all():
            raise IndexError(f"{self.kernel.name}: an access outside an array")


def _axes(
    name: str,
    number: Array,
    extents: Extents,
) -> dict[str, Array]:
    found = {}
    for axis, extent in zip("xyz", extents, strict=True):
        found[f"{name}.{axis}"] = number % extent
        number = number // extent
    return found
