"""Tensors created from numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dtypes import float64
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.frontends.torch.aten.terms import argument
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm

Places = np.ndarray[Any, np.dtype[np.int64]]


def _filled(c: AtenCall, value: Any) -> Value:
    """A tensor with `value` in every element of the result."""
    one = c.value(value, c.dtype)
    fixed = c.fixed()
    if fixed is None:
        like = next((n for n in ("self", "input") if c.has(n)), None)
        size = c["size"]
        if size is not None:
            sizes = c.sizes(size)
        else:
            sizes = c.op("Shape", c.tensor(like or "self"))
    else:
        sizes = c.ints(*fixed)
    return c.op("Expand", one, sizes)


@rule(
    "aten.zeros",
    "aten._efficientzerotensor",
    "aten.zeros_like",
    "aten.new_zeros",
    "aten.empty",
    "aten.empty_like",
    "aten.new_empty",
    "aten.zero",
    "aten.empty_strided",
    "aten.new_empty_strided",
)
def _zeros(c: AtenCall) -> Value:
    """Undefined elements become zero."""
    return _filled(c, 0)


@rule("aten.ones", "aten.ones_like", "aten.new_ones")
def _ones(c: AtenCall) -> Value:
    return _filled(c, 1)


@rule("aten.full", "aten.full_like", "aten.new_full")
def _full(c: AtenCall) -> Value:
    return _filled(c, c["fill_value"])


@rule("aten.fill")
def _fill(c: AtenCall) -> Value:
    return _filled(c, c["value"])


@rule("aten.scalar_tensor")
def _scalar(c: AtenCall) -> Value:
    return c.value(c["s"], c.dtype)


@rule("aten.arange")
def _arange(c: AtenCall) -> Value:
    """The count that PyTorch computes from the given numbers, before converting their type."""
    if c.has("start"):
        start = c["start"]
    else:
        start = 0
    if c.has("step"):
        step = c["step"]
    else:
        step = 1
    bounds = (start, c["end"], step)
    fixed = c.fixed()
    if fixed is None or not all(isinstance(n, int | float) for n in bounds):
        return c.op("Range", *(c.value(n, c.dtype) for n in bounds))
    kind = float if c.dtype.is_float else int
    found = kind(start) + np.arange(*fixed) * kind(step)
    return c.build.constant(found.astype(c.dtype.numpy))


@rule("aten.eye")
def _eye(c: AtenCall) -> Value:
    fixed = c.fixed()
    if fixed is None:
        raise c.refuse("its extents are known only at run time")
    return c.build.constant(np.eye(*fixed, dtype=c.dtype.numpy))


@rule("aten.linspace")
def _linspace(c: AtenCall) -> Value:
    """From both ends to the middle, with integers in float64, as PyTorch computes it.

    The ends have the result's type: a range of integers starts at an integer.
    """
    count = c["steps"]
    if not isinstance(count, int):
        raise c.refuse("its extents are known only at run time")
    half = count // 2 or count
    up = np.arange(half)
    down = np.arange(count - 1 - half, -1, -1)
    if isinstance(c["start"], Value) or isinstance(c["end"], Value):
        return _ramps(c, up, down)
    real = (c.dtype if c.dtype.is_float else float64).numpy
    ends = np.array([c["start"], c["end"]]).astype(c.dtype.numpy)
    start, end = ends.astype(real)
    step = (end - start) / real.type(max(count - 1, 1))
    # PyTorch rounds each product and its sum once, but in types of 16 bits.
    wide = real if real.itemsize < 4 else np.dtype(np.longdouble)
    rise, fall = (step.astype(wide) * n.astype(wide) for n in (up, down))
    found = np.concatenate([start + rise, end - fall])
    return c.build.constant(found.astype(real).astype(c.dtype.numpy))


def _ramps(c: AtenCall, up: Places, down: Places) -> Value:
    """`linspace` between ends of which one is a tensor."""
    real = c.dtype if c.dtype.is_float else float64
    start, end = (argument(c, n).cast(real) for n in ("start", "end"))
    gaps = max(len(up) + len(down) - 1, 1)
    step = (end - start) / gaps
    numbers = (c.build.constant(n.astype(real.numpy)) for n in (up, down))
    rise, fall = (step * TensorTerm(c, n) for n in numbers)
    parts = (start + rise).value, (end - fall).value
    return c.cast(c.op("Concat", *parts, axis=0), c.dtype)


@rule(
    "aten.bartlett_window",
    "aten.hamming_window",
    "aten.kaiser_window",
    "aten.fft_fftfreq",
    "aten.fft_rfftfreq",
)
def _of_numbers(c: AtenCall) -> Value:
    """What only depends on numbers, by PyTorch itself."""
    import torch

    if c.open_numbers:
        raise c.refuse("its extents are known only at run time")
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        found = c.target(**c.arguments)
    as_wide = found.double().numpy()
    return c.build.constant(as_wide.astype(c.dtype.numpy))


@rule("aten.sym_size", "aten.size")
def _size(c: AtenCall) -> Value:
    axis = c.axis()
    found = c.op("Shape", c.tensor(), start=axis, end=axis + 1)
    axes = c.ints(0)
    return c.op("Squeeze", found, axes)


@rule("aten.sym_numel", "aten.numel")
def _numel(c: AtenCall) -> Value:
    return c.op("Size", c.tensor())


@rule("aten._local_scalar_dense", "aten.item")
def _item(c: AtenCall) -> Value:
    if c.rank():
        return c.reshape(c.tensor(), [])
    return c.tensor()


@rule(
    "aten.sym_constrain_range",
    "aten.sym_constrain_range_for_size",
    "aten._assert_scalar",
    "aten._assert_async",
    "aten._assert_tensor_metadata",
)
def _checked(c: AtenCall) -> None:
    """An assertion of PyTorch about a program; computes nothing."""
