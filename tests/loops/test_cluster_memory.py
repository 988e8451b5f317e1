"""Memory that the blocks of a cluster share, in launches."""

from __future__ import annotations

import re

import pytest

from tests.loops.gpu_kernels import barriers, judged, kernel, without_barrier
from tilewright.base.errors import ExecutionError, ScheduleError
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.launch_interp import DivergenceError
from tilewright.loops.parser import parse_program
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.shared_memory import RaceError


def rows(width: int, blocks: int = 4, each: int = 32, around: str = "r") -> str:
    """Each row of `width` elements less its sum, by a cluster: each block has `each` of them."""
    return f"""\
kernel f(x: int32[3, {width}]) -> y: int32[3, {width}]:
  for {around} in 3 blockIdx.y:
    alloc p: int32[{blocks}] in cluster:
      alloc s: int32[] in register:
        for b in {blocks} blockIdx.x:
          p[b] = 0_i32
          for t in {each} threadIdx.x:
            if b * {each} + t < {width}:
              p[b] add= x[{around}, b * {each} + t]
        s[] = 0_i32
        for c in {blocks}:
          s[] add= p[c]
        for d in {blocks} blockIdx.x:
          for u in {each} threadIdx.x:
            if d * {each} + u < {width}:
              y[{around}, d * {each} + u] = x[{around}, d * {each} + u] - s[]"""


# Each block reads what its neighbor has written, and both write again: two steps.
TWICE = """\
kernel f(x: int32[3, 17]) -> y: int32[2, 16]:
  alloc p: int32[2, 16] in cluster:
    for k in 3:
      for b in 2 blockIdx.x:
        for t in 16 threadIdx.x:
          p[b, t] = x[k, t + b]
      for d in 2 blockIdx.x:
        for u in 16 threadIdx.x:
          y[d, u] = p[1 - d, 15 - u]"""


def launched(text: str, warp: int = 32) -> LaunchProgram:
    return to_launches(kernel(text), warp)


@pytest.mark.parametrize("warp", [1, 32])
@pytest.mark.parametrize(
    ("width", "blocks", "each"), [(128, 4, 32), (101, 4, 32), (3, 8, 2), (1, 2, 5)]
)
def test_blocks_of_a_cluster_share_a_row(width, blocks, each, warp):
    text = rows(width, blocks, each)
    p = launched(text, warp)
    assert [x.cluster for x in p.launches] == [(blocks, 1, 1)]
    for seed in range(4):
        judged(kernel(text), p, seed)


def test_barriers_of_the_cluster_follow_from_dependences():
    assert [s.scope for s in barriers(launched(rows(128)))] == ["cluster", "cluster"]
    p = launched(TWICE)
    assert [s.scope for s in barriers(p)] == ["cluster"] * 2  # also behind the last use
    for seed in range(4):
        judged(kernel(TWICE), p, seed)


@pytest.mark.parametrize("text", [rows(101), TWICE])
@pytest.mark.parametrize("seed", range(4))
def test_each_barrier_of_the_cluster_is_needed(text, seed):
    """The last one, too, whatever the order of the blocks."""
    p = launched(text)
    for n in range(len(barriers(p))):
        with pytest.raises(RaceError, match=r"no barrier|may not have begun"):
            judged(None, without_barrier(p, n), seed)


@pytest.mark.parametrize("number", [0, 1])
def test_a_barrier_of_the_block_is_not_enough(number):
    lines = str(launched(rows(101))).split("\n")
    found = [n for n, line in enumerate(lines) if "barrier cluster" in line]
    at = found[number]
    lines[at] = lines[at].replace("cluster", "shared")
    with pytest.raises(RaceError, match=r"may not have begun|may have ended"):
        judged(None, parse_program(lines))


def test_a_block_that_writes_to_the_slice_of_another_one_is_found():
    text = str(launched(rows(101)))
    wrong = text.replace("p[blockIdx.x] = 0_i32", "p[(blockIdx.x + 1) % 4] = 0_i32")
    assert wrong != text
    with pytest.raises(RaceError, match="in the memory of another block"):
        judged(None, parse_program(wrong.split("\n")))


def test_a_block_that_reads_its_own_slice_only_is_found():
    text = str(launched(rows(101)))
    wrong = text.replace("s[] add= p[c]", "s[] add= p[blockIdx.x]")
    assert wrong != text
    with pytest.raises(AssertionError):
        judged(kernel(rows(101)), parse_program(wrong.split("\n")))


