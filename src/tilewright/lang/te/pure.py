"""call_pure_extern: C functions inside a compute: those of the mathematical library by their
names, and the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tilewright.base.dtypes import DType, dtype_of, float32, float64
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.nodes import Expr, call, const
from tilewright.lang.te.c_functions import c_function, pure_call
from tilewright.lang.te.extern import is_registered, registered
from tilewright.lang.te.syntax.functions import ALIASES

# Of <math.h>; those of float end with an f.
_MATH: Final = frozenset(
    "acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf exp exp2 expm1 fabs floor "
    "fma log log1p log2 nearbyint pow rint sin sinh sqrt tan tanh trunc".split()
)


def call_pure_extern(
    dtype: Any, function: str | Callable[..., Any], *args: Any
) -> Expr:
    """A call of a C function without side effects: `call_pure_extern("float32", "expf", x)`.

    function: of <math.h>, by its name (that of float ends with an f): it is the function of this
    package that computes the same, and arguments have the dtype. Or a function of ctypes, or the
    name by which `register_func` knows it: it is called at its address, on any thread, as often as
    the schedule says, and also for values that are not used, so it must be defined for all. dtype:
    of the result. Raises UnsupportedError for other names, InputError for a wrong number or dtype
    of arguments.
    """
    kind = dtype_of(dtype)
    if not isinstance(function, str) or is_registered(function):
        found = c_function(registered(function), "call_pure_extern")
        return pure_call(kind, found, args)
    return _of_math(kind, function, args)


def _of_math(kind: DType, name: str, args: Sequence[Any]) -> Expr:
    suffix = {float64: "", float32: "f"}.get(kind, "?")
    plain = name.removesuffix(suffix)
    if plain not in _MATH or plain + suffix != name:
        raise UnsupportedError(
            f"a call of C's {name} on {kind} inside a compute",
            where="call_pure_extern",
            hint="give the function itself: compile_c(text).name or ctypes.CDLL(path).name, or "
            "register it by register_func(name, f)",
        )
    known = FUNCTIONS[ALIASES.get(plain, plain)]
    found = [a if isinstance(a, Expr) else const(a, kind) for a in args]
    if len(found) != known.arity or any(a.dtype is not kind for a in found):
        given = ", ".join(str(a.dtype) for a in found)
        raise InputError(
            f"{name}({given})",
            where="call_pure_extern",
            hint=f"it takes {known.arity} of {kind}",
        )
    return call(known.name, *found)
