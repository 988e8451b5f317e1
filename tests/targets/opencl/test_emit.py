"""OpenCL C of every node means what the interpreter means, on edge values of every dtype."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.targets.opencl.running import X, launched, pocl, run
from tilewright.base import dtypes
from tilewright.base.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tilewright.base.errors import CompileError, ExecutionError
from tilewright.expr import nodes
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Bitcast,
    Buffer,
    Call,
    Cast,
    Load,
    Select,
    Var,
    const,
)
from tilewright.ir.node import substitute
from tilewright.loops.nodes import Store, block
from tilewright.targets.opencl.emit import emit

FLOATS = (float16, bfloat16, float32, float64)
SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
INTEGERS = SIGNED + UNSIGNED
_REAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 7.25, 1e-3, 300.0, -70000.0, 3e9, -1e20]
ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Min, nodes.Max, nodes.Overlap)
DIVISIONS = (nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Rem)
COMPARISONS = (nodes.Lt, nodes.Le, nodes.Eq, nodes.Ne)
BITS = (nodes.And, nodes.Or, nodes.Xor, nodes.Shl, nodes.Shr)


def edge_values(dtype):
    """Numbers at which the rules of a dtype differ from those of C."""
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_float:
        most = [float(dtype.max), -float(dtype.max), float("inf"), -float("inf")]
        with np.errstate(over="ignore"):
            return np.array([*_REAL, *most, float("nan")]).astype(dtype.numpy)
    ends = {int(dtype.min), int(dtype.min) + 1, int(dtype.max), int(dtype.max) - 1}
    small = {n for n in (-3, -2, -1, 0, 1, 2, 3, 7, 31, 63, 64) if n >= dtype.min}
    return np.array(sorted(ends | small), dtype.numpy)


def pairs(dtype):
    values = edge_values(dtype)
    a, b = zip(*itertools.product(range(len(values)), repeat=2))
    return values[list(a)], values[list(b)]


def check(expressions, variables, tolerance=0.0):
    """All expressions of variables, which have an array each, as one launch of a thread a point.

    tolerance: 0 for the same bits, where any NaN is the same.
    """
    count = len(next(iter(variables.values())))
    inputs = {v: Buffer(v.name, (count,), v.dtype) for v in variables}
    loads = {v: Load(b, (X,)) for v, b in inputs.items()}
    outputs = [Buffer(f"out{n}", (count,), e.dtype) for n, e in enumerate(expressions)]
    stores = [
        Store(b, (X,), substitute(e, dict(loads))) for b, e in zip(outputs, expressions)
    ]
    program = launched(block(*stores), [*inputs.values(), *outputs], threads=count)
    found = run(program, {inputs[v]: x for v, x in variables.items()})
    for e, b in zip(expressions, outputs):
        wanted = np.broadcast_to(evaluate(e, variables), (count,))
        if tolerance:
            f, w = found[b].astype(float), wanted.astype(float)
            np.testing.assert_allclose(f, w, tolerance, tolerance, err_msg=str(e))
        else:
            assert_same(found[b], wanted, str(e))


def assert_same(found, wanted, what):
    same = (found == wanted) | ((found != found) & (wanted != wanted))
    if dtypes.dtype_of(found.dtype).is_float:
        f, w = found.astype(float), wanted.astype(float)
        same &= (f != 0) | (np.signbit(f) == np.signbit(w))
    bad = np.flatnonzero(~same)[:5]
    assert not bad.size, f"{what}: at {bad}: {found[bad]}, expected {wanted[bad]}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_arithmetic_divisions_and_comparisons(dtype):
    a, b = Var("a", dtype), Var("b", dtype)
    kinds = [*ARITHMETIC, *DIVISIONS, *COMPARISONS]
    left, right = pairs(dtype)
    if dtype.is_float:  # which zero is the lesser is nobody's promise
        kinds = [k for k in kinds if k not in (nodes.Min, nodes.Max, nodes.Overlap)]
    check([k(a, b) for k in kinds] + [nodes.Neg(a)], {a: left, b: right})


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_least_and_the_greatest_keep_what_is_no_number(dtype):
    a, b = Var("a", dtype), Var("b", dtype)
    left, right = pairs(dtype)
    kept = ~((left == 0) & (right == 0))
    check([nodes.Min(a, b), nodes.Max(a, b)], {a: left[kept], b: right[kept]})


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_bits_and_shifts(dtype):
    a, b = Var("a", dtype), Var("b", dtype)
    left, right = pairs(dtype)
    found = [k(a, b) for k in BITS] + [nodes.Not(a), Call("popcount", (a,))]
    check(found, {a: left, b: right})


def test_truth_values():
    a, b = Var("a", bool_), Var("b", bool_)
    left, right = pairs(bool_)
    kinds = (nodes.And, nodes.Or, nodes.Xor, nodes.Min, nodes.Max, *COMPARISONS)
    casts = [Cast(a, t) for t in (*FLOATS, *INTEGERS)]
    check([k(a, b) for k in kinds] + [nodes.Not(a), *casts], {a: left, b: right})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS], ids=str)
def test_casts_round_wrap_and_saturate(source):
    a = Var("a", source)
    check([Cast(a, t) for t in (*FLOATS, *INTEGERS, bool_)], {a: edge_values(source)})


def test_bitcasts():
    groups = (
        (float32, int32, uint32),
        (float64, int64, uint64),
        (float16, int16),
        (bfloat16, uint16),
        (int8, uint8),
    )
    for group in groups:
        for source, target in itertools.permutations(group, 2):
            a = Var("a", source)
            values = edge_values(source)
            # Which NaN it is need not be kept.
            for floats in (values, values.view(target.numpy)):
                values = values[~np.isnan(floats.astype(float))]
                if len(values) < len(floats):
                    break
            check([Bitcast(a, target)], {a: values})


EXACT = "floor ceil trunc abs round_even copysign isnan isinf sqrt".split()
# Marks of notations are gone before a program is emitted.
NEAR = [
    n
    for n in FUNCTIONS
    if n not in (*EXACT, "entry", "popcount", "ldexp") and not n.startswith("halide_")
]
TOLERANCE = {float16: 4e-3, bfloat16: 3e-2, float32: 4e-6, float64: 1e-12}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_floats(dtype):
    x, y, z = (Var(n, dtype) for n in "xyz")
    exact = [Call(n, (x, y)[: FUNCTIONS[n].arity]) for n in EXACT]
    left, right = pairs(dtype)
    check(exact, {x: left, y: right})
    near = [Call(n, (x, y, z)[: FUNCTIONS[n].arity]) for n in NEAR]
    rng = np.random.default_rng(0)
    given = {v: rng.uniform(-3, 3, 64).astype(dtype.numpy) for v in (x, y, z)}
    check(near, given, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_at_the_ends(dtype):
    """Infinite, huge, tiny and no numbers: what C's functions give, to the last bits."""
    x = Var("x", dtype)
    names = "exp expm1 log log2 exp2 sin tanh arctan erf sigmoid gamma lgamma".split()
    huge = np.abs(edge_values(dtype).astype(float)) > 300
    finite = np.isfinite(edge_values(dtype).astype(float))
    values = edge_values(dtype)[~(huge & finite)]
    check([Call(n, (x,)) for n in names], {x: values}, 8 * TOLERANCE[dtype])


