"""The placement of values in the machine's memories, and their reuse."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.targets.npu.errors import CAPACITY, NPUError


@dataclass(slots=True)
class Allocator:
    """Next-fit allocation in a memory of this many elements.

    Places are reused late, so that chains seldom wait for earlier readers.
    """

    memory: str
    capacity: int
    used: dict[int, int] = field(default_factory=dict)
    next: int = 0

    def take(self, size: int) -> int | None:
        """The address of free elements, None if there are none."""
        for at in (self._fit(self.next, size), self._fit(0, size)):
            if at + size <= self.capacity:
                self.used[at], self.next = size, at + size
                return at
        return None

    def _fit(self, at: int, size: int) -> int:
        """The first free place from an address on, which may be beyond the end."""
        for start, taken in sorted(self.used.items()):
            if start - at >= size:
                break
            at = max(at, start + taken)
        return at

    def free(self, address: int) -> None:
        """They may be used again."""
        del self.used[address]


@dataclass(slots=True)
class Registers:
    """A register file: live results, and copies of operands, of which the oldest are evicted.

    Copies are identified by their source; those of the current chain are pinned. short: whether a
    copy was evicted for lack of room.
    """

    allocator: Allocator
    copies: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    pinned: set[bytes] = field(default_factory=set)
    short: bool = False

    def take(self, size: int, where: str) -> int:
        """Elements for a result. Raises NPUError if even without copies there is no room."""
        while (at := self.allocator.take(size)) is None:
            old = next((key for key in self.copies if key not in self.pinned), None)
            if old is None:
                held = sum(self.allocator.used.values())
                raise NPUError(
                    f"{size} elements are needed in {self.allocator.memory}, which has "
                    f"{self.allocator.capacity}, {held} of them in use",
                    code=CAPACITY,
                    where=where,
                    hint="keep less on the chip: toDram",
                )
            self.allocator.free(self.copies.pop(old))
            self.short = True
        return at

    def copy(self, key: bytes, size: int, where: str) -> tuple[int, bool]:
        """The location of a copy, and whether it exists already."""
        known = key in self.copies
        if not known:
            self.copies[key] = self.take(size, where)
        self.copies.move_to_end(key)
        self.pinned.add(key)
        return self.copies[key], known
