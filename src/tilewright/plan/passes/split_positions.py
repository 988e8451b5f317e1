"""Positions of a sequence that a padded convolution reads as a picture get an axis for each side.

A transformer's tokens `t[y * 28 + x, c]`, read as a picture of 28 columns by a convolution with
padding, are stored as `t[y, x, c]`. The guards of the read are then the bounds of these axes, so
that a halo can take their place, and the read moves evenly along each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.base.dataclass import dataclass
from tilewright.compute.contraction import is_contraction
from tilewright.compute.guards import read_or_constant
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.transforms import (
    environment,
    load_mapper,
    map_outputs,
    split_dims,
)
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import Buffer, Expr, Load, Select
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder
from tilewright.plan.nodes import DefUse, FusionGroup, Step

Index = tuple[Expr, ...]


def split_positions(steps: Sequence[Step], keep: Collection[Buffer]) -> list[Step]:
    """The steps with such tensors in their new shape; buffers in `keep` are unchanged.

    requires of a tensor t and its axis a of extent H * W, else nothing changes: t is not in `keep`
    and only Computations write and read it; some contraction reads t through a guard that says
    exactly that y is in [0, H) and x in [0, W), with y * W + x its index of a, and more than that
    the index is in [0, H * W): a halo takes the place of such a guard without a split, as where a
    grouped convolution reads channels; and every other access indexes a by a dimension of extent
    H * W. That dimension becomes two, in the whole group, and so do the axes along it of tensors
    that this group alone accesses.
    """
    found = list(steps)
    while True:
        moved = _first_split(found, keep)
        if not moved:
            return found
        found = [moved.get(id(s), s) for s in found]


def _first_split(
    steps: Sequence[Step], keep: Collection[Buffer]
) -> dict[int, FusionGroup]:
    """The groups that change with the first tensor that can be split."""
    flow = DefUse(steps)
    for tensor, writers in flow.writers.items():
        readers = flow.readers.get(tensor, [])
        users = {id(g): g for g in (*writers, *readers)}
        if tensor in keep:
            continue
        if any(g.kernel for g in users.values()):
            continue
        if not all(isinstance(n, int) for n in tensor.extents):
            continue
        for group in readers:
            split = next(_splits(tensor, group.computations), None)
            if split is None:
                continue
            moved = _moved_groups(split, users, _inner_tensors(flow, keep))
            if moved:
                return moved
    return {}


def _inner_tensors(flow: DefUse, keep: Collection[Buffer]) -> set[Buffer]:
    """Tensors that one group alone accesses."""
    found = set()
    for tensor, writers in flow.writers.items():
        if tensor in keep:
            continue
        if len(writers) > 1:
            continue
        if flow.readers.get(tensor):
            continue
        found.add(tensor)
    return found


@dataclass(frozen=True)
class _Split:
    """An axis of a tensor as two; width: the extent of the second; made: the new tensor."""

    tensor: Buffer
    axis: int
    width: int
    made: Buffer

    def place(self, index: Index, row: Expr, column: Expr) -> Index:
        """The new index, with these in place of that of the axis."""
        return (*index[: self.axis], row, column, *index[self.axis + 1 :])

    def digits(self, index: Index) -> Index:
        """The new index of an access by a dimension alone."""
        i = index[self.axis]
        return self.place(index, i // self.width, i % self.width)

    def read(self, node: Select, c: Computation) -> Select | None:
        """The guarded read of the new tensor; None if the guard does not say what it must."""
        load = _read(node)
        env = environment(c.dims)
        form = affine(load.index[self.axis])
        for row, column in _digits(form, self.width):
            place = self.place(load.index, to_expr(row), to_expr(column))
            then = Load(self.made, place)
            new = node.replace(then=then)
            if read_or_constant(new, env) is not None:
                return new
        return None


def _split(t: Buffer, axis: int, width: int) -> _Split:
    before = t.shape[:axis]
    whole = t.shape[axis]
    after = t.shape[axis + 1 :]
    shape = (*before, whole // width, width, *after)
    made = Buffer(t.name, shape, t.dtype, t.scope)
    return _Split(t, axis, width, made)


def _digits(form: Affine, width: int) -> Iterator[tuple[Affine, Affine]]:
    """The ways to write a form as row * width + column without divisions of terms."""
    high: list[tuple[Expr, int]] = []
    low: list[tuple[Expr, int]] = []
    for atom, step in form.terms:
        if step % width:
            low.append((atom, step))
        else:
            high.append((atom, step // width))
    rows, columns = divmod(form.const, width)
    for more in (0, 1):
        row = Affine(tuple(high), rows + more)
        column = Affine(tuple(low), columns - more * width)
        yield row, column


def _splits(tensor: Buffer, computations: Sequence[Computation]) -> Iterator[_Split]:
    """What the guarded reads of contractions ask for."""
    for c in computations:
        if not is_contraction(c):
            continue
        env = environment(c.dims)
        for node in _guarded(c, tensor):
            if read_or_constant(node, env) is not None:  # bounds of these axes already
                continue
            index = _read(node).index
            for axis, extent in enumerate(tensor.shape):
                form = affine(index[axis])
                steps = {k for _, k in form.terms}
                for width in sorted(steps):
                    if not 1 < width < extent:
                        continue
                    if extent % width:
                        continue
                    split = _split(tensor, axis, width)
                    if split.read(node, c) is not None:
                        yield split


def _guarded(c: Computation, tensor: Buffer) -> list[Select]:
    found = []
    for o in c.outputs:
        for node in postorder(o.value):
            if not isinstance(node, Select):
                continue
            read = node.then
            if isinstance(read, Load) and read.buffer is tensor:
                found.append(node)
    return found


def _read(node: Select) -> Load:
    load = node.then
    assert isinstance(load, Load)
    return load


def _moved_groups(
    split: _Split, users: Mapping[int, FusionGroup], inner: Collection[Buffer]
) -> dict[int, FusionGroup] | None:
    """The groups with the tensor in its new shape; None if one accesses it in another way.

    inner: tensors that one group alone accesses.
    """
    found = {}
    for key, group in users.items():
        moved = _moved(split, group.computations, inner)
        if moved is None:
            return None
        found[key] = replace(group, computations=moved)
    return found


def _moved(
    split: _Split, group: Sequence[Computation], inner: Collection[Buffer]
) -> tuple[Computation, ...] | None:
    """The Computations of a group on the new tensor, or None."""
    whole = split.tensor.shape[split.axis]
    divided: set[Expr] = set()
    for c in group:
        taken = _dimensions(split, c)
        if taken is None:
            return None
        divided |= {d.var for d in taken}
    also = _along(split, group, divided, inner)
    for c in group:
        for d in c.dims:
            if d.var in divided and d.extent != whole:
                return None
    factors = dict.fromkeys(divided, split.width)
    return tuple(_on_new(split, c, factors, also) for c in group)


def _along(
    split: _Split,
    group: Sequence[Computation],
    divided: set[Expr],
    inner: Collection[Buffer],
) -> dict[Buffer, _Split]:
    """Inner tensors of the group with an axis along divided dimensions, split like it; all
    dimensions that index such an axis are added to `divided`.

    A sum's result then still has an axis for each dimension of the sum.
    """
    whole = split.tensor.shape[split.axis]
    plain = set()
    for c in group:
        for d in c.dims:
            if d.extent == whole:
                plain.add(d.var)
    places = _places(group, inner)
    found: dict[Buffer, _Split] = {}
    grown = True
    while grown:
        grown = False
        for tensor, indices in places.items():
            if tensor in found:
                continue
            axis = _axis(indices, divided, plain)
            if axis is None:
                continue
            found[tensor] = _split(tensor, axis, split.width)
            for index in indices:
                divided.add(index[axis])
            grown = True
    return found


def _axis(
    indices: Sequence[Index], divided: set[Expr], plain: Collection[Expr]
) -> int | None:
    """The first axis that is indexed by plain dimensions alone, some of them divided."""
    axes = zip(*indices, strict=True)
    for axis, by in enumerate(axes):
        alone = all(v in plain for v in by)
        if alone and divided.intersection(by):
            return axis
    return None


def _places(
    group: Sequence[Computation], tensors: Collection[Buffer]
) -> dict[Buffer, list[Index]]:
    """The indices by which these are read and written."""
    found: dict[Buffer, list[Index]] = {}
    for tensor in tensors:
        found[tensor] = []
    for c in group:
        for a in c.accesses:
            if a.buffer in found:
                found[a.buffer].append(a.index)
        for o in c.outputs:
            if o.tensor in found:
                found[o.tensor].append(o.index)
    return found


def _dimensions(split: _Split, c: Computation) -> list[Dim] | None:
    """The dimensions that index the axis alone, in all accesses but the guarded ones."""
    pictures = _pictures(split, c)
    tensor = split.tensor
    plain = []
    for a in c.accesses:
        if a.buffer is tensor and a not in pictures:
            plain.append(a.index)
    for o in c.outputs:
        if o.tensor is tensor:
            plain.append(o.index)
    by_var = {d.var: d for d in c.dims}
    found = [by_var.get(index[split.axis]) for index in plain]  # type: ignore[call-overload]
    return None if None in found else found


def _pictures(split: _Split, c: Computation) -> dict[Expr, Expr]:
    """The guarded reads of the tensor as a picture, and those that take their place."""
    found = {}
    for node in _guarded(c, split.tensor):
        new = split.read(node, c)
        if new is not None:
            found[node.then] = new.then
    return found


def _on_new(
    split: _Split,
    c: Computation,
    factors: Mapping[Expr, int],
    also: Mapping[Buffer, _Split],
) -> Computation:
    """`c` with its dimensions divided by these factors, on the new tensors."""
    reads = _pictures(split, c)
    env = environment(c.dims)
    splits = {split.tensor: split, **also}

    def moved(load: Load) -> Expr:
        if load in reads:
            return reads[load]
        to = splits[load.buffer]
        return Load(to.made, to.digits(load.index))

    on_made = load_mapper(dict.fromkeys(splits, moved))
    outputs = []
    for o in c.outputs:
        tensor, index = o.tensor, o.index
        value = on_made(o.value)
        if tensor in splits:
            index = splits[tensor].digits(index)
            tensor = splits[tensor].made
        outputs.append(Output(tensor, index, value))
    there = replace(c, outputs=tuple(outputs))
    own = {}
    for d in c.dims:
        if d.var in factors:
            own[d.var] = factors[d.var]
    if own:
        return split_dims(there, own)
    return replace(there, outputs=map_outputs(there, lambda e: simplify(e, env)))
