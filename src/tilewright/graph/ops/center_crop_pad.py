"""CenterCropPad: crops each axis to its middle, or pads it with zeros on both sides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register


def _targets(
    call: OpCall,
    shape: Sequence[int],
    wanted: Sequence[int],
) -> list[int]:
    """The extents of the result; `axes` names the axes that the target shape is for."""
    axes = call.attr("axes")
    if axes is None:
        axes = range(len(shape))
    else:
        axes = [call.axis(a, len(shape)) for a in axes]
    if len(axes) != len(wanted) or any(n < 0 for n in wanted):
        raise call.error(f"the shape {list(wanted)} does not fit {len(axes)} axes")
    found = dict(zip(axes, wanted, strict=True))
    return [found.get(a, n) for a, n in enumerate(shape)]


def _type(call: OpCall) -> Sequence[Type]:
    return call.result(_targets(call, call.shape(0), call.ints(1) or []))


@dataclass(frozen=True)
class _Fit:
    """One axis: `kept` elements from `cut` on, placed at `front` in the result."""

    cut: int
    front: int
    kept: int
    target: int


def _fits(
    call: OpCall,
    shape: Sequence[int],
    wanted: Sequence[int],
) -> list[_Fit]:
    """For each axis, the elements kept and their place in the result."""
    targets = _targets(call, shape, wanted)
    return [
        _Fit(
            cut=max(n - target, 0) // 2,
            front=max(target - n, 0) // 2,
            kept=min(n, target),
            target=target,
        )
        for n, target in zip(shape, targets, strict=True)
    ]


def _decompose(call: OpCall, f: Fragment) -> list[Value]:
    fits = _fits(call, call.shape(0), call.ints(1) or [])
    starts = f.ints(*(a.cut for a in fits))
    ends = f.ints(*(a.cut + a.kept for a in fits))
    axes = f.ints(*range(len(fits)))
    x = f.op("Slice", call.value(0), starts, ends, axes)
    front = [a.front for a in fits]
    back = [a.target - a.kept - a.front for a in fits]
    return [f.op("Pad", x, f.ints(*front, *back))]


def _arrays(
    call: OpCall,
    x: Array,
    wanted: Array,
) -> list[Array]:
    fits = _fits(call, x.shape, [int(n) for n in wanted])
    found = np.zeros([a.target for a in fits], x.dtype)
    inside = tuple(slice(a.front, a.front + a.kept) for a in fits)
    middle = tuple(slice(a.cut, a.cut + a.kept) for a in fits)
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
