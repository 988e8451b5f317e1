"""Loops in LLVM whose speed says what one core can do, and how they are timed.

Two chains of arithmetic, one whose steps wait for one another and one whose steps do not, and two
passes over memory. `peak` makes bounds of them, `calibrate` a machine description.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SECONDS = 0.3  # of each measurement
BATCHES = 5  # at least, however long they take: a busy machine interrupts some
BATCH = 1e-4  # seconds that can be told from those of reading the clock
PAIRS = 32  # of dependent operations, a cycle each, that are written out
# Independent chains of multiply-adds: enough for two pipes of latency four, and all in registers.
CHAINS = 12
READS = 16  # loads of a step that reads
TRAFFIC = 1 << 24  # bytes, at least, that go by in one call
PAGE = 4096  # bytes: where data begins, so that no vector crosses a line
# Of multiply-adds in one call, about 100 us: the call takes one, which was a sixth of fewer steps.
STEPS = 64_000

_ARITHMETIC = """
define i64 @chain(i64 %count, i64 %x0, i64 %y, i64 %z) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %v0 = phi i64 [ %x0, %entry ], [ %v{pairs}, %loop ]
{pair}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %exit
exit:
  ret i64 %v{pairs}
}}
declare {floats} @llvm.fma.v{lanes}f32({floats}, {floats}, {floats})
"""

_SPIN = """
define void @{name}(i64 %count, ptr %out) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{start}
{multiply}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %exit
exit:
{store}
  ret void
}}
"""

_PASS = """
define void @{name}(ptr %from, ptr %to, i64 %count, i64 %repeats) {{
entry:
  br label %again
again:
  %r = phi i64 [ 0, %entry ], [ %rnext, %finished ]
  br label %loop
loop:
  %i = phi i64 [ 0, %again ], [ %next, %loop ]
{body}
  %next = add i64 %i, {step}
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %finished
finished:
  %rnext = add i64 %r, 1
  %rmore = icmp slt i64 %rnext, %repeats
  br i1 %rmore, label %again, label %exit
exit:
  ret void
}}
"""


@dataclass(frozen=True)
class Loops:
    """Native functions.

    chain(count, x, y, z): `count` times PAIRS pairs of dependent operations. spin(count, out):
    `count` vector multiply-adds on each of CHAINS accumulators, stored to `out`; wait(count, out):
    the same on one. read and copy(source, target, count, repeats): `count` vectors, a multiple of
    READS, `repeats` times.
    """

    chain: Callable[..., int]
    spin: Callable[..., None]
    wait: Callable[..., None]
    read: Callable[..., None]
    copy: Callable[..., None]
    lanes: int  # floats of a vector
    image: object  # keeps the code alive

    @property
    def width(self) -> int:
        """Bytes of a vector."""
        return 4 * self.lanes


def loops() -> Loops:
    """The loops, compiled for this processor."""
    from tilewright.runtime.loader import link
    from tilewright.targets.cpu.compile import compile_text
    from tilewright.targets.cpu.machine import host

    lanes = host().vector_bits // 32
    image = link([compile_text(_text(lanes), host(), "loops")])
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    chain = ctypes.CFUNCTYPE(number, *[number] * 4)
    spin = ctypes.CFUNCTYPE(None, number, pointer)
    over = ctypes.CFUNCTYPE(None, pointer, pointer, number, number)
    return Loops(
        chain(image.address("chain")),
        spin(image.address("spin")),
        spin(image.address("wait")),
        over(image.address("read")),
        over(image.address("copy")),
        lanes,
        image,
    )


def _text(lanes: int) -> str:
    floats = f"<{lanes} x float>"

    def lines(form: str, count: int) -> str:
        return "\n".join(
            form.format(k=k, after=k + 1, v=floats, n=lanes) for k in range(count)
        )

    pair = "  %u{k} = add i64 %v{k}, %y\n  %v{after} = xor i64 %u{k}, %z"
    start = "  %a{k} = phi {v} [ zeroinitializer, %entry ], [ %b{k}, %loop ]"
    one = "splat (float 0x3FEFFFFFE0000000)"  # just below one: sums stay finite
    multiply = "  %b{k} = call {v} @llvm.fma.v{n}f32({v} %a{k}, {v} ONE, {v} ONE)"
    store = (
        "  %p{k} = getelementptr {v}, ptr %out, i64 {k}\n"
        "  store {v} %b{k}, ptr %p{k}, align 4"
    )
    load = (
        "  %p{k} = getelementptr {v}, ptr %at, i64 {k}\n"
        "  %w{k} = load volatile {v}, ptr %p{k}, align 4"
    )
    read = f"  %at = getelementptr {floats}, ptr %from, i64 %i\n{lines(load, READS)}"
    copy = (
        f"  %source = getelementptr {floats}, ptr %from, i64 %i\n"
        f"  %target = getelementptr {floats}, ptr %to, i64 %i\n"
        f"  %value = load volatile {floats}, ptr %source, align 4\n"
        f"  store volatile {floats} %value, ptr %target, align 4"
    )
    arithmetic = _ARITHMETIC.format(
        pairs=PAIRS, pair=lines(pair, PAIRS), floats=floats, lanes=lanes
    )
    spins = "".join(
        _SPIN.format(
            name=name,
            start=lines(start, chains),
            multiply=lines(multiply, chains).replace("ONE", one),
            store=lines(store, chains),
        )
        for name, chains in (("spin", CHAINS), ("wait", 1))
    )
    reads = _PASS.format(name="read", body=read, step=READS)
    return arithmetic + spins + reads + _PASS.format(name="copy", body=copy, step=1)


def best(work: Callable[[], object]) -> float:
    """Seconds of one call: the least of many batches, each as short as the clock allows.

    Short ones, because other work on the machine interrupts few of them.
    """
    calls, found, batches = 1, math.inf, 0
    until = time.perf_counter() + SECONDS
    while batches < BATCHES or time.perf_counter() < until:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        taken = time.perf_counter() - start
        if taken < BATCH:
            calls *= 2
        else:
            found = min(found, taken / calls)
            batches += 1
    return found


def read_rate(p: Loops, size: int) -> float:
    """Bytes per nanosecond that one core reads from an array of `size` bytes repeatedly."""
    data = _aligned(size)
    return _rate(p, p.read, size, (data.ctypes.data, None))


def copy_rate(p: Loops, size: int) -> float:
    """Bytes per nanosecond read and written between two buffers of `size` bytes in total."""
    source, target = (_aligned(size // 2) for _ in range(2))
    ends = source.ctypes.data, target.ctypes.data
    return 2 * _rate(p, p.copy, size // 2, ends)


def _aligned(size: int) -> np.ndarray:
    """Bytes from the beginning of a page on."""
    found = np.ones(size + PAGE, np.uint8)
    return found[-found.ctypes.data % PAGE :][:size]


def _rate(
    p: Loops,
    over: Callable[..., None],
    size: int,
    ends: tuple[int, int | None],
) -> float:
    count = size // (READS * p.width) * READS
    repeats = max(1, TRAFFIC // size)
    seconds = best(lambda: over(*ends, count, repeats))
    return repeats * count * p.width / seconds / 1e9


def multiply_rate(p: Loops, steps: int = STEPS) -> float:
    """Float32 operations per nanosecond of one core, two in each multiply-add."""
    out = np.empty(CHAINS * p.lanes, np.float32)
    seconds = best(lambda: p.spin(steps, out.ctypes.data))
    return 2 * CHAINS * p.lanes * steps / seconds / 1e9


def multiply_latency(p: Loops, steps: int = STEPS) -> float:
    """Nanoseconds from a multiply-add to the next one of its accumulator."""
    out = np.empty(p.lanes, np.float32)
    return best(lambda: p.wait(steps, out.ctypes.data)) / steps * 1e9


def clock(p: Loops, steps: int = 4000) -> float:
    """Cycles per nanosecond of a core that does vector arithmetic.

    From a chain of dependent additions and exclusive ors, right after STEPS of vector
    multiply-adds. A processor that lowers its clock for wide vectors keeps it low for most of a
    millisecond after them (Intel 64 and IA-32 Architectures Optimization Reference Manual, on
    licenses), and the chain takes less than a tenth of one. In one loop, each would delay the
    other.
    """
    out = np.empty(CHAINS * p.lanes, np.float32)
    found, rounds, until = math.inf, 0, time.perf_counter() + SECONDS
    while rounds < BATCHES or time.perf_counter() < until:
        p.spin(STEPS, out.ctypes.data)
        start = time.perf_counter()
        p.chain(steps, 1, 3, 5)
        found = min(found, time.perf_counter() - start)
        rounds += 1
    return steps * 2 * PAIRS / found / 1e9
