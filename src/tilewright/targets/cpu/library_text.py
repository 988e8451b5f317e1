"""The functions that a library exports, as LLVM assembly.

    i32 NAME_run(parameters..., workspace)                          on the caller's thread
    i32 NAME_run_parallel(run, threads, parameters..., workspace)   loops are shared out by `run`

A parameter is the address of a tensor. Each variant of the model is a function that makes the
context and the table of `runtime/abi.py` on the stack and calls the segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilewright.runtime.abi import (
    ALIGNMENT,
    CTX_PARALLEL,
    CTX_SLOTS,
    CTX_STATUS,
    CTX_THREADS,
    NO_MEMORY,
    NO_PROCESSOR,
    NOT_ALIGNED,
    TABLE_FIRST_VALUE,
)
from tilewright.targets.base import (
    LibraryCall,
    LibraryCopy,
    LibrarySignature,
    LibraryVariant,
    TensorLocation,
)


def interface_text(
    variants: Sequence[LibraryVariant], interface: LibrarySignature, reserved: str
) -> str:
    """All functions of the library but the segments and the one that chooses a variant.

    reserved: the initial value of the constants, with the section that they are in.
    """
    name = interface.name
    passed = _passed(interface)
    lines = [
        f"@{name}.constants = internal externally_initialized global {reserved}, "
        f"align {ALIGNMENT}"
    ]
    lines += [
        f"declare i32 @{name}.variant{n}(ptr, i64, ptr, {passed})"
        for n in range(len(variants))
    ]
    cases = [f"    i32 {n + 1}, label %run{n}" for n in range(len(variants))]
    calls = [_choice(name, n, v.constants, passed) for n, v in enumerate(variants)]
    check = _CHECK.format(mask=ALIGNMENT - 1) if interface.workspace else _NO_CHECK
    lines.append(
        _EXPORTED.format(
            name=name,
            passed=passed,
            check=check,
            cases="\n".join(cases),
            calls="\n".join(calls),
            no_memory=NO_MEMORY,
            unaligned=NOT_ALIGNED,
            no_processor=NO_PROCESSOR,
        )
    )
    return "\n".join(lines)


def _passed(interface: LibrarySignature) -> str:
    return ", ".join([*(f"ptr %p{n}" for n in range(interface.parameters)), "ptr %ws"])


def _choice(name: str, n: int, constants: int, passed: str) -> str:
    return f"""\
