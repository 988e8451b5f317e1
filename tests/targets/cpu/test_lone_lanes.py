"""Stores of one lane of what is narrowed: nothing beside the element changes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.guarded import guarded, in_a_child
from tests.targets.cpu.native import prepare
from tilewright.loops.parser import parse
from tilewright.targets.cpu.lone_lanes import without_lone_lanes
from tilewright.targets.cpu.machine import machine
from tilewright.targets.registry import target

KERNEL = """
kernel k(x: {source}[{n}]) -> y: {to}[{size}]:
  for v in {n} vector:
    if v < {most}:
      y[v * {stride}] = {cast}(x[v])
"""
CASES = [
    ("int32", "uint8", "u8"),
    ("int64", "int32", "i32"),
    ("int64", "int16", "i16"),
    ("int16", "uint8", "u8"),
    ("float32", "uint16", "u16"),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize(("source", "to", "cast"), CASES)
@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
def test_neighbors_stay(source: str, to: str, cast: str, mcpu: str) -> None:
    if not target("cpu", mcpu).runs_here:
        pytest.skip(f"this processor is not a {mcpu}")

    def test() -> None:
        for n, most, stride in ((4, 1, 1), (2, 2, 4), (4, 4, 4), (16, 9, 1), (8, 8, 3)):
            size = (most - 1) * stride + 1
            given = {"n": n, "most": most, "stride": stride, "size": size}
            text = KERNEL.format(source=source, to=to, cast=cast, **given)
            kernel = parse(text.strip().split("\n"))
            run = prepare(kernel, machine=machine(mcpu))
            x = guarded(np.arange(n, dtype=source) + 3)
            for at_end in (True, False):
                y = guarded(np.full(size, 77, to), at_end)
                assert run(x, y) == 0
                want = np.full(size, 77, to)
                want[::stride] = x[:most]
                np.testing.assert_array_equal(y, want)

    in_a_child(test)


def stored(mask: str, registers: int = 512, align: int = 4) -> list[str]:
    bits = ", ".join(f"i1 {'true' if b == '1' else 'false'}" for b in mask)
    n = len(mask)
    text = (
        f"  call void @llvm.masked.store.v{n}i16.p0(<{n} x i16> %v, "
        f"ptr align {align} %p, <{n} x i1> <{bits}>)\n  ret void"
    )
    made = without_lone_lanes(text, registers)
    assert (made == text) == ("extractelement" not in made)
    return [line.strip() for line in made.split("\n")][:-1]


def test_several_lanes_stay_a_vector() -> None:
    for mask in ("1100", "10010000", "0000", "1" * 16, "1010101010101010"):
        assert len(stored(mask)) == 1


def test_a_lone_lane_is_an_element() -> None:
    assert stored("0010") == [
        "%lone1.2 = extractelement <4 x i16> %v, i64 2",
        "%lone1.2.at = getelementptr i8, ptr %p, i64 4",
        "store i16 %lone1.2, ptr %lone1.2.at, align 4",
    ]
    assert stored("0001", align=64)[-1].endswith("align 2")


def test_a_lone_lane_of_a_part_goes_apart() -> None:
    [*apart, rest] = stored("1" * 9 + "0" * 7)
    assert apart[0] == "%lone1.8 = extractelement <16 x i16> %v, i64 8"
    assert rest.count("i1 true") == 8 and rest.count("i1 false") == 8
    assert len(stored("10001000", registers=256)) == 6
