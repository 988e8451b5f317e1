"""transform_layout, storage_align: elements lie elsewhere, results stay."""

from __future__ import annotations

import pytest

from tests.schedule.test_matmul import matmul
from tests.schedule.test_reverse_compute_at import transposed
from tilewright.base.errors import ScheduleError
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.schedule.tree import find_buffer


def product() -> Kernel:
    return matmul(10, 48, 7)


def shape(s: Schedule, name: str) -> tuple[int, ...]:
    return find_buffer(s.kernel, name, "test")[0].shape


@pytest.mark.parametrize(
    "text, new",
    [
        ("lambda i, j: (j, i)", (48, 10)),
        ("lambda i, j: (j // 16, i, j % 16)", (3, 10, 16)),
        ("lambda i, j: (i // 4, j, i % 4)", (3, 48, 4)),
        ("lambda i, j: i * 48 + j", (480,)),
        ("lambda i, j: (i, 47 - j)", (10, 48)),
        ("lambda i, j: (i + j * 2, j)", (104, 48)),
    ],
)
def test_layouts(text, new, check_same):
    s = Schedule(product())
    s.transform_layout("C", text)
    assert shape(s, "C") == new
    check_same(product(), s, exact=True)


def test_a_packed_copy_of_a_parameter(check_same, golden):
    s = Schedule(product())
    s.split("mm.j", 16)
    s.cache_read("B", name="packed", scope="global")
    s.transform_layout("packed", lambda k, j: (j // 16, k, j % 16))
    assert s.trace.steps[-1].args == ("packed", "lambda k, j: (j // 16, k, j % 16)")
    s.split("packed.r1", 16)
    s.reorder("packed.r1.o", "packed.r0", "packed.r1.i")
    check_same(product(), s, exact=True)
    golden("schedule_transform_layout", repr(s.kernel))


@pytest.mark.parametrize(
    "dim, factor, offset, new", [(0, 32, 1, 65), (0, 16, 0, 48), (0, 7, 3, 52)]
)
def test_strides(dim, factor, offset, new, check_same):
    s = Schedule(product())
    s.storage_align("C", dim, factor, offset)
    assert shape(s, "C") == (10, new)
    check_same(product(), s, exact=True)


REFUSED = [
    (
        "transform_layout",
        ("C", "lambda i, j: (i // 2, j)"),
        r"C\[0, 0\] and C\[1, 0\] would be",
    ),
    (
        "transform_layout",
        ("C", "lambda i, j: (i + j,)"),
        "would be at one index.*each part",
    ),
    ("transform_layout", ("C", "lambda i, j: (i - j, j)"), "is in -47..9"),
    (
        "transform_layout",
        ("C", "lambda i: (i,)"),
        "is not a map of 2 indices: .*such as",
    ),
    ("transform_layout", ("C", "lambda i, j: (i, j, k)"), "unknown name 'k'"),
    ("transform_layout", ("C", "__import__('os')"), "is not a map of 2 indices"),
    ("transform_layout", ("C", "lambda i, j: (i < j, j)"), "does not give indices"),
    (
        "transform_layout",
        ("B", "lambda i, j: (j, i)"),
        "the buffer is a parameter.*cache_read",
    ),
    ("storage_align", ("C", 1, 4, 0), "with a stride are 0..0"),
    ("storage_align", ("C", 0, 0, 0), "positive factor"),
    ("storage_align", ("A", 0, 4, 0), "the buffer is a parameter"),
]


@pytest.mark.parametrize(
    "name, args, message", REFUSED, ids=[f"{a}" for _, a, _ in REFUSED]
)
def test_refusals(name, args, message):
    s = Schedule(product())
    with pytest.raises(ScheduleError, match=message) as caught:
        getattr(s, name)(*args)
    assert caught.value.hint and caught.value.where


def test_a_stride_that_cannot_be():
    s = Schedule(product())
    s.transform_layout("C", "lambda i, j: (i, j // 4, j % 4)")
    with pytest.raises(
        ScheduleError, match="no multiple of 4, the next dimension's stride, is 1"
    ):
        s.storage_align("C", 0, 32, 1)
    s.storage_align("C", 1, 3, 2)
    s.storage_align("C", 0, 32, 1)
    assert shape(s, "C") == (10, 13, 5)


def test_room_does_not_keep_a_map_from_being_inlined(check_same):
    s = Schedule(transposed())
    s.storage_align("T", 0, 8, 1)
    s.compute_inline("T")
    check_same(transposed(), s, exact=True)


def test_a_copy_has_the_room_that_it_needs(check_same):
    kernel = product()
    s = Schedule(kernel)
    s.cache_read("B", name="copy")
    s.storage_align("copy", 0, 32, 1)
    s.cache_write("copy", name="again")
    assert shape(s, "again") == (7, 48)
    s.compute_inline("again")
    check_same(kernel, s, exact=True)
