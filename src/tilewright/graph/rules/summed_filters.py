"""Sums of convolutions of one image as one convolution (RepVGG's re-parameterization).

    conv(x, w) + conv(x, v) * c - BatchNormalization(x) + x  =  conv(x, u)

where u is the sum of the weights: a smaller kernel is added to the positions of the larger one that
read the same elements, and a factor per channel, a normalization at inference or x itself counts as
a depthwise kernel of one position. MobileOne, RepVGG, RepGhost, RepViT and FastViT have such sums
in training form, and `x + depthwise(x)` is common. One of the terms must have the shape of u: the
sum then costs no more than this term, and reads no element that no term reads.

The sides round differently, and for an infinite element of x, two terms of opposite sign give NaN
where their sum may give infinity; `--math exact` disables the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32, float64
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.norm import normalizes_by_batch
from tilewright.graph.ops.windows import Windows
from tilewright.graph.rules.batchnorm import along_channels, factor_and_shift, scaled
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import onnx
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.drawing import RandomGraph, drawn
from tilewright.graph.rules.substitutions.geometry import (
    attributes_of,
    group_of,
    windows_of,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ImageFilter:
    """A convolution of `source`. factor, bias: per channel, in float64; the weight is still to be
    multiplied by the factor. operations: those it is computed by. terms: how many filters were
    summed.
    """

    source: Value
    windows: Windows
    group: int
    weight: Array
    factor: Array
    bias: Array
    operations: tuple[Operation, ...] = ()
    terms: int = 1

    def scaled(self) -> Array | None:
        """The weight times the factor; None if its type cannot represent that."""
        if np.array_equal(self.factor, np.ones_like(self.factor)):
            return self.weight
        return scaled(self.weight, self.factor)


# ----------------------------------------------------------------- what a value is as a filter


Known = Mapping[Value, ImageFilter]
Form = Callable[[Graph, Known, Operation], ImageFilter | None]


def filter_at(graph: Graph, op: Operation) -> ImageFilter | None:
    """The filter that an operation and those before it compute; None if they compute none."""
    known: dict[Value, ImageFilter] = {}
    for inner in _region(graph, op):
        found = _FORMS[inner.qualified](graph, known, inner)
        if found is not None:
            operations = (*found.operations, inner)
            known[_result(inner)] = replace(found, operations=operations)
    return known.get(_result(op))


def _region(graph: Graph, op: Operation) -> Sequence[Operation]:
    """The operations that may be part of a filter that ends with `op`, in an order in which they
    can run; none if no convolution or no sum of two images is among them.

    Nothing else reads their results but that of `op`.
    """
    found = []
    following = [op] if _has_form(op) else []
    while following:
        inner = following.pop()
        found.append(inner)
        images = () if inner.qualified == "Conv" else dict.fromkeys(inner.reads)
        for v in images:
            made = graph.producer(v)
            alone = len(graph.users(v)) == 1 and v not in graph.outputs
            if made is not None and alone and _has_form(made):
                following.append(made)
    convolves = any(inner.qualified == "Conv" for inner in found)
    sums = any(
        inner.qualified in ("Add", "Sub")
        and graph.constants.keys().isdisjoint(inner.reads)
        for inner in found
    )
    return found[::-1] if convolves and sums else ()


def _has_form(op: Operation) -> bool:
    """Whether an operation has a row in the table of forms, and one result, an image of known
    shape."""
    (result, *more) = op.outputs
    if op.qualified not in _FORMS or result is None:
        return False
    if any(v is not None for v in more):
        return False
    if not result.static or len(result.extents) < 3:
        return False
    return result.dtype in _TYPES


def _result(op: Operation) -> Value:
    (result, *_) = op.outputs
    assert result is not None
    return result


_TYPES: Final = (float32, float64)


def _itself(v: Value) -> ImageFilter:
    assert v.dtype is not None
    _, channels, *spatial = v.extents
    none = (0,) * len(spatial)
    one = (1,) * len(spatial)
    whole = tuple(spatial)
    windows = Windows(whole, one, one, one, none, none, whole)
    weight = np.ones((channels, 1, *one), v.dtype.numpy)
    return ImageFilter(
        v, windows, channels, weight, np.ones(channels), np.zeros(channels)
    )


def _convolution(graph: Graph, known: Known, op: Operation) -> ImageFilter | None:
    x, w, *rest = op.inputs
    bias = rest[0] if rest else None
    if x is None or w is None or not x.static or w not in graph.constants:
        return None
    if bias is not None and bias not in graph.constants:
        return None
    weight = graph.constants[w]
    shift = np.zeros(len(weight)) if bias is None else graph.constants[bias]
    shift = shift.astype(np.float64)
    return ImageFilter(
        x, windows_of(op), group_of(op), weight, np.ones(len(weight)), shift
    )


def _sum(sign: int) -> Form:
    def form(graph: Graph, known: Known, op: Operation) -> ImageFilter | None:
        """x + sign * y; either may be a number per channel."""
        x, y = op.inputs
        assert x is not None and y is not None
        one = _per_channel(graph, x, op)
        other = _per_channel(graph, y, op)
        if one is None and other is None:
            left = _operand(known, x, op)
            right = _operand(known, y, op)
            if left is None or right is None or left.source is not right.source:
                return None
            return added(left, _times(right, sign))
        if other is not None:
            left = _operand(known, x, op)
            return left and replace(left, bias=left.bias + sign * other)
        right = _times(_operand(known, y, op), sign)
        return right and replace(right, bias=right.bias + one)

    return form


def _product(graph: Graph, known: Known, op: Operation) -> ImageFilter | None:
    """x * c, with a number c per channel."""
    x, y = op.inputs
    assert x is not None and y is not None
    for image, number in ((x, y), (y, x)):
        factor = _per_channel(graph, number, op)
        if factor is not None:
            return _times(_operand(known, image, op), factor)
    return None


def _normalization(graph: Graph, known: Known, op: Operation) -> ImageFilter | None:
    x, *parameters = op.inputs
    if normalizes_by_batch(op):
        return None
    arrays = [graph.constants.get(v) for v in parameters if v is not None]
    given = [a.astype(np.float64) for a in arrays if a is not None]
    whole = len(given) == 4 and all(a.shape == _result(op).extents[1:2] for a in given)
    if x is None or not whole:
        return None
    with np.errstate(all="ignore"):
        factor, shift = factor_and_shift(op, *given)
    found = _times(_operand(known, x, op), factor)
    return found and replace(found, bias=found.bias + shift)


_FORMS: Final[Mapping[str, Form]] = {
    "Conv": _convolution,
    "Add": _sum(1),
    "Sub": _sum(-1),
    "Mul": _product,
    "BatchNormalization": _normalization,
}


def _operand(known: Known, v: Value, op: Operation) -> ImageFilter | None:
    """The filter of an operand; None if it is not of the result's shape."""
    same = v.static and v.extents == _result(op).extents
    return (known.get(v) or _itself(v)) if same else None


