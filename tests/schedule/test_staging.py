"""Which elements staging may write back: written ones, or ones read in by their only owner."""

from __future__ import annotations

import pytest

from tests.schedule import awkward
from tests.schedule.awkward import A, B, T, X, Y, buffer, kernel, over
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import And, Eq, Le, Lt, Mod, Select, const
from tilewright.loops.nodes import Alloc, If, Kernel, Store, Update, block
from tilewright.schedule import Schedule
from tilewright.schedule.tree import find_buffer


@pytest.mark.parametrize(
    "make, loop, shape, read_in",
    [
        (awkward.first_half, None, (4,), False),
        (awkward.shifted, None, (4,), False),
        (awkward.inner_part, None, (6, 5), False),
        (awkward.inner_part, "i", (1, 5), False),
        (awkward.strided, None, (7,), True),
        (awkward.interleaved, "i", (5,), True),
        (awkward.guarded, None, (8,), True),
        (awkward.guarded, "i", (1,), True),
        (awkward.chosen, None, (8,), True),
        (awkward.tail, "o", (4,), True),
        (awkward.in_place, None, (5,), True),
        (awkward.running, None, (8,), True),
        (awkward.twice, None, (7,), True),
        (awkward.two_ends, None, (8,), True),
        (awkward.again_and_again, None, (4,), False),
        (awkward.row_sums, None, (6,), False),
        (awkward.added, None, (5,), True),
        (awkward.scattered, None, (8,), True),
    ],
)
def test_a_copy_holds_what_is_written(make, loop, shape, read_in, check_same):
    before = make()
    s = Schedule(before)
    s.cache_write("Y", loop, "stack")
    assert find_buffer(s.kernel, "Y.acc", "test")[0].shape == shape
    assert any(name.startswith("Y.acc.r") for name in s.loops) == (
        read_in and shape != (1,)
    )
    check_same(before, s, exact=True)


def test_a_neighbor_is_not_written_back():
    """Each iteration writes elements i and i + 4; the box around them is other iterations' too."""
    s = Schedule(awkward.interleaved())
    s.parallel("i")
    with pytest.raises(
        ScheduleError,
        match=r"cache_write: .*parallel loop (has|may have) a loop-carried dependence",
    ) as caught:
        s.cache_write("Y", "i")
    assert caught.value.hint == "stage it before the loop gets its kind"
    s = Schedule(awkward.interleaved())
    s.cache_write("Y", "i")
    with pytest.raises(ScheduleError, match=r"parallel: .*loop-carried dependence"):
        s.parallel("i")


def test_the_other_arm_of_a_branch_stores_nothing(check_same):
    """What an iteration reads was stored by another one, whose arm of the branch it was."""
    s = Schedule(awkward.one_arm_each())
    s.cache_write("T", "i", "stack", name="own")
    find_buffer(s.kernel, "T", "test")
    check_same(awkward.one_arm_each(), s, exact=True)


def test_both_arms_of_a_branch_may_be_staged_where_each_stores_first(check_same):
    def step(i):
        return If(
            Eq(Mod(i, const(2)), const(0)),
            block(Store(T, (const(0),), X[i]), Store(Y, (i,), T[0] * 3)),
            None,
        )

    before = kernel(Alloc(T, over("i", 8, step)))
    s = Schedule(before)
    s.cache_write("T", "i", "stack", name="own")
    with pytest.raises(ScheduleError, match="no buffer 'T'"):
        find_buffer(s.kernel, "T", "test")
    check_same(before, s, exact=True)


def shared_row() -> Kernel:
    """Each iteration writes and reads elements i and i + 4 of a buffer of all of them."""

    def step(i):
        made = [Store(T, (i + n * 4,), X[i + n * 4]) for n in (0, 1)]
        return block(
            *made, over("j", 2, lambda j: Store(Y, (i + j * 4,), T[i + j * 4]))
        )

    return kernel(Alloc(T, over("i", 4, step)))


def test_a_neighbor_is_not_read_while_it_is_written(check_same):
    """Other iterations write the box around an iteration's reads at the same time."""
    s = Schedule(shared_row())
    s.parallel("i")
    with pytest.raises(
        ScheduleError,
        match=r"cache_read: .*parallel loop (has|may have) a loop-carried dependence",
    ) as caught:
        s.cache_read("T")
    assert caught.value.hint == "stage it before the loop gets its kind"
    s = Schedule(shared_row())
    s.cache_read("T")
    with pytest.raises(ScheduleError, match=r"parallel: .*loop-carried dependence"):
        s.parallel("i")
    check_same(shared_row(), s, exact=True)


def test_a_buffer_is_staged_in_its_scope():
    """T exists in the body of i only."""
    for verb in ("cache_write", "cache_read"):
        s = Schedule(awkward.rows_kept())
        s.split("i", 2)
        with pytest.raises(
            ScheduleError, match=f"{verb}: it does not exist around loop i.o"
        ):
            getattr(s, verb)("T", "i.o")


