"""Kernels bound to the axes of a GPU, as text, and their schedules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.expr.nodes import Buffer
from tilewright.loops import interp, launch_interp
from tilewright.loops.launch import Barrier, LaunchProgram
from tilewright.loops.nodes import Block, Kernel, Stmt, block
from tilewright.loops.parser import parse
from tilewright.loops.walk import walk

# Each block reverses 16 elements through its shared memory.
REVERSE = """\
kernel reverse(x: float32[64]) -> y: float32[64]:
  for b in 4 blockIdx.x:
    alloc t: float32[16] in shared:
      for i in 16 threadIdx.x:
        t[i] = x[b * 16 + i]
      for j in 16 threadIdx.x:
        y[b * 16 + j] = t[15 - j]"""


def kernel(text: str) -> Kernel:
    """The kernel of a text."""
    return parse(text.split("\n"))


def judged(before: Kernel | None, program: LaunchProgram, seed: int = 0) -> None:
    """Run a program on random arrays, and compare it with the kernel that it was, if given."""
    rng = np.random.default_rng(seed)
    arrays = [_random(rng, b) for b in program.params]
    found = {b: a.copy() for b, a in zip(program.params, arrays, strict=True)}
    launch_interp.run(program, found, seed)
    if before is None:
        return
    wanted = {b: a.copy() for b, a in zip(before.params, arrays, strict=True)}
    interp.run(before, wanted)
    for b, c in zip(before.outputs, program.outputs, strict=True):
        np.testing.assert_array_equal(
            wanted[b], found[c], err_msg=f"{b.name}\n{program}"
        )


def _random(rng: np.random.Generator, b: Buffer) -> np.ndarray:
    values = (
        rng.integers(1, 9, b.shape) if b.dtype.is_int else rng.standard_normal(b.shape)
    )
    return np.asarray(values).astype(b.dtype.numpy)


def barriers(program: LaunchProgram) -> list[Barrier]:
    """The barriers of all launches, in order."""
    found = (at.stmt for launch in program.launches for at in walk(launch.body))
    return [s for s in found if isinstance(s, Barrier)]


def without_barrier(program: LaunchProgram, number: int) -> LaunchProgram:
    """The program without one of its barriers."""
    left = number % len(barriers(program))

    def without(s: Stmt) -> Stmt:
        nonlocal left
        if isinstance(s, Barrier):  # one object may be in several places
            left -= 1
            return block() if left == -1 else s
        made: Stmt = s.map(lambda c: without(c) if isinstance(c, Stmt) else c)
        return block(*made.stmts) if isinstance(made, Block) else made

    launches = (launch.with_body(without(launch.body)) for launch in program.launches)
    return replace(program, launches=tuple(launches))
