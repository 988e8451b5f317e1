"""The runtime: records the instructions of a launch and executes them.

Names and rules follow VTA's runtime: dependences are pushed and popped between stages and become
flags of the surrounding instructions; a micro-kernel is sent to DRAM once, and loaded once per
launch as long as it stays on the chip.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tilewright.targets.vta.config import MemoryId, VTAConfig
from tilewright.targets.vta.dram import Dram, DramBuffer
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.functional import Result, Simulator
from tilewright.targets.vta.isa import Finish, Instruction, Load, Store, encode_stream
from tilewright.targets.vta.kernel import VtaKernel
from tilewright.targets.vta.stages import VtaModule, neighbor, stage
from tilewright.targets.vta.uop_cache import UopCache

Pads = tuple[tuple[int, int], tuple[int, int]]
NO_PADS: Pads = ((0, 0), (0, 0))


class Commands:
    """The instructions of a launch as they are recorded; `synchronize` executes them."""

    def __init__(self, dram: Dram) -> None:
        self.dram = dram
        self.config: VTAConfig = dram.config
        self._kernels: dict[Hashable, Sequence[VtaKernel]] = {}
        self._uops = UopCache(dram)
        self._begin()

    def _begin(self) -> None:
        self.instructions: list[Instruction] = []
        # The virtual thread that each instruction belongs to, for listings.
        self.threads: list[int | None] = []
        self._thread: int | None = None
        self._pops: dict[VtaModule, set[str]] = {s: set() for s in VtaModule}
        self._last: dict[VtaModule, int] = {}
        self._uops.forget_chip()

    @contextmanager
    def thread(self, number: int | None) -> Iterator[None]:
        """What is recorded inside belongs to a virtual thread; listings say so."""
        before, self._thread = self._thread, number
        try:
            yield
        finally:
            self._thread = before

    # ------------------------------------------------------------------------------ instructions

    def load(
        self,
        memory: MemoryId,
        sram_base: int,
        source: DramBuffer,
        offset: int,
        shape: tuple[int, int],
        stride: int | None = None,
        pads: Pads = NO_PADS,
    ) -> None:
        """Load `shape` = (rows, columns) elements, from element `offset` of a buffer on.

        stride: elements from one row to the next, the columns if not given. pads: elements of
        zeros ((above, below), (left, right)). Raises VTAError if the rectangle leaves the buffer.
        """
        (above, below), (left, right) = pads
        self.record(
            Load(
                memory_type=memory,
                **_rectangle(memory, sram_base, source, offset, shape, stride),
                y_pad_0=above,
                y_pad_1=below,
                x_pad_0=left,
                x_pad_1=right,
            )
        )

    def store(
        self,
        sram_base: int,
        target: DramBuffer,
        offset: int,
        shape: tuple[int, int],
        stride: int | None = None,
    ) -> None:
        """Store `shape` = (rows, columns) accumulators from `sram_base` on as bytes.

        Raises VTAError if the rectangle leaves the buffer.
        """
        place = _rectangle(MemoryId.OUT, sram_base, target, offset, shape, stride)
        self.record(Store(memory_type=MemoryId.OUT, **place))

    def launch(self, kernels: Iterable[VtaKernel]) -> None:
        """Execute micro-kernels; their micro-ops are loaded unless they are on the chip."""
        for kernel in kernels:
            place = self._uops.place(kernel)
            if place.load is not None:
                # It waits for no token: only the compute stage touches micro-ops.
                self._append(place.load)
            self.record(kernel.instruction(place.begin))

    def launch_once(
        self, key: Hashable, generate: Callable[[], Sequence[VtaKernel]]
    ) -> None:
        """`launch` the result of `generate`, which is called the first time that `key` is seen."""
        if key not in self._kernels:
            self._kernels[key] = tuple(generate())
        self.launch(self._kernels[key])

    # ------------------------------------------------------------------------------ dependences

    def push(self, giver: VtaModule, taker: VtaModule) -> None:
        """`giver` pushes a token when all its recorded instructions have ended."""
        flag = f"push_{_side(giver, taker)}"
        if self._pops[giver] or giver not in self._last:
            self.record(_nothing(giver))
        at = self._last[giver]
        if getattr(self.instructions[at], flag):
            self.record(_nothing(giver))
            at = self._last[giver]
        self.instructions[at] = replace(self.instructions[at], **{flag: True})

    def pop(self, giver: VtaModule, taker: VtaModule) -> None:
        """The next instruction of `taker` waits for a token of `giver`."""
        flag = f"pop_{_side(taker, giver)}"
        if flag in self._pops[taker]:
            self.record(_nothing(taker))
        self._pops[taker].add(flag)

    def wait(self, taker: VtaModule, index: int) -> None:
        """The next instruction of `taker` waits until instruction `index` has ended.

        Tokens are popped in the order in which they were pushed: successive waits of a stage for
        another one are for later and later instructions.
        """
        giver = stage(self.instructions[index])
        flag = f"push_{_side(giver, taker)}"
        assert not getattr(self.instructions[index], flag), "waited for already"
        self.instructions[index] = replace(self.instructions[index], **{flag: True})
        self.pop(giver, taker)

    def nothing(self, of: VtaModule) -> int:
        """Record an instruction that only pops and pushes tokens; returns its index."""
        self.record(_nothing(of))
        return self._last[of]

    def last(self, of: VtaModule) -> int:
        """The index of a stage's last instruction, -1 if it has none."""
        return self._last.get(of, -1)

    def record(self, instruction: Instruction) -> None:
        """Record an instruction, which takes the tokens that its stage is to wait for."""
        at = stage(instruction)
        flags: dict[str, Any] = dict.fromkeys(self._pops[at], True)
        self._pops[at].clear()
        self._append(replace(instruction, **flags))

    @property
    def _finished(self) -> bool:
        if not self.instructions:
            return False
        return isinstance(self.instructions[-1], Finish)

    def _append(self, instruction: Instruction) -> None:
        if self._finished:
            raise VTAError(
                "recorded after FINISH", where="commands", hint="synchronize first"
            )
        self._last[stage(instruction)] = len(self.instructions)
        self.instructions.append(instruction)
        self.threads.append(self._thread)

    # ------------------------------------------------------------------------------ execution

    def finish(self) -> bytes:
        """The stream: the recorded instructions, and FINISH, which waits for them.

        Nothing can be recorded afterwards until `synchronize`. Raises VTAError for values that do
        not fit the instructions' fields.
        """
        if not self._finished:
            self._end()
        return encode_stream(self.instructions, self.config)

    def _end(self) -> None:
        for giver in (VtaModule.LOAD, VtaModule.STORE):
            if giver in self._last or self._pops[giver]:
                self.push(giver, VtaModule.COMPUTE)
                self.pop(giver, VtaModule.COMPUTE)
        self.record(Finish())

    def synchronize(self, simulator: Simulator[Result]) -> Result:
        """Execute the recorded instructions and clear the record; returns the simulator's report.

        Raises the simulator's errors, and VTAError for values that fit no field. The record is
        cleared then, too.
        """
        try:
            return simulator.run(self.finish(), self.dram.image)
        finally:
            self._begin()


def _side(of: VtaModule, other: VtaModule) -> str:
    """Where another stage is, seen from one."""
    for side in ("prev", "next"):
        if neighbor(of, side) is other:
            return side
    raise VTAError(f"{of.name} and {other.name} are not neighbors", where="dependence")


def _nothing(of: VtaModule) -> Instruction:
    """An instruction that only pops and pushes tokens."""
    if of is VtaModule.STORE:
        return Store(memory_type=MemoryId.OUT)
    return Load(memory_type=MemoryId.INP if of is VtaModule.LOAD else MemoryId.UOP)


def _rectangle(
    memory: MemoryId,
    sram_base: int,
    buffer: DramBuffer,
    offset: int,
    shape: tuple[int, int],
    stride: int | None,
) -> dict[str, Any]:
    rows, columns = shape
    step = columns if stride is None else stride
    last = offset + max(0, rows - 1) * step + max(1, columns) - 1
    return {
        "sram_base": sram_base,
        "dram_base": buffer.element(memory, offset, last) if rows else 0,
        "y_size": rows,
        "x_size": columns,
        "x_stride": step,
    }
