"""Typed pieces of LLVM assembly text: values, constants, and the chunk being written."""

from __future__ import annotations

import math
import re
import struct
from typing import Any

from tilewright.base import flags, limits
from tilewright.base.dataclass import dataclass

# A chunk is a list of lines and of chunks filled later (the places before loops).
Chunk = list[Any]

_LONGEST = 60  # letters of a loop's name in a label: LLVM cuts longer ones, which are then equal


# Not frozen for speed: many are created, and a frozen one takes three times as long.
@dataclass(slots=True, eq=False)
class LlvmValue:
    """An SSA value or constant: operand text, LLVM element type, lanes (1: scalar).

    const: the Python number of a scalar integer, bool or float constant, else None.
    """

    text: str
    type: str
    lanes: int = 1
    const: int | float | bool | None = None

    @property
    def full(self) -> str:
        """The type as LLVM writes it."""
        return vector_type(self.type, self.lanes)

    @property
    def typed(self) -> str:
        """Type and operand, as in an argument list."""
        return f"{self.full} {self.text}"


def vector_type(element: str, lanes: int) -> str:
    """`float`, or `<16 x float>`."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def mangle(element: str, lanes: int) -> str:
    """A type as it appears in an intrinsic's name: `f32`, `v16i8`."""
    short = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}.get(
        element, element
    )
    return short if lanes == 1 else f"v{lanes}{short}"


def integer(value: int, type: str = "i64") -> LlvmValue:
    """An integer constant, wrapped into its type."""
    bits = int(type[1:])
    value &= (1 << bits) - 1
    if value >> (bits - 1) and bits > 1:
        value -= 1 << bits
    if type == "i1":
        return LlvmValue("true" if value else "false", type, 1, bool(value))
    return LlvmValue(str(value), type, 1, value)


def real(value: float, type: str = "float") -> LlvmValue:
    """A floating-point constant, rounded to its type."""
    if type == "float" and math.isfinite(value):
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    return LlvmValue(
        f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}", type, 1, value
    )


def splat_constant(value: LlvmValue, lanes: int) -> LlvmValue:
    """A scalar constant in every lane."""
    return LlvmValue(f"splat ({value.type} {value.text})", value.type, lanes)


def int_vector(values: list[int], type: str = "i64") -> LlvmValue:
    """A vector constant of integers."""
    inner = ", ".join([f"{type} {v}" for v in values])
    return LlvmValue(f"<{inner}>", type, len(values))


def shuffle_mask(lanes: list[int]) -> str:
    """The third operand of a shufflevector."""
    inner = ", ".join("i32 poison" if n < 0 else f"i32 {n}" for n in lanes)
    return f"<{len(lanes)} x i32> <{inner}>"


def header_stem(loop: str) -> str:
    """How the label of the block that begins a loop's body starts; `listing` reads it."""
    name = re.sub(r"[^A-Za-z0-9_.]", "_", loop)
    return f"loop.{name[:_LONGEST]}."


def flatten(chunk: Chunk, lines: list[str]) -> None:
    """The lines of a chunk and of the chunks in it, in order."""
    for item in chunk:
        if isinstance(item, str):
            lines.append(item)
        else:
            flatten(item, lines)


