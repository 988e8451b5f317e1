"""Kernels as launches: the phases of a block in the program of one thread."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops.gpu_kernels import REVERSE, barriers, judged, kernel
from tilewright.base.errors import ScheduleError
from tilewright.loops.launch_interp import run
from tilewright.loops.nodes import Alloc
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.walk import walk


def launches(text: str) -> str:
    return str(to_launches(kernel(text)))


def block_of(text: str) -> str:
    """The kernel of a block's statements."""
    lines = ["kernel k(x: float32[64]) -> y: float32[64]:", "  for b in 4 blockIdx.x:"]
    return "\n".join([*lines, *("    " + line for line in text.split("\n"))])


def body(text: str) -> list[str]:
    """The statements of the only launch of a block's statements, without their indent."""
    (launch,) = to_launches(kernel(block_of(text))).launches
    return str(launch.body).split("\n")


def test_phases_are_one_program_with_a_barrier_between():
    assert (
        launches(REVERSE)
        == """\
program reverse(x: float32[64]) -> y: float32[64]:
  launch reverse_0(x, y) grid [4, 1, 1] threads [16, 1, 1]:
    shared t: float32[16] in shared
    t[threadIdx.x] = x[blockIdx.x * 16 + threadIdx.x]
    barrier shared
    y[blockIdx.x * 16 + threadIdx.x] = t[15 - threadIdx.x]"""
    )


def test_a_phase_of_fewer_threads_is_guarded():
    text = (
        "for i in 4 threadIdx.x:\n  y[b * 16 + i] = x[i]\nfor j in 8 threadIdx.x:\n  "
    )
    assert body(text + "y[b * 16 + 4 + j] = x[j]") == [
        "if threadIdx.x < 4:",
        "  y[blockIdx.x * 16 + threadIdx.x] = x[threadIdx.x]",
        "y[blockIdx.x * 16 + 4 + threadIdx.x] = x[threadIdx.x]",
    ]


def test_what_no_thread_is_said_for_is_done_by_the_first_one():
    found = body(
        "for i in 8 threadIdx.x:\n  y[b * 16 + i] = x[i]\ny[b * 16 + 9] = x[9]"
    )
    assert found[-2:] == ["if threadIdx.x < 1:", "  y[blockIdx.x * 16 + 9] = x[9]"]


def test_a_number_of_blocks_may_be_a_size():
    text = """\
kernel k(x: float32[n]) -> y: float32[n]:
  for n in 2147483648 size:
    for b in n // 8 + 1 blockIdx.x:
      for t in 8 threadIdx.x:
        if b * 8 + t < n:
          y[b * 8 + t] = x[b * 8 + t] * 2.0"""
    p = to_launches(kernel(text))
    assert "grid [n // 8 + 1, 1, 1]" in str(p) and [v.name for v in p.sizes] == ["n"]
    for n in (1, 8, 13):
        arrays = [np.arange(n, dtype=np.float32), np.zeros(n, np.float32)]
        run(p, dict(zip(p.params, arrays, strict=True)))
        assert arrays[1].tolist() == (arrays[0] * 2).tolist()


def test_what_is_around_loops_that_are_not_bound_is_memory_of_the_device():
    """Behind another statement too: no thread has room for the results of a whole nest."""
    text = """\
kernel k(x: float32[64]) -> y: float32[64]:
  alloc t: float32[64]:
    for i in 64:
      t[i] = x[i] * 2.0
    alloc u: float32[64]:
      for j in 64:
        u[j] = t[63 - j]
      for k in 64:
        y[k] = u[k]"""
    p = to_launches(kernel(text))
    assert [b.name for b in p.workspace] == ["t", "u"]
    assert not any(isinstance(n.stmt, Alloc) for s in p.launches for n in walk(s.body))
    arrays = [np.arange(64, dtype=np.float32), np.zeros(64, np.float32)]
    run(p, dict(zip(p.params, arrays, strict=True)))
    assert arrays[1].tolist() == (arrays[0][::-1] * 2).tolist()


