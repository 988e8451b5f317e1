"""The values of Computations in float64 at chosen points, with rounding bounds.

`ReferenceTensors` evaluates a group of Computations backwards from the requested points, so that a
kernel of any size is judged at its real extents: a few thousand results of a large convolution cost
milliseconds. Where a tensor is written twice, or read before it is written, all is evaluated in
order instead.

A reduction of n values adds sqrt(n) units in the last place of its accumulators, of the sum of
magnitudes: the usual bound n with the square root that independent roundings allow (N. Higham and
T. Mary, A new approach to probabilistic rounding error analysis, 2019). Equal values are rounded
alike: of a value that occurs c times, c roundings add up, and only those of different values are
independent. Sums of small numbers of few binary places are exact in every order: there nothing is
allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ExecutionError, InputError
from tilewright.compute.nodes import CC, PS, Computation, Dim
from tilewright.compute.reducer import Reducer, is_sum
from tilewright.expr.nodes import INDEX, Buffer, Cast, Expr, Load, Var
from tilewright.expr.rounding import (
    LoadNear,
    RoundingBounds,
    near,
    rounded,
    rounding_of_sums,
)
from tilewright.ir.node import postorder

_CHUNK: Final = 1 << 18  # values at once: bounds the memory of temporaries
_NONE: Final = -1
_EDGE: Final = 4  # coordinates that count as an edge

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class _Held:
    """What is known of a tensor: per element its value, its bound, and whether it was computed.

    maker: which Computation writes an element, in the order of the group; point: at which point of
    its free dimensions.
    """

    value: Array
    error: Array
    known: Array
    maker: Array
    point: Array

    def anew(self) -> _Held:
        """The same places, nothing computed yet."""
        n = len(self.value)
        value = np.zeros(n, self.value.dtype)
        return _Held(
            value,
            np.zeros(n),
            np.zeros(n, bool),
            self.maker,
            self.point,
        )


@dataclass(frozen=True, slots=True)
class SortedComputation:
    """One Computation with its dimensions sorted: `free`: the dimensions of its results."""

    computation: Computation
    free: tuple[Dim, ...]
    bound: tuple[Dim, ...]
    nodes: int = field(default=0)

    @staticmethod
    def of(c: Computation) -> SortedComputation:
        """The part of a Computation."""
        free = tuple(d for d in c.dims if d.combine in (CC, PS))
        scans = tuple(d for d in c.dims if d.combine == PS)
        reduced = tuple(d for d in c.dims if d.combine not in (CC, PS))
        nodes = sum(1 for o in c.outputs for _ in postorder(o.value))
        return SortedComputation(c, free, scans + reduced, nodes)

    @property
    def points(self) -> int:
        """How many results each output has."""
        return math.prod(d.extent for d in self.free)

    @property
    def terms(self) -> int:
        """How many values each result combines."""
        return math.prod(d.extent for d in self.bound)

    @property
    def work(self) -> int:
        """Nodes evaluated for all results."""
        return self.points * max(1, self.terms) * self.nodes


class ReferenceTensors:
    """The tensors that a group of Computations writes.

    arrays: the contents before the group runs: of every tensor read that it does not write whole.
    work: expression nodes evaluated so far. in_order: the first question evaluates everything.
    """

    def __init__(
        self,
        group: Sequence[Computation],
        arrays: Mapping[Buffer, Any],
        other: ReferenceTensors | None = None,
    ) -> None:
        """other: of the same group on other data; what does not depend on data is taken from it."""
        self.parts = [SortedComputation.of(c) for c in group]
        self.work = 0
        self._arrays = {}
        for b, a in arrays.items():
            self._arrays[b] = np.ascontiguousarray(a).reshape(-1)
        self._held: dict[Buffer, _Held] = {}
        self._twice = False
        if other is not None and not any(map(_scatters, group)):
            self._held = {b: held.anew() for b, held in other._held.items()}
            self._twice = other._twice
        else:
            for n, part in enumerate(self.parts):
                self._twice |= self._place(n, part)
        self.in_order = self._twice or _reads_ahead(group)
        self._waiting = self.in_order

    @cached_property
    def total(self) -> int:
        """Nodes to evaluate for everything."""
        return sum(p.work for p in self.parts)

    def written(self, buffer: Buffer) -> Array:
        """Which elements the group writes, in one dimension."""
        held = self._held.get(buffer)
        if held is None:
            return np.zeros(buffer.size, bool)
        return np.asarray(held.maker != _NONE)

    def sample(
        self,
        buffer: Buffer,
        count: int,
        rng: np.random.Generator,
    ) -> Array:
        """Positions of about `count` elements that the group writes, by each Computation that does.

        Half of the coordinates are at the edges of dimensions, where tiles end.
        """
        found = [np.zeros(0, np.int64)]
        for part in self.parts:
            for o in part.computation.outputs:
                if o.tensor is not buffer or not part.points:
                    continue
                env = {
                    d.var: RoundingBounds(_drawn(d.extent, count, rng))
                    for d in part.free
                }
                at = self._index(o.index, env, buffer, part.computation)
                found.append(at.reshape(-1))
        return _distinct(np.concatenate(found), buffer.size)

    def at(self, buffer: Buffer, places: Array) -> RoundingBounds:
        """The elements at these positions in the tensor; where nothing is written, what was there.

        Raises ExecutionError (TW-INDEX) where an index read from data is out of range.
        """
        if self._waiting:
            self._waiting = False
            for n, part in enumerate(self.parts):
                self._compute(part, np.arange(part.points), n)
        held = self._held.get(buffer)
        if held is None:
            return self._given(buffer, places)
        missing = _distinct(places[~held.known[places]], buffer.size)
        for maker in self._makers(held, missing):
            mine = missing[held.maker[missing] == maker]
            if maker == _NONE:
                self._copy(buffer, held, mine)
            elif len(mine):
                part = self.parts[maker]
                points = _distinct(held.point[mine], part.points)
                self._compute(part, points, maker)
        error = held.error[places]
        return RoundingBounds(held.value[places], error if error.any() else 0.0)

    def _given(self, buffer: Buffer, places: Array) -> RoundingBounds:
        if buffer not in self._arrays:
            raise InputError(f"no array for {buffer!r}")
        found = self._arrays[buffer][places]
        return RoundingBounds(
            found.astype(np.float64) if buffer.dtype.is_float else found
        )

    def _copy(
        self,
        buffer: Buffer,
        held: _Held,
        places: Array,
    ) -> None:
        """Elements that the group does not write: as they were, or unknown."""
        if buffer in self._arrays:
            held.value[places] = self._given(buffer, places).value
        else:
            held.error[places] = np.inf
        held.known[places] = True

    # -- where each element comes from

    def _makers(self, held: _Held, places: Array) -> Array:
        """Which Computations write these elements, each once; _NONE among them."""
        from_zero = held.maker[places] - _NONE
        return _distinct(from_zero, len(self.parts) + 1) + _NONE

    def _place(self, number: int, part: SortedComputation) -> bool:
        """Note what a Computation writes; whether another wrote some of that before."""
        twice = False
        for o in part.computation.outputs:
            held = self._hold(o.tensor)
            for points in _pieces(part.points):
                env = _values(part.free, points)
                index = self._index(o.index, env, o.tensor, part.computation)
                at = index.reshape(-1)
                twice |= bool((held.maker[at] != _NONE).any())
                held.maker[at] = number
                held.point[at] = points
                twice |= bool((held.point[at] != points).any())
        return twice

    def _hold(self, buffer: Buffer) -> _Held:
        if buffer not in self._held:
            kind = np.float64 if buffer.dtype.is_float else buffer.dtype.numpy
            n = buffer.size
            self._held[buffer] = _Held(
                np.zeros(n, kind),
                np.zeros(n),
                np.zeros(n, bool),
                np.full(n, _NONE, np.int16),
                np.zeros(n, np.int64),
            )
        return self._held[buffer]

    def _index(
        self,
        index: Sequence[Expr],
        env: Mapping[Var, RoundingBounds],
        buffer: Buffer,
        c: Computation,
    ) -> Array:
        shape = np.broadcast_shapes(*(np.shape(v.value) for v in env.values()))
        load = self._load(c)
        parts = tuple(near(i, env, load).value for i in index)
        return np.broadcast_to(_flat(buffer, parts, c), shape)

    # -- values

    def _load(self, c: Computation) -> LoadNear:
        def load(buffer: Buffer, index: tuple[Any, ...]) -> RoundingBounds:
            places = np.asarray(_flat(buffer, index, c))
            found = self.at(buffer, places.reshape(-1))
            if np.ndim(found.error) == 0:
                error = found.error
            else:
                error = found.error.reshape(places.shape)
            return RoundingBounds(found.value.reshape(places.shape), error)

        return load

    def _compute(
        self,
        part: SortedComputation,
        points: Array,
        number: int,
    ) -> None:
        """The results of a Computation at these points of its free dimensions, into its tensors."""
        c = part.computation
        terms = max(1, min(part.terms, _CHUNK))
        rows = max(1, _CHUNK // terms)
        for first in range(0, len(points), rows):
            here = points[first : first + rows]
            env = _values(part.free, here)
            if c.reducer is None:
                found = self._mapped(part, env)
                dtypes = tuple(o.value.dtype for o in c.outputs)
            else:
                found = self._reduced(part, here)
                dtypes = c.reducer.dtypes
            for o, v, dtype in zip(c.outputs, found, dtypes, strict=True):
                if dtype is not o.tensor.dtype:
                    cast, given = _conversion(dtype, o.tensor.dtype)
                    v = near(cast, {given: v})
                held = self._held[o.tensor]
                index = self._index(o.index, env, o.tensor, c)
                at = index.reshape(-1)
                held.value[at] = v.value
                held.error[at] = v.error
                held.known[at] = True

    def _mapped(
        self,
        part: SortedComputation,
        env: Mapping[Var, RoundingBounds],
    ) -> tuple[RoundingBounds, ...]:
        c = part.computation
        load = self._load(c)
        sizes = [np.size(v.value) for v in env.values()]
        count = max(sizes, default=1)
        self.work += count * part.nodes
        return tuple(near(o.value, env, load) for o in c.outputs)

    def _reduced(
        self,
        part: SortedComputation,
        points: Array,
    ) -> tuple[RoundingBounds, ...]:
        c = part.computation
        reducer = part.computation.reducer
        assert reducer is not None
        load = self._load(c)
        rows = _values(part.free, points)
        free = {v: RoundingBounds(x.value[:, None]) for v, x in rows.items()}
        total: tuple[RoundingBounds, ...] | None = None
        scale = math.sqrt(max(1, part.terms))
        for terms in _pieces(part.terms):
            columns = _values(part.bound, terms)
            env = free | {v: RoundingBounds(x.value[None]) for v, x in columns.items()}
            self.work += len(points) * len(terms) * part.nodes
            shape = (len(points), len(terms))
            found = (near(o.value, env, load) for o in c.outputs)
            values = tuple(_spread(x, shape) for x in found)
            values = _before(part, reducer, points, terms, values)
            part_total = _combined(reducer, values, scale)
            if total is None:
                total = part_total
            else:
                total = _pair(reducer, total, part_total, scale)
        if total is not None:
            return total
        empty = [near(i, {}).value for i in reducer.identity]
        return tuple(RoundingBounds(np.repeat(value, len(points))) for value in empty)


def _distinct(numbers: Array, limit: int) -> Array:
    """The numbers below a limit, each once, in order."""
    if len(numbers) < limit // 16:
        return np.unique(numbers)
    found = np.zeros(limit, bool)
    found[numbers] = True
    return np.flatnonzero(found)


def _pieces(count: int) -> Iterator[Array]:
    for first in range(0, count, _CHUNK):
        yield np.arange(first, min(first + _CHUNK, count))


def _drawn(
    extent: int,
    count: int,
    rng: np.random.Generator,
) -> Array:
    """Coordinates of one dimension: any, or one of the first or last few."""
    first = rng.integers(0, min(extent, _EDGE), count)
    at_start = rng.random(count) < 0.5
    edges = np.where(at_start, first, extent - 1 - first)
    at_edge = rng.random(count) < 0.5
    anywhere = rng.integers(0, extent, count)
    return np.where(at_edge, edges, anywhere)


def _values(
    dims: Sequence[Dim],
    points: Array,
) -> dict[Var, RoundingBounds]:
    """The variables of dimensions at flat points."""
    found: dict[Var, RoundingBounds] = {}
    rest = points
    for d in reversed(dims):
        found[d.var] = RoundingBounds(rest % max(1, d.extent))
        rest = rest // max(1, d.extent)
    if not found:
        found[Var("point", INDEX)] = RoundingBounds(points)
    return found


def _flat(
    buffer: Buffer,
    index: Sequence[Any],
    c: Computation,
) -> Any:
    """Positions in a tensor. Raises ExecutionError for an index out of range."""
    total: Any = np.int64(0)
    axes = zip(index, buffer.shape, buffer.strides, strict=True)
    for axis, (i, extent, step) in enumerate(axes):
        at = np.asarray(i)
        bad = (at < 0) | (at >= extent)
        if np.any(bad):
            first = at[bad].flat[0]
            raise ExecutionError(
                f"index {first} of dimension {axis} of {buffer.name} is outside 0..{extent - 1}",
                code="TW-INDEX",
                where=c.name,
            )
        total = total + i * step
    return total


def _reads_ahead(group: Sequence[Computation]) -> bool:
    """Whether some tensor is read before the group has finished writing it."""
    later: set[Buffer] = set()
    for c in reversed(group):
        later |= {o.tensor for o in c.outputs}
        if later & set(c.inputs):
            return True
    return False


def _scatters(c: Computation) -> bool:
    """Whether data says where a Computation writes."""
    return any(
        isinstance(n, Load) for o in c.outputs for i in o.index for n in postorder(i)
    )


def _conversion(source: Any, target: Any) -> tuple[Expr, Var]:
    given = Var("value", source)
    return Cast(given, target), given


# -- reductions


def _spread(x: RoundingBounds, shape: tuple[int, ...]) -> RoundingBounds:
    value = np.broadcast_to(x.value, shape)
    error = np.broadcast_to(x.error, shape)
    return RoundingBounds(value, error)


def _before(
    part: SortedComputation,
    reducer: Reducer,
    points: Array,
    terms: Array,
    values: tuple[RoundingBounds, ...],
) -> tuple[RoundingBounds, ...]:
    """For scans: what comes after a result counts as the identity."""
    scans = [d for d in part.bound if d.combine == PS]
    if not scans:
        return values
    here = _values(part.free, points)
    there = _values(part.bound, terms)
    inside = np.ones((len(points), len(terms)), bool)
    for d in scans:
        inside &= there[d.var].value[None] <= here[d.var].value[:, None]
    found = []
    for v, identity in zip(values, reducer.identity, strict=True):
        value = np.where(inside, v.value, near(identity, {}).value)
        error = np.where(inside, v.error, 0.0)
        found.append(RoundingBounds(value, error))
    return tuple(found)


def _combined(
    reducer: Reducer,
    values: tuple[RoundingBounds, ...],
    scale: float,
) -> tuple[RoundingBounds, ...]:
    """Rows of values combined, neighbors first, so that the order is kept."""
    if is_sum(reducer) and reducer.dtypes[0].is_float:
        return (_sum(reducer, values[0], scale),)
    count = values[0].value.shape[1]
    while count > 1:
        even = count // 2 * 2
        firsts = slice(0, even, 2)
        seconds = slice(1, even, 2)
        pairs = _pair(
            reducer,
            tuple(_columns(v, firsts) for v in values),
            tuple(_columns(v, seconds) for v in values),
            scale,
        )
        rest = [_columns(v, slice(even, None)) for v in values]
        values = tuple(_behind(p, v) for p, v in zip(pairs, rest, strict=True))
        count = values[0].value.shape[1]
    return tuple(RoundingBounds(v.value[:, 0], v.error[:, 0]) for v in values)


def _columns(x: RoundingBounds, which: slice) -> RoundingBounds:
    return RoundingBounds(x.value[:, which], x.error[:, which])


def _behind(left: RoundingBounds, right: RoundingBounds) -> RoundingBounds:
    """The columns of `left`, then those of `right`."""
    left_error = np.broadcast_to(left.error, left.value.shape)
    value = np.concatenate([left.value, right.value], 1)
    error = np.concatenate([left_error, right.error], 1)
    return RoundingBounds(value, error)


def _pair(
    reducer: Reducer,
    left: tuple[RoundingBounds, ...],
    right: tuple[RoundingBounds, ...],
    scale: float,
) -> tuple[RoundingBounds, ...]:
    variables = (*reducer.lhs, *reducer.rhs)
    env = dict(zip(variables, (*left, *right), strict=True))
    return tuple(near(r, env, scale=scale) for r in reducer.result)


def _sum(reducer: Reducer, x: RoundingBounds, scale: float) -> RoundingBounds:
    dtype = reducer.dtypes[0]
    with np.errstate(all="ignore"):
        value = x.value.sum(1)
        error = np.asarray(x.error).sum(1)
        added = rounding_of_sums(x.value, dtype, scale)
        return rounded(value, error + added, dtype, 0.0)
