"""The inputs of a pipeline: Buffer (data), ImageParam (later data), Param (a scalar)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError
from tilewright.expr import nodes
from tilewright.lang.halide.syntax.absent import absent
from tilewright.lang.halide.syntax.domain import Var
from tilewright.lang.halide.syntax.expr import (
    Expr,
    as_expr,
    as_index,
    constant,
    spread,
    unique,
)
from tilewright.lang.halide.syntax.memory import promised
from tilewright.lang.halide.syntax.types import Type, plain
from tilewright.lang.halide.syntax.views import Views

_LASTS: WeakKeyDictionary[nodes.Var, tuple[Image, int]] = WeakKeyDictionary()


def last_coordinate(v: nodes.Var) -> nodes.Expr | None:
    """What a variable made by `Image.last` is: a number if the bounds are known by now.

    None for any other variable.
    """
    if v not in _LASTS:
        return None
    image, axis = _LASTS[v]
    found = image.bounds[axis]
    if found is None:
        return v
    return nodes.const(found[0] + found[1] - 1)


class Symbol(nodes.Buffer):
    """Represents an image or Func of still unknown size in expressions.

    Its indices follow NumPy: Halide's, reversed. `owner` is the image or Func; `readers` are the
    Funcs defined in terms of it; `instead`, if any, is the symbol that is read in its place.
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
    """The bounds of one dimension of an image: `min()`, `extent()`, `max()`.

    Unknown bounds are expressions of the array that the pipeline is run on; its first coordinate is
    then 0.
    """

    def __init__(self, image: Image, axis: int) -> None:
        self._image, self._axis = image, axis

    def min(self) -> int:
        """The first coordinate."""
        found = self._image.bounds[self._axis]
        return 0 if found is None else found[0]

    def extent(self) -> Any:
        """The number of coordinates."""
        return self.max() - self.min() + 1

    def max(self) -> Any:
        """The last coordinate."""
        found = self._image.bounds[self._axis]
        if found is None:
            return Expr(self._image.last(self._axis), dtypes.int32)
        return found[0] + found[1] - 1

    def set_bounds(self, min: int, extent: int) -> Dimension:
        """Promise the bounds of this dimension."""
        self._image.bounds[self._axis] = (int(min), int(extent))
        return self

    def set_min(self, min: int) -> Dimension:
        """Promise the first coordinate of a dimension whose extent is known."""
        return self.set_bounds(min, self.extent())

    def set_extent(self, extent: int) -> Dimension:
        """Promise the number of coordinates, from 0 on where the first is not known."""
        known = self._image.bounds[self._axis]
        return self.set_bounds(0 if known is None else known[0], extent)

    def set_estimate(self, min: int, extent: int) -> Dimension:
        """What its bounds are likely to be; nothing is chosen by that here."""
        return self

    def stride(self) -> int:
        """How many elements neighbors are apart in memory; 1 of the innermost, if dense."""
        data = self._image.data
        if data is None:
            inner = (self.dim(n).extent() for n in range(self._axis))
            return prod(inner)
        return int(data.strides[-1 - self._axis] // data.itemsize)

    def set_stride(self, stride: int) -> Dimension:
        """Promise how many elements neighbors are apart: see `memory.py`.

        Building raises UnsupportedError where there would be room between rows.
        """
        where = f"image {self._image.symbol.name}"
        self._image.strides[self._axis] = promised(constant(stride), where)
        return self

    def dim(self, n: int) -> Dimension:
        """Another dimension of the image."""
        return self._image.dim(n)


class Image:
    """An input of several dimensions; `image[x, y]` is an element, x innermost."""

    def __init__(self, name: str, dtype: DType, rank: int) -> None:
        if not (dtype.is_int or dtype.is_bool or dtype.is_float):
            raise InputError(
                f"elements are {dtype}", where=f"image {name}", hint="Halide has none"
            )
        self.symbol = Symbol(name, rank, dtype, self)
        self.bounds: list[tuple[int, int] | None] = [None] * rank
        self.strides: dict[int, int] = {}
        self._lasts: dict[int, nodes.Var] = {}
        self.data: np.ndarray[Any, Any] | None = None
        self.traced: set[str] = set()

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

    def width(self) -> Any:
        """Extent of dimension 0."""
        return self.dim(0).extent()

    def height(self) -> Any:
        """Extent of dimension 1."""
        return self.dim(1).extent()

    def channels(self) -> Any:
        """Extent of dimension 2."""
        return self.dim(2).extent()

    def left(self) -> int:
        """The first coordinate of dimension 0."""
        return self.dim(0).min()

    def right(self) -> Any:
        """The last coordinate of dimension 0."""
        return self.dim(0).max()

    def top(self) -> int:
        """The first coordinate of dimension 1."""
        return self.dim(1).min()

    def bottom(self) -> Any:
        """The last coordinate of dimension 1."""
        return self.dim(1).max()

    def set_min(self, mins: Sequence[int]) -> None:
        """The coordinates of the first element, dimension 0 first; the extents stay."""
        for n, low in enumerate(mins):
            self.bounds[n] = (int(low), self.dim(n).extent())

    def last(self, axis: int) -> nodes.Var:
        """The last coordinate of a dimension whose bounds are known at the call."""
        if axis not in self._lasts:
            var = nodes.Var(f"{self.name()}.max.{axis}", nodes.INDEX)
            self._lasts[axis] = var
            _LASTS[var] = self, axis
        return self._lasts[axis]

    def opened(self, axis: int) -> nodes.Var | None:
        """As `last`, where the program asked for it."""
        return self._lasts.get(axis)

    def _hold(self, array: np.ndarray[Any, Any]) -> None:
        self.data = array
        for n, extent in enumerate(reversed(array.shape)):
            low = (self.bounds[n] or (0, 0))[0]
            self.bounds[n] = (low, extent)

    def __repr__(self) -> str:
        return f"{self.name()}: {self.dtype} of {self.dimensions()} dimensions"

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple | list) else (index,)
        parts = spread(tuple(map(as_expr, parts)), self.dimensions(), Var.implicit)
        if len(parts) != self.dimensions():
            raise InputError(
                f"{self.name()} has {self.dimensions()} dimensions, indexed with {len(parts)}"
            )
        point = tuple(as_index(i) for i in reversed(parts))
        return Expr(nodes.Load(self.symbol, point), self.dtype)