def test_memory_in_thread_loops_is_of_each_iteration():
    """In shared memory where other threads are inside, in registers where none are."""
    text = "for u in 4 threadIdx.y:\n  alloc t: float32[8] in stack:\n"
    text += "    for i in 8 threadIdx.x:\n      alloc r: float32[1] in stack:\n"
    text += "        r[0] = x[i]\n"
    text += "        t[i] = r[0]\n    y[b * 16 + u] = t[u] + t[7]"
    (launch,) = to_launches(kernel(block_of(text))).launches
    assert [b.shape for b in launch.shared] == [(4, 8)]
    judged(kernel(block_of(text)), to_launches(kernel(block_of(text))))


def test_memory_of_the_device_in_a_block_is_of_each_block():
    text = (
        "alloc t: float32[16]:\n  for i in 16 threadIdx.x:\n    t[i] = x[b * 16 + i]\n"
    )
    text += "  for o in 16 threadIdx.x:\n    y[b * 16 + o] = t[15 - o]"
    p = to_launches(kernel(block_of(text)))
    assert [b.shape for b in p.workspace] == [(4, 16)]
    assert [s.scope for s in barriers(p)] == ["global"]
    judged(kernel(block_of(text)), p)


REGISTERS = {
    "an element": ("[16]", "[{t}]", 1),
    "a run": ("[64]", "[{t} * 4 + k]", 4),
    "a turn": ("[64]", "[k * 16 + {t}]", 4),
    "runs in turns": ("[64]", "[k // 2 * 32 + {t} * 2 + k % 2]", 4),
    "rows": ("[4, 16]", "[k, {t}]", 4),
    "columns": ("[16, 4]", "[{t}, k]", 4),
}


@pytest.mark.parametrize("what", REGISTERS)
def test_registers_of_a_block_are_shared_out(what):
    shape, place, size = REGISTERS[what]
    text = f"alloc r: float32{shape} in register:\n  for t in 16 threadIdx.x:\n    for k in 4:\n"
    text += f"      r{place.format(t='t')} = x[t] + 1.0\n  for u in 16 threadIdx.x:\n"
    text += "    y[b * 16 + u] = 0.0\n    for k2 in 4:\n      y[b * 16 + u] add= "
    text += f"r{place.format(t='u').replace('k', 'k2')}"
    p = to_launches(kernel(block_of(text)))
    (alloc,) = (a.stmt for a in walk(p.launches[0].body) if isinstance(a.stmt, Alloc))
    assert alloc.buffer.size == size and not barriers(p)
    judged(kernel(block_of(text)), p)


def test_all_threads_fill_what_each_has_a_copy_of():
    text = (
        "alloc r: float32[1] in register:\n  r[0] = x[b]\n  for t in 16 threadIdx.x:\n"
    )
    text += "    y[b * 16 + t] = r[0] + x[t]"
    p = to_launches(kernel(block_of(text)))
    assert not barriers(p) and "if" not in str(p)
    judged(kernel(block_of(text)), p)


def test_a_part_that_fills_registers_of_all_and_memory_of_one():
    text = "alloc r: float32[1] in register:\n  for k in 2:\n    r[0] = x[k]\n"
    text += "    y[b * 16 + k] = r[0]\n  for t in 14 threadIdx.x:\n    y[b * 16 + 2 + t] = r[0]"
    p = to_launches(kernel(block_of(text)))
    judged(kernel(block_of(text)), p)


def test_a_condition_is_read_by_those_threads_only_that_have_it():
    """Others would read out of bounds."""
    text = "for i in 4 threadIdx.y:\n  if x[b * 16 + i * 5] < 0.0:\n    for j in 2 threadIdx.x:\n"
    text += "      y[b * 16 + i * 2 + j] = 1.0\nfor k in 8 threadIdx.y:\n  y[b * 16 + 8 + k] = x[k]"
    judged(kernel(block_of(text)), to_launches(kernel(block_of(text))))


def test_a_condition_that_changes_in_a_loop_stays_in_it():
    text = "for t in 16 threadIdx.x:\n  for k in 3:\n    if y[b * 16 + t] < 5.0:\n"
    text += "      y[b * 16 + t] = y[b * 16 + t] + 4.0"
    judged(kernel(block_of(text)), to_launches(kernel(block_of(text))))


