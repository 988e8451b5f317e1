"""CenterCropPad: the middle of each axis, or zeros around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register


def _targets(call: OpCall, shape: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """The extents of the result, for axes that `axes` names in its order."""
    axes = call.attr("axes")
    axes = (
        range(len(shape)) if axes is None else [call.axis(a, len(shape)) for a in axes]
    )
    if len(axes) != len(wanted) or any(n < 0 for n in wanted):
        raise call.error(f"the shape {list(wanted)} does not fit {len(axes)} axes")
    found = dict(zip(axes, wanted, strict=True))
    return [found.get(a, n) for a, n in enumerate(shape)]


def _type(call: OpCall) -> Sequence[Type]:
    return [(call.dtype(0), tuple(_targets(call, call.shape(0), call.ints(1) or [])))]


def _decompose(call: OpCall, f: Fragment) -> list[Value]:
    shape = call.shape(0)
    targets = _targets(call, shape, call.ints(1) or [])
    cut = [max(n - t, 0) // 2 for n, t in zip(shape, targets, strict=True)]
    kept = [min(n, t) for n, t in zip(shape, targets, strict=True)]
    ends = [a + n for a, n in zip(cut, kept, strict=True)]
    axes = list(range(len(shape)))
    x = f.op("Slice", call.value(0), *(f.constant(v, int64) for v in (cut, ends, axes)))
    front = [max(t - n, 0) // 2 for n, t in zip(shape, targets, strict=True)]
    back = [t - n - a for n, t, a in zip(kept, targets, front, strict=True)]
    return [f.op("Pad", x, f.constant([*front, *back], int64))]


def _arrays(call: OpCall, x: Array, wanted: Array) -> list[Array]:
    targets = _targets(call, x.shape, [int(n) for n in wanted])
    found = np.zeros(targets, x.dtype)
    pairs = list(zip(x.shape, targets, strict=True))
    inside = tuple(
        slice(a, a + min(n, t)) for n, t in pairs for a in [max(t - n, 0) // 2]
    )
    middle = tuple(
        slice(a, a + min(n, t)) for n, t in pairs for a in [max(n - t, 0) // 2]
    )
    found[inside] = x[middle]
    return [found]


register(
    OpDef(
        "CenterCropPad",
        _type,
        since=18,
        decompose=_decompose,
        reference=_arrays,
        by_value=(1,),
    )
)
