"""A model as one object file for C programs: the kernels of all variants and the functions around.

LLVM links the parts, so that everything except the exported functions is internal to the object, in
the format of the triple's system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tilewright.base.errors import CompileError, UnsupportedError
from tilewright.targets.base import LibrarySignature, LibraryVariant
from tilewright.targets.cpu import cpuid
from tilewright.targets.cpu.compile import optimized
from tilewright.targets.cpu.emit import attributes
from tilewright.targets.cpu.library_text import interface_text, variant_text
from tilewright.targets.cpu.machine import CpuMachine, machine
from tilewright.targets.cpu.processors import BASELINES
from tilewright.targets.cpu.whole_numbers import FUNCTIONS, functions_text
from tilewright.targets.llvm import backend, object_file

# Functions that every compiler for a processor brings: arithmetic that it has no instruction for.
_BUILT_IN: Final = {"thumbv7em": "__aeabi_"}
# Bytes that LLVM makes of constants, which are put in their place later.
_RESERVED: Final = 64
# Bytes, in reach of a 32-bit displacement next to the code.
MAX_CONSTANTS: Final = 2_000_000_000


def checked(m: CpuMachine) -> CpuMachine:
    """The machine with only those features that a library can detect at run time."""
    if m.arch != "x86_64":
        return m
    return replace(m, features=tuple(f for f in m.features if f in cpuid.FEATURES))


def compile_library(
    variants: Sequence[tuple[LibraryVariant, CpuMachine]],
    interface: LibrarySignature,
    level: int,
) -> bytes:
    """The object file that defines NAME_run and NAME_run_parallel.

    The first variant that the processor supports is run. Raises UnsupportedError for too many
    constants, CompileError if LLVM rejects the code.
    """
    if len(interface.constants) > MAX_CONSTANTS:
        raise UnsupportedError(
            f"the constants have {len(interface.constants):,} bytes, a library holds at most "
            f"{MAX_CONSTANTS:,}",
            where=interface.name,
            hint="quantize the model, or save it as an artifact (.tw)",
        )
    base = _baseline(variants[0][1])
    whole = backend.module_of(
        _glue(variants, interface, base), _machine_of(base, level), interface.name
    )
    for n, (variant, m) in enumerate(variants):
        module = _joined(n, variant, m, interface, level)
        backend.link_in(whole, module, interface.name)
    code = _emitted(whole, interface.name, base, level)
    if object_file.is_elf(code):
        return object_file.with_data(code, _section(interface), interface.constants)
    return code


def _joined(
    n: int,
    variant: LibraryVariant,
    m: CpuMachine,
    interface: LibrarySignature,
    level: int,
) -> Any:
    """A variant as one module, which exports only its function."""
    name = interface.name
    text = variant_text(n, variant, interface) + "\n" + attributes(m)
    whole = optimized(text, m, name, level)
    for part in variant.parts:
        module = optimized(part.decode(), m, name, level)
        backend.link_in(whole, module, name)
    backend.keep_internal(whole, {f"{name}.variant{n}"})
    return whole


def _emitted(module: Any, name: str, m: CpuMachine, level: int) -> bytes:
    """The object, with the functions that its processor's instructions lack."""
    target = _machine_of(m, level)
    exported = {f"{name}_run", f"{name}_run_parallel"}
    backend.keep_internal(module, exported)
    code = bytes(target.emit_object(module))
    missing = object_file.undefined(code)
    if known := [f for f in missing if f in FUNCTIONS]:
        text = functions_text(known) + "\n" + attributes(m)
        backend.link_in(module, backend.module_of(text, target, name), name)
        backend.keep_internal(module, exported)
        code = bytes(target.emit_object(module))
        missing = object_file.undefined(code)
    prefix = _BUILT_IN.get(m.arch)
    lost = [f for f in missing if prefix is None or not f.startswith(prefix)]
    if lost:
        raise CompileError(
            f"the generated code needs functions it may not call: {', '.join(lost)}",
            code="TW-SYMBOL",
            where=name,
            hint="the code generator must expand these operations itself",
        )
    return code


def _glue(
    variants: Sequence[tuple[LibraryVariant, CpuMachine]],
    interface: LibrarySignature,
    m: CpuMachine,
) -> str:
    """What is around the variants, in instructions that every processor of the kind has."""
    name = interface.name
    choose = f"{name}.choose"
    if m.arch == "x86_64":
        chosen = cpuid.processor_text(
            name, choose, [v.features for _, v in variants], "#0"
        )
    else:
        chosen = f"define internal i32 @{choose}() #0 {{\n  ret i32 1\n}}"
    text = interface_text(
        [v for v, _ in variants], interface, _initial(m.triple, interface)
    )
    return "\n".join([text, chosen, attributes(m)])


def _initial(triple: str, interface: LibrarySignature) -> str:
    """The constants as LLVM sees them: a place for them where the object file is ELF."""
    if object_file.format_of(triple) == "elf":
        return f'[{_RESERVED} x i8] zeroinitializer, section "{_section(interface)}"'
    data = bytes(interface.constants)
    text = "".join(f"\\{byte:02X}" for byte in data)
    return f'[{len(data)} x i8] c"{text}"'


def _section(interface: LibrarySignature) -> str:
    return f".rodata.{interface.name}.constants"


def _baseline(m: CpuMachine) -> CpuMachine:
    """The baseline processor of the architecture; except on x86-64, code uses all requested
    features."""
    return machine(BASELINES[m.arch], m.triple) if m.arch == "x86_64" else m


def _machine_of(m: CpuMachine, level: int) -> Any:
    return backend.target_machine(m.triple, "", m.feature_string, level)
