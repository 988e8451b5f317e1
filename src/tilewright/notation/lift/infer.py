"""Types of Lift programs, from the parameters down; lengths are compared as arithmetic.

Nothing is guessed: the parameters of a program carry their types, those of an inner function get
theirs from what it is applied to. What a pattern asks of lengths (`m | n`) is decided where the
text decides it, else recorded as a Condition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.base.dtypes import DType, int64
from tilewright.base.errors import InputError
from tilewright.expr.nodes import Add, Expr, Mul, Sub, const
from tilewright.expr.printer import show
from tilewright.notation.lift import indices, scalars
from tilewright.notation.lift import nodes as n
from tilewright.notation.lift.lengths import Condition, array, decide, divide, normal
from tilewright.notation.lift.types import Array, Length, Scalar, TupleType, Type, Vector

Types = tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Typing:
    """What inference found: the parameters' types, the result's, the conditions on lengths."""

    params: Types
    result: Type
    conditions: tuple[Condition, ...]


@dataclass(slots=True)
class Scope:
    """The types of the parameters in sight; conditions are gathered for the whole program."""

    env: Mapping[n.Param, Type]
    conditions: dict[Condition, None] = field(default_factory=dict)
    known: dict[n.Term, Type] = field(default_factory=dict)

    def inner(self, params: Sequence[n.Param], types: Types) -> Scope:
        """With the parameters of a function bound."""
        return Scope({**self.env, **dict(zip(params, types, strict=True))}, self.conditions)

    def require(self, kind: Any, left: Length, right: Length, pattern: str) -> None:
        """Record a condition. Raises InputError where it never holds."""
        c = Condition(kind, left, right, pattern)
        holds = decide(c)
        if holds is False:
            sign = "does not divide" if kind == "divides" else "is more than"
            raise _error(pattern, f"{show(left)} {sign} {show(right)}")
        if holds is None:
            self.conditions[c] = None


def infer(program: n.Part, env: Mapping[n.Param, Type] | None = None) -> Typing:
    """The types of a program: a Lambda whose parameters carry types, or a term.

    env: types of free parameters. Raises InputError (TW-LIFT-TYPE) naming the pattern, what it
    expects and what it found.
    """
    scope = Scope(dict(env or {}))
    if isinstance(program, n.Term):
        for p in n.free_params(program):
            _param(p, scope)
        return Typing((), type_of(program, scope), tuple(scope.conditions))
    if not isinstance(program, n.Lambda):
        raise InputError(
            "the types of its arguments are not known", code="TW-LIFT-TYPE", where=_brief(program)
        )
    types = tuple(_param(p, scope) for p in program.params)
    return Typing(types, result(program, types, scope), tuple(scope.conditions))


def type_of(term: n.Term, scope: Scope) -> Type:
    """The type of a term in a scope."""
    found = scope.known.get(term)
    if found is None:
        found = scope.known[term] = _type_of(term, scope)
    return found


def result(f: n.Fun, args: Types, scope: Scope) -> Type:
    """The type of `f` applied to arguments of these types; one tuple may stand for several."""
    args = unpacked(f, args)
    expected = arity(f)
    if expected is not None and expected != len(args):
        found = f"{len(args)} of the types {', '.join(map(repr, args))}"
        raise _error(_brief(f), f"it takes {expected} arguments, found {found}")
    return _RESULT[type(f)](f, args, scope)


def unpacked(f: n.Fun, args: Types) -> Types:
    """The items of the tuple, where a function of several arguments is given one tuple."""
    expected = arity(f)
    if expected != 1 and len(args) == 1 and isinstance(args[0], TupleType):
        if expected in (None, len(args[0].items)):
            return args[0].items
    return args


def arity(f: n.Fun) -> int | None:
    """The number of arguments; None for Zip and Concat, which take any."""
    match f:
        case n.Lambda(params, _):
            return len(params)
        case n.ScalarFun():
            return scalars.arity(f)
        case n.Compose(funs):
            return arity(funs[0])
        case n.To(_, g) | n.Vectorize(_, g) | n.DeviceOp(_, _, g):
            return arity(g)
        case n.Zip() | n.Concat():
            return None
    return 1


def arguments_of_body(f: Any, args: Types, scope: Scope) -> Types:
    """The types of the arguments of `f.f`, where `f` is applied to `args`.

    How a traversal goes into a pattern: `Map(g)` on [a]n applies g to an a.
    """
    args = unpacked(f, args)
    match f:
        case n.AnyMap():
            return (_array(f, args[0]).item,)
        case n.MapSeqSlide(_, size, step):
            return (_array(f, _slide(n.Slide(size, step), args, scope)).item,)
        case n.PartRed() | n.AnyReduce() | n.AnyScan():
            return _acc_and_item(f, args, scope)
        case n.Vectorize(width, _):
            return tuple(Scalar(_vector(f, a, width)) for a in args)
    return args


# -- terms


def _type_of(term: n.Term, scope: Scope) -> Type:
    match term:
        case n.Param():
            return _param(term, scope)
        case n.Literal(_, dtype):
            return Scalar(dtype)
        case n.Apply(f, args):
            return result(f, tuple(type_of(a, scope) for a in args), scope)
        case n.Tuple(items):
            return TupleType(tuple(type_of(i, scope) for i in items))
        case n.Fill(value, length):
            return array(type_of(value, scope), length)
        case n.Iota(length):
            return array(Scalar(int64), length)
    raise TypeError(f"{type(term).__name__} is no term of Lift")


def _param(p: n.Param, scope: Scope) -> Type:
    found = scope.env.get(p, p.type)
    if found is None:
        raise InputError(
            f"the type of {p.name} is not known",
            code="TW-LIFT-TYPE",
            hint="Give the parameters of the program their types",
        )
    return found


# -- functions


def _lambda(f: n.Lambda, args: Types, scope: Scope) -> Type:
    for p, t in zip(f.params, args, strict=True):
        if p.type is not None and p.type is not t:
            raise _error(_brief(f), f"{p.name} is declared {p.type!r}, found {t!r}")
    return type_of(f.body, scope.inner(f.params, args))


def _compose(f: n.Compose, args: Types, scope: Scope) -> Type:
    t = result(f.funs[0], args, scope)
    for g in f.funs[1:]:
        t = result(g, (t,), scope)
    return t


def _scalar(f: n.ScalarFun, args: Types, scope: Scope) -> Type:
    if isinstance(f, n.Builtin) and f.name == "id":
        return args[0]
    for a in args:
        if not isinstance(a, Scalar):
            hint = "Vectorize(width, f) works on vectors" if isinstance(a, Vector) else None
            raise _error(_brief(f), f"expected a scalar, found {a!r}", hint)
    dtypes = [a.dtype for a in args if isinstance(a, Scalar)]
    return Scalar(scalars.body(f, [n.argument(i, t) for i, t in enumerate(dtypes)]).dtype)


def _map(f: n.AnyMap, args: Types, scope: Scope) -> Type:
    inside = arguments_of_body(f, args, scope)
    return array(result(f.f, inside, scope), _array(f, args[0]).length)


def _map_seq_slide(f: n.MapSeqSlide, args: Types, scope: Scope) -> Type:
    windows = _array(f, _slide(n.Slide(f.size, f.step), args, scope))
    return array(result(f.f, arguments_of_body(f, args, scope), scope), windows.length)


def _folded(f: Any, args: Types, scope: Scope) -> Type:
    """The accumulator's type, which the operator must keep."""
    acc, item = _acc_and_item(f, args, scope)
    found = result(f.f, (acc, item), scope)
    if found is not acc:
        raise _error(
            _brief(f),
            f"the operator gives {found!r}, the initial value is {acc!r}",
            "A literal's dtype is float32 or int64; write f64(0.0) for another",
        )
    return acc


