"""Target: which processor to compile for, as Halide names it.

Code runs on this processor, so a Target only answers questions (how long vectors are, which
features there are) and checked, and does not choose.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.lang.halide.syntax.types import Type, plain
from tilewright.runtime.machine import architecture, cpu_flags

TargetOS: Final = Enum(
    "TargetOS",
    "OSUnknown Linux Windows OSX Android IOS QuRT NoOS wasmrt",
    start=0,
)
TargetArch: Final = Enum(
    "TargetArch", "ArchUnknown X86 ARM POWERPC Hexagon WebAssembly RISCV", start=0
)
TargetProcessorTune: Final = Enum(
    "TargetProcessorTune",
    "TuneGeneric TuneAMDFam10 TuneBdVer1 TuneBdVer2 TuneBdVer3 TuneBdVer4 TuneBtVer1 TuneBtVer2 "
    "TuneK8 TuneK8_SSE3 TuneZnVer1 TuneZnVer2 TuneZnVer3 TuneZnVer4 TuneZnVer5",
    start=0,
)
DeviceAPI: Final = Enum(
    "DeviceAPI", "None Host Default_GPU CUDA OpenCL Metal Hexagon Vulkan", start=0
)
TargetFeature: Final = Enum(
    "TargetFeature",
    "JIT Debug NoAsserts NoBoundsQuery SSE41 AVX AVX2 FMA FMA4 F16C ARMv7s NoNEON VSX "
    "POWER_ARCH_2_07 CUDA CUDACapability30 CUDACapability32 CUDACapability35 CUDACapability50 "
    "CUDACapability61 CUDACapability70 CUDACapability75 CUDACapability80 CUDACapability86 OpenCL "
    "CLDoubles CLHalf CLAtomics64 EGL UserContext Profile NoRuntime Metal CPlusPlusMangling "
    "LargeBuffers HexagonDma HVX_128 HVX_v62 HVX_v65 HVX_v66 HVX_v68 HVX FuzzFloatStores "
    "SoftFloatABI MSAN AVX512 AVX512_KNL AVX512_Skylake AVX512_Cannonlake AVX512_SapphireRapids "
    "AVX512_Zen4 AVX512_Zen5 TraceLoads TraceStores TraceRealizations TracePipeline "
    "D3D12Compute StrictFloat TSAN ASAN CheckUnsafePromises EmbedBitcode EnableLLVMLoopOpt "
    "WasmMvpOnly WasmSimd128 WasmThreads WasmBulkMemory WebGPU SVE SVE2 ARMDotProd ARMFp16 "
    "LLVMLargeCodeModel RVV ARMv8a ARMv81a ARMv82a ARMv83a ARMv84a ARMv85a ARMv86a ARMv87a "
    "ARMv88a ARMv89a SanitizerCoverage ProfileByTimer SPIRV Vulkan VulkanInt8 VulkanInt16 "
    "VulkanInt64 VulkanFloat16 VulkanFloat64 VulkanV10 VulkanV12 VulkanV13 Semihosting AVX10_1 "
    "X86APX Simulator AVXVNNI EnableBacktraces FeatureEnd",
    start=0,
)
TargetOS.__doc__ = "The operating systems, by Halide's names."
TargetArch.__doc__ = "The architectures of processors, by Halide's names."
TargetProcessorTune.__doc__ = "The processors to tune for, by Halide's names; not used."
DeviceAPI.__doc__ = (
    "The interfaces of devices; the Target's is used, whatever is given."
)
TargetFeature.__doc__ = "What a Target can have, by Halide's names."

# The compiler's target of a feature.
_DEVICES: Final = {"CUDA": "cuda", "OpenCL": "opencl"}
_GPU: Final = ("CUDA", "OpenCL", "Metal", "D3D12Compute", "Vulkan", "WebGPU")
# Features and the processor's flags (of the kernel, without punctuation) that each needs.
_FLAGS: Final = {
    "SSE41": "sse41",
    "AVX": "avx",
    "F16C": "f16c",
    "FMA": "fma",
    "AVX2": "avx2",
    "AVX512": "avx512f avx512cd",
    "AVX512_Skylake": "avx512f avx512cd avx512vl avx512bw avx512dq",
    "AVX512_Cannonlake": "avx512f avx512cd avx512vl avx512bw avx512dq avx512ifma avx512vbmi",
    "AVX512_Zen4": "avx512f avx512cd avx512vl avx512bw avx512dq avx512ifma avx512vbmi avx512vnni "
    "avx512bf16 avx512vpopcntdq avx512bitalg avx512vbmi2",
    "AVX512_SapphireRapids": "avx512f avx512fp16 avxvnni amxtile amxint8 amxbf16",
    "AVXVNNI": "avxvnni",
    "ARMDotProd": "asimddp",
    "ARMFp16": "fphp asimdhp",
    "SVE": "sve",
    "SVE2": "sve2",
}
_ARCH: Final = {"x86": "X86", "arm": "ARM", "powerpc": "POWERPC", "riscv": "RISCV"}
_WIDTHS: Final = (("AVX512", 512), ("AVX", 256))


class Target:
    """An operating system, an architecture, a width of addresses and features.

    Made of a text (`"host"`, `"x86-64-linux-avx2"`), or of these parts; without any, unknown.
    Raises InputError for a text that names no target.
    """

    os: Enum
    arch: Enum
    bits: int
    processor_tune: Enum

    def __init__(self, source: Any = None, *parts: Any) -> None:
        self.os = TargetOS["OSUnknown"]
        self.arch = TargetArch["ArchUnknown"]
        self.bits = 0
        self.processor_tune = TargetProcessorTune["TuneGeneric"]
        self._features: set[Enum] = set()
        if isinstance(source, str):
            self._read(source)
        elif source is not None:
            self.os = source
            self.arch, self.bits, *rest = parts
            for part in rest:
                if isinstance(part, TargetProcessorTune):
                    self.processor_tune = part
                else:
                    self._features |= set(part)

    def _read(self, text: str) -> None:
        words = text.split("-")
        if words and words[0] == "host":
            host = get_host_target()
            self.os, self.arch, self.bits = host.os, host.arch, host.bits
            self._features = set(host._features)
            words = words[1:]
        for word in words:
            if not self._take(word.lower()):
                raise InputError(
                    f"{word!r} of the target {text!r} is not known",
                    where="Target",
                    hint="as in host, x86-64-linux-avx2 or host-no_asserts",
                )

    def _take(self, word: str) -> bool:
        """Set what a word of a target's text says; False for a word that says nothing."""
        if word in ("32", "64"):
            self.bits = int(word)
        elif word in _ARCH:
            self.arch = TargetArch[_ARCH[word]]
        elif word in _OS:
            self.os = _OS[word]
        elif word in _TUNES:
            self.processor_tune = _TUNES[word]
        elif word in _FEATURES:
            self._features.add(_FEATURES[word])
        else:
            return False
        return True

    @staticmethod
    def validate_target_string(text: str) -> bool:
        """Whether a text names a target."""
        try:
            Target(text)
        except InputError:
            return False
        return True

    def has_feature(self, feature: Enum) -> bool:
        """Whether it has a feature."""
        return feature in self._features

    def features_all_of(self, features: Iterable[Enum]) -> bool:
        """Whether it has all of some features."""
        return self._features.issuperset(features)

    def features_any_of(self, features: Iterable[Enum]) -> bool:
        """Whether it has one of some features."""
        return not self._features.isdisjoint(features)

    def set_feature(self, feature: Enum, value: bool = True) -> None:
        """Give it a feature, or take it away."""
        self.set_features([feature], value)

    def set_features(self, features: Iterable[Enum], value: bool = True) -> None:
        """Give it features, or take them away."""
        if value:
            self._features |= set(features)
        else:
            self._features -= set(features)

    def with_feature(self, feature: Enum) -> Target:
        """Another one with a feature."""
        return self._with(feature, True)

    def without_feature(self, feature: Enum) -> Target:
        """Another one without a feature."""
        return self._with(feature, False)

    def _with(self, feature: Enum, value: bool) -> Target:
        made = Target(
            self.os, self.arch, self.bits, self.processor_tune, self._features
        )
        made.set_feature(feature, value)
        return made

    def has_gpu_feature(self) -> bool:
        """Whether it has a GPU."""
        return any(f.name in _GPU for f in self._features)

    def has_large_buffers(self) -> bool:
        """Whether a Buffer may have more than 2**31 - 1 bytes."""
        return self.bits == 64 and self.has_feature(TargetFeature["LargeBuffers"])

    def maximum_buffer_size(self) -> int:
        """The bytes that a Buffer may have."""
        return (1 << (63 if self.has_large_buffers() else 31)) - 1

    def natural_vector_size(self, type: Any) -> int:
        """Elements of a type in one vector register."""
        found = {f.name for f in self._features}
        widths = (bits for name, bits in _WIDTHS if name in found)
        return max(1, next(widths, 128) // (8 * plain(type).itemsize))

    def supports_type(self, type: Type, device: Enum | None = None) -> bool:
        """Whether there are values of a type on it."""
        return device in (None, DeviceAPI["Host"], DeviceAPI["None"])

    def supports_device_api(self, api: Enum) -> bool:
        """Whether it has a kind of device."""
        return api in (DeviceAPI["Host"], DeviceAPI["None"])

    def supported(self) -> bool:
        """Whether code can be made for it: it is this machine, without a GPU."""
        host = get_host_target()
        same = (self.os, self.arch, self.bits) == (host.os, host.arch, host.bits)
        return same and not self.has_gpu_feature()

    def to_string(self) -> str:
        """Its text."""
        arch = self.arch.name.lower() if self.bits else "arch_unknown"
        os = self.os.name.lower() if self.bits else "os_unknown"
        names = sorted(f.name.lower() for f in self._features)
        return "-".join([arch, str(self.bits), os, *names])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and self.to_string() == other.to_string()

    def __hash__(self) -> int:
        return hash(self.to_string())

    def __str__(self) -> str:
        return self.to_string()

    def __repr__(self) -> str:
        return f"Target({self.to_string()})"


def _spelled(names: type[Enum], prefix: str = "") -> dict[str, Enum]:
    """Members by the words of a target's text: `NoAsserts` is no_asserts, `AVX2` avx2."""
    found = {}
    for member in names:
        name = member.name.removeprefix(prefix)
        words = "".join(
            f"_{c}" if c.isupper() and name[n - 1 : n].islower() else c
            for n, c in enumerate(name)
        )
        found[words.lower()] = member
        found[name.lower()] = member
    return found


_FEATURES: Final = _spelled(TargetFeature)
_OS: Final = _spelled(TargetOS)
_TUNES: Final = {
    f"tune_{k}": v for k, v in _spelled(TargetProcessorTune, "Tune").items()
}


def get_host_target() -> Target:
    """This machine."""
    arch = {"x86_64": "X86", "aarch64": "ARM"}.get(architecture(), "ArchUnknown")
    os = {"Linux": "Linux", "Darwin": "OSX", "Windows": "Windows"}
    flags = cpu_flags()
    features = {
        TargetFeature[name]
        for name, needed in _FLAGS.items()
        if flags.issuperset(needed.split())
    }
    system = TargetOS[os.get(platform.system(), "OSUnknown")]
    return Target(system, TargetArch[arch], 64, features)


def get_jit_target_from_environment() -> Target:
    """This machine: no variable of the environment chooses another."""
    return get_host_target()


def host_supports_target_device(target: Target) -> bool:
    """Whether this machine has the devices of a target."""
    return target.supported()


def compile_for(target: Any) -> str:
    """The compiler's name of a target. Raises UnsupportedError for another machine than this."""
    if not isinstance(target, Target):
        return str(target)
    for feature, name in _DEVICES.items():
        if target.has_feature(TargetFeature[feature]):
            return name
    if target.bits and not target.supported():
        raise UnsupportedError(
            f"code for {target} does not run here",
            where="Target",
            hint="take get_host_target(), with the feature OpenCL or CUDA for a GPU",
        )
    return "cpu"
