"""Sliding windows: the geometry shared by convolutions and poolings, and guarded reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import And, Buffer, Expr, Le, Lt, Select, as_expr, const
from tilewright.graph.ops.registry import OpCall


@dataclass(frozen=True)
class Windows:
    """One entry per spatial axis in each field."""

    inputs: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    outputs: tuple[int, ...]

    def place(self, o: Sequence[Any], k: Sequence[Any]) -> tuple[Expr, ...]:
        """The input position under window position `k` at output position `o`."""
        found = []
        for n, (at, offset) in enumerate(zip(o, k, strict=True)):
            if self.strides[n] == 1:
                step = at
            else:
                step = at * self.strides[n]
            if self.kernel[n] > 1:
                step = step + (
                    offset if self.dilations[n] == 1 else offset * self.dilations[n]
                )
            found.append(step - self.begin[n] if self.begin[n] else step)
        return tuple(found)

    def inside(self, place: Sequence[Expr]) -> Expr | None:
        """Whether an input position is not in the padding; None if no window reaches there."""
        guards: list[Expr] = []
        for n, at in enumerate(place):
            reach = (self.outputs[n] - 1) * self.strides[n] - self.begin[n]
            reach += (self.kernel[n] - 1) * self.dilations[n]
            if self.begin[n] > 0:
                guards.append(Le(const(0), at))
            if reach >= self.inputs[n]:
                guards.append(Lt(at, const(self.inputs[n])))
        return reduce(And, guards) if guards else None

    def read(
        self,
        x: Buffer,
        lead: Sequence[Any],
        place: Sequence[Expr],
        outside: Any,
    ) -> Expr:
        """`x[lead, place]`, or `outside` (a number) if a window reaches into the padding."""
        load = x[(*lead, *place)]
        inside = self.inside(place)
        if inside is None:
            return load
        return Select(inside, load, as_expr(outside, x.dtype))


def windows(
    call: OpCall,
    spatial: Sequence[int],
    kernel: Sequence[int],
) -> Windows:
    """The geometry, from the attributes strides, dilations, pads, auto_pad and ceil_mode."""
    rank = len(spatial)
    strides = tuple(call.attr("strides") or (1,) * rank)
    dilations = tuple(call.attr("dilations") or (1,) * rank)
    pads = tuple(call.attr("pads") or (0,) * 2 * rank)
    kernel = tuple(kernel)
    lengths = {len(strides), len(dilations), len(kernel), rank}
    if len(lengths) != 1 or len(pads) != 2 * rank:
        raise call.error(
            f"strides, dilations, pads or the window do not have {rank} axes"
        )
    if min((*strides, *dilations, *kernel), default=1) < 1:
        raise call.error("a stride, dilation or window extent is less than 1")
    auto = call.attr("auto_pad", "NOTSET") or "NOTSET"
    begin, end, outputs = [], [], []
    for n in range(rank):
        span = (kernel[n] - 1) * dilations[n] + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            out = -(-spatial[n] // strides[n])
            total = max((out - 1) * strides[n] + span - spatial[n], 0)
            less = total // 2
            low, high = (
                (less, total - less) if auto == "SAME_UPPER" else (total - less, less)
            )
        else:
            low = high = 0
            if auto != "VALID":
                low = pads[n]
                high = pads[n + rank]
            out = _count(
                spatial[n] + low + high - span, strides[n], call.attr("ceil_mode", 0)
            )
            if call.attr("ceil_mode", 0) and (out - 1) * strides[n] >= spatial[n] + low:
                out -= 1  # a window may not start in the padding at the end
        if out < 0 or (out == 0 and spatial[n] > 0 and span > spatial[n] + low + high):
            raise call.error(
                f"a window of {span} does not fit the extent {spatial[n]} with padding {low + high}"
            )
        begin.append(low)
        end.append(high)
        outputs.append(out)
    return Windows(
        tuple(spatial),
        kernel,
        strides,
        dilations,
        tuple(begin),
        tuple(end),
        tuple(outputs),
    )


def _count(room: int, stride: int, ceil: int) -> int:
    return (-(-room // stride) if ceil else room // stride) + 1