def _acc_and_item(f: Any, args: Types, scope: Scope) -> Types:
    return type_of(f.init, scope), _array(f, args[0]).item


def _reduce(f: n.AnyReduce, args: Types, scope: Scope) -> Type:
    return array(_folded(f, args, scope), 1)


def _part_red(f: n.PartRed, args: Types, scope: Scope) -> Type:
    scope.require("divides", f.count, _array(f, args[0]).length, _brief(f))
    return array(_folded(f, args, scope), f.count)


def _scan(f: n.AnyScan, args: Types, scope: Scope) -> Type:
    return array(_folded(f, args, scope), _array(f, args[0]).length)


def _iterate(f: n.Iterate, args: Types, scope: Scope) -> Type:
    t = args[0]
    for _ in range(f.times):
        before, t = t, result(f.f, (t,), scope)
        if t is before:
            break
    return t


def _zip(f: n.Zip, args: Types, scope: Scope) -> Type:
    arrays = _arrays(f, args)
    for i, a in enumerate(arrays):
        if a.length is not arrays[0].length:
            raise _error(
                "Zip",
                f"argument {i + 1} has the length {show(a.length)}, "
                f"argument 1 {show(arrays[0].length)}",
            )
    return array(TupleType(tuple(a.item for a in arrays)), arrays[0].length)


