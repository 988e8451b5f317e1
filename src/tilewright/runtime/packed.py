"""Constants that a file does not have: they are packed from a weight when it is read.

In memory the constants of a model are one block, as its kernels read them. Some take more bytes
than the weight that they are made of (Winograd's filters, 16 numbers for 9; a weight that kernels
read in two orders). A file then has the weight, and the packing as data. It holds

    the block without such constants, in runs; those of 64 KiB and more begin as far into a page of
        the file as in memory, so that their pages can be mapped
    the weights, each at a multiple of 64 bytes, but for those that are in the block anyway

A file of the model cache has the whole block, to be mapped, and then the weights: nothing is packed
when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import ALL, dtype_of
from tilewright.runtime import abi, schema
from tilewright.runtime.buffer import MAPPED, FilePart, arena_of
from tilewright.runtime.packing import SHAPE, Packing
from tilewright.runtime.threads import available

Block = NDArray[np.uint8]

MOST_GROWTH: Final = 16  # times its bytes: no file asks for more memory
PAGE: Final = 4096
_ALONE: Final = 4 << 20  # bytes that one thread packs before another has started

# The constants of a model in its manifest. block: what the file has of it. weights: bytes of each.
CONSTANTS: Final = {
    "block": schema.OneOf("form of a block", "whole", "unpacked"),
    "bytes": schema.Count,
    "weights": [schema.Count],
    "packings": [SHAPE],
    "packed": [
        (
            schema.Count,
            schema.Integer,
            schema.Count,
            schema.OneOf("dtype", *(dtype.name for dtype in ALL)),
            schema.Count,
        )
    ],
}


@dataclass(frozen=True, slots=True)
class PackedConstant:
    """A constant at byte `at` of the block.

    weight: the byte of the block where its weight is, or -1 - n for weight n of the model.
    """

    at: int
    weight: int
    weight_bytes: int
    dtype: str
    packing: Packing

    @property
    def nbytes(self) -> int:
        """Its own bytes."""
        return self.packing.size * dtype_of(self.dtype).itemsize

    @property
    def end(self) -> int:
        """Where the next constant may be."""
        return self.at + _aligned(self.nbytes)


@dataclass(frozen=True, slots=True)
class Constants:
    """The block, what of it is packed from weights, and those that are not in the block."""

    block: Block
    packed: tuple[PackedConstant, ...] = ()
    weights: tuple[Block, ...] = ()

    def stored_bytes(self, whole: bool = False) -> int:
        """Bytes of what a file has of them; whole: with all of the block."""
        return self._layout(whole).size

    def _layout(self, whole: bool) -> _Layout:
        sizes = list(map(len, self.weights))
        return _Layout.of(len(self.block), () if whole else self.packed, sizes)

    def stored(self, whole: bool = False) -> Iterator[Block]:
        """What a file has of them, one piece after the other; whole: with all of the block.

        The pieces are views: a copy of all would be as much memory again.
        """
        layout = self._layout(whole)
        parts = [(place, self.block[at : at + size]) for at, size, place in layout.runs]
        parts += zip(layout.weights, self.weights, strict=True)
        end = 0
        for place, part in parts:
            yield np.zeros(place - end, np.uint8)
            yield part
            end = place + len(part)
        yield np.zeros(layout.size - end, np.uint8)

    def to_json(self, whole: bool = False) -> dict[str, Any]:
        """As JSON of the shape `CONSTANTS`, of what `stored` yields."""
        packings = list(dict.fromkeys(p.packing for p in self.packed))
        return {
            "block": "whole" if whole or not self.packed else "unpacked",
            "bytes": len(self.block),
            "weights": list(map(len, self.weights)),
            "packings": [p.to_json() for p in packings],
            "packed": [
                [p.at, p.weight, p.weight_bytes, p.dtype, packings.index(p.packing)]
                for p in self.packed
            ],
        }


NO_CONSTANTS: Final = Constants(np.empty(0, np.uint8))


@dataclass(frozen=True, slots=True)
class StoredConstants:
    """What an open file has of constants, from byte `offset` on. `data` is mapped."""

    data: Block
    file: int
    offset: int

    def read(self, described: Any) -> Constants:
        """The constants that a manifest describes. Raises ValueError for what cannot be."""
        total = described["bytes"]
        packings = list(map(Packing.from_json, described["packings"]))
        packed = tuple(
            PackedConstant(at, weight, size, dtype, packings[number])
            for at, weight, size, dtype, number in described["packed"]
        )
        sizes = described["weights"]
        _check(total, packed, sizes)
        is_whole = described["block"] == "whole"
        layout = _Layout.of(total, () if is_whole else packed, sizes)
        if layout.size != len(self.data):
            raise ValueError(
                f"it has {len(self.data)} bytes of constants, not {layout.size}"
            )
        places = zip(sizes, layout.weights, strict=True)
        weights = tuple(self.data[place : place + size] for size, place in places)
        if is_whole or not packed:
            return Constants(self.data[:total], packed, weights)
        if total > MOST_GROWTH * layout.size:
            raise ValueError(f"{total} bytes of constants are made of {layout.size}")
        parts = [FilePart(at, size, place) for at, size, place in layout.runs]
        block = arena_of(total, self.data, parts, self.file, self.offset)
        _pack(block, packed, weights)
        block.flags.writeable = False
        return Constants(block, packed, weights)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a file has what. runs: offset in the block, bytes, offset in the file."""

    runs: Sequence[tuple[int, int, int]]
    weights: Sequence[int]
    size: int

    @staticmethod
    def of(
        total: int, packed: Sequence[PackedConstant], weights: Sequence[int]
    ) -> _Layout:
        runs: list[tuple[int, int, int]] = []
        end = 0
        begins = [0, *(p.end for p in packed)]
        ends = [*(p.at for p in packed), total]
        for at, stop in zip(begins, ends, strict=True):
            size = stop - at
            if size <= 0:
                continue
            shift = (at - end) % PAGE if size >= MAPPED else 0
            runs.append((at, size, end + shift))
            end += shift + _aligned(size)
        places: list[int] = []
        for size in weights:
            places.append(end)
            end += _aligned(size)
        return _Layout(runs, places, end if packed or weights else total)


