"""Functions that are one instruction or a few: `floor`, `fma`, `isnan` and their like."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.base.dtypes import DType
from tilewright.base.errors import UnsupportedError
from tilewright.targets.llvm.emit_ops import Operations
from tilewright.targets.llvm.emit_text import (
    LlvmValue,
    LlvmWriter,
    integer,
    mangle,
    real,
)
from tilewright.targets.llvm.processor import AVX512, does

Native = Callable[[Operations, list[LlvmValue], DType], LlvmValue]


def _intrinsic(name: str) -> Native:
    def lower(ops: Operations, args: list[LlvmValue], dtype: DType) -> LlvmValue:
        if not dtype.is_float:
            return args[0]
        return ops.formats.settle(ops.w.unary(name, args[0]), dtype)

    return lower


def _abs(ops: Operations, args: list[LlvmValue], dtype: DType) -> LlvmValue:
    (v,) = args
    if dtype.is_float:
        return ops.w.unary("fabs", v)
    if not dtype.is_signed or dtype.is_bool:
        return v
    name = f"abs.{mangle(v.type, v.lanes)}"
    result = ops.w.call(name, v.type, v.lanes, v, integer(0, "i1"))
    return ops.formats.settle(result, dtype)


def _popcount(ops: Operations, args: list[LlvmValue], dtype: DType) -> LlvmValue:
    (v,) = args
    if dtype.is_sub_byte:
        v = ops.w.binary("and", v, integer((1 << dtype.bits) - 1, v.type))
    return ops.formats.settle(ops.w.unary("ctpop", v), dtype)


def _copysign(ops: Operations, args: list[LlvmValue], dtype: DType) -> LlvmValue:
    return ops.formats.settle(ops.w.pair("copysign", args[0], args[1]), dtype)


def _isnan(ops: Operations, args: list[LlvmValue], dtype: DType) -> LlvmValue:
    (v,) = args
    if dtype.is_float:
        return ops.w.compare("fcmp uno", v, v)
    return integer(0, "i1")


def _isinf(ops: Operations, args: list[LlvmValue], dtype: DType) -> LlvmValue:
    (v,) = args
    if not dtype.is_float:
        return integer(0, "i1")
    return ops.w.compare("fcmp oeq", ops.w.unary("fabs", v), real(float("inf"), v.type))


def _fma(ops: Operations, args: list[LlvmValue], dtype: DType) -> LlvmValue:
    """A fused multiply-add with one rounding. Without the instruction, a sum is first rounded to
    odd.

    A sum rounded to odd with at least two more bits than the result rounds as the exact sum does
    (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
    """
    w = ops.w
    a, b, c = w.match(*args)
    if dtype.is_float and dtype.bits < 32:
        product = w.binary(
            "fmul", w.convert("fpext", a, "double"), w.convert("fpext", b, "double")
        )
        total = w.binary("fadd", product, w.convert("fpext", c, "double"))
        return ops.formats.settle(ops.formats.narrow_double(total), dtype)
    if does(ops.machine, "fused64" if a.type == "double" else "fused32"):
        return w.call(f"fma.{mangle(a.type, a.lanes)}", a.type, a.lanes, a, b, c)
    if a.type == "double":
        return _fma_double(w, a, b, c)
    x, y, z = (w.convert("fpext", v, "double") for v in (a, b, c))
    return w.convert("fptrunc", _odd_sum(w, w.binary("fmul", x, y), z), "float")


def _fma_double(w: LlvmWriter, a: LlvmValue, b: LlvmValue, c: LlvmValue) -> LlvmValue:
    """A fused multiply-add of float64, from the exact errors of a product and of two sums.

    Exact but for products below 2**-960, whose last bit may be another.
    """
    scaled = [_moderate(w, v) for v in (a, b)]
    high = w.binary("fmul", a, b)
    # A factor that was made smaller lets the other grow: their product stays.
    x = w.binary("fmul", w.binary("fmul", a, scaled[0][0]), scaled[1][1])
    y = w.binary("fmul", w.binary("fmul", b, scaled[1][0]), scaled[0][1])
    low = _product_error(w, x, y, high)
    top, under = _two_sum(w, c, low)
    total, rest = _two_sum(w, high, top)
    exact = w.binary("fadd", total, _odd_sum(w, under, rest))
    plain = w.binary("fadd", high, c)
    # Infinities and NaN have no exact errors, and a zero has its sign from the plain sum.
    finite = w.compare("fcmp olt", w.unary("fabs", plain), real(float("inf"), "double"))
    nonzero = w.compare("fcmp une", exact, real(0.0, "double"))
    return w.select(w.binary("and", finite, nonzero), exact, plain)


def _moderate(w: LlvmWriter, v: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """A power of two that keeps `v` from overflowing when it is split, and one over it."""
    large = w.compare("fcmp ogt", w.unary("fabs", v), real(2.0**900, "double"))
    one = real(1.0, "double")
    return w.select(large, real(2.0**-64, "double"), one), w.select(
        large, real(2.0**64, "double"), one
    )


def _product_error(
    w: LlvmWriter, a: LlvmValue, b: LlvmValue, product: LlvmValue
) -> LlvmValue:
    """a * b - product, exactly (Dekker): the factors in halves of 26 bits."""
    halves = []
    for v in (a, b):
        wide = w.binary("fmul", v, real(2.0**27 + 1.0, "double"))
        top = w.binary("fsub", wide, w.binary("fsub", wide, v))
        halves.append((top, w.binary("fsub", v, top)))
    (a1, a0), (b1, b0) = halves
    rest = w.binary("fsub", w.binary("fmul", a1, b1), product)
    for x, y in ((a1, b0), (a0, b1), (a0, b0)):
        rest = w.binary("fadd", rest, w.binary("fmul", x, y))
    return rest


def _two_sum(w: LlvmWriter, a: LlvmValue, b: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """a + b rounded, and the exact error of that (Knuth)."""
    total = w.binary("fadd", a, b)
    part = w.binary("fsub", total, a)
    error = w.binary(
        "fadd",
        w.binary("fsub", a, w.binary("fsub", total, part)),
        w.binary("fsub", b, part),
    )
    return total, error


def _odd_sum(w: LlvmWriter, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """a + b in float64, rounded to odd: to the neighbor with an odd last bit where inexact."""
    total, error = _two_sum(w, a, b)
    bits = w.convert("bitcast", total, "i64")
    even = w.compare("icmp eq", w.binary("and", bits, integer(1)), integer(0))
    inexact = w.binary("and", w.compare("fcmp one", error, real(0.0, "double")), even)
    outward = w.compare(
        "icmp sge",
        w.binary("xor", bits, w.convert("bitcast", error, "i64")),
        integer(0),
    )
    step = w.select(outward, integer(1), integer(-1))
    odd = w.select(inexact, w.binary("add", bits, step), bits)
    return w.convert("bitcast", odd, "double")


def _ldexp(ops: Operations, args: list[LlvmValue], dtype: DType) -> LlvmValue:
    """One instruction with AVX-512; elsewhere an exact product in float64, rounded."""
    w = ops.w
    x, n = w.match(*args)
    if x.type != "float":
        raise UnsupportedError(
            f"ldexp has no native code for {dtype}",
            code="TW-LDEXP",
            hint="multiply by exp2(n)",
            items=(f"ldexp({dtype})",),
        )
    if ops.machine.has(AVX512):
        return ops.formats.settle(_scaled(w, x, n), dtype)
    # Beyond these powers every float32 is 0 or infinite.
    power = w.pair(
        "smin", w.convert("fptosi", w.unary("floor", n), "i64"), integer(300)
    )
    power = w.binary("add", w.pair("smax", power, integer(-300)), integer(1023))
    factor = w.convert("bitcast", w.binary("shl", power, integer(52)), "double")
    exact = w.binary("fmul", w.convert("fpext", x, "double"), factor)
    return ops.formats.settle(w.convert("fptrunc", exact, "float"), dtype)


def _scaled(w: LlvmWriter, x: LlvmValue, n: LlvmValue) -> LlvmValue:
    """x * 2**floor(n) by `vscalefps`, in registers of 4, 8 or 16 lanes."""
    if x.lanes > 16:
        half = (x.lanes + 1) // 2
        low = list(range(half))
        high = [lane if lane < x.lanes else -1 for lane in range(half, 2 * half)]
        parts = [
            _scaled(w, w.shuffle(x, lanes), w.shuffle(n, lanes))
            for lanes in (low, high)
        ]
        return w.shuffle(parts[0], list(range(x.lanes)), parts[1])
    lanes = max(4, 1 << (x.lanes - 1).bit_length())
    a, b = (_padded(w, v, lanes) for v in (x, n))
    rest = f"{a.full} zeroinitializer, i{max(8, lanes)} -1" + (
        ", i32 4" if lanes == 16 else ""
    )
    name = f"llvm.x86.avx512.mask.scalef.ps.{32 * lanes}"
    y = w.ins(f"call {a.full} @{name}({a.typed}, {b.typed}, {rest})", "float", lanes)
    if lanes == x.lanes:
        return y
    return w.shuffle(y, list(range(x.lanes)))


def _entry(ops: Operations, args: list[LlvmValue], dtype: DType) -> LlvmValue:
    """One permutation of a register with AVX-512."""
    *table, n = args
    constant = all(v.const is not None for v in table)
    if (
        not constant
        or table[0].type != "float"
        or n.type != "i32"
        or not ops.machine.has(AVX512)
    ):
        raise UnsupportedError(
            f"entry has no native code for {dtype} on this processor",
            code="TW-ENTRY",
            hint="select one of the values by comparisons",
            items=(f"entry({dtype})",),
        )
    inner = ", ".join(f"float {v.text}" for v in table)
    return _permuted(ops.w, LlvmValue(f"<{inner}>", "float", len(table)), n)


def _permuted(w: LlvmWriter, table: LlvmValue, n: LlvmValue) -> LlvmValue:
    """The lanes of a table of 16 by `vpermps`."""
    if n.lanes > 16:
        half = (n.lanes + 1) // 2
        ends = (range(half), range(half, n.lanes))
        parts = [
            _padded(w, _permuted(w, table, w.shuffle(n, list(e))), half) for e in ends
        ]
        return w.shuffle(parts[0], list(range(n.lanes)), parts[1])
    places = _padded(w, n, 16)
    name = "llvm.x86.avx512.permvar.sf.512"
    y = w.ins(f"call {table.full} @{name}({table.typed}, {places.typed})", "float", 16)
    if n.lanes == 16:
        return y
    return w.shuffle(y, list(range(n.lanes)))


def _padded(w: LlvmWriter, v: LlvmValue, lanes: int) -> LlvmValue:
    if v.lanes in (1, lanes):
        return w.splat(v, lanes)
    return w.shuffle(v, [lane if lane < v.lanes else -1 for lane in range(lanes)])


NATIVE: Mapping[str, Native] = {
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"),
    "round_even": _intrinsic("roundeven"),
    "sqrt": _intrinsic("sqrt"),
    "abs": _abs,
    "popcount": _popcount,
    "copysign": _copysign,
    "isnan": _isnan,
    "isinf": _isinf,
    "fma": _fma,
    "ldexp": _ldexp,
    "entry": _entry,
}
