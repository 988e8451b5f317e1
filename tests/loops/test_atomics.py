"""Atomic updates: blocks that share a reduction, the races that are left, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.loops.gpu_kernels import judged, kernel
from tests.targets.cuda.running import run
from tests.targets.opencl import running as on_opencl
from tilewright.base.dtypes import int32
from tilewright.base.errors import CompileError, ExecutionError, ScheduleError
from tilewright.compute.reducer import Reducer, arg_reducer
from tilewright.expr.nodes import Buffer, Var, const
from tilewright.ir.node import transform
from tilewright.loops import launch_interp
from tilewright.loops.launch import AtomicUpdate, LaunchProgram
from tilewright.loops.nodes import ATOMICS, Kernel, Stmt, Update
from tilewright.loops.parser import parse_program
from tilewright.loops.passes.atomics import ATOMIC, missing
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.shared_memory import RaceError
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule
from tilewright.targets.cuda.emit import llvm_ir, ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.opencl.emit import emit

TOTAL = """\
kernel total(x: int32[200]) -> y: int32[2]:
  for i in 2:
    y[i] = 0
  for b in 4 blockIdx.x:
    for i2 in 2:
      for t in 25 threadIdx.x:
        y[i2] add= x[b * 50 + i2 * 25 + t]"""
COUNTS = """\
kernel counts(x: int64[96], w: int32[96]) -> y: int32[9]:
  for i in 9:
    y[i] = 0
  for b in 3 blockIdx.x:
    for t in 32 threadIdx.x:
      y[x[b * 32 + t]] add= w[b * 32 + t]"""
OWN = """\
kernel own(x: int32[64]) -> y: int32[64]:
  for b in 2 blockIdx.x:
    for t in 32 threadIdx.x:
      y[b * 32 + t] add= x[b * 32 + t]"""


def serial(text: str) -> Schedule:
    """The schedule of a text whose loop over blocks is not bound yet."""
    return Schedule(kernel(text.replace(" blockIdx.x", "")))


def atomic(text: str, warp: int = 1) -> LaunchProgram:
    s = serial(text)
    s.atomic("b")
    return to_launches(s.kernel, warp)


def updates(p: LaunchProgram) -> list[Stmt]:
    found = (at.stmt for launch in p.launches for at in walk(launch.body))
    return [s for s in found if isinstance(s, AtomicUpdate)]


def altered(p: LaunchProgram, change) -> LaunchProgram:
    launches = [x.with_body(transform(x.body, change)) for x in p.launches]
    return replace(p, launches=tuple(launches))


def plain(node):
    """A planted fault: an update that others come between."""
    if isinstance(node, AtomicUpdate):
        return Update(node.buffers, node.indices, node.values, node.reducer)
    return node


@pytest.mark.parametrize("text", [TOTAL, COUNTS, TOTAL.replace("int32", "uint32")])
@pytest.mark.parametrize("warp", [1, 8])
def test_blocks_share_a_reduction(text, warp):
    before = kernel(text)
    with pytest.raises(ScheduleError) as caught:
        to_launches(before, warp)
    assert caught.value.code == "TW-RACE"
    p = atomic(text, warp)
    assert updates(p)
    assert repr(parse_program(repr(p).split("\n"))) == repr(p)
    for seed in range(3):
        judged(before, p, seed)


def test_what_only_its_block_updates_is_not_atomic():
    text = OWN + "\n    for u in 32 threadIdx.x:\n      z[0] add= x[b * 32 + u]"
    text = text.replace("-> y: int32[64]", "-> y: int32[64], z: int32[1]")
    found = updates(atomic(text))
    assert [u.buffers[0].name for u in found] == ["z"]


def test_threads_of_one_block_may_share_what_its_block_has_alone():
    text = """\
