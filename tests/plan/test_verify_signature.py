"""Interfaces that would let a schedule do something else than the group, one for each rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import VerifyError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import map_loads
from tilewright.expr.nodes import Buffer, Load
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.plan.verify_signature import verify_signature

X = Buffer("x", (4, 6, 3), float32)
Y = Buffer("y", (6, 8), float32)


def pooled() -> FusionGroup:
    """Sums written inside of a halo."""
    index = lambda i, j: (i + 1, j + 1)  # noqa: E731
    value = lambda i, j, k: X[i, j, k]  # noqa: E731
    c = reduce_("sums", Y, (3,), "add", value, extents=(4, 6), index=index)
    return FusionGroup("pooled", (c,))


def broken(
    code: str, text: str, stage: FusionGroup, signature: KernelSignature
) -> None:
    with pytest.raises(VerifyError) as error:
        verify_signature(stage, signature)
    assert error.value.code == code
    assert text in str(error.value)


def test_what_interface_makes_is_right() -> None:
    stage = pooled()
    signature = kernel_signature(stage, {Y})
    assert signature.offsets[-1] == 9 * 4
    verify_signature(stage, signature)


def test_a_reduction_straight_into_part_of_a_tensor() -> None:
    stage = pooled()
    signature = replace(
        kernel_signature(stage, {Y}), computations=stage.computations, params=(X, Y)
    )
    signature = replace(signature, offsets=(0, 0))
    broken("TW-SIGNATURE-RESULT", "does not fill it alone", stage, signature)


def test_another_place() -> None:
    stage = pooled()
    signature = kernel_signature(stage, {Y})
    text = "the kernel writes 24 elements from 0 to 29 of y: float32[6, 8]"
    broken("TW-SIGNATURE-WRITES", text, stage, replace(signature, offsets=(0, 0)))


def test_a_larger_part() -> None:
    stage = pooled()
    signature = kernel_signature(stage, {Y})
    (out,) = signature.outputs
    more = map_("more", out, lambda i: X[0, 0, 0], extents=(6,), index=lambda i: (5, i))
    signature = replace(signature, computations=(*signature.computations, more))
    broken("TW-SIGNATURE-WRITES", "writes 30 elements", stage, signature)


def test_other_elements_read() -> None:
    stage = pooled()
    signature = kernel_signature(stage, {Y})
    x = signature.params[0]

    def shifted(load: Load) -> Load:
        return Load(x, (*load.index[:-1], load.index[-1] * 0))

    def other(c: Computation) -> Computation:
        outputs = (
            replace(o, value=map_loads(o.value, {x: shifted})) for o in c.outputs
        )
        return replace(c, outputs=tuple(outputs))

    signature = replace(
        signature, computations=tuple(map(other, signature.computations))
    )
    broken("TW-SIGNATURE-READS", "the kernel reads 24 elements", stage, signature)
