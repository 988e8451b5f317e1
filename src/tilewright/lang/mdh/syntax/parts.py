"""The parts of an expression before they are combined."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.expr.nodes import INDEX, Buffer, Expr, as_expr
from tilewright.lang.mdh.syntax.operators import Combine

IndexFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Shaped:
    """A dtype and a stated shape, where the inferred one is too small."""

    dtype: DType
    shape: tuple[int, ...]


def buffer(dtype: Any, *shape: int) -> Shaped:
    """In a view's brackets: elements of `dtype` in a buffer of this shape."""
    for extent in shape:
        if whole(extent, 0) is None:
            raise InputError(
                f"the extent {extent!r} is not a size",
                where="buffer",
                hint="integers, 0 or more: buffer(float32, 4, 6)",
            )
    return Shaped(dtype_of(dtype), tuple(int(n) for n in shape))


@dataclass(frozen=True, eq=False, slots=True)
class BufferView:
    """One buffer of a view: what it holds and an index function per access."""

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

    extents: tuple[int, ...]
    function: Callable[..., Any]
    combine: tuple[Combine, ...]
    name: str = "mdh"


def parameters(f: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters; a variadic one has none."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(f).parameters.values() if p.kind in kinds]
