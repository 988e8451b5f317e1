"""The constants of an open plan that its code reads: as they are, or packed at compile time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.driver.compiled import CompiledGroup
from tilewright.driver.constants import Bytes, ConstantPool
from tilewright.driver.prepare import ConstantPacker, PreparationCompiler, nameless
from tilewright.driver.units import PartedWork
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.plan.nodes import Plan
from tilewright.targets.base import Target


class OpenConstants:
    """Places for the constants that kernels read; contents are made by `block`."""

    def __init__(self, plan: Plan, host: Target, sanitize: bool) -> None:
        self.places: dict[Buffer, int] = {}
        self._data = plan.data
        self._pool = ConstantPool()
        self._compiler = PreparationCompiler(host, sanitize)

    def block(self) -> Bytes:
        """All of them, each at its place."""
        return self._pool.block()

    def add(self, group: Kernel, work: PartedWork) -> None:
        """The constants that a group's code reads, packed ones included."""
        for kernels in work.prepare:
            self._pack(group, kernels, work.kernel.params)
        for b in work.kernel.params:
            if b in self._data:
                self.places[b] = self._pool.place_array(b, self._data[b])

    def _pack(
        self, group: Kernel, kernels: Sequence[Kernel], read: Collection[Buffer]
    ) -> None:
        """Place what these make of constants and others read; the same of the same once."""
        # By name: a schedule may see a tensor under another shape and back.
        known = {b.name: self._data[b] for b in group.params if b in self._data}
        position = {name: n for n, name in enumerate(known)}
        preparations, codes = self._compiler.compile(kernels, position)
        made = [k.outputs[0] for k in kernels]
        kept = [n for n, b in enumerate(made) if b in read]
        arguments = tuple(-1 - n for n in kept)
        code = CompiledGroup("", arguments, 0, 0, preparations, b"", codes)
        data = list(known.values())

        def fill(views: Sequence[Bytes]) -> None:
            results = dict(zip(kept, views, strict=True))
            ConstantPacker([code]).run(code, data, results)

        used = {b.name for k in kernels for b in k.inputs}
        arrays = tuple(id(known[name]) for name in known if name in used)
        key = (tuple(map(nameless, kernels)), arrays)
        sizes = [preparations[n].nbytes for n in kept]
        places = self._pool.place(key, sizes, fill)
        self.places |= zip((made[n] for n in kept), places, strict=True)
