"""Lists of groups that break a rule, one for each, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import VerifyError
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.nodes import CC, Computation, Dim, Output
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.plan.nodes import FusionGroup, HostFallback, Plan, Step
from tilewright.plan.verify import verify, verify_steps

Index = Callable[..., tuple[Expr | int, ...]]
X, Y, Z = (Buffer(n, (4, 6), float32) for n in "xyz")
WIDE = Buffer("wide", (6, 8), float32)


def stage(
    out: Buffer, value: Callable[..., Expr], index: Index | None = None
) -> FusionGroup:
    """A map over 4 x 6 points into `out`."""
    if index is None:
        c = map_(f"to_{out.name}", out, value)
    else:
        c = map_(f"to_{out.name}", out, value, extents=(4, 6), index=index)
    return FusionGroup(f"s_{out.name}", (c,))


def inside(i: Expr, j: Expr) -> tuple[Expr, Expr]:
    return (i + 1, j + 1)


def border(
    rows: tuple[int, ...] = (0, 5), columns: tuple[int, ...] = (0, 7)
) -> FusionGroup:
    """The group around the inside of `wide`."""
    zero: Any = lambda *i: X[0, 0] * 0.0  # noqa: E731
    parts = [
        map_("row", WIDE, zero, extents=(8,), index=lambda j, r=r: (r, j)) for r in rows
    ]
    for c in columns:
        part = map_("column", WIDE, zero, extents=(4,), index=lambda i, c=c: (i + 1, c))
        parts.append(part)
    return FusionGroup("border", tuple(parts))


FILL = stage(WIDE, lambda i, j: X[i, j], inside)
CONV = FusionGroup(
    "conv",
    (reduce_("conv", Y, (3, 3), "add", lambda i, j, m, n: WIDE[i + m, j + n]),),
)


def test_what_is_right() -> None:
    verify_steps([border(), FILL, CONV], {X}, [Y])
    verify_steps(
        [stage(Y, lambda i, j: X[i, j]), stage(Z, lambda i, j: Y[3 - i, j])],
        {X},
        [Z, X],
    )


def broken(
    code: str, text: str, *steps: FusionGroup, given: Any = (X,), results: Any = (Y,)
) -> None:
    with pytest.raises(VerifyError) as error:
        verify_steps(steps, given, results)
    assert error.value.code == code
    assert text in str(error.value)


def test_reads_of_what_is_not_written_yet() -> None:
    first, second = stage(Y, lambda i, j: Z[i, j]), stage(Z, lambda i, j: X[i, j])
    text = "group s_y, computation to_y: reads z[0, 0] of [4, 6], not written before"
    broken("TW-PLAN-UNWRITTEN", text, first, second)
    broken("TW-PLAN-UNWRITTEN", "reads z[0, 0]", first)


def test_a_halo_whose_border_is_missing() -> None:
    broken("TW-PLAN-UNWRITTEN", "reads wide[0, 0]", FILL, CONV)
    broken("TW-PLAN-UNWRITTEN", "reads wide[5, 0]", border(rows=(0,)), FILL, CONV)
    broken("TW-PLAN-UNWRITTEN", "reads wide[1, 7]", border(columns=(0,)), FILL, CONV)
    broken("TW-PLAN-UNWRITTEN", "reads wide[0, 0]", FILL, CONV, border())


def test_only_what_is_read_must_be_there() -> None:
    upper = stage(Y, lambda i, j: WIDE[i + 1, j + 1])
    verify_steps([FILL, upper], {X}, [Y])
    guarded = stage(Y, lambda i, j: padded(WIDE, (i, j - 8), 0.0))
    verify_steps([guarded], {X}, [Y])


def test_a_halo_whose_border_is_written_over() -> None:
    off = stage(WIDE, lambda i, j: X[i, j], lambda i, j: (i + 1, j + 2))
    text = (
        "group s_wide, computation to_wide: writes wide[1, 7] of [6, 8], written before"
    )
    broken("TW-PLAN-TWICE", text, border(), off, CONV)
    broken("TW-PLAN-TWICE", "writes wide[", border(), FILL, FILL, CONV)


def test_a_tensor_that_two_write_whole() -> None:
    one = stage(Y, lambda i, j: X[i, j])
    broken("TW-PLAN-TWICE", "writes y[0, 0]", one, one)


def test_points_that_write_one_element() -> None:
    flat = stage(Y, lambda i, j: X[i, j], lambda i, j: (i, 0))
    broken("TW-INJECTIVE", "several points", flat)


def test_what_leaves_its_buffer() -> None:
    over = stage(Y, lambda i, j: X[i, j], lambda i, j: (i + 1, j))
    broken("TW-BOUNDS", "index i + 1 of dimension 0 of y leaves 0..3", over)
    broken("TW-BOUNDS", "of x leaves 0..5", stage(Y, lambda i, j: X[i, j + 1]))


def test_inputs_and_constants_are_not_written() -> None:
    over = stage(X, lambda i, j: Y[i, j])
    broken("TW-PLAN-GIVEN", "an input or a constant", over, given=(X, Y))


def test_results_are_written_whole() -> None:
    part = stage(WIDE, lambda i, j: X[i, j], inside)
    text = "the end: nothing writes wide[0, 0] of [6, 8]"
    broken("TW-PLAN-RESULT", text, part, results=(WIDE,))
    broken("TW-PLAN-RESULT", "nothing writes y[0, 0]")


def test_an_index_that_data_decides_may_read_everything() -> None:
    at = Buffer("at", (4, 6), int64)
    i, j = Var("i", INDEX), Var("j", INDEX)
    place = Load(at, (i, j))
    gather = Computation(
        "g", (Dim(i, 4, CC), Dim(j, 6, CC)), (Output(Y, (i, j), Z[place, j]),)
    )
    half = map_("half", Z, lambda i, j: X[i, j], extents=(2, 6))
    steps = (FusionGroup("half", (half,)), FusionGroup("gather", (gather,)))
    broken("TW-PLAN-UNWRITTEN", "reads z[2, 0]", *steps, given=(X, at))


def test_host_calls_read_and_write_whole_tensors() -> None:
    operation = Operation("Own", (Value("a"),), (Value("b"),), {}, "", 1, "call")
    call = HostFallback(operation, (Y,), (Z,))
    steps: list[Step] = [stage(Y, lambda i, j: X[i, j]), call, LATER]
    verify_steps(steps, {X}, [Y])
    with pytest.raises(VerifyError, match=r"call: reads y\[0, 0\]"):
        verify_steps([call, *steps[:1]], {X}, [Y])
    with pytest.raises(VerifyError, match="computation later: reads z"):
        verify_steps([steps[0], steps[2], call], {X}, [Y])


LATER = FusionGroup(
    "of_z", (map_("later", Buffer("o", (4, 6), float32), lambda i, j: Z[i, j]),)
)


def test_a_step_uses_buffers_of_its_own_device() -> None:
    x, y = Value("x", float32, (4, 6)), Value("y", float32, (4, 6))
    step = stage(Y, lambda i, j: X[i, j])
    plan = Plan(Graph("g", (x,), (y,), ()), (step,), {x: X, y: Y})
    verify(plan)
    away = "gpu"
    verify(
        replace(plan, steps=(replace(step, device=away),), devices={X: away, Y: away})
    )
    for wrong in (
        replace(plan, devices={X: away}),
        replace(plan, steps=(replace(step, device=away),), devices={X: away}),
    ):
        with pytest.raises(
            VerifyError, match=r"s_y, on \w+: uses .*, which is on"
        ) as error:
            verify(wrong)
        assert error.value.code == "TW-PLAN-DEVICE"
