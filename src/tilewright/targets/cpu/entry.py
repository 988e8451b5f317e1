"""The native function of a segment: calls its kernels in order, on places in a pointer table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from tilewright.base.dataclass import dataclass
from tilewright.runtime.abi import CTX_PROFILE, CTX_STATUS, STATUS_INDEX
from tilewright.targets.base import (
    Action,
    Argument,
    ByteCopy,
    ConditionalActions,
    KernelCall,
    Repeat,
)
from tilewright.targets.cpu.compile import LEVEL, compile_text
from tilewright.targets.cpu.emit import attributes
from tilewright.targets.cpu.machine import CpuMachine

CALLS = 0  # LLVM's level for calls alone: its best takes five times as long, and gains nothing


def compile_entry(symbol: str, actions: Sequence[Action], machine: CpuMachine) -> bytes:
    """Object code of `void symbol(ptr ctx, ptr table)`; see runtime/abi.py.

    The kernels are external symbols. After each call the cycle counter is stored in slot
    `number + 1` of the profile, if there is one (slot `number` of the first call gets the start);
    the kernel's number is added to a failure, which ends the segment.
    Raises CompileError if LLVM rejects the code.
    """
    kernels = frozenset(c.symbol for c in calls_of(actions))
    only_calls = all(isinstance(a, KernelCall) for a in actions)
    return compile_text(
        entry_ir(symbol, actions, machine),
        machine,
        symbol,
        allowed=kernels,
        level=CALLS if only_calls else LEVEL,
    )


# What segments call, callers before what they call.
_HELPERS = {
    # After a kernel: add its number to a failure (it is stored as that of kernel 0) or stamp the
    # time; the result is whether it failed.
    "tw.after": f"""define internal i1 @tw.after(ptr %ctx, i64 %number) #0 {{
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
}}""",
    "tw.stamp": f"""define internal void @tw.stamp(ptr %ctx, i64 %slot) #0 {{
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
}}""",
    # The same without a time.
    "tw.check": f"""define internal i1 @tw.check(ptr %ctx, i64 %number) #0 {{
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
  ret i1 false
}}""",
    "tw.fail": f"""define internal void @tw.fail(ptr %ctx, i64 %code) #0 {{
entry:
  %status.at = getelementptr i8, ptr %ctx, i64 {8 * CTX_STATUS}
  %status = add i64 %code, 256
  store i64 %status, ptr %status.at, align 8
  ret void
}}""",
    "tw.same": f"""define internal void @tw.same(ptr %ctx, i64 %number, i64 %first) #0 {{
entry:
  %profile.at = getelementptr i8, ptr %ctx, i64 {8 * CTX_PROFILE}
  %profile = load ptr, ptr %profile.at, align 8
  %profiled = icmp ne ptr %profile, null
  br i1 %profiled, label %stamp, label %done
stamp:
  %from = getelementptr i64, ptr %profile, i64 %first
  %time = load i64, ptr %from, align 8
  %to = getelementptr i64, ptr %profile, i64 %number
  %slot = getelementptr i64, ptr %to, i64 1
  store i64 %time, ptr %slot, align 8
  br label %done
done:
  ret void
}}""",
    # Copying and clearing bytes: kernels have no library to call.
    "tw.copy": """define internal void @tw.copy(ptr %target, ptr %source, i64 %bytes) #0 {
entry:
  %whole = and i64 %bytes, -32
  br label %wide
wide:
  %i = phi i64 [ 0, %entry ], [ %i.next, %wide.body ]
  %more = icmp ult i64 %i, %whole
  br i1 %more, label %wide.body, label %rest
wide.body:
  %from = getelementptr i8, ptr %source, i64 %i
  %to = getelementptr i8, ptr %target, i64 %i
  %data = load <32 x i8>, ptr %from, align 1
  store <32 x i8> %data, ptr %to, align 1
  %i.next = add i64 %i, 32
  br label %wide
rest:
  %j = phi i64 [ %whole, %wide ], [ %j.next, %rest.body ]
  %left = icmp ult i64 %j, %bytes
  br i1 %left, label %rest.body, label %done
rest.body:
  %from.1 = getelementptr i8, ptr %source, i64 %j
  %to.1 = getelementptr i8, ptr %target, i64 %j
  %byte = load i8, ptr %from.1, align 1
  store i8 %byte, ptr %to.1, align 1
  %j.next = add i64 %j, 1
  br label %rest
