"""Finds the sizes of a wide range that a graph may treat differently from the planned ones.

Each value of the graph has an affine function of the sizes, or of their products, through its
extents at the planned sizes (and through its numbers, for shape arithmetic). Operators that copy or
add affine extents keep them affine for every size. The results of every other operator are computed
at all sizes that its operands depend on, and compared with the function. This finds a floor, a
remainder, or a branch that one size in a thousand takes, without planning for each size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations as combine
from typing import Any, Final

import numpy as np

from tilewright.base.errors import TilewrightError, UnsupportedError
from tilewright.driver.generalize import is_corner
from tilewright.driver.ranges import combinations, count
from tilewright.graph.infer import FallbackProvider, Typer, Typing, known_branch
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.errors import place
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import POINTWISE, SPATIAL
from tilewright.runtime.dispatch import Allowed

Extents = Mapping[str, int]
# Most results to compute; each takes a few tenths of a millisecond.
WORKED: Final = 1 << 18
KNOWN: Final = 1 << 24  # most elements of a computed result; planning folds no more
PIECE: Final = 1 << 12  # elements of an array that take about as long as a result

# The extents of their results are those of operands, or sums of these.
COPIES: Final = frozenset(
    (
        *("BatchNormalization", "Concat", "Gather", "GatherElements", "Gemm"),
        *("GroupNormalization", "InstanceNormalization", "LayerNormalization"),
        *("LogSoftmax", "MatMul", "RMSNormalization", "ScatterElements", "Softmax"),
        *("Transpose",),
    )
)
# Their int64 results are affine functions of all operands, or (PLACES) of the first one.
AFFINE: Final = frozenset(("Add", "Concat", "Identity", "Shape", "Sub"))
PLACES: Final = frozenset(("Gather", "Slice", "Squeeze", "Unsqueeze"))


@dataclass(frozen=True, eq=False, slots=True)
class AffineForm:
    """A numeric array as an affine function of sizes, and of products of two of them.

    slopes: by size, all nonzero. products: the coefficients of products of two sizes.
    """

    start: Extents
    base: np.ndarray[Any, Any]
    slopes: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    products: Mapping[tuple[str, str], np.ndarray[Any, Any]] = field(
        default_factory=dict
    )

    @classmethod
    def through(
        cls, points: Sequence[Extents], found: Sequence[Any]
    ) -> AffineForm | None:
        """The function through the arrays found at points; None if there is none.

        points: one, then others that differ from it in one size each, then any others.
        """
        first, start = found[0], points[0]
        if all(a is first or _same(a, first) for a in found):
            return cls(start, first)
        if first.dtype.kind not in "iuf" or any(a.shape != first.shape for a in found):
            return None
        base = first.astype(np.float64 if first.dtype.kind == "f" else np.int64)
        slopes: dict[str, Any] = {}
        for point, a in zip(points[1:], found[1:], strict=True):
            name, *more = (n for n in start if point[n] != start[n])
            if more or name in slopes:
                continue
            rise, run = a.astype(base.dtype) - base, point[name] - start[name]
            slopes[name] = rise / run if base.dtype.kind == "f" else rise // run
        form = cls(start, first, {n: a for n, a in slopes.items() if a.any()})
        form = form._with_products(points[-1], found[-1])
        exact = (
            np.array_equal(form.at(point), a.astype(base.dtype))
            for point, a in zip(points, found, strict=True)
        )
        return form if all(exact) else None

    def _with_products(self, point: Extents, found: np.ndarray[Any, Any]) -> AffineForm:
        """Add the difference at a point as a product, for elements that depend on two sizes."""
        rest = found.astype(np.int64) - self.at(point)
        if found.dtype.kind == "f" or not rest.any():
            return self
        products = {}
        many = sum((slope != 0).astype(int) for slope in self.slopes.values())
        for one, other in combine(self.slopes, 2):
            both = (self.slopes[one] != 0) & (self.slopes[other] != 0) & (many == 2)
            run = math.prod(point[n] - self.start[n] for n in (one, other))
            if run and (rest * both).any():
                products[one, other] = rest * both // run
        return replace(self, products=products)

    def at(self, extents: Extents) -> np.ndarray[Any, Any]:
        """The array at these sizes."""
        if not self.slopes:
            return self.base
        run = {n: extents[n] - self.start[n] for n in self.slopes}
        found = self.base + sum(s * run[n] for n, s in self.slopes.items())
        found = found + sum(s * run[n] * run[m] for (n, m), s in self.products.items())
        return np.asarray(found).astype(self.base.dtype)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal functions."""
        rises = (*self.slopes.items(), *self.products.items())
        steps = ((n, s.tobytes()) for n, s in rises)
        return (self.base.shape, self.base.dtype, self.base.tobytes(), *steps)


