"""Reductions by the threads of a block: parts, a tree of them, and when there is none."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops.gpu_kernels import barriers, judged, kernel
from tilewright.base.dtypes import float32, int32, int64
from tilewright.base.errors import ScheduleError
from tilewright.compute.reducer import Reducer, arg_reducer
from tilewright.expr.nodes import Var, const
from tilewright.loops import interp, launch_interp
from tilewright.loops.launch import CombineThreads, LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import parse
from tilewright.loops.passes.thread_reductions import with_reductions
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule

WARPS = (1, 4, 32)
HEAD = "kernel k(x: int32[6, 24]) -> y: int32[6]:\n"
ROWS = {
    "a row of each block": (
        "  for b in 6 blockIdx.x:\n    y[b] = 0_i32\n"
        "    for t in 24 threadIdx.x:\n      y[b] add= x[b, t]"
    ),
    "steps of each thread": (
        "  for b in 6 blockIdx.x:\n    y[b] = 0_i32\n    for k in 3:\n"
        "      for t in 8 threadIdx.x:\n        y[b] add= x[b, k * 8 + t]"
    ),
    "steps inside": (
        "  for b in 6 blockIdx.x:\n    y[b] = 0_i32\n    for t in 8 threadIdx.x:\n"
        "      for k in 3:\n        y[b] add= x[b, t * 3 + k]"
    ),
    "a tail": (
        "  for b in 6 blockIdx.x:\n    y[b] = 0_i32\n    for k in 3:\n"
        "      for t in 10 threadIdx.x:\n        if k * 10 + t < 24:\n"
        "          y[b] add= x[b, k * 10 + t]"
    ),
    "two axes": (
        "  for b in 6 blockIdx.x:\n    y[b] = 0_i32\n    for u in 3 threadIdx.y:\n"
        "      for t in 8 threadIdx.x:\n        y[b] add= x[b, u * 8 + t]"
    ),
    "a row of each thread of an axis": (
        "  for b in 2 blockIdx.x:\n    for u in 3 threadIdx.y:\n      y[b * 3 + u] = 0_i32\n"
        "      for t in 24 threadIdx.x:\n        y[b * 3 + u] add= x[b * 3 + u, t]"
    ),
    "rows that are not all there": (
        "  for b in 2 blockIdx.x:\n    for u in 4 threadIdx.y:\n      if b * 4 + u < 6:\n"
        "        y[b * 4 + u] = 0_i32\n        for t in 24 threadIdx.x:\n"
        "          y[b * 4 + u] add= x[b * 4 + u, t]"
    ),
    "places that are not all there": (
        "  for b in 8 blockIdx.x:\n    if b < 6:\n      for t in 24 threadIdx.x:\n"
        "        y[b] add= x[b, t]"
    ),
    "places that a tail guards": (
        "  for b in 4 blockIdx.x:\n    for u in 2 threadIdx.y:\n      for k in 3:\n"
        "        for t in 10 threadIdx.x:\n          if k * 10 + t < 24:\n"
        "            if b * 2 + u < 6:\n"
        "              y[b * 2 + u] add= x[b * 2 + u, k * 10 + t]"
    ),
    "places of the other branch": (
        "  for b in 8 blockIdx.x:\n    for t in 24 threadIdx.x:\n"
        "      alloc s: int32[1] in register:\n        if 5 < b:\n          s[0] = 1_i32\n"
        "        else:\n          y[b] add= x[b, t]"
    ),
    "more threads elsewhere": (
        "  for b in 6 blockIdx.x:\n    alloc s: int32[32] in shared:\n"
        "      for f in 32 threadIdx.x:\n        s[f] = x[b, f % 24]\n      y[b] = 0_i32\n"
        "      for t in 12 threadIdx.x:\n        y[b] add= s[t + 12]"
    ),
    "a register of all threads": (
        "  for b in 6 blockIdx.x:\n    alloc m: int32[] in register:\n      m[] = 0_i32\n"
        "      for t in 24 threadIdx.x:\n        m[] max= x[b, t]\n      y[b] = 0_i32\n"
        "      for u in 24 threadIdx.x:\n        y[b] add= m[] - x[b, u]"
    ),
    "a buffer that is filled for it": (
        "  for b in 6 blockIdx.x:\n    alloc s: int32[8] in shared:\n      y[b] = 0_i32\n"
        "      for k in 3:\n        for f in 8 threadIdx.x:\n          s[7 - f] = x[b, k * 8 + f]\n"
        "        for t in 8 threadIdx.x:\n          y[b] add= s[t]"
    ),
    "one place of a loop after the other": (
        "  for r in 6:\n    y[r] = 0_i32\n    for t in 24 threadIdx.x:\n      y[r] add= x[r, t]"
    ),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("what", ROWS)
def test_threads_add_up_parts_and_a_tree_the_parts(what, warp):
    before = kernel(HEAD + ROWS[what])
    p = to_launches(before, warp)
    for seed in range(2):
        judged(before, p, seed)


@pytest.mark.parametrize("what", ROWS)
def test_the_parts_and_the_tree_are_a_kernel_that_means_the_same(what):
    """As statements in order, before they are the program of a thread."""
    before = kernel(HEAD + ROWS[what])
    threads = dict.fromkeys(("threadIdx.x", "threadIdx.y", "threadIdx.z"), 1)
    for at in walk(before.body):
        kind = getattr(at.stmt, "kind", "")
        if kind in threads:
            threads[kind] = max(threads[kind], at.stmt.trips)
    after = before.with_body(with_reductions(before.body, threads, 1))
    x = np.arange(144, dtype=np.int32).reshape(6, 24)
    found = []
    for k in (before, after):
        y = np.zeros(6, np.int32)
        interp.run(k, dict(zip(k.params, (x, y), strict=True)))
        found.append(y)
    assert "parts" in repr(after) and found[0].tolist() == found[1].tolist()


def combined(p: LaunchProgram) -> list[int]:
    found = (at.stmt for launch in p.launches for at in walk(launch.body))
    return [s.width for s in found if isinstance(s, CombineThreads)]


@pytest.mark.parametrize(
    ("threads", "warp", "width"), [(24, 32, 8), (32, 32, 32), (12, 2, 2)]
)
def test_a_warp_combines_as_many_as_divide_the_axis(threads, warp, width):
    text = f"  for t in {threads} threadIdx.x:\n    y[0] add= x[0, t % 24]"
    p = to_launches(kernel(HEAD + text), warp)
    assert combined(p) == [width]
    few = len(barriers(to_launches(kernel(HEAD + text), 1))) - len(barriers(p))
    assert few >= width.bit_length() - 1 - (width == threads)
    judged(kernel(HEAD + text), p)


def test_the_bits_of_a_sum_are_the_same_in_each_run():
    text = "kernel k(x: float32[999]) -> y: float32[1]:\n  y[0] = 0.0\n  for k in 32:\n"
    text += "    for t in 32 threadIdx.x:\n      if k * 32 + t < 999:\n"
    text += "        y[0] add= x[k * 32 + t]"
    p = to_launches(kernel(text), 8)
    x = np.random.default_rng(0).standard_normal(999).astype(np.float32)
    bits = set()
    for seed in range(4):
        y = np.zeros(1, np.float32)
        launch_interp.run(p, dict(zip(p.params, (x, y), strict=True)), seed)
        bits.add(y.tobytes())
    assert len(bits) == 1 and abs(y[0] - x.astype(np.float64).sum()) < 1e-4


def pairs(reducer: Reducer) -> Kernel:
    text = (
        "kernel k(x: float32[2, 24]) -> v: float32[2], i: int64[2]:\n"
        "  for b in 2 blockIdx.x:\n    v[b] = -inf\n    i[b] = 99\n"
        "    for t in 24 threadIdx.x:\n      v[b], i[b] best= x[b, t], t"
    )
    return parse(text.split("\n"), operators={"best": reducer})


@pytest.mark.parametrize("warp", WARPS)
def test_values_that_belong_together_are_combined_together(warp):
    before = pairs(arg_reducer("argmax", float32, int64))
    x = np.zeros((2, 24), np.float32)
    x[0, [7, 19]], x[1, 23] = 3.0, np.nan
    v, i = np.zeros(2, np.float32), np.zeros(2, np.int64)
    p = to_launches(before, warp)
    launch_interp.run(p, dict(zip(p.params, (x, v, i), strict=True)))
    assert i.tolist() == [7, 23] and v[0] == 3.0 and np.isnan(v[1])


REFUSED = {
    "a scan": (
        "  for t in 6 threadIdx.x:\n    y[0] add= x[0, t]\n    y[1] = y[0]",
        r"two threads race \(updates y\[0\]\)",
    ),
    "an element of each step of a thread": (
        "  for t in 6 threadIdx.x:\n    for k in 6:\n      y[k] add= x[k, t]",
        r"two threads race \(updates y\[k\]\)",
    ),
    "a place that is there for some threads": (
        "  for b in 8 blockIdx.x:\n    for t in 24 threadIdx.x:\n"
        "      if b * 5 + t < 24:\n        y[b] add= x[b, t]",
        r"two threads race \(updates y\[blockIdx.x\]\)",
    ),
    "a place that memory says, for some threads": (
        "  for t in 24 threadIdx.x:\n    if t < 23:\n      y[i64(x[0, 0])] add= 1_i32",
        r"two threads race",
    ),
    "a sum of blocks": (
        "  for b in 6 blockIdx.x:\n    y[0] add= x[b, 0]",
        r"two blocks race \(updates y\[0\]\)",
    ),
    "under what another thread says": (
        "  for u in 2 threadIdx.y:\n    if x[0, u] < 3_i32:\n      alloc r: int32[] in register:\n"
        "        r[] = 0_i32\n        for t in 8 threadIdx.x:\n          r[] add= x[u, t]\n"
        "        y[u] = r[]",
        "where not all of them come to",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_reduction_of_threads_is_refused(what):
    text, message = REFUSED[what]
    with pytest.raises(ScheduleError, match=message):
        to_launches(kernel(HEAD + text), 4)


def test_bind_lets_threads_share_a_reduction_whose_order_is_free():
    before = kernel(
        "kernel k(x: int32[24]) -> y: int32[1]:\n  for t in 24:\n    y[0] add= x[t]"
    )
    s = Schedule(before)
    s.bind("t", "threadIdx.x")
    judged(before, to_launches(s.kernel))
    with pytest.raises(ScheduleError, match=r"\(t=0\) and \(t=23\) conflict at y\[0\]"):
        Schedule(before).bind("t", "blockIdx.x")


def test_bind_refuses_a_reduction_whose_order_matters():
    a, b = Var("a", int32), Var("b", int32)
    last = Reducer("last", (a,), (b,), (b,), (const(0, int32),), commutative=False)
    text = "kernel k(x: int32[24]) -> y: int32[1]:\n  for t in 24:\n    y[0] last= x[t]"
    with pytest.raises(ScheduleError, match="loop-carried dependence: one updates"):
        Schedule(parse(text.split("\n"), operators={"last": last})).bind(
            "t", "threadIdx.x"
        )
    bound = text.replace("for t in 24:", "for t in 24 threadIdx.x:").split("\n")
    with pytest.raises(ScheduleError, match=r"two threads race \(updates y\[0\]\)"):
        to_launches(parse(bound, operators={"last": last}))
