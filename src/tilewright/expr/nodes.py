"""Scalar expressions: the whole of what a loop body can compute.

    Expr = Const(value, type) | Var(name, type)
         | Add | Sub | Mul | Div | FloorDiv | Mod | Rem | Min | Max      (lhs, rhs)
         | Overlap                                                       (lhs, rhs)
         | And | Or | Xor | Shl | Shr                                    (lhs, rhs)
         | Lt | Le | Eq | Ne                                             (lhs, rhs) -> bool
         | Neg | Not                                                     (value)
         | Call(function, args) | Cast(value, type) | Bitcast(value, type)
         | Select(condition, then, otherwise)
         | Load(buffer, index)

Meaning, the same in the interpreter, the rules and every code generator:

* Both operands of a binary node have one dtype; integers wrap around; floats are IEEE 754, each
  operation rounded to its dtype. Index arithmetic is int64.
* `Div` is IEEE division on floats and truncates on integers; `FloorDiv` and `Mod` round down;
  `Rem` takes the dividend's sign (C's `%` and `fmod`). An integer division by zero gives 0.
* `Min`/`Max` give NaN if an operand is NaN. `And Or Xor Not` are logical on bool, bitwise on ints.
* `Overlap` has the value of `Min`. It is where a tile starts that may overlap the one before, and
  says of a kernel what `loops/analysis/overlap.py` states.
* `Shl`/`Shr` by a negative amount or by at least the width give 0 (`Shr` of a negative number: -1).
  Shr is arithmetic on signed, logical on unsigned integers.
* A `Load` under `Select` is evaluated only where its arm is chosen: this expresses padding.
* An index that itself contains a `Load` is a checked read: out of range is an execution error.
* `Cast` float -> int truncates and saturates (NaN gives 0), int -> int wraps, x -> bool is x != 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.expr.functions import FUNCTIONS
from tilewright.ir.node import Node

INDEX = dtypes.int64
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1  # of INDEX


class Expr(Node):
    """A scalar value; `dtype` is known from construction on."""

    if TYPE_CHECKING:

        @property
        def dtype(self) -> DType: ...

    else:
        dtype = Node.derived

        def __getattr__(self, name: str) -> Any:
            if name in FUNCTIONS:  # what numpy.sin asks an object for
                return partial(_refuse_function, name)
            kind = type(self).__name__
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")

    def __add__(self, other: Any) -> Expr:
        return Add(*pair(self, other))

    def __radd__(self, other: Any) -> Expr:
        return Add(*pair(self, other)[::-1])

    def __sub__(self, other: Any) -> Expr:
        return Sub(*pair(self, other))

    def __rsub__(self, other: Any) -> Expr:
        return Sub(*pair(self, other)[::-1])

    def __mul__(self, other: Any) -> Expr:
        return Mul(*pair(self, other))

    def __rmul__(self, other: Any) -> Expr:
        return Mul(*pair(self, other)[::-1])

    def __truediv__(self, other: Any) -> Expr:
        return Div(*pair(self, other))

    def __rtruediv__(self, other: Any) -> Expr:
        return Div(*pair(self, other)[::-1])

    def __floordiv__(self, other: Any) -> Expr:
        return FloorDiv(*pair(self, other))

    def __rfloordiv__(self, other: Any) -> Expr:
        return FloorDiv(*pair(self, other)[::-1])

    def __mod__(self, other: Any) -> Expr:
        return Mod(*pair(self, other))

    def __rmod__(self, other: Any) -> Expr:
        return Mod(*pair(self, other)[::-1])

    def __neg__(self) -> Expr:
        return Neg(self)

    def __lt__(self, other: Any) -> Expr:
        return Lt(*pair(self, other))

    def __le__(self, other: Any) -> Expr:
        return Le(*pair(self, other))

    def __gt__(self, other: Any) -> Expr:
        return Lt(*pair(self, other)[::-1])

    def __ge__(self, other: Any) -> Expr:
        return Le(*pair(self, other)[::-1])

    def __and__(self, other: Any) -> Expr:
        return And(*pair(self, other))

    def __or__(self, other: Any) -> Expr:
        return Or(*pair(self, other))

    def __xor__(self, other: Any) -> Expr:
        return Xor(*pair(self, other))

    def __rand__(self, other: Any) -> Expr:
        return And(*pair(self, other)[::-1])

    def __ror__(self, other: Any) -> Expr:
        return Or(*pair(self, other)[::-1])

    def __rxor__(self, other: Any) -> Expr:
        return Xor(*pair(self, other)[::-1])

    def __lshift__(self, other: Any) -> Expr:
        return Shl(*pair(self, other))

    def __rlshift__(self, other: Any) -> Expr:
        return Shl(*pair(self, other)[::-1])

    def __rshift__(self, other: Any) -> Expr:
        return Shr(*pair(self, other))

    def __rrshift__(self, other: Any) -> Expr:
        return Shr(*pair(self, other)[::-1])

    def __invert__(self) -> Expr:
        return Not(self)

    def eq(self, other: Any) -> Expr:
        """The expression `self == other` (the operator `==` is identity)."""
        return Eq(*pair(self, other))

    def ne(self, other: Any) -> Expr:
        """The expression `self != other`."""
        return Ne(*pair(self, other))

    def astype(self, dtype: Any) -> Expr:
        """The value converted to a dtype (see Cast); itself if it has it."""
        to = dtypes.dtype_of(dtype)
        return self if self.dtype is to else Cast(self, to)

    def __bool__(self) -> bool:
        raise TypeError(
            "an expression has no truth value while it is built; use Select (in "
            "tilewright.operators where, in te if_then_else), &, |, ~ or eq()"
        )

    def __float__(self) -> float:
        _refuse_function("sin")

    def __abs__(self) -> Expr:
        _refuse_function("abs")

    def __pow__(self, other: Any) -> Expr:
        raise TypeError(
            "expressions have no **: use tilewright.operators.pow, or x * x"
        )

    def __repr__(self) -> str:
        from tilewright.expr.printer import show

        return show(self)


def _refuse_function(name: str) -> NoReturn:
    """Raise TypeError for a function of NumPy's or of `math` that is given an expression."""
    raise TypeError(
        "an expression has no number while it is built, so NumPy and math do not take it; use "
        f"tilewright.operators.{name} and the like (in te and Halide, their functions)"
    )


