"""This machine: its processor's name, and its features, for artifacts that require some."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from tilewright.base.errors import ArtifactError

# Architectures that `runtime.loader` can run code of.
LOADABLE: Final = ("x86_64", "aarch64")

_CPUINFO: Final = Path("/proc/cpuinfo")

# LLVM's name -> the kernel's, where they differ by more than punctuation.
_KERNEL_NAMES: Final[Mapping[str, str]] = {
    "64bit": "lm",
    "avx10.1": "avx512fp16",  # AVX10.1 is all of AVX-512 as of the first processor with FP16
    "avx10.1-256": "avx512fp16",
    "avx10.1-512": "avx512fp16",
    "bmi": "bmi1",
    "crc32": "sse42",
    "evex512": "avx512f",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "prfchw": "3dnowprefetch",
    "sahf": "lahflm",
    "sha": "shani",
    "sse3": "pni",
    "x87": "fpu",
}

# Features that the processor reports and the kernel may hide, or the other way round: system
# instructions, of which no model's code contains any.
_SYSTEM: Final = frozenset(
    "cldemote clflushopt clwb clzero enqcmd fsgsbase hreset invpcid kl lwp mwaitx pconfig pku "
    "prefetchi ptwrite rdpid rdpru rdrnd rdseed rtm serialize sgx shstk tbm tsxldtrk uintr "
    "usermsr waitpkg wbnoinvd widekl xsave xsavec xsaveopt xsaves".split()
)
_PUNCTUATION: Final = str.maketrans("", "", "._-")

_SYS_ARCH_PRCTL: Final = 158
_ARCH_REQ_XCOMP_PERM: Final = 0x1023
_XFEATURE_XTILEDATA: Final = 18


def architecture() -> str:
    """This processor's architecture as LLVM names it."""
    name = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(name, name)


def processor_name() -> str:
    """The processor's name, family and model: virtual machines use one name for different
    processors."""
    try:
        text = _CPUINFO.read_text()
    except OSError:
        text = ""
    facts = dict(
        re.findall(
            r"^(model name|cpu family|model)[ \t]*:[ \t]*(.+)$", text, re.MULTILINE
        )
    )
    name = facts.get("model name") or platform.processor() or "unknown"
    if "cpu family" not in facts or "model" not in facts:
        return name
    return f"{name}, family {facts['cpu family']} model {facts['model']}"


@cache
def cpu_flags() -> frozenset[str]:
    """The processor's features as the kernel lists them, without punctuation; empty if unknown."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(flag.translate(_PUNCTUATION) for flag in value.split())
    return frozenset()


def missing_features(features: Iterable[str]) -> tuple[str, ...]:
    """Those of LLVM's feature names that this machine lacks, in order; system ones do not count."""
    have = cpu_flags()
    wanted = [
        (f, _KERNEL_NAMES.get(f, f.translate(_PUNCTUATION)))
        for f in features
        if f not in _SYSTEM
    ]
    missing = [name for name, flag in wanted if flag not in have]
    tiles = [name for name, _ in wanted if name.startswith("amx")]
    if tiles and not missing and not _request_tiles():
        missing = tiles
    return tuple(missing)


def require(requirements: Mapping[str, Any]) -> None:
    """Raise ArtifactError if code with these `arch` and `features` cannot run here."""
    arch = requirements.get("arch", architecture())
    if arch != architecture():
        raise ArtifactError(
            f"the artifact is for {arch}, this machine is {architecture()}",
            code="TW-MACHINE",
            hint="compile the model on this machine, or for it with mcpu=",
        )
    missing = missing_features(requirements.get("features", ()))
    if missing:
        raise ArtifactError(
            f"this processor lacks what the artifact needs: {', '.join(missing)}",
            code="TW-MACHINE",
            hint="compile the model on this machine, or for less, such as mcpu='x86-64-v3'",
        )


@cache
def _request_tiles() -> bool:
    """Ask the kernel for AMX's tile registers, for this process and its threads to come."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    return not libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