def test_a_block_that_ends_early_is_found():
    text = str(launched(rows(128)))
    head, last = text.rsplit("    barrier cluster", 1)
    early = f"{head}    if blockIdx.x < 3:\n      barrier cluster{last}"
    with pytest.raises(DivergenceError, match="has ended"):
        judged(None, parse_program(early.split("\n")))


def test_a_program_with_such_memory_is_read_from_its_text():
    text = str(launched(rows(101)))
    assert "shared p: int32[4] in cluster" in text
    assert str(parse_program(text.split("\n"))) == text


def test_memory_of_each_block_is_beside_that_of_the_cluster():
    """A buffer in "shared" that is inside a loop over the blocks, and a barrier of the block."""
    text = """\
kernel f(x: int32[2, 16]) -> y: int32[2, 16]:
  alloc p: int32[2] in cluster:
    for b in 2 blockIdx.x:
      alloc t: int32[16] in shared:
        for i in 16 threadIdx.x:
          t[i] = x[b, i]
        p[b] = t[15] - t[0]
    for d in 2 blockIdx.x:
      for j in 16 threadIdx.x:
        y[d, j] = p[1 - d] + j"""
    p = launched(text.replace("+ j", "+ x[d, 15 - j]"))
    assert [s.scope for s in barriers(p)] == ["shared", "cluster", "cluster"]
    for seed in range(4):
        judged(kernel(text.replace("+ j", "+ x[d, 15 - j]")), p, seed)
    for n in range(3):
        with pytest.raises(RaceError):
            judged(None, without_barrier(p, n))


def test_no_barrier_is_needed_where_a_thread_reads_what_it_wrote():
    text = TWICE.replace("p[1 - d, 15 - u]", "p[d, u]")
    p = launched(text)
    assert not barriers(p)
    judged(kernel(text), p)


ONE = rows(128)
REFUSED = {
    "another slice": (
        ONE.replace("p[b] = 0", "p[3 - b] = 0").replace("p[b] add=", "p[3 - b] add="),
        "may be in the memory of another block",
    ),
    "nine blocks": (rows(128, 9), "it has 2 to 8 blocks, not 9"),
    "one block": (rows(128, 1), "it has 2 to 8 blocks, not 1"),
    "no slice for each": (
        ONE.replace("p: int32[4]", "p: int32[5]"),
        "no slice for each of the 4 blocks",
    ),
    "another axis": (
        ONE.replace("for d in 4 blockIdx.x", "for d in 4 blockIdx.z"),
        "it is blockIdx.z, but the blocks that share memory are blockIdx.x",
    ),
    "an axis of the grid": (
        ONE.replace("for r in 3 blockIdx.y", "for r in 3 blockIdx.x").replace(
            "blockIdx.x", "blockIdx.y"
        ),
        "it is blockIdx.y",
    ),
    "no loop over blocks": (
        re.sub("in 4 blockIdx.x", "in 4", ONE),
        "no loop over blocks is inside it",
    ),
    "memory of one block around": (
        ONE.replace("s: int32[] in register", "s: int32[] in shared"),
        "each block of the cluster has its own",
    ),
    "inside a loop over threads": (
        """\
kernel f(x: int32[2, 16]) -> y: int32[2, 16]:
  for t in 16 threadIdx.x:
    alloc p: int32[2] in cluster:
      for b in 2 blockIdx.x:
        p[b] = x[b, t]
      for d in 2 blockIdx.x:
        y[d, t] = p[1 - d]""",
        "it is inside a loop over threads",
    ),
    "steps that differ between blocks": (
        """\
kernel f(n: int64[2], x: int32[2, 16]) -> y: int32[2, 16]:
  alloc p: int32[2, 16] in cluster:
    for k in n[0]:
      for b in 2 blockIdx.x:
        for t in 16 threadIdx.x:
          p[b, t] = x[b, t] + y[b, t]
      for d in 2 blockIdx.x:
        for u in 16 threadIdx.x:
          y[d, u] = p[1 - d, u]""",
        "may differ between blocks that do something together",
    ),
    "a sum over the blocks": (
        ONE.replace("p[b] add=", "p[0] add="),
        "may be in the memory of another block|separate registers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_memory_of_a_cluster_is_refused(name):
    text, why = REFUSED[name]
    with pytest.raises((ScheduleError, ExecutionError), match=why):
        launched(text)