class Const(Expr):
    """A literal; `value` is a Python int, bool, float or complex that fits `dtype`."""

    value: int | float | bool | complex
    type: DType

    def _derive(self) -> DType:
        return self.type


class Var(Expr, intern=False):
    """A symbol: a loop variable or a parameter. Two variables of one name are different."""

    name: str
    type: DType

    def _derive(self) -> DType:
        return self.type


class Binary(Expr):
    """Two operands of one dtype, which is also the result's."""

    lhs: Expr
    rhs: Expr

    def _derive(self) -> DType:
        if self.lhs.dtype is not self.rhs.dtype:
            raise TypeError(
                f"{type(self).__name__}: operands are {self.lhs.dtype} and {self.rhs.dtype}: "
                f"{self.lhs!r} and {self.rhs!r}; convert one, as by .astype('{self.lhs.dtype}')"
            )
        return self.lhs.dtype


class Add(Binary): ...


class Sub(Binary): ...


class Mul(Binary): ...


class Div(Binary): ...


class FloorDiv(Binary): ...


class Mod(Binary): ...


class Rem(Binary): ...


class Min(Binary): ...


class Overlap(Min):
    """The start `min(lhs, rhs)` of an overlapping tile; made by `split(..., tail="overlap")` alone.

    What it promises about its kernel is stated in `loops/analysis/overlap.py`.
    """


class Max(Binary): ...


class Bitwise(Binary):
    """Integers or truth values."""

    def _derive(self) -> DType:
        return _bits(self, Binary._derive(self), "integers or truth values")


class And(Bitwise): ...


class Or(Bitwise): ...


class Xor(Bitwise): ...