def _unzip(f: n.Unzip, args: Types, scope: Scope) -> Type:
    a = _array(f, args[0])
    if not isinstance(a.item, TupleType):
        raise _error("Unzip", f"expected an array of tuples, found {a!r}")
    return TupleType(tuple(array(i, a.length) for i in a.item.items))


def _get(f: n.Get, args: Types, scope: Scope) -> Type:
    t = args[0]
    if not isinstance(t, TupleType) or not 0 <= f.position < len(t.items):
        hint = "At(i) is element i of an array" if isinstance(t, Array) else None
        raise _error(_brief(f), f"expected a tuple with component {f.position}, found {t!r}", hint)
    return t.items[f.position]


def _at(f: n.At, args: Types, scope: Scope) -> Type:
    a = _array(f, args[0])
    scope.require("at most", normal(Add(f.index, const(1))), a.length, _brief(f))
    return a.item


def _split(f: n.Split, args: Types, scope: Scope) -> Type:
    a = _array(f, args[0])
    scope.require("divides", f.size, a.length, _brief(f))
    return array(a.item, divide(a.length, f.size), f.size)


def _join(f: n.Join, args: Types, scope: Scope) -> Type:
    outer = _array(f, args[0])
    inner = _array(f, outer.item, "an array of arrays", outer)
    return array(inner.item, normal(Mul(outer.length, inner.length)))


def _slide(f: n.Slide, args: Types, scope: Scope) -> Type:
    a = _array(f, args[0])
    scope.require("at most", f.size, a.length, _brief(f))
    rest = normal(Sub(a.length, f.size))
    scope.require("divides", f.step, rest, _brief(f))
    return array(a.item, divide(normal(Add(rest, f.step)), f.step), f.size)


def _transpose(f: n.Transpose, args: Types, scope: Scope) -> Type:
    outer = _array(f, args[0])
    inner = _array(f, outer.item, "an array of arrays", outer)
    return array(inner.item, inner.length, outer.length)


def _concat(f: n.Concat, args: Types, scope: Scope) -> Type:
    arrays = _arrays(f, args)
    total: Expr = const(0)
    for i, a in enumerate(arrays):
        if a.item is not arrays[0].item:
            raise _error(
                "Concat", f"argument {i + 1} holds {a.item!r}, argument 1 {arrays[0].item!r}"
            )
        total = Add(total, a.length)
    return array(arrays[0].item, normal(total))


def _take(f: n.Take, args: Types, scope: Scope) -> Type:
    a = _array(f, args[0])
    scope.require("at most", f.size, a.length, _brief(f))
    return array(a.item, f.size)


def _drop(f: n.Drop, args: Types, scope: Scope) -> Type:
    a = _array(f, args[0])
    scope.require("at most", f.size, a.length, _brief(f))
    return array(a.item, normal(Sub(a.length, f.size)))


def _pad(f: n.Pad | n.PadConstant, args: Types, scope: Scope) -> Type:
    a = _array(f, args[0])
    for side in (f.left, f.right):
        scope.require("at most", const(0), side, _brief(f))
    if isinstance(f, n.PadConstant):
        outside = type_of(f.value, scope)
        if outside is not a.item:
            raise _error(_brief(f), f"the value outside is {outside!r}, the array holds {a.item!r}")
    elif f.boundary not in n.BOUNDARIES:
        known = ", ".join(n.BOUNDARIES)
        raise _error(_brief(f), f"the boundary is {f.boundary!r}, not one of {known}")
    else:
        scope.require("at most", const(1), a.length, _brief(f))
    return array(a.item, normal(Add(Add(f.left, a.length), f.right)))


