"""Copies into shared memory that arrive later: waits where they are needed, and as PTX."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.loops.gpu_kernels import judged, kernel
from tests.targets.cuda.running import SM80, load_counted, program, run
from tests.targets.simt.products import (
    arrays,
    expected,
    interpreted,
    product,
    tiled,
)
from tilewright.base.dtypes import float16, float32
from tilewright.base.errors import CompileError, ScheduleError
from tilewright.compute.build import map_
from tilewright.expr.nodes import INDEX, Buffer, Select, Var, const
from tilewright.ir.node import transform
from tilewright.loops import launch_interp
from tilewright.loops.launch import Barrier, Commit, LaunchProgram, Wait
from tilewright.loops.lower import lower
from tilewright.loops.nodes import ASYNC, Alloc, Kernel, Stmt, Store, block, loop
from tilewright.loops.parser import parse_program
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.shared_memory import (
    RaceError,
    SimulatedThread,
    TrackedMemory,
    View,
)
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule
from tilewright.schedule.space.patterns import classify
from tilewright.targets.amdgpu.emit import assembly as amd_assembly
from tilewright.targets.amdgpu.machine import machine as amd_machine
from tilewright.targets.cuda.cost import best_stages, stage_counts, together
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.cuda.tensor_choice import tensor_tiles
from tilewright.targets.cuda.tensor_tiling import TensorTile, tensor_tiling
from tilewright.targets.simt.products import product_of

TURNED = """
program turned(x: float32[3, {n}]) -> y: float32[3, 64]:
  launch turned(x, y) grid [3, 1, 1] threads [16, 1, 1]:
    shared t: float32[64] in shared
    for l in 4 async:
      t[threadIdx.x * 4 + l] = {value}
    wait
    barrier shared
    for l in 4:
      y[blockIdx.x, threadIdx.x * 4 + l] = t[63 - threadIdx.x * 4 - l]"""
PLAIN = "x[blockIdx.x, threadIdx.x * 4 + l]"
GUARDED = f"select(threadIdx.x * 4 + l < 60, {PLAIN}, 0.0)"


@pytest.mark.parametrize(("n", "value"), [(64, PLAIN), (60, GUARDED)])
def test_what_is_copied_is_there_after_the_wait(n, value):
    p = program(TURNED.format(n=n, value=value))
    text = ptx(p, SM80)
    assert text.count("cp.async.cg.shared.global") == 1
    assert text.count("cp.async.wait_all") == 1
    x = np.random.default_rng(n).random((3, n), np.float32)
    want = np.zeros((3, 64), np.float32)
    want[:, :n] = x
    assert np.array_equal(run(p, [x])[0], want[:, ::-1])


@pytest.mark.parametrize(
    ("n", "value", "why"),
    [
        (58, PLAIN, "does not begin at a multiple of 16 bytes"),
        (60, GUARDED.replace("60", "59"), "different conditions"),
    ],
)
def test_what_cannot_be_one_copy_is_refused(n, value, why):
    text = TURNED.format(n=n, value=value)
    with pytest.raises(CompileError, match=f"no asynchronous copy of x.*{why}"):
        ptx(program(text), SM80)


def test_a_gpu_without_them_refuses_a_launch_that_has_them():
    p = program(TURNED.format(n=64, value=PLAIN))
    amd = amd_machine("gfx942")
    with pytest.raises(CompileError, match="asynchronous copies, which this GPU lacks"):
        amd_assembly(p, amd)


# -- waits and races


def without(p: LaunchProgram, kind: type[Stmt], number: int) -> LaunchProgram:
    """A program without one of its waits or barriers."""
    (launch,) = p.launches
    found = [at.stmt for at in walk(launch.body) if isinstance(at.stmt, kind)]
    gone = found[number]
    body = transform(launch.body, lambda s: block() if s is gone else s)
    return replace(p, launches=(launch.with_body(body),))


@pytest.mark.parametrize(
    ("kind", "why"), [(Wait, "with no wait between"), (Barrier, "no barrier between")]
)
def test_a_planted_race_is_found(kind, why):
    p = program(TURNED.format(n=64, value=PLAIN))
    x = np.random.default_rng(0).random((3, 64), np.float32)
    given = dict(zip(p.params, (x, np.zeros_like(x)), strict=True))
    launch_interp.run(p, given)
    assert np.array_equal(given[p.params[1]], x[:, ::-1])
    with pytest.raises(RaceError, match=why):
        launch_interp.run(without(p, kind, 0), given)


def test_a_wait_behind_the_barrier_is_too_late_for_others():
    memory = TrackedMemory(Buffer("t", (1,), float32, "shared"), [0.0], [block()])
    clocks = {"shared": 0, "cluster": 0}
    one, two = (SimulatedThread((0, 0, 0), (n, 0, 0), dict(clocks)) for n in range(2))
    View(memory, one).copy(0, 1.0)
    for thread in (one, two):
        thread.clocks["shared"] += 1
    with pytest.raises(RaceError, match="with no wait between"):
        View(memory, two)[0]
    one.wait("copies", 0)
    assert View(memory, one)[0] == 1
    with pytest.raises(RaceError, match="with no barrier between"):
        View(memory, two)[0]
    for thread in (one, two):
        thread.clocks["shared"] += 1
    assert View(memory, two)[0] == 1


def test_ptx_without_its_wait_reads_what_was_there_before():
    p = program(TURNED.format(n=64, value=PLAIN))
    x = np.random.default_rng(0).random((3, 64), np.float32)
    assert not np.array_equal(run(without(p, Wait, 0), [x])[0], x[:, ::-1])


CASE = product(18, 16, 24)
TILE = (16, 16, 8, 16, 16)


def staged() -> LaunchProgram:
    """Tiles: the next ones are copied while the current ones are used."""
    point = tiled(CASE, SM80.simt, tile=TILE, stages=2)
    return Cuda(SM80).launches(point.schedule.kernel)


def count(p: LaunchProgram, kind: type[Stmt]) -> int:
    return sum(isinstance(at.stmt, kind) for x in p.launches for at in walk(x.body))


def test_threads_wait_once_in_a_step_and_go_on_after_the_copies():
    p = staged()
    assert (count(p, Wait), count(p, Barrier)) == (2, 2)
    assert str(parse_program(str(p).split("\n"))) == str(p)
    given = arrays(p)
    want = expected(CASE, given)
    assert np.array_equal(interpreted(p, arrays(p)), want)
    _, (made,) = load_counted(p, SM80, given)
    assert np.array_equal(made, want)
    text = ptx(p, SM80)
    assert text.count("cp.async.wait_all") == text.count("bar.sync")
    assert "st.shared" not in text


@pytest.mark.covering(1)  # each kind, each place
@pytest.mark.parametrize("kind", [Wait, Barrier])
@pytest.mark.parametrize("number", range(2))
def test_each_of_them_is_needed(kind, number):
    with pytest.raises(RaceError):
        interpreted(without(staged(), kind, number), arrays(staged()))


def test_an_older_gpu_copies_through_registers():
    of = machine("sm_75")
    point = tiled(CASE, SM80.simt, tile=TILE, stages=2)
    p = Cuda(of).launches(point.schedule.kernel)
    assert count(p, Wait) == 0
    given = arrays(p)
    want = expected(CASE, given)
    text = ptx(p, of)
    assert "cp.async" not in text and "st.shared.v4" in text
    _, (made,) = load_counted(p, of, given)
    assert np.array_equal(made, want)


# -- more than two stages

LONG = product(18, 16, 56)


def in_stages(stages: int) -> LaunchProgram:
    point = tiled(LONG, SM80.simt, tile=TILE, stages=stages)
    return Cuda(SM80).launches(point.schedule.kernel)


@pytest.mark.parametrize("stages", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_step_waits_for_its_own_tiles_only(stages):
    p = in_stages(stages)
    left = [at.stmt.pending for at in walk(p.launches[0].body) if is_wait(at.stmt)]
    assert left == [stages - 2, 0]
    assert count(p, Barrier) == 2
    assert count(p, Commit) == stages  # of each tile before the steps, and in a step
    assert str(parse_program(str(p).split("\n"))) == str(p)
    given = arrays(p)
    want = expected(LONG, given)
    assert np.array_equal(interpreted(p, arrays(p)), want)
    _, (made,) = load_counted(p, SM80, given)
    assert np.array_equal(made, want)
    text = ptx(p, SM80)
    assert f"cp.async.wait_group \t{stages - 2}" in text
    assert text.count("cp.async.commit_group") >= stages


def is_wait(s: Stmt) -> bool:
    return isinstance(s, Wait)


def lax(p: LaunchProgram) -> LaunchProgram:
    """A program whose steps leave one group more in flight."""
    return parse_program(str(p).replace("wait 1", "wait 2").split("\n"))


def reused(p: LaunchProgram) -> LaunchProgram:
    """A program with a stage less than its steps expect."""
    return parse_program(str(p).replace("% 3,", "% 2,").split("\n"))


def ungrouped(p: LaunchProgram) -> LaunchProgram:
    """A program whose steps do not end their groups."""
    lines = str(p).split("\n")
    last = max(n for n, line in enumerate(lines) if line.strip() == "commit")
    return parse_program([*lines[:last], *lines[last + 1 :]])


@pytest.mark.parametrize("fault", [lax, reused, ungrouped])
def test_a_fault_planted_in_three_stages_is_a_race(fault):
    p = fault(in_stages(3))
    assert str(p) != str(in_stages(3))
    with pytest.raises(RaceError):
        interpreted(p, arrays(p))


def test_ptx_that_waits_for_too_little_reads_what_was_there_before():
    right, wrong = (fault(in_stages(3)) for fault in (lambda p: p, lax))
    given = arrays(right)
    same = dict(zip(wrong.params, given.values(), strict=True))
    made = [load_counted(p, SM80, x)[1][0] for p, x in ((right, given), (wrong, same))]
    assert not np.array_equal(*made)


def test_as_few_steps_as_stages():
    """The loop has but one iteration."""
    case = product(18, 16, 24)
    p = Cuda(SM80).launches(tiled(case, SM80.simt, tile=TILE, stages=3).schedule.kernel)
    given = arrays(p)
    assert np.array_equal(interpreted(p, arrays(p)), expected(case, given))
    for number in range(count(p, Wait)):
        with pytest.raises(RaceError):
            interpreted(without(p, Wait, number), arrays(p))


FIRST_ONLY = """\
kernel k(x: float32[8, 64]) -> y: float32[5, 64]:
  alloc t: float32[4, 64] in shared:
    for i in 16 threadIdx.x:
      for l in 4 vector:
        t[0, i * 4 + l] = x[0, i * 4 + l]
    for r in 2:
      for i1 in 64 threadIdx.x:
        t[r + 1, i1] = x[r + 1, i1]
    for k in 5:
      for i2 in 16 threadIdx.x:
        for l2 in 4 vector:
          t[(k + 3) % 4, i2 * 4 + l2] = x[k + 3, i2 * 4 + l2]
      for j in 64 threadIdx.x:
        y[k, j] = t[k % 4, 63 - j]"""


@pytest.mark.parametrize(("first", "left"), [(0, 0), (1, 1)])
def test_what_is_copied_before_a_loop_is_waited_for_when_it_is_used(first, left):
    """The first tile that is copied decides, since the loop itself would leave two in flight."""
    text = FIRST_ONLY.replace("t[0,", f"t[{first},").replace("t[r + 1,", "t[r * 2,")
    s = Schedule(kernel(text if first else FIRST_ONLY))
    for lane in ("l", "l2"):
        s.annotate(lane, ASYNC, 1)
    p = to_launches(s.kernel, 32, async_copies=True)
    waits = [at.stmt.pending for at in walk(p.launches[0].body) if is_wait(at.stmt)]
    assert waits == [left]
    judged(s.kernel, p)


# -- notes


def copied(
    value=lambda x, i: x[i],
    scope="shared",
    lanes=4,
    kind="vector",
    shift=0,
    shape=(72,),
) -> Schedule:
    """Each thread copies elements, and reads those of a neighbor, or its own."""
    x, y = Buffer("x", shape, float32), Buffer("y", (64,), float32)
    copy = map_("copy", Buffer("t", (64,), float32), lambda i: value(x, i))
    made = copy.outputs[0].tensor
    last = map_("last", y, lambda i: made[(i + shift) % 64] * 2.0)
    s = Schedule(lower("k", [copy, last], params=[x, y], outputs=[y]))
    names = []
    for name in ("copy.i", "last.i"):
        o, inner = s.split(name, lanes)
        names.append((o, inner))
    s.set_scope("t", scope)
    for o, _ in names:
        s.bind(o, "threadIdx.x")
    if kind == "vector":
        s.vectorize(names[0][1])
    s.annotate(names[0][1], ASYNC, 1)
    return s


@pytest.mark.parametrize("shift", [0, 4])
def test_a_thread_waits_for_its_own_copies_too(shift):
    kernel = copied(shift=shift).kernel
    p = to_launches(kernel, 32, async_copies=True)
    assert (count(p, Wait), count(p, Barrier)) == (1, 1)
    plain = to_launches(kernel, 32)
    assert (count(plain, Wait), count(plain, Barrier)) == (0, bool(shift))
    x, y = p.params
    given = {x: np.arange(72, dtype=np.float32), y: np.zeros(64, np.float32)}
    launch_interp.run(p, given)
    assert np.array_equal(given[y], 2 * np.roll(np.arange(64), -shift))
    with pytest.raises(RaceError, match="with no wait"):
        launch_interp.run(without(p, Wait, 0), given)


def test_a_thread_waits_for_its_own_copies_in_each_iteration_of_a_loop():
    x, y = Buffer("x", (2, 64), float32), Buffer("y", (2, 64), float32)
    t = Buffer("t", (2, 64), float32)
    copy = map_("copy", t, lambda r, i: x[r, i])
    last = map_("last", y, lambda r, i: t[r, i] * 2.0)
    s = Schedule(lower("k", [copy, last], params=[x, y], outputs=[y]))
    s.compute_at("t", "last.r", scope="shared")
    for name in ("copy.i", "last.i"):
        outer, inner = s.split(name, 4)
        s.bind(outer, "threadIdx.x")
        if name == "copy.i":
            s.vectorize(inner)
            s.annotate(inner, ASYNC, 1)
    p = to_launches(s.kernel, 32, async_copies=True)
    given = {x: np.arange(128, dtype=np.float32).reshape(2, 64)}
    given[y] = np.zeros((2, 64), np.float32)
    launch_interp.run(p, given)
    assert np.array_equal(given[y], 2 * given[x])
    assert count(p, Wait) == 1


NO_COPIES = {
    "a sum": ({"value": lambda x, i: x[i] + 1.0}, "not a load"),
    "another value": (
        {"value": lambda x, i: Select(i < 60, x[i], const(2.5, float32))},
        "not a load",
    ),
    "minus zero": (
        {"value": lambda x, i: Select(i < 60, x[i], const(-0.0, float32))},
        "not a load",
    ),
    "serial": ({"kind": "serial"}, "the loop is serial"),
    "registers": ({"scope": "register"}, "from global to register memory"),
    "apart": ({"value": lambda x, i: x[i % 32 * 2]}, "not beside one another"),
    "in part": ({"value": lambda x, i: x[i - i % 3]}, "not beside one another"),
    "rows of any size": (
        {"value": lambda x, i: x[2, i], "shape": (3, Var("n", INDEX))},
        "not beside one another",
    ),
    "8 elements": ({"lanes": 8}, "it has 32 bytes, not 4, 8, 16"),
}


@pytest.mark.parametrize("name", NO_COPIES)
def test_a_note_at_what_is_no_copy_is_refused(name):
    how, why = NO_COPIES[name]
    with pytest.raises(ScheduleError, match=f"no asynchronous copy: .*{why}"):
        to_launches(copied(**how).kernel, 32, async_copies=True)


# -- choices


def test_several_tiles_are_the_default_where_copies_arrive_later():
    def stages(k: int, n: int = 512) -> int:
        p = product_of(classify(product(512, n, k, float16, float32)))
        t = tensor_tiling(p, tensor_tiles(p, SM80)[0])
        return best_stages(t, SM80)

    assert stages(1024) == 3
    assert stages(1024, 511) == 1  # rows are not aligned, so threads copy
    assert stages(16) == 1  # one step
    t = tensor_tiling(
        product_of(classify(product(512, 512, 512, float16, float32))),
        TensorTile(128, 128, 64, 2, 4),
    )
    # Results are in the room of the tiles, of 32 KiB a stage.
    assert stage_counts(t, SM80) == [1, 2, 3, 4]
    assert stage_counts(t, replace(SM80, block_shared=112 << 10)) == [1, 2, 3]


def test_more_stages_are_the_default_where_one_step_is_too_short_for_a_copy():
    p = product_of(classify(product(512, 512, 1024, float16, float32)))
    t = tensor_tiling(p, TensorTile(64, 64, 64, 2, 2))
    assert stage_counts(t, SM80) == [1, 2, 3, 4]
    assert [together(t, SM80, n) for n in (1, 2, 3, 4)] == [7, 5, 3, 2]
    assert best_stages(t, SM80) == 3
    few = replace(SM80, block_shared=40 << 10)
    assert stage_counts(t, few) == [1, 2]
    assert best_stages(t, few) == 2


def test_a_copy_to_the_place_of_the_one_before_waits_for_it():
    """Else the last one of a loop might arrive first."""
    x, y = Buffer("x", (4, 16), float32), Buffer("y", (16,), float32)
    t = Buffer("t", (16,), float32, "shared")
    k, i, lane, j = (Var(name, INDEX) for name in "kilj")
    copy = loop(lane, 4, Store(t, (i * 4 + lane,), x[k, i * 4 + lane]), "vector")
    steps = loop(k, 4, loop(i, 4, copy, "threadIdx.x"))
    read = loop(j, 4, Store(y, (j,), t[j]), "threadIdx.x")
    body = loop(Var("b", INDEX), 1, Alloc(t, block(steps, read)), "blockIdx.x")
    made = Kernel("f", (x, y), (y,), body, {"l": {ASYNC: 1}})
    p = to_launches(made, async_copies=True)
    judged(made, p)
    waits = [at for at in walk(p.launches[0].body) if isinstance(at.stmt, Wait)]
    assert [f.var.name for at in waits for f in at.loops] == ["k"]


ALONE = """\
kernel f(x: float32[4, 8]) -> y: float32[4, 8]:
  for b in 4 blockIdx.x:
    alloc t: float32[8] in shared:
      for q in 2:
        for l in 4 vector:
          t[q * 4 + l] = x[b, q * 4 + l]
      for j in 8:
        y[b, j] = t[7 - j]"""


def test_a_thread_that_is_alone_in_its_block_waits_for_its_copies():
    made = replace(kernel(ALONE), notes={"l": {ASYNC: 1}})
    p = to_launches(made, async_copies=True)
    (launch,) = p.launches
    assert launch.threads == (1, 1, 1)
    (wait,) = (at.stmt for at in walk(launch.body) if isinstance(at.stmt, Wait))
    assert (wait.of, wait.pending) == ("copies", 0)
    judged(made, p)
    given = np.arange(32, dtype=np.float32).reshape(4, 8)
    assert np.array_equal(run(p, [given])[0], given[:, ::-1])


TURNS = """\
kernel f(x: float32[4, 4]) -> y: float32[4]:
  for b in 1 blockIdx.x:
    alloc t: float32[2, {slots}, 4] in shared:
      for i in 2 threadIdx.x:
        for k in {trips}:
          for l in 4 vector:
            t[i, {slot}, l] = x[k, l]
      for j in 4 threadIdx.x:
        y[j] = t[1, 0, j]"""


def in_turns(**how: object) -> Kernel:
    return replace(kernel(TURNS.format(**how)), notes={"l": {ASYNC: 1}})


def test_copies_of_one_thread_to_one_place_wait_for_one_another():
    made = in_turns(slots=1, trips=4, slot=0)
    p = to_launches(made, async_copies=True)
    waits = [at for at in walk(p.launches[0].body) if isinstance(at.stmt, Wait)]
    assert [f.var.name for at in waits for f in at.loops] == ["k"]
    judged(made, p)


def test_copies_to_one_place_are_refused_where_threads_cannot_wait_between():
    """How often a thread comes there depends on its number."""
    with pytest.raises(ScheduleError, match="two turns of a loop race"):
        to_launches(in_turns(slots=1, trips="i + 3", slot=0), async_copies=True)
    made = in_turns(slots=4, trips="i + 3", slot="k")
    judged(made, to_launches(made, async_copies=True))


def test_a_copy_to_a_place_with_a_copy_in_flight_is_found_even_by_one_statement():
    text = """
program f(x: float32[4, 4]) -> y: float32[4]:
  launch f(x, y) grid [1, 1, 1] threads [1, 1, 1]:
    shared t: float32[4] in shared
    for k in 4:
      for l in 4 async:
        t[l] = x[k, l]
    wait
    for j in 4:
      y[j] = t[j]"""
    with pytest.raises(RaceError, match="with no wait between"):
        judged(None, program(text))