class Buffer(Views, Image):
    """An array with Halide's order of dimensions: `b[x, y]` is element `[y, x]` of the array.

    Created from a NumPy array (not copied), or from a type and extents (zeros). `numpy.asarray(b)`
    is the array; indexing with integers returns the element.
    """

    __getattr__ = absent("Buffer")

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
        parts = index if isinstance(index, tuple | list) else (index,)
        if self.data is not None and all(hasattr(i, "__index__") for i in parts):
            return self.data[self._place(parts)].item()
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        assert self.data is not None
        self.data[
            self._place(index if isinstance(index, tuple | list) else (index,))
        ] = value

    @staticmethod
    def make_scalar(type: Type | DType, name: str | None = None) -> Buffer:
        """One of no dimensions."""
        return Buffer(type, [], name)

    @staticmethod
    def make_with_shape_of(source: Buffer, name: str | None = None) -> Buffer:
        """One of the type, extents and coordinates of another."""
        made = source._like(np.zeros_like(np.asarray(source)), source._mins())
        made.set_name(name or made.name())
        return made

    @staticmethod
    def make_interleaved(
        type: Type | DType,
        width: int,
        height: int,
        channels: int,
        name: str | None = None,
    ) -> Buffer:
        """An image whose channels, dimension 2, are next to one another in memory."""
        array = np.zeros((height, width, channels), plain(type).numpy)
        return Buffer(array.transpose(2, 0, 1), name=name)

    def set_name(self, name: str) -> None:
        """Give it another name."""
        self.symbol = Symbol(name, self.dimensions(), self.dtype, self)

    def defined(self) -> bool:
        """Whether it has memory: yes."""
        return True

    def allocate(self) -> None:
        """Take memory: it has it already."""

    deallocate = host_dirty = device_dirty = copy_to_host = allocate

    def has_device_allocation(self) -> bool:
        """Whether it has memory of a device: no."""
        return False

    def number_of_elements(self) -> int:
        """How many elements it has."""
        return int(np.asarray(self).size)

    def fill(self, value: Any) -> None:
        """Set all elements."""
        assert self.data is not None
        self.data[...] = value

    def copy(self) -> Buffer:
        """A Buffer with its own memory."""
        return self._like(np.array(self.data), [d.min() for d in self._dimensions()])

    def translate(self, offsets: Sequence[int]) -> None:
        """Move its coordinates, dimension 0 first."""
        mins = [d.min() for d in self._dimensions()]
        self.set_min([low + by for low, by in zip(mins, offsets, strict=False)])

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

    __getattr__ = absent("ImageParam")

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

    def get(self) -> Buffer:
        """The data to run on. Raises InputError where there is none."""
        if self.data is None:
            raise InputError(
                "it has no data", where=f"image {self.name()}", hint="set(buffer) first"
            )
        made = Buffer(self.data)
        made.bounds = list(self.bounds)
        return made

    def reset(self) -> None:
        """Forget the data and its bounds."""
        self.data = None
        self.bounds = [None] * self.dimensions()

    def trace_loads(self) -> ImageParam:
        """Print each element that is read of it; the pipeline runs in the interpreter."""
        self.traced.add("Load")
        return self

    def set_estimates(self, estimates: Sequence[Any]) -> ImageParam:
        """What its bounds are likely to be; nothing is chosen by that here."""
        return self

    def defined(self) -> bool:
        """Whether it is an image: yes."""
        return True


