"""The scalar functions of expressions in OpenCL C: one row per function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tilewright.base.dtypes import DType
from tilewright.base.errors import CompileError
from tilewright.expr.nodes import Call
from tilewright.targets.opencl.helpers import HelperFunctions
from tilewright.targets.opencl.types import held

# Functions of floats that OpenCL C has, by its names.
_BUILT_IN: Final[Mapping[str, str]] = {
    **{
        name: name
        for name in (
            "exp expm1 log log1p log2 exp2 sqrt sin cos tan sinh cosh tanh floor ceil trunc erf "
            "lgamma pow copysign fma"
        ).split()
    },
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "arctan2": "atan2",
    "abs": "fabs",
    "round_even": "rint",
    "gamma": "tgamma",
}
_TESTS: Final[Mapping[str, str]] = {"isnan": "isnan", "isinf": "isinf"}

Operands = Sequence[str]
Write = Callable[[HelperFunctions, str, Operands], str]

# Functions that depend on the type of their operands, as the text of a call.
_OF_REALS: Final[Mapping[str, Write]] = {
    "sigmoid": lambda helpers, type, a: f"{helpers.sigmoid(type)}({a[0]})",
    "ldexp": lambda helpers, type, a: (
        f"{helpers.binary('ldexp', type)}({a[0]}, {a[1]})"
    ),
}
_OF_INTEGERS: Final[Mapping[str, Write]] = {
    "abs": lambda helpers, type, a: f"({type})abs({a[0]})",
    "popcount": lambda helpers, type, a: f"popcount({a[0]})",
}


def function(helpers: HelperFunctions, e: Call, operands: Operands) -> str:
    """The text of a call, not yet rounded to a narrow dtype.

    Raises CompileError (TW-FUNCTION) for a function that has no code for the dtype.
    """
    dtype = e.args[0].dtype
    type = held(dtype)
    if e.function == "entry":
        *table, n = operands
        return f"(const {type}[]){{{', '.join(table)}}}[{n} & {len(table) - 1}]"
    if dtype.is_float:
        if e.function in _BUILT_IN:
            return f"{_BUILT_IN[e.function]}({', '.join(operands)})"
        if e.function in _TESTS:
            return f"({_TESTS[e.function]}({operands[0]}) != 0)"
    rows = _OF_REALS if dtype.is_float else _OF_INTEGERS
    if dtype.is_bool or e.function not in rows:
        raise _missing(e.function, dtype)
    return rows[e.function](helpers, type, operands)


def _missing(name: str, dtype: DType) -> CompileError:
    return CompileError(
        f"the function {name} has no OpenCL code for dtype {dtype}", code="TW-FUNCTION"
    )
