"""Pad: one map over the result that reads the input at a mapped position. Negative pads crop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import And, Buffer, Expr, Le, Lt, Max, Min, Select, const
from tilewright.graph.ops.quantize import only
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

Buffers = Sequence[Buffer]

MODES = ("constant", "reflect", "edge", "wrap")


def _pads(call: OpCall) -> list[tuple[int, int]]:
    """Elements added in front and after, per axis of input 0."""
    if call.version >= 11:
        return _per_axis(call, call.rank(0), call.ints(1) or [], call.ints(3))
    pads = call.attr("pads") or call.attr("paddings") or []
    return _per_axis(call, call.rank(0), pads, None)


def _per_axis(
    call: OpCall, rank: int, pads: Sequence[int], some: Sequence[int] | None
) -> list[tuple[int, int]]:
    axes = range(rank) if some is None else [call.axis(a, rank) for a in some]
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


def _arrays(call: OpCall, x: Array, *operands: Array | None) -> list[Array]:
    """NumPy: one axis after the other. ONNX's own reference does not take negative pads."""
    if call.version >= 11:
        pads, value, axes = (*operands, None, None)[:3]
        assert pads is not None
        some = None if axes is None else axes.tolist()
        around = _per_axis(call, x.ndim, pads.tolist(), some)
    else:
        value = np.asarray(call.attr("value", 0.0))
        around = _pads(call)
    outside = np.zeros((), x.dtype) if value is None else value.reshape(())
    constant = call.attr("mode", "constant") == "constant" or x.size == 0
    for axis, (begin, end) in enumerate(around):
        n = x.shape[axis]
        places = np.arange(n + begin + end) - begin
        if constant:
            inside = np.flatnonzero((places >= 0) & (places < n))
            shape = (*x.shape[:axis], len(places), *x.shape[axis + 1 :])
            padded = np.full(shape, outside, x.dtype)
            lead: tuple[Any, ...] = (slice(None),) * axis
            padded[(*lead, inside)] = x[(*lead, places[inside])]
            x = padded
        else:
            x = x.take(_repeated(call.attr("mode"), places, n), axis)
    return [x]


def _repeated(mode: str, places: Array, n: int) -> Array:
    """Positions in an axis of extent n that those of the padded axis repeat."""
    found: Array
    if mode == "wrap":
        found = places % n
    elif mode == "reflect" and n > 1:
        turns = places % (2 * n - 2)
        found = np.minimum(turns, 2 * n - 2 - turns)
    else:
        found = places.clip(0, n - 1)
    return found


register(OpDef("Pad", _type, compute=_pad, reference=_arrays))
