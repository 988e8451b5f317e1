"""Functions that emitted code calls: those that OpenCL C lacks, or defines differently.

A row is a template: T is replaced by a C type, U by the unsigned type of its width (64 or 32 bits),
N by its number of bits. A program contains only the functions that it uses.
"""

from __future__ import annotations

import re
from typing import Final

_SIGNED: Final = {
    "div": """
        if (b == 0) return 0;
        return b == -1 ? (T)(0 - (U)a) : (T)(a / b);""",
    "rem": """
        return b == 0 || b == -1 ? 0 : (T)(a % b);""",
    "floordiv": """
        if (b == 0) return 0;
        if (b == -1) return (T)(0 - (U)a);
        T q = a / b;
        return (T)(q - ((a % b != 0) & ((a < 0) != (b < 0))));""",
    "mod": """
        if (b == 0 || b == -1) return 0;
        T r = a % b;
        return (T)((r != 0) & ((r < 0) != (b < 0)) ? r + b : r);""",
    "shl": """
        return b < 0 || b >= N ? 0 : (T)((U)a << b);""",
    "shr": """
        return b < 0 || b >= N ? (T)(a < 0 ? -1 : 0) : (T)(a >> b);""",
}
_UNSIGNED: Final = {
    **dict.fromkeys(("div", "floordiv"), "\n return b == 0 ? 0 : (T)(a / b);"),
    **dict.fromkeys(("rem", "mod"), "\n return b == 0 ? 0 : (T)(a % b);"),
    "shl": "\n return b >= N ? 0 : (T)((U)a << b);",
    "shr": "\n return b >= N ? 0 : (T)(a >> b);",
}
# As NumPy: the result of a division rounded down, and what is left with the divisor's sign.
_REAL: Final = {
    "floordiv": """
        if (b == 0) return a / b;
        T r = fmod(a, b), q = (a - r) / b;
        if (r != 0 && (b < 0) != (r < 0)) q -= 1;
        if (q == 0) return copysign((T)0, a / b);
        T down = floor(q);
        return q - down > (T)0.5 ? down + 1 : down;""",
    "mod": """
        T r = fmod(a, b);
        if (b == 0) return r;
        if (r == 0) return copysign((T)0, b);
        return (b < 0) != (r < 0) ? r + b : r;""",
    "min": "\n return a < b || isnan(a) ? a : b;",
    "max": "\n return a > b || isnan(a) ? a : b;",
    "ldexp": "\n return ldexp(a, isnan(b) ? 0 : convert_int_sat_rtn(b));",
}
_WHOLE_FUNCTIONS: Final = {
    # After F. Giesen's float->half of 2016: what is below the least normal number is rounded by
    # adding a half, whose last bit is the last bit of these.
    "tw_from_half": """
static float tw_from_half(ushort bits)
{
    uint sign = (uint)(bits & 0x8000) << 16, rest = (uint)(bits & 0x7fff) << 13;
    if (rest >= 0x0f800000) rest += 0x70000000;
    else if (rest >= 0x00800000) rest += 0x38000000;
    else rest = as_uint(as_float(rest + 0x38800000) - 0x1.0p-14f);
    return as_float(sign | rest);
}""",
    "tw_to_half": """
static ushort tw_to_half(float x)
{
    uint bits = as_uint(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (ushort)(sign | 0x7e00);
    if (rest >= 0x477ff000) return (ushort)(sign | 0x7c00);
    if (rest < 0x38800000)
        return (ushort)(sign | (as_uint(as_float(rest) + 0.5f) - 0x3f000000));
    return (ushort)(sign | ((rest + 0xc8000fff + (rest >> 13 & 1)) >> 13));
}""",
    # OpenCL C 1.2 has no sum of floats as one step: it is tried again until no other thread has
    # written since.
    "tw_atomic_add_float": """
static void tw_atomic_add_float(volatile __global float *place, float x)
{
    volatile __global uint *word = (volatile __global uint *)place;
    uint old = *word, seen;
    do {
        seen = old;
        old = atomic_cmpxchg(word, seen, as_uint(as_float(seen) + x));
    } while (old != seen);
}""",
    # Rounded towards 0 with a sticky last bit, so that the final rounding is correct.
    "tw_half_of_double": """
static float tw_half_of_double(double x)
{
    float near = convert_float_rtz(x);
    if ((double)near != x && !isnan(x)) near = as_float(as_uint(near) | 1);
    return tw_half(near);
}""",
    "tw_half": """
static float tw_half(float x)
{
    return tw_from_half(tw_to_half(x));
}""",
    "tw_from_bfloat": """
static float tw_from_bfloat(ushort bits)
{
    return as_float((uint)bits << 16);
}""",
    "tw_to_bfloat": """
static ushort tw_to_bfloat(float x)
{
    uint bits = as_uint(x);
    if (isnan(x)) return (ushort)(bits >> 16 | 0x40);
    return (ushort)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}""",
    "tw_bfloat": """
static float tw_bfloat(float x)
{
    return tw_from_bfloat(tw_to_bfloat(x));
}""",
}
_NEEDS: Final = {
    "tw_half": ("tw_from_half", "tw_to_half"),
    "tw_half_of_double": ("tw_half",),
    "tw_bfloat": ("tw_from_bfloat", "tw_to_bfloat"),
}
_BITS: Final = {"char": 8, "uchar": 8, "short": 16, "ushort": 16, "int": 32, "uint": 32}


class HelperFunctions:
    """The functions that a program uses, each written once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def whole(self, name: str) -> str:
        """The name of a function without a type."""
        for needed in _NEEDS.get(name, ()):
            self.whole(needed)
        self._texts.setdefault(name, _WHOLE_FUNCTIONS[name])
        return name

    def binary(self, name: str, type: str) -> str:
        """The name of a function of two values of a type."""
        if type in ("float", "double"):
            body = _REAL[name]
        else:
            body = (_UNSIGNED if type.startswith("u") else _SIGNED)[name]
        return self._add(f"tw_{name}_{type}", type, "T a, T b", body)

    def to_integer(self, type: str, real: str) -> str:
        """The name of the conversion of a float to an integer type, which saturates."""
        body = f"\n return isnan(x) ? 0 : convert_{type}_sat_rtz(x);"
        return self._add(f"tw_{type}_of_{real}", type, f"{real} x", body)

    def sigmoid(self, type: str) -> str:
        """The name of the logistic function."""
        body = "\n T e = exp(-fabs(x));\n return (x >= 0 ? 1 : e) / (1 + e);"
        return self._add(f"tw_sigmoid_{type}", type, "T x", body)

    def _add(self, name: str, type: str, parameters: str, body: str) -> str:
        if name not in self._texts:
            lines = "\n".join("    " + line.strip() for line in body.split("\n")[1:])
            template = f"\nstatic T {name}({parameters})\n{{\n{lines}\n}}"
            values = {"T": type, "U": _unsigned(type), "N": str(_BITS.get(type, 64))}
            self._texts[name] = re.sub(
                r"\b[TUN]\b", lambda found: values[found[0]], template
            )
        return name

    @property
    def text(self) -> str:
        """All of them, each after its callees."""
        return "\n".join(self._texts.values())


def _unsigned(type: str) -> str:
    return "ulong" if type in ("long", "ulong") else "uint"
