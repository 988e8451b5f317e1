"""Element types: one interned object per dtype, covering all of ONNX and NumPy."""

from __future__ import annotations

from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

Kind = Literal["float", "int", "uint", "bool", "complex", "string"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DType:
    """An element type. There is exactly one object per name, so ``is`` and ``==`` agree.

    ``bits`` is the width of one value (0 for strings). The types narrower than a byte are storage
    types: NumPy holds one value per byte. The constructor is private to this module; use the
    module's constants or ``dtype_of``.
    """

    name: str
    kind: Kind
    bits: int
    # Bytes per element in a NumPy array (1 for types narrower than a byte).
    itemsize: int = field(init=False)
    # A real floating-point type, of any width.
    is_float: bool = field(init=False)
    # A signed or unsigned integer; bool is none.
    is_int: bool = field(init=False)
    # Has negative values.
    is_signed: bool = field(init=False)
    is_bool: bool = field(init=False)
    is_complex: bool = field(init=False)
    # Text: for host fallbacks only.
    is_string: bool = field(init=False)
    # Narrower than a byte: a storage type.
    is_sub_byte: bool = field(init=False)

    def __post_init__(self) -> None:
        # Attributes, not properties: a compilation reads them hundreds of thousands of times.
        kind, bits = self.kind, self.bits
        facts = {
            "itemsize": np.dtype(object).itemsize
            if kind == "string"
            else max(1, bits // 8),
            "is_float": kind == "float",
            "is_int": kind in ("int", "uint"),
            "is_signed": kind in ("int", "float", "complex")
            and self.name != "float8_e8m0fnu",
            "is_bool": kind == "bool",
            "is_complex": kind == "complex",
            "is_string": kind == "string",
            "is_sub_byte": 0 < bits < 8 and kind != "bool",
        }
        for fact, value in facts.items():
            object.__setattr__(self, fact, value)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; for types NumPy lacks, that of ml_dtypes (imported on first use)."""
        return _numpy_of(self)

    @property
    def min(self) -> int | float:
        """The least finite value. Raises InputError for complex and string."""
        return _limits_of(self)[0]

    @property
    def max(self) -> int | float:
        """The greatest finite value. Raises InputError for complex and string."""
        return _limits_of(self)[1]

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return (_by_name, (self.name,))

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: object) -> DType:
        return self


@cache
def _numpy_of(dtype: DType) -> np.dtype[Any]:
    if dtype.is_string:
        return np.dtype(object)
    if dtype.name in _ML_DTYPES:
        import ml_dtypes

        scalar: type[Any] = getattr(ml_dtypes, dtype.name)
        return np.dtype(scalar)
    return np.dtype(dtype.name)


@cache
def _limits_of(dtype: DType) -> tuple[int | float, int | float]:
    match dtype.kind:
        case "bool":
            return 0, 1
        case "int":
            return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
        case "uint":
            return 0, (1 << dtype.bits) - 1
        case "float":
            # ml_dtypes.finfo knows NumPy's own types too, but costs its import.
            if dtype.name in _ML_DTYPES:
                from ml_dtypes import finfo
            else:
                from numpy import finfo
            info = finfo(dtype.numpy)
            return float(info.min), float(info.max)
    raise InputError(
        f"dtype {dtype.name} has no least or greatest value", code="TW-DTYPE"
    )


_ML_DTYPES: Final = frozenset(
    {
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float6_e2m3fn",
        "float6_e3m2fn",
        "float4_e2m1fn",
        "int2",
        "int4",
        "uint2",
        "uint4",
    }
)

float64: Final = DType("float64", "float", 64)
float32: Final = DType("float32", "float", 32)
float16: Final = DType("float16", "float", 16)
bfloat16: Final = DType("bfloat16", "float", 16)
float8_e4m3fn: Final = DType("float8_e4m3fn", "float", 8)
float8_e4m3fnuz: Final = DType("float8_e4m3fnuz", "float", 8)
float8_e5m2: Final = DType("float8_e5m2", "float", 8)
float8_e5m2fnuz: Final = DType("float8_e5m2fnuz", "float", 8)
float8_e8m0fnu: Final = DType("float8_e8m0fnu", "float", 8)
float6_e2m3fn: Final = DType("float6_e2m3fn", "float", 6)
float6_e3m2fn: Final = DType("float6_e3m2fn", "float", 6)
float4_e2m1fn: Final = DType("float4_e2m1fn", "float", 4)
int64: Final = DType("int64", "int", 64)
int32: Final = DType("int32", "int", 32)
int16: Final = DType("int16", "int", 16)
int8: Final = DType("int8", "int", 8)
int4: Final = DType("int4", "int", 4)
int2: Final = DType("int2", "int", 2)
uint64: Final = DType("uint64", "uint", 64)
uint32: Final = DType("uint32", "uint", 32)
uint16: Final = DType("uint16", "uint", 16)
uint8: Final = DType("uint8", "uint", 8)
uint4: Final = DType("uint4", "uint", 4)
uint2: Final = DType("uint2", "uint", 2)
bool_: Final = DType("bool", "bool", 8)
complex64: Final = DType("complex64", "complex", 64)
complex128: Final = DType("complex128", "complex", 128)
string: Final = DType("string", "string", 0)

ALL: Final[tuple[DType, ...]] = tuple(
    v for v in list(globals().values()) if isinstance(v, DType)
)
_TABLE: Final[dict[str, DType]] = {d.name: d for d in ALL}


def dtype_of(x: DType | DTypeLike) -> DType:
    """The DType that ``x`` names: a DType, a name, a NumPy or ml_dtypes dtype, or a type.

    Names that are not ours mean what they mean to NumPy: ``float`` and ``"double"`` are float64.
    Raises InputError for anything else, None included.
    """
    if isinstance(x, DType):
        return x
    if isinstance(x, str):
        found = _TABLE.get(x)
        if found is not None:
            return found
    try:
        if x is None:  # NumPy would take it for float64
            raise TypeError
        return _of_numpy(np.dtype(x))
    except (TypeError, ValueError, KeyError):
        raise _unknown(x) from None


@cache
def _of_numpy(dtype: np.dtype[Any]) -> DType:
    # Strings are told by their scalar type: every other property of theirs varies with length.
    if issubclass(
        dtype.type, (np.str_, np.bytes_, np.object_)
    ) or dtype.name.startswith("String"):
        return string
    # ml_dtypes' types all have NumPy kind 'V', so the name decides, never the kind.
    return _TABLE[dtype.name]


def _unknown(x: object) -> InputError:
    names = ", ".join(_TABLE)
    return InputError(
        f"{x!r} is not a known dtype", code="TW-DTYPE", hint=f"Known dtypes: {names}"
    )


def _by_name(name: str) -> DType:
    return _TABLE[name]