def test_registers_of_two_axes_are_those_of_one_thread():
    text = "alloc r: float32[16] in register:\n  for i in 2 threadIdx.y:\n"
    text += "    for j in 4 threadIdx.x:\n"
    text += "      for k in 2:\n        r[i * 8 + k * 4 + j] = x[i * 8 + k * 4 + j]\n"
    text += (
        "  for l in 2 threadIdx.y:\n    for m in 4 threadIdx.x:\n      for n in 2:\n"
    )
    text += "        y[b * 16 + l * 8 + n * 4 + m] = r[l * 8 + n * 4 + m] + 1.0"
    program = to_launches(kernel(block_of(text)))
    assert "alloc r: float32[2] in register" in str(program)
    judged(kernel(block_of(text)), program)


ERRORS = {
    "an axis in itself": (
        "for i in 8 threadIdx.x:\n  for j in 2 threadIdx.x:\n    y[b * 16 + i * 2 + j] = x[i]",
        "loop i: loop j inside it is threadIdx.x too",
    ),
    "threads that are not constant": (
        "for i in b + 1 threadIdx.x:\n  y[b * 16 + i] = x[i]",
        "loop i: a block has a constant number of threads",
    ),
    "runs that are not the same": (
        "alloc r: float32[32] in register:\n  for i in 8 threadIdx.x:\n    r[i * 2] = x[i]\n"
        "  for j in 8 threadIdx.x:\n    y[b * 16 + j] = r[j * 2] + r[j * 3]",
        r"buffer r: r\[.*\* 3\] may be in the registers of another thread, .*2 elements",
    ),
    "rounds of one axis that are no run of the other": (
        "alloc r: float32[12] in register:\n  for i in 2 threadIdx.y:\n"
        "    for j in 4 threadIdx.x:\n"
        "      r[i * 6 + j] = x[j]\n  for k in 2 threadIdx.y:\n    for l in 4 threadIdx.x:\n"
        "      y[b * 16 + k * 4 + l] = r[k * 6 + l]",
        "buffer r: .* may be in the registers of another thread",
    ),
    "more than a run": (
        "alloc r: float32[32] in register:\n  for i in 8 threadIdx.x:\n    r[i * 2] = x[i]\n"
        "  for j in 8 threadIdx.x:\n    y[b * 16 + j] = r[j * 2 + 2]",
        "buffer r: .* may be in the registers of another thread",
    ),
    "a register of one thread": (
        "alloc r: float32[1] in register:\n  for i in 8 threadIdx.x:\n    r[0] = x[i]\n"
        "  for j in 8 threadIdx.x:\n    y[b * 16 + j] = r[0]",
        "buffer r: the threads of threadIdx.x write one element",
    ),
    "a way that threads go alone": (
        "alloc t: float32[64] in shared:\n  for i in 4 threadIdx.x:\n    for k in i + 1:\n"
        "      t[i] = x[k]\n      for j in 4 threadIdx.y:\n        t[i * 4 + j + 16] = t[i]",
        r"two threads race \(writes t.* reads t",
    ),
    "a grid inside": (
        "for i in 8 threadIdx.x:\n  for c in 2 blockIdx.y:\n    y[i] = x[i]",
        "loop c: it is blockIdx.y, but not all around it are loops over blocks",
    ),
    "another thread's register": (
        "alloc r: float32[8] in register:\n  for i in 8 threadIdx.x:\n    r[i] = x[i]\n"
        "  for j in 8 threadIdx.x:\n    y[j] = r[7 - j]",
        r"buffer r: r\[.*\] may be in the registers of another thread",
    ),
}


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_names_the_loop_or_the_buffer(what):
    text, message = ERRORS[what]
    with pytest.raises(ScheduleError, match=message) as found:
        body(text)
    assert found.value.code in ("TW-LAUNCH", "TW-RACE") and found.value.hint


def test_what_a_kernel_without_threads_keeps_is_memory_of_the_device():
    """Before any schedule too: it would be an array of one thread, which may be too large."""
    found = to_launches(
        kernel("""\
kernel f(x: float32[8]) -> y: float32[8]:
  alloc a: float32[8]:
    for i in 8:
      a[i] = x[i] + x[i]
    alloc b: float32[8]:
      for j in 8:
        b[j] = a[7 - j]
      for k in 8:
        y[k] = b[k]""")
    )
    assert [b.name for b in found.workspace] == ["a", "b"]
    judged(None, found)
