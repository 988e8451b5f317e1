"""The numbers by which attributes denote element types."""

from __future__ import annotations

# TensorProto.DataType, as in the attribute `to`; the file format fixes the numbers.
ONNX_DTYPES = dict(
    enumerate(
        "float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64 "
        "complex64 complex128 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
        "uint4 int4 float4_e2m1fn float8_e8m0fnu uint2 int2 float6_e2m3fn float6_e3m2fn".split(),
        start=1,
    )
)


def number_of(dtype: str) -> int:
    """The number by which attributes denote a dtype."""
    return next(number for number, name in ONNX_DTYPES.items() if name == dtype)
