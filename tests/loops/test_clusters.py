"""Clusters of blocks that copy parts of a box for one another, in launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.loops.gpu_kernels import barriers, judged
from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_
from tilewright.expr.nodes import INDEX, Buffer, Expr, Lt, Var, as_expr, const
from tilewright.loops import launch_interp
from tilewright.loops.launch import Barrier, Commit, LaunchProgram, Wait
from tilewright.loops.lower import lower
from tilewright.loops.nodes import (
    BULK,
    CLUSTER,
    MULTICAST,
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
from tilewright.loops.parser import parse, parse_program
from tilewright.loops.passes.bulk_copies import groups_at_once
from tilewright.loops.passes.in_flight import BOXES, PRODUCTS
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.shared_memory import (
    RaceError,
    SimulatedBlock,
    SimulatedThread,
    TrackedMemory,
    View,
)
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule

ROWS = 16


def schedule(count: int | str = 2, rows: int = ROWS, blocks: int = 4) -> Schedule:
    """y[b] = x with each row backwards, for each block b, which copies some rows at a time."""
    x = Buffer("x", (4 * rows, 32), float32)
    y = Buffer("y", (blocks, 4 * rows, 32), float32)
    made = map_("turned", y, lambda b, i, j: x[i, 31 - j])
    s = Schedule(lower("f", [made], params=[x, y], outputs=[y]))
    step, row = s.split("turned.i", rows)
    s.reorder("turned.b", step, row, "turned.j")
    part = s.cache_read("x", step, "shared")
    s.swizzle(part)
    s.bind("turned.b", "blockIdx.x")
    s.bind("turned.j", "threadIdx.x")
    s.pipeline(step, 0, 1)
    for name in (f"{part}.r0", f"{part}.r0.pro0"):
        s.annotate(name, BULK, 1)
    s.annotate("turned.b", CLUSTER, count)
    return s


def program(**how: int) -> tuple[LaunchProgram, Kernel]:
    kernel = schedule(**how).kernel
    return to_launches(kernel, 32, bulk_copies=True), kernel


def edited(p: LaunchProgram, new: Mapping[Stmt, Stmt]) -> LaunchProgram:
    """The program of one launch with other statements."""

    def instead(s: Stmt) -> Stmt:
        made: Stmt = s.map(
            lambda c: new.get(c, instead(c)) if isinstance(c, Stmt) else c
        )
        return block(*made.stmts) if isinstance(made, Block) else made

    (launch,) = p.launches
    return replace(p, launches=(launch.with_body(instead(launch.body)),))


def found(p: LaunchProgram, kind: type[Stmt]) -> list[Stmt]:
    (launch,) = p.launches
    return [at.stmt for at in walk(launch.body) if isinstance(at.stmt, kind)]


def test_each_block_copies_a_part_for_all():
    p, kernel = program()
    (launch,) = p.launches
    assert launch.cluster == (2, 1, 1) and "cluster [2, 1, 1]:" in str(p)
    copies = [f for f in found(p, For) if f.kind == MULTICAST]
    assert [f.trips for f in copies] == [ROWS // 2] * 2
    assert "x.local[0, blockIdx.x % 2 * 8 + x.local.r0.pro0, " in str(p)
    assert [s.scope for s in barriers(p)] == ["cluster"]
    assert groups_at_once(launch.body) == 1
    assert str(parse_program(str(p).split("\n"))) == str(p)
    for seed in range(3):
        judged(kernel, p, seed)


def test_a_cluster_of_four_along_another_axis():
    s = schedule(4, rows=32, blocks=8)
    s.bind("turned.b", "blockIdx.y")
    p = to_launches(s.kernel, 32, bulk_copies=True)
    assert p.launches[0].cluster == (1, 4, 1)
    judged(s.kernel, p)


def test_the_note_is_part_of_a_kernels_text_and_means_nothing_elsewhere():
    kernel = schedule().kernel
    assert "blockIdx.x {cluster: 2}" in str(kernel)
    assert str(parse(str(kernel).split("\n"))) == str(kernel)
    p = to_launches(kernel, 32)
    assert "cluster" not in str(p)
    judged(kernel, p)


def test_the_ring_has_a_place_until_the_whole_cluster_knows_that_a_group_is_over():
    copy = loop(R, ROWS, loop(C, 32, Store(T, (const(0), R, C), same())))

    def groups(kind: str, scope: str) -> int:
        step = copy.replace(kind=kind)
        group = (step, Commit(BOXES), Wait(BOXES, 0), Barrier(scope))
        return groups_at_once(block(*group, *group))

    assert groups(BULK, "shared") == groups(MULTICAST, "cluster") == 1
    assert groups(MULTICAST, "shared") == 2


# -- faults in launches


def test_a_wait_that_is_missing_is_found():
    p, _ = program()
    for wait in found(p, Wait):
        for instead in (block(), Wait(BOXES, 1)):
            with pytest.raises(RaceError, match="with no wait between"):
                judged(None, edited(p, {wait: instead}))


@pytest.mark.parametrize("seed", range(4))
def test_a_slot_that_a_block_releases_after_its_own_use_only_is_found(seed):
    """Regardless of the order in which the blocks happen to run."""
    p, _ = program()
    (meeting,) = barriers(p)
    with pytest.raises(RaceError, match="no barrier of the cluster between"):
        judged(None, edited(p, {meeting: Barrier("shared")}), seed)


def test_a_box_is_overwritten_when_all_blocks_know_that_it_is_there():
    """The wait is in front of the barrier of the cluster, and not only of one of the block."""
    again = by_hand(same, used=False, around=lambda s: loop(Var("k", INDEX), 3, s))
    p = launched(again)
    (meeting,), (wait,) = barriers(p), found(p, Wait)
    assert str(p).index("wait bulk") < str(p).index("barrier cluster")
    judged(None, p)
    late = edited(p, {meeting: block(), wait: block(meeting, wait, Barrier("shared"))})
    with pytest.raises(RaceError, match="no barrier of the cluster between"):
        judged(None, late)


def test_a_part_that_no_block_copies_is_found():
    p, _ = program()
    copies = [f for f in found(p, For) if f.kind == MULTICAST]
    alone = {f: f.replace(kind=BULK) for f in copies}
    wrong = edited(p, alone)
    with pytest.raises(AssertionError):  # the other part is undefined
        judged(program()[1], wrong)


def own(name: str, shape: tuple[int, ...] = (32,)) -> Buffer:
    return Buffer(name, shape, float32, "shared", 128 if len(shape) > 1 else 0)


def phase(name: str, to: Buffer, value: Callable[[Var], Expr]) -> Stmt:
    """Each thread stores a value in a row of its block, or in shared memory."""
    i = Var(name, INDEX)
    index = (i,) if to.scope == "shared" else (B, i)
    return loop(i, 32, Store(to, index, value(i)), "threadIdx.x")


def copies(
    name: str, to: Buffer, source: Callable[[Var, Var], Expr], slot: int = 0
) -> Stmt:
    """A box of 16 rows."""
    r, c = Var(name, INDEX), Var(f"{name}.c", INDEX)
    at = (r, c) if len(to.shape) == 2 else (as_expr(slot, INDEX), r, c)
    return loop(r, ROWS, loop(c, 32, Store(to, at, source(r, c))))


def made(body: Stmt, shared: Sequence[Buffer], boxes: Sequence[str]) -> Kernel:
    """A kernel of four blocks in two clusters."""
    for b in shared:
        body = Alloc(b, body)
    notes: dict[str, dict[str, object]] = {name: {BULK: 1} for name in boxes}
    notes["b"] = {CLUSTER: 2}
    whole = loop(B, 4, body, "blockIdx.x")
    return Kernel("f", (X, N, Y, Z), (Y, Z), whole, notes)


def test_a_wait_is_in_front_of_the_barrier_of_the_cluster_even_if_others_wait_later():
    """Each of two barriers of the block is needed; the first one becomes one of the cluster, and
    the wait in front of the second one is too late for it."""
    u, v, w = own("u"), own("v", (ROWS, 32)), own("w")
    step = block(
        phase("i1", w, lambda i: X[0, 0, i]),
        phase("i2", Y, lambda i: w[const(31) - i]),
        phase("i3", u, lambda i: X[0, 1, i]),
        copies("r1", v, lambda r, c: X[B, r, c]),
        phase("i4", Z, lambda i: v[0, const(31) - i] + u[const(31) - i]),
        copies("r2", T, lambda r, c: X[0, r, c]),
    )
    kernel = made(loop(Var("k", INDEX), 3, step), (u, v, w, T), ("r1", "r2"))
    p = launched(kernel)
    assert [s.scope for s in barriers(p)] == ["cluster", "shared"]
    for seed in range(4):
        judged(kernel, p, seed)


@pytest.mark.parametrize("turn", range(3))
def test_a_wait_behind_the_barrier_of_the_cluster_is_too_late_for_the_next_box(turn):
    """The one for what is read in between waits for as much, but other blocks may be ahead then."""
    v = own("v", (ROWS, 32))
    parts = [
        copies("r1", v, lambda r, c: X[0, r, c]),
        phase("i1", Y, lambda i: v[0, const(31) - i]),
        copies("r2", T, lambda r, c: X[1, r, c]),
    ]
    first = copies("r", v, lambda r, c: X[0, r, c])
    again = loop(Var("k", INDEX), 3, block(*parts[turn:], *parts[:turn]))
    kernel = made(block(first, again), (v, T), ("r", "r1", "r2"))
    p = launched(kernel)
    assert "cluster" in {s.scope for s in barriers(p)}
    judged(kernel, p)
    lines = str(p).split("\n")
    (met,) = [n for n, line in enumerate(lines) if "barrier cluster" in line]
    assert "wait bulk" in lines[met - 1]
    with pytest.raises(
        RaceError, match=r"with no (wait|barrier of the cluster) between"
    ):
        judged(None, parse_program([*lines[: met - 1], *lines[met:]]))


def test_a_wait_is_in_front_of_the_last_barrier_on_the_way_to_what_is_read():
    """A box is read two steps later: one of a later step may be in flight then."""
    k, r, c, i = (Var(name, INDEX) for name in ("k", "r", "c", "i"))
    read = loop(i, 32, Store(Y, (B, i), ODD[(k + 1) % 3, 0, i]), "threadIdx.x")
    store = Store(ODD, (k % 3, r, c), X[k % 4, r, c])
    copy = loop(r, ROWS, loop(c, 32, store))
    rest = [copies(f"s{n}", ODD, lambda r, c: X[0, r, c], n) for n in range(3)]
    boxes = ("r", "s0", "s1", "s2")
    kernel = made(block(*rest, loop(k, 4, block(read, copy))), (ODD,), boxes)
    p = launched(kernel)
    judged(kernel, p)
    assert [s.pending for s in found(p, Wait)] == [1, 0]


def test_a_wait_is_for_the_step_that_reads_a_box_that_was_copied_before_the_loop():
    """The second step reads it, behind the box of the first one; those of steps are read later."""
    t = own("t", (4, ROWS, 32))
    k, r, c, i = (Var(name, INDEX) for name in ("k", "r", "c", "i"))
    read = loop(i, 32, Store(Y, (B, i), t[(k + 1) % 4, 0, i]), "threadIdx.x")
    store = Store(t, (k % 4, r, c), X[k % 4, r, c])
    steps = loop(k, 5, block(read, loop(r, ROWS, loop(c, 32, store))))
    first = [copies(f"s{n}", t, lambda r, c: X[0, r, c], n) for n in (1, 3, 2)]
    early = phase("e", Z, lambda i: t[1, 0, i] + t[3, 0, i])
    body = block(*first[:2], early, first[2], steps)
    kernel = made(body, (t,), ("r", "s1", "s2", "s3"))
    p = launched(kernel)
    judged(kernel, p)
    assert [s.pending for s in found(p, Wait)] == [0, 1, 0]


def test_a_barrier_of_the_cluster_is_also_one_for_memory_of_the_caller():
    step = block(
        copies("r", T, lambda r, c: X[0, r, c]),
        phase("i1", Y, lambda i: T[0, 0, i]),
        copies("r2", T, lambda r, c: X[1, r, c]),
        phase("i2", Z, lambda i: Y[B, const(31) - i] + T[0, 0, i]),
    )
    kernel = made(step, (T,), ("r", "r2"))
    p = launched(kernel)
    assert [s.scope for s in barriers(p)] == ["cluster"]
    judged(kernel, p)


def test_a_box_that_nobody_reads_is_there_before_its_block_ends():
    step = block(
        copies("r", T, lambda r, c: X[0, r, c]),
        phase("i1", Y, lambda i: T[0, 0, i]),
        copies("r2", T, lambda r, c: X[1, r, c]),
        phase("i2", Z, lambda i: const(1.0, float32)),
    )
    p = launched(made(step, (T,), ("r", "r2")))
    assert str(p).endswith("wait bulk")
    judged(None, p)


def test_a_wait_is_one_for_the_parts_of_all_blocks():
    step = block(
        copies("r", T, lambda r, c: X[0, r, c]),
        phase("i1", Y, lambda i: T[0, 0, i]),
        phase("i2", Z, lambda i: T[0, ROWS - 1, i]),
    )
    kernel = made(step, (T,), ("r",))
    p = launched(kernel)
    for seed in range(12):
        judged(kernel, p, seed)


def test_a_product_reads_its_factor_until_its_threads_have_waited():
    """A barrier of the cluster in front of that wait orders nothing."""
    homes = [SimulatedBlock((n, 0, 0)) for n in range(2)]
    t = Buffer("t", (1,), float32, "shared")
    memory = TrackedMemory(t, [0.0], [block()], home=homes[0])
    clocks = {"shared": 0, "cluster": 0}
    one, other = (SimulatedThread(b.number, (0, 0, 0), dict(clocks)) for b in homes)
    View(memory, one).factor(0)
    one.commit(PRODUCTS)
    for thread in (one, other):
        thread.clocks = {"shared": 1, "cluster": 1}
    one.wait(PRODUCTS, 0)
    with pytest.raises(RaceError, match="no barrier of the cluster between"):
        View(memory, other).box(0, 1.0)
    for thread in (one, other):
        thread.clocks = {"shared": 2, "cluster": 2}
    View(memory, other).box(0, 1.0)


def test_a_thread_that_alone_reads_a_box_and_copies_the_next_waits_for_other_blocks():
    first = Var("f", INDEX)
    one = loop(first, 1, Store(Y, (B, first), T[0, 0, first]), "threadIdx.x")
    some = Store(Y, (B, LANE + 1), const(1.0, float32))
    copy = loop(R, ROWS, loop(C, 32, Store(T, (const(0), R, C), same())))
    body = loop(Var("k", INDEX), 3, block(copy, one))
    body = block(body, loop(LANE, 31, some, "threadIdx.x"))
    whole = loop(B, 4, Alloc(T, body), "blockIdx.x")
    notes = {"r": {BULK: 1}, "b": {CLUSTER: 2}}
    kernel = Kernel("f", (X, N, Y), (Y,), whole, notes)
    p = launched(kernel)
    (meeting,) = barriers(p)
    assert meeting.scope == "cluster"
    judged(kernel, p)
    assert not barriers(launched(replace(kernel, notes={"r": {BULK: 1}})))


@pytest.mark.parametrize("used", [True, False])
def test_blocks_of_one_thread_wait_for_one_another(used):
    kernel = by_hand(
        same, used, threads=1, around=lambda s: loop(Var("k", INDEX), 3, s)
    )
    p = launched(kernel)
    (meeting,) = barriers(p)
    assert meeting.scope == "cluster"
    for seed in range(4):
        judged(kernel if used else None, p, seed)
    with pytest.raises(RaceError, match="no barrier of the cluster between"):
        judged(None, edited(p, {meeting: block()}))


ENDS = """\
program f(x: float32[16, 32]) -> y: float32[2]:
  launch f_0(x, y) grid [2, 1, 1] threads [32, 1, 1] cluster [2, 1, 1]:
    shared t: float32[16, 32] in shared swizzled 128
    if threadIdx.x < 1:
      for r in 8 multicast:
        for c in 32:
          t[blockIdx.x % 2 * 8 + r, c] = x[blockIdx.x % 2 * 8 + r, c]
    commit bulk
    if threadIdx.x < 1:
      y[blockIdx.x] = 1.0
    wait bulk"""


def test_a_block_that_ends_while_others_write_to_it_is_found():
    lines = ENDS.split("\n")
    judged(None, parse_program(lines))
    with pytest.raises(RaceError, match="ends with no wait for a box that is copied"):
        judged(None, parse_program(lines[:-1]))


def test_blocks_of_a_cluster_come_to_its_barriers_together():
    text = """\
