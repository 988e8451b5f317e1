"""What the code generator knows of a processor: vector width, registers, caches, features."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from functools import cache
from pathlib import Path

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import UnsupportedError
from tilewright.base.text import nearest
from tilewright.targets.cpu.intrinsics import (
    BLOCK_DOTS,
    DOTS,
    INTERLEAVES,
    TILES,
    TRANSPOSES,
    WORD_TRANSPOSES,
)
from tilewright.targets.cpu.processors import (
    BASELINES,
    CACHES,
    LEVELS,
    TRIPLES,
    USED,
    USUAL_CACHES,
    architecture_of,
    costs_of,
    vectors,
)
from tilewright.targets.llvm import backend

_CPU = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class CpuMachine:
    """One kind of processor; `features` are LLVM's names, without signs.

    `features` comes from what the processor reports or from a published level, never from a
    processor's name: virtual machines mask names. l1, l2, l3: bytes of the data caches, of one core
    but for the last. clock: cycles per nanosecond, a usual number and not measured: it gives
    expected times their unit, and no decision hangs on it. line: bytes that caches fetch, and cores
    exchange, at once. measured: constants of cost (`cost.py`) that differ from the defaults.
    """

    arch: str
    triple: str
    features: tuple[str, ...]
    vector_bits: int
    registers: int
    l1: int
    l2: int
    l3: int
    cores: int
    clock: float = 3.0
    line: int = 64
    measured: tuple[tuple[str, float], ...] = ()

    def has(self, feature: str) -> bool:
        """Whether code may use an LLVM feature."""
        return feature in self.features

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector register, counting narrow floats as float32."""
        if dtype.is_float:
            bits = max(dtype.bits, 32)
        else:
            bits = max(dtype.bits, 8)
        return max(1, self.vector_bits // bits)

    def transpose(self, dtype: DType) -> str | None:
        """The intrinsic that transposes small tiles of a dtype; None without one."""
        found = TRANSPOSES.get(dtype)
        return None if found is None else found.name

    def transpose_words(self, dtype: DType) -> str | None:
        """The intrinsic that transposes words of 4 bytes, as the lanes of a dot product have them;
        None without one."""
        found = WORD_TRANSPOSES.get(dtype)
        return None if found is None else found.name

    def products(self, a: DType, b: DType, out: DType) -> tuple[str, ...]:
        """Intrinsics that add products of `a` and `b` to lanes or tiles of `out`, best first."""
        dtypes = (a, b, out)
        fit = (
            d
            for d in (*reversed(TILES), *DOTS)
            if tuple(t.dtype for t in d.tensors) == dtypes
        )
        return tuple(d.name for d in fit if all(map(self.has, d.features)))

    def block_dot(self, bits: int) -> str | None:
        """The intrinsic that multiplies bytes by unsigned numbers of this many bits; None if there
        is none."""
        found = BLOCK_DOTS.get(bits)
        fits = found is not None and all(map(self.has, found.features))
        return found.name if found is not None and fits else None

    def interleave(self, dtype: DType) -> str | None:
        """The intrinsic that makes neighbors of rows, for the second operand of a dot product."""
        found = INTERLEAVES.get(dtype)
        return None if found is None else found.name

    @property
    def feature_string(self) -> str:
        """The features as LLVM's target-features attribute."""
        return ",".join(f"+{f}" for f in self.features)


def _known(mcpu: str) -> str:
    """A hint for an unknown processor; several are for libraries alone."""
    if mcpu == "multi" or "," in mcpu:
        return "an artifact is for one; a library selects among several: name it *.so"
    near = nearest(mcpu, LEVELS)
    meant = f"did you mean {near!r}? " if near else ""
    return f"{meant}known: native, {', '.join(LEVELS)}"


def machine(mcpu: str = "native", triple: str | None = None) -> CpuMachine:
    """The machine named `mcpu`: "native", a level of x86-64, a core of another architecture.

    triple: the system that its code is for, as LLVM writes it; "native" is then the least processor
    of that architecture. Machines other than the host have the caches of their core (CACHES), or of
    a usual one. Raises UnsupportedError for a name that is not known, or that does not fit.
    """
    if triple is None and mcpu == "native":
        return host()
    wanted = None if triple is None else architecture_of(triple)
    name = BASELINES[wanted] if wanted is not None and mcpu == "native" else mcpu
    if name not in LEVELS:
        raise UnsupportedError(
            f"unknown processor {mcpu!r}",
            code="TW-MCPU",
            hint=_known(mcpu),
        )
    arch, features = LEVELS[name]
    if wanted is not None and wanted != arch:
        fit = [n for n, (a, _) in LEVELS.items() if a == wanted]
        raise UnsupportedError(
            f"processor {mcpu!r} is {arch}, the triple {triple!r} is {wanted}",
            code="TW-MCPU",
            hint=f"for {wanted}: {', '.join(fit)}",
        )
    caches, costs = CACHES.get(name, USUAL_CACHES), costs_of(features)
    made = _describe(arch, features, caches, 1, costs)
    return made if triple is None else replace(made, triple=triple)


@cache
def host() -> CpuMachine:
    """This machine. Raises UnsupportedError where no code generator exists for it."""
    arch = {"AMD64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine(), platform.machine()
    )
    if arch not in TRIPLES:
        raise UnsupportedError(
            f"no code generator for the architecture {arch}", code="TW-MCPU"
        )
    found = backend.host_features().items()
    features = [name for name, on in found if on and name.startswith(USED)]
    return _describe(
        arch, sorted(features), _caches(), _physical_cores(), _costs(features)
    )


def _describe(
    arch: str,
    features: list[str],
    caches: tuple[int, int, int],
    cores: int,
    costs: tuple[tuple[str, float], ...],
) -> CpuMachine:
    bits, registers = vectors(arch, features)
    return CpuMachine(
        arch,
        TRIPLES[arch],
        tuple(features),
        bits,
        registers,
        *caches,
        cores,
        measured=costs,
    )


def _costs(features: list[str]) -> tuple[tuple[str, float], ...]:
    """Constants of cost of this machine's kind."""
    return costs_of(features)


def _caches() -> tuple[int, int, int]:
    """Sizes of the data caches of one core; a usual size where the system does not say."""
    sizes = {1: 32 << 10, 2: 512 << 10, 3: 4 << 20}
    for index in sorted(_CPU.glob("cpu0/cache/index*")):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            level = int((index / "level").read_text())
            sizes[level] = int((index / "size").read_text().strip().rstrip("K")) << 10
        except (OSError, ValueError):
            continue
    return sizes[1], sizes[2], sizes[3]


def _physical_cores() -> int:
    """Physical cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        usable = os.sched_getaffinity(0)
    else:
        usable = {0}
    found = set()
    for n in usable:
        try:
            topology = _CPU / f"cpu{n}" / "topology"
            package = (topology / "physical_package_id").read_text()
            found.add((package, (topology / "core_id").read_text()))
        except OSError:
            found.add(("", str(n)))
    return max(1, len(found))
