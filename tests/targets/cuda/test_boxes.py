"""Boxes that one thread copies (`cp.async.bulk.tensor`): in launches, as PTX, by the driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.loops.gpu_kernels import barriers, judged, without_barrier
from tests.targets.cuda.fake import RunningFake
from tests.targets.cuda.group_products import tensorized
from tests.targets.cuda.running import load_counted
from tests.targets.cuda.test_group_tiles import CORES, along_rows, work_of
from tests.targets.cuda.test_tensor_tiles import launches, rounded, scheduled, turned
from tests.targets.cuda.test_wgmma import run, waits
from tests.targets.simt.products import Case, arrays, expected, product
from tilewright.base import events
from tilewright.base.dtypes import bfloat16, bool_, float32
from tilewright.base.errors import CompileError, ScheduleError
from tilewright.compute.build import map_
from tilewright.expr.nodes import (
    INDEX,
    And,
    Buffer,
    Expr,
    Le,
    Lt,
    Select,
    Var,
    as_expr,
    const,
)
from tilewright.loops import launch_interp
from tilewright.loops.launch import Barrier, Commit, LaunchProgram, Wait
from tilewright.loops.lower import lower
from tilewright.loops.nodes import (
    BULK,
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    While,
    block,
    loop,
)
from tilewright.loops.parser import parse_program
from tilewright.loops.passes.bulk_copies import bulk_refusal, groups_at_once
from tilewright.loops.passes.in_flight import BOXES
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.shared_memory import RaceError
from tilewright.loops.walk import walk
from tilewright.runtime.device import MemoryRange
from tilewright.schedule import Schedule
from tilewright.targets.cuda import cluster_tiles, cost, report
from tilewright.targets.cuda import tensor_tiles as tensor_tiles_module
from tilewright.targets.cuda.box_tiles import copies_boxes
from tilewright.targets.cuda.cost import best_stages, boxes_pay, time_on_tensor_cores
from tilewright.targets.cuda.device import CudaDevice
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda, code_of
from tilewright.targets.cuda.tensor_choice import GROUPS, tensor_tiles, tiling_of
from tilewright.targets.cuda.tensor_tiling import TensorTile
from tilewright.targets.simt.code import PTX, DeviceProgram
from tilewright.testing.random_kernels import plain

SM90A = machine("sm_90a")
LONG = {"stages": 3, "extents": (64, 64, 256)}


def program(**how: object) -> LaunchProgram:
    how = {"of": "bfloat16", **LONG, **how}
    kernel = tensorized(in_boxes=True, **how).kernel  # type: ignore[arg-type]
    return to_launches(kernel, 32, async_copies=True, bulk_copies=True)


# -- as PTX


@pytest.mark.sampled(2)  # along the sum and across it; one step at a time, and several
@pytest.mark.parametrize(
    "how",
    [
        {"stages": 1},
        {"of": "float16", "transposed": False},
        {"stages": 4, "extents": (128, 64, 512)},
        {"of": "float8_e4m3fn", "stages": 2},
    ],
)
def test_a_product_is_right(how):
    p = program(**how)
    text = ptx(p, SM90A)
    assert "cp.async.bulk.tensor.2d" in text and "cp.async.cg" not in text
    found, wanted = run(p, text)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-4)


def test_a_step_waits_for_its_boxes_and_overlaps_the_one_before():
    p = program()
    (launch,) = p.launches
    found = [at.stmt for at in walk(launch.body) if isinstance(at.stmt, Wait)]
    assert [s.pending for s in found if s.of == BOXES] == [0, 0]
    assert waits(p) == [1, 0]
    assert (
        len(barriers(p)) == 1
    )  # before tiles are overwritten; none before they are read
    assert groups_at_once(launch.body) == 1
    deeper = program(stages=4, extents=(64, 64, 512)).launches[0].body
    assert groups_at_once(deeper) == 2


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
def test_ptxas_takes_it_with_fewer_registers_than_copies_by_threads():
    used = []
    for in_boxes in (True, False):
        kernel = tensorized("bfloat16", in_boxes=in_boxes, **LONG).kernel
        p = to_launches(kernel, 32, async_copies=True, bulk_copies=True)
        used += report.assemble(ptx(p, SM90A), SM90A)[1].values()
    boxes, threads = used
    assert boxes.registers <= threads.registers and 48 <= boxes.registers <= 72
    assert boxes.stack == boxes.spill_stores == 0 and not boxes.is_serialized


EXPECT = r"mbarrier\.expect_tx.*\n"
TRY = r"mbarrier\.try_wait\.parity\S* (%p\d+), .*;"
# what is replaced in the text, by what, how often, and what is found
FAULTS = {
    "no wait": (
        TRY,
        r"setp.eq.u32 \1, 0, 0;",
        0,
        "accessed with no wait for its bytes",
    ),
    "fewer bytes": (EXPECT, "", 1, "-8192 bytes that do not come"),
    "more bytes": (f"({EXPECT})", r"\1\1", 1, "8192 bytes that do not come"),
    "never started": (r"mbarrier\.arrive.*\n", "", 1, "waits for 1 threads"),
    "no fence": (r"fence\.mbarrier_init.*\n", "", 0, "with no fence.proxy.async since"),
    "no barrier": (r"bar\.sync \t0;\n", "", 1, "no barrier since it was made"),
    "too early": (
        "wait_group.sync.aligned 1",
        "wait_group.sync.aligned 2",
        0,
        "still reads",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    pattern, instead, count, why = FAULTS[name]
    p = program()
    text = ptx(p, SM90A)
    wrong = re.sub(pattern, instead, text, count=count)
    assert wrong != text
    with pytest.raises(RuntimeError, match=why):
        run(p, wrong)


# -- in launches


def small() -> tuple[LaunchProgram, Kernel]:
    """y = x with each row backwards; 8 rows are a tile that one thread copies."""
    x, y = Buffer("x", (32, 32), float32), Buffer("y", (32, 32), float32)
    made = map_("turned", y, lambda i, j: x[i, 31 - j])
    s = Schedule(lower("f", [made], params=[x, y], outputs=[y]))
    step, row = s.split("turned.i", 8)
    outer, lane = s.split("turned.j", 32)
    s.reorder(outer, step, row, lane)
    part = s.cache_read("x", step, "shared")
    s.swizzle(part)
    s.bind(outer, "blockIdx.x")
    s.bind(lane, "threadIdx.x")
    s.pipeline(step, 0, 1)
    for name in (f"{part}.r0", f"{part}.r0.pro0"):
        s.annotate(name, BULK, 1)
    return to_launches(s.kernel, 32, bulk_copies=True), s.kernel


def edited(s: Stmt, new: Mapping[Stmt, Stmt]) -> Stmt:
    made = s.map(lambda c: new.get(c, edited(c, new)) if isinstance(c, Stmt) else c)
    return block(*made.stmts) if isinstance(made, Block) else made


def test_all_threads_wait_for_a_box_and_meet_before_it_is_overwritten():
    p, kernel = small()
    (launch,) = p.launches
    found = [at.stmt for at in walk(launch.body) if isinstance(at.stmt, Wait)]
    assert [(s.of, s.pending) for s in found] == [(BOXES, 0), (BOXES, 0)]
    assert len(barriers(p)) == 1
    assert str(parse_program(str(p).split("\n"))) == str(p)
    judged(kernel, p)
    for wait in found:
        for instead in (block(), Wait(BOXES, 1)):
            wrong = launch.with_body(edited(launch.body, {wait: instead}))
            with pytest.raises(RaceError, match="with no wait between"):
                judged(None, replace(p, launches=(wrong,)))
    with pytest.raises(RaceError, match="with no barrier between"):
        judged(None, without_barrier(p, 0))


def test_a_box_that_nobody_copies_is_waited_for_in_vain():
    text = """