done:
  ret void
}""",
    "tw.clear": """define internal void @tw.clear(ptr %target, i64 %bytes) #0 {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %more = icmp slt i64 %i, %bytes
  br i1 %more, label %body, label %done
body:
  %to = getelementptr i8, ptr %target, i64 %i
  store i8 0, ptr %to, align 1
  %i.next = add i64 %i, 1
  br label %next
done:
  ret void
}""",
}


def entry_ir(symbol: str, actions: Sequence[Action], machine: CpuMachine) -> str:
    """The segment's function as LLVM assembly."""
    calls = list(calls_of(actions))
    declared = {c.symbol: len(c.arguments) + 2 for c in calls}
    declarations = [
        f"declare void @{name}({', '.join(['ptr'] * n)})"
        for name, n in declared.items()
    ]
    lines = [f"define void @{symbol}(ptr %ctx, ptr %table) #0 {{", "entry:"]
    first = next(_numbers(actions), None)
    if first is not None:
        lines.append(f"  call void @tw.stamp(ptr %ctx, i64 {first})")
    made = _Lines(lines)
    made.actions(actions)
    made.add("br label %done", "done:", "ret void")
    function = "\n".join([*lines, "}"])
    return "\n".join([*declarations, _with_helpers(function), attributes(machine)])


def _with_helpers(text: str) -> str:
    """A function after the helpers that it needs."""
    for name, definition in _HELPERS.items():
        if f"@{name}(" in text:
            text = f"{definition}\n{text}"
    return text


def calls_of(actions: Iterable[Action]) -> Iterator[KernelCall]:
    """Every kernel call, those inside loops and branches included, in order."""
    for action in actions:
        match action:
            case KernelCall():
                yield action
            case Repeat():
                yield from calls_of(action.body)
            case ConditionalActions():
                yield from calls_of((*action.then, *action.other))
            case ByteCopy():
                pass
            case _:
                assert_never(action)


