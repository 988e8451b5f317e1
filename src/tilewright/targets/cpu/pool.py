"""The thread pool's native half: `parallel` and the workers' loop, as LLVM IR.

The caller of `parallel` is participant 0. Each worker owns a ticket that the caller raises when the
worker takes part, so a worker that is not needed never wakes and can never meet a region twice.
Both sides spin for a short time and then sleep on a futex. A caller that finds the pool busy
(another Python thread, or a region inside a region) runs all shares itself.

A worker that the system has not let run yet loses its share to the caller, who is done with its
own and would only wait: both claim the ticket, and who comes first runs the share. So on a busy
machine a region takes as long as on one thread, not as long as the scheduler's time slice.

Memory order: raising a ticket publishes the region; lowering `pending` publishes its results. The
pairs (ticket, asleep) and (pending, waiting) are sequentially consistent: each side writes one and
then reads the other, so that no wake-up is lost.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache

from tilewright.base.errors import UnsupportedError
from tilewright.runtime import abi


@dataclass(frozen=True, slots=True)
class _Arch:
    """Inline assembly of one architecture; `futex` takes number, address, operation, value, 0."""

    triple: str
    pause: str
    ticks: str
    futex: str
    futex_number: int


_ARCHES = {
    "x86_64": _Arch(
        "x86_64-unknown-linux-gnu",
        'call void asm sideeffect "pause", "~{memory}"()',
        "call i64 @llvm.readcyclecounter()",
        '"syscall", "={rax},{rax},{rdi},{rsi},{rdx},{r10},~{rcx},~{r11},~{memory}"',
        202,
    ),
    "aarch64": _Arch(
        "aarch64-unknown-linux-gnu",
        'call void asm sideeffect "isb", "~{memory}"()',
        'call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()',
        '"svc #0", "={x0},{x8},{x0},{x1},{x2},{x3},~{memory}"',
        98,
    ),
}

_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129

# The caller's work is not finished while it waits, so it gives up spinning later than a worker.
_CALLER_PATIENCE = 4
# As a shift of the spinning time: how long the caller hopes that its workers are nearly done,
# before it looks at the claim of each, which costs a cache miss.
_CALLER_GRACE_SHIFT = 4


def ir(arch: str) -> str:
    """The pool's module for "x86_64" or "aarch64". Raises UnsupportedError for any other."""
    if arch not in _ARCHES:
        raise UnsupportedError(f"no thread pool for the architecture {arch}", code="TW-MCPU")
    machine = _ARCHES[arch]
    fields = {name: getattr(abi, name) for name in dir(abi) if name.isupper()}
    return _IR.format(
        **fields,
        triple=machine.triple,
        pause=machine.pause,
        ticks=machine.ticks,
        futex=machine.futex,
        number=machine.futex_number,
        wait=_FUTEX_WAIT_PRIVATE,
        wake=_FUTEX_WAKE_PRIVATE,
        patience=_CALLER_PATIENCE,
        grace=_CALLER_GRACE_SHIFT,
    )


def support(arch: str) -> tuple[bytes, ...]:
    """What an artifact for `arch` carries: the pool where it can be assembled, else nothing.

    llvmlite has the assembler of its own architecture only. Code without the pool runs on one
    thread.
    """
    return (pool_object(arch),) if arch == _host_arch() else ()


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
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    triple = _ARCHES[arch].triple
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu="x86-64" if arch == "x86_64" else "generic", opt=2, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(text)
    module.data_layout = str(machine.target_data)
    module.verify()
    code: bytes = machine.emit_object(module)
    return code


def _host_arch() -> str:
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())