kernel counts(x: int64[96], w: int32[96]) -> y: int32[27], z: int32[1]:
  for b in 3 blockIdx.x:
    for t in 32 threadIdx.x:
      y[min(max(x[b * 32 + t], 0), 8) + b * 9] add= w[b * 32 + t]
    for u in 32 threadIdx.x:
      z[0] add= w[b * 32 + u]"""
    p = atomic(text)
    assert {u.buffers[0].name for u in updates(p)} == {"y", "z"}
    judged(kernel(text), p)


def test_blocks_use_memory_of_their_own_as_they_like():
    own = """\
    alloc own: int32[1] in register:
      own[0] = 0
      for k in 50:
        own[0] add= x[b * 50 + k]
      y[0] add= own[0] + own[0]"""
    text = TOTAL[: TOTAL.index("    for i2")] + own
    s = serial(text)
    s.atomic("b")
    judged(kernel(text), to_launches(s.kernel, 1))


@pytest.mark.parametrize("text", [TOTAL, COUNTS])
def test_an_update_in_parts_is_a_race(text):
    wrong = altered(atomic(text), plain)
    with pytest.raises(RaceError):
        judged(None, wrong)


def test_a_plain_access_beside_an_atomic_one_is_a_race():
    text = repr(atomic(TOTAL)).split("\n")
    last = next(n for n, line in enumerate(text) if "atomic" in line)
    indent = text[last][: text[last].index("atomic")]
    for other in ("y[i2] = 0", "y[i2] min= 1", "y.parts[0] = y[i2]"):
        wrong = [*text[: last + 1], indent + other, *text[last + 1 :]]
        with pytest.raises(RaceError, match="y"):
            judged(None, parse_program(wrong))


def test_two_atomic_updates_by_other_reducers_are_a_race():
    text = repr(atomic(TOTAL)).replace("atomic y[i2] add= y.parts[0]", "PLACE")
    line = next(x for x in text.split("\n") if "PLACE" in x)
    two = [
        line.replace("PLACE", f"atomic y[i2] {op}= y.parts[0]") for op in ("add", "max")
    ]
    wrong = parse_program(text.replace(line, "\n".join(two)).split("\n"))
    with pytest.raises(RaceError):
        judged(None, wrong)


# -- what is refused


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            TOTAL.replace("y[i2] add=", "y[b % 2] ="),
            "nothing in it updates memory from outside",
        ),
        (TOTAL.replace("int32", "float64"), "no GPU has add of float64"),
        (TOTAL.replace("add=", "mul="), "no GPU has mul of int32"),
        (
            TOTAL.replace("int32", "float32").replace("add=", "max="),
            "no GPU has max of float32",
        ),
        (TOTAL.replace("add= x", "add= y[0] + x"), r"it also reads y\[0\]"),
        (
            TOTAL.replace("    for i2", "    y[0] = 0\n    for i2"),
            r"it also writes y\[0\]",
        ),
    ],
)
def test_what_cannot_be_atomic_is_refused(text, why):
    s = serial(text)
    with pytest.raises(ScheduleError, match=f"atomic: .*{why}"):
        s.atomic("b")


@pytest.mark.parametrize("axis", ["threadIdx.y", "vthread", "blockIdx.w"])
def test_only_blocks_are_bound(axis):
    with pytest.raises(ScheduleError, match="no axis"):
        serial(TOTAL).atomic("b", axis)


TWO = TOTAL + "\n      y[i2] max= x[0]"


@pytest.mark.parametrize("op", ["max", "mul"])
def test_two_operators_on_one_element_are_refused(op):
    for text in (TWO, TWO.replace(" add=", " ADD=").replace("max=", "add=")):
        text = text.replace("ADD=", "max=").replace("max=", f"{op}=")
        why = "atomic: bind: " if op == "max" else "no GPU has mul"
        with pytest.raises(ScheduleError, match=why):
            serial(text).atomic("b")


def test_a_loop_that_carries_more_than_its_updates_is_refused():
    text = TOTAL.replace("    for i2", "    z[0] = z[0] + 1\n    for i2")
    s = serial(text.replace("y: int32[2]:", "y: int32[2], z: int64[1]:"))
    with pytest.raises(ScheduleError, match=r"atomic: bind: .*z"):
        s.atomic("b")


def called(own: Reducer) -> Kernel:
    """The total by another operator."""
    k = serial(TOTAL).kernel

    def with_own(node):
        if isinstance(node, Update):
            return node.replace(reducer=own)
        return node

    return k.with_body(transform(k.body, with_own))


A, B = Var("a", int32), Var("b", int32)


def test_an_operator_that_is_only_called_add_is_refused():
    own = Reducer("add", (A,), (B,), (A + B + const(1, int32),), (const(-1, int32),))
    with pytest.raises(ScheduleError, match="no GPU has add of int32"):
        Schedule(called(own)).atomic("b", "blockIdx.y")


def test_an_operator_of_several_elements_is_refused():
    pair = arg_reducer("argmax", int32, int32)
    assert missing(pair, Buffer("y", (2,), int32)) == (
        "no GPU has argmax of int32 as one step"
    )


def test_a_sum_of_another_name_is_one_step():
    own = Reducer("total", (A,), (B,), (A + B,), (const(0, int32),))
    s = Schedule(called(own))
    s.atomic("b")
    p = to_launches(s.kernel, 1)
    assert [u.reducer.name for u in updates(p)] == ["add"]
    judged(s.kernel, p)
    assert "atomic_add(" in emit(p).text
    assert "atom.global" in ptx(p, machine("sm_80"))


def noted(text: str) -> Kernel:
    """With a note that the primitive did not check."""
    return replace(kernel(text), notes={"b": {ATOMICS: 1}})


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        (OWN, "TW-LAUNCH", "no two of its blocks update one element"),
        (TOTAL.replace("add=", "mul="), "TW-LAUNCH", "no GPU has mul of int32"),
        (
            TOTAL.replace("    for i2", "    y[0] = 0\n    for i2"),
            "TW-RACE",
            "two blocks race",
        ),
        (TWO, "TW-RACE", r"two blocks race \(updates"),
        (TOTAL.replace("add= x", "add= y[0] + x"), "TW-RACE", "blocks race"),
    ],
)
def test_a_note_alone_allows_nothing_else(text, code, why):
    with pytest.raises(ScheduleError, match=why) as caught:
        to_launches(noted(text))
    assert caught.value.code == code


# -- code


def case(dtype: str, name: str) -> LaunchProgram:
    """All threads of all blocks update the elements of one buffer."""
    text = (
        f"program p(x: {dtype}[96]) -> y: {dtype}[3]:\n"
        "  launch p_0(x, y) grid [3, 1, 1] threads [32, 1, 1]:\n"
        f"    atomic y[threadIdx.x % 3] {name}= x[blockIdx.x * 32 + threadIdx.x]"
    )
    return parse_program(text.split("\n"))


def wanted(p: LaunchProgram, x: np.ndarray, start: np.ndarray) -> np.ndarray:
    found = start.copy()
    launch_interp.run(p, dict(zip(p.params, (x, found), strict=True)))
    return found


CASES = [(d, n) for d, names in ATOMIC.items() for n in names]


@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_the_code_of_each(dtype, name):
    p = case(dtype, name)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 10, 96).astype(dtype)
    (found,) = run(p, [x])
    np.testing.assert_array_equal(found, wanted(p, x, np.zeros(3, dtype)))
    text = ptx(p, machine("sm_80"))
    assert "atom.global" in text or "red.global" in text
    assert "ptr addrspace(1) align 16 %p1," in llvm_ir(p, machine("sm_80"))


@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_the_code_of_each_in_opencl(dtype, name):
    p = case(dtype, name)
    x = np.random.default_rng(0).integers(0, 1 << 10, 96).astype(dtype)
    start = np.full(3, 5, dtype)
    given = dict(zip(p.params, (x, start), strict=True))
    found = on_opencl.run(p, given)[p.params[1]]
    np.testing.assert_array_equal(found, wanted(p, x, start))


@pytest.mark.parametrize("make", [ptx, lambda p, _: emit(p)], ids=["ptx", "opencl"])
def test_code_of_no_single_step_is_refused(make):
    p = case("int32", "mul")
    with pytest.raises(CompileError, match="no GPU has mul of int32 as one step"):
        make(p, machine("sm_80"))


def test_the_interpreter_of_ptx_finds_an_update_in_parts():
    """Threads of a warp run together: a load, a sum and a store lose all sums but one."""
    p = case("int32", "add")
    x = np.ones(96, np.int32)
    assert run(p, [x])[0].tolist() == [33, 33, 30]
    assert run(altered(p, plain), [x])[0].tolist() != [33, 33, 30]


def test_an_index_outside_is_reported_and_not_written():
    text = (
        "program p(x: int64[32], w: int32[32]) -> y: int32[3]:\n"
        "  launch p_0(x, w, y) grid [1, 1, 1] threads [32, 1, 1]:\n"
        "    atomic y[x[threadIdx.x]] add= w[threadIdx.x]"
    )
    p = parse_program(text.split("\n"))
    assert emit(p).checks == ("an index of y is outside 0..2",)
    x = np.arange(32) % 4
    x[x == 3] = -1
    with pytest.raises(ExecutionError, match="index"):
        run(p, [x, np.ones(32, np.int32)])
