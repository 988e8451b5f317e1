"""Scatters on all threads by default, where that is worth it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.base import events
from tilewright.base.dtypes import DType, float16, float32, int32
from tilewright.base.errors import ScheduleError
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Cast, Var, const
from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel, Store, Update, block, loop
from tilewright.testing.machines import MACHINES

ROW, COL, AT = Var("i", INDEX), Var("j", INDEX), Var("x", INDEX)


def scatter(
    rows: int, columns: int, places: int, dtype: DType = int32, op: str | None = "add"
) -> Kernel:
    """Of each element of an image one is added to the count of its value."""
    image = Buffer("image", (rows, columns), int32)
    counts = Buffer("counts", (places,), dtype)
    place = (Cast(image[ROW, COL], INDEX),)
    one = const(1, dtype)
    step: Any = Store(counts, place, one)
    if op is not None:
        step = Update((counts,), (place,), (one,), reducer(op, dtype))
    clear = loop(AT, places, Store(counts, (AT,), const(0, dtype)))
    nest = loop(ROW, rows, loop(COL, columns, step))
    return Kernel("k", (image, counts), (counts,), block(clear, nest))


def scheduled(kernel: Kernel, machine: str, exact: bool = False) -> Kernel:
    target = MACHINES[machine].target(exact=exact)
    found: Kernel = target.default_schedule(kernel, (), ()).kernel
    return found


@pytest.mark.parametrize(("machine", "parts"), [("nehalem", 4), ("cascadelake", 2)])
def test_each_thread_has_results_of_its_own(machine: str, parts: int) -> None:
    made = scheduled(scatter(2000, 1000, 256), machine)
    assert f"alloc counts.rf: int32[{parts}, 256]" in str(made)
    assert "parallel" in str(made)


@pytest.mark.parametrize(
    ("kernel", "machine", "exact"),
    [
        (scatter(2000, 1000, 256), "embedded", False),  # one core
        (scatter(20, 10, 4), "nehalem", False),  # little work
        (scatter(2000, 1000, 4_000_000), "nehalem", False),  # large results
        (scatter(2000, 1000, 256, op=None), "nehalem", False),  # the last one counts
        (scatter(2000, 1000, 256, float32), "nehalem", True),  # the order counts
        (scatter(2000, 1000, 256, float16), "nehalem", False),  # and shows
    ],
)
def test_where_it_is_not_worth_it_or_not_right_it_stays(
    kernel: Kernel, machine: str, exact: bool
) -> None:
    assert str(scheduled(kernel, machine, exact)) == str(kernel)


def test_floats_are_added_in_parts_by_default() -> None:
    assert "counts.rf" in str(scheduled(scatter(2000, 1000, 256, float32), "nehalem"))


def test_what_a_primitive_refuses_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise ScheduleError("not here")

    monkeypatch.setattr("tilewright.targets.cpu.sketches.given.share_scatter", refused)
    kernel = scatter(2000, 1000, 256)
    with events.record() as log:
        made = scheduled(kernel, "nehalem")
    assert str(made) == str(kernel)
    kept = [e.fields["loop"] for e in log if e.kind == "kept-serial"]
    assert kept == ["i"]


def test_rows_that_threads_do_not_divide_are_guarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worth = "tilewright.targets.cpu.sketches.given.worth_parts"
    monkeypatch.setattr(worth, lambda *_: True)
    kernel = scatter(7, 5, 3)
    made = scheduled(kernel, "nehalem")
    assert "if" in str(made)
    image = np.random.default_rng(0).integers(0, 3, (7, 5)).astype(np.int32)
    counts = np.full(3, 99, np.int32)
    run(made, dict(zip(made.params, (image, counts), strict=True)))
    np.testing.assert_array_equal(counts, np.bincount(image.ravel(), minlength=3))


def added_rows(rows: int, width: int, kind: str, op: str = "add") -> Kernel:
    """Rows are added to 800 others, elements of a row side by side."""
    place, x = Buffer("place", (rows,), int32), Buffer("x", (rows, width), float32)
    y = Buffer("y", (800, width), float32)
    at = ((Cast(place[ROW], INDEX), COL),)
    step = Update((y,), at, (x[ROW, COL],), reducer(op, float32))
    nest = loop(ROW, rows, loop(COL, width, step, kind))
    return Kernel("k", (place, x, y), (y,), nest)


@pytest.mark.parametrize(
    ("rows", "kind", "parts"),
    [(5000, "serial", True), (5000, "vector", False), (50_000, "vector", True)],
)
def test_elements_in_vectors_take_less_work(rows: int, kind: str, parts: bool) -> None:
    """5000 rows of 128 take less than clearing two results and adding them up."""
    made = str(scheduled(added_rows(rows, 128, kind), "cascadelake"))
    assert ("parallel" in made) == parts
    if parts:
        assert "y.rf.m1.i in 16 vector" in made and "if" not in made


@pytest.mark.parametrize("width", [1, 3, 16, 17, 40])
def test_rows_of_any_length_are_combined_in_vectors(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """No sum is added twice, and an element that only had -0.0 added stays one."""
    worth = "tilewright.targets.cpu.sketches.given.worth_parts"
    monkeypatch.setattr(worth, lambda *_: True)
    kernel = added_rows(50, width, "serial")
    made = scheduled(kernel, "cascadelake")
    assert "parallel" in str(made)
    assert ("y.rf.m1" in str(made) and "vector" in str(made)) == (width > 1)
    rng = np.random.default_rng(0)
    place = rng.integers(0, 800, 50).astype(np.int32)
    x = rng.choice([-0.0, 1.0, 2.0], (50, width)).astype(np.float32)
    want, got = (np.full((800, width), -0.0, np.float32) for _ in range(2))
    run(kernel, dict(zip(kernel.params, (place, x, want), strict=True)))
    run(made, dict(zip(made.params, (place, x, got), strict=True)))
    assert got.tobytes() == want.tobytes()


def test_maxima_which_ask_for_what_is_neutral_are_not_combined_in_vectors() -> None:
    made = str(scheduled(added_rows(50_000, 128, "vector", "max"), "cascadelake"))
    assert "parallel" in made
    assert "if y.rf" in made and "y.rf.m1.i" not in made