program f(x: float32[4]) -> y: float32[4]:
  launch f_0(x, y) grid [1, 1, 1] threads [4, 1, 1]:
    if 0 < threadIdx.x:
      commit bulk
    wait bulk
    y[threadIdx.x] = x[threadIdx.x]
"""
    p = parse_program(text.strip().split("\n"))
    with pytest.raises(launch_interp.DivergenceError, match="that no thread copies"):
        judged(None, p)


# -- what is refused


X, R, C = Buffer("x", (64, 64), float32), Var("r", INDEX), Var("c", INDEX)
TILE = Buffer("t", (2, 8, 32), float32, "shared", 128)
WIDE, DEEP = Buffer("x", (8, 33), float32), Buffer("x", (1, 1, 1, 1, 8, 32), float32)


TWO_GROUPS = """\
program f(x: float32[2, 8, 32]) -> y: float32[32]:
  launch f_0(x, y) grid [1, 1, 1] threads [32, 1, 1]:
    shared t: float32[8, 32] in shared swizzled 128
    shared u: float32[8, 32] in shared swizzled 128
    if threadIdx.x < 1:
      for r in 8 bulk:
        for c in 32:
          t[r, c] = x[0, r, c]
    commit bulk
    if threadIdx.x < 1:
      for s in 8 bulk:
        for d in 32:
          u[s, d] = x[1, s, d]
    commit bulk
    if threadIdx.x < 16:
      wait bulk
    {wait}
    y[threadIdx.x] = t[1, threadIdx.x] + u[0, threadIdx.x]"""


@pytest.mark.parametrize("wait", ["wait bulk", "wait bulk 1"])
def test_who_waits_for_one_group_does_not_know_of_the_next(wait):
    """Even if other threads of its block have waited for that."""
    p = parse_program(TWO_GROUPS.format(wait=wait).split("\n"))
    if wait == "wait bulk":
        judged(None, p)
        load_counted(p, SM90A)
        return
    with pytest.raises(RaceError):
        judged(None, p)
    with pytest.raises(RuntimeError, match="a box is accessed with no wait"):
        load_counted(p, SM90A)


def nest(
    value: Expr,
    to: Buffer = TILE,
    at: tuple[Expr | int, ...] = (0, R, C),
    rows: int = 8,
    columns: int = 32,
    kind: str = "serial",
) -> For:
    """A copy of some rows."""
    index = tuple(as_expr(i, INDEX) for i in at)
    return loop(R, rows, loop(C, columns, Store(to, index, value), kind))


def padded(condition: Expr) -> Expr:
    return Select(condition, X[R, C + 40], const(0.0, float32))


REFUSED = [
    (nest(X[R, C], kind="unroll"), "is not one store in loops of constant"),
    (nest(X[R, C] + 1.0), "is not a load, or zero in its place"),
    (nest(X[R, C], X, (R, C)), "copies from global to global memory"),
    (nest(DEEP[0, 0, 0, 0, R, C]), "has not up to 5 constant extents"),
    (nest(X[R * 2, C]), "do not go along a dimension each"),
    (nest(X[C, R]), "are not in the order of the dimensions"),
    (nest(X[R, C], rows=257), "a side has more than 256 elements"),
    (nest(WIDE[R, C]), "rows of x are not multiples of 16 bytes"),
    (
        nest(X[R, C], Buffer("t", (2, 8, 32), float32, "shared")),
        "is not swizzled in rows of 128",
    ),
    (nest(X[R, C], columns=16), "rows of the box are not 128 bytes"),
    (nest(X[R, C], at=(R, 0, C)), "does not have the order of the box"),
    (nest(X[R, C], at=(0, R + 4, C), rows=4), "does not begin where the order"),
    (
        nest(X[R, C], at=(0, Var("k", INDEX) * 4 + R, C), rows=4),
        "does not begin where the order",
    ),
    (nest(padded(C + 40 < 63)), "does not say where the tensor ends"),
]


@pytest.mark.parametrize(("copy", "why"), REFUSED, ids=[w for _, w in REFUSED])
def test_what_is_no_box_is_refused(copy, why):
    assert why in bulk_refusal(copy)


def test_a_box_may_begin_anywhere_and_end_where_the_tensor_does():
    both = And(Le(const(0), C + 40), Lt(C + 40, const(64)))
    for value in (X[R + 7, C + 3], padded(both)):
        assert bulk_refusal(nest(value, at=(1, R, C))) == ""


def test_a_note_at_another_loop_is_refused():
    y = Buffer("y", (8, 32), float32)
    made = map_("m", y, lambda i, j: X[i, j])
    s = Schedule(lower("f", [made], params=[X, y], outputs=[y]))
    s.annotate("m.i", BULK, 1)
    with pytest.raises(ScheduleError, match="no copy of a box: it copies from global"):
        to_launches(s.kernel, bulk_copies=True)


def test_a_box_for_each_of_several_threads_is_refused():
    x, y = Buffer("x", (8, 64), float32), Buffer("y", (8, 64), float32)
    made = map_("m", y, lambda i, j: x[i, j])
    s = Schedule(lower("f", [made], params=[x, y], outputs=[y]))
    part, _ = s.split("m.j", 32)
    s.reorder(part, "m.i")
    tile = s.cache_read("x", part, "shared")
    s.swizzle(tile)
    s.annotate(f"{tile}.r0", BULK, 1)
    s.bind(part, "threadIdx.y")
    with pytest.raises(
        ScheduleError, match=r"each thread of loop m\.j\.o would copy one"
    ):
        to_launches(s.kernel, bulk_copies=True)


def test_the_ring_has_a_place_for_each_group_at_a_time():
    step = [Commit(BOXES), Wait(BOXES, 2), Barrier("shared")]
    assert groups_at_once(loop(Var("k", INDEX), 9, block(*step))) == 3
    with pytest.raises(
        ScheduleError, match="more than 8 groups of boxes are in flight"
    ):
        groups_at_once(loop(Var("k", INDEX), 99, block(Commit(BOXES), Wait(BOXES, 0))))


def test_the_ring_has_a_place_where_threads_may_not_wait():
    n, yes = Var("n", INDEX), const(True, bool_)
    wait = If(yes, Wait(BOXES, 0), None)
    assert (
        groups_at_once(block(Commit(BOXES), wait, Barrier("shared"), Commit(BOXES)))
        == 2
    )
    one = [Wait(BOXES, 0), Barrier("shared")]
    assert (
        groups_at_once(
            block(Commit(BOXES), If(yes, block(*one), block(*one)), Commit(BOXES))
        )
        == 1
    )
    turns = loop(n, Var("m", INDEX), Commit(BOXES))
    for endless in (turns, While(yes, Commit(BOXES))):
        with pytest.raises(ScheduleError, match="more than 8 groups"):
            groups_at_once(endless)
    # A copy has begun in front of a barrier inside of its group.
    copy = nest(X[R, C]).replace(kind=BULK)
    begun = block(Commit(BOXES), Wait(BOXES, 0), copy, Barrier("shared"), Commit(BOXES))
    assert groups_at_once(begun) == 2


def test_a_box_may_overwrite_what_threads_wrote():
    x, y, z = (Buffer(n, (8, 32), float32) for n in "xyz")
    t = Buffer("t", (8, 32), float32, "shared", 128)

    def rows(name: str, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        i, r = Var(name, INDEX), Var(f"{name}r", INDEX)
        return loop(i, 32, loop(r, 8, body(r, i)), "threadIdx.x")

    body = block(
        rows("a", lambda r, i: Store(t, (r, i), x[r, i] + x[r, i])),
        rows("b", lambda r, i: Store(y, (r, i), t[r, const(31) - i])),
        loop(R, 8, loop(C, 32, Store(t, (R, C), x[R, C]))),
        rows("d", lambda r, i: Store(z, (r, i), t[r, const(31) - i])),
    )
    whole = loop(Var("o", INDEX), 1, Alloc(t, body), "blockIdx.x")
    kernel = Kernel("f", (x, y, z), (y, z), whole, {"r": {BULK: 1}})
    p = to_launches(kernel, 32, bulk_copies=True)
    judged(kernel, p)
    given = np.arange(256, dtype=np.float32).reshape(8, 32)
    _, made = load_counted(p, SM90A, {p.params[0]: given})
    assert np.array_equal(made, [2 * given[:, ::-1], given[:, ::-1]])


def test_an_older_gpu_has_no_such_copies():
    p, kernel = small()
    assert "bulk.tensor" in ptx(p, machine("sm_90"))
    with pytest.raises(CompileError, match="asynchronous copies, which this GPU lacks"):
        ptx(p, machine("sm_80"))
    assert BULK not in str(Cuda(machine("sm_80"), False).launches(kernel))


# -- the sketch, and the driver

CASES: dict[str, tuple[Case, tuple[int, ...], int]] = {
    "turned": (turned(60, 140, 256), (64, 128, 64, 1, 1), 3),
    "columns in blocks": (
        product(60, 120, 200, bfloat16, float32),
        (64, 128, 64, 1, 1),
        3,
    ),
    "two groups": (rounded(120, 136, 64), (128, 256, 64, 2, 1), 1),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_ragged_tiles_have_zeros_outside_of_the_tensor(name):
    case, tile, stages = CASES[name]
    point = scheduled(case, CORES, group_tile=tile, stages=stages, boxes=True)
    p = launches(point, SM90A)
    assert "bulk" in str(p)
    given = arrays(p)
    traffic, (made,) = load_counted(p, SM90A, given)
    assert traffic.group_products
    assert np.array_equal(made, expected(case, given))


def test_the_driver_encodes_a_map_for_each_box():
    case, tile, _ = CASES["columns in blocks"]
    point = scheduled(case, CORES, group_tile=tile, stages=2, boxes=True)
    p = launches(point, SM90A)
    code = code_of(p, ptx(p, SM90A), SM90A)
    (call,) = code.launches
    assert [(m.argument, m.extents, m.sides) for m in call.maps] == [
        (1, (200, 120), (64, 64)),
        (0, (60, 200), (64, 64)),
    ]
    assert DeviceProgram.from_bytes(code.to_bytes(), PTX) == code
    device = CudaDevice(RunningFake(COMPUTE_CAPABILITY_MAJOR=9))
    loaded, queue = device.load(code.to_bytes()), device.queue()
    given = arrays(p)
    memory = []
    for b in p.params:
        held = device.allocate(b.size * b.dtype.itemsize)
        memory.append(MemoryRange(held, 0, held.nbytes))
        queue.write(memory[-1], given[b].reshape(-1).view(np.uint8))
    queue.launch(loaded, memory)
    made = np.zeros(p.outputs[0].shape, np.float32)
    queue.read(made.reshape(-1).view(np.uint8), memory[-1]).wait()
    assert np.array_equal(made, expected(case, given))


def test_a_map_is_of_its_tensor_where_one_before_is_in_constant_memory() -> None:
    case, tile, _ = CASES["columns in blocks"]
    point = scheduled(case, CORES, group_tile=tile, stages=2, boxes=True)
    p = launches(point, SM90A)
    factors = Buffer("f", (8,), float32, "constant")
    (launch,) = p.launches
    first = replace(launch, params=(factors, *launch.params))
    q = replace(p, params=(factors, *p.params), launches=(first,))
    (before,), (call,) = (code_of(x, "", SM90A).launches for x in (p, q))
    assert call.maps == before.maps
    taken = [q.params[call.arguments[m.argument]] for m in call.maps]
    assert taken == [p.params[before.arguments[m.argument]] for m in before.maps]


def test_they_are_the_default_where_the_model_expects_no_loss():
    """Fewer instructions are issued, but the shared cache takes longer than these."""
    large = product(4096, 4096, 4096, bfloat16, float32)
    p = work_of(large)
    t = tiling_of(p, tensor_tiles(p, SM90A, GROUPS)[0], GROUPS)
    assert copies_boxes(t, SM90A) and not copies_boxes(t, machine("sm_80"))
    stages = best_stages(t, SM90A)
    usual = time_on_tensor_cores(t, SM90A, stages)
    assert time_on_tensor_cores(t, SM90A, stages, in_boxes=True) == usual
    assert boxes_pay(t, SM90A)
    chosen = {x.name: x.value for x in scheduled(large, CORES).parameters}
    assert chosen["mm.boxes"] is True


@pytest.mark.parametrize(("in_boxes", "pays"), [(1.0, True), (1.1, False)])
def test_threads_copy_where_the_model_expects_that_to_be_faster(
    monkeypatch, in_boxes, pays
):
    def time(
        t: object,
        machine: object,
        stages: int = 1,
        boxes: bool = False,
        cluster: object = None,
        persists: bool = False,
    ) -> float:
        return in_boxes if boxes else 1.0

    monkeypatch.setattr(cost, "time_on_tensor_cores", time)
    p = work_of(product(128, 128, 256, bfloat16, float32))
    t = tiling_of(p, TensorTile(64, 128, 64, 1, 1), GROUPS)
    assert boxes_pay(t, SM90A) == pays


def test_rows_that_are_no_multiples_of_16_bytes_are_copied_by_threads():
    p = work_of(product(64, 132, 128, bfloat16, float32))
    t = tiling_of(p, TensorTile(64, 128, 64, 1, 1), GROUPS)
    assert not copies_boxes(t, SM90A)


@pytest.mark.parametrize(("depth", "stages"), [(72, 2), (40, 1), (136, 2), (136, 3)])
def test_products_of_few_steps_have_a_schedule_by_default(depth, stages):
    """Threads copy where the last one of two steps is ragged."""
    case = product(60, 120, depth, bfloat16, float32)
    point = scheduled(case, CORES, group_tile=(64, 128, 64, 1, 1), stages=stages)
    chosen = {x.name: x.value for x in point.parameters}
    assert chosen["mm.boxes"] == (depth > 128)


@pytest.mark.parametrize("filters", [72, 128])
def test_threads_copy_parts_of_a_window_by_default(filters):
    """Of three rows of 100, some tiles are no boxes."""
    point = scheduled(along_rows(3, 100, 2, 64, filters), CORES)
    chosen = {x.name: x.value for x in point.parameters}
    assert chosen["mm.boxes"] is False


def test_the_end_of_a_window_is_seen_in_its_first_step_as_well():
    """There its condition says 0 // 2 for the place in the window."""
    case = along_rows(1, 14, 3, 128, 128)
    how = {"group_tile": (64, 128, 64, 1, 1), "stages": 2, "boxes": True}
    p = launches(scheduled(case, CORES, **how), SM90A)
    given = arrays(p)
    (made,) = load_counted(p, SM90A, given)[1]
    assert np.array_equal(made, expected(case, given))


def test_a_sketch_that_a_primitive_refuses_is_reported(monkeypatch):
    """As that of tiles that are no boxes would be, if they were taken for some."""
    case = product(60, 120, 72, bfloat16, float32)
    for module in (tensor_tiles_module, cluster_tiles):
        monkeypatch.setattr(module, "copies_boxes", lambda t, machine: True)
    with events.record() as log:
        assert CORES.with_sketch([], plain(case), case) == []
    (refused,) = (e.fields for e in log if e.kind == "sketch-refused")
    assert refused["sketch"] == GROUPS.name
    assert "no copy of a box" in refused["reason"]