_IR = """\
source_filename = "pool"
target triple = "{triple}"

declare i64 @llvm.readcyclecounter()

define i64 @{POOL_TICKS_SYMBOL}() nounwind {{
  %now = {ticks}
  ret i64 %now
}}

define internal void @futex(ptr %word, i64 %operation, i64 %value) nounwind noinline {{
  %r = call i64 asm sideeffect {futex}(i64 {number}, ptr %word, i64 %operation, i64 %value, i64 0)
  ret void
}}

; Shares first, first + step, ... below `shares`.
define internal void @run(ptr %region, ptr %closure, i64 %first, i64 %step, i64 %shares) nounwind {{
entry:
  %any = icmp slt i64 %first, %shares
  br i1 %any, label %loop, label %done
loop:
  %share = phi i64 [ %first, %entry ], [ %next, %loop ]
  call void %region(ptr %closure, i64 %share, i64 %shares)
  %next = add nsw i64 %share, %step
  %more = icmp slt i64 %next, %shares
  br i1 %more, label %loop, label %done
done:
  ret void
}}

define void @{POOL_PARALLEL_SYMBOL}(ptr %ctx, ptr %region, ptr %closure) nounwind {{
entry:
  %shares.p = getelementptr i64, ptr %ctx, i64 {CTX_THREADS}
  %shares = load i64, ptr %shares.p
  %pool.p = getelementptr i64, ptr %ctx, i64 {CTX_POOL}
  %pool = load ptr, ptr %pool.p
  %busy = getelementptr i8, ptr %pool, i64 {POOL_BUSY}
  %swap = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %won = extractvalue {{ i32, i1 }} %swap, 1
  br i1 %won, label %publish, label %alone
alone:
  call void @run(ptr %region, ptr %closure, i64 0, i64 1, i64 %shares)
  ret void
publish:
  %workers.p = getelementptr i8, ptr %pool, i64 {POOL_WORKERS}
  %workers = load atomic i64, ptr %workers.p acquire, align 8
  %crew = add i64 %workers, 1
  %fewer = icmp slt i64 %shares, %crew
  %participants = select i1 %fewer, i64 %shares, i64 %crew
  %region.p = getelementptr i8, ptr %pool, i64 {POOL_REGION}
  store ptr %region, ptr %region.p
  %closure.p = getelementptr i8, ptr %pool, i64 {POOL_CLOSURE}
  store ptr %closure, ptr %closure.p
  %shares.q = getelementptr i8, ptr %pool, i64 {POOL_SHARES}
  store i64 %shares, ptr %shares.q
  %participants.p = getelementptr i8, ptr %pool, i64 {POOL_PARTICIPANTS}
  store i64 %participants, ptr %participants.p
  %pending = getelementptr i8, ptr %pool, i64 {POOL_PENDING}
  %others = add i64 %participants, -1
  %others32 = trunc i64 %others to i32
  store atomic i32 %others32, ptr %pending monotonic, align 4
  %lines = getelementptr i8, ptr %pool, i64 {POOL_FIRST_WORKER}
  br label %call
call:
  %n = phi i64 [ 0, %publish ], [ %n.next, %called ]
  %all = icmp sge i64 %n, %others
  br i1 %all, label %work, label %raise
raise:
  %offset = mul i64 %n, {POOL_WORKER_SIZE}
  %worker = getelementptr i8, ptr %lines, i64 %offset
  %ticket = getelementptr i8, ptr %worker, i64 {WORKER_TICKET}
  %old = atomicrmw add ptr %ticket, i32 1 seq_cst
  %asleep.p = getelementptr i8, ptr %worker, i64 {WORKER_ASLEEP}
  %asleep = load atomic i32, ptr %asleep.p seq_cst, align 4
  %sleeps = icmp ne i32 %asleep, 0
  br i1 %sleeps, label %wake, label %called
wake:
  call void @futex(ptr %ticket, i64 {wake}, i64 1)
  br label %called
called:
  %n.next = add i64 %n, 1
  br label %call
work:
  call void @run(ptr %region, ptr %closure, i64 0, i64 %participants, i64 %shares)
  %spin.p = getelementptr i8, ptr %pool, i64 {POOL_SPIN}
  %spin = load atomic i64, ptr %spin.p monotonic, align 8
  %patience = mul i64 %spin, {patience}
  %grace = lshr i64 %spin, {grace}
  %start = {ticks}
  br label %hoping
hoping:
  %left0 = load atomic i32, ptr %pending acquire, align 4
  %finished0 = icmp eq i32 %left0, 0
  br i1 %finished0, label %leave, label %hoping.pause
hoping.pause:
  {pause}
  %now0 = {ticks}
  %waited0 = sub i64 %now0, %start
  %early0 = icmp ult i64 %waited0, %grace
  br i1 %early0, label %hoping, label %taking
taking:
  %m = phi i64 [ 0, %hoping.pause ], [ %m.next, %take ], [ %m.next, %mine ]
  %m.all = icmp sge i64 %m, %others
  br i1 %m.all, label %spinning, label %take
take:
  %m.offset = mul i64 %m, {POOL_WORKER_SIZE}
  %m.worker = getelementptr i8, ptr %lines, i64 %m.offset
  %m.ticket.p = getelementptr i8, ptr %m.worker, i64 {WORKER_TICKET}
  %m.ticket = load atomic i32, ptr %m.ticket.p monotonic, align 4
  %m.before = add i32 %m.ticket, -1
  %m.claim = getelementptr i8, ptr %m.worker, i64 {WORKER_CLAIM}
  %m.swap = cmpxchg ptr %m.claim, i32 %m.before, i32 %m.ticket acq_rel monotonic
  %m.won = extractvalue {{ i32, i1 }} %m.swap, 1
  %m.next = add i64 %m, 1
  br i1 %m.won, label %mine, label %taking
mine:
  call void @run(ptr %region, ptr %closure, i64 %m.next, i64 %participants, i64 %shares)
  %m.left = atomicrmw sub ptr %pending, i32 1 acq_rel
  br label %taking
spinning:
  %left = load atomic i32, ptr %pending acquire, align 4
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %leave, label %pausing
pausing:
  {pause}
  %now = {ticks}
  %waited = sub i64 %now, %start
  %early = icmp ult i64 %waited, %patience
  br i1 %early, label %spinning, label %sleep
sleep:
  %waiting = getelementptr i8, ptr %pool, i64 {POOL_WAITING}
  store atomic i32 1, ptr %waiting seq_cst, align 4
  br label %sleeping
sleeping:
  %left2 = load atomic i32, ptr %pending seq_cst, align 4
  %finished2 = icmp eq i32 %left2, 0
  br i1 %finished2, label %awake, label %doze
doze:
  %value = zext i32 %left2 to i64
  call void @futex(ptr %pending, i64 {wait}, i64 %value)
  br label %sleeping
awake:
  store atomic i32 0, ptr %waiting monotonic, align 4
  br label %leave
leave:
  store atomic i32 0, ptr %busy release, align 4
  ret void
}}

define ptr @{POOL_WORKER_SYMBOL}(ptr %worker) nounwind {{
entry:
  %pool.p = getelementptr i8, ptr %worker, i64 {WORKER_POOL}
  %pool = load ptr, ptr %pool.p
  %index.p = getelementptr i8, ptr %worker, i64 {WORKER_INDEX}
  %index = load i64, ptr %index.p
  %ticket = getelementptr i8, ptr %worker, i64 {WORKER_TICKET}
  %asleep = getelementptr i8, ptr %worker, i64 {WORKER_ASLEEP}
  %pending = getelementptr i8, ptr %pool, i64 {POOL_PENDING}
  %waiting = getelementptr i8, ptr %pool, i64 {POOL_WAITING}
  %claim = getelementptr i8, ptr %worker, i64 {WORKER_CLAIM}
  %spin.p = getelementptr i8, ptr %pool, i64 {POOL_SPIN}
  %region.p = getelementptr i8, ptr %pool, i64 {POOL_REGION}
  %closure.p = getelementptr i8, ptr %pool, i64 {POOL_CLOSURE}
  %shares.p = getelementptr i8, ptr %pool, i64 {POOL_SHARES}
  %participants.p = getelementptr i8, ptr %pool, i64 {POOL_PARTICIPANTS}
  br label %idle
idle:
  %seen = phi i32 [ 0, %entry ], [ %claimed, %work ], [ %seen.next, %done ]
  %start = {ticks}
  %spin = load atomic i64, ptr %spin.p monotonic, align 8
  br label %spinning
spinning:
  %drawn = load atomic i32, ptr %ticket acquire, align 4
  %same = icmp eq i32 %drawn, %seen
  br i1 %same, label %pausing, label %work
pausing:
  {pause}
  %now = {ticks}
  %waited = sub i64 %now, %start
  %early = icmp ult i64 %waited, %spin
  br i1 %early, label %spinning, label %sleep
sleep:
  store atomic i32 1, ptr %asleep seq_cst, align 4
  br label %sleeping
sleeping:
  %drawn2 = load atomic i32, ptr %ticket seq_cst, align 4
  %same2 = icmp eq i32 %drawn2, %seen
  br i1 %same2, label %doze, label %awake
doze:
  %value = zext i32 %seen to i64
  call void @futex(ptr %ticket, i64 {wait}, i64 %value)
  br label %sleeping
awake:
  store atomic i32 0, ptr %asleep monotonic, align 4
  br label %work
work:
  %seen.next = add i32 %seen, 1
  %swap = cmpxchg ptr %claim, i32 %seen, i32 %seen.next acq_rel monotonic
  %won = extractvalue {{ i32, i1 }} %swap, 1
  %claimed = extractvalue {{ i32, i1 }} %swap, 0
  br i1 %won, label %share, label %idle
share:
  %region = load ptr, ptr %region.p
  %closure = load ptr, ptr %closure.p
  %shares = load i64, ptr %shares.p
  %participants = load i64, ptr %participants.p
  call void @run(ptr %region, ptr %closure, i64 %index, i64 %participants, i64 %shares)
  %before = atomicrmw sub ptr %pending, i32 1 seq_cst
  %is.last = icmp eq i32 %before, 1
  br i1 %is.last, label %last.check, label %done
last.check:
  %sleeper = load atomic i32, ptr %waiting seq_cst, align 4
  %nobody = icmp eq i32 %sleeper, 0
  br i1 %nobody, label %done, label %last
last:
  call void @futex(ptr %pending, i64 {wake}, i64 1)
  br label %done
done:
  br label %idle
}}
"""
