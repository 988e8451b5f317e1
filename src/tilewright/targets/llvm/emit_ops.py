"""One lowering per scalar operation, from held values to a held value of one dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.errors import UnsupportedError
from tilewright.expr import nodes
from tilewright.expr.nodes import Expr
from tilewright.expr.real_bounds import ANY, Reals
from tilewright.targets.llvm.emit_fold import fold
from tilewright.targets.llvm.emit_text import (
    LlvmValue,
    LlvmWriter,
    integer,
    mangle,
    real,
)
from tilewright.targets.llvm.emit_types import Formats, register_type
from tilewright.targets.llvm.processor import Processor

_INTEGER_OPS: Mapping[type[Expr], str] = {
    nodes.Add: "add",
    nodes.Sub: "sub",
    nodes.Mul: "mul",
    nodes.And: "and",
    nodes.Or: "or",
    nodes.Xor: "xor",
}
_FLOAT_OPS: Mapping[type[Expr], str] = {
    nodes.Add: "fadd",
    nodes.Sub: "fsub",
    nodes.Mul: "fmul",
    nodes.Div: "fdiv",
}
_ORDERS: Mapping[type[Expr], tuple[str, str]] = {
    nodes.Lt: ("lt", "olt"),
    nodes.Le: ("le", "ole"),
}
_EXACT: Mapping[type[Expr], tuple[str, str]] = {
    nodes.Eq: ("eq", "oeq"),
    nodes.Ne: ("ne", "une"),
}


class Operations:
    """Arithmetic on held values. `contract`: whether a multiply and an add may become one FMA."""

    def __init__(self, writer: LlvmWriter, machine: Processor, contract: bool) -> None:
        self.w = writer
        self.machine = machine
        self.formats = Formats(writer, machine)
        self.flags = " contract" if contract else ""
        self.remainders: set[str] = set()

    # -- binary

    def binary(
        self,
        kind: type[Expr],
        a: LlvmValue,
        b: LlvmValue,
        dtype: DType,
        limit: int | None = None,
    ) -> LlvmValue:
        """`kind(a, b)` on operands of `dtype`; limit: integers known to be in `0 .. limit`."""
        folded = fold(kind, a, b, dtype)
        if folded is not None:
            return folded
        if issubclass(kind, nodes.Compare):
            return self._compare(kind, a, b, dtype)
        if dtype.is_float:
            return self.formats.settle(self._float(kind, a, b, dtype), dtype)
        if dtype.is_bool:
            return self._bool(kind, a, b)
        return self.formats.settle(self._integer(kind, a, b, dtype, limit), dtype)

    def _compare(
        self, kind: type[Expr], a: LlvmValue, b: LlvmValue, dtype: DType
    ) -> LlvmValue:
        integer_op, float_op = {**_ORDERS, **_EXACT}[kind]
        if dtype.is_float:
            return self.w.compare(f"fcmp {float_op}", a, b)
        sign = "" if kind in _EXACT else ("s" if dtype.is_signed else "u")
        return self.w.compare(f"icmp {sign}{integer_op}", a, b)

    def _float(
        self, kind: type[Expr], a: LlvmValue, b: LlvmValue, dtype: DType
    ) -> LlvmValue:
        if kind in _FLOAT_OPS:
            return self.w.binary(_FLOAT_OPS[kind] + self.flags, a, b)
        if kind in (nodes.Min, nodes.Max):
            return self._extremum(kind, a, b)
        if kind is nodes.Rem:
            return self._remainder(a, b)
        if kind is nodes.FloorDiv:
            return self._floor_division(a, b)[0]
        if kind is nodes.Mod:
            return self._floor_division(a, b)[1]
        raise _unsupported(kind.__name__, dtype)

    def _extremum(self, kind: type[Expr], a: LlvmValue, b: LlvmValue) -> LlvmValue:
        """The greater or lesser operand; NaN if either is NaN; of two zeros either one.

        The x86 instruction returns its second operand if either is NaN, so only the first one needs
        a check. The accumulator is the second one: so the check of the new value is not on the
        critical path of the chain of steps.
        """
        w = self.w
        if self.machine.arch != "x86_64":
            return w.pair("maximum" if kind is nodes.Max else "minimum", a, b, "nsz")
        if kind is nodes.Max:
            order = "fcmp ogt"
        else:
            order = "fcmp olt"
        if b.const is not None:
            a, b = b, a
        if a.const is not None and not math.isnan(a.const):
            return w.select(w.compare(order, a, b), a, b)
        best = w.select(w.compare(order, b, a), b, a)
        return w.select(w.compare("fcmp ord", b, b), best, b)

    def _bool(self, kind: type[Expr], a: LlvmValue, b: LlvmValue) -> LlvmValue:
        logical: dict[type[Expr], str] = {
            nodes.Add: "or",
            nodes.Mul: "and",
            nodes.Max: "or",
            nodes.Min: "and",
        }
        op = logical.get(kind) or _INTEGER_OPS.get(kind)
        if op is None or kind is nodes.Sub:
            raise _unsupported(kind.__name__, dtypes.bool_)
        return self.w.binary(op, a, b)

    def _integer(
        self,
        kind: type[Expr],
        a: LlvmValue,
        b: LlvmValue,
        dtype: DType,
        limit: int | None,
    ) -> LlvmValue:
        if kind in _INTEGER_OPS:
            return self.w.binary(_INTEGER_OPS[kind], a, b)
        if kind in (nodes.Min, nodes.Max):
            if kind is nodes.Min:
                stem = "min"
            else:
                stem = "max"
            return self.w.pair(("s" if dtype.is_signed else "u") + stem, a, b)
        if kind in (nodes.Shl, nodes.Shr):
            return self._shift(kind, a, b, dtype)
        if limit is not None and limit < 1 << 32 and a.type == "i64":
            return self._short_division(kind, a, b)
        if limit is not None or not dtype.is_signed:
            return self._unsigned_division(kind, a, b)
        return self._signed_division(kind, a, b)

    def _shift(
        self, kind: type[Expr], a: LlvmValue, b: LlvmValue, dtype: DType
    ) -> LlvmValue:
        w = self.w
        bits = dtype.bits
        arithmetic = kind is nodes.Shr and dtype.is_signed
        op = "shl" if kind is nodes.Shl else ("ashr" if arithmetic else "lshr")
        if b.const is not None and 0 <= b.const < bits:
            return w.binary(op, a, b)
        fits = w.compare("icmp ult", b, integer(bits, b.type))
        zero = integer(0, b.type)
        if arithmetic:
            return w.binary(op, a, w.select(fits, b, integer(bits - 1, b.type)))
        # Not the result of too wide a shift is 0, but what is shifted: LLVM's back end for NVIDIA
        # makes of the former a shift by the low 32 bits of `b`.
        kept = w.binary("and", b, integer(bits - 1, b.type))
        return w.binary(op, w.select(fits, a, zero), kept)

    def _unsigned_division(
        self, kind: type[Expr], a: LlvmValue, b: LlvmValue
    ) -> LlvmValue:
        w = self.w
        if kind in (nodes.Div, nodes.FloorDiv):
            op = "udiv"
        else:
            op = "urem"
        if b.const is not None:
            if b.const == 0:
                return integer(0, a.type)
            return w.binary(op, a, b)
        empty = w.compare("icmp eq", b, integer(0, b.type))
        result = w.binary(op, a, w.select(empty, integer(1, b.type), b))
        return w.select(empty, integer(0, a.type), result)

    def _short_division(
        self, kind: type[Expr], a: LlvmValue, b: LlvmValue
    ) -> LlvmValue:
        """Division of 64-bit operands in 32 bits if they fit, which is several times faster."""
        x, y = (
            integer(v.const, "i32")
            if isinstance(v.const, int)
            else self.w.convert("trunc", v, "i32")
            for v in (a, b)
        )
        return self.w.convert("zext", self._unsigned_division(kind, x, y), "i64")

    def _signed_division(
        self, kind: type[Expr], a: LlvmValue, b: LlvmValue
    ) -> LlvmValue:
        """Division that never traps: x / 0 is 0, and the least integer / -1 wraps to itself."""
        w = self.w
        zero = integer(0, a.type)
        one = integer(1, a.type)
        if b.const == 0:
            return zero
        safe, empty = b, None
        if b.const == -1:
            negated = w.binary("sub", zero, a)
            if kind in (nodes.Div, nodes.FloorDiv):
                return negated
            return zero
        if b.const is None:
            empty = w.compare("icmp eq", b, zero)
            least = integer(1 << (int(a.type[1:]) - 1), a.type)
            overflow = w.binary(
                "and",
                w.compare("icmp eq", a, least),
                w.compare("icmp eq", b, integer(-1, b.type)),
            )
            safe = w.select(w.binary("or", empty, overflow), one, b)
        result = self._signed_quotient(kind, a, safe)
        if empty is None:
            return result
        return w.select(empty, zero, result)

    def _signed_quotient(
        self, kind: type[Expr], a: LlvmValue, b: LlvmValue
    ) -> LlvmValue:
        w = self.w
        if kind is nodes.Div:
            return w.binary("sdiv", a, b)
        if kind is nodes.Rem:
            return w.binary("srem", a, b)
        if isinstance(b.const, int) and b.const > 0 and not b.const & (b.const - 1):
            if kind is nodes.Mod:
                return w.binary("and", a, integer(b.const - 1, a.type))
            return w.binary("ashr", a, integer(b.const.bit_length() - 1, a.type))
        zero = integer(0, a.type)
        rest = w.binary("srem", a, b)
        crossed = w.compare("icmp slt", w.binary("xor", rest, b), zero)
        adjust = w.binary("and", crossed, w.compare("icmp ne", rest, zero))
        if kind is nodes.Mod:
            return w.binary("add", rest, w.select(adjust, b, zero))
        quotient = w.binary("sdiv", a, b)
        return w.binary("add", quotient, w.convert("sext", adjust, a.type))

    # -- float division with remainder (NumPy's definitions)

    def _remainder(self, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        """fmod, by an internal function of the module that is called lane by lane."""
        w = self.w
        name = f"tw.fmod.{mangle(a.type, 1)}"
        self.remainders.add(a.type)
        a, b = w.match(a, b)
        if a.lanes == 1:
            return w.ins(f"call {a.type} @{name}({a.typed}, {b.typed})", a.type)
        result = LlvmValue("poison", a.type, a.lanes)
        for n in range(a.lanes):
            x = w.lane(a, n)
            y = w.lane(b, n)
            one = w.ins(f"call {a.type} @{name}({x.typed}, {y.typed})", a.type)
            result = w.insert(result, one, n)
        return result

    def _floor_division(
        self, a: LlvmValue, b: LlvmValue
    ) -> tuple[LlvmValue, LlvmValue]:
        w = self.w
        a, b = w.match(a, b)
        zero = real(0.0, a.type)
        one = real(1.0, a.type)
        rest = self._remainder(a, b)
        quotient = w.binary("fdiv", w.binary("fsub", a, rest), b)
        exact = w.compare("fcmp oeq", rest, zero)
        differ = w.binary(
            "xor", w.compare("fcmp olt", b, zero), w.compare("fcmp olt", rest, zero)
        )
        adjust = w.select(exact, integer(0, "i1"), differ)
        quotient = w.select(adjust, w.binary("fsub", quotient, one), quotient)
        modulus = w.select(adjust, w.binary("fadd", rest, b), rest)
        modulus = w.select(exact, w.pair("copysign", zero, b), modulus)
        floor = w.unary("floor", quotient)
        off = w.compare(
            "fcmp ogt", w.binary("fsub", quotient, floor), real(0.5, a.type)
        )
        floor = w.select(off, w.binary("fadd", floor, one), floor)
        plain = w.binary("fdiv", a, b)
        none = w.compare("fcmp oeq", quotient, zero)
        floor = w.select(none, w.pair("copysign", zero, plain), floor)
        by_zero = w.compare("fcmp oeq", b, zero)
        return w.select(by_zero, plain, floor), w.select(by_zero, rest, modulus)

    # -- unary

    def negate(self, v: LlvmValue, dtype: DType) -> LlvmValue:
        """`-v`."""
        if dtype.is_float:
            if v.const is not None:
                return real(-float(v.const), v.type)
            return self.w.ins(f"fneg {v.typed}", v.type, v.lanes)
        if dtype.is_bool:
            raise _unsupported("Neg", dtype)
        return self.binary(nodes.Sub, integer(0, v.type), v, dtype)

    def invert(self, v: LlvmValue, dtype: DType) -> LlvmValue:
        """`~v`, logical on bool."""
        if not dtype.is_bool:
            ones = integer(-1, v.type)
        else:
            ones = integer(1, "i1")
        return self.binary(nodes.Xor, v, ones, dtype)

    def bitcast(self, v: LlvmValue, source: DType, target: DType) -> LlvmValue:
        """The bits of `v` in memory read as another dtype of the same width."""
        raw = self.formats.pack(v, source)
        if raw.type in ("float", "double"):
            raw = self.w.convert("bitcast", raw, f"i{source.bits}")
        if source.is_int and source.is_sub_byte and not target.is_int:
            raw = self.w.binary("and", raw, integer((1 << source.bits) - 1, "i8"))
        if target.is_int:
            return self.formats.settle(raw, target)
        if target.is_float and target.bits >= 32:
            return self.w.convert("bitcast", raw, register_type(target))
        return self.formats.unpack(raw, target)

    # -- casts

    def cast(
        self, v: LlvmValue, source: DType, target: DType, known: Reals = ANY
    ) -> LlvmValue:
        """`v` converted: to integers by saturation, to bool by `!= 0`, to floats by rounding.

        known: bounds of a float; it needs no saturation if the integer type holds them.
        """
        type = register_type(target)
        if source is target:
            return v
        if target.is_bool:
            if source.is_float:
                return self.w.compare("fcmp une", v, real(0.0, v.type))
            return self.w.compare("icmp ne", v, integer(0, v.type))
        if source.is_float:
            if target.is_float:
                return self._float_to_float(v, source, target)
            if target.min <= known.lo and known.hi <= target.max:
                return self._truncated(v, target, known.nan)
            return self._float_to_integer(v, target)
        if target.is_float:
            if v.const is not None:
                whole = real(float(_number(v, source)), type)
            else:
                signed = source.is_signed and not source.is_bool
                whole = self.w.convert("sitofp" if signed else "uitofp", v, type)
            return self.formats.settle(whole, target)
        if v.const is not None:
            return self.formats.settle(integer(_number(v, source), type), target)
        return self.formats.settle(self._resize(v, source, type), target)

    def _resize(self, v: LlvmValue, source: DType, type: str) -> LlvmValue:
        have = int(v.type[1:])
        want = int(type[1:])
        if have > want:
            return self.w.convert("trunc", v, type)
        signed = source.is_signed and not source.is_bool
        return self.w.convert("sext" if signed else "zext", v, type)

    def _float_to_float(self, v: LlvmValue, source: DType, target: DType) -> LlvmValue:
        if target.name == "float64":
            return self.w.convert("fpext", v, "double")
        if source.name != "float64":
            return self.formats.settle(v, target)
        if target.name == "float32":
            return self.w.convert("fptrunc", v, "float")
        return self.formats.settle(self.formats.narrow_double(v), target)

    def _truncated(self, v: LlvmValue, target: DType, nan: bool) -> LlvmValue:
        """Convert a float in the range of an integer dtype; NaN becomes 0."""
        type = register_type(target)
        wide = type if target.bits > 16 else "i32"
        is_unsigned = target.bits > 16 and not target.is_signed
        whole = self.w.convert("fptoui" if is_unsigned else "fptosi", v, wide)
        if nan:
            ordered = self.w.compare("fcmp ord", v, v)
            whole = self.w.select(ordered, whole, integer(0, wide))
        return whole if wide == type else self.w.convert("trunc", whole, type)

    def _float_to_integer(self, v: LlvmValue, target: DType) -> LlvmValue:
        """Truncation with saturation; LLVM scalarizes its own saturating conversion."""
        w = self.w
        type = register_type(target)
        lowest = float(target.min)
        if target.bits <= 16:
            inside = self.clamped(v, lowest, float(target.max))
            whole = w.convert("fptosi", inside, "i32")
            return self.narrowed(v, whole, target)
        beyond = float(int(target.max) + 1)
        top = real(_below(beyond, v.type), v.type)
        least = real(lowest, v.type)
        below = w.compare("fcmp olt", v, top)
        inside = w.select(below, v, top)
        above = w.compare("fcmp ogt", inside, least)
        inside = w.select(above, inside, least)
        operation = "fptosi" if target.is_signed else "fptoui"
        whole = w.convert(operation, inside, type)
        over = w.compare("fcmp oge", v, real(beyond, v.type))
        largest = integer(int(target.max), type)
        whole = w.select(over, largest, whole)
        ordered = w.compare("fcmp ord", v, v)
        return w.select(ordered, whole, integer(0, type))

    def clamped(self, v: LlvmValue, low: float, high: float) -> LlvmValue:
        """Clamp to the bounds; NaN becomes the lower one."""
        return self.at_most(self.at_least(v, low), high)

    def at_least(self, v: LlvmValue, low: float) -> LlvmValue:
        """The greater of both; NaN becomes the bound."""
        least = real(low, v.type)
        return self.w.select(self.w.compare("fcmp ogt", v, least), v, least)

    def at_most(self, v: LlvmValue, high: float) -> LlvmValue:
        """The lesser of both; NaN becomes the bound."""
        most = real(high, v.type)
        return self.w.select(self.w.compare("fcmp olt", v, most), v, most)

    def narrowed(self, v: LlvmValue, whole: LlvmValue, target: DType) -> LlvmValue:
        """`whole`, converted from the float `v`, in 16 bits or less; NaN becomes 0."""
        if target.min:
            ordered = self.w.compare("fcmp ord", v, v)
            whole = self.w.select(ordered, whole, integer(0, whole.type))
        return self.w.convert("trunc", whole, register_type(target))


def _below(x: float, type: str) -> float:
    """The greatest value of the float type that is less than `x`."""
    import numpy as np

    kind = np.float32 if type == "float" else np.float64
    return float(np.nextafter(kind(x), kind(0)))


def _number(v: LlvmValue, dtype: DType) -> int:
    """A constant as the number it means: unsigned ones are kept wrapped into the signed range."""
    mask = (1 << dtype.bits) - 1
    if dtype.kind == "uint":
        return int(v.const or 0) & mask
    return int(v.const or 0)


def _unsupported(what: str, dtype: DType) -> UnsupportedError:
    return UnsupportedError(
        f"{what} has no native code for dtype {dtype}",
        code="TW-OPERATION",
        items=(what,),
    )