def _per_channel(graph: Graph, v: Value, op: Operation) -> Array | None:
    """The numbers of a constant, one per channel of the result, in float64."""
    extents = _result(op).extents
    array = graph.constants.get(v)
    return None if array is None else along_channels(array, len(extents), extents[1])


def _times(f: ImageFilter | None, factor: Any) -> ImageFilter | None:
    """The filter, times numbers per channel."""
    return f and replace(f, factor=f.factor * factor, bias=f.bias * factor)


# ----------------------------------------------------------------------------------------- sums


def added(one: ImageFilter, other: ImageFilter | None) -> ImageFilter | None:
    """The sum of two filters of one image, with results of one shape; None if neither has the
    sum's shape."""
    if other is None:
        return None
    large, small = sorted((one, other), key=lambda f: -f.weight.size)
    start = _place(small.windows, large.windows)
    outer = large.scaled()
    inner = small.scaled()
    if start is None:
        return None
    if outer is None or inner is None:
        return None
    inner = _grouped(inner, small.group, large)
    if inner is None:
        return None
    weight = outer.copy()
    taps = zip(start, small.windows.kernel, strict=True)
    at = tuple(slice(first, first + extent) for first, extent in taps)
    with np.errstate(all="ignore"):
        weight[(slice(None), slice(None), *at)] += inner
    return replace(
        large,
        weight=weight,
        factor=np.ones(len(weight)),
        bias=large.bias + small.bias,
        operations=tuple(dict.fromkeys((*one.operations, *other.operations))),
        terms=one.terms + other.terms,
    )