@dataclass(eq=False)
class _Lines:
    """Emits actions as instructions and blocks. inside: within a loop or branch, whose kernels are
    not timed separately."""

    lines: list[str]
    count: int = 0
    inside: int = 0

    def add(self, *lines: str) -> None:
        """Instructions, and labels, which end with a colon."""
        self.lines += [x if x.endswith(":") else f"  {x}" for x in lines]

    def number(self) -> int:
        """A number for names that nothing has yet."""
        self.count += 1
        return self.count

    def actions(self, actions: Iterable[Action]) -> None:
        """All of them in order."""
        for action in actions:
            match action:
                case KernelCall():
                    self.call(action)
                case ByteCopy():
                    self.copy(action)
                case Repeat():
                    self.repeat(action)
                case ConditionalActions():
                    self.either(action)
                case _:
                    assert_never(action)

    def address(self, place: Argument) -> str:
        """The address of a place."""
        n = self.number()
        self.add(
            f"%a{n}.at = getelementptr i8, ptr %table, i64 {8 * place.slot}",
            f"%a{n}.base = load ptr, ptr %a{n}.at, align 8",
            f"%a{n} = getelementptr i8, ptr %a{n}.base, i64 {place.offset}",
        )
        return f"%a{n}"

    def call(self, call: KernelCall) -> None:
        """A kernel; a failure ends the function."""
        places = [self.address(a) for a in (*call.arguments, call.workspace)]
        passed = ", ".join(f"ptr {a}" for a in ("%ctx", *places))
        self.add(f"call void @{call.symbol}({passed})")
        self.after(call.number, self.inside == 0)

    def after(self, number: int, timed: bool) -> None:
        """Ends the function if a kernel failed, else notes the time."""
        n, helper = self.number(), "after" if timed else "check"
        self.add(
            f"%failed{n} = call i1 @tw.{helper}(ptr %ctx, i64 {number})",
            f"br i1 %failed{n}, label %done, label %next{n}",
            f"next{n}:",
        )

    def copy(self, copy: ByteCopy, row: str | None = None) -> None:
        """Bytes from place to place; row: of the target, as many bytes each."""
        source, target = self.address(copy.source), self.address(copy.target)
        if row is not None:
            target = self._row(target, row, copy.nbytes)
        self.add(f"call void @tw.copy(ptr {target}, ptr {source}, i64 {copy.nbytes})")

    def _row(self, base: str, row: str, nbytes: int) -> str:
        n = self.number()
        self.add(
            f"%row{n}.at = mul i64 {row}, {nbytes}",
            f"%row{n} = getelementptr i8, ptr {base}, i64 %row{n}.at",
        )
        return f"%row{n}"

    def truth(self, place: Argument) -> str:
        """Whether the byte at a place is not 0."""
        at, n = self.address(place), self.number()
        self.add(
            f"%byte{n} = load i8, ptr {at}, align 1",
            f"%true{n} = icmp ne i8 %byte{n}, 0",
        )
        return f"%true{n}"

    def repeat(self, loop: Repeat) -> None:
        """The loop: its number is in a register, and for its kernels in memory."""
        for copy in loop.before:
            self.copy(copy)
        k = self.number()
        trips = self.address(loop.trips)
        self.add(f"%trips{k} = load i64, ptr {trips}, align 8")
        first = self.truth(loop.going)
        self.add(f"br label %from{k}", f"from{k}:", f"br label %head{k}", f"head{k}:")
        self.add(
            f"%n{k} = phi i64 [ 0, %from{k} ], [ %n{k}.next, %last{k} ]",
            f"%going{k} = phi i1 [ {first}, %from{k} ], [ %again{k}, %last{k} ]",
            f"%below{k} = icmp slt i64 %n{k}, %trips{k}",
            f"%enter{k} = and i1 %going{k}, %below{k}",
            f"br i1 %enter{k}, label %body{k}, label %behind{k}",
            f"body{k}:",
        )
        if loop.bound is not None:
            self.add(
                f"%room{k} = icmp slt i64 %n{k}, {loop.bound}",
                f"br i1 %room{k}, label %fits{k}, label %full{k}",
                f"full{k}:",
                f"call void @tw.fail(ptr %ctx, i64 {STATUS_INDEX})",
                f"br label %fits{k}",
                f"fits{k}:",
            )
            self.after(loop.record, False)
        number = self.address(loop.number)
        self.add(f"store i64 %n{k}, ptr {number}, align 8")
        self.inside += 1
        self.actions(loop.body)
        self.inside -= 1
        again = self.truth(loop.again)
        for item in loop.items:
            self.copy(item, f"%n{k}")
        for copy in loop.after:
            self.copy(copy)
        self.add(
            f"br label %last{k}",
            f"last{k}:",
            f"%again{k} = and i1 {again}, true",
            f"%n{k}.next = add i64 %n{k}, 1",
            f"br label %head{k}",
            f"behind{k}:",
        )
        count = self.address(loop.count)
        self.add(f"store i64 %n{k}, ptr {count}, align 8")
        for item in loop.items:
            self._clear(item, f"%n{k}", loop.bound or 0)
        self._timed(loop.body, loop.record)

    def _clear(self, item: ByteCopy, row: str, bound: int) -> None:
        start = self._row(self.address(item.target), row, item.nbytes)
        n = self.number()
        self.add(
            f"%left{n} = sub i64 {bound}, {row}",
            f"%left{n}.bytes = mul i64 %left{n}, {item.nbytes}",
            f"call void @tw.clear(ptr {start}, i64 %left{n}.bytes)",
        )

    def either(self, branch: ConditionalActions) -> None:
        """Both lists of actions in their own blocks."""
        condition, k = self.truth(branch.condition), self.number()
        self.add(f"br i1 {condition}, label %then{k}, label %else{k}")
        self.inside += 1
        for name, actions in (("then", branch.then), ("else", branch.other)):
            self.add(f"{name}{k}:")
            self.actions(actions)
            self.add(f"br label %join{k}")
        self.inside -= 1
        self.add(f"join{k}:")
        self._timed((*branch.then, *branch.other), branch.record)

    def _timed(self, inside: Sequence[Action], record: int) -> None:
        """The whole is timed as one record: kernels inside end when they begin."""
        if self.inside:
            return
        numbers = [*_numbers(inside), record]
        for number in numbers[:-1]:
            self.add(f"call void @tw.same(ptr %ctx, i64 {number}, i64 {numbers[0]})")
        self.add(f"call void @tw.stamp(ptr %ctx, i64 {record + 1})")


def _numbers(actions: Iterable[Action]) -> Iterator[int]:
    """The numbers of all records inside, in order."""
    for action in actions:
        match action:
            case KernelCall():
                yield action.number
            case Repeat():
                yield from _numbers(action.body)
                yield action.record
            case ConditionalActions():
                yield from _numbers((*action.then, *action.other))
                yield action.record
            case ByteCopy():
                pass
            case _:
                assert_never(action)
