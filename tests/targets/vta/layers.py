"""A matrix product and a convolution written by hand: blocks, buffers and tokens.

Both use `threads` virtual threads: each has its own part of every buffer, and they take turns, so
that one loads while the other computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.commands import Commands
from tilewright.targets.vta.config import MemoryId
from tilewright.targets.vta.dram import Dram, DramBuffer
from tilewright.targets.vta.fields import AluOp
from tilewright.targets.vta.kernel import (
    GEMM,
    RESET,
    IndexLoop,
    VtaKernel,
    VtaOperation,
    kernels,
)
from tilewright.targets.vta.stages import VtaModule

LD, EX, ST = VtaModule.LOAD, VtaModule.COMPUTE, VtaModule.STORE
SHIFT = 7
Step = Callable[
    [int, tuple, tuple], None
]  # of a thread, for a block, one step of its sums


@dataclass
class Layer:
    """A layer that is recorded: where its result will be, and how much work it is."""

    commands: Commands
    out: DramBuffer
    shape: tuple[int, ...]
    macs: int


def pipeline(
    c: Commands,
    threads: int,
    blocks: Sequence[tuple],
    steps: Sequence[tuple],
    reset: Callable[[int], None],
    load: Step,
    gemm: Step,
    requantize: Callable[[int], None],
    store: Callable[[int, tuple], None],
) -> None:
    """The tokens: accumulators are free, operands' places are free, operands and results there."""
    for _ in range(threads):
        c.push(ST, EX)
    for start in range(0, len(blocks), threads):
        group = list(enumerate(blocks[start : start + threads]))
        for t, _ in group:
            with c.thread(t):
                c.pop(ST, EX)
                reset(t)
                c.push(EX, LD)
        for step in steps:
            for t, block in group:
                with c.thread(t):
                    c.pop(EX, LD)
                    load(t, block, step)
                    c.push(LD, EX)
            for t, block in group:
                with c.thread(t):
                    c.pop(LD, EX)
                    gemm(t, block, step)
                    c.push(EX, LD)
        for t, _ in group:
            with c.thread(t):
                c.pop(EX, LD)
                requantize(t)
                c.push(EX, ST)
        for t, block in group:
            with c.thread(t):
                c.pop(EX, ST)
                store(t, block)
                c.push(ST, EX)
    for _ in range(threads):
        c.pop(ST, EX)


def _lanes(operation: AluOp, imm: int, first: int, count: int) -> list[VtaKernel]:
    loops = [IndexLoop(count, dst=1, src=1)]
    return kernels(VtaOperation(alu=operation, imm=imm), loops, (first, first, 0))


def _requantize(c: Commands, first: int, count: int) -> None:
    """Shift, and clip to a byte."""
    for operation, imm in ((AluOp.SHR, SHIFT), (AluOp.MAX, -128), (AluOp.MIN, 127)):
        key = operation, first, count
        c.launch_once(key, lambda o=operation, i=imm: _lanes(o, i, first, count))


def _reset(c: Commands, first: int, count: int) -> None:
    key = "reset", first, count
    c.launch_once(key, lambda: kernels(RESET, [IndexLoop(count, dst=1)], (first, 0, 0)))


def quantized(sums: NDArray[np.int32]) -> NDArray[np.int8]:
    return np.clip(sums >> SHIFT, -128, 127).astype(np.int8)


def matmul(
    a: NDArray[np.int8], b: NDArray[np.int8], rows: int, depth: int, threads: int
) -> Layer:
    """a[m, k] . b[n, k]^T, by blocks of `rows` rows, all columns, `depth` tiles of k at a time."""
    (m, k), n = a.shape, len(b)
    kt, nt = k // 16, n // 16
    dram = Dram()
    inp = dram.upload(a.reshape(m, kt, 16))
    wgt = dram.upload(b.reshape(nt, 16, kt, 16).transpose(0, 2, 1, 3))
    out = dram.allocate(m * n)
    c = Commands(dram)
    acc_size, inp_size, wgt_size = rows * nt, rows * depth, nt * depth

    def load(t: int, block: tuple, step: tuple) -> None:
        (row,), (at,) = block, step
        c.load(MemoryId.INP, t * inp_size, inp, row * kt + at, (rows, depth), kt)
        c.load(MemoryId.WGT, t * wgt_size, wgt, at, (nt, depth), kt)

    def gemm(t: int, block: tuple, step: tuple) -> None:
        loops = [
            IndexLoop(rows, dst=nt, src=depth),
            IndexLoop(nt, dst=1, wgt=depth),
            IndexLoop(depth, src=1, wgt=1),
        ]
        first = t * acc_size, t * inp_size, t * wgt_size
        c.launch_once(("gemm", t), lambda: kernels(GEMM, loops, first))

    def store(t: int, block: tuple) -> None:
        c.store(t * acc_size, out, block[0] * nt, (1, acc_size))

    pipeline(
        c,
        threads,
        [(row,) for row in range(0, m, rows)],
        [(at,) for at in range(0, kt, depth)],
        lambda t: _reset(c, t * acc_size, acc_size),
        load,
        gemm,
        lambda t: _requantize(c, t * acc_size, acc_size),
        store,
    )
    return Layer(c, out, (m, n), m * n * k)