def _grouped(weight: Array, group: int, large: ImageFilter) -> Array | None:
    """A weight of so many groups in those of `large`; None if it reads other channels.

    A depthwise one may be in any groups, with zeros for the other channels of its group.
    """
    if group == large.group:
        return weight
    channels, own, *kernel = weight.shape
    depth = large.weight.shape[1]
    if group != channels or own != 1:
        return None
    wide = np.zeros((channels, depth, *kernel), weight.dtype)
    numbers = np.arange(channels)
    wide[numbers, numbers % depth] = weight[:, 0]
    return wide


def _place(small: Windows, large: Windows) -> tuple[int, ...] | None:
    """Where in the window of `large` that of `small` begins; None if it is not inside."""
    if small.strides != large.strides:
        return None
    found = []
    for n, extent in enumerate(small.kernel):
        step = large.dilations[n]
        before = large.begin[n] - small.begin[n]
        spaced = extent == 1 or small.dilations[n] == step
        first = before // step
        if not spaced or before % step or not 0 <= first <= large.kernel[n] - extent:
            return None
        found.append(first)
    return tuple(found)


# ---------------------------------------------------------------------------------------- the rule


class SumOfFilters:
    """The largest sums of at least two filters of one image, one of them a convolution."""

    names = onnx.Add.names | onnx.Sub.names | onnx.Mul.names
    names |= onnx.BatchNormalization.names

    def matches(self, graph: Graph, op: Operation) -> Iterator[Match]:
        """The region that ends with `op`."""
        found = filter_at(graph, op)
        if found is None or found.terms < 2:
            return
        if any(inner.qualified == "Conv" for inner in found.operations):
            kept = {"filter": found}
            yield Match(graph, op, dict(enumerate(found.operations)), kept)

    def __str__(self) -> str:
        return "Conv(x, w) + Conv(x, v) * c - BatchNormalization(x) + x ..."


def _one_convolution(m: Match, f: Fragment) -> Value | None:
    """Conv(x, sum of the weights)"""
    found: ImageFilter = m.kept["filter"]
    with np.errstate(over="ignore"):
        bias = found.bias.astype(found.weight.dtype)
    weight = found.scaled()
    if weight is None or not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        return None
    how = attributes_of(found.windows, found.group)
    return f.op("Conv", found.source, f.constant(weight), f.constant(bias), **how)


def _samples(draw: RandomGraph) -> list[Value]:
    """Two to four terms over one image, with an odd one now and then."""
    rank = draw.one_of(1, 2)
    group = draw.one_of(1, 1, 2, 4)
    stride = draw.one_of(1, 1, 2)
    image = draw.input(draw.extent(1, 2), 4, *[draw.one_of(4, 5)] * rank)
    terms = [_term(draw, image, group, stride) for _ in range(draw.one_of(2, 3, 4))]
    result = terms[0]
    for term in terms[1:]:
        if term.extents != result.extents:
            continue
        pair = (result, term) if draw.maybe() else (term, result)
        result = draw.f.op(draw.one_of("Add", "Sub"), *pair)
        if draw.maybe(0.3):
            number = draw.weight(*draw.one_of((), (4, *[1] * rank)))
            result = draw.f.op(draw.one_of("Mul", "Add", "Sub"), result, number)
    return [result]


def _term(draw: RandomGraph, image: Value, group: int, stride: int) -> Value:
    rank = len(image.extents) - 2
    if draw.maybe(0.2):
        return image
    if draw.maybe(0.2):
        near = [draw.weight(4) for _ in range(3)]
        spread = draw.f.constant(draw.rng.uniform(0.5, 2, 4), draw.dtype)
        return draw.f.op("BatchNormalization", image, *near, spread, version=15)
    dilation = draw.one_of(1, 1, 1, 2)
    kernel = [draw.one_of(1, 3, 3) for _ in range(rank)]
    if draw.maybe(0.1):
        group = draw.one_of(1, 2, 4)
        stride = draw.one_of(1, 2)
    parameters = [draw.weight(4, 4 // group, *kernel)]
    if draw.maybe():
        parameters.append(draw.weight(4))
    pads = [k // 2 * dilation for k in kernel]
    if draw.maybe(0.1):
        pads = [p + draw.one_of(0, 1) for p in pads]
    return draw.f.op(
        "Conv",
        image,
        *parameters,
        pads=pads * 2,
        strides=[stride] * rank,
        dilations=[dilation] * rank,
        group=group,
    )


SUMMED_FILTERS = Rule(
    "sum-of-filters",
    SumOfFilters(),
    _one_convolution,
    exact=False,
    finite=True,
    samples=drawn(_samples),
)
