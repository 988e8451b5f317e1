"""Random unrolled loops: LLVM writes them out to the bits of what is written out here."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.native import prepare
from tests.targets.cpu.test_register_arrays import parsed
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.targets.cpu import emit
from tilewright.targets.cpu.compile import llvm_ir
from tilewright.targets.cpu.machine import host
from tilewright.targets.llvm.emit_repeated import REPEATED

SHORT = {
    "float32": "f32",
    "int8": "i8",
    "int32": "i32",
    "bfloat16": "bf16",
    "float16": "f16",
    "uint8": "u8",
    "int4": "i4",
    "bool": "bool",
}
ROWS, COLUMNS = 40, 48
Loop = tuple[str, int]  # a variable, and how often it runs


class Drawn:
    """The text of a kernel: nests of unrolled loops around statements of vectors or scalars.

    They store to several buffers and read them, and what an earlier iteration has written.
    """

    def __init__(self, r: random.Random) -> None:
        self.r = r
        names = ["A", "B", "C", "D"][: r.randint(2, 4)]
        self.types = {n: r.choice([*SHORT, "float32", "int8"]) for n in names}
        self.count = count()
        held = [f"{n}: {t}[{ROWS}, {COLUMNS}]" for n, t in self.types.items()]
        given = f"{held[0]}, I: int64[16]"
        self.lines = [f"kernel k({given}) -> {', '.join(held[1:])}:"]
        self.targets = names[1:]
        outer = self.loop(1, (), "parallel") if r.random() < 0.3 else ()
        if r.random() < 0.4:
            self.types["T"] = r.choice([*SHORT])
            self.line(len(outer) + 1, f"alloc T: {self.types['T']}[{ROWS}, {COLUMNS}]:")
            self.fill(len(outer) + 2)
            self.nest(len(outer) + 2, outer, r.randint(1, 2))
        else:
            self.nest(len(outer) + 1, outer, r.randint(1, 2))

    def line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def fill(self, depth: int) -> None:
        self.line(depth, f"for i in {ROWS}:")
        self.line(depth + 1, f"for j in {COLUMNS}:")
        value = self.cast("A[i, j]", self.types["A"], self.types["T"])
        self.line(depth + 2, f"T[i, j] = {value}")
        self.targets.append("T")

    def loop(self, depth: int, loops: tuple[Loop, ...], kind: str) -> tuple[Loop, ...]:
        most = [1, 3, 4, 13, 16, 32] if kind == "vector" else [1, 2, 3, 4, 5, 6]
        name, trips = f"{kind}{next(self.count)}", self.r.choice(most)
        said = "" if kind == "serial" else f" {kind}"
        self.line(depth, f"for {name} in {trips}{said}:")
        return (*loops, (name, trips))

    def nest(self, depth: int, loops: tuple[Loop, ...], inside: int) -> None:
        r = self.r
        if inside:
            for _ in range(r.choice([1, 1, 2])):
                kind = "unroll" if r.random() < 0.95 else "serial"
                found = self.loop(depth, loops, kind)
                self.nest(depth + 1, found, inside - 1)
        elif r.random() < 0.7:
            found = self.loop(depth, loops, "vector")
            self.statements(depth + 1, found, found[-1])
        else:
            self.statements(depth, loops, None)

    def statements(
        self, depth: int, loops: tuple[Loop, ...], lane: Loop | None
    ) -> None:
        r = self.r
        for _ in range(r.randint(1, 3)):
            name = r.choice(self.targets)
            dtype = self.types[name]
            how = r.choice(["=", "=", "add=", "max="])
            how = "=" if dtype in ("bool", "int4") else how
            if r.random() < 0.04:
                self.line(depth, f"if {self.value(loops, lane, 'float32', 0)} < 2.0:")
                depth += 1
            place, value = self.place(loops, lane), self.value(loops, lane, dtype, 2)
            self.line(depth, f"{name}{place} {how} {value}")

    def sum(self, loops: tuple[Loop, ...], most: int) -> str:
        """A sum of variables times numbers in `range(most)`."""
        factors = [self.r.choice([0, 1, 1, 2, -1]) for _ in loops]
        ends = [f * (trips - 1) for f, (_, trips) in zip(factors, loops, strict=True)]
        low = -sum(min(0, end) for end in ends)
        if low + sum(max(0, end) for end in ends) >= most:
            return str(self.r.randrange(most))
        return " + ".join(
            [
                str(low),
                *(f"{f} * {n}" for f, (n, _) in zip(factors, loops, strict=True)),
            ]
        )

    def place(self, loops: tuple[Loop, ...], lane: Loop | None) -> str:
        r = self.r
        around = tuple(x for x in loops if x is not lane)
        row = self.sum(around, ROWS)
        if r.random() < 0.04:
            row = f"I[{self.sum(around, 16)}]"
        if r.random() < 0.04 and around:
            row = f"{around[-1][0]} // 2"
        if lane is None:
            return f"[{row}, {self.sum(around, COLUMNS)}]"
        name, lanes = lane
        column = f"{name} + {self.sum(around, COLUMNS - lanes + 1)}"
        apart = f"{lanes - 1} - {name}"
        one = self.sum(around[-1:], COLUMNS)
        column = r.choices([column, apart, one], [20, 1, 2])[0]
        return f"[{row}, {column}]"

    def cast(self, value: str, given: str, wanted: str) -> str:
        return value if given == wanted else f"{SHORT[wanted]}({value})"

    def value(
        self, loops: tuple[Loop, ...], lane: Loop | None, dtype: str, depth: int
    ) -> str:
        r = self.r
        if depth == 0:
            name = r.choice([*self.types])
            return self.cast(
                f"{name}{self.place(loops, lane)}", self.types[name], dtype
            )

        def part(dtype: str = dtype) -> str:
            return self.value(loops, lane, dtype, depth - 1)

        form = r.random()
        if form < 0.03:
            return f"select({loops[-1][0]} < 3, {part()}, {part()})"
        if form < 0.13 and dtype != "bool":
            return f"select({part('float32')} < {part('float32')}, {part()}, {part()})"
        if form < 0.23:
            other = r.choice([*SHORT])
            return self.cast(part(other), other, dtype)
        sign = r.choice("&|^" if dtype == "bool" else "+-*")
        return f"({part()} {sign} {part()})"


def drawn(r: random.Random) -> Kernel:
    """A kernel that has loops for LLVM to write out."""
    while True:
        kernel = parsed("\n".join(Drawn(r).lines))
        if REPEATED in llvm_ir(kernel, host()):
            return kernel


def values(rng: np.random.Generator, b: Buffer) -> np.ndarray[Any, Any]:
    if b.name == "I":
        return rng.integers(0, ROWS, b.shape)
    low, high = (0, 2) if b.dtype.is_bool else (0 if b.dtype.name == "uint8" else -8, 8)
    found: Any = rng.integers(low, high, b.shape)
    if b.dtype.is_float:
        found = found + rng.standard_normal(b.shape)
    return np.ascontiguousarray(found.astype(b.dtype.numpy))


FEW, MANY = 30, 400


@pytest.mark.parametrize(
    "seed",
    [
        *range(FEW),
        *(pytest.param(n, marks=pytest.mark.slow) for n in range(FEW, MANY)),
    ],
)
def test_the_values_are_those_of_loops_written_out_here(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: sums are in one order, though a product and a sum may be one rounding."""
    kernel = drawn(random.Random(seed))
    rng = np.random.default_rng(seed)
    given = [values(rng, b) for b in kernel.params]
    repeated, plain = ([a.copy() for a in given] for _ in range(2))
    assert prepare(kernel, threads=2)(*repeated) == 0
    monkeypatch.setattr(emit, "may_repeat", lambda *_: False)
    assert REPEATED not in llvm_ir(kernel, host())
    assert prepare(kernel, threads=2)(*plain) == 0
    for b, found, wanted in zip(kernel.params, repeated, plain, strict=True):
        assert found.tobytes() == wanted.tobytes(), f"{b.name} of\n{kernel}"