def guarded_window(*guards) -> Kernel:
    """Sums of a window of three, whose reads outside of a guard have the guard's value."""

    def step(j, k):
        at = j + k - 1
        reads = [
            Select(
                And(Le(const(low), at), Lt(at, const(high))),
                X[at],
                const(other, X.dtype),
            )
            for low, high, other in guards
        ]
        return Update((Y,), ((j,),), (sum(reads[1:], reads[0]),), awkward.ADD)

    return kernel(over("j", 8, lambda j: over("k", 3, lambda k: step(j, k))))


@pytest.mark.parametrize(
    "guards, message",
    [
        ([(1, 8, 0)], "is not the test that dimension 0 is inside"),
        ([(0, 7, 0)], "is not the test that dimension 0 is inside"),
        ([(0, 8, 0), (0, 8, 1)], "the guarded reads have different values outside"),
    ],
)
def test_only_one_padding_is_staged(guards, message):
    with pytest.raises(ScheduleError, match=message):
        Schedule(guarded_window(*guards)).cache_read("X", pad=True)


def test_a_padding_is_staged(check_same):
    before = guarded_window((0, 8, 3), (0, 8, 3))
    s = Schedule(before)
    s.cache_read("X", pad=True)
    assert find_buffer(s.kernel, "X.pad", "test")[0].shape == (10,)
    check_same(before, s, exact=True)


@pytest.mark.parametrize("front", [True, False])
def test_a_padding_on_one_side_is_staged(check_same, front):
    """Nothing is tested at the end that the windows stay inside of."""

    def step(j, k):
        at = j + k + (-1 if front else 1)
        inside = Le(const(0), at) if front else Lt(at, const(8))
        read = Select(inside, X[at], const(3, X.dtype))
        return Update((Y,), ((j,),), (read,), awkward.ADD)

    before = kernel(over("j", 7, lambda j: over("k", 2, lambda k: step(j, k))))
    s = Schedule(before)
    s.cache_read("X", pad=True)
    assert find_buffer(s.kernel, "X.pad", "test")[0].shape == (8,)
    check_same(before, s, exact=True)


def packed_rows() -> Kernel:
    """Each row is computed just before it is read."""
    t = buffer("T", 6, 5)

    def row(i):
        made = over("j", 5, lambda j: Store(t, (i, j), A[i, j] * 2))
        return block(made, over("l", 5, lambda m: Store(B, (i + 1, m + 1), t[i, m])))

    return kernel(Alloc(t, over("i", 6, row)))


def test_an_inner_loop_may_pack_what_is_final_there(check_same):
    s = Schedule(packed_rows())
    with pytest.raises(ScheduleError, match="pack: T is not final before it") as caught:
        s.pack("T", "i", "l")
    assert caught.value.hint == "pack an inner loop"
    check_same(packed_rows(), s, exact=True)


@pytest.mark.parametrize(
    "loops, message",
    [((), "needs the loops that index"), (("i", "p"), "it is not around loop")],
)
def test_the_loops_of_a_pack_are_one_nest(loops, message):
    one = over("i", 8, lambda i: Store(Y, (i,), X[i]))
    two = over("p", 4, lambda p: Store(Y, (p,), X[p + 1]))
    with pytest.raises(ScheduleError, match=f"pack: .*{message}"):
        Schedule(kernel(block(one, two))).pack("X", *loops)


def test_a_loop_that_never_runs_is_not_packed(check_same):
    """Its read is also placed where the loop variable has no value."""
    one = over("i", 0, lambda i: Store(Y, (i,), X[0]))
    two = over("p", 4, lambda p: Store(Y, (p,), X[0]))
    before = kernel(block(two, one))
    s = Schedule(before)
    with pytest.raises(ScheduleError, match="pack: it has no iterations") as caught:
        s.pack("X", "i")
    assert caught.value.hint == "there is nothing to pack"
    check_same(before, s, exact=True)


def test_what_others_read_is_not_computed_inside_of_one_reader():
    with pytest.raises(ScheduleError, match="store_at: it is also used outside loop j"):
        Schedule(awkward.two_readers()).store_at("T", None, "j")


def test_what_goes_on_from_what_it_was_is_not_computed_again():
    """The sums start from the initial values."""
    step = over("i", 8, lambda i: Update((T,), ((i,),), (X[i],), awkward.ADD))
    used = over("v", 8, lambda v: Store(Y, (v,), T[v]))
    with pytest.raises(
        ScheduleError, match=r"store_at: .* again would find T\[i\] changed"
    ):
        Schedule(kernel(Alloc(T, block(step, used)))).store_at("T", None, "v")
