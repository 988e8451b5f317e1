"""Random well-formed Computations, and data for them, as hypothesis strategies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.compute.build import cast
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import (
    INDEX,
    Add,
    And,
    Buffer,
    Expr,
    Le,
    Load,
    Lt,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    Var,
    const,
)

_DTYPES = (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int8, dtypes.bfloat16)
_WIDER = {dtypes.bfloat16: dtypes.float32, dtypes.int8: dtypes.int32}
_COMBINES = (
    (),
    (PW,),
    (PW, PW),
    (PS,),
    (PS, PW),
    (PS, PS),
)


@st.composite
def computations(draw: st.DrawFn, name: str = "c") -> Computation:
    """A map, reduction or scan over up to five small dimensions, with strides, pads and clamps."""
    extents = st.integers(1, 4)
    dims: tuple[Dim, ...] = ()
    for n in "ijk"[: draw(st.integers(0, 3))]:
        var = Var(n, INDEX)
        dims += (Dim(var, draw(extents)),)
    combines = draw(st.sampled_from(_COMBINES))
    for n, combine in zip("rs", combines, strict=False):
        var = Var(n, INDEX)
        dims += (Dim(var, draw(extents), combine),)
    dtype = draw(st.sampled_from(_DTYPES))
    value = draw(_values(dims, dtype, "x", 2))
    if not combines:
        output = draw(_output("out", dims, value, dtype))
        return Computation(name, dims, (output,))
    if draw(st.integers(0, 4)) == 0:
        return draw(_arg(name, dims, value))
    accumulator = draw(st.sampled_from([dtype, _WIDER.get(dtype, dtype)]))
    operator = draw(st.sampled_from(["add", "max", "min", "mul"]))
    op: Reducer = reducer(operator, accumulator)
    output = draw(_output("out", dims, cast(value, accumulator), dtype))
    return Computation(
        name=name,
        dims=dims,
        outputs=(output,),
        reducer=op,
    )


@st.composite
def _arg(
    draw: st.DrawFn,
    name: str,
    dims: tuple[Dim, ...],
    value: Expr,
) -> Computation:
    operator = draw(st.sampled_from(["argmax", "argmin"]))
    op = arg_reducer(operator, value.dtype, dtypes.int64)
    first = draw(_output("extreme", dims, value, value.dtype))
    place = Buffer("place", first.tensor.shape, dtypes.int64)
    last = next(d.var for d in reversed(dims) if d.combine != CC)
    second = Output(place, first.index, last)
    return Computation(
        name=name,
        dims=dims,
        outputs=(first, second),
        reducer=op,
    )


@st.composite
def _output(
    draw: st.DrawFn,
    name: str,
    dims: Sequence[Dim],
    value: Expr,
    dtype: DType,
) -> Output:
    """One axis per dimension, permuted, some reversed or shifted; or two fused into one."""
    kept = draw(st.permutations([d for d in dims if d.combine != PW]))
    shape: list[int] = []
    index: list[Expr] = []
    rest = list(kept)
    while rest:
        d = rest.pop()
        form = draw(st.sampled_from(["plain", "reversed", "shifted", "fused"]))
        if form == "fused" and rest:
            inner = rest.pop()
            index.append(d.var * inner.extent + inner.var)
            shape.append(d.extent * inner.extent)
        elif form == "reversed":
            index.append(const(d.extent - 1) - d.var)
            shape.append(d.extent)
        elif form == "shifted":
            index.append(d.var + 1)
            shape.append(d.extent + 2)
        else:
            index.append(d.var)
            shape.append(d.extent)
    tensor = Buffer(name, tuple(shape), dtype)
    return Output(tensor, tuple(index), value)


@st.composite
def _values(
    draw: st.DrawFn,
    dims: Sequence[Dim],
    dtype: DType,
    name: str,
    depth: int,
) -> Expr:
    if depth == 0 or draw(st.booleans()):
        return draw(_load(dims, dtype, name))
    node = draw(st.sampled_from([Add, Sub, Mul, Min, Max]))
    lhs = draw(_values(dims, dtype, f"{name}l", depth - 1))
    rhs = draw(_values(dims, dtype, f"{name}r", depth - 1))
    return node(lhs, rhs)


@st.composite
def _load(
    draw: st.DrawFn,
    dims: Sequence[Dim],
    dtype: DType,
    name: str,
) -> Expr:
    """A load from a new tensor that is just large enough, or smaller with a guard (padding)."""
    env = {d.var: (0, d.extent - 1) for d in dims}
    index = tuple(draw(_index(dims)) for _ in range(draw(st.integers(1, 2))))
    guard: Expr | None = None
    shape = []
    for i in index:
        lo, hi = bounds(i, env)
        assert lo is not None and hi is not None
        smaller = lo < 0 or draw(st.booleans())
        shape.append(max(hi if smaller else hi + 1, 1))
        if smaller:
            inside = And(Le(const(0), i), Lt(i, const(shape[-1])))
            if guard is None:
                guard = inside
            else:
                guard = And(guard, inside)
    load = Load(Buffer(name, tuple(shape), dtype), index)
    if guard is None:
        return load
    otherwise = const(3, dtype)
    return Select(guard, load, otherwise)


@st.composite
def _index(draw: st.DrawFn, dims: Sequence[Dim]) -> Expr:
    i: Expr = const(draw(st.integers(0, 1)))
    for d in draw(st.lists(st.sampled_from(dims), max_size=2)) if dims else []:
        part: Expr = d.var
        form = draw(st.sampled_from(["plain", "times", "floor", "mod"]))
        if form == "times":
            part = d.var * draw(st.integers(2, 3))
        elif form == "floor":
            part = d.var // 2
        elif form == "mod":
            part = d.var % 2
        i = i + part
    if draw(st.integers(0, 3)) == 0:
        return i - 1
    return i


def arrays_for(buffers: Sequence[Buffer], seed: int) -> dict[Buffer, Any]:
    """Small random values per buffer, with some special ones among the floats."""
    rng = np.random.default_rng(seed)
    found: dict[Buffer, Any] = {}
    for b in buffers:
        values = rng.integers(-5, 6, b.shape).astype(np.float64)
        if b.dtype.is_float:
            values = values + rng.choice([0.0, 0.25, 0.1], b.shape)
            values = np.where(rng.random(b.shape) < 0.05, np.nan, values)
        found[b] = values.astype(b.dtype.numpy)
    return found
