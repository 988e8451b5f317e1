"""The values of Computations in float64 at chosen points, with rounding bounds.

`Truth` evaluates a group of Computations backwards from the points that are asked for, so that a
kernel of any size is judged at its real extents: a few thousand results of a large convolution cost
milliseconds. Where a tensor is written twice, or read before it is written, all is evaluated in
order instead.

A reduction of n values adds sqrt(n) units in the last place of its accumulators, of the sum of
magnitudes: the usual bound n with the square root that independent roundings allow (N. Higham and
T. Mary, A new approach to probabilistic rounding error analysis, 2019). Sums of small numbers of
few binary places are exact in every order: there nothing is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from tilewright.base.errors import ExecutionError, InputError
from tilewright.compute.nodes import CC, PS, Computation, Dim
from tilewright.compute.reducer import Reducer, is_sum
from tilewright.expr.nodes import INDEX, Buffer, Cast, Expr, Load, Var
from tilewright.expr.rounding import (
    STEPS,
    LoadNear,
    Near,
    format_of,
    near,
    rounded,
    steps,
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
        return _Held(value, np.zeros(n), np.zeros(n, bool), self.maker, self.point)


@dataclass(frozen=True, slots=True)
class Part:
    """One Computation with its dimensions sorted: `free` are those of its results."""

    computation: Computation
    free: tuple[Dim, ...]
    bound: tuple[Dim, ...]
    nodes: int = field(default=0)

    @staticmethod
    def of(c: Computation) -> Part:
        """The part of a Computation."""
        scans = tuple(d for d in c.dims if d.combine == PS)
        rest = tuple(d for d in c.dims if d.combine not in (CC, PS))
        nodes = sum(1 for o in c.outputs for _ in postorder(o.value))
        return Part(
            c, tuple(d for d in c.dims if d.combine in (CC, PS)), scans + rest, nodes
        )

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


class Truth:
    """The tensors that a group of Computations writes.

    arrays: the contents before the group runs: of every tensor read that it does not write whole.
    work: expression nodes evaluated so far. in_order: the first question evaluates everything.
    """

    def __init__(
        self,
        group: Sequence[Computation],
        arrays: Mapping[Buffer, Any],
        other: Truth | None = None,
    ) -> None:
        """other: of the same group on other data; what does not depend on data is taken from it."""
        self.parts = [Part.of(c) for c in group]
        self.work = 0
        self._arrays = {
            b: np.ascontiguousarray(a).reshape(-1) for b, a in arrays.items()
        }
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
        return np.zeros(buffer.size, bool) if held is None else held.maker != _NONE

    def sample(self, buffer: Buffer, count: int, rng: np.random.Generator) -> Array:
        """Positions of about `count` elements that the group writes, by each Computation that does.

        Half of the coordinates are at the edges of dimensions, where tiles end.
        """
        found = [np.zeros(0, np.int64)]
        for part in self.parts:
            for o in part.computation.outputs:
                if o.tensor is buffer and part.points:
                    env = {d.var: Near(_drawn(d.extent, count, rng)) for d in part.free}
                    at = self._index(o.index, env, buffer, part.computation)
                    found.append(at.reshape(-1))
        return _distinct(np.concatenate(found), buffer.size)

    def at(self, buffer: Buffer, places: Array) -> Near:
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
        for maker in (
            _distinct(held.maker[missing] - _NONE, len(self.parts) + 1) + _NONE
        ):
            mine = missing[held.maker[missing] == maker]
            if maker == _NONE:
                self._copy(buffer, held, mine)
            elif len(mine):
                points = _distinct(held.point[mine], self.parts[maker].points)
                self._compute(self.parts[maker], points, maker)
        error = held.error[places]
        return Near(held.value[places], error if error.any() else 0.0)

    def _given(self, buffer: Buffer, places: Array) -> Near:
        if buffer not in self._arrays:
            raise InputError(f"no array for {buffer!r}")
        found = self._arrays[buffer][places]
        return Near(found.astype(np.float64) if buffer.dtype.is_float else found)

    def _copy(self, buffer: Buffer, held: _Held, places: Array) -> None:
        """Elements that the group does not write: as they were, or unknown."""
        if buffer in self._arrays:
            held.value[places] = self._given(buffer, places).value
        else:
            held.error[places] = np.inf
        held.known[places] = True

    # -- where each element comes from

    def _place(self, number: int, part: Part) -> bool:
        """Note what a Computation writes; whether another wrote some of that before."""
        twice = False
        for o in part.computation.outputs:
            held = self._hold(o.tensor)
            for points in _pieces(part.points):
                env = _values(part.free, points)
                at = self._index(o.index, env, o.tensor, part.computation).reshape(-1)
                twice |= bool((held.maker[at] != _NONE).any())
                held.maker[at], held.point[at] = number, points
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
        env: Mapping[Var, Near],
        buffer: Buffer,
        c: Computation,
    ) -> Array:
        shape = np.broadcast_shapes(*(np.shape(v.value) for v in env.values()))
        parts = tuple(near(i, env, self._load(c)).value for i in index)
        return np.broadcast_to(_flat(buffer, parts, c), shape)

    # -- values

    def _load(self, c: Computation) -> LoadNear:
        def load(buffer: Buffer, index: tuple[Any, ...]) -> Near:
            places = np.asarray(_flat(buffer, index, c))
            found = self.at(buffer, places.reshape(-1))
            error = (
                found.error
                if np.ndim(found.error) == 0
                else found.error.reshape(places.shape)
            )
            return Near(found.value.reshape(places.shape), error)

        return load

    def _compute(self, part: Part, points: Array, number: int) -> None:
        """The results of a Computation at these points of its free dimensions, into its tensors."""
        c = part.computation
        rows = max(1, _CHUNK // max(1, min(part.terms, _CHUNK)))
        for first in range(0, len(points), rows):
            here = points[first : first + rows]
            env = _values(part.free, here)
            found = (
                self._mapped(part, env)
                if c.reducer is None
                else self._reduced(part, here)
            )
            for n, (o, v) in enumerate(zip(c.outputs, found, strict=True)):
                dtype = o.value.dtype if c.reducer is None else c.reducer.dtypes[n]
                if dtype is not o.tensor.dtype:
                    cast, given = _conversion(dtype, o.tensor.dtype)
                    v = near(cast, {given: v})
                held = self._held[o.tensor]
                at = self._index(o.index, env, o.tensor, c).reshape(-1)
                held.value[at], held.error[at], held.known[at] = v.value, v.error, True

    def _mapped(self, part: Part, env: Mapping[Var, Near]) -> tuple[Near, ...]:
        c = part.computation
        count = max((np.size(v.value) for v in env.values()), default=1)
        self.work += count * part.nodes
        return tuple(near(o.value, env, self._load(c)) for o in c.outputs)

    def _reduced(self, part: Part, points: Array) -> tuple[Near, ...]:
        c, reducer = part.computation, part.computation.reducer
        assert reducer is not None
        free = {
            v: Near(x.value[:, None]) for v, x in _values(part.free, points).items()
        }
        total: tuple[Near, ...] | None = None
        scale = math.sqrt(max(1, part.terms))
        for terms in _pieces(part.terms):
            env = {
                **free,
                **{
                    v: Near(x.value[None])
                    for v, x in _values(part.bound, terms).items()
                },
            }
            self.work += len(points) * len(terms) * part.nodes
            shape = (len(points), len(terms))
            values = tuple(
                _spread(near(o.value, env, self._load(c)), shape) for o in c.outputs
            )
            values = _before(part, reducer, points, terms, values)
            found = _combined(reducer, values, scale)
            total = found if total is None else _pair(reducer, total, found, scale)
        if total is None:
            total = tuple(
                Near(np.repeat(near(i, {}).value, len(points)))
                for i in reducer.identity
            )
        return total


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


def _drawn(extent: int, count: int, rng: np.random.Generator) -> Array:
    """Coordinates of one dimension: any, or one of the first or last few."""
    near = rng.integers(0, min(extent, _EDGE), count)
    edges = np.where(rng.random(count) < 0.5, near, extent - 1 - near)
    return np.where(rng.random(count) < 0.5, edges, rng.integers(0, extent, count))


def _values(dims: Sequence[Dim], points: Array) -> dict[Var, Near]:
    """The variables of dimensions at flat points."""
    found: dict[Var, Near] = {}
    rest = points
    for d in reversed(dims):
        found[d.var] = Near(rest % max(1, d.extent))
        rest = rest // max(1, d.extent)
    if not found:
        found[Var("point", INDEX)] = Near(points)
    return found


def _flat(buffer: Buffer, index: Sequence[Any], c: Computation) -> Any:
    """Positions in a tensor. Raises ExecutionError for an index out of range."""
    total: Any = np.int64(0)
    for axis, (i, extent, step) in enumerate(
        zip(index, buffer.shape, buffer.strides, strict=True)
    ):
        bad = (np.asarray(i) < 0) | (np.asarray(i) >= extent)
        if np.any(bad):
            first = np.asarray(i)[bad].flat[0]
            raise ExecutionError(
                f"index {first} of dimension {axis} of {buffer.name} is outside 0..{extent - 1}",
                code="TW-INDEX",
                where=c.name,
            )
        total = total + i * step
    return total


def _reads_ahead(group: Sequence[Computation]) -> bool:
    """Whether some tensor is read before the group has written all that it writes of it."""
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


def _spread(x: Near, shape: tuple[int, ...]) -> Near:
    return Near(np.broadcast_to(x.value, shape), np.broadcast_to(x.error, shape))


def _before(
    part: Part, reducer: Reducer, points: Array, terms: Array, values: tuple[Near, ...]
) -> tuple[Near, ...]:
    """For scans: what comes behind a result counts as the identity."""
    scans = [d for d in part.bound if d.combine == PS]
    if not scans:
        return values
    here, there = _values(part.free, points), _values(part.bound, terms)
    inside = np.ones((len(points), len(terms)), bool)
    for d in scans:
        inside &= there[d.var].value[None] <= here[d.var].value[:, None]
    return tuple(
        Near(
            np.where(inside, v.value, near(i, {}).value), np.where(inside, v.error, 0.0)
        )
        for v, i in zip(values, reducer.identity, strict=True)
    )


def _combined(
    reducer: Reducer, values: tuple[Near, ...], scale: float
) -> tuple[Near, ...]:
    """Rows of values combined, neighbors first, so that the order is kept."""
    if is_sum(reducer) and reducer.dtypes[0].is_float:
        return (_sum(reducer, values[0], scale),)
    while values[0].value.shape[1] > 1:
        even = values[0].value.shape[1] // 2 * 2
        left = tuple(Near(v.value[:, :even:2], v.error[:, :even:2]) for v in values)
        right = tuple(Near(v.value[:, 1:even:2], v.error[:, 1:even:2]) for v in values)
        pairs = _pair(reducer, left, right, scale)
        values = tuple(
            Near(
                np.concatenate([p.value, v.value[:, even:]], 1),
                np.concatenate(
                    [np.broadcast_to(p.error, p.value.shape), v.error[:, even:]], 1
                ),
            )
            for p, v in zip(pairs, values, strict=True)
        )
    return tuple(Near(v.value[:, 0], v.error[:, 0]) for v in values)


def _pair(
    reducer: Reducer, left: tuple[Near, ...], right: tuple[Near, ...], scale: float
) -> tuple[Near, ...]:
    env = dict(zip((*reducer.lhs, *reducer.rhs), (*left, *right), strict=True))
    return tuple(near(r, env, scale=scale) for r in reducer.result)


def _sum(reducer: Reducer, x: Near, scale: float) -> Near:
    dtype = reducer.dtypes[0]
    with np.errstate(all="ignore"):
        value, size = x.value.sum(1), np.abs(x.value).sum(1)
        error = np.asarray(x.error).sum(1)
        whole = steps(x.value).all(1) & (size <= format_of(dtype).whole / STEPS)
        single = x.value.shape[1] == 1
        added = np.where(whole | single, 0.0, format_of(dtype).unit * scale * size)
        added = np.where(np.isfinite(size), added, 0.0)
        return rounded(value, error + added, dtype, 0.0)
