"""Plans of memory in which something is written over too early, one for each rule."""

from __future__ import annotations

import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import VerifyError
from tilewright.expr.nodes import Buffer
from tilewright.plan.verify_memory import StepAccess, verify_memory

A, B, C, D = (Buffer(n, (4,), float32) for n in "abcd")
MAKE_A, A_TO_B, B_TO_C = (
    StepAccess("1", (), (A,)),
    StepAccess("2", (A,), (B,)),
    StepAccess("3", (B,), (C,)),
)
CHAIN = [MAKE_A, A_TO_B, B_TO_C]


def broken(
    code: str, text: str, steps: list[StepAccess], places: dict[Buffer, int]
) -> None:
    with pytest.raises(VerifyError) as error:
        verify_memory(steps, places, 48, [C])
    assert error.value.code == code
    assert text in str(error.value)


def test_a_place_is_free_again_behind_the_last_use() -> None:
    verify_memory(CHAIN, {A: 0, B: 16, C: 0}, 32, [C])
    verify_memory(CHAIN, {A: 0, B: 16}, 32, [C])


def test_what_is_still_read_is_not_written_over() -> None:
    late = StepAccess("4", (A, C), (D,))
    broken("TW-MEMORY-LOST", "4: uses a", [*CHAIN, late], {A: 0, B: 16, C: 0})
    broken("TW-MEMORY-LOST", "4: uses a", [*CHAIN, late], {A: 0, B: 32, C: 12})
    after = StepAccess("4", (), (D,))
    broken(
        "TW-MEMORY-LOST", "the end: uses c", [*CHAIN, after], {A: 0, B: 16, C: 0, D: 8}
    )


def test_nor_what_is_written_in_parts() -> None:
    """The second part begins where the first part has been lost."""
    steps = [
        StepAccess("1", (), (C,)),
        StepAccess("2", (), (A,)),
        StepAccess("3", (), (C,)),
    ]
    broken("TW-MEMORY-LOST", "3: uses c", steps, {C: 0, A: 12})
    verify_memory(steps, {C: 0, A: 16}, 32, [C])


def test_a_step_writes_over_what_it_reads_only_where_its_kernel_is_made_for_it() -> (
    None
):
    text = "2: writes b: float32[4] over a: float32[4], which it uses"
    broken("TW-MEMORY-SHARED", text, CHAIN, {A: 0, B: 0, C: 16})
    over = [MAKE_A, StepAccess("2", (A,), (B,), over=(A,)), B_TO_C]
    verify_memory(over, {A: 0, B: 0, C: 16}, 32, [C])
    broken("TW-MEMORY-SHARED", text, over, {A: 0, B: 4, C: 32})
    two = StepAccess("1", (), (A, B))
    broken("TW-MEMORY-SHARED", "1: writes a", [two, B_TO_C], {A: 0, B: 8, C: 32})


def test_everything_lies_in_the_arena() -> None:
    broken("TW-MEMORY-OUTSIDE", "b: float32[4] at byte 36", CHAIN, {A: 0, B: 36, C: 0})
    broken("TW-MEMORY-OUTSIDE", "at byte -4", CHAIN, {A: -4, B: 16, C: 0})


def test_what_nobody_wrote_is_not_read() -> None:
    broken(
        "TW-MEMORY-LOST",
        "2: reads a: float32[4], never written",
        CHAIN[1:],
        {A: 0, B: 16},
    )


def test_a_buffer_without_elements_need_not_be_written() -> None:
    """No step computes it. One with an element is lost."""
    empty, one = Buffer("e", (4, 0), float32), Buffer("e", (1,), float32)
    verify_memory([StepAccess("p", (empty,), (B,))], {empty: 0, B: 0}, 16)
    read = StepAccess("p", (one,), (B,))
    broken("TW-MEMORY-LOST", "never written", [read], {one: 16, B: 0})
