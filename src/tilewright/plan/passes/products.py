"""Horizontal fusion: products of one tensor with several constants become one product.

Convolutions and matrix products that read the same elements and differ only in constant weights and
biases become one with concatenated constants: the queries and values of an encoder, or the first
convolutions of an Inception block's branches. The results become parts of one tensor, where readers
read them, so nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.compute.transforms import map_loads, map_outputs
from tilewright.expr.nodes import Buffer, Const, Expr, FloorDiv, Load, Mod, Var
from tilewright.ir.node import Node, postorder, substitute
from tilewright.plan.nodes import DefUse, FusionGroup, Step, merge
from tilewright.plan.passes.concat_in_place import ConcatPart, placed, reader
from tilewright.plan.questions import Cost, dearer

Array = np.ndarray[Any, Any]
Data = Mapping[Buffer, Array]
PRODUCTS: Final = 8  # most products that become one


@dataclass(frozen=True, eq=False, slots=True)
class JoinableProduct:
    """A group whose results can be concatenated with another's along one dimension.

    axes: for each tensor that the dimension indexes (constants, and what the group writes), the
    axis that it runs along.
    """

    group: FusionGroup
    dim: Dim
    axes: Mapping[Buffer, int]

    @property
    def result(self) -> Buffer:
        """The result that others read."""
        return self.group.computations[-1].outputs[0].tensor


@dataclass(frozen=True, eq=False, slots=True)
class MergedProducts:
    """Products as one. places: where each result is now. constants: the concatenated ones."""

    group: FusionGroup
    places: dict[Buffer, ConcatPart]
    constants: dict[Buffer, Array]

    def rewrite(
        self,
        step: Step,
    ) -> Step:
        """A step that reads the results from their new places."""
        readers = {b: reader(place) for b, place in self.places.items()}
        return placed(step, self.places, readers)


def merge_products(
    steps: Sequence[Step],
    keep: Collection[Buffer],
    data: Data,
    cost: Cost,
) -> tuple[list[Step], dict[Buffer, Array]]:
    """The steps with products merged where profitable, and the new constants.

    keep: buffers that must not change. data: the constants. cost: the target's estimate of
    Computations as one kernel in nanoseconds, None if it cannot handle them well.

    requires of each group
        it is a contraction, and at most one map of its result after it
        it has a dimension that indexes only constants among its operands, each along a whole axis
        that dimension leads one axis of the result, which is not in `keep` and which no other step
        writes; only Computations read it
        the value depends on that dimension only through what is read, not through its position
    and of two
        they are the same except for that dimension's extent, those constants and what they write;
        so both read the same elements of other tensors, and can run at the place of the first
        the target estimates the merged product and its readers to be no slower than both
    """
    out = list(steps)
    made: dict[Buffer, Array] = {}
    flow = DefUse(out)
    place = 0
    while place < len(out):
        family = _family(out[place], flow, keep, {**data, **made})
        place += 1
        if len(family) < 2:
            continue
        merged = _merged(family, {**data, **made})
        known = {**data, **made, **merged.constants}
        reason = _dearer(merged, family, flow, known, cost)
        into = [p.group.name for p in family[1:]]
        said: dict[str, Any] = {"rule": "product", "into": into}
        said |= {"producer": family[0].group.name, "sources": merged.group.sources}
        if reason:
            events.emit("not-fused", **said, reason=reason)
            continue
        gone = {p.group for p in family[1:]}
        out[place - 1] = merged.group
        out = [merged.rewrite(s) for s in out if s not in gone]
        flow = DefUse(out)
        made |= merged.constants
        events.emit("fuse", **said)
    return out, made


def _family(
    step: Step,
    flow: DefUse,
    keep: Collection[Buffer],
    data: Data,
) -> list[JoinableProduct]:
    """A product and the following ones that are alike and read the same tensors."""
    first = _product(step, flow, keep, data)
    if first is None:
        return []
    found = [first]
    read = next(b for b in first.group.reads if b not in data)
    readers = flow.readers[read]
    for group in readers[readers.index(first.group) + 1 :]:
        other = _product(group, flow, keep, data)
        if other is not None and _pairs(first, other) is not None:
            found.append(other)
    return found[:PRODUCTS]


def _product(
    step: Step,
    flow: DefUse,
    keep: Collection[Buffer],
    data: Data,
) -> JoinableProduct | None:
    """The step as a product that others can be merged with, or None."""
    if not isinstance(step, FusionGroup) or len(step.computations) not in (1, 2):
        return None
    product, *rest = step.computations
    if not is_contraction(product) or not all(c.is_map for c in rest):
        return None
    result = step.writes[-1]
    used = [s for b in step.writes for s in flow.readers.get(b, ())]
    if any(flow.readers.get(b) for b in step.writes[:-1]):
        return None
    if any(b in keep for b in step.writes):
        return None
    if any(s.kernel for s in used):
        return None
    if len(flow.writers[result]) != 1:
        return None
    if all(b in data for b in step.reads):
        return None
    for dim in product.dims:
        axes = _axes(step, dim, data) if dim.combine == CC else None
        if axes is not None:
            return JoinableProduct(step, dim, axes)
    return None


def _axes(
    group: FusionGroup,
    dim: Dim,
    data: Data,
) -> dict[Buffer, int] | None:
    """The axis of each tensor that the dimension runs along; None if it does not follow an axis, or
    indexes a tensor that is neither constant nor written here."""
    found: dict[Buffer, int] = {}
    result = group.writes[-1]
    for c in group.computations:
        if dim.var not in {d.var for d in c.dims}:
            return None
        if any(dim.var in _outside_loads(o.value) for o in c.outputs):
            return None
        written = [(o.tensor, o.index) for o in c.outputs]
        for b, index in (*((a.buffer, a.index) for a in c.accesses), *written):
            if b is result:
                axis = _leading(index, dim, b.shape)
            elif any(_uses(i, dim) for i in index):
                axis = _whole(index, dim, b.shape)
            else:
                continue
            if axis is None:
                return None
            if b not in data and b not in group.writes:
                return None
            if found.setdefault(b, axis) != axis:
                return None
    if not any(b in data for b in found):
        return None
    return found


@lru_cache(maxsize=256)
def _outside_loads(value: Expr) -> frozenset[Node]:
    """The nodes of a value that are not in an index of a load alone: a dimension among them counts
    by its position itself, as in Trilu."""
    found: set[Node] = set()
    waiting: list[Node] = [value]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            if not isinstance(node, Load):
                waiting += node.children()
    return frozenset(found)


def _uses(index: Expr, dim: Dim) -> bool:
    """Whether an index depends on a dimension."""
    if not index.children():
        return index is dim.var
    return dim.var in postorder(index)


def _whole(
    index: Sequence[Expr],
    dim: Dim,
    shape: Sequence[int],
) -> int | None:
    """The axis that the dimension, and no other, covers from end to end."""
    along = [n for n, i in enumerate(index) if _uses(i, dim)]
    axis = along[0]
    if len(along) > 1 or index[axis] is not dim.var:
        return None
    if shape[axis] != dim.extent:
        return None
    return axis


def _leading(
    index: Sequence[Expr],
    dim: Dim,
    shape: Sequence[int],
) -> int | None:
    """The axis with the first term of the dimension's mixed-radix split, or with all of it.

    Increasing the dimension by one step of that axis then leaves the other terms unchanged.
    """
    steps: dict[int, int] = {}
    spans: list[int] = []
    for n, i in enumerate(index):
        match i:
            case Var() if i is dim.var:
                steps[n] = 1
            case FloorDiv(lhs, Const(c)) if lhs is dim.var:
                steps[n] = int(c.real)
            case Mod(lhs, Const(m)) if lhs is dim.var:
                spans.append(int(m.real))
            case Mod(FloorDiv(lhs, Const(c)), Const(m)) if lhs is dim.var:
                spans.append(int(c.real) * int(m.real))
            case _ if _uses(i, dim):
                return None
    if len(steps) != 1:
        return None
    ((axis, step),) = steps.items()
    if step * shape[axis] != dim.extent:
        return None
    if any(step % span for span in spans):
        return None
    return axis


def _pairs(
    first: JoinableProduct,
    second: JoinableProduct,
) -> dict[Buffer, Buffer] | None:
    """For each tensor that the first's dimension indexes, its counterpart in the second; None if
    they differ in anything else."""
    ours, theirs = first.group.computations, second.group.computations
    if len(ours) != len(theirs):
        return None
    found: dict[Buffer, Buffer] = {}
    for a, b in zip(ours, theirs, strict=True):
        if a.tags != b.tags:
            return None
        if not _same_dims(a, b, first.dim, second.dim):
            return None
        tensors = [[x.buffer for x in c.accesses] for c in (a, b)]
        for c, used in zip((a, b), tensors, strict=True):
            used += [o.tensor for o in c.outputs]
        if len(tensors[0]) != len(tensors[1]):
            return None
        for x, y in zip(*tensors, strict=True):
            if x is y and x not in first.axes:
                continue
            if found.setdefault(x, y) is not y:
                return None
            if not _alike(x, y, first, second):
                return None
    back = {y: x for x, y in found.items()}
    if len(back) != len(found):
        return None
    same = all(_is_same(a, b, back) for a, b in zip(ours, theirs, strict=True))
    return found if same else None


def _same_dims(
    a: Computation,
    b: Computation,
    along: Dim,
    other: Dim,
) -> bool:
    """Whether both have equal dimensions, except for the merged one's extent, and combine alike."""
    if len(a.dims) != len(b.dims):
        return False
    if (a.reducer is None) != (b.reducer is None):
        return False
    if a.reducer is not None and b.reducer is not None:
        if not a.reducer.does_as(b.reducer):
            return False
    return all(
        d.combine == e.combine
        and (d.var is along.var) == (e.var is other.var)
        and (d.var is along.var or d.extent == e.extent)
        for d, e in zip(a.dims, b.dims, strict=True)
    )


