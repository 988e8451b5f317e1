"""Refusals of ranges say where, at which sizes, and what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.driver.ranges.refusals import (
    alike_in,
    at_sizes,
    needs_own,
    not_affine,
    other_steps,
)

POINTS = [{"n": 5, "m": 7}, {"n": 6, "m": 7}, {"n": 5, "m": 8}, {"n": 9, "m": 9}]


def plan(*names: str) -> Any:
    return SimpleNamespace(steps=[SimpleNamespace(name=n) for n in names])


def test_each_value_is_shown_once_and_few_are() -> None:
    found = at_sizes([35, 42, 35, 81], POINTS)
    assert found == "35 at n = 5, m = 7 and 42 at n = 6, m = 7 and 81 at n = 9, m = 9"
    assert at_sizes([1, 2, 3, 4], POINTS).count(" at ") == 3


def test_a_step_that_one_plan_lacks_is_named_in_either_order() -> None:
    more, less = plan("halo", "conv", "relu"), plan("conv", "relu")
    for plans, counts in (
        ([more, more, less], "3 at n = 5, m = 7 and 2 at n = 5, m = 8"),
        ([less, less, more], "3 at n = 5, m = 8 and 2 at n = 5, m = 7"),
    ):
        error = other_steps(plans, POINTS, "net")
        assert error.where == "plan net"
        assert f"steps is {counts}, without step halo" in str(error)


def test_the_part_is_shown_as_dims_has_it() -> None:
    part = {"n": range(3, 6), "m": (0, 1, 2), "k": (1, 4, 8), "b": range(2, 3)}

    def extents(sizes: Any) -> dict[str, int]:
        return {n: 16 + 4 * v if n == "m" else v for n, v in sizes.items()}

    hint = alike_in(part, extents)
    shown = "{'n': (3, 5), 'm': (16, 24, 4), 'k': [1, 4, 8], 'b': [2]}"
    assert hint.endswith(f"so name that: dims={shown}")
    assert hint.flags.endswith("--dim n=3..5 --dim m=16..24..4 --dim k=1,4,8 --dim b=2")


def test_sizes_at_which_a_step_differs_are_named() -> None:
    at = {"n": 3}
    assert "one is {'n': 3}, at which step conv differs" in str(
        needs_own(16, "step conv", at)
    )
    assert "at {'n': 3}, step conv is not an affine" in str(not_affine("step conv", at))
