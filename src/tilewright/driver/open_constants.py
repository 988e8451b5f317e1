"""The constants that the code of an open plan reads, unchanged or packed at compile time."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import dtype_of
from tilewright.driver.compiled import CompiledGroup
from tilewright.driver.constants import Bytes, ConstantPool
from tilewright.driver.open_code import OpenCode
from tilewright.driver.prepare import ConstantPacker
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import Plan


class OpenConstants:
    """Places the constants that code reads; `block` makes their contents."""

    def __init__(self, plan: Plan) -> None:
        self.places: dict[Buffer, int] = {}
        self._data = plan.data
        self._pool = ConstantPool()

    def block(self) -> Bytes:
        """All constants, each at its place."""
        return self._pool.block()

    def arguments(self, code: OpenCode, tensors: Sequence[Buffer]) -> list[Buffer]:
        """The tensors to call the code with; constants among them get places.

        tensors: those that the group of the code touches.
        """
        packed = [b for pack in code.packs for b in self._packed(pack, tensors)]
        found = [packed[-1 - n] if n < 0 else tensors[n] for n in code.arguments]
        for b in found:
            if b in self._data:
                self.places[b] = self._pool.place_array(b, self._data[b])
        return found

    def _packed(self, pack: CompiledGroup, tensors: Sequence[Buffer]) -> list[Buffer]:
        """The packed constants; the same packing of the same constants has one place."""
        data = [self._data.get(b) for b in tensors]
        kept = [-1 - k for k in pack.arguments]
        made = [pack.preparations[n] for n in kept]

        def fill(views: Sequence[Bytes]) -> None:
            results = dict(zip(kept, views, strict=True))
            ConstantPacker([pack]).run(pack, data, results)

        key = tuple(
            (p.symbol, *(id(data[n]) if n >= 0 else n for n in p.inputs))
            for p in pack.preparations
        )
        found = [Buffer(p.symbol, p.shape, dtype_of(p.dtype)) for p in made]
        places = self._pool.place(key, [p.nbytes for p in made], fill)
        self.places |= zip(found, places, strict=True)
        return found