def test_powers_of_two_and_tables():
    x, n, i = Var("x", float32), Var("n", float32), Var("i", int32)
    left, right = pairs(float32)
    finite = np.isfinite(right) & (abs(right) < 1e6)
    check([Call("ldexp", (x, n))], {x: left[finite], n: right[finite]})
    table = tuple(const(k * k, int32) for k in range(16))
    check([Call("entry", (*table, i))], {i: np.arange(-20, 20, dtype=np.int32)})


def test_a_quotient_of_floats_is_rounded_once():
    rng = np.random.default_rng(1)
    a, b = Var("a", float32), Var("b", float32)
    given = {v: rng.standard_normal(500).astype(np.float32) for v in (a, b)}
    check([nodes.Div(a, b), Call("sqrt", (Call("abs", (a,)),))], given)


def test_exact_code_has_no_fused_multiply_add():
    a, b, c = (Var(n, float32) for n in "abc")
    rng = np.random.default_rng(2)
    given = {v: rng.standard_normal(500).astype(np.float32) for v in (a, b, c)}
    check([a * b + c], given)


def test_indices_are_computed_in_32_bits_where_bounds_prove_it():
    x = Buffer("x", (4096, 64), float32)
    y = Buffer("y", (64,), float32)
    big = Buffer("big", (1 << 20, 1 << 14), float32)
    small = launched(Store(y, (X,), x[X * 50, X]), [x, y], threads=64)
    assert "long" not in emit(small).text.replace("ulong", "")
    wide = launched(Store(y, (X,), big[X * 5000, X]), [big, y], threads=64)
    assert "long" in emit(wide).text.replace("ulong", "")