class Shift(Binary):
    """Integers."""

    def _derive(self) -> DType:
        return _bits(self, Binary._derive(self), "integers")


class Shl(Shift): ...


class Shr(Shift): ...


class Compare(Binary):
    """A comparison of two operands of one dtype; the result is bool."""

    def _derive(self) -> DType:
        Binary._derive(self)
        return dtypes.bool_


class Lt(Compare): ...


class Le(Compare): ...


class Eq(Compare): ...


class Ne(Compare): ...


class Neg(Expr):
    value: Expr

    def _derive(self) -> DType:
        return self.value.dtype


class Not(Expr):
    value: Expr

    def _derive(self) -> DType:
        return _bits(self, self.value.dtype, "integers or truth values")


def _bits(e: Expr, dtype: DType, wanted: str) -> DType:
    """`dtype`, where an operation on bits has a meaning for it."""
    if dtype.is_int or (dtype.is_bool and not isinstance(e, Shift)):
        return dtype
    raise TypeError(
        f"{type(e).__name__} is for {wanted}, not {dtype}; cast it, or compare it first"
    )


class Call(Expr):
    """A named scalar function from `expr.functions.FUNCTIONS`."""

    function: str
    args: tuple[Expr, ...]

    def _derive(self) -> DType:
        f = FUNCTIONS.get(self.function)
        if f is None:
            raise TypeError(
                f"unknown function {self.function!r}; known: {sorted(FUNCTIONS)}"
            )
        if len(self.args) != f.arity:
            raise TypeError(
                f"{self.function} takes {f.arity} arguments, not {len(self.args)}"
            )
        return f.result or self.args[0].dtype


class Cast(Expr):
    value: Expr
    type: DType

    def _derive(self) -> DType:
        return self.type


class Bitcast(Expr):
    """The same bits read as another dtype of the same width."""

    value: Expr
    type: DType

    def _derive(self) -> DType:
        if self.value.dtype.bits != self.type.bits:
            raise TypeError(
                f"bitcast {self.value.dtype} -> {self.type}: the widths differ"
            )
        return self.type


class Select(Expr):
    """`then` where `condition`, else `otherwise`; loads in the other arm are not performed."""

    condition: Expr
    then: Expr
    otherwise: Expr

    def _derive(self) -> DType:
        if self.condition.dtype is not dtypes.bool_:
            raise TypeError(
                f"Select: the condition is {self.condition.dtype}, not bool"
            )
        if self.then.dtype is not self.otherwise.dtype:
            raise TypeError(
                f"Select: arms are {self.then.dtype} and {self.otherwise.dtype}"
            )
        return self.then.dtype


class Load(Expr):
    """One element of a buffer; `index` has one int64 expression per dimension."""

    buffer: Buffer
    index: tuple[Expr, ...]

    def _derive(self) -> DType:
        if len(self.index) != len(self.buffer.extents):
            raise TypeError(
                f"{self.buffer.name} has {len(self.buffer.extents)} dimensions, "
                f"indexed with {len(self.index)}"
            )
        return self.buffer.dtype


# Sizes passed by a call are below this number, so a product of two is far below the int64 limit.
MAX_SIZE = 1 << 31
# An extent in elements: a number, or an int64 expression of the sizes passed by a call.
Extent = int | Expr


def fixed(extent: Extent, where: str) -> int:
    """An extent that has to be a number. Raises UnsupportedError for one that a call decides."""
    if isinstance(extent, int):
        return extent
    raise UnsupportedError(
        f"the extent {extent!r} is known only to a call, and must be a number here",
        code="TW-SIZE",
        where=where,
        hint="give its sizes values when you build it, as in sizes={n: 64}",
    )