def _alike(
    x: Buffer,
    y: Buffer,
    first: JoinableProduct,
    second: JoinableProduct,
) -> bool:
    """Whether two tensors differ only in the extent of the axis that may be longer."""
    axis = first.axes.get(x)
    if axis is None or second.axes.get(y) != axis:
        return False
    if x.dtype is not y.dtype:
        return False
    return _resized(x, axis, 0) == _resized(y, axis, 0)


def _resized(
    b: Buffer,
    axis: int,
    extent: int,
) -> tuple[int, ...]:
    return (*b.shape[:axis], extent, *b.shape[axis + 1 :])


def _is_same(
    a: Computation,
    b: Computation,
    back: Mapping[Buffer, Buffer],
) -> bool:
    """Whether `b`, with the dimensions and tensors of `a`, is `a`."""
    env: dict[Any, Any] = {e.var: d.var for d, e in zip(a.dims, b.dims, strict=True)}
    moved = {y: _on(x) for y, x in back.items()}
    return all(
        back.get(p.tensor) is o.tensor
        and all(substitute(i, env) is j for i, j in zip(p.index, o.index, strict=True))
        and substitute(map_loads(p.value, moved), env) is o.value
        for o, p in zip(a.outputs, b.outputs, strict=True)
    )


def _on(b: Buffer) -> Callable[[Load], Expr]:
    return lambda load: Load(b, load.index)