def test_an_index_beyond_32_bits_is_right():
    """Two numbers of 32 bits, whose product has more: of variables, so that no literal is long."""
    y = Buffer("y", (4,), int64)
    side = X * 50000 + 7
    found = run(launched(Store(y, (X,), side * side // 3), [y], threads=4), {})[y]
    assert list(found) == [(n * 50000 + 7) ** 2 // 3 for n in range(4)]


def test_padding_is_not_read():
    """The arm that is not chosen is outside of the buffer by far: a read there would end it all."""
    x, y = Buffer("x", (4,), float32), Buffer("y", (8,), float32)
    far = X * (1 << 30)
    inside = Select(nodes.Lt(far, const(4)), x[far], const(7.0, float32))
    found = run(
        launched(Store(y, (X,), inside + inside), [x, y], threads=8),
        {x: np.ones(4, "f")},
    )
    assert list(found[y]) == [2.0] + [14.0] * 7


def test_what_nested_arms_share_is_written_once():
    """A chain of selects whose arms both read the one before doubles at each step otherwise."""
    x, y = Buffer("x", (64,), float32), Buffer("y", (4,), float32)
    e = x[X]
    for n in range(24):
        far = X + 60 + n % 4
        guarded = Select(nodes.Lt(far, const(64)), x[far] + e, e * 2)
        e = guarded + e
    source = emit(launched(Store(y, (X,), e), [x, y], threads=4)).text
    assert len(source) < 20_000


def test_what_has_no_code_is_refused_by_name():
    a = Buffer("a", (4,), dtypes.float8_e5m2)
    y = Buffer("y", (4,), float32)
    with pytest.raises(CompileError, match="OpenCL C has no float8_e5m2"):
        emit(launched(Store(y, (X,), Cast(a[X], float32)), [a, y], threads=4))
    b = Buffer("b", (4,), int32)
    with pytest.raises(CompileError, match="the function pow has no OpenCL code"):
        emit(launched(Store(b, (X,), Call("pow", (b[X], b[X]))), [b], threads=4))


def test_an_index_in_the_data_is_checked():
    x, at = Buffer("x", (4,), float32), Buffer("at", (3,), int64)
    y = Buffer("y", (3,), float32)
    program = launched(Store(y, (X,), x[at[X]]), [x, at, y], threads=3)
    given = {x: np.arange(4, dtype="f"), at: np.array([3, 0, 2])}
    assert list(run(program, given)[y]) == [3, 0, 2]
    for wrong in (4, -1, 1 << 40, -(1 << 63)):
        with pytest.raises(ExecutionError, match=r"index of x is outside 0\.\.3"):
            run(program, given | {at: np.array([0, wrong, 1])})


def test_a_write_at_a_wrong_index_does_not_happen():
    at, y = Buffer("at", (3,), int64), Buffer("y", (2, 4), int32)
    program = launched(Store(y, (const(0), at[X]), const(7, int32)), [at, y], threads=3)
    loaded = pocl().load(emit(program).to_bytes())
    assert loaded.code.launches[0].checked
    with pytest.raises(ExecutionError, match=r"index of y is outside 0\.\.3"):
        run(program, {at: np.array([4, 0, 2]), y: np.zeros((2, 4), np.int32)})


def test_every_float16_is_read_and_rounded_to():
    """All of them, and of each the middle to the next one and what is beside the middle."""
    x, y = Var("x", float16), Var("y", float32)
    bits = np.arange(1 << 16, dtype=np.uint16)
    every = bits.view(np.float16)[np.isfinite(bits.view(np.float16))]
    for part in np.array_split(every, 16):
        check([Cast(x, float32)], {x: part})
    with np.errstate(over="ignore"):
        steps = np.spacing(every).astype(float)
    middles = every.astype(float) + steps / 2
    wide = middles.astype(np.float32)
    for part in np.array_split(
        np.stack([wide, np.nextafter(wide, np.float32(0))]), 32, 1
    ):
        check([Cast(y, float16)], {y: part.reshape(-1)})


def test_a_double_is_rounded_to_float16_once():
    """Just above the middle of two float16, by less than a float32 tells."""
    x = Var("x", float64)
    middle = 1 + 2.0**-11
    given = [
        middle,
        middle + 2.0**-40,
        middle - 2.0**-40,
        2.0**-25 * (1 + 2.0**-40),
        65520,
        1e300,
    ]
    check([Cast(x, float16)], {x: np.array(given)})
