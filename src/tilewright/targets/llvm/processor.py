"""What the emitter asks of a machine: its vectors, its registers, and what it has."""

from __future__ import annotations

from typing import Final, Protocol

AVX512: Final = "avx512vl"  # that of every processor with 512-bit vectors but the first

# Those of which LLVM has the conversion to the nearest integer as one operation.
ROUNDING: Final = ("x86_64", "aarch64")


class Processor(Protocol):
    """A machine whose code LLVM generates."""

    @property
    def arch(self) -> str:
        """LLVM's name of the architecture: x86_64, aarch64, nvptx64."""
        ...

    @property
    def vector_bits(self) -> int:
        """Bits of a vector register."""
        ...

    @property
    def registers(self) -> int:
        """How many vector registers there are."""
        ...

    def has(self, feature: str) -> bool:
        """Whether code may use an LLVM feature."""
        ...
