"""Tensor intrinsics declared by a tensor expression and a lowering."""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import InputError
from tilewright.lang.te.syntax.nodes import Compute, Tensor
from tilewright.lang.te.syntax.program import computation
from tilewright.loops import intrinsic
from tilewright.loops.intrinsic import Lower, TensorIntrinsic


def decl_tensor_intrinsic(
    op: Compute | Tensor, lower: Lower, **options: Any
) -> TensorIntrinsic:
    """An intrinsic whose behavior is the operation `op`, as in `decl_tensor_intrinsic(y.op, f)`.

    lower(inputs, outputs): the hardware call, or (compute, reset, update). options: as for
    `loops.intrinsic.decl_tensor_intrinsic`. Raises InputError for an operation of another form.
    """
    of = op.op if isinstance(op, Tensor) else op
    if not isinstance(of, Compute):
        raise InputError(
            f"{op!r} is not a compute",
            where="decl_tensor_intrinsic",
            hint="give the .op of a tensor made by compute",
        )
    return intrinsic.decl_tensor_intrinsic(computation(of), lower, **options)


decl_tensor_intrin = decl_tensor_intrinsic
hardware_intrinsic = hardware_intrin = intrinsic.hardware_intrinsic
