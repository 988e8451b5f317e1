"""What is known of the array that an output is computed into: `f.output_buffer()`."""

from __future__ import annotations

from typing import Any

from tilewright.base import dtypes
from tilewright.base.errors import InputError
from tilewright.expr import nodes
from tilewright.lang.halide.syntax.absent import absent
from tilewright.lang.halide.syntax.expr import Expr, constant
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.image import Symbol
from tilewright.lang.halide.syntax.memory import promised


class OutputBound(Symbol):
    """A bound of an output's array as a value: known as soon as the size to compute is.

    dimension: counted as in NumPy. end: 0 of the first coordinate, 1 of the extent.
    """

    __slots__ = ("dimension", "end")

    def __init__(self, func: Func, dimension: int, end: int) -> None:
        name = f"{func.name()}.{('min', 'extent')[end]}.{dimension}"
        super().__init__(name, 0, dtypes.int32, func)
        self.dimension = dimension
        self.end = end


class OutputDimension:
    """One dimension of an output's array. What it promises is checked when it is computed."""

    def __init__(self, func: Func, n: int) -> None:
        self._func, self._n = func, n

    def _bound(self, end: int) -> Expr:
        axis = self._func.dimensions() - 1 - self._n
        return Expr(nodes.Load(OutputBound(self._func, axis, end), ()), dtypes.int32)

    def min(self) -> Expr:
        """The first coordinate."""
        return self._bound(0)

    def extent(self) -> Expr:
        """The number of coordinates."""
        return self._bound(1)

    def max(self) -> Expr:
        """The last coordinate."""
        return self.min() + self.extent() - 1

    def set_bounds(self, min: Any, extent: Any) -> OutputDimension:
        """Promise the bounds."""
        self._promise(constant(min), constant(extent))
        return self

    def set_min(self, min: Any) -> OutputDimension:
        """Promise the first coordinate."""
        self._promise(constant(min), None)
        return self

    def set_extent(self, extent: Any) -> OutputDimension:
        """Promise the number of coordinates."""
        self._promise(None, constant(extent))
        return self

    def set_estimate(self, min: Any, extent: Any) -> OutputDimension:
        """What it is likely to be: `set_estimate` of the Func."""
        var = self._func.args[self._n].name()
        self._func.estimates[var] = constant(min), constant(extent)
        return self

    def set_stride(self, stride: Any) -> OutputDimension:
        """Promise how many elements neighbors are apart, as of an image."""
        where = f"Func {self._func.name()}"
        self._func.strides[self._n] = promised(constant(stride), where)
        return self

    def stride(self) -> Expr:
        """How many elements neighbors are apart in memory."""
        if self._n in self._func.strides:
            return Expr(nodes.const(self._func.strides[self._n]), dtypes.int32)
        found = Expr(nodes.const(1), dtypes.int32)
        for n in range(self._n):
            found = found * OutputDimension(self._func, n).extent()
        return found

    def dim(self, n: int) -> OutputDimension:
        """Another dimension of the array."""
        return OutputDimension(self._func, n)

    def _promise(self, low: int | None, extent: int | None) -> None:
        known = self._func.output_promises.get(self._n, (None, None))
        self._func.output_promises[self._n] = (
            known[0] if low is None else low,
            known[1] if extent is None else extent,
        )


class OutputImageParam:
    """The array that a value of an output is computed into."""

    __getattr__ = absent("OutputImageParam")

    def __init__(self, func: Func, value: int = 0) -> None:
        self._func, self._value = func, value

    def name(self) -> str:
        """The name of the value."""
        return self._func.symbols[self._value].name

    def defined(self) -> bool:
        """Whether there is one: yes."""
        return True

    def dimensions(self) -> int:
        """Number of dimensions."""
        return self._func.dimensions()

    def dim(self, n: int) -> OutputDimension:
        """Dimension n, 0 the innermost. Raises InputError where there is none."""
        if not 0 <= n < self.dimensions():
            raise InputError(
                f"there is no dimension {n}",
                where=f"Func {self._func.name()}",
                hint=f"it has {self.dimensions()}",
            )
        return OutputDimension(self._func, n)

    def width(self) -> Expr:
        """Extent of dimension 0."""
        return self.dim(0).extent()

    def height(self) -> Expr:
        """Extent of dimension 1."""
        return self.dim(1).extent()

    def channels(self) -> Expr:
        """Extent of dimension 2."""
        return self.dim(2).extent()

    def left(self) -> Expr:
        """The first coordinate of dimension 0."""
        return self.dim(0).min()

    def right(self) -> Expr:
        """The last coordinate of dimension 0."""
        return self.dim(0).max()

    def top(self) -> Expr:
        """The first coordinate of dimension 1."""
        return self.dim(1).min()

    def bottom(self) -> Expr:
        """The last coordinate of dimension 1."""
        return self.dim(1).max()
