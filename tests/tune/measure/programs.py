"""Artifacts of one function that adds 1 to an array, and of functions that do worse."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import llvmlite.binding as llvm
import numpy as np

from tilewright.runtime import bundle
from tilewright.runtime.model import (
    CompiledModel,
    KernelRecord,
    NativeStep,
    Tensor,
    ValueSlot,
)
from tilewright.tune.measure.reference import ReferenceCase, ReferenceResult, pack

SIZE: Final = 1000  # elements; no number of pages
_SYSCALL: Final = (
    'call i64 asm sideeffect "syscall", "={{rax}},{{rax}},{{rdi}},{{rsi}},{{rdx}},{{r10}},{{r8}},'
    '{{r9}},~{{rcx}},~{{r11}},~{{memory}}"(i64 {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {})'
)
_WHOLE: Final = """
@noise = internal constant [8 x i8] c"{{\\22ok\\22:1\\0a"
define void @segment_0(ptr %ctx, ptr %table) {{
entry:
  %x.at = getelementptr ptr, ptr %table, i64 2
  %x = load ptr, ptr %x.at
  %y.at = getelementptr ptr, ptr %table, i64 3
  %y = load ptr, ptr %y.at
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %from = getelementptr float, ptr %x, i64 %i
  %to = getelementptr float, ptr %y, i64 %i
  %value = load float, ptr %from, align 4
  %more = fadd float %value, 1.0
  store float %more, ptr %to, align 4
  %next = add i64 %i, 1
  %again = icmp slt i64 %next, {size}
  br i1 %again, label %loop, label %last
last:
{last}
}}
"""


def _call(number: int | str, *given: int | str) -> str:
    return _SYSCALL.format(number, *given, *[0] * (6 - len(given)))


def _store(pointer: str, at: int) -> str:
    place = f"%there = getelementptr float, ptr {pointer}, i64 {at}"
    return f"{place}\nstore volatile float 7.0, ptr %there, align 4\nret void"


def _on_lines() -> str:
    """A wrong element where the output begins at a line of the caches."""
    return (
        "%address = ptrtoint ptr %y to i64\n%rest = and i64 %address, 63\n"
        "%is = icmp eq i64 %rest, 0\nbr i1 %is, label %bad, label %out\n"
        "bad:\nstore volatile float 7.0, ptr %y\nbr label %out\nout:\nret void"
    )


# What each does after it has added.
ENDS: Final = {
    "good": "ret void",
    "null": "store volatile i32 1, ptr inttoptr (i64 8 to ptr)\nret void",
    "illegal": 'call void asm sideeffect "ud2", ""()\nret void',
    "hangs": 'br label %spin\nspin:\ncall void asm sideeffect "", ""()\nbr label %spin',
    "exits": f"%r = {_call(231, 3)}\nret void",
    "aborts": f"%p = {_call(39)}\n%r = {_call(62, '%p', 6)}\nret void",
    "stops": f"%p = {_call(39)}\n%r = {_call(62, '%p', 19)}\nret void",
    "kills": f"%p = {_call(110)}\n%r = {_call(62, '%p', 9)}\nret void",
    "prints": f"%n = ptrtoint ptr @noise to i64\n%r = {_call(1, 1, '%n', 8)}\n"
    f"%e = {_call(1, 2, '%n', 8)}\nret void",
    "wrong": _store("%y", SIZE - 2),
    "beyond": _store("%y", SIZE),
    "before": _store("%y", -1),
    "on_lines": _on_lines(),
    "input": _store("%x", 0),
    "allocates": f"br label %more_memory\nmore_memory:\n%m = {_call(9, 0, 1 << 24, 3, 34, -1)}\n"
    "%there = inttoptr i64 %m to ptr\nstore volatile i32 1, ptr %there\n"
    "br label %more_memory",
}


@cache
def artifact(kind: str, folder: Path, workspace: int = 0) -> bytes:
    """The artifact of a function; folder: to write in. workspace: bytes that it says it needs."""
    x, y = (Tensor(n, "float32", (SIZE,)) for n in "xy")
    slots = (ValueSlot("input", 0, x), ValueSlot("output", 0, y))
    step = NativeStep("segment_0", slots, (KernelRecord(0, kind),))
    code = (_object(_WHOLE.format(size=SIZE, last=ENDS[kind])),)
    model = CompiledModel((x,), (y,), (step,), code, workspace=workspace)
    bundle.write(model, folder / f"{kind}.tw")
    return (folder / f"{kind}.tw").read_bytes()


def _object(text: str) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    machine = llvm.Target.from_default_triple().create_target_machine(
        reloc="pic", codemodel="small"
    )
    code: bytes = machine.emit_object(llvm.parse_assembly(text))
    return code


def reference(cases: int = 2) -> bytes:
    """What it has to give, for several inputs."""
    return pack([case(n) for n in range(cases)])


def case(seed: int) -> ReferenceCase:
    """Inputs and results."""
    x = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)
    places = np.array([0, 5])
    value = (x[places] + 1).astype(np.float64)
    before = np.full(1, 3, np.float32)
    return ReferenceCase(
        (x,), (ReferenceResult(before, x + 1, 0.0, places, value, np.zeros(2)),)
    )
