"""The constants of a model in one block, each written once and in place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from tilewright.runtime import abi
from tilewright.runtime.buffer import arena
from tilewright.runtime.threads import available

_ALONE: Final = 1 << 20  # bytes that one thread writes before another has started

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Fill = Callable[[Sequence[Bytes]], None]


class ConstantPool:
    """Lays out constants: `place` returns their offsets, `block` writes their contents."""

    def __init__(self) -> None:
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

    def place_array(self, key: Hashable, array: np.ndarray[Any, Any]) -> int:
        """The byte offset of an array's elements in row-major order."""

        def fill(views: Sequence[Bytes]) -> None:
            views[0][:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

        return self.place(key, (array.nbytes,), fill)[0]

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
