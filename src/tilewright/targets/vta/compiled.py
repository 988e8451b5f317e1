"""A kernel compiled for a configuration of the machine: translated once, then run on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.loops.interp import check_array
from tilewright.loops.nodes import Kernel
from tilewright.targets.vta.commands import Commands
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.device import DeviceCode, VtaParameter
from tilewright.targets.vta.dram import Dram
from tilewright.targets.vta.fields import DEFAULT
from tilewright.targets.vta.functional import (
    Counters,
    FunctionalSimulator,
    Result,
    Simulator,
)
from tilewright.targets.vta.isa import Instruction
from tilewright.targets.vta.listings import listing
from tilewright.targets.vta.packing import Bytes, byte_count, from_bytes, to_bytes
from tilewright.targets.vta.timeline import VtaTiming
from tilewright.targets.vta.timing import TimingParameters, TimingSimulator
from tilewright.targets.vta.translate import translate


class VtaProgram:
    """A kernel as instructions; called with one array per parameter, it runs them.

    config: the machine. Raises CompileError for operations that it cannot do, or lacks memory for.
    """

    def __init__(self, kernel: Kernel, config: VTAConfig = DEFAULT) -> None:
        self.kernel = kernel
        self.config = config
        self._dram = Dram(config)
        buffers = {
            b: self._dram.allocate(max(1, byte_count(b.size, b.dtype.numpy)))
            for b in kernel.params
        }
        self._commands = Commands(self._dram)
        translate(kernel, self._commands, buffers)
        self.stream = self._commands.finish()
        self._places = list(buffers.values())

    def __call__(self, arrays: Sequence[Any]) -> Counters:
        """Run in place on the arrays; what the machine did. Raises InputError for wrong arrays."""
        return self._run(FunctionalSimulator(self.config), arrays)

    def time(
        self, arrays: Sequence[Any], parameters: TimingParameters | None = None
    ) -> VtaTiming:
        """The same, and how long it takes."""
        timing = parameters or TimingParameters()
        return self._run(TimingSimulator(self.config, timing), arrays)

    def check(self, arrays: Sequence[Any]) -> Counters:
        """The same, but raises VTAError if a different timing could change the results."""
        return self._run(FunctionalSimulator(self.config, strict=True), arrays)

    def images(self, arrays: Sequence[Any]) -> tuple[bytes, bytes]:
        """DRAM before and after a run: with `stream`, all that another simulator needs."""
        before = bytes(self.code.image(self._bytes(arrays)))
        after = bytearray(before)
        FunctionalSimulator(self.config).run(self.stream, after)
        return before, bytes(after)

    def _bytes(self, arrays: Sequence[Any]) -> list[Bytes]:
        """Copies of the arrays as the machine's DRAM holds them."""
        for b, a in zip(self.kernel.params, arrays, strict=True):
            check_array(self.kernel, b, a)
        return [np.frombuffer(bytearray(to_bytes(a)), np.uint8) for a in arrays]

    def _run(self, simulator: Simulator[Result], arrays: Sequence[Any]) -> Result:
        kernel = self.kernel
        given = self._bytes(arrays)
        result = self.code.run(simulator, given)
        for b, a, data in zip(kernel.params, arrays, given, strict=True):
            if b in kernel.outputs:
                found = from_bytes(data.tobytes(), b.size, b.dtype.numpy)
                np.copyto(a, found.reshape(b.shape))
        return result

    @cached_property
    def code(self) -> DeviceCode:
        """The program as its device takes it: micro-ops are after the parameters in DRAM."""
        kernel = self.kernel
        places = self._places
        params = tuple(
            VtaParameter(p.address, b.size, b.dtype.bits, b in kernel.outputs)
            for p, b in zip(places, kernel.params, strict=True)
        )
        behind = max(p.address + p.pages for p in places)
        image = bytes(self._dram.image)
        data = ((behind, image[behind:]),) if len(image) > behind else ()
        return DeviceCode(self.config, len(image), params, data, self.stream)

    @property
    def instructions(self) -> Sequence[Instruction]:
        """The stream, decoded."""
        return tuple(self._commands.instructions)

    @property
    def text(self) -> str:
        """The listing, with the stage and the virtual thread of each instruction."""
        return listing(
            self.stream, self._dram.image, self._commands.threads, self.config
        )
