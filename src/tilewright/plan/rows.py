"""Groups that can compute a few rows at a time, such as attention by queries.

A tensor with two sizes, such as the scores of all queries and keys, needs memory for only a few
rows if these are computed, used and dropped before the next ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.compute.nodes import CC, Computation, Dim, Output
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, as_expr
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, postorder, substitute, transform


@dataclass(frozen=True, eq=False, slots=True)
class GroupRows:
    """A group that can compute some of its rows at a time.

    dims: each Computation's dimension of rows. axes: the row axis of each local tensor.
    """

    computations: tuple[Computation, ...]
    dims: Mapping[Computation, Dim]
    axes: Mapping[Buffer, int]

    @property
    def size(self) -> Expr:
        """The number of rows."""
        return as_expr(self.dims[self.computations[-1]].size, INDEX)

    def some(
        self,
        count: int,
        first: Expr,
        taken: set[str],
    ) -> list[Computation]:
        """The Computations for `size` rows, from `first` on. taken: names already in use, extended
        here."""
        own: dict[Buffer, Buffer] = {}
        for b, axis in self.axes.items():
            before = b.extents[:axis]
            behind = b.extents[axis + 1 :]
            name = fresh(taken, f"{b.name}_{count}")
            own[b] = Buffer(
                name,
                (*before, count, *behind),
                b.dtype,
                b.scope,
            )
        found = []
        for c in self.computations:
            part = self._some(c, count, first, own)
            name = fresh(taken, f"{c.name}_{count}")
            found.append(replace(part, name=name))
        return found

    def _some(
        self,
        c: Computation,
        count: int,
        first: Expr,
        own: Mapping[Buffer, Buffer],
    ) -> Computation:
        row = self.dims[c]
        later: dict[Any, Any] = {
            row.var: row.var + first,
        }

        def at(
            b: Buffer,
            index: Sequence[Expr],
        ) -> tuple[Expr, ...]:
            axis = self.axes.get(b)
            return tuple(row.var if n == axis else i for n, i in enumerate(index))

        def moved(
            node: Node,
        ) -> Node:
            if isinstance(node, Load) and node.buffer in own:
                b = node.buffer
                return Load(own[b], at(b, node.index))
            return node

        def there(
            e: Expr,
        ) -> Any:
            later_rows = substitute(e, later)
            own_rows = transform(later_rows, moved)
            return simplify(own_rows, {})

        outputs = []
        for o in c.outputs:
            tensor = own.get(o.tensor, o.tensor)
            index = tuple(map(there, o.index))
            outputs.append(
                Output(
                    tensor,
                    at(o.tensor, index),
                    there(o.value),
                )
            )
        few = replace(row, size=count)
        dims = tuple(few if d is row else d for d in c.dims)
        return replace(
            c,
            dims=dims,
            outputs=tuple(outputs),
        )


def rows(
    computations: Sequence[Computation], params: Collection[Buffer]
) -> GroupRows | None:
    """The rows of a group that has a tensor of two sizes and can compute some rows at a time.

    That is the case if

        only the last Computation, a map, writes values that others see, and none reads these
        every Computation has one parallel dimension of n points for the rows, and each local
        tensor of the group has one axis for them
        such a tensor is written and read only at the current row

    A row may read anything from other tensors, and be written anywhere.
    """
    *before, last = computations
    made = {o.tensor for c in before for o in c.outputs}
    seen = {o.tensor for o in last.outputs}
    wide = any(map(_has_two_sizes, made))
    read = {b for c in computations for b in c.inputs}
    visible = (made | seen) & {*params}
    if not wide or not last.is_map or seen & read or visible != seen:
        return None
    for d in last.dims:
        if d.static or d.combine != CC:
            continue
        found = _along(computations, d, made)
        if found is not None:
            return found
    return None


def _has_two_sizes(
    b: Buffer,
) -> bool:
    open_extents = [e for e in b.extents if not isinstance(e, int)]
    return len(open_extents) > 1


def _along(
    computations: Sequence[Computation],
    last: Dim,
    made: Collection[Buffer],
) -> GroupRows | None:
    """The dimensions that the last Computation has."""
    axes: dict[Buffer, int] = {}
    dims: dict[Computation, Dim] = {}
    for c in reversed(computations):
        row = _row(c, axes) if dims else last
        if row is None or row.size is not last.size:
            return None
        dims[c] = row
        for load in c.accesses:
            if load.buffer not in made:
                continue
            axis = _axis(load.index, row)
            if axis is None or axes.setdefault(load.buffer, axis) != axis:
                return None
    return GroupRows(tuple(computations), dims, axes)


def _row(
    c: Computation,
    axes: Mapping[Buffer, int],
) -> Dim | None:
    """The dimension along which a Computation writes the rows of all its tensors."""
    wanted = [axes.get(o.tensor, -1) for o in c.outputs]
    for d in c.dims:
        at = [_axis(o.index, d) for o in c.outputs]
        if d.combine == CC and at == wanted:
            return d
    return None


def _axis(
    index: Sequence[Expr],
    d: Dim,
) -> int | None:
    """The only axis that depends on a dimension, if its index is the dimension itself."""
    used = []
    for axis, i in enumerate(index):
        nodes = postorder(i)
        if any(node is d.var for node in nodes):
            used.append(axis)
    if len(used) != 1:
        return None
    (axis,) = used
    return axis if index[axis] is d.var else None