def _permuted(f: n.Gather | n.Scatter, args: Types, scope: Scope) -> Type:
    a = _array(f, args[0])
    for divisor in f.index.args[: indices.row(f.index).divisors]:
        scope.require("divides", divisor, a.length, _brief(f))
    return a


def _as_vector(f: n.AsVector, args: Types, scope: Scope) -> Type:
    a = _array(f, args[0])
    if not isinstance(a.item, Scalar):
        raise _error(_brief(f), f"expected an array of scalars, found {a!r}")
    scope.require("divides", const(f.width), a.length, _brief(f))
    return array(Vector(a.item.dtype, f.width), divide(a.length, const(f.width)))


def _as_scalar(f: n.AsScalar, args: Types, scope: Scope) -> Type:
    a = _array(f, args[0])
    if not isinstance(a.item, Vector):
        raise _error(_brief(f), f"expected an array of vectors, found {a!r}")
    return array(Scalar(a.item.dtype), normal(Mul(a.length, const(a.item.width))))


def _vectorize(f: n.Vectorize, args: Types, scope: Scope) -> Type:
    t = result(f.f, arguments_of_body(f, args, scope), scope)
    if not isinstance(t, Scalar):
        raise _error(_brief(f), f"expected a function to a scalar, found {t!r}")
    return Vector(t.dtype, f.width)


def _to(f: n.To, args: Types, scope: Scope) -> Type:
    if f.space not in n.SPACES:
        known = ", ".join(n.SPACES)
        raise _error(_brief(f), f"the address space is {f.space!r}, not one of {known}")
    return result(f.f, args, scope)


def _device_op(f: n.DeviceOp, args: Types, scope: Scope) -> Type:
    return result(f.meaning, args, scope)


_RESULT: Mapping[type[n.Fun], Callable[[Any, Types, Scope], Type]] = {
    n.Lambda: _lambda,
    n.Compose: _compose,
    n.UserFun: _scalar,
    n.Builtin: _scalar,
    **dict.fromkeys((n.Map, n.MapSeq, n.MapPar, n.MapVec, n.MapGlb, n.MapWrg, n.MapLcl), _map),
    n.MapSeqSlide: _map_seq_slide,
    **dict.fromkeys((n.Reduce, n.ReduceSeq, n.ReduceSeqUnroll), _reduce),
    n.PartRed: _part_red,
    **dict.fromkeys((n.Scan, n.ScanSeq), _scan),
    n.Iterate: _iterate,
    n.Zip: _zip,
    n.Unzip: _unzip,
    n.Get: _get,
    n.At: _at,
    n.Split: _split,
    n.Join: _join,
    n.Slide: _slide,
    n.Transpose: _transpose,
    n.Concat: _concat,
    n.Take: _take,
    n.Drop: _drop,
    n.Pad: _pad,
    n.PadConstant: _pad,
    n.Gather: _permuted,
    n.Scatter: _permuted,
    n.AsVector: _as_vector,
    n.AsScalar: _as_scalar,
    n.Vectorize: _vectorize,
    n.To: _to,
    n.DeviceOp: _device_op,
}


# -- errors


def _array(f: n.Fun, t: Type, expected: str = "an array", whole: Type | None = None) -> Array:
    if not isinstance(t, Array):
        raise _error(_brief(f), f"expected {expected}, found {whole or t!r}")
    return t


def _arrays(f: n.Fun, args: Types) -> list[Array]:
    if not args:
        raise _error(_brief(f), "expected arrays, found no argument")
    return [_array(f, a) for a in args]


def _vector(f: n.Fun, t: Type, width: int) -> DType:
    if not isinstance(t, Vector) or t.width != width:
        raise _error(_brief(f), f"expected a vector of {width}, found {t!r}")
    return t.dtype


def _brief(part: n.Part) -> str:
    text = repr(part)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _error(pattern: str, message: str, hint: str | None = None) -> InputError:
    return InputError(message, code="TW-LIFT-TYPE", where=pattern, hint=hint)
