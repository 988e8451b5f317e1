"""Programs for other processors, without a C compiler for them: run by qemu's user mode.

A program reads its inputs from standard input, calls a library, and writes the outputs: LLVM makes
it from text, and system calls are machine code in front of functions.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.driver.library.shared import shared_library
from tilewright.targets.llvm import backend


@dataclass(frozen=True)
class System:
    """Linux on one architecture: the machine code of `syscall(number, a, b, c)`, and numbers."""

    emulator: str
    triple: str
    features: str
    call: str
    read: int = 63
    write: int = 64
    exit: int = 93


SYSTEMS = {
    # mov x8,x0; mov x0,x1; mov x1,x2; mov x2,x3; svc 0; ret
    "aarch64": System(
        "qemu-aarch64",
        "aarch64-unknown-linux-gnu",
        "+neon",
        "E80300AAE00301AAE10302AAE20303AA010000D4C0035FD6",
    ),
    # mv a7,a0; mv a0,a1; mv a1,a2; mv a2,a3; ecall; ret
    "riscv64": System(
        "qemu-riscv64",
        "riscv64-unknown-linux-gnu",
        "+m,+a,+f,+d,+c",
        "93080500138505009305060013860600730000006780 0000".replace(" ", ""),
    ),
    # mov rax,rdi; mov rdi,rsi; mov rsi,rdx; mov rdx,rcx; syscall; ret
    "x86_64": System(
        "qemu-x86_64",
        "x86_64-unknown-linux-gnu",
        "",
        "4889F84889F74889D64889CA0F05C3",
        0,
        1,
        60,
    ),
}


def emulator(arch: str) -> str | None:
    """Where the emulator is, if anywhere."""
    name = SYSTEMS[arch].emulator
    return shutil.which(f"{name}-static") or shutil.which(name)


def program(
    arch: str,
    code: bytes,
    name: str,
    inputs: Sequence[int],
    outputs: Sequence[int],
    memory: int,
) -> bytes:
    """The program that calls `name`_run of an object once; sizes of tensors in bytes."""
    system = SYSTEMS[arch]
    target = backend.target_machine(system.triple, "", system.features, 2)
    module = backend.module_of(
        _text(system, name, inputs, outputs, memory), target, name
    )
    harness = bytes(target.emit_object(module))
    return shared_library([code, harness], "program", ["_start"], entry="_start")


def run(arch: str, file: str, arrays: Sequence[np.ndarray], *options: str) -> bytes:
    """What the program writes. Raises CalledProcessError, whose `returncode` is the library's."""
    found = emulator(arch)
    assert found is not None
    given = b"".join(a.tobytes() for a in arrays)
    done = subprocess.run(
        [found, *options, file],
        input=given,
        capture_output=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def _text(
    system: System,
    name: str,
    inputs: Sequence[int],
    outputs: Sequence[int],
    memory: int,
) -> str:
    data = bytes.fromhex(system.call)
    code = "".join(f"\\{b:02X}" for b in data)
    sizes = [*inputs, *outputs, max(1, memory)]
    lines = [
        f"@m{n} = internal global [{s} x i8] zeroinitializer, align 64"
        for n, s in enumerate(sizes)
    ]
    lines.append(
        "define internal i64 @syscall(i64 %n, i64 %a, ptr %b, i64 %c) noinline "
        f'prologue [{len(data)} x i8] c"{code}" {{\n  ret i64 0\n}}'
    )
    lines.append(_READ.format(read=system.read))
    passed = ", ".join(f"ptr @m{n}" for n in range(len(sizes)))
    lines.append(f"declare i32 @{name}_run({', '.join(['ptr'] * len(sizes))})")
    lines.append("define void @_start() alignstack(16) {")
    lines += [f"  call void @take(ptr @m{n}, i64 {s})" for n, s in enumerate(inputs)]
    lines.append(
        f"  %code = call i32 @{name}_run({passed})\n  %status = zext i32 %code to i64"
    )
    for n, s in enumerate(outputs, len(inputs)):
        lines.append(
            f"  %w{n} = call i64 @syscall(i64 {system.write}, i64 1, ptr @m{n}, i64 {s})"
        )
    lines.append(
        f"  %x = call i64 @syscall(i64 {system.exit}, i64 %status, ptr null, i64 0)"
    )
    return "\n".join([*lines, "  unreachable", "}"])


_READ = """\
define internal void @take(ptr %to, i64 %size) {{
entry:
  br label %more
more:
  %at = phi i64 [ 0, %entry ], [ %next, %more ]
  %left = sub i64 %size, %at
  %place = getelementptr i8, ptr %to, i64 %at
  %got = call i64 @syscall(i64 {read}, i64 0, ptr %place, i64 %left)
  %next = add i64 %at, %got
  %done = icmp uge i64 %next, %size
  %none = icmp slt i64 %got, 1
  %stop = or i1 %done, %none
  br i1 %stop, label %end, label %more
end:
  ret void
}}"""
