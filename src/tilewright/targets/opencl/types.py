"""Dtypes in OpenCL C: how values are held, how elements are in memory, how constants are written.

Floats of 16 bits are held as `float`, rounded after each operation, and are in memory as `ushort`:
OpenCL C has no arithmetic on them without an extension. A bool is in memory as a byte.
"""

from __future__ import annotations

import math
from typing import Final

from tilewright.base.dtypes import DType
from tilewright.base.errors import CompileError

_HELD: Final = {
    "bool": "bool",
    "int8": "char",
    "int16": "short",
    "int32": "int",
    "int64": "long",
    "uint8": "uchar",
    "uint16": "ushort",
    "uint32": "uint",
    "uint64": "ulong",
    "float16": "float",
    "bfloat16": "float",
    "float32": "float",
    "float64": "double",
}
_IN_MEMORY: Final = {"bool": "uchar", "float16": "ushort", "bfloat16": "ushort"}
# Floats that are held wider than they are: the helpers that round to them are named after these.
NARROW: Final = {"float16": "half", "bfloat16": "bfloat"}
_SUFFIX: Final = {"int": "", "long": "L", "uint": "u", "ulong": "uL"}


def held(dtype: DType) -> str:
    """The type of a value. Raises CompileError (TW-DTYPE) for a dtype that OpenCL C has not."""
    if dtype.name not in _HELD:
        raise CompileError(
            f"OpenCL C has no {dtype}", code="TW-DTYPE", hint="it runs on the host"
        )
    return _HELD[dtype.name]


def in_memory(dtype: DType) -> str:
    """The type of an element of a buffer; raises as `held`."""
    return _IN_MEMORY.get(dtype.name, held(dtype))


def unsigned(type: str) -> str:
    """The type in which integer arithmetic of a type wraps around: at least 32 bits."""
    return "ulong" if type in ("long", "ulong") else "uint"


def literal(value: complex, dtype: DType) -> str:
    """A constant of a dtype, rounded to it; raises as `held`."""
    type = held(dtype)
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_int:
        return whole(int(value.real), type)
    return _real(float(dtype.numpy.type(value.real)), type)


def whole(value: int, type: str) -> str:
    """An integer of a C type."""
    if type not in _SUFFIX:
        return f"({type}){value}" if value >= 0 else f"({type})({value})"
    bits = 63 if type == "long" else 31
    if value == -(1 << bits) and type in ("int", "long"):
        # The number without its sign is too large for the type.
        return f"({value + 1}{_SUFFIX[type]} - 1)"
    text = f"{value}{_SUFFIX[type]}"
    return text if value >= 0 else f"({text})"


def _real(value: float, type: str) -> str:
    if math.isnan(value):
        return f"({type})NAN"
    if math.isinf(value):
        return f"({type})INFINITY" if value > 0 else f"(-({type})INFINITY)"
    text = value.hex() + ("f" if type == "float" else "")
    return text if math.copysign(1.0, value) > 0 else f"({text})"
