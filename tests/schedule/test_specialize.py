"""specialize: a copy for when a condition holds; conditions as text."""

from __future__ import annotations

import pytest

from tests.schedule.awkward import ADD, X, Y, kernel, over
from tests.schedule.test_matmul import matmul
from tests.schedule.test_partition_loop import guards, window
from tilewright.base import dtypes
from tilewright.base.errors import InputError, ScheduleError
from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer, Lt, Select, Var, const
from tilewright.loops.lower import lower
from tilewright.loops.nodes import If, Kernel, Store, Update
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule
from tilewright.schedule.conditions import parse_condition

i32 = dtypes.int32


def test_the_inside_needs_no_padding(check_same, golden):
    s = Schedule(window(10))
    assert s.specialize("0 < w.i < 9") == ("w.k.s",)
    check_same(window(10), s, exact=True)
    assert guards(s, "w.k.s") == 0 and guards(s, "w.k") == 1
    s.unroll("w.k.s")
    check_same(window(10), s, exact=True)
    golden("schedule_specialize", repr(s.kernel))


def mode() -> Kernel:
    """Y = X + 1 where the flag is 1, else X - 1."""
    x, flag, y = (
        Buffer("X", (6,), i32),
        Buffer("flag", (1,), i32),
        Buffer("Y", (6,), i32),
    )
    one = const(1, i32)
    f = lambda i: Select(Lt(flag[0], one), x[i] - 1, x[i] + 1)  # noqa: E731
    return lower("mode", [map_("y", y, f)], [x, flag, y], [y])


def test_a_parameter_decides_for_the_whole_program(check_same, results):
    s = Schedule(mode())
    s.specialize("flag[0] >= 1")
    check_same(mode(), s, exact=True)
    assert isinstance(s.kernel.body, If)
    s.vectorize("y.i.s")
    for seed in range(4):
        (want,), (got,) = results(mode(), seed), results(s.kernel, seed)
        assert (want == got).all()


def test_the_loop_whose_body_is_copied(check_same):
    kernel = matmul(8, 6, 4, epilogue=False)
    s = Schedule(kernel)
    made = s.specialize("mm.i % 2 == 0", "mm.j")
    assert made == ("mm.k.s",)
    check_same(kernel, s, exact=True)
    tests = [
        p.loops[-1].var.name for p in walk(s.kernel.body) if isinstance(p.stmt, If)
    ]
    assert tests == ["mm.j"]


REFUSED = [
    (("mm.i < 8",), "is always True.*a condition that may change"),
    (("mm.x < 8",), "there is no loop or buffer 'mm.x' around"),
    (("mm.i < 3", "nope"), "there is no loop 'nope'"),
    (("mm.j < 3", "mm.i"), "mm.j of the condition is not around its body"),
    (("mm.i + 1",), "is not a condition, but a value"),
    (("A[0] < 1",), "A has 2 dimensions, indexed with 1"),
    (("A < 1",), r"A: float32\[8, 4\] is not a number"),
    (("A[9, 0] == B[0, 0]", "mm.i"), r"A\[9, 0\] is not known to exist"),
    (("mm.i <",), "is not a condition: .*such as"),
]


@pytest.mark.parametrize("args, message", REFUSED, ids=[a[0] for a, _ in REFUSED])
def test_refusals(args, message):
    s = Schedule(matmul(8, 6, 4, epilogue=False))
    with pytest.raises(ScheduleError, match=message) as caught:
        s.specialize(*args)
    assert caught.value.message.startswith("specialize:") and caught.value.hint


@pytest.mark.parametrize(
    "text, shown",
    [
        ("i == 3", "i == 3"),
        ("2 <= i < 5 and not j != 1", "(2 <= i) & (i < 5) & ~(j != 1)"),
        ("i > j or a.b[j, i // 2] >= -1", "(j < i) | (-1_i32 <= a.b[j, i // 2])"),
        ("(i * 2 + j - 1) % 4 < 3", "(i * 2 + j - 1) % 4 < 3"),
    ],
)
def test_conditions(text, shown):
    names = {"i": Var("i", dtypes.int64), "j": Var("j", dtypes.int64)}
    found = parse_condition(text, {**names, "a.b": Buffer("a.b", (9, 9), i32)})
    assert repr(found) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "i",
        "f(i) < 1",
        "i < 'x'",
        "i is 3",
        "[i] < 3",
        "i[0] < 1",
        "i < 1.5",
        "i ** 2 < 3",
    ]
    + [
        "lambda: i < 3",
        "(i := 3) < 4",
        "().x < 1",
        "i and 3",
        "-'a' < i",
        "True",
        "not i",
        "-i",
    ],
)
def test_what_is_no_condition(text):
    with pytest.raises(InputError, match="is not a condition"):
        parse_condition(text, {"i": Var("i", dtypes.int64)})


def test_a_condition_reads_nothing_that_other_iterations_write(check_same):
    """Steps of a sum may change places; what reads the sum in between may not."""
    sums = kernel(
        over("i", 8, lambda i: Update((Y,), ((const(0),),), (X[i],), ADD), "vector")
    )
    with pytest.raises(ScheduleError, match="specialize: this vector loop"):
        Schedule(sums).specialize("Y[i] < 1", "i")
    own = kernel(over("i", 8, lambda i: Store(Y, (i,), Y[i] + X[i]), "parallel"))
    s = Schedule(own)
    s.specialize("Y[i] < 1", "i")
    check_same(own, s, exact=True)
