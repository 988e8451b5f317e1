"""compute_inline and reverse_compute_inline: what may be a map, and what it must fill."""

from __future__ import annotations

import pytest

from tests.schedule import awkward
from tests.schedule.awkward import ADD, B, T, X, Y, buffer, kernel, number, over
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Eq, FloorDiv, Lt, Select, const
from tilewright.loops.nodes import Alloc, If, Store, Update, block
from tilewright.schedule import Schedule


def copied(t, made):
    """Y = t, after what computes t."""
    return kernel(
        Alloc(t, block(made, over("j", t.shape[0], lambda j: Store(Y, (j,), t[j]))))
    )


ONE = buffer("T", 1)
MADE = over("i", 8, lambda i: Store(T, (i,), X[i]))


def kept_for_the_next_round():
    def round_(r):
        used = over("j", 8, lambda j: Store(Y, (j,), T[j] + 1))
        return block(If(Lt(const(0), r), used, None), MADE)

    return kernel(Alloc(T, over("r", 2, round_)))


FEW = buffer("X", 4)

REFUSED = {
    "steps": (
        copied(T, over("i", 8, lambda i: Update((T,), ((i,),), (X[i],), ADD))),
        "it is not computed by a single Store",
    ),
    "no reader": (
        kernel(block(Alloc(T, MADE), Store(Y, (const(0),), X[0]))),
        "is not a plain nest with one loop per dimension",
    ),
    "last of many": (
        copied(ONE, over("i", 8, lambda i: Store(ONE, (FloorDiv(i, const(8)),), X[i]))),
        "is not a plain nest with one loop per dimension",
    ),
    "again and again": (
        copied(T, over("r", 2, lambda r: over("i", 8, lambda i: Store(T, (i,), X[i])))),
        "is not a plain nest with one loop per dimension",
    ),
    "part": (
        copied(T, over("i", 4, lambda i: Store(T, (i,), FEW[i]))),
        r"T\[j\] may be an element that is never stored, in dimension 0",
    ),
    "twice": (awkward.filled_then_written(), "it is not computed by a single Store"),
    "read in the next round": (
        awkward.rows_in_a_loop(),
        "it is not computed by a single Store",
    ),
    "read a round later": (
        kept_for_the_next_round(),
        "it is read outside the sequence",
    ),
    "source changed": (
        awkward.map_of_the_result(),
        "Y.*, which it is computed from, changes",
    ),
    "result changed": (
        awkward.input_changed(),
        "Y.*, which it is computed from, changes",
    ),
}


@pytest.mark.parametrize("before, message", REFUSED.values(), ids=REFUSED)
def test_what_is_not_inlined(before, message):
    with pytest.raises(ScheduleError, match=f"compute_inline: .*{message}") as caught:
        Schedule(before).compute_inline("T")
    assert caught.value.hint


@pytest.mark.parametrize(
    "make", [awkward.map_in_place, awkward.two_readers, awkward.padded]
)
def test_maps_are_inlined(make, check_same):
    s = Schedule(make())
    s.compute_inline("T")
    check_same(make(), s, exact=True)


def kept_from_the_first_round():
    def round_(r):
        used = over("j", 8, lambda j: Store(Y, (j,), T[j] + number(r)))
        return block(If(Eq(r, const(0)), MADE, None), used)

    return kernel(Alloc(T, over("r", 2, round_)))


def mapped(made, value=lambda j: T[j] * 3, at=lambda j: j, between=()):
    used = over("j", 8, lambda j: Store(Y, (at(j),), value(j)))
    return kernel(Alloc(T, block(made, *between, used)))


GUARDED = over(
    "i", 8, lambda i: If(Lt(X[i], const(0, X.dtype)), Store(T, (i,), X[i]), None)
)


def diagonal():
    """Each row of Y is an element of T's diagonal."""
    t = buffer("T", 6, 6)
    made = over(
        "i", 6, lambda i: over("k", 6, lambda k: Store(t, (i, k), number(i + k)))
    )
    used = over("j", 6, lambda j: over("l", 6, lambda m: Store(B, (j, m), t[j, j])))
    return kernel(Alloc(t, block(made, used)))


REFUSED_IN_REVERSE = {
    "diagonal": (diagonal(), "is not each loop of the reader once"),
    "kept": (kept_from_the_first_round(), "is not known to store all of it"),
    "guarded": (mapped(GUARDED), "is not known to store all of it"),
    "part": (
        mapped(over("i", 4, lambda i: Store(T, (i,), X[i]))),
        "is not known to store all",
    ),
    "one of two": (
        mapped(over("i", 4, lambda i: Store(T, (i * 2,), X[i]))),
        "is not known to store all of it",
    ),
    "twice": (awkward.filled_then_written(), "it is not written by a single Store"),
    "steps": (awkward.sums_then_map(), "it is not written by a single Store"),
    "one step": (
        mapped(over("i", 8, lambda i: Update((T,), ((i,),), (X[i],), ADD))),
        "it is not written by a single Store",
    ),
    "two readers": (awkward.two_readers(), "it is not read by a single Store"),
    "mirrored": (
        mapped(MADE, lambda j: T[const(7) - j]),
        "is not each loop of the reader once",
    ),
    "all into one": (
        mapped(MADE, at=lambda j: const(0)),
        "does not map all of it one to one",
    ),
    "in place": (
        mapped(MADE, lambda j: T[j] + Y[j]),
        "its reader also reads Y, which it writes",
    ),
    "result read first": (
        mapped(over("i", 8, lambda i: Store(T, (i,), Y[i]))),
        "'Y'. is used in another way before its reader",
    ),
    "result written in between": (
        mapped(MADE, between=(over("l", 4, lambda m: Store(Y, (m,), X[m])),)),
        "'Y'. is used in another way before its reader",
    ),
}


@pytest.mark.parametrize(
    "before, message", REFUSED_IN_REVERSE.values(), ids=REFUSED_IN_REVERSE
)
def test_what_is_not_applied_at_the_store(before, message):
    with pytest.raises(
        ScheduleError, match=f"reverse_compute_inline: .*{message}"
    ) as caught:
        Schedule(before).reverse_compute_inline("T")
    assert caught.value.hint


def test_a_map_into_part_of_a_result_is_applied_at_the_store(check_same):
    z = buffer("Y", 11)
    used = over("j", 8, lambda j: Store(z, (j + 2,), T[j] * 3))
    before = kernel(Alloc(T, block(MADE, used)))
    s = Schedule(before)
    s.reverse_compute_inline("T")
    check_same(before, s, exact=True)


def test_a_row_of_an_earlier_round_is_no_input_of_this_one():
    """Round r stores row r % 2 and reads the other one."""
    t = buffer("T", 2, 8)

    def round_(r):
        made = over("i", 8, lambda i: Store(t, (r % 2, i), X[i] + r.astype(X.dtype)))
        late = over(
            "j",
            8,
            lambda j: Store(
                Y, (j,), Select(r < 1, const(0, Y.dtype), t[(r + 1) % 2, j])
            ),
        )
        return block(made, late)

    s = Schedule(kernel(Alloc(t, over("r", 3, round_))))
    with pytest.raises(ScheduleError, match="reverse_compute_inline: T"):
        s.reverse_compute_inline("T")
