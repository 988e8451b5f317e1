"""Five machines with different operators, sizes, memories and number formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.targets.npu.machine import (
    BINARY,
    REDUCTIONS,
    UNARY,
    Memory,
    NpuMachine,
    operators,
)
from tilewright.targets.npu.numbers import BlockFloat, Float8, Float16

KIB, MIB = 1 << 10, 1 << 20
DRAM = Memory(64 * MIB, bandwidth=32, latency=40, energy=20)

# All operators at all their sizes.
FULL = NpuMachine(
    "full",
    operators=(
        *operators(BINARY, (32, 64, 128), lanes=32, latency=4, energy=1),
        *operators(UNARY, (32, 64, 128), lanes=32, latency=8, energy=3),
        *operators(REDUCTIONS, (32, 64, 128), lanes=32, latency=10, energy=1),
        *operators(("MVMul",), (64, 128), lanes=1024, latency=12, energy=0.5),
        *operators(("MVAdd",), (64, 128), lanes=128, latency=6, energy=1),
        *operators(("MMMul",), (64,), lanes=1024, latency=16, energy=0.5),
    ),
    dram=DRAM,
    vectors=Memory(32 * KIB, bandwidth=128, latency=1, energy=1),
    matrices=Memory(512 * KIB, bandwidth=256, latency=2, energy=1),
)

# One large size, as in BrainWave: matrix products of 128 in half precision and little else.
WIDE = NpuMachine(
    "wide",
    operators=(
        *operators((*BINARY, *UNARY), (128,), lanes=128, latency=6),
        *operators(REDUCTIONS, (128,), lanes=128, latency=12),
        *operators(("MVMul",), (128,), lanes=4096, latency=20, energy=0.3),
    ),
    dram=replace(DRAM, bandwidth=64),
    vectors=Memory(64 * KIB, bandwidth=256, latency=1, energy=1),
    matrices=Memory(1 * MIB, bandwidth=512, latency=2, energy=1),
    number=Float16,
)

# As `wide`, with blocks of 16 values that share an exponent inside matrix products.
BLOCKS = replace(WIDE, name="blocks", block=BlockFloat(16, mantissa=7))

# Small operators that are cheap to issue, and 2 KiB of vector registers.
SMALL = NpuMachine(
    "small",
    operators=(
        *operators(
            (*BINARY, *UNARY, *REDUCTIONS), (32,), lanes=16, latency=3, energy=0.5
        ),
        *operators(("MVMul",), (64,), lanes=256, latency=8, energy=0.4),
    ),
    dram=replace(DRAM, bandwidth=8, energy=10),
    vectors=Memory(2 * KIB, bandwidth=64, latency=1, energy=0.5),
    matrices=Memory(32 * KIB, bandwidth=64, latency=1, energy=0.5),
)

# Bytes as numbers; without a subtraction, which is an addition and a product with -1.
BYTES = NpuMachine(
    "bytes",
    operators=(
        *operators(
            ("VVAdd", "VVMul", "VVMax"), (64, 128), lanes=64, latency=4, energy=0.2
        ),
        *operators(UNARY, (64,), lanes=64, latency=6, energy=0.5),
        *operators(REDUCTIONS, (64, 128), lanes=64, latency=8, energy=0.2),
        *operators(("MVMul",), (64, 128), lanes=4096, latency=10, energy=0.1),
        *operators(("MMMul",), (64,), lanes=4096, latency=14, energy=0.1),
    ),
    dram=DRAM,
    vectors=Memory(8 * KIB, bandwidth=128, latency=1, energy=0.5),
    matrices=Memory(256 * KIB, bandwidth=256, latency=2, energy=0.5),
    number=Float8,
)

MACHINES: Mapping[str, NpuMachine] = {
    m.name: m for m in (FULL, WIDE, BLOCKS, SMALL, BYTES)
}
