"""The inputs of a pipeline: Buffer (data), ImageParam (later data), Param (a scalar)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError
from tilewright.expr import nodes
from tilewright.lang.halide.syntax.expr import Expr, as_index, constant, unique
from tilewright.lang.halide.syntax.types import Type, plain


class Symbol(nodes.Buffer):
    """Stands in expressions for an image or Func whose size is not known yet.

    Its indices are those of NumPy: Halide's, reversed. `owner` is the image or Func; `readers` are
    the Funcs that have been defined by it; `instead`, if any, is the symbol that is read for it.
    """

    __slots__ = ("instead", "owner", "readers")

    def __init__(
        self,
        name: str,
        rank: int,
        dtype: DType,
        owner: Any,
    ) -> None:
        super().__init__(name, (0,) * rank, dtype)
        self.owner = owner
        self.readers: dict[Any, None] = {}
        self.instead: Symbol | None = None


class Dimension:
    """The bounds of one dimension of an image: `min()`, `extent()`, `max()`."""

    def __init__(self, image: Image, axis: int) -> None:
        self._image, self._axis = image, axis

    def _bounds(self) -> tuple[int, int]:
        found = self._image.bounds[self._axis]
        if found is None:
            raise InputError(
                f"the bounds of dimension {self._axis} are not known yet",
                where=f"image {self._image.symbol.name}",
                hint="set(buffer) or dim(n).set_bounds(min, extent) first",
            )
        return found

    def min(self) -> int:
        """The first coordinate."""
        return self._bounds()[0]

    def extent(self) -> int:
        """The number of coordinates."""
        return self._bounds()[1]

    def max(self) -> int:
        """The last coordinate."""
        low, extent = self._bounds()
        return low + extent - 1

    def set_bounds(self, min: int, extent: int) -> Dimension:
        """Promise the bounds of this dimension."""
        self._image.bounds[self._axis] = (int(min), int(extent))
        return self


class Image:
    """An input of several dimensions; `image[x, y]` is an element, x innermost."""

    def __init__(self, name: str, dtype: DType, rank: int) -> None:
        if not (dtype.is_int or dtype.is_bool or dtype.is_float):
            raise InputError(
                f"elements are {dtype}", where=f"image {name}", hint="Halide has none"
            )
        self.symbol = Symbol(name, rank, dtype, self)
        self.bounds: list[tuple[int, int] | None] = [None] * rank
        self.data: np.ndarray[Any, Any] | None = None

    def name(self) -> str:
        """The name."""
        return self.symbol.name

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self.symbol.dtype

    def type(self) -> Type:
        """The type of the elements."""
        return Type(self.dtype)

    def dimensions(self) -> int:
        """Number of dimensions."""
        return len(self.bounds)

    def dim(self, n: int) -> Dimension:
        """The bounds of dimension n, 0 the innermost."""
        return Dimension(self, n)

    def width(self) -> int:
        """Extent of dimension 0."""
        return self.dim(0).extent()

    def height(self) -> int:
        """Extent of dimension 1."""
        return self.dim(1).extent()

    def channels(self) -> int:
        """Extent of dimension 2."""
        return self.dim(2).extent()

    def left(self) -> int:
        """The first coordinate of dimension 0."""
        return self.dim(0).min()

    def right(self) -> int:
        """The last coordinate of dimension 0."""
        return self.dim(0).max()

    def top(self) -> int:
        """The first coordinate of dimension 1."""
        return self.dim(1).min()

    def bottom(self) -> int:
        """The last coordinate of dimension 1."""
        return self.dim(1).max()

    def set_min(self, mins: Sequence[int]) -> None:
        """The coordinates of the first element, dimension 0 first; the extents stay."""
        for n, low in enumerate(mins):
            self.bounds[n] = (int(low), self.dim(n).extent())

    def _hold(self, array: np.ndarray[Any, Any]) -> None:
        self.data = array
        for n, extent in enumerate(reversed(array.shape)):
            low = (self.bounds[n] or (0, 0))[0]
            self.bounds[n] = (low, extent)

    def __repr__(self) -> str:
        return f"{self.name()}: {self.dtype} of {self.dimensions()} dimensions"

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) != self.dimensions():
            raise InputError(
                f"{self.name()} has {self.dimensions()} dimensions, indexed with {len(parts)}"
            )
        point = tuple(as_index(i) for i in reversed(parts))
        return Expr(nodes.Load(self.symbol, point), self.dtype)


class Buffer(Image):
    """An array with Halide's order of dimensions: `b[x, y]` is element `[y, x]` of the array.

    Made of a NumPy array (not copied), or of a type and extents (zeros). `numpy.asarray(b)` is the
    array; indexed with integers it gives the element.
    """

    def __init__(
        self, source: Any, extents: Any = None, name: str | None = None
    ) -> None:
        if isinstance(source, Type | DType):
            shape = tuple(reversed([int(n) for n in extents]))
            array = np.zeros(shape, plain(source).numpy)
        else:
            array = np.asarray(source)
        super().__init__(name or unique("b"), dtype_of(array.dtype), array.ndim)
        self._hold(array)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        assert self.data is not None
        if copy or dtype:
            return np.array(self.data, dtype=dtype, copy=True)
        return self.data

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if self.data is not None and all(hasattr(i, "__index__") for i in parts):
            return self.data[self._place(parts)].item()
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        assert self.data is not None
        self.data[self._place(index if isinstance(index, tuple) else (index,))] = value

    def number_of_elements(self) -> int:
        """How many elements it has."""
        return int(np.asarray(self).size)

    def fill(self, value: Any) -> None:
        """Set all elements."""
        assert self.data is not None
        self.data[...] = value

    def copy(self) -> Buffer:
        """A Buffer with memory of its own."""
        return self._like(np.array(self.data), [d.min() for d in self._dimensions()])

    def translate(self, offsets: Sequence[int]) -> None:
        """Move its coordinates, dimension 0 first."""
        mins = [d.min() for d in self._dimensions()]
        self.set_min([low + by for low, by in zip(mins, offsets, strict=False)])

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

    def _dimensions(self) -> list[Dimension]:
        return [self.dim(n) for n in range(self.dimensions())]

    def _like(self, array: np.ndarray[Any, Any], mins: Sequence[int]) -> Buffer:
        made = Buffer(array)
        made.set_min(mins)
        return made

    def _place(self, parts: Sequence[Any]) -> tuple[int, ...]:
        """The place of an element in the array. Raises InputError where there is none."""
        if len(parts) != self.dimensions():
            raise InputError(
                f"{self!r} has {self.dimensions()} dimensions, not {len(parts)}"
            )
        at = []
        for n, part in enumerate(parts):
            low = self.dim(n).min()
            high = self.dim(n).max()
            if not low <= constant(part) <= high:
                raise InputError(
                    f"index {part} of dimension {n} is not in {low}..{high}"
                )
            at.append(constant(part) - low)
        return tuple(reversed(at))

    def __repr__(self) -> str:
        sizes = ", ".join(str(self.dim(n).extent()) for n in range(self.dimensions()))
        return f"Buffer({self.dtype}, [{sizes}])"


class ImageParam(Image):
    """An image that is given later, with `set`; its size may be promised before by its bounds."""

    def __init__(
        self, type: Type | DType, dimensions: int, name: str | None = None
    ) -> None:
        super().__init__(name or unique("p"), plain(type), dimensions)

    def set(self, buffer: Any) -> None:
        """The data to run on: a Buffer or an array. Raises InputError for another type or rank."""
        source = buffer if isinstance(buffer, Buffer) else Buffer(buffer)
        if source.dtype is not self.dtype or source.dimensions() != self.dimensions():
            raise InputError(
                f"expected {self.dtype} of {self.dimensions()} dimensions, found "
                f"{source.dtype} of {source.dimensions()}",
                where=f"image {self.name()}",
            )
        assert source.data is not None
        self.bounds = list(source.bounds)
        self._hold(source.data)


class Param(Expr):
    """A scalar that is given when the pipeline runs: `gain = Param(Float(32), "gain", 2.0)`."""

    def __init__(
        self, type: Type | DType, name: str | None = None, value: Any = None
    ) -> None:
        self.image = Image(name or unique("p"), plain(type), 0)
        super().__init__(nodes.Load(self.image.symbol, ()), self.image.dtype)
        if value is not None:
            self.set(value)

    def name(self) -> str:
        """The name."""
        return self.image.name()

    def set(self, value: Any) -> None:
        """The value to run with."""
        self.image.data = np.asarray(value, self.dtype.numpy).reshape(())
