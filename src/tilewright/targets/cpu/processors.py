"""The processors that have names: their features, vectors and caches, and the systems they run."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArgumentError

_V2 = (
    "64bit cmov cx8 fxsr mmx sse sse2 cx16 sahf popcnt sse3 sse4.1 sse4.2 ssse3".split()
)
_V3 = [*_V2, *"avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave".split()]
_V4 = [*_V3, *"avx512f avx512bw avx512cd avx512dq avx512vl".split()]
_CLX = [*_V4, "avx512vnni"]
_ZEN4 = [*_CLX, "avx512bf16"]
_ZEN5 = [*_ZEN4, "avxvnni", "avx512vp2intersect"]
_SPR = [*_ZEN4, *"amx-tile amx-int8 amx-bf16".split()]
_ARM = "neon fp-armv8".split()
_N1 = [*_ARM, *"aes sha2 crc lse rdm fullfp16 dotprod rcpc ras ssbs".split()]
_RV64GC = "m a f d c".split()
_WASM = "simd128 nontrapping-fptoint sign-ext".split()
_M4 = "vfp4d16sp".split()
_M7 = [*_M4, *"vfp4d16 fp-armv8d16sp fp-armv8d16".split()]

# name: architecture, features
LEVELS: Final[Mapping[str, tuple[str, list[str]]]] = {
    "x86-64-v2": ("x86_64", _V2),
    "x86-64-v3": ("x86_64", _V3),
    "x86-64-v4": ("x86_64", _V4),
    "cascadelake": ("x86_64", _CLX),
    "znver4": ("x86_64", _ZEN4),
    "znver5": ("x86_64", _ZEN5),
    "sapphirerapids": ("x86_64", _SPR),
    "aarch64": ("aarch64", _ARM),
    "neoverse-n1": ("aarch64", _N1),
    "riscv64": ("riscv64", _RV64GC),
    "riscv64-v": ("riscv64", [*_RV64GC, "v"]),
    "wasm32": ("wasm32", _WASM),
    "wasm32-mvp": ("wasm32", []),
    "cortex-m4": ("thumbv7em", _M4),
    "cortex-m7": ("thumbv7em", _M7),
}

# Bytes of the first and second cache of a core, and of the third that it shares.
USUAL_CACHES: Final = (32 << 10, 512 << 10, 4 << 20)
CACHES: Final[Mapping[str, tuple[int, int, int]]] = {
    "cascadelake": (32 << 10, 1 << 20, 22 << 20),
    "znver4": (32 << 10, 1 << 20, 32 << 20),
    "znver5": (48 << 10, 1 << 20, 32 << 20),
    "sapphirerapids": (48 << 10, 2 << 20, 60 << 20),
    # No caches: what counts is how much of the memory one kernel spreads over.
    "cortex-m4": (16 << 10, 64 << 10, 256 << 10),
    "cortex-m7": (16 << 10, 64 << 10, 512 << 10),
}


@dataclass(frozen=True, slots=True)
class CoreKind:
    """A kind of core, told from others by features that it has, and the constants of cost
    (`cost.py`) that were set by timing kernels on it. Others are as of a Zen 4: the defaults, or
    what `benchmarks.calibrate` reads."""

    features: tuple[str, ...]
    costs: Mapping[str, float]


# The first one that fits counts. docs/schedules.md says where each number is from.
KNOWN: Final[tuple[CoreKind, ...]] = (
    # That steps are written out was timed, how many was not.
    CoreKind(("amx-tile",), {"multiplied": 128, "written": 4}),
    # Zen 5: no other core has both.
    CoreKind(
        ("avx512bf16", "avx512vp2intersect"),
        {
            "multiplied": 128,
            "latency": 4,
            "second_bytes": 32,
            "far_bytes": 20,
            "exchanged": 1.0,
            "cold_byte": 0.09,
            "fetched": 4096,
            "rows_above": 7,
            "results_above": 16,
            "lost_line": 4.0,
            "lost_result": 90.0,
            "lost_piece": 14.0,
        },
    ),
)


def costs_of(features: Collection[str]) -> tuple[tuple[str, float], ...]:
    """The constants of cost of the kind of core that has these features, by name."""
    for kind in KNOWN:
        if all(f in features for f in kind.features):
            return tuple(sorted(kind.costs.items()))
    return ()


# Families of features that generated code can make use of; an artifact requires no others.
USED: Final = tuple(
    "64bit adx amx avx bmi cmov cx16 cx8 f16c fma fxsr gfni lzcnt mmx movbe popcnt sahf sse ssse "
    "vaes vpclmulqdq neon fp-armv8 fullfp16 dotprod i8mm bf16 sve lse rdm".split()
)

# The default processor of an architecture.
TRIPLES: Final[Mapping[str, str]] = {
    "x86_64": "x86_64-unknown-linux-gnu",
    "aarch64": "aarch64-unknown-linux-gnu",
    "riscv64": "riscv64-unknown-linux-gnu",
    "wasm32": "wasm32-unknown-unknown",
    "thumbv7em": "thumbv7em-none-eabihf",
}

# The least processor of an architecture.
BASELINES: Final[Mapping[str, str]] = {
    "x86_64": "x86-64-v2",
    "aarch64": "aarch64",
    "riscv64": "riscv64",
    "wasm32": "wasm32",
    "thumbv7em": "cortex-m4",
}

# Bits and number of the vector registers, by the feature that brings them, most first.
_VECTORS: Final[Mapping[str, tuple[tuple[str, int, int], ...]]] = {
    "x86_64": (("avx512vl", 512, 32), ("avx2", 256, 16), ("", 128, 16)),
    "riscv64": (("v", 128, 32), ("", 32, 32)),
    "wasm32": (("simd128", 128, 16), ("", 32, 16)),
    "thumbv7em": (("", 32, 32),),
}
_TRIPLE: Final = re.compile(r"[\w.-]+", re.ASCII)
_ALIASES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


def architecture_of(triple: str) -> str:
    """The architecture of a triple such as aarch64-unknown-linux-gnu.

    Raises ArgumentError for one that no code is generated for.
    """
    first, *rest = triple.split("-")
    found = _ALIASES.get(first, first)
    if found not in TRIPLES or not rest or not _TRIPLE.fullmatch(triple):
        raise ArgumentError(
            f"no code is generated for the triple {triple!r}",
            code="TW-TRIPLE",
            hint=f"for example: {', '.join(TRIPLES.values())}",
        )
    return found


def vectors(arch: str, features: Collection[str]) -> tuple[int, int]:
    """Bits of a vector register, and how many there are; scalar registers where there are none."""
    for needed, bits, count in _VECTORS.get(arch, (("", 128, 32),)):
        if not needed or needed in features:
            return bits, count
    raise AssertionError(arch)
