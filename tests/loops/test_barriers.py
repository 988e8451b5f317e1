"""Barriers follow from the dependences between threads: none is missing, none is needless."""

from __future__ import annotations

import pytest

from tests.loops.gpu_kernels import barriers, judged, kernel, without_barrier
from tilewright.base.errors import ExecutionError, ScheduleError
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.passes.to_launches import to_launches

HEAD = """\
kernel k(x: float32[64]) -> y: float32[64]:
  for b in 4 blockIdx.x:
    alloc t: float32[32] in shared:
      alloc u: float32[32] in shared:
"""
FILL = "for i in 16 threadIdx.x:\n  t[i] = x[b * 16 + i]\n"
OUT = "for o in 16 threadIdx.x:\n  y[b * 16 + o] = "

# The statements of a block, and the scopes of the barriers between them, in order.
CASES = {
    "read of another's": (FILL + OUT + "t[15 - o]", ["shared"]),
    "read of one's own": (FILL + OUT + "t[o]", []),
    "other elements": (
        FILL
        + "for j in 16 threadIdx.x:\n  t[16 + (j + 1) % 16] = x[j]\n"
        + OUT
        + "t[o]",
        [],
    ),
    "overwritten after a read": (
        FILL + OUT + "t[15 - o]\nfor j in 16 threadIdx.x:\n  t[j] = 0.0\n"
        "for l in 16 threadIdx.x:\n  u[l] = t[l]",
        ["shared", "shared"],
    ),
    "written twice": (
        FILL + "for j in 16 threadIdx.x:\n  t[15 - j] = x[b * 16 + j]",
        ["shared"],
    ),
    "the same statement twice": (
        FILL
        + "for j in 16 threadIdx.x:\n  u[j] = t[15 - j]\n"
        + "for l in 16 threadIdx.x:\n  t[l] = x[b * 16 + l]\n"
        + OUT
        + "t[15 - o]",
        ["shared", "shared", "shared"],
    ),
    "one serves two": (
        FILL
        + "for j in 16 threadIdx.x:\n  u[j] = x[j]\n"
        + OUT
        + "t[15 - o] + u[15 - o]",
        ["shared"],
    ),
    "memory of the caller": (
        "for i in 16 threadIdx.x:\n  y[b * 16 + i] = x[b * 16 + i]\n"
        "for j in 16 threadIdx.x:\n  u[j] = y[b * 16 + 15 - j]",
        ["global"],
    ),
    "the first thread's": (FILL + "t[16] = 0.0\n" + OUT + "t[16]", ["shared"]),
    "an axis of fewer": (
        "for i in 8 threadIdx.x:\n  t[i] = x[b * 16 + i]\n" + OUT + "t[o % 8]",
        ["shared"],
    ),
    "a loop": (
        "for k in 3:\n  for i in 16 threadIdx.x:\n    t[i] = x[b * 16 + i]\n"
        "  for j in 16 threadIdx.x:\n    u[j] = t[15 - j]",
        ["shared", "shared"],
    ),
    "a loop in turns": (
        "for k in 3:\n  for i in 16 threadIdx.x:\n    t[k % 2 * 16 + i] = x[b * 16 + i]\n"
        "  for j in 16 threadIdx.x:\n    u[j] = t[k % 2 * 16 + 15 - j]",
        ["shared"],
    ),
    "only from turn to turn": (
        "for k in 3:\n  for j in 8 threadIdx.x:\n    t[j + k] = x[j]",
        ["shared"],
    ),
    "a loop that may not run": (
        FILL + "for k in i64(x[0]):\n  for i2 in 16 threadIdx.x:\n    u[i2] = t[i2]\n"
        "  for j in 16 threadIdx.x:\n    t[j] = u[15 - j]\n" + OUT + "t[15 - o]",
        ["shared", "shared", "shared"],
    ),
    "a condition of the block": (
        FILL + "if b < 2:\n  for i2 in 16 threadIdx.x:\n    u[i2] = t[15 - i2]\nelse:\n"
        "  for i3 in 16 threadIdx.x:\n    u[15 - i3] = t[i3]",
        ["shared"],
    ),
    "branches of a condition": (
        "if b < 2:\n  for i2 in 16 threadIdx.x:\n    u[i2] = x[i2]\nelse:\n"
        "  for i3 in 16 threadIdx.x:\n    u[15 - i3] = x[i3]",
        [],
    ),
    "a condition that is read": (
        FILL + "if t[0] < 0.0:\n  for i2 in 16 threadIdx.x:\n    t[i2] = 0.0",
        ["shared", "shared"],
    ),
    "a condition of threads": (
        "for i in 16 threadIdx.x:\n  if i < 9:\n    t[i] = x[i]\n"
        "for j in 16 threadIdx.x:\n  if j < 9:\n    u[j] = t[8 - j]",
        ["shared"],
    ),
    "while": (
        "t[0] = 0.0\nwhile t[0] < 3.0:\n  for i in 16 threadIdx.x:\n    u[i] = t[0]\n"
        "  t[0] = t[0] + 1.0",
        ["shared", "shared", "shared"],
    ),
    "two axes": (
        "for i in 4 threadIdx.y:\n  for j in 4 threadIdx.x:\n    t[i * 4 + j] = x[j]\n"
        "for i2 in 4 threadIdx.y:\n  for j2 in 4 threadIdx.x:\n    u[i2 * 4 + j2] = t[i2 * 4 + j2]",
        [],
    ),
    "across one axis": (
        "for i in 4 threadIdx.y:\n  for j in 4 threadIdx.x:\n    t[i * 4 + j] = x[j]\n"
        "for i2 in 4 threadIdx.y:\n  for j2 in 4 threadIdx.x:\n    u[i2 * 4 + j2] = t[j2 * 4 + i2]",
        ["shared"],
    ),
    "an inner axis": (
        "for i in 4 threadIdx.y:\n  t[i] = x[i]\n"
        "  for j in 4 threadIdx.x:\n    u[i * 4 + j] = t[i]",
        ["shared"],
    ),
    "a guard around an inner axis": (
        "for i in 4 threadIdx.y:\n  if i < 3:\n    t[i] = x[i]\n"
        "    for j in 4 threadIdx.x:\n      u[i * 4 + j] = t[i]",
        ["shared"],
    ),
}


