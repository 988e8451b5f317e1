"""The parts of an expression before they are combined."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.expr.nodes import INDEX, Buffer, Expr, Extent, Var, as_expr
from tilewright.lang.mdh.syntax.operators import Combine

IndexFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Shaped:
    """A dtype and an explicit shape, for when the inferred one is too small."""

    dtype: DType
    shape: tuple[Extent, ...]


def size(name: str) -> Var:
    """A size known at a call: an extent of `md_hom[...]` and of `buffer`, alone or in a sum."""
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(
            f"the name {name!r} is not an identifier",
            where="size",
            hint='letters, digits and _: size("M")',
        )
    return Var(name, INDEX)


def as_extent(value: Any, where: str, message: str) -> Extent:
    """An extent as it was written: a number, or an expression of sizes."""
    if isinstance(value, Expr) and value.dtype is INDEX:
        return value
    if whole(value, 0) is None:
        raise InputError(
            f"the extent {value!r} is not {message}",
            where=where,
            hint='an integer, 0 or more, or size("N")',
        )
    return int(value)


def buffer(dtype: Any, *shape: Any) -> Shaped:
    """For a view's brackets: elements of `dtype` in a buffer of this shape."""
    extents = tuple(as_extent(n, "buffer", "a size") for n in shape)
    return Shaped(dtype_of(dtype), extents)


@dataclass(frozen=True, eq=False, slots=True)
class BufferView:
    """One buffer of a view: its element type and an index function per access."""

    name: str
    type: DType | Shaped | Buffer
    accesses: tuple[IndexFunction, ...]

    @property
    def dtype(self) -> DType:
        """The element type."""
        if isinstance(self.type, DType):
            return self.type
        return self.type.dtype

    def at(self, access: int, point: Sequence[Expr]) -> tuple[Expr, ...]:
        """The index of one access at a point. Raises InputError for a function of other dims."""
        f = self.accesses[access]
        try:
            inspect.signature(f).bind(*point)
        except TypeError:
            raise InputError(
                f"the index function takes {', '.join(parameters(f)) or 'nothing'}; "
                f"md_hom has {len(point)} dimension(s)",
                where=f"{self.name}, access {access}",
                hint="give it one parameter per dimension, in their order",
            ) from None
        found = f(*point)
        index = tuple(found) if isinstance(found, tuple | list) else (found,)
        return tuple(as_expr(i, INDEX) for i in index)


@dataclass(frozen=True, eq=False, slots=True)
class Hom:
    """`md_hom[extents](function, combine)`: the scalar function and how results are combined."""

    extents: tuple[Extent, ...]
    function: Callable[..., Any]
    combine: tuple[Combine, ...]
    name: str = "mdh"


def parameters(f: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters; a variadic one has none."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(f).parameters.values() if p.kind in kinds]
