"""A derived Lift program as tasks: evaluated on addresses instead of numbers.

A scalar is the address of an element of some value (`value << SHIFT | offset`), an array of scalars
is a NumPy array of addresses, an array of tuples a tuple of arrays. Patterns that only move data
move addresses and leave no trace; each application of a device operator is a task that makes a new
value. This is the interpreter of Lift (`notation.lift.interp`) with addresses for numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.expr.interp import evaluate as evaluated
from tilewright.expr.nodes import Expr, const
from tilewright.lift import indices
from tilewright.lift import nodes as n
from tilewright.lift.infer import Typing, arity
from tilewright.lift.lengths import evaluate as number
from tilewright.lift.sizes import leaves, specialized
from tilewright.lift.types import Array, Scalar, TupleType, Type
from tilewright.targets.npu.errors import NPUError
from tilewright.targets.npu.operator import operator_of
from tilewright.targets.npu.tasks import Addresses, Evaluated, NpuValue

View: TypeAlias = Any  # Addresses, or a tuple of Views


def evaluate(program: n.Lambda) -> Evaluated:
    """The tasks of a program whose lengths are numbers.

    Raises NPUError for a scalar function that is in no device operator, for a pattern that a
    machine of vectors has no meaning for, and InputError for ill-typed programs.
    """
    fixed, typing = _specialized(program)
    made = Evaluated()
    env = {}
    for p, t in zip(fixed.params, typing.params, strict=True):
        values = [
            made.new("_".join([p.name, *map(str, leaf.path)]), leaf.shape, "dram")
            for leaf in leaves(t)
        ]
        made.inputs += values
        env[p] = _nested(t, iter([v.addresses for v in values]))
    result = _Scope(env, made, _Shared()).value(fixed.body)
    made.outputs = list(_flat(result))
    return made


@lru_cache(maxsize=64)
def _specialized(program: n.Lambda) -> tuple[n.Lambda, Typing]:
    return specialized(program, {})


@lru_cache(maxsize=4096)
def _number(length: Expr) -> int:
    return number(length, {})


def _nested(t: Type, parts: Any) -> View:
    """A view of a type from arrays for its leaves."""
    scalar = t
    while isinstance(scalar, Array):
        scalar = scalar.item
    if isinstance(scalar, TupleType):
        return tuple(_nested(i, parts) for i in scalar.items)
    if not isinstance(scalar, Scalar):
        raise NPUError(
            f"{t!r} is not an array of scalars",
            where="npu",
            hint="pass arrays of scalars",
        )
    return next(parts)


def _flat(view: View) -> Sequence[Addresses]:
    if isinstance(view, tuple):
        return [leaf for part in view for leaf in _flat(part)]
    return [np.asarray(view)]


def _each(f: Callable[[Addresses], Addresses], view: View) -> View:
    """`f` on every array of a view."""
    if isinstance(view, tuple):
        return tuple(_each(f, part) for part in view)
    return f(view)


def _stack(views: Sequence[View]) -> View:
    if isinstance(views[0], tuple):
        return tuple(_stack(parts) for parts in zip(*views, strict=True))
    return np.stack(views)


def _join(views: Sequence[View]) -> View:
    if isinstance(views[0], tuple):
        return tuple(_join(parts) for parts in zip(*views, strict=True))
    return np.concatenate(views)


def _item(view: View, index: int) -> View:
    return _each(lambda a: a[index], view)


def _length(view: View) -> int:
    if isinstance(view, tuple):
        return _length(view[0])
    return len(view)


@dataclass(slots=True)
class _Shared:
    """What all scopes have in common. space: where results are made now."""

    space: str = "dram"
    constants: dict[str, NpuValue] = field(default_factory=dict)


@dataclass(slots=True)
class _Scope:
    """Views of the parameters in sight, and of the terms evaluated with them."""

    env: Mapping[n.Param, View]
    made: Evaluated
    shared: _Shared
    known: dict[n.Term, View] = field(default_factory=dict)

    def value(self, term: n.Term) -> View:
        if term not in self.known:
            self.known[term] = self._value(term)
        return self.known[term]

    def _value(self, term: n.Term) -> View:
        match term:
            case n.Param():
                return self.env[term]
            case n.Literal(value, _):
                return self._constant(float(value))
            case n.Apply(f, args):
                return self.call(f, [self.value(a) for a in args])
            case n.Tuple(items):
                return tuple(map(self.value, items))
            case n.Fill(value, length):
                return _stack([self.value(value)] * _number(length))
            case n.Iota(length):
                return np.stack(
                    [self._constant(float(i)) for i in range(_number(length))]
                )
        raise TypeError(type(term).__name__)

    def _constant(self, x: float) -> Addresses:
        known = self.shared.constants
        name = repr(x)
        if name not in known:
            known[name] = self.made.new(name, (), "dram", x)
        return known[name].addresses

    def call(self, f: n.Fun, args: Sequence[View]) -> View:
        expected = arity(f)
        if expected != 1 and len(args) == 1 and isinstance(args[0], tuple):
            args = args[0]
        rule = _CALL.get(type(f))
        if rule is None:
            raise NPUError(
                f"{f!r} is in no operator of the machine",
                where="npu",
                hint="bring the program to device operators first: npu.map_onto",
            )
        return rule(f, self, *args)


# -- functions: (pattern, scope, views) -> view


def _device_op(f: n.DeviceOp, s: _Scope, *args: View) -> View:
    operands = tuple(map(s.made.operand, args))
    name, sizes = operator_of(f)
    return s.made.apply(name, sizes, operands, s.shared.space).addresses


def _to(f: n.To, s: _Scope, *args: View) -> View:
    outer, s.shared.space = s.shared.space, f.space
    try:
        return s.call(f.f, args)
    finally:
        s.shared.space = outer


def _lambda(f: n.Lambda, s: _Scope, *args: View) -> View:
    inner = {**s.env, **dict(zip(f.params, args, strict=True))}
    return _Scope(inner, s.made, s.shared).value(f.body)


def _compose(f: n.Compose, s: _Scope, *args: View) -> View:
    value = s.call(f.funs[0], args)
    for g in f.funs[1:]:
        value = s.call(g, [value])
    return value


def _map(f: n.AnyMap, s: _Scope, x: View) -> View:
    return _stack([s.call(f.f, [_item(x, i)]) for i in range(_length(x))])


def _fold(f: Any, s: _Scope, x: View) -> View:
    acc = s.value(f.init)
    for i in range(_length(x)):
        acc = s.call(f.f, [acc, _item(x, i)])
    return acc


def _split(f: n.Split, s: _Scope, x: View) -> View:
    size = _number(f.size)
    return _each(lambda a: a.reshape(-1, size, *a.shape[1:]), x)


def _slide(f: n.Slide, s: _Scope, x: View) -> View:
    size = _number(f.size)
    step = _number(f.step)
    starts = np.arange(0, _length(x) - size + 1, step)
    return _each(lambda a: a[np.add.outer(starts, np.arange(size))], x)


def _pad(f: n.Pad, s: _Scope, x: View) -> View:
    length = _length(x)
    at = indices.BOUNDARY[f.boundary]
    places = range(-_number(f.left), length + _number(f.right))
    return _gathered(x, [_index(at(const(i), const(length))) for i in places])


def _pad_constant(f: n.PadConstant, s: _Scope, x: View) -> View:
    outside = _each(lambda a: a[None], s.value(f.value))
    left = _number(f.left)
    right = _number(f.right)
    return _join([outside] * left + [x] + [outside] * right)


def _gather(f: n.Gather, s: _Scope, x: View) -> View:
    return _gathered(x, _permutation(f, _length(x)))


def _scatter(f: n.Scatter, s: _Scope, x: View) -> View:
    return _gathered(x, np.argsort(_permutation(f, _length(x))))


def _permutation(f: Any, length: int) -> list[int]:
    at = indices.row(f.index).at
    return [_index(at(const(i), const(length), *f.index.args)) for i in range(length)]


def _index(e: Any) -> int:
    return int(evaluated(e, {}))


def _gathered(x: View, places: Any) -> View:
    return _each(lambda a: a[np.asarray(places, np.int64)], x)


_CALL: Mapping[type[n.Fun], Callable[..., View]] = {
    n.DeviceOp: _device_op,
    n.To: _to,
    n.Lambda: _lambda,
    n.Compose: _compose,
    **dict.fromkeys((n.Map, n.MapSeq, n.MapPar), _map),
    **dict.fromkeys((n.Reduce, n.ReduceSeq), lambda f, s, x: _stack([_fold(f, s, x)])),
    n.Zip: lambda f, s, *xs: tuple(xs),
    n.Unzip: lambda f, s, x: x,
    n.Get: lambda f, s, x: x[f.position],
    n.At: lambda f, s, x: _each(lambda a: a[_number(f.index)], x),
    n.Split: _split,
    n.Join: lambda f, s, x: _each(lambda a: a.reshape(-1, *a.shape[2:]), x),
    n.Slide: _slide,
    n.Transpose: lambda f, s, x: _each(lambda a: a.swapaxes(0, 1), x),
    n.Concat: lambda f, s, *xs: _join(xs),
    n.Take: lambda f, s, x: _each(lambda a: a[: _number(f.size)], x),
    n.Drop: lambda f, s, x: _each(lambda a: a[_number(f.size) :], x),
    n.Pad: _pad,
    n.PadConstant: _pad_constant,
    n.Gather: _gather,
    n.Scatter: _scatter,
}
