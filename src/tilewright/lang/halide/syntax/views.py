"""Views: what a Buffer can be turned into without copying its elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base.errors import InputError

if TYPE_CHECKING:
    from tilewright.lang.halide.syntax.image import Buffer, Dimension
    from tilewright.lang.halide.syntax.image import Image as _Base
else:
    _Base = object


class Views(_Base):
    """The methods of a Buffer that select, move and swap its dimensions.

    Methods in the past tense (`sliced`) return another Buffer on the same memory, the others change
    this one. Raises InputError for a dimension or coordinate that does not exist.
    """

    def crop(self, dimension: Any, min: int | None = None, extent: int = 0) -> None:
        """As `cropped`, of this one; or by a list of (min, extent), dimension 0 first."""
        if min is not None:
            self._become(self.cropped(dimension, min, extent))
            return
        for n, (low, size) in enumerate(dimension):
            self._become(self.cropped(n, low, size))

    def cropped(self, dim: int, min: int, extent: int) -> Buffer:
        """The part of a dimension from `min` on, in the same memory."""
        d = self.dim(dim)
        if not d.min() <= min <= min + extent <= d.min() + d.extent():
            raise InputError(
                f"{min}..{min + extent - 1} of dimension {dim} is not in {d.min()}..{d.max()}",
                where=repr(self),
            )
        start = min - d.min()
        axis = self.dimensions() - 1 - dim
        at = [slice(None)] * self.dimensions()
        at[axis] = slice(start, start + extent)
        mins = [x.min() for x in self._dimensions()]
        mins[dim] = min
        return self._like(np.asarray(self)[tuple(at)], mins)

    def sliced(self, dimension: int, pos: int | None = None) -> Buffer:
        """Without a dimension, at a coordinate of it (default: the first)."""
        d = self._dim(dimension)
        low = d.min() if pos is None else pos
        part = self.cropped(dimension, low, 1)
        mins = self._mins()
        del mins[dimension]
        array = np.asarray(part).squeeze(self._axis(dimension))
        return self._like(array, mins)

    def slice(self, dimension: int, pos: int | None = None) -> None:
        """As `sliced`, of this one."""
        self._become(self.sliced(dimension, pos))

    def embedded(self, dimension: int, pos: int = 0) -> Buffer:
        """With a new dimension of one coordinate before `dimension`."""
        if not 0 <= dimension <= self.dimensions():
            self._refuse(dimension)
        array = np.expand_dims(np.asarray(self), self.dimensions() - dimension)
        mins = self._mins()
        mins.insert(dimension, pos)
        return self._like(array, mins)

    def embed(self, dimension: int, pos: int = 0) -> None:
        """As `embedded`, of this one."""
        self._become(self.embedded(dimension, pos))

    def add_dimension(self) -> None:
        """A new outermost dimension of one coordinate."""
        self.embed(self.dimensions())

    def transposed(self, *order: Any) -> Buffer:
        """With its dimensions in another order: all of them as a list, or two to exchange."""
        wanted = list(order[0]) if len(order) == 1 else self._exchanged(*order)
        n = self.dimensions()
        if sorted(wanted) != list(range(n)):
            raise InputError(
                f"transposed to {wanted}",
                where=repr(self),
                hint=f"name each of its {n} dimensions once",
            )
        mins = self._mins()
        axes = [n - 1 - d for d in reversed(wanted)]
        return self._like(np.asarray(self).transpose(axes), [mins[d] for d in wanted])

    def _exchanged(self, a: int, b: int) -> list[int]:
        order = list(range(self.dimensions()))
        self._dim(a), self._dim(b)
        order[a], order[b] = order[b], order[a]
        return order

    def transpose(self, *order: Any) -> None:
        """As `transposed`, of this one."""
        self._become(self.transposed(*order))

    def reverse_axes(self) -> Buffer:
        """With its dimensions in the opposite order."""
        return self.transposed(list(reversed(range(self.dimensions()))))

    def translated(self, dimension: Any, by: int | None = None) -> Buffer:
        """With its coordinates moved: of one dimension, or by a list, dimension 0 first."""
        mins = self._mins()
        if by is None:
            for n, offset in enumerate(dimension):
                mins[n] += int(offset)
        else:
            self._dim(dimension)
            mins[dimension] += by
        return self._like(np.asarray(self), mins)

    def copy_from(self, other: Buffer) -> None:
        """The elements of another one where both have coordinates."""
        mine = self._like(np.asarray(self), self._mins())
        theirs = other
        for n in range(self.dimensions()):
            low = max(mine.dim(n).min(), theirs.dim(n).min())
            high = min(mine.dim(n).max(), theirs.dim(n).max())
            if high < low:
                return
            mine = mine.cropped(n, low, high - low + 1)
            theirs = theirs.cropped(n, low, high - low + 1)
        np.asarray(mine)[...] = np.asarray(theirs)

    def all_equal(self, value: Any) -> bool:
        """Whether every element is this value."""
        return bool((np.asarray(self) == value).all())

    def contains(self, coordinates: Sequence[int]) -> bool:
        """Whether there is an element at these coordinates."""
        pairs = zip(self._dimensions(), coordinates, strict=True)
        return all(d.min() <= c <= d.max() for d, c in pairs)

    def for_each_element(self, function: Callable[[list[int]], Any]) -> None:
        """Call a function with the coordinates of each element, the innermost fastest."""
        mins = self._mins()
        for place in np.ndindex(np.asarray(self).shape):
            at = zip(reversed(place), mins, strict=True)
            function([n + low for n, low in at])

    def size_in_bytes(self) -> int:
        """The memory that its elements take."""
        return int(np.asarray(self).nbytes)

    def same_as(self, other: Buffer) -> bool:
        """Whether both are on the same memory."""
        return np.shares_memory(np.asarray(self), np.asarray(other))

    def _dimensions(self) -> list[Dimension]:
        return [self.dim(n) for n in range(self.dimensions())]

    def _like(self, array: Any, mins: Sequence[int]) -> Buffer:
        """A Buffer on this array, with these first coordinates."""
        raise NotImplementedError

    def _mins(self) -> list[int]:
        return [d.min() for d in self._dimensions()]

    def _axis(self, dimension: int) -> int:
        return self.dimensions() - 1 - dimension

    def _dim(self, n: int) -> Dimension:
        if not 0 <= n < self.dimensions():
            self._refuse(n)
        return self.dim(n)

    def _refuse(self, dimension: int) -> None:
        raise InputError(
            f"there is no dimension {dimension}",
            where=repr(self),
            hint=f"it has {self.dimensions()}",
        )

    def _become(self, other: Buffer) -> None:
        """Take the elements and coordinates of another one."""
        self.bounds = list(other.bounds)
        self._hold(np.asarray(other))
