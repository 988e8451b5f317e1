"""Folding BatchNormalization with constant statistics into the preceding convolution.

    (conv(x, w) + b - mean) * f + bias  =  conv(x, w * f) + (b - mean) * f + bias
    where f = scale / sqrt(var + epsilon), one number per channel

The sides round differently, within the stated tolerance; `--math exact` disables the rule.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Operation, Value, constant
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.norm import normalizes_by_batch
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import Apply, constants, maybe, onnx, tensors
from tilewright.graph.rules.rule import (
    Condition,
    Rule,
    Sample,
    SampleApplication,
    normals,
)
from tilewright.runtime.halves import in_halves

Array = np.ndarray[Any, Any]
_BLOCK: Final = 256 << 10  # bytes that a processor's own cache holds
_LARGE: Final = 1 << 20  # bytes that are worth a thread

(x,) = tensors("x")
w, b, scale, bias, mean, var = constants("w b scale bias mean var")
conv = onnx.Conv(x, w, maybe(b)).with_attributes().once()
norm = onnx.BatchNormalization(conv, scale, bias, mean, var).with_attributes()


def at_inference(norm: Apply) -> Condition:
    """The condition that a normalization has its statistics as inputs, one per channel.

    `spatial` = 0 (before version 9) asks for statistics per element.
    """

    def condition(m: Match) -> bool:
        """the statistics are inputs, one per channel"""
        op = m.operation(norm)
        return not normalizes_by_batch(op) and bool(op.attr("spatial", 1))

    return condition


@dataclass(frozen=True)
class _Parameters:
    """The parameters of a convolution and its normalization, in float64 except the weight."""

    weight: Array
    old: Array | float
    scale: Array
    bias: Array
    mean: Array
    var: Array


def _parameters(m: Match) -> _Parameters | None:
    """None if one has a number of channels other than the weight's."""
    weight = m.array(w)
    rest = [m.array(t) for t in (scale, bias, mean, var)]
    given = m.known(b)
    if any(a.shape != weight.shape[:1] for a in rest):
        return None
    shift = 0.0 if given is None else given.astype(np.float64)
    return _Parameters(
        weight,
        shift,
        *(a.astype(np.float64) for a in rest),
    )


def _folded(m: Match) -> tuple[Array, Array] | None:
    """The new weight and bias; None if their type cannot represent them."""
    p = _parameters(m)
    if p is None:
        return None
    with np.errstate(all="ignore"):
        factor, shift = factor_and_shift(m.root, p.scale, p.bias, p.mean, p.var)
        shift = (shift + p.old * factor).astype(p.weight.dtype)
    new = scaled(p.weight, factor)
    return (new, shift) if new is not None and np.isfinite(shift).all() else None


def factor_and_shift(
    norm: Operation, scale: Array, bias: Array, mean: Array, var: Array
) -> tuple[Array, Array]:
    """What a normalization at inference multiplies by and then adds, one number per channel."""
    factor = scale / np.sqrt(var + float(norm.attr("epsilon", 1e-5)))
    return factor, bias - mean * factor


def along_channels(array: Array, rank: int, channels: int) -> Array | None:
    """A number for each channel, in float64, where an array adds or multiplies it to a tensor of
    this rank; None if it has others."""
    shape = (*[1] * (rank - array.ndim), *array.shape)
    if len(shape) > rank or array.size not in (1, channels):
        return None
    if any(n != 1 for axis, n in enumerate(shape) if axis != 1):
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (channels,))


def scaled(weight: Array, factor: Array) -> Array | None:
    """A weight whose channels (its first axis) are multiplied by numbers in float64.

    None if its type cannot represent it: a weight that overflows would turn finite values into
    `inf - inf` or `0 * inf`. In each channel that is not all 0, the largest number must be normal,
    so the loss of subnormal ones is below its rounding.
    """
    with np.errstate(all="ignore"):
        new, largest_before = _products(weight, factor)
        # Rounding is monotone: the largest stays the largest.
        largest_after = np.abs(largest_before * factor).astype(weight.dtype)
    # If a channel has a weight that is NaN or infinite, so is the largest.
    finite = np.isfinite(largest_after).all()
    not_normal = largest_after < np.finfo(_real(new)).tiny
    lost = not_normal & (largest_before != 0) & (factor != 0)
    return new if finite and not lost.any() else None


def _products(weight: Array, factor: Array) -> tuple[Array, Array]:
    """Each channel times its factor, and the largest magnitude of each channel before.

    In float64, but without a float64 copy of the weights: in blocks of channels that a cache holds,
    by two threads.
    """
    rows = weight.reshape(len(weight), math.prod(weight.shape[1:]))
    new = np.empty_like(rows)
    largest = np.empty(len(rows), weight.dtype)
    at_once = max(1, _BLOCK // max(1, rows[:1].nbytes))

    def scale(first: int, end: int) -> None:
        with np.errstate(all="ignore"):  # of this thread
            for n in range(first, end, at_once):
                part = slice(n, min(n + at_once, end))
                block = rows[part]
                along = factor[part, None]
                np.multiply(block, along, out=new[part], casting="same_kind")
                least = block.min(1, initial=0)
                np.maximum(block.max(1, initial=0), -least, out=largest[part])

    in_halves(scale, len(rows), len(rows) // 2 if rows.nbytes >= _LARGE else 0)
    return new.reshape(weight.shape), largest


def _real(array: Array) -> Any:
    """The dtype; for those that NumPy has no limits for, one with the range of bfloat16."""
    if array.dtype.kind == "f":
        return array.dtype
    return np.float32


def _convolution(m: Match, f: Fragment) -> Value | None:
    """Conv(x, w * f, (b - mean) * f + bias), where f = scale / sqrt(var + epsilon)"""
    folded = _folded(m)
    if folded is None:
        return None
    named = [
        constant(f"{m[w].name}/{what}", a)
        for what, a in zip(("folded", "bias"), folded)
    ]
    f.constants.update(zip(named, folded, strict=True))
    op = m.operation(conv)
    inputs = (m[x], *named)
    f.operations.append(
        replace(
            op,
            inputs=inputs,
            outputs=(m.result,),
            name=op.name or m.root.name,
        )
    )
    return m.result


def _samples(rng: np.random.Generator) -> Sample:
    out = int(rng.integers(1, 4))
    return {
        x: normals(rng, 2, 3, 5, 4),
        w: normals(rng, out, 3, 3, 3),
        b: normals(rng, out) if rng.random() < 0.5 else None,
        **{t: normals(rng, out) for t in (scale, bias, mean)},
        var: np.abs(normals(rng, out)) + 0.1,
        conv: SampleApplication({"pads": [1, 0, 1, 2]}),
        norm: SampleApplication({"epsilon": 1e-3}),
    }


BATCHNORM = Rule(
    "batchnorm-into-conv",
    norm,
    _convolution,
    when=[at_inference(norm)],
    exact=False,
    keeps_type=True,
    samples=_samples,
)
