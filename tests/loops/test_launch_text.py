"""Programs of launches as text: what is printed is read back."""

from __future__ import annotations

import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import InputError
from tilewright.compute.reducer import arg_reducer
from tilewright.loops.launch import Barrier, CombineThreads
from tilewright.loops.parser import parse_program
from tilewright.loops.walk import walk

SUMS = """\
program sums(x: float32[n, 64]) -> y: float32[n]:
  size n
  workspace p: float32[n, 2]
  launch sums_0(x, p) grid [n, 2, 1] threads [32, 1, 1]:
    shared t: float32[32] in shared
    alloc r: float32[] in register:
      r[] = 0
      r[] add= x[blockIdx.x, blockIdx.y * 32 + threadIdx.x]
      combine r[] by add over 32
      t[threadIdx.x] = r[]
      barrier shared
      if threadIdx.x < 1:
        p[blockIdx.x, blockIdx.y] = t[31]
  launch sums_1(p, y) grid [n, 1, 1] threads [1, 1, 1]:
    y[blockIdx.x] = 0
    for k in 2:
      y[blockIdx.x] add= p[blockIdx.x, k]"""


def test_the_text_of_a_program_is_read_back():
    program = parse_program(SUMS.split("\n"))
    assert str(program) == SUMS
    assert [v.name for v in program.sizes] == ["n"]
    assert [b.name for b in program.launches[1].params] == ["p", "y"]


def test_barriers_and_combined_values_are_statements_like_others():
    program = parse_program(SUMS.split("\n"))
    kinds = [type(at.stmt) for at in walk(program.launches[0].body)]
    assert kinds.count(Barrier) == 1 and kinds.count(CombineThreads) == 1


def test_an_operator_of_several_values_is_named():
    lines = [
        "program p(x: float32[4]) -> y: int64[1]:",
        "  launch p(x, y) grid [1, 1, 1] threads [4, 1, 1]:",
        "    alloc v: float32[1] in register:",
        "      alloc w: int64[1] in register:",
        "        combine v[0], w[0] by argmax over 4",
    ]
    best = arg_reducer("argmax", float32, int64)
    program = parse_program(lines, {"argmax": best})
    assert str(program) == "\n".join(lines)
    (found,) = (
        at.stmt
        for at in walk(program.launches[0].body)
        if isinstance(at.stmt, CombineThreads)
    )
    assert found.reducer is best and found.width == 4


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        (3, "  launch sums_0(q) grid [1, 1, 1] threads [1, 1, 1]:", "a parameter or"),
        (3, "  launch sums_0(x) grid [1, 1] threads [1, 1, 1]:", "expected 3 extents"),
        (3, "  launch sums_0(x) grid [1, 1, 1] threads [n, 1, 1]:", "an extent"),
        (8, "      combine r[] by sum over 32", "unknown operator 'sum'"),
        (10, "      barrier", "shared or global"),
        (12, "        p[blockIdx.w, 0] = t[31]", "blockIdx.w"),
    ],
)
def test_an_error_names_the_line(line, instead, message):
    lines = SUMS.split("\n")
    lines[line] = instead
    with pytest.raises(InputError, match=f"line {line + 1}.*{message}"):
        parse_program(lines)
