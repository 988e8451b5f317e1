"""call_pure_extern: functions of C's mathematical library by their C names, inside a compute."""

from __future__ import annotations

from typing import Any, Final

from tilewright.base.dtypes import dtype_of, float32, float64
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.nodes import Expr, call, const
from tilewright.lang.te.syntax.functions import ALIASES

# Of <math.h>; those of float end with an f.
_MATH: Final = frozenset(
    "acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf exp exp2 expm1 fabs floor "
    "fma log log1p log2 nearbyint pow rint sin sinh sqrt tan tanh trunc".split()
)


def call_pure_extern(dtype: Any, name: str, *args: Any) -> Expr:
    """A call of a C function without side effects: `call_pure_extern("float32", "expf", x)`.

    It is the function of this package that computes the same. dtype: float32 or float64, which
    says whether the name ends with an f; arguments have that dtype. Raises UnsupportedError for
    other functions, InputError for a wrong number or dtype of arguments.
    """
    kind = dtype_of(dtype)
    suffix = {float64: "", float32: "f"}.get(kind, "?")
    plain = name.removesuffix(suffix)
    if plain not in _MATH or plain + suffix != name:
        raise UnsupportedError(
            f"a call of C's {name} on {kind} inside a compute",
            where="call_pure_extern",
            hint="extern with call_packed calls a C function between kernels; "
            "hardware_intrinsic(..., llvm=text) is custom code inside one",
        )
    function = FUNCTIONS[ALIASES.get(plain, plain)]
    found = [a if isinstance(a, Expr) else const(a, kind) for a in args]
    if len(found) != function.arity or any(a.dtype is not kind for a in found):
        given = ", ".join(str(a.dtype) for a in found)
        raise InputError(
            f"{name}({given})",
            where="call_pure_extern",
            hint=f"it takes {function.arity} of {kind}",
        )
    return call(function.name, *found)
