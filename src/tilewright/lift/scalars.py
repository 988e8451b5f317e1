"""Scalar functions: the built-in ones, and the body of any function as an expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError
from tilewright.expr import nodes as e
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.nodes import Expr, const
from tilewright.expr.printer import short
from tilewright.lift.nodes import Builtin, ScalarFun, UserFun, argument


@dataclass(frozen=True, slots=True)
class BuiltinFunction:
    """A built-in function: its number of arguments, and its value on expressions."""

    arity: int
    value: Callable[..., Expr]


def _call(name: str) -> Callable[..., Expr]:
    return lambda *args: e.Call(name, args)


def _cast(dtype: DType) -> Callable[[Expr], Expr]:
    return lambda x: x if x.dtype is dtype else e.Cast(x, dtype)


BUILTINS: Mapping[str, BuiltinFunction] = {
    **{name: BuiltinFunction(f.arity, _call(name)) for name, f in FUNCTIONS.items()},
    "add": BuiltinFunction(2, e.Add),
    "sub": BuiltinFunction(2, e.Sub),
    "mul": BuiltinFunction(2, e.Mul),
    "div": BuiltinFunction(2, e.Div),
    "floordiv": BuiltinFunction(2, e.FloorDiv),
    "mod": BuiltinFunction(2, e.Mod),
    "rem": BuiltinFunction(2, e.Rem),
    "xor": BuiltinFunction(2, e.Xor),
    "shl": BuiltinFunction(2, e.Shl),
    "shr": BuiltinFunction(2, e.Shr),
    "max": BuiltinFunction(2, e.Max),
    "min": BuiltinFunction(2, e.Min),
    "lt": BuiltinFunction(2, e.Lt),
    "le": BuiltinFunction(2, e.Le),
    "eq": BuiltinFunction(2, e.Eq),
    "ne": BuiltinFunction(2, e.Ne),
    "and_": BuiltinFunction(2, e.And),
    "or_": BuiltinFunction(2, e.Or),
    "neg": BuiltinFunction(1, e.Neg),
    "not_": BuiltinFunction(1, e.Not),
    "relu": BuiltinFunction(1, lambda x: e.Max(x, const(0, x.dtype))),
    "select": BuiltinFunction(3, e.Select),
    "id": BuiltinFunction(1, lambda x: x),
    **{short(t): BuiltinFunction(1, _cast(t)) for t in dtypes.ALL if not t.is_string},
}


def user_fun(name: str, f: Callable[..., Expr], *of: object) -> UserFun:
    """The scalar function `f`, a Python function on expressions, for arguments of the dtypes `of`.

    `user_fun("mish", lambda x: x * call("tanh", ...), "float32")`. Raises InputError if `f`
    does not return an expression, or if dtypes inside do not match.
    """
    types = tuple(dtype_of(t) for t in of)  # type: ignore[arg-type]
    try:
        body = f(*(argument(n, t) for n, t in enumerate(types)))
    except InputError as error:
        raise error.at(f"user function {name}") from None
    except TypeError as error:
        raise InputError(
            str(error),
            code="TW-LIFT-TYPE",
            where=f"user function {name}",
            hint="build one expression, of operands of one dtype",
        ) from None
    if not isinstance(body, Expr):
        raise InputError(
            f"it gives {body!r}, not an expression",
            code="TW-LIFT-TYPE",
            where=f"user function {name}",
            hint="return an expression of its parameters",
        )
    return UserFun(name, types, body)


def body(f: ScalarFun, args: Sequence[Expr]) -> Expr:
    """The value of `f` at `args`. Raises InputError (TW-LIFT-TYPE) for wrong dtypes or counts."""
    expected = arity(f)
    if len(args) != expected:
        raise _wrong(f, f"it takes {expected} arguments, not {len(args)}")
    if isinstance(f, UserFun):
        for n, (t, a) in enumerate(zip(f.dtypes, args, strict=True)):
            if a.dtype is not t:
                raise _wrong(f, f"argument {n + 1} is {a.dtype}, expected {t}")
        return f.at(*args)
    assert isinstance(f, Builtin)
    try:
        return BUILTINS[f.name].value(*args)
    except TypeError as error:
        raise _wrong(f, str(error)) from None


def arity(f: ScalarFun) -> int:
    """The number of arguments. Raises InputError for a built-in function that does not exist."""
    if isinstance(f, UserFun):
        return len(f.dtypes)
    assert isinstance(f, Builtin)
    if f.name not in BUILTINS:
        known = ", ".join(sorted(BUILTINS))
        raise InputError(
            f"there is no function {f.name!r}",
            hint=f"known: {known}",
            where="scalar function",
        )
    return BUILTINS[f.name].arity


def _wrong(f: ScalarFun, message: str) -> InputError:
    return InputError(
        message,
        code="TW-LIFT-TYPE",
        where=f"function {f!r}",
        hint="A literal's dtype is float32 or int64; write f64(0.0) for another",
    )