run{n}:
  %constants{n} = getelementptr i8, ptr @{name}.constants, i64 {constants}
  %status{n} = call i32 @{name}.variant{n}(ptr %run, i64 %shares, ptr %constants{n}, {passed})
  ret i32 %status{n}"""


def variant_text(number: int, v: LibraryVariant, interface: LibrarySignature) -> str:
    """The function NAME.variantNUMBER, which calls what the parts of the variant define."""
    called = {a.symbol for a in v.actions if isinstance(a, LibraryCall)}
    slots = [len(a.values) for a in v.actions if isinstance(a, LibraryCall)]
    lines = [f"declare void @{symbol}(ptr, ptr)" for symbol in sorted(called)]
    lines += [
        _COPY,
        _PROLOGUE.format(
            name=interface.name,
            number=number,
            passed=_passed(interface),
            slots=CTX_SLOTS,
            table=TABLE_FIRST_VALUE + max(slots, default=0),
            parallel=8 * CTX_PARALLEL,
            threads=8 * CTX_THREADS,
            status=8 * CTX_STATUS,
        ),
    ]
    for n, action in enumerate(v.actions):
        if isinstance(action, LibraryCall):
            lines += _call(f"a{n}", action)
        else:
            lines += _copy(f"a{n}", action)
    lines += ["  ret i32 0", "failed:", "  %ended = load i64, ptr %status.at, align 8"]
    lines += ["  %code = and i64 %ended, 255", "  %result = trunc i64 %code to i32"]
    return "\n".join([*lines, "  ret i32 %result", "}"])


def _call(n: str, action: LibraryCall) -> list[str]:
    lines = _stored(f"{n}.arena", 0, "%ws") + _stored(f"{n}.constants", 1, "%constants")
    for k, place in enumerate(action.values):
        lines += _address(f"{n}.v{k}", place)
        lines += _stored(f"{n}.s{k}", TABLE_FIRST_VALUE + k, f"%{n}.v{k}")
    return [
        *lines,
        f"  call void @{action.symbol}(ptr %ctx, ptr %table)",
        f"  %{n}.status = load i64, ptr %status.at, align 8",
        f"  %{n}.fine = icmp eq i64 %{n}.status, 0",
        f"  br i1 %{n}.fine, label %{n}.next, label %failed",
        f"{n}.next:",
    ]


def _copy(n: str, action: LibraryCopy) -> list[str]:
    return [
        *_address(f"{n}.from", action.source),
        *_address(f"{n}.to", action.target),
        f"  call void @tw.copy(ptr %{n}.to, ptr %{n}.from, i64 {action.size})",
    ]


def _stored(n: str, slot: int, value: str) -> list[str]:
    return [
        f"  %{n}.at = getelementptr i8, ptr %table, i64 {8 * slot}",
        f"  store ptr {value}, ptr %{n}.at, align 8",
    ]


def _address(n: str, place: TensorLocation) -> list[str]:
    base, offset = {
        "arena": ("%ws", place.at),
        "constant": ("%constants", place.at),
        "parameter": (f"%p{place.at}", 0),
    }[place.kind]
    return [f"  %{n} = getelementptr i8, ptr {base}, i64 {offset}"]


_PROLOGUE: Final = """\
define i32 @{name}.variant{number}(ptr %run, i64 %shares, ptr %constants, {passed}) #0 {{
entry:
  %ctx = alloca [{slots} x i64], align 64
  %table = alloca [{table} x i64], align 8
  store [{slots} x i64] zeroinitializer, ptr %ctx, align 64
  %parallel.at = getelementptr i8, ptr %ctx, i64 {parallel}
  store ptr %run, ptr %parallel.at, align 8
  %threads.at = getelementptr i8, ptr %ctx, i64 {threads}
  store i64 %shares, ptr %threads.at, align 8
  %status.at = getelementptr i8, ptr %ctx, i64 {status}"""
# A model without its own memory takes any pointer.
_NO_CHECK: Final = "  br label %ready"
_CHECK: Final = """\
  %none = icmp eq ptr %ws, null
  br i1 %none, label %lacking, label %given
given:
  %address = ptrtoint ptr %ws to i64
  %low = and i64 %address, {mask}
  %whole = icmp eq i64 %low, 0
  br i1 %whole, label %ready, label %unaligned"""
_EXPORTED: Final = """\
define i32 @{name}_run({passed}) #0 {{
entry:
  %status = call i32 @{name}_run_parallel(ptr null, i32 1, {passed})
  ret i32 %status
}}
define i32 @{name}_run_parallel(ptr %run, i32 %threads, {passed}) #0 {{
entry:
  %alone = icmp eq ptr %run, null
  %few = icmp slt i32 %threads, 1
  %one = or i1 %alone, %few
  %count = sext i32 %threads to i64
  %shares = select i1 %one, i64 1, i64 %count
{check}
lacking:
  ret i32 {no_memory}
unaligned:
  ret i32 {unaligned}
ready:
  %variant = call i32 @{name}.choose()
  switch i32 %variant, label %no.processor [
{cases}
  ]
no.processor:
  ret i32 {no_processor}
{calls}
}}"""
_COPY: Final = """\
define internal void @tw.copy(ptr %to, ptr %from, i64 %size) #0 {
entry:
  %none = icmp eq i64 %size, 0
  br i1 %none, label %done, label %next
next:
  %n = phi i64 [ 0, %entry ], [ %more, %next ]
  %source = getelementptr i8, ptr %from, i64 %n
  %target = getelementptr i8, ptr %to, i64 %n
  %byte = load i8, ptr %source, align 1
  store i8 %byte, ptr %target, align 1
  %more = add i64 %n, 1
  %ends = icmp eq i64 %more, %size
  br i1 %ends, label %done, label %next
done:
  ret void
}"""
