"""Shared buffers that share room: which may, the barriers between them, and planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops.gpu_kernels import barriers, judged, kernel, without_barrier
from tests.targets.cuda.test_copies import count, without
from tests.targets.cuda.test_product_waits import COUNT, Products
from tilewright.expr.nodes import const
from tilewright.loops import launch_interp
from tilewright.loops.launch import Barrier, LaunchProgram, Wait
from tilewright.loops.nodes import ASYNC, Kernel, Store
from tilewright.loops.parser import parse_program
from tilewright.loops.passes.shared_room import end_of
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.shared_memory import RaceError
from tilewright.schedule import Schedule

HEAD = """\
kernel f(x: float32[64]) -> y: float32[64], z: float32[64]:
  for b in 4 blockIdx.x:
"""
IN = "for {0} in 16 threadIdx.x:\n  {1}[{0}] = x[b * 16 + 15 - {0}]\n"
OUT = "for {0} in 16 threadIdx.x:\n  {2}[b * 16 + {0}] = {1}[15 - {0}]\n"
FIRST = IN.format("i", "t") + OUT.format("j", "t", "y")
THEN = IN.format("k", "u") + OUT.format("l", "u", "z")
ALLOCS = "alloc t: float32[16] in shared:\n  alloc u: float32[16] in shared:\n"


def indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.rstrip("\n").split("\n")) + "\n"


def of_block(*parts: str) -> Kernel:
    """A kernel whose blocks have both buffers."""
    text = HEAD + indented(ALLOCS, 4) + indented("".join(parts), 8)
    return kernel(text.rstrip("\n"))


def launched(k: Kernel, own: int | None = 0) -> LaunchProgram:
    return to_launches(k, 32, async_copies=True, bulk_copies=True, own_room=own)


def taken(p: LaunchProgram) -> int:
    """Bytes that buffers share, if some do; else 0."""
    (launch,) = p.launches
    return end_of(launch.places)


SHARING = {
    "one after the other": of_block(FIRST, THEN),
    "part of the threads": of_block(
        FIRST.replace("16 threadIdx", "11 threadIdx"), THEN
    ),
    "at other offsets": of_block(FIRST, THEN.replace("15 - l", "l")),
    "written twice": of_block(FIRST, IN.format("m", "u"), THEN),
    "never written": of_block(
        "for i in 16 threadIdx.x:\n  t[i] = x[b * 16 + i]\n",
        "for l in 16 threadIdx.x:\n  z[b * 16 + l] = u[15 - l]\n",
    ),
    "under a condition of the block": of_block(FIRST, "if b < 2:\n", indented(THEN, 2)),
    "both begin anew in each iteration": kernel(
        HEAD
        + "    for n in 3:\n"
        + indented(ALLOCS, 6)
        + indented(FIRST + THEN, 10).rstrip("\n")
    ),
}


@pytest.mark.parametrize("name", SHARING)
def test_buffers_that_are_not_needed_together_share_room(name):
    k = SHARING[name]
    p = launched(k)
    assert taken(p) == 64
    assert str(parse_program(str(p).split("\n"))) == str(p)
    judged(k, p)
    for n in range(len(barriers(p))):
        with pytest.raises(RaceError):
            judged(None, without_barrier(p, n))


def test_an_iteration_meets_before_it_writes_what_the_last_one_read():
    k = SHARING["both begin anew in each iteration"]
    assert len(barriers(launched(k))) == len(barriers(launched(k, None))) + 2


APART = {
    "needed together": of_block(
        IN.format("i", "t"),
        IN.format("k", "u"),
        OUT.format("j", "t", "y"),
        OUT.format("l", "u", "z"),
    ),
    "one copied to the other": of_block(
        IN.format("i", "t"),
        "for k in 16 threadIdx.x:\n  u[k] = t[15 - k]\n",
        OUT.format("l", "u", "z"),
    ),
    "kept for the next iteration": of_block(
        IN.format("i", "t"),
        "for n in 2:\n",
        indented(OUT.format("j", "t", "y") + THEN, 2),
    ),
    "around iterations that begin anew": kernel(
        HEAD
        + indented("alloc t: float32[16] in shared:\n  for n in 2:\n", 4)
        + indented(
            "alloc u: float32[16] in shared:\n" + indented(FIRST + THEN, 2), 8
        ).rstrip("\n")
    ),
    "in a loop with a condition": of_block(
        "for q in 1 threadIdx.x:\n  z[b * 16] = 1.0\n",
        "while z[b * 16] < 2.0:\n",
        indented(FIRST + THEN + "for r in 1 threadIdx.x:\n  z[b * 16] = 2.0\n", 2),
    ),
    "where not all threads come to": of_block(
        "for i in 16 threadIdx.x:\n  if x[b * 16 + i] < 1.0:\n",
        "    t[i] = x[b * 16 + i]\n    y[b * 16 + i] = t[i]\n",
        "    u[i] = x[b * 16 + i]\n    z[b * 16 + i] = u[i]\n",
    ),
}


@pytest.mark.parametrize("name", APART)
def test_others_stay_apart(name):
    k = APART[name]
    p = launched(k)
    assert not taken(p), str(p)
    assert str(p) == str(launched(k, None))
    judged(k, p)


def test_small_blocks_stay_apart():
    """Where their memory does not limit how many run."""
    k = SHARING["one after the other"]
    assert [taken(launched(k, own)) for own in (None, 8, 7)] == [0, 0, 64]


def test_a_large_buffer_has_room_of_several_small_ones():
    """Those before it are needed together, and so are those behind it."""
    sizes = {"t": 16, "u": 32, "q": 20, "v": 48, "w": 8, "s": 24}
    head, depth = HEAD, 4
    for name, n in sizes.items():
        head += f"{' ' * depth}alloc {name}: float32[{n}] in shared:\n"
        depth += 2
    before = [IN.format(f"i{n}", n) for n in "tuq"]
    before += [OUT.format(f"o{n}", n, to) for n, to in zip("tuq", "yzz", strict=True)]
    large = IN.format("k", "v") + OUT.format("l", "v", "y")
    behind = IN.format("m", "w").replace("16 threadIdx", "8 threadIdx")
    behind += IN.format("n", "s")
    last = "for e in 8 threadIdx.x:\n  z[b * 16 + e] = w[7 - e] + s[e]\n"
    text = "".join([*before, large, behind, last])
    k = kernel((head + indented(text, depth)).rstrip("\n"))
    p = launched(k)
    (launch,) = p.launches
    found = {b.name: at for b, at in launch.places.items()}
    assert found == {"v": 0, "u": 0, "s": 0, "q": 128, "t": 208, "w": 96}
    judged(k, p)


# -- what is in flight


COPIED = """\
for i in 4 threadIdx.x:
  for c in 4 vector:
    t[i * 4 + c] = x[b * 16 + i * 4 + c]
