"""How each dtype is held in registers and memory, and the roundings between.

Floats narrower than float32 are held as float32 values that are representable in the narrow type;
every operation rounds back. bool is i1 in registers and a byte in memory; integers narrower than
a byte are sign- or zero-extended bytes in both.
"""

from __future__ import annotations

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import UnsupportedError
from tilewright.targets.llvm.emit_text import LlvmValue, LlvmWriter, integer, real
from tilewright.targets.llvm.processor import Processor, does


@dataclass(frozen=True, slots=True)
class MiniFloat:
    """A float format narrower than float32: widths, bias and the meaning of its top codes.

    largest: code of the largest finite magnitude; over: code on overflow; nan: code for NaN;
    infinity, nans: magnitude code of infinity, and the least one that is NaN (None: absent).
    unsigned_zero: there is one zero, and the code of -0 is the NaN.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: int
    over: int
    nan: int
    infinity: int | None = None
    nans: int | None = None
    unsigned_zero: bool = False

    @property
    def sign(self) -> int:
        """Position of the sign bit."""
        return self.exponent + self.mantissa


MINIS: dict[str, MiniFloat] = {
    "float16": MiniFloat(5, 10, 15, 0x7BFF, 0x7C00, 0x7E00, 0x7C00, 0x7C01),
    "float8_e4m3fn": MiniFloat(4, 3, 7, 0x7E, 0x7F, 0x7F, None, 0x7F),
    "float8_e4m3fnuz": MiniFloat(4, 3, 8, 0x7F, 0x80, 0x80, None, None, True),
    "float8_e5m2": MiniFloat(5, 2, 15, 0x7B, 0x7C, 0x7E, 0x7C, 0x7D),
    "float8_e5m2fnuz": MiniFloat(5, 2, 16, 0x7F, 0x80, 0x80, None, None, True),
    "float6_e2m3fn": MiniFloat(2, 3, 1, 0x1F, 0x1F, 0x20),
    "float6_e3m2fn": MiniFloat(3, 2, 3, 0x1F, 0x1F, 0x20),
    "float4_e2m1fn": MiniFloat(2, 1, 1, 0x07, 0x07, 0x08),
}

_REGISTER = {"float64": "double", "bool": "i1"}
_MEMORY = {"float64": "double", "float32": "float"}


def register_type(dtype: DType) -> str:
    """The LLVM element type of a value. Raises UnsupportedError for complex and string."""
    if dtype.is_complex or dtype.is_string:
        raise UnsupportedError(
            f"native code cannot hold values of dtype {dtype}",
            code="TW-DTYPE",
            hint="it must run as a host fallback",
            items=(str(dtype),),
        )
    if dtype.is_float:
        return _REGISTER.get(dtype.name, "float")
    return _REGISTER.get(dtype.name, f"i{max(8, dtype.bits)}")


def memory_type(dtype: DType) -> str:
    """The LLVM element type of an element in memory."""
    register_type(dtype)
    return _MEMORY.get(dtype.name, f"i{8 * dtype.itemsize}")


def constant(value: int | float | bool | complex, dtype: DType) -> LlvmValue:
    """A constant of `dtype` as held in a register."""
    type = register_type(dtype)
    if isinstance(value, complex):
        value = value.real
    if not dtype.is_float:
        return integer(int(value), type)
    if dtype.bits < 32:
        import numpy as np

        value = float(np.float32(value).astype(dtype.numpy))
    return real(float(value), type)


class Formats:
    """Conversions between held values and their bits in memory, on one writer."""

    def __init__(self, writer: LlvmWriter, machine: Processor) -> None:
        self.w = writer
        self.native_half = does(machine, "half")

    def unpack(self, raw: LlvmValue, dtype: DType) -> LlvmValue:
        """Bits of memory -> held value."""
        if dtype.is_bool:
            return self.w.compare("icmp ne", raw, integer(0, raw.type))
        if not dtype.is_float:
            # Only the low bits of a byte that holds a narrower integer count.
            return self.settle(raw, dtype)
        if dtype.bits >= 32:
            return raw
        if dtype.name == "bfloat16":
            wide = self.w.convert("zext", raw, "i32")
            return self._as_float(self.w.binary("shl", wide, integer(16, "i32")))
        if dtype.name == "float16" and self.native_half:
            return self.w.convert(
                "fpext", self.w.convert("bitcast", raw, "half"), "float"
            )
        if dtype.name == "float8_e8m0fnu":
            return self._unpack_exponent(raw)
        return self._decode(self.w.convert("zext", raw, "i32"), MINIS[dtype.name])

    def pack(self, v: LlvmValue, dtype: DType) -> LlvmValue:
        """Held value -> bits of memory."""
        if dtype.is_bool:
            return self.w.convert("zext", v, "i8")
        if not dtype.is_float or dtype.bits >= 32:
            return v
        if dtype.name == "bfloat16":
            top = self.w.binary("lshr", self._as_bits(v), integer(16, "i32"))
            return self.w.convert("trunc", top, "i16")
        if dtype.name == "float16" and self.native_half:
            return self.w.convert(
                "bitcast", self.w.convert("fptrunc", v, "half"), "i16"
            )
        if dtype.name == "float8_e8m0fnu":  # the held value is a power of two already
            exponent = self.w.binary("lshr", self._as_bits(v), integer(23, "i32"))
            return self.w.convert("trunc", exponent, "i8")
        code = self._encode(v, self._mini(dtype))
        return self.w.convert("trunc", code, memory_type(dtype))

    def settle(self, v: LlvmValue, dtype: DType) -> LlvmValue:
        """The result of an operation done in the register type, rounded or wrapped to `dtype`."""
        if dtype.is_float:
            if dtype.bits >= 32:
                return v
            if dtype.name == "bfloat16":
                return self._round_bfloat(v)
            if dtype.name == "float16" and self.native_half:
                return self.w.convert(
                    "fpext", self.w.convert("fptrunc", v, "half"), "float"
                )
            mini = self._mini(dtype)
            return self._decode(self._encode(v, mini), mini)
        if dtype.is_int and dtype.is_sub_byte:
            if dtype.kind == "uint":
                return self.w.binary("and", v, integer((1 << dtype.bits) - 1, "i8"))
            by = integer(8 - dtype.bits, "i8")
            return self.w.binary("ashr", self.w.binary("shl", v, by), by)
        return v

    def narrow_double(self, v: LlvmValue) -> LlvmValue:
        """float64 -> float32 rounded to odd, so that a second rounding is correct."""
        w = self.w
        near = w.convert("fptrunc", v, "float")
        back = w.convert("fpext", near, "double")
        inexact = w.compare("fcmp one", back, v)
        beyond = w.compare("fcmp ogt", w.unary("fabs", back), w.unary("fabs", v))
        bits = self._as_bits(near)
        toward_zero = w.select(beyond, w.binary("sub", bits, integer(1, "i32")), bits)
        odd = w.binary("or", toward_zero, integer(1, "i32"))
        return self._as_float(w.select(inexact, odd, bits))

    # -- the formats

    def _mini(self, dtype: DType) -> MiniFloat:
        if dtype.name not in MINIS:
            raise UnsupportedError(
                f"native code cannot produce values of dtype {dtype}",
                code="TW-DTYPE",
                items=(str(dtype),),
            )
        return MINIS[dtype.name]

    def _as_bits(self, v: LlvmValue) -> LlvmValue:
        return self.w.convert("bitcast", v, "i32")

    def _as_float(self, v: LlvmValue) -> LlvmValue:
        return self.w.convert("bitcast", v, "float")

    def _round_bfloat(self, v: LlvmValue) -> LlvmValue:
        w = self.w
        bits = self._as_bits(v)
        even = w.binary(
            "and", w.binary("lshr", bits, integer(16, "i32")), integer(1, "i32")
        )
        up = w.binary("add", w.binary("add", bits, even), integer(0x7FFF, "i32"))
        quiet = w.binary("or", bits, integer(0x400000, "i32"))
        kept = w.select(w.compare("fcmp uno", v, v), quiet, up)
        return self._as_float(w.binary("and", kept, integer(0xFFFF0000, "i32")))

    def _unpack_exponent(self, raw: LlvmValue) -> LlvmValue:
        """float8_e8m0fnu: 2 ** (code - 127); code 255 is NaN, code 0 a subnormal float32."""
        w = self.w
        wide = w.convert("zext", raw, "i32")
        bits = w.binary("shl", wide, integer(23, "i32"))
        least = w.compare("icmp eq", raw, integer(0, "i8"))
        bits = w.select(least, integer(0x400000, "i32"), bits)
        nan = w.compare("icmp eq", raw, integer(0xFF, "i8"))
        return self._as_float(w.select(nan, integer(0x7FC00000, "i32"), bits))

    def _encode(self, v: LlvmValue, f: MiniFloat) -> LlvmValue:
        """float32 -> code (i32), to nearest, ties to even.

        Normal results: add half of the last place to the bits. Subnormal ones: let a float
        addition round at the place of the least code.
        """
        w = self.w

        def i32(n: int) -> LlvmValue:
            return integer(n, "i32")

        bits = self._as_bits(v)
        magnitude = w.binary("and", bits, i32(0x7FFFFFFF))
        shift = 23 - f.mantissa
        odd = w.binary("and", w.binary("lshr", magnitude, i32(shift)), i32(1))
        up = w.binary(
            "add", w.binary("add", magnitude, odd), i32((1 << (shift - 1)) - 1)
        )
        rebias = (127 - f.bias) << f.mantissa
        normal = w.binary("sub", w.binary("lshr", up, i32(shift)), i32(rebias))
        magic_exponent = (1 - f.bias) - f.mantissa + 23
        magic = (magic_exponent + 127) << 23
        sum_ = w.binary("fadd", self._as_float(magnitude), self._as_float_const(magic))
        small = w.binary("sub", self._as_bits(sum_), i32(magic))
        least_normal = (127 + 1 - f.bias) << 23
        is_small = w.compare("icmp ult", magnitude, i32(least_normal))
        code = w.select(is_small, small, normal)
        code = w.select(w.compare("icmp ugt", code, i32(f.largest)), i32(f.over), code)
        nan = w.compare("icmp ugt", magnitude, i32(0x7F800000))
        sign = w.binary("lshr", bits, i32(31))
        sign = w.binary("shl", sign, i32(f.sign))
        if f.unsigned_zero:
            plain = w.compare("icmp eq", code, i32(0))
            sign = w.select(plain, i32(0), sign)
        signed = w.binary("or", code, sign)
        if f.nans is not None and not f.unsigned_zero:
            return w.binary("or", w.select(nan, i32(f.nan), code), sign)
        return w.select(nan, i32(f.nan), signed)

    def _as_float_const(self, bits: int) -> LlvmValue:
        import struct

        return real(struct.unpack("<f", struct.pack("<I", bits))[0])

    def _decode(self, code: LlvmValue, f: MiniFloat) -> LlvmValue:
        """Code (i32) -> float32, exactly: move the fields, then scale by a power of two."""
        w = self.w

        def i32(n: int) -> LlvmValue:
            return integer(n, "i32")

        magnitude = w.binary("and", code, i32((1 << f.sign) - 1))
        moved = self._as_float(w.binary("shl", magnitude, i32(23 - f.mantissa)))
        scaled = w.binary("fmul", moved, real(2.0 ** (127 - f.bias)))
        bits = self._as_bits(scaled)
        if f.infinity is not None:
            infinite = w.compare("icmp eq", magnitude, i32(f.infinity))
            bits = w.select(infinite, i32(0x7F800000), bits)
        if f.nans is not None:
            nan = w.compare("icmp uge", magnitude, i32(f.nans))
            bits = w.select(nan, i32(0x7FC00000), bits)
        sign = w.binary(
            "shl", w.binary("and", code, i32(1 << f.sign)), i32(31 - f.sign)
        )
        bits = w.binary("or", bits, sign)
        if f.unsigned_zero:
            nan = w.compare("icmp eq", code, i32(f.nan))
            bits = w.select(nan, i32(0x7FC00000), bits)
        return self._as_float(bits)