def program(text: str) -> LaunchProgram:
    lines = ["        " + line for line in text.split("\n")]
    return to_launches(kernel(HEAD + "\n".join(lines)))


def scopes(p: LaunchProgram) -> list[str]:
    return [s.scope for s in barriers(p)]


@pytest.mark.parametrize("what", CASES)
def test_barriers_stand_where_a_dependence_asks_for_one(what):
    text, expected = CASES[what]
    p = program(text)
    assert expected is None or scopes(p) == expected, str(p)
    judged(kernel(HEAD + "\n".join("        " + line for line in text.split("\n"))), p)
    for n in range(len(scopes(p))):
        with pytest.raises(ExecutionError):
            for seed in range(20):  # data decide how often loops run
                judged(None, without_barrier(p, n), seed)


RACES = {
    "an element of all threads": (
        "for i in 16 threadIdx.x:\n  t[0] = x[i]",
        r"buffer t: two threads race \(writes t\[0\]\): .*threadIdx.x=0.*threadIdx.x=1,",
    ),
    "a neighbor's element": (
        FILL + "for i2 in 15 threadIdx.x:\n  t[i2] = t[i2 + 1]",
        r"reads t\[.* writes t\[",
    ),
    "what a condition reads": (
        FILL + "for i2 in 15 threadIdx.x:\n  if t[i2] < 0.0:\n    t[i2 + 1] = 0.0",
        r"buffer t: two threads race \(reads t\[.* writes t\[",
    ),
    "an element of all blocks": (
        "for i in 16 threadIdx.x:\n  y[i] = x[i]",
        r"buffer y: two blocks race .*blockIdx.x=0.*blockIdx.x=3",
    ),
    "another block's element": (
        OUT + "x[o]\nfor i2 in 16 threadIdx.x:\n  t[i2] = y[i2]",
        r"buffer y: two blocks race \(writes .* reads y",
    ),
    "phases in a condition that reads": (
        FILL + "for i2 in 16 threadIdx.x:\n  if x[i2] < 0.0:\n    u[i2] = 0.0\n"
        "    for j in 2 threadIdx.y:\n      t[i2 + j * 16] = u[i2]",
        r"two threads race \(writes u\[.* reads u",
    ),
}


@pytest.mark.parametrize("what", RACES)
def test_a_race_that_no_barrier_orders_is_refused_with_both_threads(what):
    text, message = RACES[what]
    with pytest.raises(ScheduleError, match=message) as found:
        program(text)
    assert found.value.code == "TW-RACE" and found.value.hint


TURNS = """\
kernel turns(x: int32[3]) -> y: int32[8]:
  alloc left: int32[1] in shared:
    for k in 3:
      left[0] = x[k]
      while 0_i32 < left[0]:
        for t in 8 threadIdx.x:
          y[t] = y[t] + 1_i32
        left[0] = left[0] - 1_i32"""


def test_a_condition_that_ends_a_loop_is_read_before_what_follows():
    """Threads leave the loop from its condition, past the barriers in its body."""
    program = to_launches(kernel(TURNS))
    judged(kernel(TURNS), program)
    for n in range(len(barriers(program))):
        with pytest.raises(ExecutionError):
            judged(None, without_barrier(program, n))
