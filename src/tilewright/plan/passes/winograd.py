"""Winograd convolutions where they are profitable: the target decides per layer.

A group that starts with a convolution by constant weights becomes the law's Computations
(`compute/winograd.py`); the map behind the convolution moves behind the transform of the results.
Both transforms want channels side by side in memory. Where the model's own inputs and outputs are
stored otherwise, a group in front and one behind move the data, if the layer is worth that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from tilewright.base import events
from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import identity_dims, inline, order_dims, relayout
from tilewright.compute.winograd import WINDOW, winograd
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.ir.node import postorder
from tilewright.plan.nodes import DefUse, FusionGroup, Step
from tilewright.plan.questions import Cost

Group = tuple[Computation, ...]


@dataclass(frozen=True, slots=True)
class Forms:
    """What to choose from, and by what.

    tiles: results of a tile per axis. cost: nanoseconds that the target expects of Computations as
    one kernel, None where another form is better. moved_products: multiply-adds per result that pay
    for moving an element.
    """

    tiles: Sequence[int]
    cost: Cost
    moved_products: int


def transform_convolutions(
    steps: Sequence[Step],
    forms: Forms,
    constants: Collection[Buffer],
    keep: Collection[Buffer] = (),
) -> list[Step]:
    """The steps, convolutions in Winograd's form where that pays. keep: what leaves the model."""
    around = _Around(set(constants), set(keep), DefUse(steps))
    found: list[Step] = []
    for step in steps:
        form = _best(step, forms, around) if isinstance(step, FusionGroup) else None
        around.done.add(step)
        if form is None or not isinstance(step, FusionGroup):
            found.append(step)
            continue
        name = f"{step.name} F({form.tile},{WINDOW})"
        events.emit("winograd", stage=name, tile=form.tile)
        for c in form.before:
            around.moved[c.inputs[0]] = c.outputs[0].tensor
            found.append(FusionGroup(f"{name}.in", (c,), step.sources))
        found.append(
            replace(step, name=name, computations=form.group, flops=_flops(form.group))
        )
        found += [FusionGroup(f"{name}.out", (c,), step.sources) for c in form.behind]
    return found


@dataclass(frozen=True, slots=True)
class _Around:
    """What a group has around it: constants, what leaves the model, who writes and reads what.

    done: the steps in front. moved: tensors of which a copy with channels last exists.
    """

    constants: set[Buffer]
    keep: set[Buffer]
    flow: DefUse
    done: set[Step] = field(default_factory=set)
    moved: dict[Buffer, Buffer] = field(default_factory=dict)

    def is_whole(self, tensor: Buffer) -> bool:
        """Whether all that is ever written of a tensor has been: a copy of it stays right.

        Parts of a concatenation that tensors live in are written one by one, between its readers.
        """
        return self.done.issuperset(self.flow.writers.get(tensor, ()))

    def is_inner(self, tensor: Buffer) -> bool:
        """Whether only the group that writes a tensor uses it, so that it need not exist."""
        once = len(self.flow.writers[tensor]) == 1
        return once and tensor not in self.keep and not self.flow.readers.get(tensor)


@dataclass(frozen=True, slots=True)
class _Form:
    """A convolution by tiles of `tile` x `tile` results; copies before and behind it."""

    tile: int
    group: Group
    before: Group
    behind: Group


def _best(stage: FusionGroup, forms: Forms, around: _Around) -> _Form | None:
    """The form of least cost; None where none pays.

    requires: all of the data is there, as copies of it and tiles beyond the windows read it.
    """
    best: tuple[float, _Form] | None = None
    for tile in forms.tiles:
        group = _transformed(stage, around, tile)
        if group is None or not all(around.is_whole(b) for b in group[1].inputs):
            continue
        form = _Form(tile, *_channels_last(group, around.moved))
        expected = forms.cost(form.group)
        if expected is None or (
            (form.before or form.behind) and _products(group) < forms.moved_products
        ):
            continue
        if best is None or expected < best[0]:
            best = expected, form
    return None if best is None else best[1]


def _transformed(stage: FusionGroup, around: _Around, tile: int) -> Group | None:
    """A convolution, alone or with a map behind it, by the law; None for any other group.

    The result of a convolution with a map behind it is not written any more: nobody else reads it.
    """
    if not 1 <= len(stage.computations) <= 2:
        return None
    first, *rest = stage.computations
    parts = winograd(first, tile)
    if parts is None or not all(b in around.constants for b in parts[0].inputs):
        return None
    *before, result = parts
    if rest:
        whole = inline(result, rest[0])
        if not around.is_inner(first.outputs[0].tensor):
            return None
        if (
            whole is None
            or not rest[0].is_map
            or first.outputs[0].tensor in whole.inputs
        ):
            return None
        result = whole
    return (*before, result)


def _channels_last(
    group: Group, moved: dict[Buffer, Buffer]
) -> tuple[Group, Group, Group]:
    """The group on tensors whose channels are their last axis, with copies before and behind it.

    moved: tensors of which such a copy exists.
    """
    filters, inputs, product, result = group
    before: Group = ()
    behind: Group = ()
    (data,) = inputs.inputs
    axis = _axis(inputs.accesses[0].index, inputs.dims[-1].var)
    if axis is not None and axis < len(data.shape) - 1:
        order = _last(axis, len(data.shape))
        last = moved.get(data) or _stored(data, order)
        if data not in moved:
            before = (_copy(data, last, order, into=True),)
        inputs = relayout(inputs, {data: (last, order)})
    out = result.outputs[0]
    read = next(a for a in result.accesses if a.buffer is product.outputs[0].tensor)
    axis = _axis(out.index, read.index[-1])
    whole = identity_dims(result) is not None  # and not one part of a concatenation
    if whole and axis is not None and axis < len(out.tensor.shape) - 1:
        order = _last(axis, len(out.tensor.shape))
        last = _stored(out.tensor, order)
        behind = (_copy(out.tensor, last, order, into=False),)
        result = order_dims(relayout(result, {out.tensor: (last, order)}))
    return (filters, inputs, product, result), before, behind


def _axis(index: Sequence[Expr], v: Expr) -> int | None:
    """The axis that `v` indexes; None for several or none."""
    found = [n for n, i in enumerate(index) if any(x is v for x in postorder(i))]
    return found[0] if len(found) == 1 else None


def _last(axis: int, rank: int) -> tuple[int, ...]:
    return (*(n for n in range(rank) if n != axis), axis)


def _stored(tensor: Buffer, order: Sequence[int]) -> Buffer:
    return Buffer(
        f"{tensor.name}.last", tuple(tensor.shape[n] for n in order), tensor.dtype
    )


def _copy(
    tensor: Buffer, last: Buffer, order: Sequence[int], *, into: bool
) -> Computation:
    """Between a tensor and the one with its axes in `order`; the loops in the written one's."""

    def first(*i: Var) -> tuple[Var, ...]:
        return tuple(i[order.index(n)] for n in range(len(order)))

    if into:
        return map_("channels_last", last, lambda *i: Load(tensor, first(*i)))
    return map_(
        "channels_first", tensor, lambda *i: Load(last, tuple(i[n] for n in order))
    )


def _flops(group: Group) -> int:
    """Those of the products: what is done, and not what the direct sum would have done."""
    return 2 * math.prod(d.extent for d in group[2].dims)


def _products(group: Group) -> float:
    """Multiply-adds of a point of the image for each element of its channels, in and out: what
    Winograd saves a part of, for two copies."""
    depth, width = group[0].outputs[0].tensor.shape[1:]
    return depth * width / (depth + width)
