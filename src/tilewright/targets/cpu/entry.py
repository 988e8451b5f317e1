"""The native function of a segment: calls its kernels in order, on places in a pointer table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.runtime.abi import CTX_PROFILE, CTX_STATUS
from tilewright.targets.cpu.compile import compile_text
from tilewright.targets.cpu.emit import attributes
from tilewright.targets.cpu.machine import Machine

if TYPE_CHECKING:
    from tilewright.targets.base import Argument, Call


def compile_entry(symbol: str, calls: Sequence[Call], machine: Machine) -> bytes:
    """Object code of `void symbol(ptr ctx, ptr table)`; see runtime/abi.py.

    The kernels are external symbols. After each call the cycle counter is stored in slot
    `number + 1` of the profile (slot `number` of the first call gets the start), if there is one;
    a failure gets the kernel's number and ends the segment.
    Raises CompileError if LLVM refuses the code.
    """
    kernels = frozenset(c.symbol for c in calls)
    return compile_text(entry_ir(symbol, calls, machine), machine, symbol, allowed=kernels)


def entry_ir(symbol: str, calls: Sequence[Call], machine: Machine) -> str:
    """The segment's function as LLVM assembly."""
    declared = {c.symbol: len(c.arguments) + 2 for c in calls}
    lines = [f"declare void @{name}({', '.join(['ptr'] * n)})" for name, n in declared.items()]
    lines += [
        f"define void @{symbol}(ptr %ctx, ptr %table) #0 {{",
        "entry:",
        f"  %status = getelementptr i8, ptr %ctx, i64 {8 * CTX_STATUS}",
        f"  %profile.at = getelementptr i8, ptr %ctx, i64 {8 * CTX_PROFILE}",
        "  %profile = load ptr, ptr %profile.at, align 8",
        "  %profiled = icmp ne ptr %profile, null",
    ]
    if calls:
        lines += _stamp("start", calls[0].number)
    for n, call in enumerate(calls):
        lines += _call(n, call)
    lines += ["  ret void", "}", attributes(machine)]
    return "\n".join(lines)


def _call(n: int, call: Call) -> list[str]:
    lines: list[str] = []
    passed = ["ptr %ctx"]
    for k, argument in enumerate((*call.arguments, call.workspace)):
        lines += _argument(f"a{n}.{k}", argument)
        passed.append(f"ptr %a{n}.{k}")
    # The kernel stores a failure as that of kernel 0, so its number is what is missing.
    return [
        *lines,
        f"  call void @{call.symbol}({', '.join(passed)})",
        f"  %s{n} = load i64, ptr %status, align 8",
        f"  %ok{n} = icmp eq i64 %s{n}, 0",
        f"  br i1 %ok{n}, label %fine{n}, label %failed{n}",
        f"failed{n}:",
        f"  %t{n} = add i64 %s{n}, {call.number << 8}",
        f"  store i64 %t{n}, ptr %status, align 8",
        "  ret void",
        f"fine{n}:",
        *_stamp(f"after{n}", call.number + 1),
    ]


def _argument(name: str, place: Argument) -> list[str]:
    return [
        f"  %{name}.at = getelementptr i8, ptr %table, i64 {8 * place.slot}",
        f"  %{name}.base = load ptr, ptr %{name}.at, align 8",
        f"  %{name} = getelementptr i8, ptr %{name}.base, i64 {place.offset}",
    ]


def _stamp(name: str, slot: int) -> list[str]:
    return [
        f"  br i1 %profiled, label %{name}.stamp, label %{name}.go",
        f"{name}.stamp:",
        f"  %{name}.time = call i64 @llvm.readcyclecounter()",
        f"  %{name}.at = getelementptr i8, ptr %profile, i64 {8 * slot}",
        f"  store i64 %{name}.time, ptr %{name}.at, align 8",
        f"  br label %{name}.go",
        f"{name}.go:",
    ]
