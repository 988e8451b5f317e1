"""What a profile says to try: each rule on a schedule that it is about, and on one that is fine."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import te as t
from tilewright.driver.advice import RULES, KernelRun, advice
from tilewright.lang.function import Function
from tilewright.runtime.instruction_mix import Mix, inner_loop
from tilewright.targets.registry import target

N = 64
A, B = t.placeholder((N, N), name="A"), t.placeholder((N, N), name="B")
k = t.reduce_axis((0, N), name="k")
C = t.compute((N, N), lambda y, x: t.sum(A[y, k] * B[k, x], axis=k), name="C")
TURNED = t.compute((N, N), lambda y, x: A[x, y] + 1.0, name="T")
PADDED = t.compute(
    (N + 2, N),
    lambda y, x: t.if_then_else(t.all(y > 0, y <= N), A[y - 1, x], 0.0),
    name="P",
)
BEST_EFFORT = KernelRun(threads=1, seconds=1.0)


def _plain(out: Any) -> t.Schedule:
    return t.create_schedule(out.op)


def _vectors(out: Any, axis: int = 1) -> t.Schedule:
    """Vectors along one dimension, whichever it is."""
    s = t.create_schedule(out.op)
    _, lane = s[out].split(s[out].op.axis[axis], 16)
    rest = [f for f in s[out].leaves if f is not lane]
    s[out].reorder(*rest, lane)
    s[out].vectorize(lane)
    return s


def _rows_of_sums() -> t.Schedule:
    """A row of results inside the sum."""
    s = t.create_schedule(C.op)
    y, x = s[C].op.axis
    vectors, lane = s[C].split(x, 16)
    s[C].reorder(y, k, vectors, lane)
    s[C].vectorize(lane)
    return s


def _in_registers(rows: int) -> t.Schedule:
    s = t.create_schedule(C.op)
    tile = s.cache_write(C, "register")
    y, x = s[C].op.axis
    yo, yi = s[C].split(y, rows)
    xo, xi = s[C].split(x, 16)
    s[C].reorder(yo, xo, yi, xi)
    s[tile].compute_at(s[C], xo)
    cy, cx = s[tile].op.axis
    s[tile].reorder(k, cy, cx)
    for stage, unrolled, lane in ((s[tile], cy, cx), (s[C], yi, xi)):
        stage.unroll(unrolled)
        stage.vectorize(lane)
    return s


def _guarded() -> t.Schedule:
    s = t.create_schedule(TURNED.op)
    s[TURNED].split(s[TURNED].op.axis[1], 24)
    return s


def _said(s: t.Schedule, out: Any, run: KernelRun = BEST_EFFORT) -> tuple[str, ...]:
    params = [p for p in (A, B) if p in s.inputs]
    return advice(t.lower(s, [*params, out]), run)


MIX = Mix(40, 1, 0, 3, 1, 0, 64)
Case = tuple[Callable[[], t.Schedule], Any, str, KernelRun]
CASES: dict[str, Case] = {
    "_scalar": (lambda: _plain(C), C, "split C.x and vectorize the inner loop", BEST_EFFORT),
    "_scalar, nothing contiguous": (
        lambda: _plain(TURNED), TURNED, "copy operands that are not contiguous", BEST_EFFORT,
    ),
    "_gathers": (
        lambda: _vectors(TURNED), TURNED, "read A through a copy .* are 64 elements", BEST_EFFORT,
    ),
    "_scatters": (
        lambda: _vectors(TURNED, 0), TURNED, "loop of T's last dimension instead of T.y.i",
        BEST_EFFORT,
    ),
    "_stored_sums, of a row": (
        _rows_of_sums, C, r"unroll C.x.o, or cache_write C .* C.k loads and stores", BEST_EFFORT,
    ),
    "_stored_sums, of a vector": (
        lambda: _vectors(C), C, r'cache_write\(C, "register"\), computed outside C.k',
        KernelRun(1, 1.0, MIX),
    ),
    "_guards": (
        lambda: _vectors(PADDED), PADDED, r"partition_loop\('P.y'\), .* P tests", BEST_EFFORT,
    ),
    "_guards, of a tail": (
        _guarded, TURNED, r"partition_loop\('T.x.o'\), or choose a factor", BEST_EFFORT,
    ),
    "_waiting": (lambda: _in_registers(1), C, "each step waits .* with one sum", BEST_EFFORT),
    "_waiting, for few": (lambda: _in_registers(2), C, "with 2 sums at a time", BEST_EFFORT),
    "_spills": (
        lambda: _in_registers(4), C, "smaller unrolled tiles: .* 9 accesses",
        KernelRun(1, 1.0, Mix(40, 8, 0, 3, 0, 9, 64)),
    ),
    "_alone": (
        lambda: _in_registers(4), C, r"parallel\('C.y.o'\): only one of 2", KernelRun(2, 1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_of_a_slow_schedule(case: str) -> None:
    make, out, expected, run = CASES[case]
    found = _said(make(), out, run)
    assert any(re.search(expected, line) for line in found), found


def test_every_rule_has_a_case() -> None:
    assert {name.split(",")[0] for name in CASES} == {rule.__name__ for rule in RULES}


@pytest.mark.parametrize("rows", [4, 8])
def test_nothing_is_said_of_a_good_schedule(rows: int) -> None:
    """Enough sums in registers, all threads at work, or too little work to share."""
    mix = Mix(40, 8, 0, 9, 0, 0, 64)
    s = _in_registers(rows)
    assert not _said(s, C, KernelRun(1, 1.0, mix))
    assert not _said(s, C, KernelRun(2, 5e-6, mix))
    s[C].parallel(s[C].leaves[0])
    assert not _said(s, C, KernelRun(2, 1.0, mix))


def test_what_hardly_runs_is_not_worth_a_word() -> None:
    """One row is computed element by element, and read by 64 rows of vectors."""
    row = t.compute((N,), lambda x: A[0, x] + 1.0, name="row")
    rows = t.compute((N, N), lambda y, x: row[x] * B[y, x], name="rows")
    s = _vectors(rows)
    assert not _said(s, rows)
    assert _said(_plain(row), row)


def test_a_sum_that_has_no_loop_of_its_own_results_is_split_up() -> None:
    total = t.compute((), lambda: t.sum(A[0, k], axis=k), name="S")
    [line] = [
        x
        for x in _said(_plain(total), total, KernelRun(2, 1.0))
        if "threads computes" in x
    ]
    assert line.startswith("rfactor S and run its parts in parallel")


def test_a_profile_carries_the_advice() -> None:
    f = t.build(_plain(C), [A, B, C], threads=1)
    assert isinstance(f, Function)
    profile = f.profile(*(np.ones((N, N), np.float32) for _ in range(3)), repeat=1)
    assert profile.advice and "scalars" in str(profile)
    assert str(profile).endswith(f"try: {profile.advice[-1]}")


def test_the_last_advice_for_a_schedule_by_hand_is_the_automatic_one() -> None:
    arrays = [np.ones((N, N), np.float32) for _ in range(3)]
    plain = t.build(_plain(C), [A, B, C], threads=1, records=False)
    lines = _plain(C)
    lines[C].reorder(*reversed(C.op.axis))
    by_hand = t.build(lines, [A, B, C], threads=1, records=False)
    for f in (plain, by_hand):
        *some, last = f.profile(*arrays, repeat=1).advice or ()
        assert some and "auto=True" in last
    found = t.build(_plain(C), [A, B, C], threads=1, auto=True, records=False)
    assert "auto=True" not in str(found.profile(*arrays, repeat=1))


def _mix(s: t.Schedule, out: Any, machine: str = "x86-64-v4") -> Mix:
    params = [p for p in (A, B) if p in s.inputs]
    code = target("cpu", machine).emit(t.lower(s, [*params, out]), "k").code
    found = inner_loop(code)
    assert found is not None
    return found


def _relu_of_rows() -> t.Schedule:
    return _vectors(COMPARED)


COMPARED = t.compute(
    (N, N),
    lambda y, x: t.if_then_else(A[y, x] > B[y, x], A[y, x] * 2.0, B[y, x]),
    name="R",
)


@pytest.mark.parametrize(
    ("make", "out", "cause"),
    [
        (lambda: _plain(C), C, "scalars"),
        (lambda: _vectors(TURNED), TURNED, "gathers"),
        (_relu_of_rows, COMPARED, "tests"),
        (lambda: _in_registers(4), C, None),
    ],
)
@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4"])
def test_causes_are_read_from_the_code(
    make: Callable[[], t.Schedule], out: Any, cause: str | None, machine: str
) -> None:
    mix = _mix(make(), out, machine)
    found = {name for name in ("gathers", "scalars", "tests") if getattr(mix, name)}
    assert found == ({cause} if cause else set()), mix
