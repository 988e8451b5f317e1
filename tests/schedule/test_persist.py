"""persist and rotate: blocks with several tiles, which fetch the next one before this one ends."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from tilewright.base.errors import ScheduleError
from tilewright.loops import launch_interp
from tilewright.loops.interp import run
from tilewright.loops.nodes import Alloc, If, Kernel
from tilewright.loops.parser import parse
from tilewright.loops.passes.on_buffers import on_buffers
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of, place_of, walk
from tilewright.schedule import Schedule
from tilewright.testing.random_launches import BLOCKS
from tilewright.testing.random_programs import random_arrays, random_program

TILES = """\
kernel f(x: int32[7, 4], z: int32[4]) -> y: int32[7, 4]:
  for t in 7:
    alloc a: int32[4]:
      alloc s: int32[4]:
        for i in 4:
          a[i] = x[t, i]
        for j in 4:
          s[j] = a[j] + z[j]
        for k in 4:
          y[t, k] = s[k] + s[k]"""


def kernel(text: str = TILES) -> Kernel:
    return parse(text.split("\n"))


def changed(*pairs: tuple[str, str]) -> Kernel:
    """The kernel with other lines."""
    text = TILES
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return kernel(text)


# -- persist


@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
def test_each_block_has_every_so_manieth_tile(blocks, check_same):
    s = Schedule(kernel())
    block, tiles = s.persist("t", blocks)
    check_same(kernel(), s, exact=True)
    found = {f.var.name: f for f in loops_of(s.kernel.body)}
    assert (found[block].kind, found[block].trips) == ("blockIdx.x", blocks)
    assert (found[tiles].kind, found[tiles].trips) == ("serial", -(-7 // blocks))


def test_it_prints_as_it_is_documented(golden):
    s = Schedule(kernel())
    s.persist("t", 3, "blockIdx.y")
    golden("schedule_persist", repr(s.kernel))


@pytest.mark.parametrize("blocks", [0, -1, 8])
def test_a_block_has_a_tile(blocks):
    with pytest.raises(ScheduleError, match=r"persist: .* blocks have no tile each"):
        Schedule(kernel()).persist("t", blocks)


def test_tiles_that_depend_on_one_another_are_refused():
    """In the order of the program: exchanged, they would read what is not there yet."""
    before = changed(("y[t, k] = s[k]", "y[t, k] = y[(t + 6) % 7, k] + s[k]"))
    with pytest.raises(ScheduleError, match="persist: reorder: "):
        Schedule(before).persist("t", 3)


def test_blocks_that_share_an_element_are_refused():
    """Each of one tile: their order stays, but they are at the same time."""
    before = changed(("y[t, k] = s[k]", "y[0, k] = s[k]"))
    with pytest.raises(ScheduleError, match="persist: "):
        Schedule(before).persist("t", 7)


def persisted(seed: int) -> tuple[Kernel, Schedule, Counter[str]]:
    """A random program, some of whose loops run in few blocks, and what became of the others."""
    r = random.Random(seed)
    program = random_program(r)
    s, met = Schedule(program), Counter[str]()
    for f in loops_of(program.body):
        is_inside = place_of(program.body, f).loops
        if not f.trips or (is_inside and r.random() < 0.8):
            continue
        try:
            s.persist(f.var.name, r.randint(1, f.trips), r.choice(BLOCKS))
        except ScheduleError:
            met["refused"] += 1
    return program, s, met


@pytest.mark.parametrize(
    "seeds", [range(30), pytest.param(range(100, 600), marks=pytest.mark.slow)], ids=str
)
def test_random_programs_compute_the_same_in_blocks_of_several_tiles(seeds):
    """In the interpreter of launches, where blocks run in any order, and races are errors."""
    met = Counter[str]()
    for seed in seeds:
        program, s, found = persisted(seed)
        met += found
        try:
            launches = to_launches(s.kernel)
        except ScheduleError as error:
            assert error.code in ("TW-LAUNCH", "TW-RACE")
            met["not launched"] += 1
            continue
        arrays = random_arrays(program, seed)
        wanted = {b: a.copy() for b, a in arrays.items()}
        run(program, wanted)
        launch_interp.run(launches, arrays, seed)
        for b in program.outputs:
            np.testing.assert_array_equal(wanted[b], arrays[b], err_msg=str(seed))
        blocks = [f for f in loops_of(s.kernel.body) if f.kind in BLOCKS]
        inner = [
            g for f in blocks for g in loops_of(f.body) if g.var.name.endswith(".o")
        ]
        met["several"] += any(g.trips and g.trips > 1 for g in inner)
        met["guarded"] += any(isinstance(p.stmt, If) for g in inner for p in walk(g))
    least = {"several": 0.45, "guarded": 0.3, "refused": 0.5}
    assert all(met[what] >= n * len(seeds) for what, n in least.items()), met


# -- rotate


def test_the_next_tile_is_fetched_before_the_last_statement(check_same, golden):
    s = Schedule(kernel())
    s.rotate("t", 0, 1, 2)
    check_same(kernel(), s, exact=True)
    golden("schedule_rotate", repr(s.kernel))


@pytest.mark.parametrize("blocks", [2, 3, 7])
def test_tiles_of_a_block(blocks, check_same):
    """What split leaves around a tile is asked of the next one, and of nothing twice."""
    s = Schedule(kernel())
    _, tiles = s.persist("t", blocks)
    s.rotate(tiles, 0, 1, 2)
    check_same(kernel(), s, exact=True)
    guards = repr(s.kernel).count("if ")
    assert guards == {2: 2, 3: 2, 7: 0}[blocks]


def test_several_statements_move(check_same):
    s = Schedule(kernel())
    s.rotate("t", 0, 2, 3)
    check_same(kernel(), s, exact=True)
    s = Schedule(changed(("s[j] = a[j] + z[j]", "s[j] = z[j]")))
    before = s.kernel
    s.rotate("t", 1, 2, 3)
    check_same(before, s, exact=True)


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ((0, 0, 2), "are not in order among its 3 statements"),
        ((0, 2, 1), "are not in order"),
        ((0, 1, 4), "are not in order"),
        ((-1, 1, 2), "are not in order"),
        ((0, 1, 1), "both use a, which an iteration has for itself"),
        ((1, 2, 3), "both use a, which an iteration has for itself"),
    ],
)
def test_what_has_to_stay_stays(places, why):
    with pytest.raises(ScheduleError, match=f"rotate: .*{why}"):
        Schedule(kernel()).rotate("t", *places)


def test_the_loop_is_serial_and_has_an_iteration():
    s = Schedule(kernel())
    s.parallel("t")
    with pytest.raises(ScheduleError, match="rotate: the loop is parallel"):
        s.rotate("t", 0, 1, 2)
    with pytest.raises(ScheduleError, match="of 0 iterations"):
        Schedule(changed(("for t in 7", "for t in 0"))).rotate("t", 0, 1, 2)


CARRIED = changed(("a[i] = x[t, i]", "a[i] = y[(t + 6) % 7, i]"))


def test_what_the_last_statement_wrote_is_not_read_before_it():
    """It is an error that results show: the same program, rotated by hand."""
    with pytest.raises(ScheduleError, match=r"it must follow: .*y"):
        Schedule(CARRIED).rotate("t", 0, 1, 2)
    s = Schedule(kernel())
    s.rotate("t", 0, 1, 2)
    text = repr(s.kernel).replace("x[t + 1, i]", "y[(t + 7) % 7, i]")
    text = text.replace("x[0, i.pro]", "y[6, i.pro]")
    assert text != repr(s.kernel)
    found = []
    for program in (CARRIED, kernel(text)):
        rng = np.random.default_rng(0)
        arrays = {b: rng.integers(1, 9, b.shape, np.int32) for b in program.params}
        run(program, arrays)
        found.append(arrays[program.outputs[0]])
    assert not np.array_equal(*found)


def test_what_an_earlier_statement_writes_is_not_read_before_it():
    before = changed(
        (
            "for i in 4:\n          a[i] = x[t, i]",
            "for i in 4:\n          y[t, i] = z[i]",
        ),
        ("a[j] + z[j]", "y[t, j] + z[j]"),
    )
    with pytest.raises(ScheduleError, match=r"it must follow: .*y"):
        Schedule(before).rotate("t", 1, 2, 3)


@pytest.mark.parametrize(
    "condition",
    ["t % 2 < 1", "3 < t", "z[t % 4] < z[0]", "z[0] < z[1]", "t < i64(z[0])"],
)
def test_a_condition_that_may_hold_again_is_refused(condition):
    """The next tile is fetched where this one is: not if this one is left out."""
    lines = TILES.split("\n")
    text = "\n".join(
        [*lines[:2], f"    if {condition}:", *("  " + x for x in lines[2:])]
    )
    with pytest.raises(ScheduleError, match="may hold after it did not"):
        Schedule(kernel(text)).rotate("t", 0, 1, 2)


def test_loops_with_notes_are_not_copied():
    s = Schedule(kernel())
    s.annotate("i", "async", 1)
    with pytest.raises(ScheduleError, match="the loop has the notes async"):
        s.rotate("t", 0, 1, 2)


@pytest.mark.parametrize("places", [(0, 1, 2), (1, 2, 3)])
def test_memory_that_is_allocated_twice_is_not_moved(places):
    """Nor is it around what moves without using it: all of it would be around all statements."""
    again = """
    alloc b: int32[4]:
      for l in 4:
        b[l] = x[t, l]
      for m in 4:
        y[t, m] add= b[m]"""
    before = kernel(TILES.replace("a[j]", "x[t, j]") + again)
    allocated = (p.stmt for p in walk(before.body) if isinstance(p.stmt, Alloc))
    by_name = {s.buffer.name: s.buffer for s in allocated}
    twice = on_buffers(before, {by_name["b"]: by_name["a"]})
    verify(twice)
    with pytest.raises(ScheduleError, match="allocated in 2 places of loop t"):
        Schedule(twice).rotate("t", *places)
