"""The native function of a segment: calls its kernels in order, on places in a pointer table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.runtime.abi import CTX_PROFILE, CTX_STATUS
from tilewright.targets.cpu.compile import compile_text
from tilewright.targets.cpu.emit import attributes
from tilewright.targets.cpu.machine import CpuMachine

if TYPE_CHECKING:
    from tilewright.targets.base import Argument, Call


def compile_entry(symbol: str, calls: Sequence[Call], machine: CpuMachine) -> bytes:
    """Object code of `void symbol(ptr ctx, ptr table)`; see runtime/abi.py.

    The kernels are external symbols. After each call the cycle counter is stored in slot
    `number + 1` of the profile (slot `number` of the first call gets the start), if there is one;
    a failure gets the kernel's number and ends the segment.
    Raises CompileError if LLVM refuses the code.
    """
    kernels = frozenset(c.symbol for c in calls)
    return compile_text(
        entry_ir(symbol, calls, machine), machine, symbol, allowed=kernels
    )


# After kernel `number`: add the number to a failure (the kernel stores it as that of kernel 0) or
# stamp the time; the result is whether it failed. Before the first kernel: stamp only.
_HELPERS = f"""define internal void @tw.stamp(ptr %ctx, i64 %slot) #0 {{
entry:
  %profile.at = getelementptr i8, ptr %ctx, i64 {8 * CTX_PROFILE}
  %profile = load ptr, ptr %profile.at, align 8
  %profiled = icmp ne ptr %profile, null
  br i1 %profiled, label %stamp, label %done
stamp:
  %time = call i64 @llvm.readcyclecounter()
  %at = getelementptr i64, ptr %profile, i64 %slot
  store i64 %time, ptr %at, align 8
  br label %done
done:
  ret void
}}
define internal i1 @tw.after(ptr %ctx, i64 %number) #0 {{
entry:
  %status.at = getelementptr i8, ptr %ctx, i64 {8 * CTX_STATUS}
  %status = load i64, ptr %status.at, align 8
  %fine = icmp eq i64 %status, 0
  br i1 %fine, label %ok, label %failed
failed:
  %shifted = shl i64 %number, 8
  %numbered = add i64 %status, %shifted
  store i64 %numbered, ptr %status.at, align 8
  ret i1 true
ok:
  %slot = add i64 %number, 1
  call void @tw.stamp(ptr %ctx, i64 %slot)
  ret i1 false
}}"""


def entry_ir(symbol: str, calls: Sequence[Call], machine: CpuMachine) -> str:
    """The segment's function as LLVM assembly."""
    declared = {c.symbol: len(c.arguments) + 2 for c in calls}
    lines = [
        f"declare void @{name}({', '.join(['ptr'] * n)})"
        for name, n in declared.items()
    ]
    lines += [_HELPERS, f"define void @{symbol}(ptr %ctx, ptr %table) #0 {{", "entry:"]
    if calls:
        lines.append(f"  call void @tw.stamp(ptr %ctx, i64 {calls[0].number})")
    for n, call in enumerate(calls):
        lines += _call(n, call)
    lines += ["  br label %done", "done:", "  ret void", "}", attributes(machine)]
    return "\n".join(lines)


def _call(n: int, call: Call) -> list[str]:
    lines: list[str] = []
    passed = ["ptr %ctx"]
    for k, argument in enumerate((*call.arguments, call.workspace)):
        lines += _argument(f"a{n}.{k}", argument)
        passed.append(f"ptr %a{n}.{k}")
    return [
        *lines,
        f"  call void @{call.symbol}({', '.join(passed)})",
        f"  %failed{n} = call i1 @tw.after(ptr %ctx, i64 {call.number})",
        f"  br i1 %failed{n}, label %done, label %next{n}",
        f"next{n}:",
    ]


def _argument(name: str, place: Argument) -> list[str]:
    return [
        f"  %{name}.at = getelementptr i8, ptr %table, i64 {8 * place.slot}",
        f"  %{name}.base = load ptr, ptr %{name}.at, align 8",
        f"  %{name} = getelementptr i8, ptr %{name}.base, i64 {place.offset}",
    ]
