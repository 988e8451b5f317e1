"""The scalar functions an expression may call: one row per function.

`reference` takes and returns NumPy arrays of one dtype (the interpreter computes float16 and
narrower types in float32, and rounds once).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType


@dataclass(frozen=True, slots=True)
class Function:
    """Name, number of arguments, result dtype (None: that of the first argument), reference.

    llvm: for a user's own function, the text of LLVM's function of this name.
    """

    name: str
    arity: int
    result: DType | None
    reference: Callable[..., Any]
    llvm: str = ""


def _numpy(name: str) -> Callable[..., Any]:
    def reference(*args: Any) -> Any:
        import numpy as np

        return getattr(np, name)(*args)

    return reference


def _elementwise(f: Callable[[float], float]) -> Callable[..., Any]:
    """A function of one Python float, mapped over the elements in float64."""

    def reference(x: Any) -> Any:
        import numpy as np

        elementwise = np.vectorize(f, otypes=[np.float64])
        return elementwise(x).astype(x.dtype)

    return reference


def _gamma(x: float) -> float:
    """C's tgamma: infinite at 0, NaN at the other poles."""
    try:
        return math.gamma(x)
    except ValueError:
        if x == 0:
            return math.copysign(math.inf, x)
        return math.nan
    except OverflowError:
        return math.copysign(math.inf, x)


def _lgamma(x: float) -> float:
    """C's lgamma: infinite at the poles."""
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):
        return math.inf


def _sigmoid(x: Any) -> Any:
    import numpy as np

    e = np.exp(-np.abs(x))
    positive = 1 / (1 + e)
    negative = e / (1 + e)
    return np.where(x >= 0, positive, negative).astype(x.dtype)


def _pow(x: Any, y: Any) -> Any:
    """C's pow. NumPy takes the square root for a repeated 0.5: NaN at -inf, -0 at -0."""
    import numpy as np

    shape = np.broadcast_shapes(np.shape(x), np.shape(y))
    powers = np.array(np.broadcast_to(y, shape), ndmin=1)
    return np.power(x, powers).reshape(shape)


def _fma(a: Any, b: Any, c: Any) -> Any:
    import numpy as np

    is_single = a.dtype == np.float32
    wide = np.float64 if is_single else np.longdouble
    product = a.astype(wide) * b.astype(wide)
    return (product + c.astype(wide)).astype(a.dtype)


def _ldexp(x: Any, n: Any) -> Any:
    import numpy as np

    return np.ldexp(x, np.floor(n).astype(np.int32))


def _entry(*args: Any) -> Any:
    import numpy as np

    *table, n = args
    inside = n & len(table) - 1
    return np.choose(inside, table).astype(table[0].dtype)


def _popcount(x: Any) -> Any:
    import numpy as np

    bits = 8 * x.dtype.itemsize
    unsigned = np.asarray(x).astype(f"uint{bits}")
    t = unsigned.dtype.type
    count = sum((unsigned >> t(n)) & t(1) for n in range(bits))
    return count.astype(x.dtype)


FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        *(
            Function(name, 1, None, _numpy(name))
            for name in (
                "exp expm1 log log1p log2 exp2 sqrt sin cos tan arcsin arccos arctan sinh cosh "
                "tanh arcsinh arccosh arctanh floor ceil trunc abs"
            ).split()
        ),
        Function("round_even", 1, None, _numpy("rint")),
        Function("erf", 1, None, _elementwise(math.erf)),
        Function("gamma", 1, None, _elementwise(_gamma)),
        Function("lgamma", 1, None, _elementwise(_lgamma)),
        Function("sigmoid", 1, None, _sigmoid),
        Function("pow", 2, None, _pow),
        Function("arctan2", 2, None, _numpy("arctan2")),
        Function("copysign", 2, None, _numpy("copysign")),
        Function("fma", 3, None, _fma),
        Function("ldexp", 2, None, _ldexp),  # x * 2**floor(n), rounded once
        Function(
            "entry", 17, None, _entry
        ),  # of 16 values the one that an integer's low bits say
        Function("popcount", 1, None, _popcount),
        Function("isnan", 1, dtypes.bool_, _numpy("isnan")),
        Function("isinf", 1, dtypes.bool_, _numpy("isinf")),
    )
}
