"""Sizes of a program: inferred from shapes and substituted; values as flat arrays.

A value of any type is a row of arrays, its leaves: one per scalar of its tuples, whose shape has
the lengths on the way there. `(f32, i64)[n]` is a f32[n] and an i64[n].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.printer import show
from tilewright.ir.node import Node, postorder
from tilewright.lift import nodes as n
from tilewright.lift.infer import Typing, infer
from tilewright.lift.lengths import Sizes, evaluate, holds
from tilewright.lift.types import Array, Length, Scalar, TupleType, Type, Vector


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a value: `path` are the components chosen, outermost first."""

    dtype: DType
    lengths: tuple[Length, ...]
    path: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths as numbers; for specialized types."""
        return tuple(evaluate(length, {}) for length in self.lengths)


def leaves(t: Type) -> tuple[Leaf, ...]:
    """The arrays that hold a value of type `t`; a vector is a last dimension."""
    match t:
        case Scalar(dtype):
            return (Leaf(dtype, (), ()),)
        case Vector(dtype, width):
            return (Leaf(dtype, (const(width),), ()),)
        case Array(item, length):
            inner = leaves(item)
            return tuple(Leaf(x.dtype, (length, *x.lengths), x.path) for x in inner)
        case TupleType(items):
            return tuple(
                Leaf(x.dtype, x.lengths, (i, *x.path))
                for i, item in enumerate(items)
                for x in leaves(item)
            )
    raise TypeError(f"{type(t).__name__} is not a type of Lift")


def sizes_of(types: Sequence[Type], shapes: Sequence[Sequence[int]]) -> dict[Var, int]:
    """The length variables of parameters, from the shapes of their leaves.

    Raises InputError where the shapes do not fit the types or leave a variable open.
    """
    flat = [leaf for t in types for leaf in leaves(t)]
    if len(flat) != len(shapes):
        raise InputError(
            f"expected {len(flat)} arrays, found {len(shapes)}",
            where="arguments",
            hint="give one array per leaf of the parameters, in their order",
        )
    sizes: dict[Var, int] = {}
    for place, (leaf, shape) in enumerate(zip(flat, shapes, strict=True)):
        if len(leaf.lengths) != len(shape):
            raise InputError(
                f"expected {len(leaf.lengths)} dimensions, found the shape {tuple(shape)}",
                where=f"argument {place + 1}",
                hint="an array has one dimension per length of its type, outermost first",
            )
        for length, extent in zip(leaf.lengths, shape, strict=True):
            if isinstance(length, Var):
                sizes.setdefault(length, int(extent))
    for place, (leaf, shape) in enumerate(zip(flat, shapes, strict=True)):
        expected = tuple(evaluate(length, sizes) for length in leaf.lengths)
        if expected != tuple(shape):
            names = ", ".join(map(show, leaf.lengths))
            raise InputError(
                f"expected the shape ({names}) = {expected}, found {tuple(shape)}",
                where=f"argument {place + 1}",
                hint="one name is one length in all parameters",
            )
    return sizes


def named(program: n.Part, sizes: Mapping[str | Var, int]) -> dict[Var, int]:
    """`sizes`, passed by name, by variable.

    Raises InputError for a name that no length of the program has, and for an invalid size.
    """
    known = {v.name: v for v in length_variables(program)}
    out: dict[Var, int] = {}
    for key, value in sizes.items():
        found = key if isinstance(key, Var) else known.get(key)
        if found is None:
            names = ", ".join(known) or "none"
            raise InputError(
                f"no length is called {key!r}", hint=f"lengths: {names}", where="sizes"
            )
        size = whole(value, 0)
        if size is None:
            raise InputError(
                f"the size {value!r} is none",
                where=f"length {found.name}",
                hint="an integer, 0 or more",
            )
        out[found] = size
    return out


def length_variables(program: n.Part) -> tuple[Var, ...]:
    """The variables in lengths of types and patterns, in order of appearance."""
    found: dict[Var, None] = {}

    def collect(length: Expr) -> Expr:
        found.update((v, None) for v in postorder(length) if isinstance(v, Var))
        return length

    map_lengths(program, collect)
    return tuple(found)


def specialized(program: n.Part, sizes: Sizes) -> tuple[Any, Typing]:
    """The program with numbers for lengths, and its types.

    Raises InputError for a variable without a size and for a condition that does not hold.
    """
    if isinstance(program, n.Lambda):
        for condition in infer(program).conditions:
            if not holds(condition, sizes):
                raise InputError(
                    f"{condition} does not hold",
                    code="TW-LIFT-LENGTH",
                    hint="choose other sizes",
                    where="sizes",
                )
    fixed = map_lengths(program, lambda length: const(evaluate(length, sizes)))
    return fixed, infer(fixed)


def map_lengths(part: n.Part, f: Callable[[Length], Length]) -> Any:
    """The program with `f` applied to every length of its types and patterns."""
    done: dict[Node, Any] = {}
    for node in postorder(part):
        new = node.map(done.__getitem__)
        changed = {
            name: _data(getattr(new, name), f)
            for name in new._fields
            if name not in new._child_fields and not isinstance(new, n.UserFun)
        }
        same = all(value is getattr(new, name) for name, value in changed.items())
        done[node] = new if same else new.replace(**changed)
    return done[part]


def _data(value: Any, f: Callable[[Length], Length]) -> Any:
    match value:
        case Expr():
            return f(value)
        case Array(item, length):
            return Array(_data(item, f), f(length))
        case TupleType(items):
            return TupleType(tuple(_data(i, f) for i in items))
        case n.IndexFun(name, args):
            return n.IndexFun(name, tuple(map(f, args)))
        case n.Fun():
            return map_lengths(value, f)
    return value