class Param(Expr):
    """A scalar that is given when the pipeline runs: `gain = Param(Float(32), "gain", 2.0)`."""

    __getattr__ = absent("Param")

    def __init__(self, type: Type | DType, *given: Any) -> None:
        name, value, *ends = _scalar(given)
        self._ends: list[Any] = ends
        self.image = Image(name or unique("p"), plain(type), 0)
        super().__init__(nodes.Load(self.image.symbol, ()), self.image.dtype)
        if value is not None:
            self.set(value)

    def name(self) -> str:
        """The name."""
        return self.image.name()

    def set(self, value: Any) -> None:
        """The value to run with. Raises InputError for one outside its range."""
        low, high = self._ends
        if (low is not None and value < low) or (high is not None and value > high):
            raise InputError(
                f"{value} is not in {low}..{high}",
                where=f"Param {self.name()}",
                hint="set_range says what it may be",
            )
        self.image.data = np.asarray(value, self.dtype.numpy).reshape(())

    def get(self) -> Any:
        """The value to run with. Raises InputError where none is set."""
        if self.image.data is None:
            raise InputError(
                "it has no value", where=f"Param {self.name()}", hint="set(value) first"
            )
        return self.image.data.item()

    def set_range(self, low: Any, high: Any) -> None:
        """The least and the greatest value that it may be set to."""
        self._ends = [low, high]

    def set_min_value(self, low: Any) -> None:
        """The least value that it may be set to."""
        self._ends[0] = low

    def set_max_value(self, high: Any) -> None:
        """The greatest value that it may be set to."""
        self._ends[1] = high

    def min_value(self) -> Any:
        """The least value that it may be set to; None: the type's."""
        return self._ends[0]

    def max_value(self) -> Any:
        """The greatest value that it may be set to; None: the type's."""
        return self._ends[1]

    def set_estimate(self, value: Any) -> None:
        """What it is likely to be; nothing is chosen by that here."""


def _scalar(given: Sequence[Any]) -> tuple[str | None, Any, Any, Any]:
    """The name, value, least and greatest value: what is given of them, in this order."""
    named = bool(given) and (given[0] is None or isinstance(given[0], str))
    name, rest = (given[0], given[1:]) if named else (None, given)
    value, low, high = (*rest, None, None, None)[:3]
    return name, value, low, high
