"""Machines whose vectors and caches are small, so that small extents have many tiles."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtypes import DType
from tilewright.targets.cpu.machine import CpuMachine


@dataclass(frozen=True, slots=True)
class Small(CpuMachine):
    """Four lanes of any dtype, and no instructions beyond the usual ones."""

    arch: str = "x86_64"
    triple: str = "x86_64-unknown-linux-gnu"
    features: tuple[str, ...] = ()
    vector_bits: int = 128
    registers: int = 16
    l1: int = 512
    l2: int = 4096
    l3: int = 8192
    cores: int = 2

    def lanes(self, dtype: DType) -> int:
        return 4
