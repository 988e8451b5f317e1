"""BoundaryConditions: an image beyond its edges, as a Func over all coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tilewright.base.errors import InputError
from tilewright.lang.halide.syntax.domain import Var
from tilewright.lang.halide.syntax.expr import (
    Expr,
    as_expr,
    cast_to,
    constant,
    remainder,
    unique,
)
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.image import Image
from tilewright.lang.halide.syntax.intrinsics import clamp, min, select

_F = TypeVar("_F", bound=Func)
Bounds = Sequence[tuple[int, int]]
# From a coordinate, and the min and extent of its dimension, the coordinate that is read.
Fold = Callable[[Expr, Any, Any], Expr]


def _end(value: Any) -> Any:
    """A number, or an expression of an image's size."""
    return value if isinstance(value, Expr) else constant(value)


def _bounds(source: Any, bounds: Any) -> list[tuple[Any, Any] | None]:
    """One (min, extent) per dimension, None for a dimension without an edge."""
    if bounds is None:
        if not isinstance(source, Image):
            raise InputError(
                "a Func has no edges",
                hint="give the bounds: [(min, extent), ...]",
            )
        return [
            (d.min(), d.extent()) for d in map(source.dim, range(source.dimensions()))
        ]
    given: list[tuple[Any, Any] | None] = [
        None if low is None else (_end(low), _end(extent)) for low, extent in bounds
    ]
    return given + [None] * (source.dimensions() - len(given))


def _folded(
    source: Any,
    bounds: Any,
    fold: Fold,
    name: str,
    func: type[_F],
) -> _F:
    edges = _bounds(source, bounds)
    if isinstance(source, Func):
        args = source.args
    else:
        args = tuple(Var(f"_{n}") for n in range(len(edges)))
    at = [
        a if edge is None else fold(a, *edge)
        for a, edge in zip(args, edges, strict=True)
    ]
    f = func(unique(name))
    f[args] = source[tuple(at)]
    return f


def repeat_edge(source: Any, bounds: Any = None, func: type[Any] = Func) -> Any:
    """The element at the nearest edge; `bounds` default to the image's."""
    return _folded(source, bounds, _clamped, "repeat_edge", func)


def repeat_image(source: Any, bounds: Any = None, func: type[Any] = Func) -> Any:
    """The image again and again."""
    return _folded(
        source,
        bounds,
        lambda x, low, n: remainder(x - low, n) + low,
        "repeat_image",
        func,
    )


def mirror_image(source: Any, bounds: Any = None, func: type[Any] = Func) -> Any:
    """The image mirrored at its edges, the edge elements twice."""

    def fold(x: Expr, low: Any, n: Any) -> Expr:
        at = remainder(x - low, 2 * n)
        folded: Expr = clamp(min(at, 2 * n - 1 - at), 0, n - 1) + low
        return folded

    return _folded(source, bounds, fold, "mirror_image", func)


def mirror_interior(source: Any, bounds: Any = None, func: type[Any] = Func) -> Any:
    """The image mirrored at its edges, the edge elements once."""

    def fold(x: Expr, low: Any, n: Any) -> Expr:
        if isinstance(n, int) and n == 1:
            return as_expr(low)
        at = remainder(x - low, 2 * n - 2)
        folded: Expr = clamp(min(at, 2 * n - 2 - at), 0, n - 1) + low
        return folded

    return _folded(source, bounds, fold, "mirror_interior", func)


def constant_exterior(
    source: Any, value: Any, bounds: Any = None, func: type[Any] = Func
) -> Any:
    """`value` outside the edges."""
    edges = _bounds(source, bounds)
    if isinstance(source, Func):
        args = source.args
    else:
        args = tuple(Var(f"_{n}") for n in range(len(edges)))
    inside: Expr | None = None
    at: list[Expr] = []
    for a, edge in zip(args, edges, strict=True):
        if edge is None:
            at.append(a)
            continue
        low, n = edge
        test = (a >= low) & (a < low + n)
        inside = test if inside is None else inside & test
        at.append(_clamped(a, low, n))
    read = source[tuple(at)]
    f = func(unique("constant_exterior"))
    if inside is None:
        f[args] = read
    else:
        f[args] = select(inside, read, cast_to(value, read.dtype))
    return f


def _clamped(x: Expr, low: Any, n: Any) -> Expr:
    return clamp(x, low, low + n - 1)


CONDITIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        repeat_edge,
        repeat_image,
        mirror_image,
        mirror_interior,
        constant_exterior,
    )
}