def _check(
    total: int, packed: Sequence[PackedConstant], weights: Sequence[int]
) -> None:
    """Raise ValueError unless constants are in order and in the block, and so are their weights."""
    end = 0
    for p in packed:
        if p.at < end or p.at % abi.ALIGNMENT or p.at + p.nbytes > total:
            raise ValueError(f"a packed constant is at {p.at} to {p.end} of {total}")
        end = p.end
    for p in packed:
        if p.weight < 0:
            known = weights[-1 - p.weight] == p.weight_bytes
        else:
            stop = p.weight + p.weight_bytes
            apart = all(q.end <= p.weight or stop <= q.at for q in packed)
            known = apart and stop <= total and p.weight % abi.ALIGNMENT == 0
        if not known:
            raise ValueError(f"a weight of {p.weight_bytes} bytes is at {p.weight}")


def _pack(
    block: Block, packed: Sequence[PackedConstant], weights: Sequence[Block]
) -> None:
    """Write the packed constants to their places."""

    def job(p: PackedConstant) -> None:
        if p.weight < 0:
            weight = weights[-1 - p.weight]
        else:
            weight = block[p.weight : p.weight + p.weight_bytes]
        result = block[p.at : p.at + p.nbytes]
        p.packing.run(weight, result, dtype_of(p.dtype).numpy)

    if sum(p.nbytes for p in packed) < _ALONE:
        for p in packed:
            job(p)
        return
    from concurrent.futures import (
        ThreadPoolExecutor,  # not for small models: it takes a while
    )

    with ThreadPoolExecutor(available()) as pool:
        list(pool.map(job, packed))


def _aligned(size: int) -> int:
    return -(-size // abi.ALIGNMENT) * abi.ALIGNMENT