@dataclass(frozen=True)
class Convolution:
    """Its shape, and a block: `rows` rows of `channels` tiles of outputs."""

    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int
    rows: int
    channels: int

    @property
    def pad(self) -> int:
        return self.kernel // 2

    @property
    def out_size(self) -> int:
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1


def convolution(
    s: Convolution, x: NDArray[np.int8], w: NDArray[np.int8], threads: int
) -> Layer:
    """x[c, y, x] with w[o, c, ky, kx]; result [o / 16, y, x, 16]; a tile of inputs at a time."""
    n, k, out_n = s.size, s.kernel, s.out_size
    ct, ot = s.inputs // 16, s.outputs // 16
    dram = Dram()
    inp = dram.upload(x.reshape(ct, 16, n, n).transpose(0, 2, 3, 1))
    tiles = w.reshape(ot, 16, ct, 16, k, k).transpose(0, 2, 4, 5, 1, 3)
    wgt, out = dram.upload(tiles), dram.allocate(s.outputs * out_n * out_n)
    c = Commands(dram)
    window = (s.rows - 1) * s.stride + k
    width = n + 2 * s.pad
    acc_size, inp_size = s.channels * s.rows * out_n, window * width
    wgt_size = s.channels * k * k

    def load(t: int, block: tuple, step: tuple) -> None:
        (channel, row), (at,) = block, step
        first = row * s.stride - s.pad
        above, below = max(0, -first), max(0, first + window - n)
        count = window - above - below
        source = (at * n + first + above) * n
        pads = (above, below), (s.pad, s.pad)
        c.load(MemoryId.INP, t * inp_size, inp, source, (count, n), n, pads)
        shape = s.channels, k * k
        c.load(
            MemoryId.WGT,
            t * wgt_size,
            wgt,
            (channel * ct + at) * k * k,
            shape,
            ct * k * k,
        )

    def gemm(t: int, block: tuple, step: tuple) -> None:
        loops = [
            IndexLoop(s.channels, dst=s.rows * out_n, wgt=k * k),
            IndexLoop(s.rows, dst=out_n, src=s.stride * width),
            IndexLoop(out_n, dst=1, src=s.stride),
            IndexLoop(k, src=width, wgt=k),
            IndexLoop(k, src=1, wgt=1),
        ]
        first = t * acc_size, t * inp_size, t * wgt_size
        c.launch_once(("gemm", t), lambda: kernels(GEMM, loops, first))

    def store(t: int, block: tuple) -> None:
        channel, row = block
        place = (channel * out_n + row) * out_n
        c.store(t * acc_size, out, place, (s.channels, s.rows * out_n), out_n * out_n)

    pipeline(
        c,
        threads,
        list(product(range(0, ot, s.channels), range(0, out_n, s.rows))),
        [(at,) for at in range(ct)],
        lambda t: _reset(c, t * acc_size, acc_size),
        load,
        gemm,
        lambda t: _requantize(c, t * acc_size, acc_size),
        store,
    )
    macs = s.outputs * out_n * out_n * s.inputs * k * k
    return Layer(c, out, (ot, out_n, out_n, 16), macs)


def convolved(
    s: Convolution, x: NDArray[np.int8], w: NDArray[np.int8]
) -> NDArray[np.int8]:
    """The same by NumPy, as the layer lays it out."""
    padded = np.pad(x.astype(np.int32), ((0, 0), (s.pad, s.pad), (s.pad, s.pad)))
    out, weights = s.out_size, w.astype(np.int32)
    total = np.zeros((s.outputs, out, out), np.int32)
    for ky, kx in product(range(s.kernel), repeat=2):
        part = padded[:, ky :: s.stride, kx :: s.stride][:, :out, :out]
        total += np.tensordot(weights[:, :, ky, kx], part, 1)
    return quantized(total.reshape(-1, 16, out, out).transpose(0, 2, 3, 1))
