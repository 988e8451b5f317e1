"""What features need to know of a machine: vectors, registers, caches, cores, rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.base.errors import UnsupportedError
from tilewright.targets.base import Target


@dataclass(frozen=True, slots=True)
class Facts:
    """A processor; by default a usual one with vectors of 256 bits.

    vector: bytes of a register. registers: of that size. l1, l2, l3: bytes of the caches of a core,
    the last is shared. multiply_adds, loads: vector instructions that issue per cycle. latency:
    cycles from a multiply-add to the next of its accumulator. l2_bytes, l3_bytes, memory_bytes: per
    cycle, that one core reads from there.
    """

    vector: int = 32
    registers: int = 16
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 16 << 20
    cores: int = 1
    multiply_adds: float = 2.0
    loads: float = 2.0
    latency: float = 4.0
    l2_bytes: float = 32.0
    l3_bytes: float = 8.0
    memory_bytes: float = 4.0

    @staticmethod
    def of(target: Target) -> Facts:
        """Those of a target with caches. Raises UnsupportedError for any other.

        Rates that its machine description does not say are the usual ones.
        """
        machine: Any = getattr(target, "machine", None)
        if not all(hasattr(machine, name) for name in ("vector_bits", "l3")):
            raise UnsupportedError(
                f"target {target.name!r} has no caches, which the features ask for",
                code="TW-TARGET",
                where="features",
                hint="hand in Facts(...) of your own",
            )
        measured = dict(machine.measured)
        usual = USUAL
        return Facts(
            vector=machine.vector_bits // 8,
            registers=machine.registers,
            l1=machine.l1,
            l2=machine.l2,
            l3=machine.l3,
            cores=machine.cores,
            multiply_adds=measured.get("multiply_adds", usual.multiply_adds),
            loads=measured.get("loads", usual.loads),
            latency=measured.get("latency", usual.latency),
            l2_bytes=measured.get("second_bytes", usual.l2_bytes),
            l3_bytes=measured.get("far_bytes", usual.l3_bytes),
        )

    @property
    def caches(self) -> tuple[int, int, int]:
        """Bytes of the caches, the nearest first."""
        return self.l1, self.l2, self.l3


USUAL = Facts()