class LlvmWriter:
    """Appends instructions to the current chunk of one function."""

    def __init__(self) -> None:
        self.entry: Chunk = []
        self.out: Chunk = []
        self.count = 0
        self._most = flags.CODE_LIMIT.get()

    def fresh(self, stem: str = "v") -> str:
        """A new local name. Raises LimitError after too many instructions."""
        self.count += 1
        if self.count > self._most:
            raise limits.exceeded(
                limits.CODE,
                f"its code has over {self._most:,} instructions",
                "TW-CODE",
                "unroll less",
            )
        if not self.count & 1023:
            limits.check()
        return f"%{stem}{self.count}"

    def line(self, text: str) -> None:
        """One line without a result."""
        self.out.append("  " + text)

    def label(self, name: str) -> None:
        """The start of a block; the line before it must have ended one."""
        self.out.append(f"{name[1:]}:")

    def ins(self, text: str, type: str, lanes: int = 1) -> LlvmValue:
        """One instruction with a result of `lanes` x `type`."""
        name = self.fresh()
        self.out.append(f"  {name} = {text}")
        return LlvmValue(name, type, lanes)

    def call(
        self, name: str, type: str, lanes: int, *args: LlvmValue, flags: str = ""
    ) -> LlvmValue:
        """A call of the intrinsic `llvm.<name>`, whose name already carries its types."""
        inner = ", ".join(a.typed for a in args)
        head = f"call {flags} " if flags else "call "
        return self.ins(
            f"{head}{vector_type(type, lanes)} @llvm.{name}({inner})", type, lanes
        )

    def unary(self, name: str, a: LlvmValue, flags: str = "") -> LlvmValue:
        """An intrinsic of one operand and a result of its type."""
        return self.call(
            f"{name}.{mangle(a.type, a.lanes)}", a.type, a.lanes, a, flags=flags
        )

    def pair(self, name: str, a: LlvmValue, b: LlvmValue, flags: str = "") -> LlvmValue:
        """An intrinsic of two operands and a result of their type."""
        a, b = self.match(a, b)
        return self.call(
            f"{name}.{mangle(a.type, a.lanes)}", a.type, a.lanes, a, b, flags=flags
        )

    def splat(self, v: LlvmValue, lanes: int) -> LlvmValue:
        """`v` in every lane, if it is not a vector already."""
        if v.lanes == lanes:
            return v
        if v.const is not None:
            return splat_constant(v, lanes)
        full = vector_type(v.type, lanes)
        one = self.ins(f"insertelement {full} poison, {v.typed}, i64 0", v.type, lanes)
        return self.ins(
            f"shufflevector {full} {one.text}, {full} poison, <{lanes} x i32> zeroinitializer",
            v.type,
            lanes,
        )

    def match(self, *values: LlvmValue) -> list[LlvmValue]:
        """The values with one number of lanes."""
        lanes = max(v.lanes for v in values)
        return [self.splat(v, lanes) for v in values]

    def binary(self, op: str, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        """`op a, b`, result of their type."""
        a, b = self.match(a, b)
        return self.ins(f"{op} {a.typed}, {b.text}", a.type, a.lanes)

    def compare(self, op: str, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        """`icmp ...` or `fcmp ...`; the result is i1."""
        a, b = self.match(a, b)
        return self.ins(f"{op} {a.typed}, {b.text}", "i1", a.lanes)

    def select(self, c: LlvmValue, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        """`a` where `c`, else `b`; a scalar condition chooses whole vectors."""
        if c.const is not None:
            return a if c.const else b
        if c.lanes > 1:
            c, a, b = self.match(c, a, b)
        else:
            a, b = self.match(a, b)
        return self.ins(f"select {c.typed}, {a.typed}, {b.typed}", a.type, a.lanes)

    def convert(self, op: str, v: LlvmValue, type: str) -> LlvmValue:
        """A conversion instruction such as `zext` or `fptrunc`."""
        if v.type == type:
            return v
        return self.ins(
            f"{op} {v.typed} to {vector_type(type, v.lanes)}", type, v.lanes
        )

    def lane(self, v: LlvmValue, n: int) -> LlvmValue:
        """Lane `n` of a vector."""
        if v.lanes == 1:
            return v
        return self.ins(f"extractelement {v.typed}, i64 {n}", v.type)

    def insert(self, v: LlvmValue, x: LlvmValue, n: int) -> LlvmValue:
        """The vector `v` with lane `n` replaced."""
        return self.ins(f"insertelement {v.typed}, {x.typed}, i64 {n}", v.type, v.lanes)

    def shuffle(
        self, a: LlvmValue, lanes: list[int], b: LlvmValue | None = None
    ) -> LlvmValue:
        """Chosen lanes of a vector (or of two, the second's counted after the first's)."""
        if len(lanes) == 1 and b is None:
            return self.lane(a, lanes[0])
        other = b.text if b is not None else "poison"
        return self.ins(
            f"shufflevector {a.typed}, {a.full} {other}, {shuffle_mask(lanes)}",
            a.type,
            len(lanes),
        )
