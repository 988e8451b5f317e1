"""The types of patterns that only move data, with their conditions on lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.expr.nodes import Add, Expr, Mul, Sub, const
from tilewright.expr.printer import show
from tilewright.lift import indices
from tilewright.lift import nodes as n
from tilewright.lift.lengths import array, divide, normal
from tilewright.lift.scope import Scope, Types, array_of, arrays_of, brief, error
from tilewright.lift.types import Array, Scalar, TupleType, Type, Vector


def _zip(f: n.Zip, args: Types, scope: Scope) -> Type:
    arrays = arrays_of(f, args)
    for i, a in enumerate(arrays):
        if a.length is not arrays[0].length:
            raise error(
                "Zip",
                f"argument {i + 1} has the length {show(a.length)}, "
                f"argument 1 {show(arrays[0].length)}",
            )
    return array(TupleType(tuple(a.item for a in arrays)), arrays[0].length)


def _unzip(f: n.Unzip, args: Types, scope: Scope) -> Type:
    a = array_of(f, args[0])
    if not isinstance(a.item, TupleType):
        raise error("Unzip", f"expected an array of tuples, found {a!r}")
    return TupleType(tuple(array(i, a.length) for i in a.item.items))


def _get(f: n.Get, args: Types, scope: Scope) -> Type:
    t = args[0]
    if not isinstance(t, TupleType) or not 0 <= f.position < len(t.items):
        hint = "At(i) is element i of an array" if isinstance(t, Array) else None
        raise error(
            brief(f), f"expected a tuple with component {f.position}, found {t!r}", hint
        )
    return t.items[f.position]


def _at(f: n.At, args: Types, scope: Scope) -> Type:
    a = array_of(f, args[0])
    scope.require("at most", const(0), f.index, brief(f))
    scope.require("at most", normal(Add(f.index, const(1))), a.length, brief(f))
    return a.item


def _split(f: n.Split, args: Types, scope: Scope) -> Type:
    a = array_of(f, args[0])
    scope.require("divides", f.size, a.length, brief(f))
    return array(a.item, divide(a.length, f.size), f.size)


def _join(f: n.Join, args: Types, scope: Scope) -> Type:
    outer = array_of(f, args[0])
    inner = array_of(f, outer.item, "an array of arrays", outer)
    return array(inner.item, normal(Mul(outer.length, inner.length)))


def windows(f: n.Slide | n.MapSeqSlide, args: Types, scope: Scope) -> Type:
    """The windows that Slide makes."""
    a = array_of(f, args[0])
    scope.require("at most", f.size, a.length, brief(f))
    rest = normal(Sub(a.length, f.size))
    scope.require("divides", f.step, rest, brief(f))
    return array(a.item, divide(normal(Add(rest, f.step)), f.step), f.size)


def _transpose(f: n.Transpose, args: Types, scope: Scope) -> Type:
    outer = array_of(f, args[0])
    inner = array_of(f, outer.item, "an array of arrays", outer)
    return array(inner.item, inner.length, outer.length)


def _concat(f: n.Concat, args: Types, scope: Scope) -> Type:
    arrays = arrays_of(f, args)
    total: Expr = const(0)
    for i, a in enumerate(arrays):
        if a.item is not arrays[0].item:
            raise error(
                "Concat",
                f"argument {i + 1} holds {a.item!r}, argument 1 {arrays[0].item!r}",
            )
        total = Add(total, a.length)
    return array(arrays[0].item, normal(total))


def _take(f: n.Take, args: Types, scope: Scope) -> Type:
    a = array_of(f, args[0])
    _part(f, a, scope)
    return array(a.item, f.size)


def _drop(f: n.Drop, args: Types, scope: Scope) -> Type:
    a = array_of(f, args[0])
    _part(f, a, scope)
    return array(a.item, normal(Sub(a.length, f.size)))


def _part(f: n.Take | n.Drop, a: Array, scope: Scope) -> None:
    """It takes or drops no more than there is, and no less than nothing."""
    scope.require("at most", const(0), f.size, brief(f))
    scope.require("at most", f.size, a.length, brief(f))


def _pad(f: n.Pad, args: Types, scope: Scope) -> Type:
    a = array_of(f, args[0])
    if f.boundary not in n.BOUNDARIES:
        known = ", ".join(n.BOUNDARIES)
        raise error(brief(f), f"the boundary is {f.boundary!r}, not one of {known}")
    scope.require("at most", const(1), a.length, brief(f))
    return longer(f, a, scope)


def longer(f: n.Pad | n.PadConstant, a: Array, scope: Scope) -> Type:
    """The array with more elements on both sides."""
    for side in (f.left, f.right):
        scope.require("at most", const(0), side, brief(f))
    return array(a.item, normal(Add(Add(f.left, a.length), f.right)))


def _permuted(f: n.Gather | n.Scatter, args: Types, scope: Scope) -> Type:
    a = array_of(f, args[0])
    for divisor in f.index.args[: indices.row(f.index).divisors]:
        scope.require("divides", divisor, a.length, brief(f))
    return a


def _filter(f: n.Filter, args: Types, scope: Scope) -> Type:
    a, ids = arrays_of(f, args)
    if not isinstance(ids.item, Scalar) or not ids.item.dtype.is_int:
        raise error("Filter", f"argument 2 is {ids!r}, expected an array of integers")
    return array(a.item, ids.length)


def _as_vector(f: n.AsVector, args: Types, scope: Scope) -> Type:
    a = array_of(f, args[0])
    if not isinstance(a.item, Scalar):
        raise error(brief(f), f"expected an array of scalars, found {a!r}")
    scope.require("divides", const(f.width), a.length, brief(f))
    return array(Vector(a.item.dtype, f.width), divide(a.length, const(f.width)))


def _as_scalar(f: n.AsScalar, args: Types, scope: Scope) -> Type:
    a = array_of(f, args[0])
    if not isinstance(a.item, Vector):
        raise error(brief(f), f"expected an array of vectors, found {a!r}")
    return array(Scalar(a.item.dtype), normal(Mul(a.length, const(a.item.width))))


SHAPES: Mapping[type[n.Fun], Callable[[Any, Types, Scope], Type]] = {
    n.Zip: _zip,
    n.Unzip: _unzip,
    n.Get: _get,
    n.At: _at,
    n.Split: _split,
    n.Join: _join,
    n.Slide: windows,
    n.Transpose: _transpose,
    n.Concat: _concat,
    n.Take: _take,
    n.Drop: _drop,
    n.Pad: _pad,
    n.Gather: _permuted,
    n.Scatter: _permuted,
    n.Filter: _filter,
    n.AsVector: _as_vector,
    n.AsScalar: _as_scalar,
}
