"""Sums, extrema, statistics, scans and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import DType, bool_, float32, float64, int64
from tilewright.frontends.torch.aten.operators.control import body_input
from tilewright.frontends.torch.aten.operators.special import log_of_more
from tilewright.frontends.torch.aten.rules import AtenCall, positive, rule
from tilewright.frontends.torch.aten.wide import in_float32
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm

_END: Final = (1 << 63) - 1
_REDUCTIONS: Final = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "amax": "ReduceMax",
    "amin": "ReduceMin",
    "prod": "ReduceProd",
    "logsumexp": "ReduceLogSumExp",
}


def reduced(
    c: AtenCall,
    op_type: str,
    x: Value,
    axes: list[int],
    keep: bool,
) -> Value:
    """A reduction over axes; a tensor without axes is returned as is."""
    rank = len(x.shape or ())
    if not rank:
        return x
    found = c.op(op_type, x, c.ints(*axes), keepdims=int(keep))
    return found


def _reduction(op_type: str) -> Callable[[AtenCall], Value]:
    def apply(c: AtenCall) -> Value:
        x = c.tensor("self", c.dtype)
        axes = c.axes()
        keep = bool(c["keepdim"])
        return reduced(c, op_type, x, axes, keep)

    return apply


for _name, _op in _REDUCTIONS.items():
    rule(f"aten.{_name}")(_reduction(_op))


@rule("aten.max.default", "aten.min.default")
def _extremum(c: AtenCall) -> Value:
    op_type = "ReduceMax" if ".max" in c.name else "ReduceMin"
    return reduced(c, op_type, c.tensor(), c.axes(), keep=False)


@rule("aten.max.dim", "aten.min.dim")
def _extremum_and_place(c: AtenCall) -> tuple[Value, Value]:
    largest = ".max" in c.name
    x = c.tensor()
    axis = c.axis()
    keep = bool(c["keepdim"])
    if not c.rank():
        return x, c.number(0, int64)
    place = c.op("ArgMax" if largest else "ArgMin", x, axis=axis, keepdims=int(keep))
    name = "ReduceMax" if largest else "ReduceMin"
    return reduced(c, name, x, [axis], keep), place


@rule("aten.max.other", "aten.min.other")
def _larger(c: AtenCall) -> Value:
    op_type = "Max" if ".max" in c.name else "Min"
    a = c.tensor("self", c.dtype)
    b = c.tensor("other", c.dtype)
    return c.op(op_type, a, b)


@rule("aten.argmax", "aten.argmin")
def _place(c: AtenCall) -> Value:
    op_type = "ArgMax" if "argmax" in c.name else "ArgMin"
    if c.has("dim"):
        if not c.rank():
            return c.number(0, int64)
        keep = int(c["keepdim"])
        return c.op(op_type, c.tensor(), axis=c.axis(), keepdims=keep)
    flat = c.reshape(c.tensor(), [-1])
    found = c.op(op_type, flat, axis=0, keepdims=0)
    if c["keepdim"]:
        return c.reshape(found, [1] * c.rank())
    return found


@rule("aten.any", "aten.all")
def _logical(c: AtenCall) -> Value:
    """Count true or false elements; over no elements none is. Without axes, each element alone."""
    x = c.tensor("self", bool_)
    every = ".all" in c.name
    if c["dim"] != []:
        bits = c.cast(c.op("Not", x) if every else x, int64)
        axes = c.axes()
        keep = bool(c["keepdim"])
        count = reduced(c, "ReduceSum", bits, axes, keep)
        x = c.cast(count, bool_)
        if every:
            x = c.op("Not", x)
    return c.cast(x, c.dtype)


# -- statistics


@rule("aten.var", "aten.std", "aten.var_mean", "aten.std_mean")
def _variance(c: AtenCall) -> Value | tuple[Value, Value]:
    """Divided by `count - correction`; the default correction is 1. At least in float32."""
    name = c.name.split(".")[1]
    axes = c.axes()
    x = c.tensor("self", float64 if c.of("self").dtype.itemsize > 4 else float32)
    keep = bool(c["keepdim"])
    mean = reduced(c, "ReduceMean", x, axes, keep=True)
    away = TensorTerm(c, x) - TensorTerm(c, mean)
    square = (away * away).value
    total = TensorTerm(c, reduced(c, "ReduceSum", square, axes, keep))
    found = (total / _freedom(c, x, axes)).value
    if name.startswith("std"):
        found = c.op("Sqrt", found)
    if not name.endswith("mean"):
        return found
    if not keep and c.rank():
        mean = c.squeeze(mean, *axes)
    return found, mean


def _freedom(c: AtenCall, x: Value, axes: list[int]) -> Value:
    """The number of elements over the axes minus the correction, but at least 0; a scalar."""
    correction = c["correction"]
    if correction is None:
        if c["unbiased"] in (None, True):
            correction = 1
        else:
            correction = 0
    extents = [c.extent(a) for a in axes] if c.rank() else []
    known = [n for n in extents if n is not None]
    if len(known) == len(extents):
        return c.number(max(math.prod(known) - correction, 0), x.dtype)
    sizes = c.op("Gather", c.op("Shape", x), c.ints(*axes), axis=0)
    count = c.cast(c.op("ReduceProd", sizes, keepdims=0), float64)
    left = TensorTerm(c, count) - float(correction)
    return c.cast(left.op("Max", 0).value, x.dtype or float32)


@rule("aten.linalg_vector_norm", "aten.norm", "aten.frobenius_norm")
@in_float32
def _norm(c: AtenCall) -> Value:
    if c.has("ord"):
        order = c["ord"]
    elif c.has("p"):
        order = c["p"]
    else:
        order = 2
    x = c.tensor("self", c.dtype)
    keep = bool(c["keepdim"])
    return _normed(c, x, order, c.axes(), keep)


@rule("aten.cdist", "aten._cdist_forward")
def _distances(c: AtenCall) -> Value:
    """The distance of each row of one tensor from each row of the other."""
    a = c.unsqueeze(c.tensor("x1"), -2)
    b = c.unsqueeze(c.tensor("x2"), -3)
    away = c.op("Sub", a, b)
    last = len(c.result.shape)
    return _normed(c, away, c["p"], [last], keep=False)


@rule("aten._pdist_forward", "aten.pdist")
def _distances_of_pairs(c: AtenCall) -> Value:
    """The distance of each row from each later one."""
    rows = c.extent(0)
    if rows is None:
        raise c.refuse("its number of rows is known only at run time")
    pairs = [c.build.constant(n) for n in np.triu_indices(rows, 1)]
    a, b = (c.op("Gather", c.tensor(), n, axis=0) for n in pairs)
    away = c.op("Sub", a, b)
    return _normed(c, away, c["p"], [1], keep=False)


def _normed(
    c: AtenCall,
    x: Value,
    order: float,
    axes: list[int],
    keep: bool,
) -> Value:
    size = c.op("Abs", x)
    if order == math.inf:
        return reduced(c, "ReduceMax", size, axes, keep)
    if order == -math.inf:
        return reduced(c, "ReduceMin", size, axes, keep)
    if order in (1, 2):
        name = "ReduceL1" if order == 1 else "ReduceL2"
        return reduced(c, name, size if not x.shape else x, axes, keep)
    if order == 0:
        there = ~TensorTerm(c, x).equals(0)
        ones = there.cast(c.dtype).value
        return reduced(c, "ReduceSum", ones, axes, keep)
    powers = c.op("Pow", size, c.number(order))
    total = reduced(c, "ReduceSum", powers, axes, keep)
    exponent = c.number(1 / order)
    return c.op("Pow", total, exponent)


@rule("aten.softmax.int", "aten._softmax", "aten.log_softmax.int", "aten._log_softmax")
def _softmax(c: AtenCall) -> Value:
    return _shares(c)


def _shares(c: AtenCall) -> Value:
    op_type = "LogSoftmax" if "log_softmax" in c.name else "Softmax"
    x = c.tensor("self", c.dtype)
    if not c.rank():
        zero = c.op("Sub", x, x)  # NaN for elements that are not finite
        if op_type == "LogSoftmax":
            return zero
        return c.op("Exp", zero)
    axis = c.axis()
    return c.op(op_type, x, axis=axis)


@rule("aten._safe_softmax")
def _safe_softmax(c: AtenCall) -> Value:
    """Zeros if all elements are minus infinity."""
    x = c.tensor("self", c.dtype)
    found = _shares(c)
    highest = reduced(c, "ReduceMax", x, [c.axis()], keep=True)
    condition = c.op("Equal", highest, c.number(-math.inf))
    return c.op("Where", condition, c.number(0), found)


# -- scans and orders


@rule("aten.cumsum")
@in_float32
def _cumsum(c: AtenCall) -> Value:
    return _scanned(c, "CumSum")


def _scanned(c: AtenCall, op_type: str) -> Value:
    """A scan along an axis; a tensor without axes is returned as is."""
    x = c.tensor("self", c.dtype)
    if not c.rank():
        return x
    axis = c.value(c.axis(), int64)
    return c.op(op_type, x, axis)


@rule("aten.logcumsumexp", "aten._logcumsumexp")
def _log_cumsum_exp(c: AtenCall) -> Value:
    """A scan whose state is the logarithm of the sum so far, at least in float32."""
    if not c.rank():
        return c.tensor()
    order = list(range(c.rank()))
    order.insert(0, order.pop(c.axis()))
    wide = float64 if c.dtype is float64 else float32
    rows = c.op("Transpose", c.tensor(dtype=wide), perm=order)
    shape = c.op("Shape", rows, start=1)
    start = c.op("Expand", c.number(-math.inf, wide), shape)
    inputs = [body_input(c, start), body_input(c, start)]

    def step() -> list[Value]:
        found = _log_sum(*(TensorTerm(c, v) for v in inputs))
        return [found.value] * 2

    body = c.build.body(inputs, step)
    how: dict[str, Any] = {"body": body, "num_scan_inputs": 1}
    _, found = c.build.ops("Scan", start, rows, count=2, **how)
    back = sorted(range(c.rank()), key=order.__getitem__)
    return c.op("Transpose", c.cast(found, c.dtype), perm=back)


def _log_sum(a: TensorTerm, b: TensorTerm) -> TensorTerm:
    """The logarithm of the sum of two numbers that are given by their logarithms."""
    largest = a.op("Max", b)
    share = (-abs(a - b)).op("Exp")
    found = largest + log_of_more(share)
    return largest.op("IsInf").chosen(largest, found)


@rule("aten.topk")
def _topk(c: AtenCall) -> list[Value]:
    if not c.rank():
        return [c.tensor(), c.number(0, int64)]
    k = c.sizes([c["k"]])
    how: dict[str, Any] = {"largest": int(c["largest"]), "sorted": int(c["sorted"])}
    return c.build.ops("TopK", c.tensor(), k, count=2, axis=c.axis(), **how)


@rule("aten.sort", "aten.argsort")
def _sort(c: AtenCall) -> Value | list[Value]:
    axis = positive(int(-1 if c["dim"] is None else c["dim"]), c.rank())
    if not c.rank():
        found = [c.tensor(), c.number(0, int64)]
    else:
        extent = c.extent(axis)
        if extent is None:
            shape = c.op("Shape", c.tensor(), start=axis, end=axis + 1)
        else:
            shape = c.ints(extent)
        largest = int(bool(c["descending"]))
        found = c.build.ops(
            "TopK", c.tensor(), shape, count=2, axis=axis, largest=largest, sorted=1
        )
    return found[1] if "argsort" in c.name else found


@rule("aten.cumprod")
@in_float32
def _cumprod(c: AtenCall) -> Value:
    return _scanned(c, "CumProd")


@rule("aten.cummax", "aten.cummin")
def _running_extremum(c: AtenCall) -> tuple[Value, Value]:
    """Of the elements up to each one, with the last position that has it."""
    x = c.tensor()
    if not c.rank():
        return x, c.number(0, int64)
    axis = c.axis()
    extent = c.extent(axis)
    if extent is None:
        raise c.refuse("its extent is known only at run time")
    behind = [1] * (c.rank() - 1 - axis)
    numbers = np.arange(extent)
    earlier = numbers[None, :] <= numbers[:, None]
    before = c.build.constant(earlier.reshape(extent, extent, *behind))
    every = c.unsqueeze(x, axis)
    largest = "cummax" in c.name
    neutral = c.number(least(c.dtype, largest))
    seen = c.op("Where", before, every, neutral)
    name = "ReduceMax" if largest else "ReduceMin"
    found = reduced(c, name, seen, [axis + 1], keep=False)
    term = TensorTerm(c, every)
    same = term.equals(c.unsqueeze(found, axis + 1))
    if c.dtype.is_float:
        same = same | term.op("IsNaN")
    numbered = c.build.constant(numbers.reshape(extent, *behind))
    here = same & TensorTerm(c, before)
    places = here.chosen(numbered, 0)
    last = places.op("ReduceMax", c.ints(axis + 1), keepdims=0)
    return found, last.value


def least(dtype: DType, largest: bool) -> float:
    """The value that no element is below, or above if `largest` is not set."""
    if dtype is bool_:
        return not largest
    if dtype.is_float:
        return -math.inf if largest else math.inf
    return int(dtype.min if largest else dtype.max)


@rule("aten.kthvalue")
def _kth(c: AtenCall) -> list[Value]:
    if not c.rank():
        return [c.tensor(), c.number(0, int64)]
    axis = c.axis()
    k = c.sizes([c["k"]])
    found = c.build.ops("TopK", c.tensor(), k, count=2, axis=axis, largest=0, sorted=1)
    last = [c.op("Slice", v, c.ints(-1), c.ints(_END), c.ints(axis)) for v in found]
    if c["keepdim"]:
        return last
    return [c.squeeze(v, axis) for v in last]


@rule("aten.searchsorted", "aten.bucketize")
def _searched(c: AtenCall) -> Value:
    """The number of elements in order that are before each value."""
    name = "boundaries" if c.has("boundaries") else "sorted_sequence"
    dtype = c.promoted(name, "self")
    line = c.tensor(name, dtype)
    if c.has("sorter"):
        order = c.tensor("sorter")
        line = c.op("GatherElements", line, order, axis=-1)
    value = c.tensor("self", dtype)
    alone = True
    if isinstance(c["self"], Value):
        alone = not c.rank()
    if not alone:
        value = c.unsqueeze(value, -1)
        if c.rank(name) > 1:
            line = c.unsqueeze(line, -2)
    right = c["right"] or c["side"] == "right"
    after = c.op("Greater" if right else "GreaterOrEqual", line, value)
    before = c.op("Not", after)
    ones = c.cast(before, int64)
    last = c.ints(-1)
    count = c.op("ReduceSum", ones, last, keepdims=0)
    return c.cast(count, c.dtype)