def _merged(
    family: Sequence[JoinableProduct],
    data: Data,
) -> MergedProducts:
    """Merge products that are alike into one."""
    first = family[0]
    along = [{b: b for b in first.axes}]
    along += [found for p in family[1:] if (found := _pairs(first, p)) is not None]
    longer: dict[Buffer, Buffer] = {}
    constants: dict[Buffer, Array] = {}
    places: dict[Buffer, ConcatPart] = {}
    for b, axis in first.axes.items():
        parts = [pairs[b] for pairs in along]
        extent = sum(p.shape[axis] for p in parts)
        longer[b] = Buffer(b.name, _resized(b, axis, extent), b.dtype)
        if b in data:
            arrays = [np.reshape(data[p], p.shape) for p in parts]
            constants[longer[b]] = np.concatenate(arrays, axis)
        elif b is first.result:
            before = 0
            for p in parts:
                at = tuple(before if n == axis else 0 for n in range(len(b.shape)))
                places[p] = ConcatPart(longer[b], at)
                before += p.shape[axis]
    size = sum(p.dim.extent for p in family)
    computations = [
        _longer(c, first.dim, size, longer) for c in first.group.computations
    ]
    group = first.group
    for other in family[1:]:
        group = merge(group, other.group, computations)
    return MergedProducts(group, places, constants)


def _longer(
    c: Computation,
    dim: Dim,
    size: int,
    longer: Mapping[Buffer, Buffer],
) -> Computation:
    """A Computation with `size` points along a dimension, on longer tensors."""
    moved = {b: _on(new) for b, new in longer.items()}
    dims = tuple(replace(d, size=size) if d.var is dim.var else d for d in c.dims)
    outputs = tuple(
        replace(o, tensor=longer.get(o.tensor, o.tensor))
        for o in map_outputs(c, lambda e: map_loads(e, moved))
    )
    return replace(c, dims=dims, outputs=outputs)


def _dearer(
    merged: MergedProducts,
    family: Sequence[JoinableProduct],
    flow: DefUse,
    data: Data,
    cost: Cost,
) -> str:
    """Why the merged product and its readers are estimated to be slower; empty if they are not."""
    readers = {s: None for p in family for s in flow.readers.get(p.result, ())}
    reason = dearer(
        cost(merged.group.computations, data),
        [cost(p.group.computations, data) for p in family],
    )
    for s in () if reason else readers:
        moved = merged.rewrite(s)
        assert isinstance(moved, FusionGroup)
        before = cost(s.computations, data)
        if before is not None:
            reason = reason or dearer(cost(moved.computations, data), [before])
    return reason
