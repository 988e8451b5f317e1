"""Random expressions and random kernels: native code against the interpreters."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.targets.cpu.native import run_native
from tests.targets.cpu.test_operations import check, samples
from tilewright.base import dtypes
from tilewright.base.dtypes import DType, float32, int32, int64
from tilewright.compute.reducer import reducer
from tilewright.expr import nodes
from tilewright.expr.nodes import (
    Buffer,
    Cast,
    Expr,
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Select,
    Var,
    call,
    const,
    var,
)
from tilewright.loops import interp
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, Update, block, loop

OPTIONS = {
    "deadline": None,
    "max_examples": 40,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
DTYPES = [
    float32,
    int32,
    int64,
    dtypes.uint8,
    dtypes.float16,
    dtypes.bool_,
    dtypes.float64,
]
BINARY = [nodes.Add, nodes.Sub, nodes.Mul, nodes.Min, nodes.Max, nodes.Div]
INTEGER = [
    nodes.FloorDiv,
    nodes.Mod,
    nodes.Rem,
    nodes.And,
    nodes.Or,
    nodes.Xor,
    nodes.Shr,
]


@st.composite
def expression(draw: Any, dtype: DType, leaves: dict[DType, Expr], depth: int) -> Expr:
    def sub(t: DType) -> Expr:
        return draw(expression(t, leaves, depth - 1))

    if depth == 0 or draw(st.integers(0, 9)) == 0:
        if draw(st.booleans()):
            return leaves[dtype]
        return const(draw(st.integers(0, 1 if dtype.is_bool else 5)), dtype)
    form = draw(st.integers(0, 5))
    if form == 0:
        return Select(sub(dtypes.bool_), sub(dtype), sub(dtype))
    if form == 1:
        return Cast(sub(draw(st.sampled_from(DTYPES))), dtype)
    if dtype.is_bool:
        other = draw(st.sampled_from(DTYPES))
        if form < 4:
            kind = draw(st.sampled_from([nodes.Lt, nodes.Le, nodes.Eq, nodes.Ne]))
            return kind(sub(other), sub(other))
        kind = draw(st.sampled_from([nodes.And, nodes.Or, nodes.Xor]))
        return kind(sub(dtype), sub(dtype))
    if form == 2 and dtype.is_float:
        return call(
            draw(st.sampled_from(["abs", "floor", "round_even", "sqrt"])), sub(dtype)
        )
    if form == 3:
        return nodes.Neg(sub(dtype))
    kinds = BINARY + (INTEGER if dtype.is_int else [])
    return draw(st.sampled_from(kinds))(sub(dtype), sub(dtype))


@settings(**OPTIONS)
@given(st.data())
def test_expressions(data: st.DataObject) -> None:
    leaves = {t: var(f"x_{t}", t) for t in DTYPES}
    inputs = {v: samples(t, n, 32) for n, (t, v) in enumerate(leaves.items())}
    count = data.draw(st.integers(1, 3))
    made = [
        data.draw(expression(data.draw(st.sampled_from(DTYPES)), dict(leaves), 4))
        for _ in range(count)
    ]
    check(made, inputs)


ROWS, COLUMNS = 5, 24


@st.composite
def index(draw: Any, loops: dict[Var, int], extent: int) -> Expr:
    """An index inside the extent, by its form or by clamping."""
    e: Expr = const(draw(st.integers(0, 3)))
    for v in loops:
        e = e + v * draw(st.sampled_from([0, 1, 1, 1, 2, -1, 3]))
    form = draw(st.integers(0, 2))
    if form == 0:
        return Mod(e, const(extent))
    if form == 1:
        return Max(Min(e, const(extent - 1)), const(0))
    return Mod(FloorDiv(e, const(2)) + 7, const(extent))


class Program:
    """Draws statements over fixed buffers: a, p are read, b is written at [row, column]."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.a = Buffer("a", (ROWS, COLUMNS), float32)
        self.p = Buffer("p", (COLUMNS,), int64)
        self.b = Buffer("b", (ROWS, COLUMNS), float32)
        self.sums = Buffer("sums", (ROWS,), float32)
        self.count = 0

    def fresh(self) -> Var:
        self.count += 1
        return var(f"i{self.count}")

    def read(self, loops: dict[Var, int], depth: int = 2) -> Expr:
        draw = self.draw
        load = self.a[draw(index(loops, ROWS)), draw(index(loops, COLUMNS))]
        form = draw(st.integers(0, 6))
        if depth == 0 or form < 2:
            return load
        if form == 2:
            return self.a[draw(index(loops, ROWS)), self.p[draw(index(loops, COLUMNS))]]
        if form == 3:
            v = draw(st.sampled_from(list(loops)))
            at = v + draw(st.integers(-4, 4))
            inside = (at >= 0) & (at < COLUMNS)
            return Select(
                inside, self.a[0, at], const(draw(st.integers(0, 1)), float32)
            )
        if form == 4:
            v = draw(st.sampled_from(list(loops)))
            return Select(Lt(v, const(2)), self.read(loops, depth - 1), load)
        return self.read(loops, depth - 1) + self.read(loops, depth - 1)

    def write(self, row: Expr, column: Expr, loops: dict[Var, int]) -> Stmt:
        draw = self.draw
        value = self.read(loops)
        form = draw(st.integers(0, 4))
        store: Stmt = Store(self.b, (row, column), value)
        if form == 0:
            store = Update(
                (self.b,), ((row, column),), (value,), reducer("add", float32)
            )
        if form == 1:
            store = Update((self.sums,), ((row,),), (value,), reducer("max", float32))
        if form == 2:
            t = Buffer(
                f"t{self.count}",
                (2,),
                float32,
                draw(st.sampled_from(["register", "stack"])),
            )
            k = self.fresh()
            step = Update(
                (t,),
                ((const(0),),),
                (self.read(loops | {k: 3}),),
                reducer("add", float32),
            )
            init = Store(t, (const(0),), const(0, float32))
            store = Alloc(
                t, block(init, loop(k, 3, step), Store(self.b, (row, column), t[0]))
            )
        if draw(st.integers(0, 3)) == 0:
            condition = Le(Mod(column + row, const(4)), const(draw(st.integers(0, 3))))
            other = (
                Store(self.b, (row, column), self.read(loops))
                if draw(st.booleans())
                else None
            )
            return If(condition, store, other)
        return store

    def nest(self) -> Stmt:
        draw = self.draw
        row, outer, inner = self.fresh(), self.fresh(), self.fresh()
        width = draw(st.sampled_from([1, 2, 3, 6, 8, 12, 24]))
        loops = {row: ROWS, outer: COLUMNS // width, inner: width}
        column = outer * width + inner
        body = block(
            *(self.write(row, column, loops) for _ in range(draw(st.integers(1, 2))))
        )
        kinds = st.sampled_from(["serial", "unroll", "vector", "vector", "vector"])
        body = loop(inner, width, body, draw(kinds))
        body = loop(
            outer, COLUMNS // width, body, draw(st.sampled_from(["serial", "unroll"]))
        )
        return loop(
            row, ROWS, body, draw(st.sampled_from(["serial", "parallel", "unroll"]))
        )


@settings(**OPTIONS)
@given(st.data())
def test_kernels(data: st.DataObject) -> None:
    program = Program(data.draw)
    body = block(*(program.nest() for _ in range(data.draw(st.integers(1, 2)))))
    params = (program.a, program.p, program.b, program.sums)
    kernel = Kernel("k", params, (program.b, program.sums), body)
    rng = np.random.default_rng(0)
    before = {b: rng.integers(0, 9, b.shape).astype(b.dtype.numpy) for b in params}
    expected = {b: x.copy() for b, x in before.items()}
    interp.run(kernel, expected)
    got = {b: x.copy() for b, x in before.items()}
    assert run_native(kernel, got, threads=2) == 0
    for b in params:
        np.testing.assert_array_equal(got[b], expected[b], err_msg=repr(kernel))
