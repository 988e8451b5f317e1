"""The facts about a machine that features need: vectors, registers, caches, cores, rates."""

from __future__ import annotations

from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError
from tilewright.targets.base import Target


@dataclass(frozen=True, slots=True)
class Facts:
    """A processor; by default a common one with 256-bit vectors.

    vector: bytes of a register. registers: how many of that size. l1, l2, l3: bytes of a core's
    caches, the last one shared. multiply_adds, loads: vector instructions issued per cycle.
    latency: cycles of a dependent multiply-add. l2_bytes, l3_bytes, memory_bytes: bytes per cycle
    that one core reads from there.
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
        """The facts of a target with caches. Raises UnsupportedError for any other.

        Rates missing from its machine description take the default values.
        """
        machine: Any = getattr(target, "machine", None)
        if not all(hasattr(machine, name) for name in ("vector_bits", "l3")):
            raise UnsupportedError(
                f"target {target.name!r} has no caches, which these features need",
                code="TW-TARGET",
                where="features",
                hint="pass your own Facts(...)",
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
        """Bytes of the caches, nearest first."""
        return self.l1, self.l2, self.l3


USUAL = Facts()
