"""Funcs that a C function computes: `define_extern`.

The function has Halide's interface: for each argument a `halide_buffer_t *` or a number, then a
`halide_buffer_t *` for each value. It is called twice: first without memory, with the required
regions of its results, to set the regions of its inputs that it reads, and possibly enlarge those
of its results; then with memory. A result other than 0 is an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import ExecutionError, InputError
from tilewright.lang.halide.syntax.expr import Expr, as_expr
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.image import Image
from tilewright.lang.halide.syntax.types import Type

Box = Sequence[tuple[int, int]]  # (min, extent) of each dimension, x first
Array = np.ndarray[Any, Any]


class _Dimension(ctypes.Structure):
    _fields_ = (
        ("min", ctypes.c_int32),
        ("extent", ctypes.c_int32),
        ("stride", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
    )


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_uint64),
        ("device_interface", ctypes.c_void_p),
        ("host", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("dimensions", ctypes.c_int32),
        ("dim", ctypes.POINTER(_Dimension)),
        ("padding", ctypes.c_void_p),
    )


@dataclass(frozen=True, eq=False, slots=True)
class ExternFuncArgument:
    """A Func, an image, or a number that an extern function is given."""

    value: Any


@dataclass(frozen=True, eq=False, slots=True)
class Extern:
    """A C function, by its name in this process or as one of ctypes, and its arguments."""

    name: str
    function: Callable[..., int]
    arguments: tuple[Any, ...]

    def compute(
        self,
        dtypes: Sequence[DType],
        box: Box,
        parts: Sequence[Box],
        read: Callable[[Any, Box], list[Array]],
        number: Callable[[Expr], Any],
    ) -> tuple[Array, ...]:
        """Its results over a region, of which the function is called for each of the parts.

        read: the values of a Func over another region; number: of an Expr. Raises ExecutionError
        where the function returns an error.
        """
        calls = [self._asked(dtypes, part, number) for part in parts]
        inputs: list[tuple[Box, list[Array]] | None] = []
        for n, argument in enumerate(self.arguments):
            if not isinstance(argument, Func):
                inputs.append(None)
                continue
            regions = [_region(queries[n][0]) for _, queries in calls]
            hull = _hull(regions)
            inputs.append((hull, read(argument, hull)))
        shape = [n for _, n in reversed(box)]
        made = tuple(np.zeros(shape, d.numpy) for d in dtypes)
        for part, (asked, queries) in zip(parts, calls, strict=True):
            given: list[Any] = []
            for several, found in zip(queries, inputs, strict=True):
                given += several if found is None else _inputs(several, *found)
            wide = [_region(b) for b in asked]
            results = self._computed(dtypes, wide, given)
            for whole, result, has in zip(made, results, wide, strict=True):
                whole[_place(box, part)] = result[_place(has, part)]
        return made

    def _asked(
        self, dtypes: Sequence[DType], part: Box, number: Callable[[Expr], Any]
    ) -> tuple[list[_Buffer], list[list[Any]]]:
        """The first call: the regions that it computes at once, and what it reads for them."""
        asked = [_buffer(d, part) for d in dtypes]
        queries = [_query(a, number) for a in self.arguments]
        self._call([q for several in queries for q in several], asked)
        return asked, queries

    def _computed(
        self, dtypes: Sequence[DType], regions: Sequence[Box], given: Sequence[Any]
    ) -> list[Array]:
        """The second call: the results, over these regions."""
        made: list[Array] = []
        results = []
        for region, dtype in zip(regions, dtypes, strict=True):
            shape = [extent for _, extent in reversed(region)]
            array = np.zeros(shape, dtype.numpy)
            made.append(array)
            results.append(_buffer(dtype, region, array))
        self._call(given, results)
        return made

    def _call(self, given: Sequence[Any], results: Sequence[_Buffer]) -> None:
        arguments = (
            ctypes.byref(a) if isinstance(a, _Buffer) else a for a in (*given, *results)
        )
        code = self.function(*arguments)
        if code:
            raise ExecutionError(
                f"the function returned {code}",
                where=f"extern {self.name}",
                hint="it returns 0 where all is well",
            )


def extern(function: Any, arguments: Sequence[Any]) -> Extern:
    """The function of a name, or of ctypes. Raises InputError for others and for no such name."""
    name = function if isinstance(function, str) else repr(function)
    found: Any
    if isinstance(function, str):
        try:
            found = ctypes.CDLL(None)[function]
        except AttributeError:
            raise InputError(
                f"this process has no function {function!r}",
                where="define_extern",
                hint="ctypes.CDLL(path, ctypes.RTLD_GLOBAL) loads a library with it",
            ) from None
    elif hasattr(function, "argtypes"):
        found = function
    else:
        raise InputError(
            f"{function!r} is not a C function",
            where="define_extern",
            hint="give the name of one, or one of ctypes",
        )
    found.restype = ctypes.c_int
    values = [a.value if isinstance(a, ExternFuncArgument) else a for a in arguments]
    return Extern(name, found, tuple(values))


def _query(argument: Any, number: Callable[[Expr], Any]) -> list[Any]:
    """What the first call is given: of an image and of a number what the second one is, too."""
    if isinstance(argument, Func):
        nothing = [(0, 0)] * argument.dimensions()
        return [_buffer(s.dtype, nothing) for s in argument.symbols]
    if isinstance(argument, Image):
        if argument.data is None:
            raise InputError(
                "it has no data",
                where=f"image {argument.name()}",
                hint="set(buffer) first",
            )
        array = np.ascontiguousarray(argument.data)
        mins = [b[0] if b is not None else 0 for b in argument.bounds]
        region = list(zip(mins, reversed(array.shape), strict=True))
        return [_buffer(argument.dtype, region, array)]
    value = as_expr(argument)
    kind = np.ctypeslib.as_ctypes_type(value.dtype.numpy)
    return [kind(number(value))]


def _buffer(dtype: DType, region: Box, array: Array | None = None) -> _Buffer:
    """A halide_buffer_t of a region; it is in the array, or (None) has no memory."""
    dims = (_Dimension * max(1, len(region)))()
    stride = 1
    for n, (low, extent) in enumerate(region):
        dims[n] = _Dimension(low, extent, stride, 0)
        stride *= extent
    made = _Buffer()
    made.host = None if array is None else array.ctypes.data
    kind = Type(dtype)
    made.code = kind.code().value
    made.bits = kind.bits()
    made.lanes = 1
    made.dimensions = len(region)
    made.dim = ctypes.cast(dims, ctypes.POINTER(_Dimension))
    made._kept = dims, array
    return made


def _region(b: _Buffer) -> list[tuple[int, int]]:
    return [(b.dim[n].min, b.dim[n].extent) for n in range(b.dimensions)]


def _hull(regions: Sequence[Box]) -> list[tuple[int, int]]:
    """The smallest region around all."""
    hull = []
    for ranges in zip(*regions, strict=True):
        low = min(low for low, _ in ranges)
        hull.append((low, max(low + n for low, n in ranges) - low))
    return hull


def _inputs(
    several: Sequence[_Buffer], has: Box, arrays: Sequence[Array]
) -> list[_Buffer]:
    """The values of a Func over the region that a first call asked for."""
    made = []
    for query, array in zip(several, arrays, strict=True):
        region = _region(query)
        own = np.ascontiguousarray(array[_place(has, region)])
        made.append(_buffer(dtype_of(own.dtype), region, own))
    return made


def _place(has: Box, wanted: Box) -> tuple[slice, ...]:
    """Where a region is in the array of a larger one."""
    place = []
    for (low, _), (first, extent) in zip(reversed(has), reversed(wanted), strict=True):
        place.append(slice(first - low, first - low + extent))
    return tuple(place)
