"""Types of Lift programs, from the parameters down; lengths are compared as arithmetic.

Nothing is guessed: the parameters of a program carry their types, and an inner function's
parameters get theirs from its arguments. A pattern's requirement on lengths (`m | n`) is decided if
the program determines it, and otherwise recorded as a Condition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import int64
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.lift import nodes as n
from tilewright.lift import scalars
from tilewright.lift.lengths import Condition, array
from tilewright.lift.scope import Scope as Scope
from tilewright.lift.scope import Types, array_of, brief, error, vector_of
from tilewright.lift.shapes import SHAPES, longer, windows
from tilewright.lift.types import Scalar, TupleType, Type, Vector


@dataclass(frozen=True, slots=True)
class Typing:
    """What inference found: the parameters' types, the result's, the conditions on lengths."""

    params: Types
    result: Type
    conditions: tuple[Condition, ...]


def infer(program: n.Part, env: Mapping[n.Param, Type] | None = None) -> Typing:
    """The types of a program: a Lambda whose parameters carry types, or a term.

    env: types of free parameters. Raises InputError (TW-LIFT-TYPE) naming the pattern, what it
    expects and what it found.
    """
    scope = Scope(dict(env or {}))
    params, found = infer_in(program, scope)
    return Typing(params, found, tuple(scope.conditions))


def infer_in(program: n.Part, scope: Scope) -> tuple[Types, Type]:
    """The types of a program's parameters and its result, as `infer`, in a scope."""
    if isinstance(program, n.Term):
        for p in n.free_params(program):
            _param(p, scope)
        return (), type_of(program, scope)
    if not isinstance(program, n.Lambda):
        raise InputError(
            "the types of its arguments are not known",
            code="TW-LIFT-TYPE",
            where=brief(program),
            hint="make it a program: fun(lambda x: ..., f32[n])",
        )
    types = tuple(_param(p, scope) for p in program.params)
    return types, result(program, types, scope)


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
        raise error(brief(f), f"it takes {expected} arguments, found {found}")
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
        case n.Filter():
            return 2
    return 1


def arguments_of_body(f: Any, args: Types, scope: Scope) -> Types:
    """The types of the arguments of `f.f`, where `f` is applied to `args`.

    How a traversal goes into a pattern: `Map(g)` on [a]n applies g to an a.
    """
    args = unpacked(f, args)
    match f:
        case n.AnyMap():
            return (array_of(f, args[0]).item,)
        case n.MapSeqSlide():
            return (array_of(f, windows(f, args, scope)).item,)
        case n.PartRed() | n.AnyReduce() | n.AnyScan():
            return _acc_and_item(f, args, scope)
        case n.Vectorize(width, _):
            return tuple(Scalar(vector_of(f, a, width)) for a in args)
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
    raise TypeError(f"{type(term).__name__} is not a term of Lift")


def _param(p: n.Param, scope: Scope) -> Type:
    found = scope.env.get(p, p.type)
    if found is None:
        raise InputError(
            f"the type of {p.name} is not known",
            code="TW-LIFT-TYPE",
            hint="give the parameters of the program their types",
            where=f"parameter {p.name}",
        )
    return found


# -- functions


def _lambda(f: n.Lambda, args: Types, scope: Scope) -> Type:
    for p, t in zip(f.params, args, strict=True):
        if p.type is not None and p.type is not t:
            raise error(brief(f), f"{p.name} is declared {p.type!r}, found {t!r}")
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
            hint = (
                "Vectorize(width, f) works on vectors"
                if isinstance(a, Vector)
                else None
            )
            raise error(brief(f), f"expected a scalar, found {a!r}", hint)
    dtypes = [a.dtype for a in args if isinstance(a, Scalar)]
    return Scalar(
        scalars.body(f, [n.argument(i, t) for i, t in enumerate(dtypes)]).dtype
    )


