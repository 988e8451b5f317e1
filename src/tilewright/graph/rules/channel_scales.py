"""Constants per channel behind a BatchNormalization join its parameters; what no convolution takes
becomes a product and a sum.

    norm(x, scale, bias) * c + d  =  norm(x, scale * c, bias * c + d)
    norm(x)                       =  x * f + (bias - mean * f),  f = scale / sqrt(var + epsilon)

The sides round differently, within the stated tolerance; `--math exact` disables the rules. The
last one spares a kernel that computes f for each number of channels.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add, mul
from typing import Any

import numpy as np

from tilewright.base.dtypes import float32, float64
from tilewright.graph.rules.batchnorm import (
    Array,
    along_channels,
    at_inference,
    factor_and_shift,
    scaled,
)
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import Apply, Computed, constants, onnx, tensors
from tilewright.graph.rules.rule import Rule, Sample, SampleApplication, normals

(x,) = tensors("x")
scale, bias, mean, var, c = constants("scale bias mean var c")
norm = onnx.BatchNormalization(x, scale, bias, mean, var).with_attributes()
inner = norm.once()


def _rank_is_known(m: Match) -> bool:
    """the rank of x is known"""
    return m[x].shape is not None


def _per_channel(m: Match) -> bool:
    """c is a number, or has one per channel"""
    return _channels(m) is not None


def _channels(m: Match) -> Array | None:
    return along_channels(m.array(c), len(m[x].shape or ()), m.array(scale).size)


def _scaled(m: Match) -> Array | None:
    number = _channels(m)
    return None if number is None else scaled(m.array(scale), number)


def _bias(change: Callable[[Array, Any], Array]) -> Callable[[Match], Array | None]:
    """The bias changed by the numbers per channel; None if its type cannot hold it."""

    def function(m: Match) -> Array | None:
        before = m.array(bias)
        with np.errstate(all="ignore"):
            wide = change(before.astype(np.float64), _channels(m))
            after = wide.astype(before.dtype)
        return after if np.isfinite(after).all() else None

    return function


def _in_wide_floats(m: Match) -> bool:
    """x is of float32 or float64, so that the product need not be rounded"""
    return m[x].dtype in (float32, float64)


def _number(place: int, name: str) -> Computed:
    """The factor or the term of a normalization, along the channels of x."""

    def function(m: Match) -> Array | None:
        given = (m.array(part).astype(np.float64) for part in (scale, bias, mean, var))
        dtype = m[x].dtype
        assert dtype is not None
        with np.errstate(all="ignore"):
            found = factor_and_shift(m.root, *given)[place].astype(dtype.numpy)
        if not np.isfinite(found).all():
            return None
        rank = len(m[x].shape or ())
        return found.reshape(-1, *[1] * (rank - 2))

    return Computed(name, function)


def _samples(part: Apply) -> Callable[[np.random.Generator], Sample]:
    def samples(rng: np.random.Generator) -> Sample:
        channels = int(rng.integers(1, 4))
        rank = int(rng.integers(2, 5))
        shape = (2, channels, *[3] * (rank - 2))
        number = [(), (1,), shape[1:2] + (1,) * (rank - 2), (2,), shape[2:], shape]
        drawn = number[int(rng.integers(len(number)))]
        parameters = {t: normals(rng, channels) for t in (scale, bias, mean)}
        return {
            x: normals(rng, *shape),
            **parameters,
            var: np.abs(normals(rng, channels)) + 0.1,
            c: normals(rng, *drawn),
            part: SampleApplication({"epsilon": 1e-3}),
        }

    return samples


SCALE = Computed("scale * c", _scaled)
CHANNEL_SCALES = (
    Rule(
        "norm-scaled",
        inner * c,
        inner.on(x, SCALE, Computed("bias * c", _bias(mul)), mean, var),
        when=[at_inference(inner), _rank_is_known, _per_channel],
        exact=False,
        samples=_samples(inner),
    ),
    Rule(
        "norm-shifted",
        inner + c,
        inner.on(x, scale, Computed("bias + c", _bias(add)), mean, var),
        when=[at_inference(inner), _rank_is_known, _per_channel],
        exact=False,
        samples=_samples(inner),
    ),
)
FACTOR = _number(0, "f")
TERM = _number(1, "bias - mean * f")
NORM_BY_CONSTANTS = Rule(
    "norm-by-constants",
    norm,
    onnx.Add(onnx.Mul(x, FACTOR), TERM),
    when=[at_inference(norm), _rank_is_known, _in_wide_floats],
    exact=False,
    samples=_samples(norm),
)
