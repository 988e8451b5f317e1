"""bind and annotate: what is said of a loop, to a GPU and to readers of the kernel."""

from __future__ import annotations

import pytest

from tests.schedule.test_matmul import matmul
from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError, UnsupportedError
from tilewright.expr.nodes import Buffer, Load, var
from tilewright.loops.nodes import GPU_AXES, Kernel, Store, loop
from tilewright.schedule import Schedule
from tilewright.targets.cpu.compile import llvm_ir
from tilewright.targets.cpu.machine import machine

BOUND = """\
kernel matmul(A: float32[8, 4], B: float32[4, 6]) -> C: float32[8, 6]:
  for mm.i.o in 4 blockIdx.x:
    for mm.j in 6 threadIdx.x:
      for mm.i.i in 2 vthread:
        C[mm.i.o * 2 + mm.i.i, mm.j] = 0.0
        for mm.k in 4:
          C[mm.i.o * 2 + mm.i.i, mm.j] add= A[mm.i.o * 2 + mm.i.i, mm.k] * B[mm.k, mm.j]"""


def bound() -> Schedule:
    s = Schedule(matmul(8, 6, 4, epilogue=False))
    o, i = s.split("mm.i", 2)
    s.reorder(o, "mm.j", i)
    s.bind(o, "blockIdx.x")
    s.bind("mm.j", "threadIdx.x")
    s.bind(i, "vthread")
    return s


def test_bound_loops_run_as_before(check_same):
    s = bound()
    check_same(matmul(8, 6, 4, epilogue=False), s, exact=True)
    assert repr(s.kernel) == BOUND


@pytest.mark.parametrize("axis", GPU_AXES)
def test_a_processor_has_no_axes_of_a_gpu(axis):
    s = Schedule(matmul(8, 6, 4, epilogue=False))
    s.bind("mm.j", axis)
    with pytest.raises(UnsupportedError, match=f"loop mm.j: it is bound to {axis}"):
        llvm_ir(s.kernel, machine("x86-64-v3"))
    s.bind("mm.j", "vthread")
    assert "define" in llvm_ir(s.kernel, machine("x86-64-v3"))


def test_bind_refuses_what_threads_cannot_share():
    s = Schedule(matmul(8, 6, 4, epilogue=False))
    with pytest.raises(
        ScheduleError,
        match=r"blockIdx.x loop has a loop-carried dependence: one updates C",
    ):
        s.bind("mm.k", "blockIdx.x")
    with pytest.raises(ScheduleError, match=r"no axis 'blockIdx.w'.*known: blockIdx.x"):
        s.bind("mm.i", "blockIdx.w")
    s.bind("mm.i", "threadIdx.x")
    with pytest.raises(
        ScheduleError, match=r"loop mm.i around it is bound to threadIdx.x already"
    ):
        s.bind("mm.j", "threadIdx.x")


@pytest.mark.parametrize(
    "move", [("compute_at", "C", "relu.i"), ("reverse_compute_at", "D", "mm.i")]
)
def test_no_nest_moves_into_its_own_axis(move):
    s = Schedule(matmul(8, 6, 4))
    s.bind("mm.i", "threadIdx.x")
    s.bind("relu.i", "threadIdx.x")
    with pytest.raises(
        ScheduleError, match=f"{move[0]}: loop .*bound to threadIdx.x already"
    ):
        getattr(s, move[0])(*move[1:])


def test_notes_are_printed_and_stay_with_their_loop(check_same):
    kernel = matmul(8, 6, 4, epilogue=False)
    s = Schedule(kernel)
    s.annotate("mm.j", "unroll", 16)
    s.annotate("mm.j", "why", "short rows")
    s.annotate("mm.i", "chunk", 2)
    s.reorder("mm.j", "mm.i")
    s.parallel("mm.j")
    s.split("mm.k", 2)
    check_same(kernel, s, exact=True)
    text = repr(s.kernel)
    assert "for mm.j in 6 parallel {unroll: 16, why: 'short rows'}:" in text
    assert "for mm.i in 8 {chunk: 2}:" in text
    s.annotate("mm.i", "chunk", None)
    s.annotate("mm.j", "unroll", 4)
    assert "for mm.i in 8:" in repr(s.kernel) and "{unroll: 4, " in repr(s.kernel)


def test_notes_go_with_their_loop():
    s = Schedule(matmul(8, 6, 4))
    s.annotate("mm.i", "chunk", 2)
    s.annotate("relu.j", "unroll", 4)
    s.compute_at("C", "relu.i")
    assert dict(s.kernel.notes) == {"mm.i": {"chunk": 2}, "relu.j": {"unroll": 4}}
    s = Schedule(matmul(8, 6, 4, epilogue=False))
    s.annotate("mm.j", "unroll", 4)
    s.bind("mm.j", "vthread")
    assert s.kernel.notes


def test_a_loop_with_notes_is_not_replaced():
    s = Schedule(matmul(8, 6, 4, epilogue=False))
    s.annotate("mm.j", "unroll", 4)
    with pytest.raises(ScheduleError, match="split: the loop has the notes unroll"):
        s.split("mm.j", 2)
    with pytest.raises(
        ScheduleError, match=r"loop mm.j: fuse: the loop has the notes unroll"
    ):
        s.fuse("mm.i", "mm.j")
    with pytest.raises(ScheduleError, match=r"cannot be noted. take a number or text"):
        s.annotate("mm.j", "unroll", [1, 2])


def test_a_loop_whose_extent_changes_is_bound_to_nothing():
    x, y = (Buffer(n, (8, 8), float32) for n in "xy")
    i, j = var("i"), var("j")
    rows = loop(i, 8, loop(j, i + 1, Store(y, (i, j), Load(x, (i, j)))))
    s = Schedule(Kernel("lower", (x, y), (y,), rows))
    for axis in ("vthread", "threadIdx.x"):
        with pytest.raises(ScheduleError, match=r"bind: .*extent"):
            s.bind("j", axis)
