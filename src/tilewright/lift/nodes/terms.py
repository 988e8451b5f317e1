"""Terms, the functions that terms are made with, and how both are built from Python."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

from tilewright.base.dtypes import DType, bool_, dtype_of, float32, int64
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.expr.nodes import Expr, Var, const
from tilewright.ir.node import Node, substitute
from tilewright.lift.types import Length, Type

# Under these names nodes are data of a field, not children of the node.
ScalarBody: TypeAlias = Expr
DataType: TypeAlias = Type


class Part(Node):
    """A term or a function."""

    def __repr__(self) -> str:
        from tilewright.lift.printer import show_part

        return show_part(self)


class Fun(Part):
    """A function of values. `f >> g` is g after f, `g.o(f)` too; `f(x)` applies."""

    def __call__(self, *args: Any) -> Term:
        return apply(self, *args)

    def __ror__(self, value: Any) -> Term:
        return apply(self, value)

    def __rshift__(self, then: Any) -> Fun:
        return compose(self, as_fun(then))

    def __rrshift__(self, first: Any) -> Fun:
        return compose(as_fun(first), self)

    def o(self, first: Any) -> Fun:
        """This function after `first`."""
        return compose(as_fun(first), self)


class Term(Part):
    """A value: a scalar, vector, tuple or array. `x | f` applies; `+ - * /` apply scalars."""

    def __or__(self, fun: Any) -> Term:
        return apply(fun, self)

    def __add__(self, other: Any) -> Term:
        return Builtin("add")(self, other)

    def __radd__(self, other: Any) -> Term:
        return Builtin("add")(other, self)

    def __sub__(self, other: Any) -> Term:
        return Builtin("sub")(self, other)

    def __rsub__(self, other: Any) -> Term:
        return Builtin("sub")(other, self)

    def __mul__(self, other: Any) -> Term:
        return Builtin("mul")(self, other)

    def __rmul__(self, other: Any) -> Term:
        return Builtin("mul")(other, self)

    def __truediv__(self, other: Any) -> Term:
        return Builtin("div")(self, other)

    def __rtruediv__(self, other: Any) -> Term:
        return Builtin("div")(other, self)

    def __neg__(self) -> Term:
        return Builtin("neg")(self)

    def __getitem__(self, position: int) -> Term:
        """Component `position` of a tuple."""
        number = whole(position)
        if number is None:
            raise InputError(
                f"a component is chosen by a number, not by {position!r}",
                hint="At(i)(x) is element i of an array",
                where="component of a tuple",
            )
        return Get(number)(self)

    # Without it, __getitem__ would make terms iterable, and that without end.
    __iter__ = None


class Param(Term, intern=False):
    """A variable: the parameter of a program (with its type) or of a function inside one (None)."""

    name: str
    type: DataType | None


class Literal(Term):
    value: int | float | bool
    dtype: DType


class Apply(Term):
    """`fun(args)`; `fun` is not a Compose (see `apply`)."""

    fun: Fun
    args: tuple[Term, ...]


class Tuple(Term):
    items: tuple[Term, ...]


class Fill(Term):
    """An array of `length` times the same value."""

    value: Term
    length: Length


class Iota(Term):
    """The int64 array 0, 1, ..., length-1."""

    length: Length


# -- functions of values and scalars


class Lambda(Fun):
    params: tuple[Param, ...]
    body: Term


def expect_program(value: object, where: str = "lift") -> Lambda:
    """`value`, which is to be a program. Raises InputError for anything else."""
    if not isinstance(value, Lambda):
        raise InputError(
            f"{value!r} is not a program",
            where=where,
            hint="as fun(lambda x: ..., f32[n])",
        )
    return value


class Compose(Fun):
    """At least two functions, none of them a Compose, applied first to last."""

    funs: tuple[Fun, ...]


class ScalarFun(Fun):
    """A function of scalars to a scalar; `scalars.body` is its value."""


class UserFun(ScalarFun):
    """`body` over the variables `argument(0, dtypes[0])`, `argument(1, dtypes[1])`, ..."""

    name: str
    dtypes: tuple[DType, ...]
    body: ScalarBody

    def __call__(self, *args: Any) -> Any:
        """Applied to terms; to expressions, as in another user function: its value there."""
        if args and all(isinstance(a, Expr) for a in args):
            return self.at(*args)
        return super().__call__(*args)

    def at(self, *args: Expr) -> Expr:
        """The value at expressions. Raises TypeError for other dtypes or another number."""
        found = tuple(a.dtype for a in args)
        if found != self.dtypes:
            takes, given = (", ".join(map(str, d)) for d in (self.dtypes, found))
            raise TypeError(f"{self.name} takes ({takes}), not ({given})")
        params = map(argument, range(len(args)), self.dtypes)
        value: Expr = substitute(self.body, dict(zip(params, args, strict=True)))
        return value


class Builtin(ScalarFun):
    """A row of `scalars.BUILTINS`: `add sub mul div max min exp ...`, and `id`."""

    name: str


class Get(Fun):
    position: int


# -- building


_arguments: dict[tuple[int, DType], Var] = {}


def argument(position: int, dtype: DType) -> Var:
    """The variable for an argument of every UserFun, shared so that equal functions are one
    node."""
    return _arguments.setdefault((position, dtype), Var("abcdefgh"[position], dtype))


def as_term(value: Any) -> Term:
    """A term unchanged; a tuple of terms as Tuple; a number as Literal.

    A Python float is float32, an int int64; a NumPy scalar keeps its dtype.
    Raises InputError for anything else.
    """
    if isinstance(value, Term):
        return value
    if isinstance(value, tuple):
        return Tuple(tuple(map(as_term, value)))
    if isinstance(value, bool):
        return Literal(value, bool_)
    if isinstance(value, int):
        return literal(value, int64)
    if isinstance(value, float):
        return Literal(value, float32)
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return literal(value.item(), dtype_of(value.dtype))
    raise InputError(
        f"{value!r} is not a value of Lift",
        hint="give a term, a tuple or a number",
        where="term",
    )


def literal(value: int | float | bool, dtype: DType) -> Literal:
    """A number of a dtype. Raises InputError for one that the dtype has not."""
    const(value, dtype)
    return Literal(value, dtype)


def as_fun(f: Any) -> Fun:
    """A function unchanged; a Python callable by calling it on one Param per argument.

    `lambda a, x: g(a, x)` becomes `g` itself. Raises InputError for anything else.
    """
    known = getattr(f, "fun", f)  # a word that is more than a function says which it is
    if isinstance(known, Fun):
        return known
    params = tuple(Param(name, None) for name in parameters(f))
    return lambda_(params, as_term(f(*params)))


def parameters(f: Any) -> tuple[str, ...]:
    """The names of the parameters of a Python function. Raises InputError if they are not plain."""
    code = getattr(f, "__code__", None)
    if code is None or code.co_flags & 0x0C or code.co_kwonlyargcount:
        raise InputError(
            f"{f!r} is not a function of Lift",
            hint="give a pattern or a lambda",
            where="function",
        )
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    return names


def lambda_(params: tuple[Param, ...], body: Term) -> Fun:
    """`Lambda(params, body)`; point-free, `f >> g`, where the body is `g(f(params))`."""
    funs, args = chain(body)
    if funs and args == params and len(set(params)) == len(params):
        found = compose(*funs)
        if not free_params(found) & set(params):
            return found
    return Lambda(params, body)


def chain(term: Term) -> tuple[tuple[Fun, ...], tuple[Term, ...]]:
    """`(f, g, h), args` of `h(g(f(args)))`: only the first function may have several arguments."""
    funs: list[Fun] = []
    args: tuple[Term, ...] = (term,)
    while len(args) == 1 and isinstance(args[0], Apply):
        funs.append(args[0].fun)
        args = args[0].args
    return tuple(reversed(funs)), args


def apply(fun: Any, *args: Any) -> Term:
    """`fun(args)`; a composition is applied one function after the other."""
    f = as_fun(fun)
    terms = tuple(map(as_term, args))
    if isinstance(f, Compose):
        value = apply(f.funs[0], *terms)
        for g in f.funs[1:]:
            value = apply(g, value)
        return value
    return Apply(f, terms)


def compose(*funs: Fun) -> Fun:
    """First to last; nested compositions are flattened; of one function, itself."""
    flat: list[Fun] = []
    for f in funs:
        flat += f.funs if isinstance(f, Compose) else (f,)
    if len(flat) == 1:
        return flat[0]
    return Compose(tuple(flat))


@lru_cache(maxsize=1 << 14)
def free_params(part: Part) -> frozenset[Param]:
    """The parameters that `part` uses and does not bind."""
    match part:
        case Param():
            return frozenset({part})
        case Lambda(params, body):
            return free_params(body) - set(params)
    found: frozenset[Param] = frozenset()
    for child in part.children():
        if isinstance(child, Part):
            found |= free_params(child)
    return found