class Buffer:
    """A named row-major array in a memory scope: a symbol, compared by identity.

    extents: in elements; an expression of sizes if it is known only at run time. scope: "global"
    (caller's memory or the arena), "stack" (per call), "register" (small, constant indices after
    unrolling), or a scope that a target declares. swizzle: bytes of a row if each row
    has its chunks in another order (`expr/swizzle.py`), else 0.
    """

    __slots__ = ("_shape", "_strides", "dtype", "extents", "name", "scope", "swizzle")

    def __init__(
        self,
        name: str,
        shape: tuple[Extent, ...],
        dtype: DType,
        scope: str = "global",
        swizzle: int = 0,
    ) -> None:
        self.name = name
        self.swizzle = swizzle
        self.extents: tuple[Extent, ...] = tuple(shape)
        self.dtype = dtype
        self.scope = scope
        numbers = tuple(n for n in self.extents if isinstance(n, int))
        self._shape = numbers if len(numbers) == len(self.extents) else None
        self._strides: tuple[int, ...] | None = None

    @property
    def static(self) -> bool:
        """Whether every extent is a number."""
        return self._shape is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents as numbers. Raises UnsupportedError where a call decides one."""
        if self._shape is not None:
            return self._shape
        return tuple(fixed(n, f"buffer {self.name}") for n in self.extents)

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides in elements.

        Raises UnsupportedError for an axis of several elements in front of one whose extent only a
        call knows; one of a single element there has stride 0.
        """
        if self._strides is None:  # every address asks
            self._strides = self._row_major()
        return self._strides

    def _row_major(self) -> tuple[int, ...]:
        out: list[int] = []
        step: Extent = 1
        for extent in reversed(self.extents):
            if extent == 1 and not isinstance(step, int):
                out.append(0)
                continue
            out.append(fixed(step, f"buffer {self.name}"))
            step = out[-1] * extent if isinstance(extent, int) else extent
        return tuple(reversed(out))

    def __getitem__(self, index: Any) -> Load:
        parts = index if isinstance(index, tuple) else (index,)
        return Load(self, tuple(as_expr(i, INDEX) for i in parts))

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.extents))}]"


def as_expr(value: Any, dtype: DType) -> Expr:
    """`value` itself if it is an expression, else the constant of that dtype."""
    if isinstance(value, Expr):
        return value
    return const(value, dtype)


Match = Callable[[Expr, Any], tuple[Expr, Expr]]
_match: ContextVar[Match | None] = ContextVar("match", default=None)


def pair(value: Expr, other: Any) -> tuple[Expr, Expr]:
    """The operands of an operator: a number takes the expression's dtype, unless `matching`."""
    match = _match.get()
    if match is None:
        return value, as_expr(other, value.dtype)
    return match(value, other)


@contextmanager
def matching(match: Match) -> Iterator[None]:
    """What Python's operators on expressions do with their operands inside, as one of dtype."""
    before = _match.set(match)
    try:
        yield
    finally:
        _match.reset(before)


def const(value: Any, dtype: DType = INDEX) -> Const:
    """A constant, converted to the Python type that belongs to `dtype`.

    Raises InputError for anything but a number, for a fraction if `dtype` is an integer type, and
    for a number out of range of an integer or bool `dtype`: nothing wraps around silently.
    """
    if dtype is INDEX and type(value) is int and _LEAST <= value <= _MOST:
        return Const(value, dtype)  # nearly all constants
    try:
        if not (dtype.is_int or dtype.is_bool):
            return Const(complex(value) if dtype.is_complex else float(value), dtype)
        whole = int(value)
        if whole != value:
            raise ValueError(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{value!r} is not a valid {dtype}",
            hint="cast the other operand, or write another constant",
        ) from None
    if not dtype.min <= whole <= dtype.max:
        raise InputError(
            f"{value!r} is out of the range of {dtype}, {dtype.min} to {dtype.max}",
            hint="cast the other operand to a wider dtype first, as in x.astype('int32')",
        )
    return Const(bool(whole) if dtype.is_bool else whole, dtype)


def var(name: str, dtype: DType = INDEX) -> Var:
    """A fresh variable."""
    return Var(name, dtype)


def call(function: str, *args: Expr) -> Call:
    """`function(args)`, a name of `expr.functions.FUNCTIONS`."""
    return Call(function, args)
