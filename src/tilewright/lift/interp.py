"""The meaning of Lift: every pattern as a few lines of Python on lists.

An array is a list of its elements, a vector too, a tuple a Python tuple, a scalar a NumPy scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import InputError
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import const
from tilewright.lift import indices, scalars
from tilewright.lift import nodes as n
from tilewright.lift.infer import arity
from tilewright.lift.lengths import evaluate as number
from tilewright.lift.sizes import leaves, sizes_of, specialized
from tilewright.lift.types import Array, Length, Scalar, TupleType, Type, Vector

Value = Any


def interpret(program: n.Lambda, *inputs: Any) -> tuple[Any, ...]:
    """The leaves of the result (`sizes.leaves`) for one NumPy array per leaf of the parameters.

    Lengths come from the shapes. Raises InputError for shapes or dtypes that do not fit, for
    conditions that do not hold, and for ill-typed programs.
    """
    arrays = [np.asarray(a) for a in inputs]
    types = tuple(p.type for p in program.params if p.type is not None)
    if len(types) != len(program.params):
        raise InputError(
            "the parameters of the program need types",
            code="TW-LIFT-TYPE",
            where="interpret",
            hint="as in fun(lambda x: ..., f32[n])",
        )
    sizes = sizes_of(types, [a.shape for a in arrays])
    fixed, typing = specialized(program, sizes)
    places = iter(arrays)
    values = []
    for t in typing.params:
        mine = [next(places) for _ in leaves(t)]
        for leaf, array in zip(leaves(t), mine, strict=True):
            if array.dtype != leaf.dtype.numpy:
                raise InputError(
                    f"expected {leaf.dtype}, found {array.dtype}",
                    where="interpret",
                    hint=f"convert it: .astype('{leaf.dtype}')",
                )
        values.append(_nested(t, mine))
    return _flat(typing.result, _Scope({}).call(fixed, values))


def _nested(t: Type, arrays: Sequence[Any]) -> Value:
    match t:
        case Scalar():
            return arrays[0][()]
        case Vector(_, width):
            return [arrays[0][i] for i in range(width)]
        case Array(item, length):
            count = _number(length)
            return [_nested(item, [a[i] for a in arrays]) for i in range(count)]
        case TupleType(items):
            rest = iter(arrays)
            components = []
            for component in items:
                own = [next(rest) for _ in leaves(component)]
                components.append(_nested(component, own))
            return tuple(components)
    raise TypeError(type(t).__name__)


def _number(length: Length) -> int:
    """A length of a specialized program."""
    return number(length, {})


def _flat(t: Type, value: Value) -> tuple[Any, ...]:
    out = []
    for leaf in leaves(t):
        array = np.empty(leaf.shape, leaf.dtype.numpy)
        for index in np.ndindex(leaf.shape):
            array[index] = _element(value, list(index), list(leaf.path))
        out.append(array)
    return tuple(out)


def _element(value: Value, index: list[int], path: list[int]) -> Value:
    while isinstance(value, list | tuple):
        steps = path if isinstance(value, tuple) else index
        value = value[steps.pop(0)]
    return value


class _Scope:
    """Values of the parameters in sight, and of the terms evaluated with them."""

    def __init__(self, env: Mapping[n.Param, Value]) -> None:
        self.env = env
        self.known: dict[n.Term, Value] = {}

    def value(self, term: n.Term) -> Value:
        if term not in self.known:
            self.known[term] = self._value(term)
        return self.known[term]

    def _value(self, term: n.Term) -> Value:
        match term:
            case n.Param():
                return self.env[term]
            case n.Literal(value, dtype):
                return dtype.numpy.type(value)
            case n.Apply(f, args):
                return self.call(f, [self.value(a) for a in args])
            case n.Tuple(items):
                return tuple(map(self.value, items))
            case n.Fill(value, length):
                return [self.value(value)] * _number(length)
            case n.Iota(length):
                return [np.int64(i) for i in range(_number(length))]
        raise TypeError(type(term).__name__)

    def call(self, f: n.Fun, args: Sequence[Value]) -> Value:
        expected = arity(f)
        if expected != 1 and len(args) == 1 and isinstance(args[0], tuple):
            args = args[0]
        return _CALL[type(f)](f, self, *args)


# -- functions: (pattern, scope, arguments) -> value


def _lambda(f: n.Lambda, s: _Scope, *args: Value) -> Value:
    bound = dict(zip(f.params, args, strict=True))
    return _Scope({**s.env, **bound}).value(f.body)


def _compose(f: n.Compose, s: _Scope, *args: Value) -> Value:
    value = s.call(f.funs[0], args)
    for g in f.funs[1:]:
        value = s.call(g, [value])
    return value


def _scalar(f: n.ScalarFun, s: _Scope, *args: Value) -> Value:
    if isinstance(f, n.Builtin) and f.name == "id":
        return args[0]
    params = [n.argument(i, dtype_of(a.dtype)) for i, a in enumerate(args)]
    env = dict(zip(params, args, strict=True))
    return evaluate(scalars.body(f, params), env)[()]


def _map(f: n.AnyMap, s: _Scope, x: Value) -> Value:
    return [s.call(f.f, [e]) for e in x]


def _map_seq_slide(f: n.MapSeqSlide, s: _Scope, x: Value) -> Value:
    return [s.call(f.f, [w]) for w in _slide(f, s, x)]


def _fold(f: Any, s: _Scope, x: Value) -> Value:
    acc = s.value(f.init)
    for e in x:
        acc = s.call(f.f, [acc, e])
    return acc


def _reduce(f: n.AnyReduce, s: _Scope, x: Value) -> Value:
    return [_fold(f, s, x)]


def _part_red(f: n.PartRed, s: _Scope, x: Value) -> Value:
    count = _number(f.count)
    run = len(x) // count
    starts = [i * run for i in range(count)]
    return [_fold(f, s, x[start : start + run]) for start in starts]


def _scan(f: n.AnyScan, s: _Scope, x: Value) -> Value:
    acc = s.value(f.init)
    out = []
    for e in x:
        acc = s.call(f.f, [acc, e])
        out.append(acc)
    return out


def _iterate(f: n.Iterate, s: _Scope, x: Value) -> Value:
    for _ in range(f.times):
        x = s.call(f.f, [x])
    return x


def _slide(f: n.Slide | n.MapSeqSlide, s: _Scope, x: Value) -> Value:
    size = _number(f.size)
    starts = range(0, len(x) - size + 1, _number(f.step))
    return [x[start : start + size] for start in starts]


def _split(f: n.Split, s: _Scope, x: Value) -> Value:
    return _runs(x, _number(f.size))


def _runs(x: Value, size: int) -> Value:
    return [x[start : start + size] for start in range(0, len(x), size)]


def _pad(f: n.Pad, s: _Scope, x: Value) -> Value:
    at = indices.BOUNDARY[f.boundary]
    padded = range(-_number(f.left), len(x) + _number(f.right))
    return [x[_index(at, i, len(x))] for i in padded]


def _pad_constant(f: n.PadConstant, s: _Scope, x: Value) -> Value:
    outside = s.value(f.value)
    before = [outside] * _number(f.left)
    after = [outside] * _number(f.right)
    return before + x + after


def _gather(f: n.Gather, s: _Scope, x: Value) -> Value:
    at = indices.row(f.index).at
    sources = [_index(at, i, len(x), *f.index.args) for i in range(len(x))]
    return [x[source] for source in sources]


def _scatter(f: n.Scatter, s: _Scope, x: Value) -> Value:
    at = indices.row(f.index).at
    out = list(x)
    for i, e in enumerate(x):
        target = _index(at, i, len(x), *f.index.args)
        out[target] = e
    return out


def _index(
    at: Callable[..., Any],
    i: int,
    length: int,
    *args: Any,
) -> int:
    """An index function at one index."""
    return int(evaluate(at(const(i), const(length), *args), {}))


def _filter(f: n.Filter, s: _Scope, x: Value, ids: Value) -> Value:
    for i in ids:
        if not 0 <= i < len(x):
            raise InputError(
                f"the index {i} is not inside an array of {len(x)} elements",
                where="Filter",
                hint="indices count from 0",
            )
    return [x[int(i)] for i in ids]


def _vectorize(f: n.Vectorize, s: _Scope, *args: Value) -> Value:
    return [s.call(f.f, lane) for lane in zip(*args, strict=True)]


def _unzip(f: n.Unzip, s: _Scope, x: Value) -> Value:
    return tuple(map(list, zip(*x, strict=True)))


def _join(f: n.Join | n.AsScalar, s: _Scope, x: Value) -> Value:
    return list(chain.from_iterable(x))


def _transpose(f: n.Transpose, s: _Scope, x: Value) -> Value:
    return [list(column) for column in zip(*x, strict=True)]


_CALL: Mapping[type[n.Fun], Callable[..., Value]] = {
    n.Lambda: _lambda,
    n.Compose: _compose,
    n.UserFun: _scalar,
    n.Builtin: _scalar,
    **dict.fromkeys(n.MAPS, _map),
    n.MapSeqSlide: _map_seq_slide,
    n.Reduce: _reduce,
    n.ReduceSeq: _reduce,
    n.ReduceSeqUnroll: _reduce,
    n.PartRed: _part_red,
    n.Scan: _scan,
    n.ScanSeq: _scan,
    n.Iterate: _iterate,
    n.Zip: lambda f, s, *xs: [*zip(*xs, strict=True)],
    n.Unzip: _unzip,
    n.Get: lambda f, s, x: x[f.position],
    n.At: lambda f, s, x: x[_number(f.index)],
    n.Split: _split,
    n.Join: _join,
    n.Slide: _slide,
    n.Transpose: _transpose,
    n.Concat: lambda f, s, *xs: list(chain(*xs)),
    n.Take: lambda f, s, x: x[: _number(f.size)],
    n.Drop: lambda f, s, x: x[_number(f.size) :],
    n.Pad: _pad,
    n.PadConstant: _pad_constant,
    n.Gather: _gather,
    n.Scatter: _scatter,
    n.Filter: _filter,
    n.AsVector: lambda f, s, x: _runs(x, f.width),
    n.AsScalar: _join,
    n.Vectorize: _vectorize,
    n.To: lambda f, s, *args: s.call(f.f, args),
    n.DeviceOp: lambda f, s, *args: s.call(f.meaning, args),
}