def _map(f: n.AnyMap, args: Types, scope: Scope) -> Type:
    inside = arguments_of_body(f, args, scope)
    return array(result(f.f, inside, scope), array_of(f, args[0]).length)


def _map_seq_slide(f: n.MapSeqSlide, args: Types, scope: Scope) -> Type:
    found = array_of(f, windows(f, args, scope))
    return array(result(f.f, (found.item,), scope), found.length)


def _folded(f: Any, args: Types, scope: Scope) -> Type:
    """The accumulator's type, which the operator must keep."""
    acc, item = _acc_and_item(f, args, scope)
    found = result(f.f, (acc, item), scope)
    if found is not acc:
        raise error(
            brief(f),
            f"the operator gives {found!r}, the initial value is {acc!r}",
            "A literal's dtype is float32 or int64; write f64(0.0) for another",
        )
    return acc


def _acc_and_item(f: Any, args: Types, scope: Scope) -> Types:
    return type_of(f.init, scope), array_of(f, args[0]).item


def _reduce(f: n.AnyReduce, args: Types, scope: Scope) -> Type:
    return array(_folded(f, args, scope), 1)


def _part_red(f: n.PartRed, args: Types, scope: Scope) -> Type:
    scope.require("divides", f.count, array_of(f, args[0]).length, brief(f))
    return array(_folded(f, args, scope), f.count)


def _scan(f: n.AnyScan, args: Types, scope: Scope) -> Type:
    return array(_folded(f, args, scope), array_of(f, args[0]).length)


def _iterate(f: n.Iterate, args: Types, scope: Scope) -> Type:
    t = args[0]
    if whole(f.times, 0) is None:
        raise error(brief(f), f"expected a number of times, found {f.times!r}")
    return iterates(f, t, scope)[-1]


def iterates(f: n.Iterate, t: Type, scope: Scope) -> list[Type]:
    """The types before the first iteration on a `t` and after each one, until it is kept."""
    found = [t]
    for _ in range(f.times):
        t = result(f.f, (t,), scope)
        if t is found[-1]:
            break
        found.append(t)
    return found


def _pad_constant(f: n.PadConstant, args: Types, scope: Scope) -> Type:
    a = array_of(f, args[0])
    outside = type_of(f.value, scope)
    if outside is not a.item:
        raise error(
            brief(f), f"the value outside is {outside!r}, the array holds {a.item!r}"
        )
    return longer(f, a, scope)


def _vectorize(f: n.Vectorize, args: Types, scope: Scope) -> Type:
    t = result(f.f, arguments_of_body(f, args, scope), scope)
    if not isinstance(t, Scalar):
        raise error(brief(f), f"expected a function to a scalar, found {t!r}")
    return Vector(t.dtype, f.width)


def _to(f: n.To, args: Types, scope: Scope) -> Type:
    if f.space not in n.SPACES:
        known = ", ".join(n.SPACES)
        raise error(brief(f), f"the address space is {f.space!r}, not one of {known}")
    return result(f.f, args, scope)


def _device_op(f: n.DeviceOp, args: Types, scope: Scope) -> Type:
    return result(f.meaning, args, scope)


_RESULT: Mapping[type[n.Fun], Callable[[Any, Types, Scope], Type]] = {
    n.Lambda: _lambda,
    n.Compose: _compose,
    n.UserFun: _scalar,
    n.Builtin: _scalar,
    **dict.fromkeys(n.MAPS, _map),
    n.MapSeqSlide: _map_seq_slide,
    **dict.fromkeys((n.Reduce, n.ReduceSeq, n.ReduceSeqUnroll), _reduce),
    n.PartRed: _part_red,
    **dict.fromkeys((n.Scan, n.ScanSeq), _scan),
    n.Iterate: _iterate,
    **SHAPES,
    n.PadConstant: _pad_constant,
    n.Vectorize: _vectorize,
    n.To: _to,
    n.DeviceOp: _device_op,
}
