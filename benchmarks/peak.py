"""What one core can do at best: fused multiply-adds per second, bytes per second by cache level."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

# Independent chains of multiply-adds: enough for two pipes of latency four, and all in registers.
CHAINS = 12
SECONDS = 0.2

SPIN = """
define void @spin(i64 %count, ptr %out) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{steps}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %exit
exit:
{stores}
  ret void
}}
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
"""

COPY = """
define void @copy(ptr %from, ptr %to, i64 %count, i64 %repeats) {{
entry:
  br label %again
again:
  %r = phi i64 [ 0, %entry ], [ %rnext, %finished ]
  br label %loop
loop:
  %i = phi i64 [ 0, %again ], [ %next, %loop ]
  %source = getelementptr {vector}, ptr %from, i64 %i
  %target = getelementptr {vector}, ptr %to, i64 %i
  %value = load volatile {vector}, ptr %source, align 4
  store volatile {vector} %value, ptr %target, align 4
  %next = add i64 %i, 1
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
class Peaks:
    """One core's best: float32 GFLOP/s, and GB/s copied per capacity in bytes, smallest first.

    The last capacity is the memory's, without a bound.
    """

    gflops: float
    gbs: tuple[tuple[float, float], ...]

    def bandwidth(self, touched: int) -> float:
        """GB/s of the level that holds so many bytes."""
        return next(rate for capacity, rate in self.gbs if touched <= capacity)


def _lanes() -> int:
    return 16 if llvm.get_host_cpu_features().get("avx512f") else 8


def _engine(lanes: int) -> llvm.ExecutionEngine:
    vector = f"<{lanes} x float>"

    def lines(form: str) -> str:
        return "\n".join(form.format(k=k, v=vector, n=lanes) for k in range(CHAINS))

    constant = "splat (float 0x3FEFFFFFE0000000)"  # just below one: sums stay finite
    spin = SPIN.format(
        vector=vector, lanes=lanes,
        phis=lines("  %a{k} = phi {v} [ zeroinitializer, %entry ], [ %b{k}, %loop ]"),
        steps=lines(
            "  %b{k} = call {v} @llvm.fma.v{n}f32({v} %a{k}, {v} C, {v} C)"
        ).replace("C", constant),
        stores=lines(
            "  %p{k} = getelementptr {v}, ptr %out, i64 {k}\n  store {v} %b{k}, ptr %p{k}, align 4"
        ),
    )  # fmt: skip
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
    )
    module = llvm.parse_assembly(spin + COPY.format(vector=vector))
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    return engine


def _rate(work: Callable[[int], None], amount: float) -> float:
    """The best `amount` times repeats per nanosecond; doubles the repeats until they take long."""
    work(1)  # touches the memory for the first time
    repeats, best, calls = 1, 0.0, 0
    until = time.perf_counter() + SECONDS
    while calls < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        work(repeats)
        seconds = time.perf_counter() - start
        best = max(best, amount * repeats / seconds / 1e9)
        repeats *= 1 if seconds > SECONDS / 20 else 2
        calls += 1
    return best


def capacities() -> list[float]:
    """Bytes of this core's data caches, smallest first, and of memory: without a bound."""
    sizes = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, kind, size = (
            (index / what).read_text().strip() for what in ("level", "type", "size")
        )
        if kind != "Instruction":
            sizes[int(level)] = float(size.removesuffix("K")) * 1024
    return [*(sizes[level] for level in sorted(sizes)), float("inf")]


def _bandwidth(copy: Callable[..., None], capacity: float, vector: int) -> float:
    """GB/s of copying between two buffers that together fill half of the capacity."""
    count = int(min(capacity, 1 << 29)) // 4 // vector
    source, target = (np.zeros(count * vector, np.uint8) for _ in range(2))
    ends = source.ctypes.data, target.ctypes.data
    return _rate(lambda repeats: copy(*ends, count, repeats), 2.0 * count * vector)


def measure() -> Peaks:
    """The peaks of the core that this runs on; takes about a second."""
    lanes = _lanes()
    engine = _engine(lanes)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    spin = ctypes.CFUNCTYPE(None, number, pointer)(engine.get_function_address("spin"))
    copy = ctypes.CFUNCTYPE(None, pointer, pointer, number, number)(
        engine.get_function_address("copy")
    )
    out = np.empty(CHAINS * lanes, np.float32)
    gflops = _rate(
        lambda n: spin(1000 * n, out.ctypes.data), 1000.0 * CHAINS * lanes * 2
    )
    levels = capacities()
    return Peaks(
        gflops, tuple((level, _bandwidth(copy, level, 4 * lanes)) for level in levels)
    )