@dataclass(frozen=True, eq=False, slots=True)
class CornerForm:
    """An array whose extents depend on the sizes: a corner of the array at the largest sizes."""

    whole: np.ndarray[Any, Any]
    shape: AffineForm

    @property
    def slopes(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """The sizes that its extents depend on."""
        return self.shape.slopes

    def at(self, extents: Extents) -> np.ndarray[Any, Any]:
        """The array at these sizes."""
        return self.whole[tuple(map(slice, map(int, self.shape.at(extents))))]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal functions."""
        return (self.whole.dtype, self.whole.tobytes(), self.shape.key)


@dataclass(frozen=True, eq=False, slots=True)
class Fact:
    """A value at all sizes: its extents, and its numbers if they are known."""

    value: Value
    shape: AffineForm
    numbers: AffineForm | CornerForm | None = None

    @property
    def sizes(self) -> frozenset[str]:
        """The sizes that it depends on."""
        forms = (f for f in (self.shape, self.numbers) if f is not None)
        return frozenset(name for f in forms for name in f.slopes)

    def at(self, extents: Extents) -> tuple[Value, Any]:
        """The value at these sizes, and its numbers or None."""
        shape = tuple(map(int, self.shape.at(extents)))
        numbers = None if self.numbers is None else self.numbers.at(extents)
        return Value(self.value.name, self.value.dtype, shape), numbers

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal facts."""
        forms = (self.shape, self.numbers)
        return (self.value.dtype, *(f and f.key for f in forms))


@dataclass(eq=False, slots=True)
class Between:
    """Finds the sizes at which a graph is not the same function of the sizes as at the points.

    points: one, others that differ from it in one size each, and the largest sizes. typings: of the
    graph at the points.
    """

    graph: Graph
    allowed: Allowed
    points: Sequence[Extents]
    typings: Sequence[Typing]
    fallback: FallbackProvider | None = None
    facts: dict[Value, Fact | None] = field(default_factory=dict)
    done: set[tuple[Any, ...]] = field(default_factory=set)
    worked: int = 0

    def odd(self) -> Iterator[Extents]:
        """Yield these sizes. Each result covers all sizes with the same values for the names in it.

        Raises UnsupportedError (TW-JIT) naming a node that cannot be decided.
        """
        yield from self._of(self.graph.operations)

    def _of(self, operations: Sequence[Operation]) -> Iterator[Extents]:
        for op in operations:
            reads = [self._fact(v, op) for v in op.reads]
            sizes = frozenset[str]().union(*(f.sizes for f in reads))
            if not sizes:
                continue
            if op.subgraphs:
                yield from self._of(self._branch(op).operations)
                continue
            made = [self._fact(v, op) for v in op.writes]
            if not _plain(op, reads, made):
                yield from self._worked(op, reads, made, sizes)

    def _fact(self, v: Value, op: Operation) -> Fact:
        if v not in self.facts:
            self.facts[v] = self._found(v)
        found = self.facts[v]
        if found is None:
            raise _untold(op, f"{v.name!r} is not an affine function of the sizes")
        return found

    def _found(self, v: Value) -> Fact | None:
        """From all points, or without the last one, at which the function may differ."""
        return self._through(v, len(self.points)) or self._through(v, -1)

    def _through(self, v: Value, count: int) -> Fact | None:
        points, typings = self.points[:count], self.typings[:count]
        values = [t.env.get(v, v) for t in typings]
        first = values[0]
        if not all(w.static and w.dtype is first.dtype for w in values):
            return None
        shapes = [np.array(w.extents, np.int64) for w in values]
        if len({len(s) for s in shapes}) > 1:
            return None
        shape = AffineForm.through(points, shapes)
        known = [t.known.get(w) for t, w in zip(typings, values, strict=True)]
        if shape is None:
            return None
        if all(a is None for a in known):
            return Fact(first, shape)
        whole = known[-1]
        if whole is None or any(a is None for a in known):
            return None
        numbers: AffineForm | CornerForm | None
        if shape.slopes:
            corners = all(is_corner(a, whole) for a in known)
            numbers = CornerForm(whole, shape) if corners else None
        else:
            numbers = AffineForm.through(points, known)
        return None if numbers is None else Fact(first, shape, numbers)

    def _branch(self, op: Operation) -> Graph:
        """The branch that an If takes at all sizes."""
        condition = op.inputs[0]
        first = self.typings[0]
        branch = known_branch(op, first.env, first.known)
        if branch is None or condition is None or self._fact(condition, op).sizes:
            raise _untold(op, "its body depends on a size")
        return branch

    def _worked(
        self,
        op: Operation,
        reads: Sequence[Fact],
        made: Sequence[Fact],
        sizes: frozenset[str],
    ) -> Iterator[Extents]:
        """The sizes at which the results of an operator differ from their assumed functions."""
        spread = {n: e for n, e in self.allowed.items() if n in sizes}
        key = (
            *(op.qualified, op.version, len(op.outputs)),
            tuple((k, _frozen(a)) for k, a in op.attributes.items()),
            tuple(None if v is None else op.reads.index(v) for v in op.inputs),
            tuple(f.key for f in reads),
        )
        if key in self.done:
            return
        self.done.add(key)
        arrays = (f.numbers.whole for f in made if isinstance(f.numbers, CornerForm))
        self.worked += count(spread) * (1 + sum(a.size for a in arrays) // PIECE)
        if self.worked > WORKED:
            raise _untold(op, f"there are over {WORKED:,} results to compare")
        for extents in combinations(spread):
            if not self._as_taken(op, reads, made, extents):
                yield dict(extents)

    def _as_taken(
        self,
        op: Operation,
        reads: Sequence[Fact],
        made: Sequence[Fact],
        extents: Extents,
    ) -> bool:
        pairs = [f.at(extents) for f in reads]
        typer = Typer(self.fallback, fold_elements=KNOWN)
        typer.known.update((v, a) for v, a in pairs if a is not None)
        env = {r: v for r, (v, _) in zip(op.reads, pairs, strict=True)}
        inputs = tuple(None if v is None else env[v] for v in op.inputs)
        try:
            made_here = typer.apply(replace(op, inputs=inputs))
        except TilewrightError:
            return False
        return all(
            _agrees(v, typer.known.get(v), *f.at(extents))
            for v, f in zip(filter(None, made_here), made, strict=True)
        )


def _plain(op: Operation, reads: Sequence[Fact], made: Sequence[Fact]) -> bool:
    """Whether the results are affine functions of sizes because the operands are."""
    first, *others = reads
    forms = (form for f in reads for form in (f.shape, f.numbers))
    if any(isinstance(form, AffineForm) and form.products for form in forms):
        return False  # sums of products may have more products
    alone = not any(f.sizes for f in others)
    if any(isinstance(f.numbers, CornerForm) for f in made):
        return False
    if any(f.numbers is not None for f in made):
        known = [f.numbers.base for f in reads if isinstance(f.numbers, AffineForm)]
        exact = all(a.dtype == np.int64 for a in known)
        places = op.qualified in PLACES and alone and not first.shape.slopes
        return exact and (op.qualified in AFFINE or places)
    if any(isinstance(f.numbers, AffineForm) and f.numbers.slopes for f in reads):
        return False
    if op.qualified in COPIES or has_trait(op, POINTWISE):
        return True
    along = (np.flatnonzero(s).tolist() == [0] for s in first.shape.slopes.values())
    return has_trait(op, SPATIAL) and all(along) and alone


def _frozen(attribute: Any) -> Any:
    if isinstance(attribute, np.ndarray):
        return attribute.dtype, attribute.shape, attribute.tobytes()
    return repr(attribute)


def _agrees(v: Value, known: Any, taken: Value, numbers: Any) -> bool:
    if v.dtype is not taken.dtype or v.shape != taken.shape:
        return False
    if known is None or numbers is None:
        return known is numbers
    return _same(known, numbers)


def _same(a: Any, b: Any) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()


def _untold(op: Operation, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"cannot decide whether the same code works for all sizes: {why}",
        where=place(op),
        code="TW-JIT",
        hint="name fewer values, at most 256 combinations: dims={'batch': [1, 8, 64]}",
    )