program f(x: float32[4]) -> y: float32[4]:
  launch f_0(x, y) grid [2, 1, 1] threads [2, 1, 1] cluster [2, 1, 1]:
    if blockIdx.x < 1:
      barrier cluster
    y[blockIdx.x * 2 + threadIdx.x] = x[blockIdx.x * 2 + threadIdx.x]"""
    with pytest.raises(launch_interp.DivergenceError, match="has ended"):
        judged(None, parse_program(text.split("\n")))


# -- what is refused

T = Buffer("t", (2, ROWS, 32), float32, "shared", 128)
X = Buffer("x", (4, ROWS, 32), float32)
N = Buffer("n", (1,), INDEX)
Y, Z = (Buffer(name, (4, 32), float32) for name in "yz")
B, LANE, R, C, OUTER = (Var(name, INDEX) for name in ("b", "i", "r", "c", "o"))


def by_hand(
    source: Callable[[], Expr],
    used: bool = True,
    threads: int = 32,
    around: Callable[[Stmt], Stmt] = lambda s: s,
    rows: int = ROWS,
    at: tuple[Expr | int, ...] = (0, R, C),
) -> Kernel:
    """Each block copies a tile, and reads a row of it backwards."""
    index = tuple(as_expr(i, INDEX) for i in at)
    copy = loop(R, rows, loop(C, 32, Store(T, index, source())))
    read = Store(
        Y, (B, LANE), T[0, 0, const(31) - LANE] if used else const(1.0, float32)
    )
    body = around(block(copy, loop(LANE, threads, read, "threadIdx.x")))
    whole = loop(B, 4, Alloc(T, body), "blockIdx.x")
    return Kernel("f", (X, N, Y), (Y,), whole, {"r": {BULK: 1}, "b": {CLUSTER: 2}})


def launched(kernel: Kernel) -> LaunchProgram:
    return to_launches(kernel, 32, bulk_copies=True)


def same() -> Expr:
    return X[0, R, C]


def test_a_box_is_there_before_its_block_ends_even_if_nobody_reads_it():
    p = launched(by_hand(same, used=False))
    assert [(s.of, s.pending) for s in found(p, Wait)] == [(BOXES, 0)]
    judged(None, p)
    alone = launched(replace(by_hand(same, used=False), notes={"r": {BULK: 1}}))
    assert [(s.of, s.pending) for s in found(alone, Wait)] == [(BOXES, 0)]
    judged(None, alone)
    assert not found(launched(replace(by_hand(same, used=False), notes={})), Wait)
    for p in (p, alone):
        for kind in (Wait, Commit):
            (left_out,) = found(p, kind)
            with pytest.raises(RaceError, match="ends with no wait for a box"):
                judged(None, edited(p, {left_out: block()}))


ODD = Buffer("t", (3, ROWS, 32), float32, "shared", 128)

REFUSED = {
    "a box of its own": (by_hand(lambda: X[B, R, C]), "none of its boxes is the same"),
    "trips": (
        by_hand(same, around=lambda s: loop(Var("k", INDEX), B + 1, s)),
        "may differ between blocks that do something together",
    ),
    "data": (
        by_hand(same, around=lambda s: loop(Var("k", INDEX), N[0], s)),
        "may differ between blocks that do something together",
    ),
    "a copy of some blocks": (
        made(
            block(
                If(Lt(B, const(2)), copies("r", T, lambda r, c: X[0, r, c]), None),
                phase("i", Y, lambda i: T[0, 0, i]),
            ),
            (T,),
            ("r",),
        ),
        "may differ between blocks that do something together",
    ),
    "an odd side": (
        made(
            loop(
                OUTER,
                3,
                loop(R, ROWS, loop(C, 32, Store(ODD, (OUTER, R, C), X[OUTER, R, C]))),
            ),
            (ODD,),
            ("o",),
        ),
        "none of its boxes is the same",
    ),
    "two loops": (
        replace(
            by_hand(same), notes={"r": {BULK: 1}, "b": {CLUSTER: 2}, "i": {CLUSTER: 2}}
        ),
        "loop i is another one",
    ),
    "a while loop": (
        by_hand(same, around=lambda s: While(N[0] < 0, s)),
        "a while loop is around what all of them do together",
    ),
    "no parts of whole patterns": (
        by_hand(lambda: X[0, R, C], rows=8),
        "none of its boxes is the same",
    ),
    "a slot of its own": (
        by_hand(same, at=(B % 2, R, C)),
        "none of its boxes is the same",
    ),
    "one block": (
        replace(by_hand(same), notes={"r": {BULK: 1}, "b": {CLUSTER: 1}}),
        "it has 2 to 8 blocks, not 1",
    ),
    "nine blocks": (
        replace(by_hand(same), notes={"r": {BULK: 1}, "b": {CLUSTER: 9}}),
        "it has 2 to 8 blocks, not 9",
    ),
    "a text": (
        replace(by_hand(same), notes={"r": {BULK: 1}, "b": {CLUSTER: "two"}}),
        "it has 2 to 8 blocks, not two",
    ),
    "no multiple": (
        replace(by_hand(same), notes={"r": {BULK: 1}, "b": {CLUSTER: 3}}),
        "4 blocks are not a multiple of 3",
    ),
    "over threads": (
        replace(by_hand(same), notes={"r": {BULK: 1}, "i": {CLUSTER: 2}}),
        "the loop is threadIdx.x, not one over blocks",
    ),
    "no boxes": (
        replace(by_hand(same), notes={"b": {CLUSTER: 2}}),
        "none of its boxes is the same",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_cluster_is_refused(name):
    kernel, why = REFUSED[name]
    with pytest.raises(ScheduleError, match=why):
        launched(kernel)
