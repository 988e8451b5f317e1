"""Random numbers with a seed: RandomUniform, RandomNormal, Bernoulli, Multinomial and others.

The generator is counter-based: a number is a hash of the seed and of its position in the result,
so it is the same for any schedule and number of threads, and in every run (as with a fixed seed in
ONNX's reference, which draws other numbers). Without a seed each run must differ, which is left to
host fallbacks. Hash: the finalizer of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014). Normal numbers by Box and Muller, categories by Gumbel's maximum.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.dtypes import DType, float32, float64, int32, uint64
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import arg_reducer
from tilewright.expr.nodes import Buffer, Expr, Shr, const
from tilewright.expr.nodes import call as apply
from tilewright.graph.ops.broadcasting import wide
from tilewright.graph.ops.casts import dtype_attribute
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import IMPURE

Buffers = Sequence[Buffer]
GOLDEN = 0x9E3779B97F4A7C15
# A distribution: (call, the two uniform numbers of an element) -> its value.
Draw = Callable[[OpCall, Callable[[int], Expr]], Expr]


def seed_of(call: OpCall) -> int | None:
    """The bits of the attribute `seed`; None if it is missing."""
    seed = call.attr("seed")
    if seed is None or math.isnan(seed):
        return None
    return int(struct.unpack("<I", struct.pack("<f", seed))[0])


def _linear(point: Sequence[Any], shape: Sequence[int]) -> Expr:
    at: Expr = const(0)
    for i, extent in zip(point, shape, strict=True):
        at = at * extent + i
    return at


def hashed(seed: int, counter: Expr) -> Expr:
    """64 random bits for a counter (an index)."""
    start = (seed * GOLDEN) % (1 << 64)
    z = (cast(counter, uint64) + 1) * GOLDEN + start
    z = (z ^ Shr(z, const(30, uint64))) * 0xBF58476D1CE4E5B9
    z = (z ^ Shr(z, const(27, uint64))) * 0x94D049BB133111EB
    return z ^ Shr(z, const(31, uint64))


def uniform(seed: int, counter: Expr, dtype: DType) -> Expr:
    """A number in [0, 1) with all the bits that `dtype` (float32 or float64) can hold."""
    bits = 53 if dtype is float64 else 24
    high = Shr(hashed(seed, counter), const(64 - bits, uint64))
    return cast(high, dtype) * 2.0**-bits


def _random(draw: Draw) -> Any:
    def compute(
        call: OpCall,
        inputs: Buffers,
        outputs: Buffers,
    ) -> list[Computation] | None:
        out = outputs[0]
        seed = seed_of(call)
        if seed is None:
            return None
        work = float64 if out.dtype is float64 else float32

        def value(*i: Any) -> Expr:
            at = _linear(i, out.shape)
            return cast(
                draw(call, lambda n: uniform(seed, at * 2 + n, work)), out.dtype
            )

        return [map_(call.name, out, value)]

    return compute


def _uniform(call: OpCall, u: Callable[[int], Expr]) -> Expr:
    low = float(call.attr("low", 0.0))
    high = float(call.attr("high", 1.0))
    return u(0) * (high - low) + low


def _normal(call: OpCall, u: Callable[[int], Expr]) -> Expr:
    """By the Box-Muller method, from two uniform numbers."""
    mean = float(call.attr("mean", 0.0))
    scale = float(call.attr("scale", 1.0))
    radius: Expr = apply("sqrt", apply("log", 1.0 - u(0)) * -2.0)
    angle = u(1) * (2 * math.pi)
    return radius * apply("cos", angle) * scale + mean


def _made_type(call: OpCall) -> Sequence[Type]:
    return [(dtype_attribute(call, "dtype", float32), tuple(call.attr("shape", ())))]


def _like_type(call: OpCall) -> Sequence[Type]:
    return [(dtype_attribute(call, "dtype", call.dtype(0)), call.shape(0))]


for _name, _draw in (("RandomUniform", _uniform), ("RandomNormal", _normal)):
    register(
        OpDef(
            _name,
            _made_type,
            compute=_random(_draw),
            traits=IMPURE,
        )
    )
    register(
        OpDef(
            f"{_name}Like",
            _like_type,
            compute=_random(_draw),
            traits=IMPURE,
        )
    )


def _bernoulli(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    """1 with the probability given by the input; ONNX's function body has 0 and 1 swapped."""
    x = inputs[0]
    out = outputs[0]
    seed = seed_of(call)
    if seed is None:
        return None
    work = wide(x[(0,) * len(x.shape)]).dtype

    def value(*i: Any) -> Expr:
        return cast(uniform(seed, _linear(i, out.shape), work) < wide(x[i]), out.dtype)

    return [map_(call.name, out, value)]


register(
    OpDef(
        "Bernoulli",
        _like_type,
        since=15,
        compute=_bernoulli,
        traits=IMPURE,
    )
)


def _multinomial_type(call: OpCall) -> Sequence[Type]:
    if call.rank(0) != 2:
        raise call.error(f"the input {list(call.shape(0))} is not a matrix")
    shape = (call.shape(0)[0], call.attr("sample_size", 1))
    return [(dtype_attribute(call, "dtype", int32), shape)]


def _multinomial(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    """The class of the largest (log probability + Gumbel noise), per sample."""
    x = inputs[0]
    out = outputs[0]
    seed = seed_of(call)
    classes = x.shape[1]
    if seed is None or not classes:
        return None
    work = wide(x[(0, 0)]).dtype
    best = Buffer(f"{call.name}_best", out.shape, work)
    half = const(2.0**-25, work)

    def value(
        b: Any,
        s: Any,
        c: Any,
    ) -> tuple[Expr, Expr]:
        at = _linear((b, s, c), (*out.shape, classes))
        noise = apply("log", -apply("log", uniform(seed, at, work) + half))
        return wide(x[b, c]) - noise, cast(c, out.dtype)

    op = arg_reducer("argmax", work, out.dtype)
    return [reduce_(call.name, (best, out), (classes,), op, value)]


register(
    OpDef(
        "Multinomial", _multinomial_type, since=7, compute=_multinomial, traits=IMPURE
    )
)