"""


@pytest.mark.parametrize("then", [THEN, THEN + "y[b * 16] = z[b * 16 + 3]\n"])
def test_a_copy_that_nobody_reads_is_there_before_its_room_is_used(then):
    s = Schedule(of_block(COPIED, then))
    s.annotate("c", ASYNC, 1)
    p = launched(s.kernel)
    assert taken(p) == 64 and count(p, Wait) == 1
    judged(s.kernel, p)
    for number in range(count(p, Barrier)):
        with pytest.raises(RaceError, match="with no barrier between"):
            judged(None, without_barrier(p, number))
    with pytest.raises(RaceError, match="with no wait between"):
        judged(None, without(p, Wait, 0))


def test_a_product_is_over_before_the_room_of_its_factor_is_used():
    p = Products()
    before = [p.multiply(tile) for tile in (p.t, p.w)]
    meet = p.threads(lambda i: Store(p.y, (i,), p.v[const(COUNT - 1) - i]))
    results = [p.result(n) for n in range(2)]
    made = p.launches(*before, p.copy(p.v), meet, *results, own_room=0)
    (launch,) = made.launches
    places = {b.name: at for b, at in launch.places.items()}
    assert places["v"] == places["w"] == 0
    assert places["t"] == 64
    wrong = [without(made, Wait, n) for n in range(count(made, Wait))]
    for other in (*wrong, without_barrier(made, -2)):
        with pytest.raises(RaceError):
            judged(None, other)


# -- what programs mean


WRITTEN_OVER = """
program f(x: float32[4]) -> y: float32[4]:
  launch f_0(x, y) grid [1, 1, 1] threads [4, 1, 1]:
    shared t: float32[4] in shared at 0
    shared u: float16[8] in shared at {at}
    t[threadIdx.x] = x[threadIdx.x]
    barrier shared
    u[threadIdx.x] = 1.0
    y[threadIdx.x] = t[3 - threadIdx.x]
"""


def test_what_one_buffer_had_is_undefined_once_another_is_written():
    """Four elements of two bytes are over the first two of four bytes."""

    def found(at: int, barrier: str = "") -> np.ndarray:
        text = WRITTEN_OVER.format(at=at).replace("    y[", f"{barrier}    y[")
        p = parse_program(text.strip().split("\n"))
        arrays = {b: np.ones(4, np.float32) for b in p.params}
        launch_interp.run(p, arrays)
        return arrays[p.outputs[0]]

    met = "    barrier shared\n"
    assert np.isnan(found(0, met)).tolist() == [False, False, True, True]
    assert np.isnan(found(8, met)).tolist() == [True, True, False, False]
    assert not np.isnan(found(16)).any()
    with pytest.raises(RaceError, match=r"t\[\d\]: thread .* with no barrier between"):
        found(0)
