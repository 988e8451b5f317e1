"""The constants of a model in one block, each written once and in place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.distinct import DistinctArrays
from tilewright.base.dtypes import dtype_of
from tilewright.runtime import abi
from tilewright.runtime.buffer import arena, bytes_of
from tilewright.runtime.packed import MOST_GROWTH, Constants, PackedConstant
from tilewright.runtime.packing import Packing
from tilewright.runtime.threads import available

_ALONE: Final = 1 << 20  # bytes that one thread writes before another has started
# How many times its bytes a file may have of a weight: what is packed anew is not mapped, and so
# not shared by processes. 64-element tiles of few rows take up to 1.2 times as much (LeNet).
WORTH: Final = 1.25
MOST: Final = MOST_GROWTH / 2  # times, so that no file is refused with all its padding
LEAST: Final = 16 << 10  # bytes saved; the packing itself takes up to 2 KiB of a file

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, Any]
Fill = Callable[[Sequence[Bytes]], None]


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight, and the packing that turns it into a constant."""

    weight: Array
    packing: Packing
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the constant."""
        return self.packing.size * dtype_of(self.dtype).itemsize


class ConstantPool:
    """Lays out constants: `place` returns their offsets, `block` writes their contents.

    Equal constants have one place, also those of several models that share a pool.
    """

    def __init__(self) -> None:
        self.arrays = DistinctArrays()
        self._plain: dict[int, int] = {}  # by the identity of an array
        self._packed: list[tuple[int, PackedWeight]] = []
        self._offsets: dict[Hashable, tuple[int, ...]] = {}
        self._fills: list[tuple[tuple[int, ...], tuple[int, ...], Fill]] = []
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes of all constants placed so far."""
        return self._size

    def place(self, key: Hashable, sizes: Sequence[int], fill: Fill) -> tuple[int, ...]:
        """Place constants of these sizes, once per key, and return their byte offsets.

        requires: equal keys have equal sizes and contents. fill: writes every byte of the views and
        no other byte; it may run concurrently with others, in another thread.
        """
        if key not in self._offsets:
            offsets = []
            for size in sizes:
                offsets.append(self._size)
                self._size += -(-size // abi.ALIGNMENT) * abi.ALIGNMENT
            self._offsets[key] = tuple(offsets)
            self._fills.append((tuple(offsets), tuple(sizes), fill))
        return self._offsets[key]

    def place_array(self, array: Array) -> int:
        """The byte offset of an array's elements in row-major order."""
        array = self.arrays.first(array)

        def fill(views: Sequence[Bytes]) -> None:
            views[0][:] = bytes_of(np.ascontiguousarray(array))

        at = self.place(id(array), (array.nbytes,), fill)[0]
        self._plain[id(array)] = at
        return at

    def place_packed(self, p: PackedWeight) -> int:
        """The byte offset of a packed weight, one of `arrays`."""

        def fill(views: Sequence[Bytes]) -> None:
            weight = bytes_of(np.ascontiguousarray(p.weight))
            p.packing.run(weight, views[0], dtype_of(p.dtype).numpy)

        key = (p.packing.symbol, id(p.weight))
        if key not in self._offsets:
            self._packed.append((self._size, p))
        return self.place(key, (p.nbytes,), fill)[0]

    def forget(self, size: int) -> None:
        """Drop the constants that were placed since the pool had a size."""
        dropped = [k for k, at in self._offsets.items() if at and at[0] >= size]
        for key in dropped:
            del self._offsets[key]
        self._plain = {k: at for k, at in self._plain.items() if at < size}
        self._packed = [item for item in self._packed if item[0] < size]
        self._fills = [item for item in self._fills if item[0] and item[0][0] < size]
        self._size = size

    def held(self) -> Constants:
        """All constants, and the form in which a file stores them."""
        return Constants(self.block(), *self._packed_anew())

    def _packed_anew(self) -> tuple[tuple[PackedConstant, ...], tuple[Bytes, ...]]:
        """The constants that a file stores as weights instead, and those weights.

        These are constants that take more than `WORTH` times the bytes of their weight, and at most
        `MOST` times, including the weight itself if kernels read it.
        """
        made: dict[int, list[tuple[int, PackedWeight]]] = {}
        for item in self._packed:
            made.setdefault(id(item[1].weight), []).append(item)
        found: list[PackedConstant] = []
        weights: list[Bytes] = []
        for number, items in made.items():
            weight = items[0][1].weight
            total = sum(p.nbytes for _, p in items)
            plain = self._plain.get(number)
            if plain is not None:
                total += weight.nbytes
            if total - weight.nbytes < LEAST:
                continue
            if not WORTH < total / weight.nbytes <= MOST:
                continue
            if plain is None:
                plain = -1 - len(weights)
                weights.append(bytes_of(np.ascontiguousarray(weight)))
            for at, p in items:
                found.append(
                    PackedConstant(at, plain, weight.nbytes, p.dtype, p.packing)
                )
        return tuple(sorted(found, key=lambda p: p.at)), tuple(weights)

    def block(self) -> Bytes:
        """All constants in one block; padding is zero, so that artifacts are reproducible.

        A large block is on huge pages: products that read each weight once take up to a third less
        time than on small pages, which reused memory may have. The fills of a large block run in
        several threads.
        """
        block = arena(self._size)

        def write(offsets: Sequence[int], sizes: Sequence[int], fill: Fill) -> None:
            for at, size in zip(offsets, sizes, strict=True):
                block[at + size : at + -(-size // abi.ALIGNMENT) * abi.ALIGNMENT] = 0
            fill([block[at : at + n] for at, n in zip(offsets, sizes, strict=True)])

        if self._size < _ALONE:
            for item in self._fills:
                write(*item)
        else:
            with ThreadPoolExecutor(available()) as pool:
                list(pool.map(lambda item: write(*item), self._fills))
        return block
