"""Where values are in the machine's memories, and what is kept there to be read again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from tilewright.targets.npu.errors import NPUError


@dataclass(slots=True)
class Allocator:
    """First fit in a memory of so many elements."""

    memory: str
    capacity: int
    used: dict[int, int] = field(default_factory=dict)

    def take(self, size: int) -> int | None:
        """The address of free elements, None if there are none."""
        at = 0
        for start in sorted(self.used):
            if start - at >= size:
                break
            at = start + self.used[start]
        if at + size > self.capacity:
            return None
        self.used[at] = size
        return at

    def free(self, address: int) -> None:
        """They may be used again."""
        del self.used[address]


@dataclass(slots=True)
class Registers:
    """A register file: results that are still needed, and copies of operands, oldest given up.

    Copies are known by what they are of; those of the chain at work are pinned.
    """

    allocator: Allocator
    copies: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    pinned: set[bytes] = field(default_factory=set)

    def take(self, size: int, where: str) -> int:
        """Elements for a result. Raises NPUError if even without copies there is no room."""
        while (at := self.allocator.take(size)) is None:
            old = next((key for key in self.copies if key not in self.pinned), None)
            if old is None:
                held = sum(self.allocator.used.values())
                raise NPUError(
                    f"{size} elements are needed in {self.allocator.memory}, which has "
                    f"{self.allocator.capacity}, {held} of them in use",
                    code="TW-NPU-CAPACITY",
                    where=where,
                    hint="keep less on the chip: toDram",
                )
            self.allocator.free(self.copies.pop(old))
        return at

    def copy(self, key: bytes, size: int, where: str) -> tuple[int, bool]:
        """The place of a copy, and whether it is there already."""
        known = key in self.copies
        if not known:
            self.copies[key] = self.take(size, where)
        self.copies.move_to_end(key)
        self.pinned.add(key)
        return self.copies[key], known
