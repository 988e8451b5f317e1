"""What a value of a graph is at all sizes: its extents and numbers, as functions of the sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations as combine
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.driver.ranges.size_products import SizeProduct, times_each
from tilewright.driver.ranges.size_terms import Basis, Extents, SizeTerm
from tilewright.graph.nodes import Value


@dataclass(frozen=True, eq=False, slots=True)
class AffineForm:
    """A numeric array as an affine function of terms, and of products of two sizes' sums.

    slopes, products: how often each is added, nonzero in some element.
    """

    start: Extents
    base: np.ndarray[Any, Any]
    slopes: Mapping[SizeTerm, np.ndarray[Any, Any]] = field(default_factory=dict)
    products: Mapping[SizeProduct, np.ndarray[Any, Any]] = field(default_factory=dict)

    @classmethod
    def through(
        cls,
        basis: Basis,
        found: Sequence[Any],
        products: Sequence[SizeProduct] = (),
    ) -> AffineForm | None:
        """The function through the arrays found at the (first) points of a basis; None if there is
        none. products: that it may have, besides that of its own changes along two sizes."""
        first, start = found[0], basis.points[0]
        if all(a is first or same_array(a, first) for a in found):
            return cls(start, first)
        if first.dtype.kind not in "iuf" or any(a.shape != first.shape for a in found):
            return None
        base = first.astype(np.float64 if first.dtype.kind == "f" else np.int64)
        arrays = [a.astype(base.dtype) for a in found]
        slopes = basis.factors(arrays)
        if slopes is None:
            return None
        form = cls(
            start, first, {t: np.asarray(a, base.dtype) for t, a in slopes.items()}
        )
        known = form._with_products(basis.points[: len(found)], arrays, products)
        pairs = zip(basis.points, arrays, strict=False)
        exact = all(np.array_equal(known.at(p), a) for p, a in pairs)
        return known if exact else None

    @property
    def sizes(self) -> frozenset[str]:
        """The sizes that it depends on."""
        return frozenset(t.size for t in self.slopes)

    def _with_products(
        self,
        points: Sequence[Extents],
        found: Sequence[np.ndarray[Any, Any]],
        products: Sequence[SizeProduct],
    ) -> AffineForm:
        """Add what is left at the points as products, element by element."""
        whole = all(map(is_whole, (*found, *self.slopes.values())))
        if not whole or len(self.sizes) < 2:
            return self
        pairs = zip(points, found, strict=True)
        left = np.stack([a - self.at(point) for point, a in pairs]).astype(object)
        made: dict[SizeProduct, np.ndarray[Any, Any]] = {}
        for element in np.ndindex(self.base.shape):
            rest = left[:, *element].tolist()
            own = self._own_products(element)
            if (
                not any(rest) or len(own) != 1
            ):  # of three sizes, points decide too little
                continue
            times = times_each(own, points, rest) or times_each(products, points, rest)
            for product, n in (times or {}).items():
                zeros = np.zeros(self.base.shape, object)
                made.setdefault(product, zeros)[element] = n
        return replace(self, products=made)

    def _own_products(
        self,
        element: tuple[int, ...],
    ) -> list[SizeProduct]:
        """Of an element's changes along each two sizes."""
        lines: dict[str, dict[SizeTerm, int]] = {}
        for term, slope in self.slopes.items():
            if slope[element]:
                lines.setdefault(term.size, {})[term] = int(slope[element])
        return [SizeProduct.of(*pair) for pair in combine(lines.values(), 2)]

    def at(
        self,
        extents: Extents,
    ) -> np.ndarray[Any, Any]:
        """The array at these sizes."""
        if not self.slopes:
            return self.base
        terms = self.slopes.items()
        found = self.base + sum(
            s * (t.at(extents) - t.at(self.start)) for t, s in terms
        )
        for product, times in self.products.items():
            found = found + times * product.change(self.start, extents)
        return np.asarray(found).astype(self.base.dtype)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal functions."""
        steps = frozenset((t, s.tobytes()) for t, s in self.slopes.items())
        more = frozenset((p, tuple(n.flat)) for p, n in self.products.items())
        return (self.base.shape, self.base.dtype, self.base.tobytes(), steps, more)


@dataclass(frozen=True, eq=False, slots=True)
class CornerForm:
    """An array whose extents depend on the sizes: a corner of the array at the largest sizes."""

    whole: np.ndarray[Any, Any]
    shape: AffineForm

    @property
    def sizes(self) -> frozenset[str]:
        """The sizes that its extents depend on."""
        return self.shape.sizes

    def at(
        self,
        extents: Extents,
    ) -> np.ndarray[Any, Any]:
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
        return frozenset[str]().union(*(f.sizes for f in forms))

    def at(
        self,
        extents: Extents,
    ) -> tuple[Value, Any]:
        """The value at these sizes, and its numbers or None."""
        shape = tuple(map(int, self.shape.at(extents)))
        numbers = None if self.numbers is None else self.numbers.at(extents)
        return Value(self.value.name, self.value.dtype, shape), numbers

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal facts."""
        forms = (self.shape, self.numbers)
        return (self.value.dtype, *(f and f.key for f in forms))


def is_whole(
    a: np.ndarray[Any, Any],
) -> bool:
    """Whether all numbers are finite and have no fraction."""
    return bool(np.isfinite(a).all()) and np.array_equal(a, np.trunc(a))


def same_array(
    a: Any,
    b: Any,
) -> bool:
    """Whether type, shape and bits are the same."""
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
