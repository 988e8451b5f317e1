"""Random numbers. An exported program draws others in each run; it has no seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import DType, float32, float64, int64
from tilewright.frontends.torch.aten.rules import AtenCall, Rule, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.terms import TensorTerm

# The operators that draw, without their overloads.
RANDOM: Final[set[str]] = set()


def is_random(name: str) -> bool:
    """Whether the operator of this name, overload included, draws random numbers."""
    return name in RANDOM or name.rpartition(".")[0] in RANDOM


def _draws(*names: str) -> Callable[[Rule], Rule]:
    RANDOM.update(names)
    return rule(*names)


@_draws("aten.rand", "aten.rand_like")
def _uniform(c: AtenCall) -> Value:
    return _drawn(c, "RandomUniform")


@_draws("aten.randn", "aten.randn_like")
def _normal(c: AtenCall) -> Value:
    return _drawn(c, "RandomNormal")


@_draws("prims.normal", "aten.normal_functional")
def _normal_of(c: AtenCall) -> Value:
    return _drawn(c, "RandomNormal", mean=float(c["mean"]), scale=float(c["std"]))


@_draws("prims.uniform")
def _uniform_between(c: AtenCall) -> Value:
    low = float(c["low"])
    high = float(c["high"])
    return _drawn(c, "RandomUniform", low=low, high=high)


@_draws("aten.exponential")
def _exponential(c: AtenCall) -> Value:
    """Never 0, as in PyTorch: half an ulp of 1 at least."""
    wide = _wide(c.dtype)
    least = float(np.finfo(wide.numpy).eps) / 2
    below = TensorTerm(c, _drawn(c, "RandomUniform", wide))
    found = -(1.0 - below).op("Log")
    scaled = found.op("Max", least) * (1.0 / float(c["lambd"]))
    return scaled.cast(c.dtype).value


@_draws("aten.geometric")
def _geometric(c: AtenCall) -> Value:
    """How many trials it takes until the first one succeeds."""
    wide = float64 if c.dtype is float64 or c.dtype.is_int else float32
    below = TensorTerm(c, _drawn(c, "RandomUniform", wide))
    failures = (1.0 - below).op("Log") * (1.0 / math.log1p(-float(c["p"])))
    return (failures.op("Floor") + 1.0).cast(c.dtype).value


@_draws("aten.log_normal")
def _log_normal(c: AtenCall) -> Value:
    how = {"mean": float(c["mean"]), "scale": float(c["std"])}
    drawn = _drawn(c, "RandomNormal", _wide(c.dtype), **how)
    return c.cast(c.op("Exp", drawn), c.dtype)


@_draws("aten.bernoulli.p")
def _bernoulli(c: AtenCall) -> Value:
    """1 with a probability."""
    drawn = _drawn(c, "RandomUniform", float32)
    below = c.op("Less", drawn, c.number(c["p"], float32))
    return c.cast(below, c.dtype)


@_draws("aten.randint", "aten.randint_like")
def _integers(c: AtenCall) -> Value:
    low = c["low"] or 0
    high = c["high"]
    if not isinstance(low, int) or not isinstance(high, int):
        raise c.refuse("its range is known only at run time")
    if high - low > 1 << 53:
        raise c.refuse(f"its range of {high - low:,} numbers")
    drawn = _drawn(c, "RandomUniform", float64)
    place = c.op("Floor", c.op("Mul", drawn, c.number(high - low, float64)))
    found = c.op("Add", c.cast(place, int64), c.number(low, int64))
    return c.cast(found, c.dtype)


@_draws("aten.randperm")
def _permutation(c: AtenCall) -> Value:
    """The order of numbers that are drawn: equal ones, in float64, do not occur."""
    fixed = c.fixed()
    if fixed is None:
        raise c.refuse("its count is known only at run time")
    keys = _drawn(c, "RandomUniform", float64)
    count = c.ints(*fixed)
    _, places = c.build.ops("TopK", keys, count, count=2, axis=0, largest=0, sorted=1)
    return c.cast(places, c.dtype)


def _drawn(c: AtenCall, op_type: str, dtype: DType | None = None, **how: Any) -> Value:
    """Random numbers in the shape of the result; those of short floats are rounded."""
    wanted = dtype or c.dtype
    work = _wide(wanted)
    fixed = c.fixed()
    number = number_of(work.name)
    if fixed is not None:
        found = c.op(op_type, shape=tuple(fixed), dtype=number, **how)
    else:
        shape = c.sizes(c["size"]) if c.has("size") else c.op("Shape", c.tensor())
        like = c.op("Expand", c.number(0, work), shape)
        found = c.op(f"{op_type}Like", like, dtype=number, **how)
    return c.cast(found, wanted)


def _wide(dtype: DType) -> DType:
    """The type that numbers are computed in."""
    return float64 if dtype is float64 else float32
