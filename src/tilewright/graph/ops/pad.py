"""Pad: one map over the result that reads the input at a mapped position. Negative pads crop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import And, Buffer, Expr, Le, Lt, Max, Min, Select, const
from tilewright.graph.ops.quantize import only
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

Buffers = Sequence[Buffer]

MODES = ("constant", "reflect", "edge", "wrap")


def _pads(call: OpCall) -> list[tuple[int, int]]:
    """Elements added in front and after, per axis of input 0."""
    rank = call.rank(0)
    if call.version >= 11:
        pads = call.ints(1) or []
        axes = call.ints(3)
    else:
        pads = call.attr("pads") or call.attr("paddings") or []
        axes = None
    if axes is None:
        axes = list(range(rank))
    else:
        axes = [call.axis(a, rank) for a in axes]
    if len(pads) != 2 * len(axes):
        raise call.error(f"{len(pads)} pads for {len(axes)} axes")
    found = [(0, 0)] * rank
    for n, axis in enumerate(axes):
        found[axis] = (pads[n], pads[n + len(axes)])
    return found


def _type(call: OpCall) -> Sequence[Type]:
    mode = call.attr("mode", "constant")
    if mode not in MODES:
        raise call.error(f"mode {mode!r} is not one of {', '.join(MODES)}")
    shape = []
    for n, (begin, end) in zip(call.shape(0), _pads(call), strict=True):
        shape.append(n + begin + end)
    if min(shape, default=0) < 0:
        raise call.error(f"the pads crop {list(call.shape(0))} to {shape}")
    return call.result(shape)


def _reflected(
    t: Expr,
    n: int,
    begin: int,
    end: int,
) -> Expr:
    period = 2 * (n - 1)
    if n == 1:
        return const(0)
    if max(begin, end) >= n:
        t = t % period
        return Min(t, period - t)
    if begin > 0:
        t = Max(t, -t)
    return Min(t, period - t) if end > 0 else t


def _inside(
    mode: str,
    t: Expr,
    n: int,
    begin: int,
    end: int,
) -> Expr:
    """The position in an axis of extent n that position t of the padded axis repeats."""
    if begin <= 0 and end <= 0:
        return t
    if mode == "reflect":
        return _reflected(t, n, begin, end)
    if mode == "edge":
        return Max(Min(t, const(n - 1)), const(0))
    return t % n


def _pad(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    x = inputs[0]
    out = outputs[0]
    pads = _pads(call)
    mode = call.attr("mode", "constant")

    def places(i: Sequence[Any]) -> list[Any]:
        """The position in the input that a point of the result reads."""
        return [
            v - begin if begin else v for v, (begin, _) in zip(i, pads, strict=True)
        ]

    if mode == "constant" or x.size == 0:
        outside: Expr = const(call.attr("value", 0.0), x.dtype)
        if call.version >= 11 and call.has(2):
            outside = only(call, inputs, 2)

        def value(*i: Any) -> Expr:
            place = places(i)
            guards: list[Expr] = []
            for t, n, (begin, end) in zip(place, x.shape, pads, strict=True):
                if begin > 0:
                    guards.append(Le(const(0), t))
                if end > 0:
                    guards.append(Lt(t, const(n)))
            load = x[tuple(place)]
            if guards:
                return Select(reduce(And, guards), load, outside)
            return load

        return [map_(call.name, out, value)]

    def repeated(*i: Any) -> Expr:
        index = []
        for t, n, (begin, end) in zip(places(i), x.shape, pads, strict=True):
            index.append(_inside(mode, t, n, begin, end))
        return x[tuple(index)]

    return [map_(call.name, out, repeated)]


register(OpDef("Pad", _type, compute=_pad))
