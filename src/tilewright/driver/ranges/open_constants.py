"""The constants that the code of an open plan reads, unchanged or packed at compile time."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import dtype_of
from tilewright.driver.compiled import CompiledGroup
from tilewright.driver.constants import ConstantPool
from tilewright.driver.prepare import ConstantPacker, place_prepared
from tilewright.driver.ranges.open_code import OpenCode
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import Plan


class OpenConstants:
    """Places the constants that code reads in a pool."""

    def __init__(self, plan: Plan, pool: ConstantPool) -> None:
        self.places: dict[Buffer, int] = {}
        self._data = plan.data
        self._pool = pool

    def arguments(self, code: OpenCode, tensors: Sequence[Buffer]) -> list[Buffer]:
        """The tensors to call the code with; constants among them get places.

        tensors: those that the group of the code touches.
        """
        packed = [b for pack in code.packs for b in self._packed(pack, tensors)]
        found = [packed[-1 - n] if n < 0 else tensors[n] for n in code.arguments]
        for b in found:
            if b in self._data:
                self.places[b] = self._pool.place_array(self._data[b])
        return found

    def _packed(self, pack: CompiledGroup, tensors: Sequence[Buffer]) -> list[Buffer]:
        """The packed constants; the same packing of the same constants has one place."""
        data = [self._data.get(b) for b in tensors]
        places = place_prepared(self._pool, pack, data, lambda: ConstantPacker([pack]))
        found: list[Buffer] = []
        for k in pack.arguments:
            p = pack.preparations[-1 - k]
            found.append(Buffer(p.symbol, p.shape, dtype_of(p.dtype)))
            self.places[found[-1]] = places[-1 - k]
        return found
