"""Which loops threads share: as few as give each core several iterations, and as many iterations as
the others; of a copy, those that its readers move along, so that each core reads what it wrote."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.driver.tasks import tasks
from tilewright.loops.walk import loops_of
from tilewright.operators import Buffer, map_
from tilewright.schedule import Schedule
from tilewright.schedule.space import Choices, Point
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.cpu.sketches.tiled_reduction import _around_copies
from tilewright.testing.networks.builder import Net
from tilewright.testing.random_kernels import plain


def default(cores: int) -> Point:
    """A large map over 8, 3, 40 and 2000 elements, whose loops do not continue one another."""
    x = Buffer("x", (41, 4, 9, 2001), float32)
    y = Buffer("y", (8, 3, 40, 2000), float32)
    c = map_("t", y, lambda i, j, k, n: x[k + 1, j + 1, i + 1, n + 1])
    at = replace(machine("x86-64-v3"), cores=cores)
    return sketches(plain([c]), [c], Context(at))[0].default()


@pytest.mark.parametrize(("cores", "loops"), [(2, 1), (6, 2), (64, 3), (1000, 3)])
def test_as_few_loops_as_needed(cores: int, loops: int) -> None:
    shares = cost_model(machine("x86-64-v3")).shares
    assert (
        shares * 2 <= 8 < shares * 6 <= 24 < shares * 64
    )  # what the cases are made for
    assert default(cores).values["t.shared"] == loops


def test_one_core_divides_no_iteration() -> None:
    point = default(1)
    assert "t.shared" not in point.values
    assert "s.fuse" not in str(point.schedule.trace)


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("columns", "cores", "loops"),
    [
        (24, 2, 1),
        (23, 2, 2),  # 12 and 11
        (23, 1, 1),
        (99, 2, 1),  # 50 and 49: less than the tolerance
        (33, 8, 2),  # 5 at most, 4.125 on average
        (40, 8, 1),
    ],
)
def test_more_loops_where_cores_divide_them_more_evenly(
    columns: int, cores: int, loops: int, mcpu: str
) -> None:
    """A product whose outer loops are tiles of columns, then of rows."""
    m = replace(machine(mcpu), cores=cores)
    x, y = (Buffer(name, (columns, 14, 2000), float32) for name in "xy")
    c = map_("t", y, lambda i, j, k: x[i, 13 - j, k])
    s = Schedule(plain([c]))
    nest = [f"t.{name}" for name in "ijk"[:2]]
    Context(m).share(s, nest, Choices(), "t")
    (shared,) = (f for f in loops_of(s.kernel.body) if f.kind == "parallel")
    assert shared.trips == columns * (14 if loops == 2 else 1)


def copied(cores: int, mcpu: str) -> list[str]:
    """The loops that threads share of the padded copy of an image, channels first."""
    n = Net("one")
    y = n.input(1, 3, 224, 224).conv(32, 3, 2)
    (task,) = tasks(n.case([y]).graph, threads=cores, mcpu=mcpu, records=False)
    point = task.schedule(task.space.default())
    (name,) = (k for k in point.values if re.fullmatch(r"pad\.\w+", k))
    assert point.values[name]
    loops = loops_of(point.schedule.kernel.body)
    shared = [f.var.name for f in loops if f.kind == "parallel"]
    return [name for name in shared if ".pad." in name]


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("cores", "fused"), [(1, 1), (2, 1), (6, 1), (64, 2)])
def test_a_copy_is_shared_along_the_rows_of_its_readers(
    mcpu: str, cores: int, fused: int
) -> None:
    (loop,) = copied(cores, mcpu)
    parts = loop.split("_")
    # Rows first, although the channels lie outside of them in memory.
    assert [p.rpartition(".")[2] for p in parts] == ["r1", "r0"][:fused]


@pytest.mark.parametrize("cores", [2, 3])
def test_only_the_loops_around_copies_are_shared(cores: int) -> None:
    """Of rows and groups, whose images are padded apart: the tiles go by in the order of the
    result, so that only the groups are around the copies."""
    n = Net("one")
    x = n.input(1, 600, 8, 8)
    y = n("ConvTranspose", x, n.weight(600, 24, 3, 1), group=2, strides=[2, 1])
    with events.record() as log:
        found = tasks(n.case([y]).graph, threads=cores, mcpu="x86-64-v3", records=False)
        kernels = [str(t.schedule(t.space.default()).schedule.kernel) for t in found]
    assert not [e for e in log if e.kind == "sketch-refused"]
    around = [k.split(".pad:")[0] for k in kernels if ".pad:" in k]
    shared = [re.findall(r"for \S+\.(\w+) in \d+ parallel", k) for k in around]
    # Of the taps of odd rows; those of even ones read a copy of the whole.
    assert ["jo"] in shared


@pytest.mark.parametrize(
    ("outer", "apart", "around"),
    [
        (["g", "r", "k"], ["k", "g"], ["g"]),
        (["g", "k", "r"], ["g", "k"], ["g", "k"]),
        (["r", "g", "k"], ["g"], ["r", "g"]),
        (["r", "k", "g"], ["g", "k"], ["r", "k", "g"]),
        (["r"], [], []),
    ],
)
def test_what_is_around_copies(outer, apart, around) -> None:
    assert _around_copies(outer, apart) == around
