"""Simulated quantization: numbers rounded to a grid of integers, as in training for int8.

The integers are `round(x / scale) + zero` between bounds, and `round(x / scale + zero)` with a zero
point that is a float: in float64 if x is, else in float32. So are their multiples of scales of
channels; those of one scale are float32 in any case. The gradient of x is that of the result where
the integer lies between the bounds, and 0 elsewhere. NaN are at the lower bound.
"""

from __future__ import annotations

from typing import Any, Final

from tilewright.frontends.torch.aten.own.table import decomposes

_OPERATOR: Final = "aten._fake_quantize_learnable_per"


def _along(x: Any, given: Any, axis: int) -> Any:
    """A vector along an axis of x."""
    shape = [1] * x.dim()
    shape[axis] = -1
    return given.reshape(shape)


def _integers(x: Any, scale: Any, zero: Any) -> Any:
    import torch

    wide = x if x.dtype is torch.float64 else x.float()
    steps = wide * (1.0 / scale)
    if zero.is_floating_point():
        return torch.round(steps + zero)
    return torch.round(steps) + zero


def _simulated(
    x: Any,
    scale: Any,
    zero: Any,
    low: int,
    high: int,
) -> tuple[Any, Any]:
    """The rounded numbers, and whether their integers lie between the bounds."""
    integers = _integers(x, scale, zero)
    inside = (integers >= low) & (integers <= high)
    bounded = _bounded(integers, low, high)
    steps = bounded - zero
    found = (steps if scale.dim() else steps.float()) * scale
    return found.to(x.dtype), inside


def _bounded(integers: Any, low: int, high: int) -> Any:
    found = integers.clamp(low, high)
    return found.masked_fill(integers.isnan(), low)


@decomposes("aten.fake_quantize_per_tensor_affine_cachemask.default")
def _by_numbers(
    x: Any,
    scale: float,
    zero: int,
    low: int,
    high: int,
) -> Any:
    import torch

    step = torch.full((), scale, dtype=torch.float32)
    point = torch.full((), zero)
    return _simulated(x, step, point, low, high)


@decomposes("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def _by_tensors(
    x: Any,
    scale: Any,
    zero: Any,
    enabled: Any,
    low: int,
    high: int,
) -> Any:
    """Where it is not enabled, x itself. All three have one element, of one axis or none."""
    step, point, on = [given.reshape(()) for given in (scale, zero, enabled)]
    found, inside = _simulated(x, step, point, low, high)
    on = on != 0
    return found.where(on, x), inside | ~on


@decomposes("aten.fake_quantize_per_channel_affine_cachemask.default")
def _by_channel(
    x: Any,
    scale: Any,
    zero: Any,
    axis: int,
    low: int,
    high: int,
) -> Any:
    scales = _along(x, scale, axis)
    zeros = _along(x, zero, axis)
    return _simulated(x, scales, zeros, low, high)


@decomposes(f"{_OPERATOR}_tensor_affine.default")
def _learned(
    x: Any,
    scale: Any,
    zero: Any,
    low: int,
    high: int,
    factor: float = 1.0,
) -> Any:
    point = _whole(zero, low, high).int()
    return _simulated(x, scale, point, low, high)[0]


@decomposes(f"{_OPERATOR}_channel_affine.default")
def _learned_by_channel(
    x: Any,
    scale: Any,
    zero: Any,
    axis: int,
    low: int,
    high: int,
    factor: float = 1.0,
) -> Any:
    scales = _along(x, scale, axis)
    zeros = _along(x, zero, axis)
    return _learned(x, scales, zeros, low, high)


def _whole(zero: Any, low: int, high: int) -> Any:
    """A zero point that is trained, as the integer next to it."""
    return zero.round().clamp(low, high)


@decomposes(f"{_OPERATOR}_tensor_affine_backward.default")
def _learned_gradient(
    gradient: Any,
    x: Any,
    scale: Any,
    zero: Any,
    low: int,
    high: int,
    factor: float = 1.0,
) -> tuple[Any, Any, Any]:
    found = _parts(gradient, x, scale, zero, low, high)
    by_x, *others = found
    by_scale, by_zero = [part.sum().reshape(1) * factor for part in others]
    return by_x, by_scale, by_zero


@decomposes(f"{_OPERATOR}_channel_affine_backward.default")
def _learned_gradient_by_channel(
    gradient: Any,
    x: Any,
    scale: Any,
    zero: Any,
    axis: int,
    low: int,
    high: int,
    factor: float = 1.0,
) -> tuple[Any, Any, Any]:
    scales = _along(x, scale, axis)
    zeros = _along(x, zero, axis)
    by_x, *others = _parts(gradient, x, scales, zeros, low, high)
    axes = [a for a in range(x.dim()) if a != axis]
    if axes:  # a sum over no axes would be one over all of them
        others = [part.sum(axes) for part in others]
    by_scale, by_zero = [part * factor for part in others]
    return by_x, by_scale, by_zero


def _parts(
    gradient: Any,
    x: Any,
    scale: Any,
    zero: Any,
    low: int,
    high: int,
) -> tuple[Any, Any, Any]:
    """The gradients of x, scale and zero point by each element (Esser and others, "Learned step
    size quantization", 2020): outside of the bounds, the result is `(bound - zero) * scale`.

    As in PyTorch, x is rounded after the zero point is added, which differs for ties. The zero
    point is that of the result; of one scale, PyTorch 2.13 takes another: for -2.6, -2; for 2.5, 3.
    """
    import torch

    point = _whole(zero, low, high)
    integers = _integers(x, scale, point)
    inside = (integers >= low) & (integers <= high)
    bounded = _bounded(integers, low, high)
    rounded = (bounded - point) * scale
    error = (rounded - x) / scale
    by_scale = torch.where(inside, error, bounded - point)
    by_zero = torch.where(inside, 0.0, -scale)
    return gradient * inside, gradient * by_scale, gradient * by_zero
