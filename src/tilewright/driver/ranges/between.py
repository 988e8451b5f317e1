"""Finds the sizes of a wide range that a graph may treat differently from the planned ones.

The extents of each value at the planned sizes (and its numbers, for shape arithmetic) determine a
sum of terms (`size_terms`: sizes, and floors of them), or of products of two such sums. Operators
that copy or add extents preserve that for every size. The results of every other operator are
computed at all sizes that its operands depend on, and compared with the function. This finds a
different floor, a remainder, or a branch that one size in a thousand takes, without planning for
each size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import field, replace
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dims_hint import DimsHint
from tilewright.base.errors import TilewrightError, UnsupportedError
from tilewright.driver.dims import combinations, count
from tilewright.driver.ranges.corners import takes_corners
from tilewright.driver.ranges.generalize import is_corner
from tilewright.driver.ranges.refusals import FEW, at_sizes
from tilewright.driver.ranges.reshaped_axes import (
    COPIED,
    axis_forms,
    broadcast_alike,
    reshapes_alike,
)
from tilewright.driver.ranges.shape_arithmetic import adds_up, never_equal
from tilewright.driver.ranges.size_forms import (
    AffineForm,
    CornerForm,
    Fact,
    same_array,
)
from tilewright.driver.ranges.size_products import SizeProduct, known_products
from tilewright.driver.ranges.size_terms import Basis, Extents, SizeTerm, Terms
from tilewright.graph.infer import FallbackProvider, Typer
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.errors import place
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import POINTWISE, SPATIAL
from tilewright.graph.specialize import InferredTypes, known_branch
from tilewright.runtime.dispatch import Allowed

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
        *("Transpose", "Unsqueeze"),
    )
)
# An extent of the result depends on the first operand's extent along the same axis alone.
EACH_AXIS: Final = frozenset(
    (
        *("AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool"),
        *("QLinearConv",),
    )
)

Results = Sequence[tuple[Value, Any]]  # values, with their numbers or None


@dataclass(frozen=True, eq=False, slots=True)
class _Use:
    """An operator and its operands. how: equal for operators that do the same. fixed: the key of
    each operand that no size changes."""

    op: Operation
    how: tuple[Any, ...]
    reads: Sequence[Fact]
    fixed: Sequence[tuple[Any, ...] | None]


@dataclass(eq=False, slots=True)
class Between:
    """Finds the sizes at which a graph is not the same function of the sizes as at the points.

    points: one, others that differ from it in one size each, as many as the size has terms, and the
    largest sizes. typings: of the graph at the points. terms: that occur for each size; None: the
    size itself. extents: of sizes, as errors show them.
    """

    graph: Graph
    allowed: Allowed
    points: Sequence[Extents]
    typings: Sequence[InferredTypes]
    fallback: FallbackProvider | None = None
    terms: Terms | None = None
    extents: Callable[[Extents], Extents] = dict
    facts: dict[Value, Fact | None] = field(default_factory=dict)
    done: set[tuple[Any, ...]] = field(default_factory=set)
    computed: dict[tuple[Any, ...], Results | None] = field(default_factory=dict)
    worked: int = 0
    _basis: Basis | None = None
    _products: Sequence[SizeProduct] | None = None

    @property
    def products(self) -> Sequence[SizeProduct]:
        """Those of two extents of one value, at all points but the last."""
        if self._products is None:
            typings = self.typings[:-1]
            shapes = []
            for v in self.typings[0].env:
                values = [t.env.get(v, v) for t in typings]
                if all(w.static for w in values):
                    shapes.append([w.extents for w in values])
            basis = replace(self.basis, points=self.points[:-1])
            self._products = [*known_products(basis, shapes)]
        return self._products

    @property
    def basis(self) -> Basis:
        """Determines functions of the sizes from values at the points."""
        if self._basis is None:
            known = self.terms or {name: (SizeTerm(name),) for name in self.allowed}
            self._basis = Basis.of(self.points, known)
        return self._basis

    def odd(self) -> Iterator[Extents]:
        """Yield these sizes. Each result covers all sizes with the same values for the names in it.

        Raises UnsupportedError (TW-JIT) naming a node that cannot be decided.
        """
        yield from self._of(self.graph.operations)

    def _of(
        self,
        operations: Sequence[Operation],
    ) -> Iterator[Extents]:
        for op in operations:
            reads = [self._fact(v, op) for v in op.reads]
            sizes = frozenset[str]().union(*(f.sizes for f in reads))
            if not sizes:
                continue
            if op.subgraphs:
                yield from self._of(self._branch(op).operations)
                continue
            made = [self._fact(v, op) for v in op.writes]
            if not (
                _plain(op, reads, made, self.points[-1])
                or never_equal(op, reads, self.allowed)
                or self._reshaped(op, reads, made)
                or self._resized(op, reads, made)
            ):
                yield from self._worked(op, reads, made, sizes)

    def _fact(
        self,
        v: Value,
        op: Operation,
    ) -> Fact:
        if v not in self.facts:
            self.facts[v] = self._found(v)
        found = self.facts[v]
        if found is None:
            what = f"{v.name!r} is not an affine function of the sizes"
            raise _untold(op, f"{what}: {self._shown(v)}")
        return found

    def _shown(
        self,
        v: Value,
    ) -> str:
        """What differs of a value: its shape, or its numbers if these are few."""
        values = [t.env.get(v, v) for t in self.typings]
        pairs = zip(self.typings, values, strict=True)
        known = [t.known.get(w) for t, w in pairs]
        shapes = [str(w.shape) for w in values]
        numbers = [str(a.tolist()) for a in known if a is not None and a.size <= FEW]
        found = numbers if len(numbers) == len(values) else shapes
        return at_sizes(found, [*map(self.extents, self.points)])

    def _found(
        self,
        v: Value,
    ) -> Fact | None:
        """From all points, or without the last one, at which the function may differ."""
        return self._through(v, len(self.points)) or self._through(v, -1)

    def _through(
        self,
        v: Value,
        count: int,
    ) -> Fact | None:
        typings = self.typings[:count]
        values = [t.env.get(v, v) for t in typings]
        first = values[0]
        if not all(w.static and w.dtype is first.dtype for w in values):
            return None
        shapes = [np.array(w.extents, np.int64) for w in values]
        if len({len(s) for s in shapes}) > 1:
            return None
        shape = AffineForm.through(self.basis, shapes, self.products)
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
            numbers = AffineForm.through(self.basis, known, self.products)
        return None if numbers is None else Fact(first, shape, numbers)

    def _branch(
        self,
        op: Operation,
    ) -> Graph:
        """The branch that an If takes at all sizes."""
        condition = op.inputs[0]
        first = self.typings[0]
        branch = known_branch(op, first.env, first.known)
        if branch is None or condition is None or self._fact(condition, op).sizes:
            raise _untold(op, "its body depends on a size")
        return branch

    def _reshaped(
        self,
        op: Operation,
        reads: Sequence[Fact],
        made: Sequence[Fact],
    ) -> bool:
        """Whether a shape that sizes change is taken at all sizes, in the same way."""
        if op.qualified not in ("Reshape", "Expand") or len(reads) != 2:
            return False
        data, shape = reads
        if data.numbers is not None or not isinstance(shape.numbers, AffineForm):
            return False
        if any(f.numbers is not None for f in made):
            return False
        given = axis_forms(data.shape)
        wanted = axis_forms(shape.numbers)
        if given is None or wanted is None:
            return False
        if op.attributes.get("allowzero") and COPIED in wanted:
            return False
        if op.qualified == "Expand":
            return broadcast_alike([given, wanted])
        least = {n: min(e) for n, e in self.allowed.items()}
        return reshapes_alike(given, wanted, data.shape.start, least)

    def _resized(
        self,
        op: Operation,
        reads: Sequence[Fact],
        made: Sequence[Fact],
    ) -> bool:
        """Whether the code computes the positions along each axis that may change.

        requires: the sizes are an operand, for every axis. A result of one element may be at
        another position than the formula has it.
        """
        axes = op.attributes.get("computed")
        if not axes or op.attributes.get("axes") is not None or len(op.inputs) < 4:
            return False
        (result,), sizes = made, reads[-1].numbers
        if not isinstance(sizes, AffineForm) or result.shape.key != sizes.key:
            return False
        given = axis_forms(reads[0].shape)
        wanted = axis_forms(result.shape)
        if given is None or wanted is None:
            return False
        if any(given[n] != w for n, w in enumerate(wanted) if n not in axes):
            return False
        if op.attributes.get("coordinate_transformation_mode") != "pytorch_half_pixel":
            return True
        ends = {n: (min(e), max(e)) for n, e in self.allowed.items()}
        corners = (result.shape.at(e) for e in combinations(ends))
        return all(extents[n] > 1 for extents in corners for n in axes)

    def _worked(
        self,
        op: Operation,
        reads: Sequence[Fact],
        made: Sequence[Fact],
        sizes: frozenset[str],
    ) -> Iterator[Extents]:
        """The sizes at which the results of an operator differ from their assumed functions."""
        spread = {n: e for n, e in self.allowed.items() if n in sizes}
        spreads = _each_axis(op, reads, made, spread, self.points[0]) or [spread]
        how = (
            *(op.qualified, op.version, len(op.outputs)),
            tuple((k, _frozen(a)) for k, a in op.attributes.items()),
            tuple(None if v is None else op.reads.index(v) for v in op.inputs),
        )
        keys = tuple(f.key for f in reads)
        key = (how, keys)
        if key in self.done:
            return
        self.done.add(key)
        pairs = zip(reads, keys, strict=True)
        use = _Use(op, how, reads, [None if f.sizes else k for f, k in pairs])
        arrays = (f.numbers.whole for f in made if isinstance(f.numbers, CornerForm))
        piece = 1 + sum(a.size for a in arrays) // PIECE
        self.worked += sum(map(count, spreads)) * piece
        if self.worked > WORKED:
            raise _untold(op, f"there are over {WORKED:,} results to compare")
        for part in spreads:
            alone = [n for n, e in part.items() if len(e) > 1]
            for extents in combinations(part):
                found = self._results(use, extents)
                if found is None or not all(
                    _agrees(*result, *f.at(extents))
                    for result, f in zip(found, made, strict=True)
                ):
                    yield {n: extents[n] for n in alone or part}

    def _results(
        self,
        use: _Use,
        extents: Extents,
    ) -> Results | None:
        """The results at these sizes; None if the operator is not valid there.

        Sizes at which the operands are the same, and operators that do the same, have the same:
        behind strides, few extents differ.
        """
        pairs = [f.at(extents) for f in use.reads]
        key = (use.how, *map(_here, pairs, use.fixed))
        if key not in self.computed:
            self.computed[key] = self._applied(use.op, pairs)
        return self.computed[key]

    def _applied(
        self,
        op: Operation,
        pairs: Sequence[tuple[Value, Any]],
    ) -> Results | None:
        typer = Typer(self.fallback, fold_elements=KNOWN)
        typer.known.update((v, a) for v, a in pairs if a is not None)
        env = {r: v for r, (v, _) in zip(op.reads, pairs, strict=True)}
        inputs = tuple(None if v is None else env[v] for v in op.inputs)
        try:
            made = typer.apply(replace(op, inputs=inputs))
        except TilewrightError:
            return None
        return [(v, typer.known.get(v)) for v in made if v is not None]


def _plain(
    op: Operation,
    reads: Sequence[Fact],
    made: Sequence[Fact],
    largest: Extents,
) -> bool:
    """Whether the results are affine functions of sizes because the operands are."""
    first, *others = reads
    forms = (form for f in reads for form in (f.shape, f.numbers))
    if any(isinstance(form, AffineForm) and form.products for form in forms):
        return False  # sums of products may have more products
    alone = not any(f.sizes for f in others)
    if any(isinstance(f.numbers, CornerForm) for f in made):
        return takes_corners(op, reads, made, largest)
    if any(f.numbers is not None for f in made):
        return adds_up(op, reads)
    if any(isinstance(f.numbers, AffineForm) and f.numbers.slopes for f in reads):
        return False
    if op.qualified in COPIES or has_trait(op, POINTWISE):
        return True
    along = (np.flatnonzero(s).tolist() == [0] for s in first.shape.slopes.values())
    return has_trait(op, SPATIAL) and all(along) and alone


def _each_axis(
    op: Operation,
    reads: Sequence[Fact],
    made: Sequence[Fact],
    spread: Allowed,
    start: Extents,
) -> list[dict[str, Collection[int]]] | None:
    """The sizes one after another, where that shows all of their combinations; else None.

    requires: the operator treats each axis for itself; only the first operand has sizes, and of it
    and the results each axis at most one, the same one.
    """
    first, *others = reads
    forms = [f.shape for f in (first, *made)]
    if op.qualified not in EACH_AXIS or any(f.sizes for f in others):
        return None
    if any(f.numbers is not None for f in (first, *made)):
        return None
    if any(form.products or len(form.base) != len(first.shape.base) for form in forms):
        return None
    owners: dict[int, set[str]] = {}
    for form in forms:
        for term, slope in form.slopes.items():
            for axis in np.flatnonzero(slope).tolist():
                owners.setdefault(axis, set()).add(term.size)
    if any(len(names) > 1 for names in owners.values()):
        return None
    fixed: dict[str, Collection[int]] = {n: (start[n],) for n in spread}
    return [fixed | {name: e} for name, e in spread.items()]


def _here(
    pair: tuple[Value, Any],
    fixed: tuple[Any, ...] | None,
) -> tuple[Any, ...]:
    """Equal for operands with the same type and numbers."""
    v, numbers = pair
    return fixed or (v.dtype, v.shape, None if numbers is None else numbers.tobytes())


def _frozen(attribute: Any) -> Any:
    if isinstance(attribute, np.ndarray):
        return attribute.dtype, attribute.shape, attribute.tobytes()
    return repr(attribute)


def _agrees(
    v: Value,
    known: Any,
    taken: Value,
    numbers: Any,
) -> bool:
    if v.dtype is not taken.dtype or v.shape != taken.shape:
        return False
    if known is None or numbers is None:
        return known is numbers
    return same_array(known, numbers)


def _untold(
    op: Operation,
    why: str,
) -> UnsupportedError:
    return UnsupportedError(
        f"cannot decide whether the same code works for all sizes: {why}",
        where=place(op),
        code="TW-JIT",
        hint=DimsHint("name fewer values, at most 256 combinations"),
    )
