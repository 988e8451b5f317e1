"""floor, ceil, trunc and roundeven where the processor has no instruction, in LLVM assembly.

LLVM calls functions of the C library then, which a library without one has to bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_TYPES: Final = {"f": ("float", "i32", 23), "": ("double", "i64", 52)}
_OPERATIONS: Final = ("floor", "ceil", "trunc", "roundeven")
FUNCTIONS: Final = {
    f"{operation}{suffix}": (operation, *row)
    for operation in _OPERATIONS
    for suffix, row in _TYPES.items()
}


def functions_text(names: Sequence[str]) -> str:
    """Definitions of these functions, all of FUNCTIONS.

    A number of at least 2 to the power of its fraction's bits is returned as is, like infinities
    and NaN. Zeros keep their sign: the result has the sign of the operand.
    """
    made = []
    for name in dict.fromkeys(names):
        operation, type, integer, bits = FUNCTIONS[name]
        body = _BODIES[operation].format(type=type, integer=integer, limit=_real(bits))
        made.append(
            _FUNCTION.format(
                name=name, type=type, limit=_real(bits), body=body, suffix=_SUFFIX[type]
            )
        )
    types = {FUNCTIONS[name][1] for name in names}
    made += [_DECLARED.format(type=t, suffix=_SUFFIX[t]) for t in sorted(types)]
    return "\n".join(made)


def _real(bits: int) -> str:
    return f"{2.0**bits:.1f}"


_SUFFIX: Final = {"float": "f32", "double": "f64"}
_DECLARED: Final = """\
declare {type} @llvm.fabs.{suffix}({type})
declare {type} @llvm.copysign.{suffix}({type}, {type})"""
_FUNCTION: Final = """\
define {type} @{name}({type} %x) #0 {{
entry:
  %size = call {type} @llvm.fabs.{suffix}({type} %x)
  %small = fcmp olt {type} %size, {limit}
  br i1 %small, label %round, label %whole
whole:
  ret {type} %x
round:
{body}
  %signed = call {type} @llvm.copysign.{suffix}({type} %result, {type} %x)
  ret {type} %signed
}}"""
_TOWARD_ZERO: Final = """\
  %number = fptosi {type} %x to {integer}
  %cut = sitofp {integer} %number to {type}"""
_BODIES: Final = {
    "trunc": _TOWARD_ZERO + "\n  %result = fadd {type} %cut, 0.0",
    "floor": _TOWARD_ZERO
    + """
  %above = fcmp ogt {type} %cut, %x
  %less = fsub {type} %cut, 1.0
  %result = select i1 %above, {type} %less, {type} %cut""",
    "ceil": _TOWARD_ZERO
    + """
  %below = fcmp olt {type} %cut, %x
  %more = fadd {type} %cut, 1.0
  %result = select i1 %below, {type} %more, {type} %cut""",
    # What is added has no place for a fraction: the sum is rounded to the nearest, ties to even.
    "roundeven": """\
  %high = fadd {type} %size, {limit}
  %result = fsub {type} %high, {limit}""",
}
