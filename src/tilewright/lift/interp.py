"""The meaning of Lift: every pattern as a few lines of Python on lists.

An array is a list of its elements, a vector too, a tuple a Python tuple, a scalar a NumPy scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from tilewright.lift.types import Array, Scalar, TupleType, Type, Vector

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
            return [
                _nested(item, [a[i] for a in arrays]) for i in range(number(length, {}))
            ]
        case TupleType(items):
            rest = iter(arrays)
            return tuple(_nested(i, [next(rest) for _ in leaves(i)]) for i in items)
    raise TypeError(type(t).__name__)


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
        value = value[path.pop(0) if isinstance(value, tuple) else index.pop(0)]
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
                return [self.value(value)] * number(length, {})
            case n.Iota(length):
                return [np.int64(i) for i in range(number(length, {}))]
        raise TypeError(type(term).__name__)

    def call(self, f: n.Fun, args: Sequence[Value]) -> Value:
        expected = arity(f)
        if expected != 1 and len(args) == 1 and isinstance(args[0], tuple):
            args = args[0]
        return _CALL[type(f)](f, self, *args)


# -- functions: (pattern, scope, arguments) -> value


def _lambda(f: n.Lambda, s: _Scope, *args: Value) -> Value:
    return _Scope({**s.env, **dict(zip(f.params, args, strict=True))}).value(f.body)


def _compose(f: n.Compose, s: _Scope, *args: Value) -> Value:
    value = s.call(f.funs[0], args)
    for g in f.funs[1:]:
        value = s.call(g, [value])
    return value


def _scalar(f: n.ScalarFun, s: _Scope, *args: Value) -> Value:
    if isinstance(f, n.Builtin) and f.name == "id":
        return args[0]
    params = [n.argument(i, dtype_of(a.dtype)) for i, a in enumerate(args)]
    return evaluate(scalars.body(f, params), dict(zip(params, args, strict=True)))[()]


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
    run = len(x) // number(f.count, {})
    return [_fold(f, s, x[i * run : (i + 1) * run]) for i in range(number(f.count, {}))]


def _scan(f: n.AnyScan, s: _Scope, x: Value) -> Value:
    acc, out = s.value(f.init), []
    for e in x:
        acc = s.call(f.f, [acc, e])
        out.append(acc)
    return out


def _iterate(f: n.Iterate, s: _Scope, x: Value) -> Value:
    for _ in range(f.times):
        x = s.call(f.f, [x])
    return x


def _slide(f: n.Slide | n.MapSeqSlide, s: _Scope, x: Value) -> Value:
    size, step = number(f.size, {}), number(f.step, {})
    return [x[i : i + size] for i in range(0, len(x) - size + 1, step)]


def _split(f: n.Split, s: _Scope, x: Value) -> Value:
    size = number(f.size, {})
    return [x[i : i + size] for i in range(0, len(x), size)]


def _pad(f: n.Pad, s: _Scope, x: Value) -> Value:
    at = indices.BOUNDARY[f.boundary]
    left, right = number(f.left, {}), number(f.right, {})
    return [x[_index(at, i, len(x))] for i in range(-left, len(x) + right)]


def _pad_constant(f: n.PadConstant, s: _Scope, x: Value) -> Value:
    outside = s.value(f.value)
    return [outside] * number(f.left, {}) + x + [outside] * number(f.right, {})


def _gather(f: n.Gather, s: _Scope, x: Value) -> Value:
    at = indices.row(f.index).at
    return [x[_index(at, i, len(x), *f.index.args)] for i in range(len(x))]


def _scatter(f: n.Scatter, s: _Scope, x: Value) -> Value:
    at, out = indices.row(f.index).at, list(x)
    for i, e in enumerate(x):
        out[_index(at, i, len(x), *f.index.args)] = e
    return out


def _index(at: Callable[..., Any], i: int, length: int, *args: Any) -> int:
    """An index function at one index."""
    return int(evaluate(at(const(i), const(length), *args), {}))


def _vectorize(f: n.Vectorize, s: _Scope, *args: Value) -> Value:
    return [s.call(f.f, lane) for lane in zip(*args, strict=True)]


_CALL: Mapping[type[n.Fun], Callable[..., Value]] = {
    n.Lambda: _lambda,
    n.Compose: _compose,
    n.UserFun: _scalar,
    n.Builtin: _scalar,
    **dict.fromkeys(
        (n.Map, n.MapSeq, n.MapPar, n.MapVec, n.MapGlb, n.MapWrg, n.MapLcl), _map
    ),
    n.MapSeqSlide: _map_seq_slide,
    **dict.fromkeys((n.Reduce, n.ReduceSeq, n.ReduceSeqUnroll), _reduce),
    n.PartRed: _part_red,
    **dict.fromkeys((n.Scan, n.ScanSeq), _scan),
    n.Iterate: _iterate,
    n.Zip: lambda f, s, *xs: [*zip(*xs, strict=True)],
    n.Unzip: lambda f, s, x: tuple(map(list, zip(*x, strict=True))),
    n.Get: lambda f, s, x: x[f.position],
    n.At: lambda f, s, x: x[number(f.index, {})],
    n.Split: _split,
    n.Join: lambda f, s, x: [e for row in x for e in row],
    n.Slide: _slide,
    n.Transpose: lambda f, s, x: [list(column) for column in zip(*x, strict=True)],
    n.Concat: lambda f, s, *xs: [e for x in xs for e in x],
    n.Take: lambda f, s, x: x[: number(f.size, {})],
    n.Drop: lambda f, s, x: x[number(f.size, {}) :],
    n.Pad: _pad,
    n.PadConstant: _pad_constant,
    n.Gather: _gather,
    n.Scatter: _scatter,
    n.AsVector: lambda f, s, x: [x[i : i + f.width] for i in range(0, len(x), f.width)],
    n.AsScalar: lambda f, s, x: [e for v in x for e in v],
    n.Vectorize: _vectorize,
    n.To: lambda f, s, *args: s.call(f.f, args),
    n.DeviceOp: lambda f, s, *args: s.call(f.meaning, args),
}
