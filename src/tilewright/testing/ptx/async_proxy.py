"""What is in flight between threads of PTX and the units that work beside them.

Such a unit reads shared memory by another path, the async proxy. Its results are in registers after
a wait only. `AsyncProxy` finds

    a byte that a thread wrote, and that it has not fenced since, read by a unit
    a byte that a unit may still read, overwritten by a thread
    a register of a product that is read or written before the wait
    a register that is accumulated into, and that was written since the last `wgmma.fence`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.testing.ptx.arithmetic import Array


@dataclass(frozen=True, eq=False, slots=True)
class ProductInFlight:
    """who: the threads of a group. registers: those that it will set, by name, and to what. block,
    places: the bytes that it reads."""

    who: Array
    registers: dict[str, Array]
    block: int
    places: Array
    group: int


@dataclass(slots=True)
class AsyncProxy:
    """writer: who wrote a byte of a block without a fence since, counted from 1. groups: how many
    groups of products each thread has ended. unfenced: threads that have written a register of a
    product since their last fence, by its name."""

    writer: Array
    groups: Array
    unfenced: dict[str, Array]
    flying: list[ProductInFlight] = field(default_factory=list)

    def wrote(self, block: Array, places: Array, who: Array) -> None:
        """Threads write bytes of their blocks. Raises RuntimeError if a unit may still read one."""
        number = np.broadcast_to(who[:, None] + 1, places.shape)
        self.writer[block[:, None], places] = number
        for of in np.unique(block).tolist():
            self.check_overwritten(of, places[block == of])

    def check_overwritten(self, block: int, places: Array) -> None:
        """Raises RuntimeError if a product still reads bytes that are written."""
        for product in self.flying:
            if block == product.block and np.isin(places, product.places).any():
                raise RuntimeError(
                    "shared memory is written that a product still reads"
                )

    def fence(self, who: Array) -> None:
        """What these threads wrote is there for units."""
        self.writer[np.isin(self.writer, who + 1)] = 0

    def read(self, block: int, places: Array) -> None:
        """A unit reads bytes. Raises RuntimeError for one without a fence since it was written."""
        if self.writer[block, places].any():
            raise RuntimeError(
                "a product reads shared memory with no fence.proxy.async since it was written"
            )

    def touched(self, register: str, who: Array, writes: bool) -> None:
        """Threads access a register. Raises RuntimeError if a product has it in flight."""
        unfenced = self.unfenced.get(register)
        if unfenced is None:
            return
        for product in self.flying:
            if register in product.registers and np.isin(who, product.who).any():
                raise RuntimeError(
                    f"{register} is accessed with no wait for its product"
                )
        if writes:
            unfenced[who] = True

    def fence_registers(self, who: Array) -> None:
        """`wgmma.fence`"""
        for written in self.unfenced.values():
            written[who] = False

    def start(self, product: ProductInFlight) -> None:
        """A product leaves. Raises RuntimeError for registers without a fence."""
        for name in product.registers:
            if self.unfenced[name][product.who].any():
                raise RuntimeError(f"{name} is written with no wgmma.fence since")
        self.flying.append(product)

    def pending(self, name: str, who: Array) -> Array | None:
        """What the latest product of these threads sets a register to, if it is in flight."""
        for product in reversed(self.flying):
            if name in product.registers and product.who[0] == who[0]:
                return product.registers[name]
        return None

    def arrived(self, who: Array, pending: int) -> Sequence[ProductInFlight]:
        """Remove and return the products of these threads, but for those of the latest groups."""
        mine = [p for p in self.flying if p.who[0] in who]
        done = [p for p in mine if p.group < self.groups[p.who[0]] - pending]
        self.flying = [p for p in self.flying if p not in done]
        return done
