"""Winograd convolutions where they are profitable; the target decides per layer.

A group that starts with a convolution with constant weights becomes the law's Computations
(`compute/winograd.py`); the map after the convolution moves after the transform of the results.
The groups of a grouped convolution are transformed one by one (`compute/channel_groups.py`).
Both transforms need contiguous channels. If the model's inputs and outputs are stored otherwise, a
group before and one after the layer move the data, if that pays.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import reduce
from operator import mul
from types import MappingProxyType

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.compute.build import map_
from tilewright.compute.canonical import canonical
from tilewright.compute.channel_groups import by_group
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import identity_dims, inline, order_dims, relayout
from tilewright.compute.winograd import WINDOW, winograd
from tilewright.expr.nodes import Buffer, Expr, Extent, Load, Var
from tilewright.ir.node import postorder
from tilewright.plan.decisions import (
    DIRECT,
    WINDOWS,
    Refused,
    has_window,
    ignored,
    of_tile,
)
from tilewright.plan.nodes import DefUse, FusionGroup, Step
from tilewright.plan.offsets import in_second_place
from tilewright.plan.questions import Cost

Group = tuple[Computation, ...]


@dataclass(frozen=True, slots=True)
class WinogradForms:
    """The available forms and the criteria to choose by.

    tiles: results per tile and axis. cost: the target's estimate of Computations as one kernel in
    nanoseconds, None if another form is better. moved_ns: what a copy with another order of axes
    takes, per element; near: bytes of a tensor, at most, whose copy takes nothing. group_ns: what a
    kernel takes at least that computes one group of channels, where groups have kernels of theirs.
    """

    tiles: Sequence[int]
    cost: Cost
    moved_ns: float = 0.0
    near: int = 0
    group_ns: float = 0.0

    def only(self, name: str) -> WinogradForms:
        """The form of this name, whatever it costs; none if it is not available."""
        tiles = [t for t in self.tiles if of_tile(t) == name]
        return WinogradForms(tiles, lambda *_: 0.0)


def transform_convolutions(
    steps: Sequence[Step],
    forms: WinogradForms,
    constants: Collection[Buffer],
    keep: Collection[Buffer] = (),
    named: Mapping[FusionGroup, str] = MappingProxyType({}),
    refused: Refused = ignored,
) -> list[Step]:
    """The steps with Winograd convolutions where profitable. keep: outputs of the model.

    named: groups whose form is named, whatever it costs; see `plan.decisions`. refused: called for
    those that Winograd's method cannot compute as named; the cost decides about them.
    """
    around = _Around(set(constants), set(keep), DefUse(steps))
    found: list[Step] = []
    for step in steps:
        made = None
        if isinstance(step, FusionGroup):
            name = named.get(step)
            if name is None:
                made = _formed(step, forms, around)
            elif name not in (DIRECT, WINDOWS):
                made = _as_named(step, forms, around, name)
                if made is None:
                    refused(step, name)
                    made = _formed(step, forms, around)
        found += made or [step]
        around.done.update((step, *(made or ())))
    return found


def _as_named(
    step: FusionGroup, forms: WinogradForms, around: _Around, name: str
) -> list[Step] | None:
    """The groups of the form of this name; None if that is not possible."""
    # The expected costs are those of estimates.
    return _formed(step, forms.only(name), replace(around, expected={}))


def _formed(
    step: FusionGroup, forms: WinogradForms, around: _Around
) -> list[Step] | None:
    """The groups of the cheapest form, of the whole or by groups of channels; None if none pays."""
    return _transform(step, forms, around) or _by_group(step, forms, around)


def _transform(
    step: FusionGroup, forms: WinogradForms, around: _Around
) -> list[Step] | None:
    """The groups of the cheapest form, with the copies before and after it."""
    form = _best(step, forms, around)
    if form is None:
        return None
    tile = form.tile
    name = f"{step.name} F({tile},{WINDOW})"
    events.emit("winograd", stage=name, tile=tile)
    found: list[Step] = []
    for c in form.before:
        around.moved[c.inputs[0]] = c.outputs[0].tensor
        found.append(FusionGroup(f"{name}.in", (c,), step.sources))
    flops = product_flops(form.group)
    assert isinstance(flops, int)
    found.append(replace(step, name=name, computations=form.group, flops=flops))
    for c in form.behind:
        found.append(FusionGroup(f"{name}.out", (c,), step.sources))
    return found


def _by_group(
    step: FusionGroup, forms: WinogradForms, around: _Around
) -> list[Step] | None:
    """Each group of a grouped convolution transformed; None if that does not pay.

    requires: nothing else reads the result before the map. By estimate, each group takes long
    enough that starting a kernel for it does not take what its form saves.
    """
    if not has_window(step):
        return None
    first, *rest = step.computations
    parts = by_group(first, rest[0] if rest else None)
    if parts is None or (rest and not around.is_inner(first.outputs[0].tensor)):
        return None
    groups = [
        replace(
            step,
            name=f"{step.name} group {n}",
            computations=part,
            flops=step.flops // len(parts),
        )
        for n, part in enumerate(parts)
    ]
    # All or none: a copy that one makes must not be read by others if it is dropped.
    found = [_best(g, forms, around) for g in groups]
    if not all(form and _takes(form, forms) >= forms.group_ns for form in found):
        return None
    return [s for g in groups for s in _transform(g, forms, around) or [g]]


def _takes(form: _Form, forms: WinogradForms) -> float:
    """The expected nanoseconds of a form that was chosen by them."""
    taken = forms.cost(form.group)
    return 0.0 if taken is None else taken


def open_forms(
    steps: Sequence[Step],
    group: FusionGroup,
    tiles: Sequence[int],
    constants: Collection[Buffer],
    keep: Collection[Buffer],
) -> list[FusionGroup]:
    """The forms of a convolution of an open plan whose channels are last; a tile's size each.

    steps: of the plan. keep: outputs of the model.
    """
    done = set(steps[: steps.index(group)])
    around = _Around(set(constants), set(keep), DefUse(steps), done)
    found = []
    for tile in tiles if has_window(group) else ():
        parts = _transformed(group, around, tile)
        if parts is None or not all(map(around.is_whole, parts[1].inputs)):
            continue
        inputs, result = parts[1], parts[-1]
        out = result.outputs[0]
        multiplied = parts[2].outputs[0].tensor
        read = next(a for a in result.accesses if a.buffer is multiplied)
        last = _last(inputs.accesses[0].index, inputs.dims[-1].var)
        if last is None and _last(out.index, read.index[-1]) is None:
            found.append(replace(group, computations=parts))
    return found


@dataclass(frozen=True, slots=True)
class _Around:
    """The context of a group: constants, outputs of the model, writers and readers.

    done: the steps before it. moved: tensors with an existing channel-last copy. expected: by the
    canonical text of a group and a tile, the cost of its form, which neither names change nor the
    place of the results in their tensor: layers of a dense block differ in both.
    """

    constants: set[Buffer]
    keep: set[Buffer]
    flow: DefUse
    done: set[Step] = field(default_factory=set)
    moved: dict[Buffer, Buffer] = field(default_factory=dict)
    expected: dict[tuple[str, int], float | None] = field(default_factory=dict)

    def is_whole(self, tensor: Buffer) -> bool:
        """Whether all writes to a tensor have happened, so that a copy of it stays correct.

        Parts of a concatenation that holds tensors are written one by one, between its readers.
        """
        return self.done.issuperset(self.flow.writers.get(tensor, ()))

    def is_inner(self, tensor: Buffer) -> bool:
        """Whether only the writing group uses a tensor, so that it need not exist."""
        if len(self.flow.writers.get(tensor, ())) > 1:
            return False
        if tensor in self.keep:
            return False
        return not self.flow.readers.get(tensor)


@dataclass(frozen=True, slots=True)
class _Form:
    """A convolution in tiles of `tile` x `tile` results, with copies before and after it."""

    tile: int
    group: Group
    before: Group
    behind: Group


def _best(group: FusionGroup, forms: WinogradForms, around: _Around) -> _Form | None:
    """The cheapest form; None if none is profitable.

    requires: all of the data is initialized, since copies and tiles beyond the windows read it.
    """
    if not has_window(group):
        return None
    best: _Form | None = None
    least = math.inf
    text = canonical(in_second_place(group.computations), ())
    for tile in forms.tiles:
        key = (text, tile)
        known = around.expected.get(key, 0.0)
        if known is None:
            continue
        if known >= least:
            continue
        parts = _transformed(group, around, tile)
        if parts is None:
            continue
        if not all(map(around.is_whole, parts[1].inputs)):
            continue
        form = _channels_last(tile, parts, around.moved)
        if key not in around.expected:
            around.expected[key] = forms.cost(form.group)
        expected = around.expected[key]
        if expected is None or expected >= least:
            continue
        if _pays_for_copies(form, expected, group, forms, around.constants):
            least = expected
            best = form
    return best


def _pays_for_copies(
    form: _Form,
    expected: float,
    direct: FusionGroup,
    forms: WinogradForms,
    constants: Collection[Buffer],
) -> bool:
    """Whether a form that takes `expected`, and its copies, take no longer than the direct sum.

    Other forms cost an estimate only where they are better than that.
    """
    copies = (*form.before, *form.behind)
    if not copies:
        return True
    tensors = [c.outputs[0].tensor for c in copies]
    far = (b.size for b in tensors if b.size * b.dtype.itemsize > forms.near)
    least = forms.cost(direct.computations, constants)
    return least is not None and expected + forms.moved_ns * sum(far) <= least


def _transformed(group: FusionGroup, around: _Around, tile: int) -> Group | None:
    """A convolution, optionally with a map after it, in Winograd's form; None for any other group.

    The result of a convolution followed by a map is no longer stored, as nothing else reads it.
    """
    first, *rest = group.computations
    parts = winograd(first, tile)
    if parts is None:
        return None
    if not all(b in around.constants for b in parts[0].inputs):
        return None
    if not rest:
        return tuple(parts)
    *before, result = parts
    (behind,) = rest
    between = first.outputs[0].tensor
    whole = inline(result, behind)
    if not around.is_inner(between):
        return None
    if whole is None or not behind.is_map or between in whole.inputs:
        return None
    return (*before, whole)


def _channels_last(tile: int, group: Group, moved: dict[Buffer, Buffer]) -> _Form:
    """The group on channel-last tensors, with copies before and after it.

    moved: tensors that already have such a copy.
    """
    filters, inputs, product, result = group
    before: Group = ()
    behind: Group = ()
    (data,) = inputs.inputs
    order = _last(inputs.accesses[0].index, inputs.dims[-1].var)
    if order is not None:
        last = moved.get(data) or _stored(data, order)
        if data not in moved:
            before = (_copy(data, last, order, into=True),)
        inputs = relayout(inputs, {data: (last, order)})
    out = result.outputs[0]
    multiplied = product.outputs[0].tensor
    read = next(a for a in result.accesses if a.buffer is multiplied)
    channel = read.index[-1]
    order = _last(out.index, channel)
    if order is not None and identity_dims(result) is not None:
        last = _stored(out.tensor, order)
        behind = (_copy(out.tensor, last, order, into=False),)
        moved_result = relayout(result, {out.tensor: (last, order)})
        result = order_dims(moved_result)
    elif order is not None:  # a part of a tensor
        result, copied = _apart(result, channel)
        behind = (copied,)
    return _Form(tile, (filters, inputs, product, result), before, behind)


def _apart(result: Computation, channel: Expr) -> tuple[Computation, Computation]:
    """A map that writes a tensor of its own, channels last, and the copy to where it wrote."""
    (out,) = result.outputs
    dims = sorted(result.dims, key=lambda d: d.var is channel)
    tensor = Buffer(
        f"{result.name}.last", tuple(d.extent for d in dims), out.tensor.dtype
    )
    place = Load(tensor, tuple(d.var for d in dims))
    made = replace(out, tensor=tensor, index=place.index)
    copied = Computation("channels_first", result.dims, (replace(out, value=place),))
    return replace(result, dims=tuple(dims), outputs=(made,)), copied


def _last(index: Sequence[Expr], v: Expr) -> tuple[int, ...] | None:
    """The axes with the one that `v` indexes moved last; None if it is last, or not unique."""
    found = []
    for axis, i in enumerate(index):
        if any(x is v for x in postorder(i)):
            found.append(axis)
    if len(found) != 1:
        return None
    if found[0] == len(index) - 1:
        return None
    others = [axis for axis in range(len(index)) if axis not in found]
    return (*others, *found)


def _stored(tensor: Buffer, order: Sequence[int]) -> Buffer:
    return Buffer(
        f"{tensor.name}.last", tuple(tensor.shape[n] for n in order), tensor.dtype
    )


def _copy(
    tensor: Buffer, last: Buffer, order: Sequence[int], *, into: bool
) -> Computation:
    """Copy between a tensor and the one with its axes in `order`; loops follow the written one."""

    def of_tensor(*i: Var) -> Load:
        index = [i[order.index(n)] for n in range(len(order))]
        return Load(tensor, tuple(index))

    def of_last(*i: Var) -> Load:
        return Load(last, tuple(i[n] for n in order))

    if into:
        return map_("channels_last", last, of_tensor)
    return map_("channels_first", tensor, of_last)


def product_flops(group: Group) -> Extent:
    """The flops of the products actually computed, not those of the direct sum."""
    return 2 * reduce(mul, (d.size for d in group[2].dims))
