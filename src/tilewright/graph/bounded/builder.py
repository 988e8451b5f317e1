"""The builder of bounded graphs: operators, run-time numbers, masks and checked indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType, int64
from tilewright.graph.bounded.extents import (
    ARITHMETIC,
    COMMUTES,
    BoundedExtent,
    Dim,
    Dims,
    is_open,
    least,
    most,
    simplified,
)
from tilewright.graph.infer import Typer
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.open_extents import DOMAIN

VERSION = 21


class BoundedBuilder:
    """Adds operators on bounded tensors to a Typer's graph.

    extents: the extents of each value that has an open one; the value's own shape is that of its
    memory, and elements past a count are undefined. guard: inside a branch that may not be taken, a
    bool scalar that says whether this part of the graph runs; if it does not, nothing in it may
    fail.
    """

    def __init__(
        self,
        typer: Typer,
        prefix: str = "bounded",
    ) -> None:
        self.typer = typer
        self.prefix = prefix
        self.extents: dict[Value, Dims] = {}
        self.guard: Value | None = None
        self._made: dict[Any, Any] = {}
        # Pairs of numbers the first of which never exceeds the second.
        self._at_most: set[tuple[Dim, Dim]] = set()
        self._count = 0

    def inner(
        self,
        prefix: str,
    ) -> BoundedBuilder:
        """A builder for a subgraph: it starts with everything known here and keeps what it adds."""
        made = BoundedBuilder(self.typer.inner(), prefix)
        made.extents = dict(self.extents)
        made._at_most = set(self._at_most)
        return made

    def dims(
        self,
        v: Value,
    ) -> Dims:
        """The extents of a tensor. Raises DataDependent if they are unknown."""
        return self.extents.get(v) or v.extents

    def sized(
        self,
        v: Value,
        dims: Sequence[Dim],
    ) -> Value:
        """Give the value these extents; its memory has their upper bounds."""
        if is_open(dims):
            self.extents[v] = tuple(dims)
        return v

    def ops(
        self,
        op_type: str,
        *inputs: Value | None,
        count: int = 1,
        domain: str = "",
        label: str = "",
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """Apply an operator that has a definition to the memory of bounded tensors.

        label: its name, if it represents an operator of the model.
        """
        self._count += 1
        name = f"{self.prefix}/{label or op_type}_{self._count}"
        drafts = tuple(Value(f"{name}.{n}") for n in range(count))
        shown = label or name
        draft = Operation(op_type, inputs, drafts, attributes, domain, VERSION, shown)
        return tuple(v for v in self.typer.apply(draft) if v is not None)

    def op(self, op_type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """As `ops`, for an operator with one result."""
        return self.ops(op_type, *inputs, **attributes)[0]

    def constant(
        self,
        array: Any,
        dtype: DType = int64,
    ) -> Value:
        """A constant operand; equal constants are shared."""
        a = np.asarray(array).astype(dtype.numpy)
        key = ("constant", dtype.name, a.shape, a.tobytes())
        self._count += 1
        name = f"{self.prefix}/const_{self._count}"
        return self.once(key, lambda: self.typer.constant(name, a))

    def scalar(
        self,
        dim: Dim,
    ) -> Value:
        """The int64 scalar that holds a number."""
        return self.constant(dim) if isinstance(dim, int) else dim.count

    def vector(
        self,
        dims: Sequence[Dim],
    ) -> Value:
        """The int64 vector of numbers."""
        if not is_open(dims):
            return self.constant(np.array(dims, np.int64))
        one = self.constant([1])
        parts = [self.op("Reshape", self.scalar(d), one) for d in dims]
        return self.op("Concat", *parts, axis=0)

    def number(
        self,
        op: str,
        a: Dim,
        b: Dim,
    ) -> Dim:
        """`a op b`; equal requests return the same number."""
        found = simplified(op, a, b)
        if found is not None:
            return found
        pair = sorted((a, b), key=id) if op in COMMUTES else (a, b)
        key = (op, *pair)
        if key not in self._made:
            ends = [(least(d), most(d)) for d in (a, b)]
            low, high = ARITHMETIC[op].bounds(*ends)
            count = self.op(op, self.scalar(a), self.scalar(b))
            self._made[key] = made = BoundedExtent(count, low, high)
            if op == "Min":
                self._at_most |= {(made, a), (made, b)}
        number: Dim = self._made[key]
        return number

    def extent(
        self,
        count: Value,
        bound: int,
    ) -> Dim:
        """The extent that a kernel counted, with an upper bound: always an int64 scalar."""
        return BoundedExtent(count, 0, bound) if bound else 0

    def iota(
        self,
        extent: int,
        axis: int = 0,
        rank: int = 1,
    ) -> Value:
        """0, 1, 2, ... along an axis of a tensor that is broadcast along the others."""
        shape = [extent if a == axis else 1 for a in range(rank)]
        return self.constant(np.arange(extent).reshape(shape))

    def inside(
        self,
        dims: Dims,
    ) -> Value | None:
        """A bool tensor over the memory that marks the elements that exist."""
        rank, found = len(dims), None
        for axis, d in enumerate(dims):
            if not isinstance(d, BoundedExtent):
                continue
            here = self.once(
                ("inside", d, axis, rank), partial(self._below, d, axis, rank)
            )
            found = here if found is None else self.op("And", found, here)
        return found

    def _below(
        self,
        d: BoundedExtent,
        axis: int,
        rank: int,
    ) -> Value:
        """A mask of the positions along an axis that are below a count."""
        return self.op(
            "Less",
            self.iota(most(d), axis, rank),
            d.count,
        )

    def filled(
        self,
        v: Value,
        fill: Any,
        axes: Sequence[int] | None = None,
    ) -> Value:
        """The tensor with a number past the counts along some axes, by default along all."""
        dims = self.dims(v)
        wanted = range(len(dims)) if axes is None else axes
        shown = tuple(d if a in wanted else most(d) for a, d in enumerate(dims))
        inside = self.inside(shown)
        if inside is None:
            return v
        assert v.dtype is not None
        number = self.constant(fill, v.dtype)
        return self.sized(self.op("Where", inside, v, number), dims)

    def index(
        self,
        v: Value,
        dims: Dims,
        spare: int = 0,
    ) -> Value:
        """Indices into extents, in their memory, checked against the counts.

        dims: one extent that all indices are for, or one per element of the last axis. spare: by
        how much the indexed memory is longer than these. An index out of range is replaced by one
        that the reading kernel reports as an error; indices past the count of `v`, or in a part
        that does not run, become 0.
        """
        if not is_open(dims) and not spare and self._in_range(v, dims):
            return v
        found = v if v.dtype is int64 else self.op("Cast", v, to=number_of("int64"))
        if is_open(dims) or spare:
            found = self._checked(found, dims, spare)
        for valid in (self.inside(self.dims(v)), self.guard):
            if valid is not None:
                found = self.op("Where", valid, found, self.constant(0))
        return self.sized(found, self.dims(v))

    def _in_range(
        self,
        v: Value,
        dims: Dims,
    ) -> bool:
        """Whether the indices are constants that need no check."""
        known = self.typer.known.get(v)
        least_of = min(map(most, dims))
        return known is not None and bool(np.all(np.abs(known + 0.5) < least_of))

    def _checked(
        self,
        index: Value,
        dims: Dims,
        spare: int,
    ) -> Value:
        """Indices counted from the front; those out of range lie outside the memory, too."""
        memory = tuple(most(d) + spare for d in dims)
        ends, behind = (
            self.vector(x) if len(dims) > 1 else self.scalar(x[0])
            for x in (dims, memory)
        )
        zero = self.constant(0)
        turned = self.op("Add", index, ends)
        found = self.op(
            "Where",
            self.op("Less", index, zero),
            turned,
            index,
        )
        below = self.op("Less", found, zero)
        wrong = self.op(
            "Or",
            below,
            self.op("GreaterOrEqual", found, ends),
        )
        return self.op("Where", wrong, behind, found)

    def require(
        self,
        dim: Dim,
        low: Dim,
        high: Dim,
    ) -> Dim:
        """The number; the run reports an index out of range unless low <= it <= high."""
        fine_above = most(dim) <= least(high) or (dim, high) in self._at_most
        if least(dim) >= most(low) and fine_above:
            return dim
        number = self.scalar(dim)
        above = self.op("LessOrEqual", self.scalar(low), number)
        below = self.op("LessOrEqual", number, self.scalar(high))
        fine = self.op("And", above, below)
        zero = self.constant(0)
        wrong = self.op("Where", fine, zero, self.constant(2))
        if self.guard is not None:
            wrong = self.op("Where", self.guard, wrong, zero)
        checked = self.op("Gather", self.constant([0, 1]), wrong, axis=0)
        count = self.op(
            "Add",
            self.op("Where", fine, number, zero),
            checked,
        )
        return BoundedExtent(
            count,
            max(least(dim), 0),
            min(most(dim), most(high)),
        )

    def once(
        self,
        key: Any,
        make: Callable[[], Value],
    ) -> Value:
        """The result of `make`, computed once per key."""
        if key not in self._made:
            self._made[key] = make()
        found: Value = self._made[key]
        return found

    def trimmed(
        self,
        v: Value,
    ) -> Value:
        """The tensor cut to its true shape, outside native code; itself if no extent is open."""
        dims = self.extents.get(v)
        if dims is None:
            return v
        axes = [a for a, d in enumerate(dims) if isinstance(d, BoundedExtent)]
        counts = [self.scalar(dims[a]) for a in axes]
        trim = partial(self.op, "Trim", v, *counts, domain=DOMAIN, axes=axes)
        return self.once(("trimmed", v), trim)
