"""A function that is written is freed at once, though the collector pauses during a compilation."""

import gc

from tilewright.loops.parser import parse
from tilewright.targets.cpu.compile import llvm_ir
from tilewright.targets.cpu.emit import EmittedFunction
from tilewright.targets.cpu.machine import machine

KERNEL = """
kernel product(x: float32[4, 32], w: float32[32, 8]) -> y: float32[4, 8]:
  for i in 4 parallel:
    alloc t: float32[8] in register:
      for a in 8 vector:
        t[a] = 0_f32
      for k in 32:
        for b in 8 vector:
          t[b] add= x[i, k] * w[k, b]
      for c in 8 vector:
        y[i, c] = exp(t[c])
"""


def test_a_written_function_is_not_left_to_the_collector():
    """Neither the kernel's own function nor that of its parallel loop."""
    kernel = parse(KERNEL.strip().split("\n"))
    gc.collect()
    gc.disable()
    try:
        text = llvm_ir(kernel, machine("x86-64-v3"))
        left = [o for o in gc.get_objects() if isinstance(o, EmittedFunction)]
    finally:
        gc.enable()
    assert text.count("define ") == 2
    assert not left
