"""The thread pool's native half for one architecture, as an object that artifacts carry."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError
from tilewright.runtime import abi
from tilewright.targets.cpu.pool_text import TEXT
from tilewright.targets.llvm import backend


@dataclass(frozen=True, slots=True)
class _Arch:
    """Inline assembly of one architecture; `system` takes a call's number, 3 arguments and 0.

    calls: the numbers of system calls by name.
    """

    triple: str
    pause: str
    ticks: str
    system: str
    calls: Mapping[str, int]


_ARCHES = {
    "x86_64": _Arch(
        "x86_64-unknown-linux-gnu",
        'call void asm sideeffect "pause", "~{memory}"()',
        "call i64 @llvm.readcyclecounter()",
        '"syscall", "={rax},{rax},{rdi},{rsi},{rdx},{r10},~{rcx},~{r11},~{memory}"',
        {
            "futex": 202,
            "gettid": 186,
            "getcpu": 309,
            "setaffinity": 203,
            "getaffinity": 204,
        },
    ),
    "aarch64": _Arch(
        "aarch64-unknown-linux-gnu",
        'call void asm sideeffect "isb", "~{memory}"()',
        'call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()',
        '"svc #0", "={x0},{x8},{x0},{x1},{x2},{x3},~{memory}"',
        {
            "futex": 98,
            "gettid": 178,
            "getcpu": 168,
            "setaffinity": 122,
            "getaffinity": 123,
        },
    ),
}

_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129

# The caller's work is not finished while it waits, so it gives up spinning later than a worker.
_CALLER_PATIENCE = 4
# As a shift of that time: how long the caller hopes that its workers are nearly done,
# before it looks at the claim of each, which costs a cache miss.
_CALLER_GRACE_SHIFT = 4


def ir(arch: str) -> str:
    """The pool's module for "x86_64" or "aarch64". Raises UnsupportedError for any other."""
    if arch not in _ARCHES:
        raise UnsupportedError(
            f"no thread pool for the architecture {arch}", code="TW-MCPU"
        )
    machine = _ARCHES[arch]
    fields = {name: getattr(abi, name) for name in dir(abi) if name.isupper()}
    return TEXT.format(
        **fields,
        triple=machine.triple,
        pause=machine.pause,
        ticks=machine.ticks,
        system=machine.system,
        **machine.calls,
        wait=_FUTEX_WAIT_PRIVATE,
        wake=_FUTEX_WAKE_PRIVATE,
        patience=_CALLER_PATIENCE,
        grace=_CALLER_GRACE_SHIFT,
    )


def support(arch: str) -> tuple[bytes, ...]:
    """The pool's code for an artifact for `arch`, if it can be assembled here; else nothing.

    llvmlite only has the assembler of its own architecture. Code without the pool runs on one
    thread.
    """
    if arch == _host_arch():
        return (pool_object(arch),)
    return ()


@cache
def pool_object(arch: str = "x86_64") -> bytes:
    """The pool as an ELF object for any processor of `arch`: it travels in every artifact.

    Raises UnsupportedError for another architecture than this machine's: llvmlite carries only
    the native assembler, and the pool calls the system in assembly.
    """
    text = ir(arch)
    here = _host_arch()
    if arch != here:
        raise UnsupportedError(
            f"the thread pool for {arch} cannot be assembled on {here}",
            code="TW-MCPU",
            hint="Code for another architecture runs on one thread, without the pool",
        )
    cpu = "x86-64" if arch == "x86_64" else "generic"
    machine = backend.target_machine(_ARCHES[arch].triple, cpu, "", 2)
    module = backend.module_of(text, machine, "thread pool")
    code: bytes = machine.emit_object(module)
    return code


def _host_arch() -> str:
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine(), platform.machine()
    )
