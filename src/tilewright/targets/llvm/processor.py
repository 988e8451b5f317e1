"""The emitter's interface to a machine: its vectors, registers, and features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from tilewright.base.dataclass import dataclass

AVX512: Final = "avx512vl"  # that of every processor with 512-bit vectors but the first

NEVER: Final = "never"  # the name of no feature


@dataclass(frozen=True, slots=True)
class ProcessorFamily:
    """Operations that processors of an architecture do in one instruction; LLVM would call a
    library.

    Each is the LLVM feature that it takes; empty: all have it; NEVER: none. nearest: the conversion
    to the nearest integer. half: from and to float16. fused32, fused64: a product and a sum with
    one rounding. store64: 64 bits at once.
    """

    nearest: str = NEVER
    half: str = ""
    fused32: str = ""
    fused64: str = ""
    store64: str = ""


# Those that are not here, GPUs among them, have all of it but `nearest`.
FAMILIES: Final[Mapping[str, ProcessorFamily]] = {
    "x86_64": ProcessorFamily(nearest="", half="f16c", fused32="fma", fused64="fma"),
    "aarch64": ProcessorFamily(nearest=""),
    "riscv64": ProcessorFamily(half="zfh"),
    "wasm32": ProcessorFamily(half=NEVER, fused32=NEVER, fused64=NEVER),
    "thumbv7em": ProcessorFamily(
        half=NEVER,
        fused32="vfp4d16sp",
        fused64="vfp4d16",
        store64=NEVER,
    ),
}


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


def does(machine: Processor, ability: str) -> bool:
    """Whether the processor has an ability, a field of `ProcessorFamily`, in one instruction."""
    needed: str = getattr(FAMILIES.get(machine.arch, ProcessorFamily()), ability)
    return not needed or machine.has(needed)
