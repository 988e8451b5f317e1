"""VTA as a device of the runtime: the machine is simulated, and needs no part of the compiler.

A program is a stream of instructions with the DRAM that it is for: where its parameters are there,
and micro-ops. Each launch has this DRAM to itself; a queue that is timed runs the timing simulator,
whose cycles become seconds by the clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArtifactError, TilewrightError
from tilewright.runtime import schema
from tilewright.runtime.device import Bytes, Duration, HostDevice
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.dram import LIMIT
from tilewright.targets.vta.functional import FunctionalSimulator, Result, Simulator
from tilewright.targets.vta.packing import filled, pack, unpack
from tilewright.targets.vta.timing import TimingSimulator

NAME: Final = "vta"
# Hz: of the PYNQ board's bitstream, as its published configuration has it.
CLOCK: Final = 100e6
_SPAN: Final = (schema.Count, schema.Count)
# The line of JSON that begins a program. params: address, numbers, bits of each, whether it is
# written. data: address and bytes of what DRAM holds besides.
_SHAPE: Final = {
    "config": schema.ObjectSchema(schema.Count),
    "dram": schema.Count,
    "params": [(schema.Count, schema.Count, schema.Count, schema.Count)],
    "data": [_SPAN],
    "stream": schema.Count,
}


@dataclass(frozen=True, slots=True)
class VtaParameter:
    """An operand in DRAM: where it begins, its numbers with the bits of each, and whether the
    program writes it."""

    address: int
    count: int
    bits: int
    written: bool

    @property
    def nbytes(self) -> int:
        """Bytes of DRAM."""
        return -(-self.count * self.bits // 8)


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """A program of the machine.

    dram: bytes of DRAM. data: its contents besides the parameters, by address. stream: the
    instructions.
    """

    config: VTAConfig
    dram: int
    params: tuple[VtaParameter, ...]
    data: tuple[tuple[int, bytes], ...]
    stream: bytes

    def to_bytes(self) -> bytes:
        """A line of JSON, then the data and the stream."""
        head = {
            "config": asdict(self.config),
            "dram": self.dram,
            "params": [
                (p.address, p.count, p.bits, int(p.written)) for p in self.params
            ],
            "data": [(at, len(part)) for at, part in self.data],
            "stream": len(self.stream),
        }
        parts = [part for _, part in self.data]
        return b"".join([json.dumps(head).encode(), b"\n", *parts, self.stream])

    @staticmethod
    def from_bytes(code: bytes) -> DeviceCode:
        """The inverse of `to_bytes`. Raises ArtifactError for other bytes."""
        line, _, rest = code.partition(b"\n")
        try:
            head = json.loads(line)
            schema.check(head, _SHAPE)
            sizes = [size for _, size in head["data"]]
            if sum(sizes) + head["stream"] != len(rest):
                raise ValueError(f"{len(rest)} bytes follow, expected another number")
            config = VTAConfig(**head["config"])
        except (ValueError, TypeError, RecursionError, TilewrightError) as error:
            raise ArtifactError(f"the program is not a VTA program: {error}") from error
        data, at = [], 0
        for address, size in head["data"]:
            data.append((address, rest[at : at + size]))
            at += size
        params = tuple(
            VtaParameter(at, count, bits, bool(written))
            for at, count, bits, written in head["params"]
        )
        made = DeviceCode(config, head["dram"], params, tuple(data), rest[at:])
        made.check()
        return made

    def image(self, arrays: Sequence[Bytes]) -> bytearray:
        """DRAM before a launch on these parameters."""
        dram = bytearray(self.dram)
        for at, part in self.data:
            dram[at : at + len(part)] = part
        for p, array in zip(self.params, arrays, strict=True):
            given = array[: p.nbytes].tobytes()
            dram[p.address : p.address + len(given)] = given
        return dram

    def run(self, simulator: Simulator[Result], arrays: Sequence[Bytes]) -> Result:
        """Run in place on the bytes of the parameters. Raises VTAError as the simulator does."""
        dram = self.image(arrays)
        result = simulator.run(self.stream, dram)
        for p, array in zip(self.params, arrays, strict=True):
            if p.written:
                part = array[: p.nbytes]
                part[:] = memoryview(dram)[p.address : p.address + len(part)]
        return result

    def check(self) -> None:
        """Raise ArtifactError for addresses outside DRAM, and for too much DRAM."""
        if self.dram > LIMIT:
            raise ArtifactError(
                f"the program is for {self.dram} bytes of DRAM, of {LIMIT}"
            )
        spans = [(p.address, p.nbytes) for p in self.params] + [
            (a, len(d)) for a, d in self.data
        ]
        if any(p.bits not in (2, 4, 8, 16, 32, 64) for p in self.params):
            raise ArtifactError("the program has numbers of an unknown width")
        if any(at + size > self.dram for at, size in spans):
            raise ArtifactError("the program has parameters or data outside its DRAM")


def load(code: bytes) -> _Program:
    """A program, to be run on flat bytes. Raises ArtifactError for other bytes."""
    return _Program(DeviceCode.from_bytes(code))


class _Program:
    """A program as a function of its parameters' bytes."""

    def __init__(self, code: DeviceCode) -> None:
        self.code = code

    def __call__(self, arrays: Sequence[Bytes], timed: bool) -> Duration | None:
        """Run in place. Raises VTAError for a stream that the machine cannot execute."""
        config = self.code.config
        if not timed:
            self._run(FunctionalSimulator(config), arrays)
            return None
        cycles = self._run(TimingSimulator(config), arrays).cycles
        return Duration(
            seconds=cycles / CLOCK,
            cycles=cycles,
            clock=CLOCK,
            simulated=True,
        )

    def _run(self, simulator: Simulator[Result], arrays: Sequence[Bytes]) -> Result:
        params = self.code.params
        given = [_packed(p, a) for p, a in zip(params, arrays, strict=True)]
        result = self.code.run(simulator, given)
        for p, array, data in zip(params, arrays, given, strict=True):
            if p.written and p.bits < 8:
                array[: p.count] = unpack(data, p.bits)[: p.count].view(array.dtype)
        return result


def _packed(p: VtaParameter, array: Bytes) -> Bytes:
    """A parameter as DRAM holds it: the runtime has a byte for each number of fewer bits."""
    if p.bits >= 8:
        return array
    return pack(filled(array[: p.count], p.bits), p.bits)


def make() -> HostDevice:
    """The device, for `runtime.devices`."""
    return HostDevice(NAME, load)
