"""Halide's notation: typing rules, what a Func becomes, and every refusal."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base import dtypes
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Call
from tilewright.lang.halide.syntax import lower
from tilewright.lang.halide.syntax.pipeline import pipeline

f32 = dtypes.float32
x, y, n, c = (hl.Var(name) for name in "xync")


def image(*extents, type=f32):
    """An image of these extents, x first."""
    return hl.Buffer(type, extents)


# -- the same Computations as written directly


def same(f, sizes, computations: list[Computation], params: list[Buffer]) -> bool:
    found, interface = lower.computations(pipeline([f], [sizes]))
    return canonical(found, interface) == canonical(computations, params)


def test_matrix_product():
    a, b = image(16, 4), image(8, 16)
    product, r = hl.Func("product"), hl.RDom([(0, 16)])
    product[x, y] += a[r, y] * b[x, r]
    left, right, out = (
        Buffer("a", (4, 16), f32),
        Buffer("b", (16, 8), f32),
        Buffer("c", (4, 8), f32),
    )
    direct = reduce_("mm", out, (16,), "add", lambda i, j, k: left[i, k] * right[k, j])
    assert same(product, [8, 4], [direct], [left, right, out])


def test_batched_product():
    a, b = image(16, 4, 3), image(8, 16, 3)
    product, r = hl.Func("product"), hl.RDom([(0, 16)])
    product[x, y, n] = 0.0
    product[x, y, n] = product[x, y, n] + a[r, y, n] * b[x, r, n]
    left, right = Buffer("a", (3, 4, 16), f32), Buffer("b", (3, 16, 8), f32)
    out = Buffer("c", (3, 4, 8), f32)
    direct = reduce_(
        "mm", out, (16,), "add", lambda z, i, j, k: left[z, i, k] * right[z, k, j]
    )
    assert same(product, [8, 4, 3], [direct], [left, right, out])


def test_convolution():
    data, weight = image(10, 9, 3, 2), image(3, 2, 3, 5)
    conv, r = hl.Func("conv"), hl.RDom([(0, 3), (0, 2), (0, 3)])
    conv[x, y, c, n] += data[x + r.x, y + r.y, r.z, n] * weight[r.x, r.y, r.z, c]
    source, filter_ = Buffer("x", (2, 3, 9, 10), f32), Buffer("w", (5, 3, 2, 3), f32)
    out = Buffer("y", (2, 5, 8, 8), f32)
    direct = reduce_(
        "conv",
        out,
        (3, 2, 3),
        "add",
        lambda b, o, i, j, k, p, q: source[b, k, i + p, j + q] * filter_[o, k, p, q],
    )
    assert same(conv, [8, 8, 5, 2], [direct], [source, filter_, out])


def test_the_parts_of_a_softmax():
    data, r = image(7, 5), hl.RDom([(0, 7)])
    top, e, total, out = (hl.Func(name) for name in ("top", "e", "total", "out"))
    top[y] = float("-inf")
    top[y] = hl.max(top[y], data[r, y])
    e[x, y] = hl.exp(data[x, y] - top[y])
    total[y] += e[r, y]
    out[x, y] = e[x, y] / total[y]
    source, maxima = Buffer("x", (5, 7), f32), Buffer("m", (5,), f32)
    powers, sums, result = (
        Buffer("e", (5, 7), f32),
        Buffer("s", (5,), f32),
        Buffer("y", (5, 7), f32),
    )
    direct = [
        reduce_("m", maxima, (7,), "max", lambda i, k: source[i, k]),
        map_("e", powers, lambda i, j: Call("exp", (source[i, j] - maxima[i],))),
        reduce_("s", sums, (7,), "add", lambda i, k: powers[i, k]),
        map_("y", result, lambda i, j: powers[i, j] / sums[i]),
    ]
    assert same(out, [7, 5], direct, [source, result])


def test_stages_are_computations_with_halo():
    blur, twice = hl.Func("blur"), hl.Func("twice")
    source = image(12, 6)
    blur[x, y] = source[x, y] + source[x + 1, y]
    twice[x, y] = blur[x, y] + blur[x, y + 2]
    shapes = [c.outputs[0].tensor.shape for c in twice.computations([11, 4])]
    assert shapes == [(6, 11), (4, 11)]


# -- typing


def typed(e) -> str:
    return str(e.type())


U8, U16, I8, I32, F32, F64 = (
    hl.Buffer(t, [4])[x]
    for t in (
        hl.UInt(8),
        hl.UInt(16),
        hl.Int(8),
        hl.Int(32),
        hl.Float(32),
        hl.Float(64),
    )
)


@pytest.mark.parametrize(
    "e, expected",
    [
        (U8 + U8, "uint8"),
        (U8 + U16, "uint16"),
        (U8 + I8, "int8"),
        (U16 + I8, "int16"),
        (U8 + 3, "uint8"),
        (3 * U16, "uint16"),
        (U8 + 0.5, "float32"),
        (I32 + F32, "float32"),
        (F32 * F64, "float64"),
        (F64 * 0.5, "float64"),
        (x + U8, "int32"),
        (x * 2 + 1, "int32"),
        (U8 < U16, "bool"),
        (hl.select(x > 2, U8, 1), "uint8"),
        (hl.clamp(U8, 1, 4), "uint8"),
        (hl.abs(I8), "uint8"),
        (hl.absd(U8, U8 + 1), "uint8"),
        (hl.sqrt(I32), "float32"),
        (hl.exp(F64), "float64"),
        (hl.pow(I32, 2), "float32"),
        (hl.u8(I32), "uint8"),
        (hl.cast(hl.Int(16), F32), "int16"),
        (hl.saturating_cast(hl.UInt(8), I32), "uint8"),
        (-I8, "int8"),
        (I32 / 2, "int32"),
        (I32 % 3, "int32"),
        (U8 & 3, "uint8"),
        (I32 >> 2, "int32"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_types(e, expected):
    assert typed(e) == expected


def test_values_of_operators():
    """Each against NumPy on the same numbers, through the compiler."""
    a = np.array([-7, -1, 0, 5, 9, 100, -128, 127], np.int8)
    source = hl.Buffer(a)
    v = source[x]
    cases = {
        "abs": (hl.abs(v), np.abs(a.astype(int)).astype(np.uint8)),
        "division": (v / 3, np.floor_divide(a, 3).astype(np.int8)),
        "negative divisor": (
            hl.i32(v) / -3,
            [-(int(i) // 3) if i >= 0 else (-int(i) + 2) // 3 for i in a],
        ),
        "remainder": (hl.i32(v) % -3, [int(i) % 3 for i in a]),
        "wraps": (v + v, (a + a).astype(np.int8)),
        "saturates": (
            hl.saturating_cast(hl.UInt(8), hl.i16(v) * 3),
            np.clip(a.astype(int) * 3, 0, 255),
        ),
        "clamp": (hl.clamp(v, -2, 6), np.clip(a, -2, 6)),
        "select": (
            hl.select(v < 0, 1, v > 50, 2, 3),
            np.where(a < 0, 1, np.where(a > 50, 2, 3)),
        ),
        "shift": (v >> 1, a >> 1),
        "float": (hl.f32(v) / 2, a.astype(np.float32) / 2),
        "round": (hl.round(hl.f32(v) / 2), np.rint(a.astype(np.float32) / 2)),
        "absd": (hl.absd(v, 3), np.abs(a.astype(int) - 3).astype(np.uint8)),
        "logic": (
            hl.select((v > 0) & ~(v == 5), 1, 0),
            ((a > 0) & (a != 5)).astype(int),
        ),
    }
    for name, (e, want) in cases.items():
        f = hl.Func("f")
        f[x] = e
        got = np.asarray(f.realize([len(a)]))
        np.testing.assert_array_equal(got, np.asarray(want), err_msg=name)


def test_elements_of_a_buffer():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    b = hl.Buffer(array)
    b.set_min([10, -1])
    assert (b[12, -1], b[10, 0], b.width(), b.height(), b.dim(0).max()) == (
        2,
        3,
        3,
        2,
        12,
    )
    b[11, 0] = 77
    assert array[1, 1] == 77 and np.asarray(b) is array
    with pytest.raises(InputError, match=r"index 13 of dimension 0 is not in 10\.\.12"):
        b[13, 0]
    with pytest.raises(InputError, match="has 2 dimensions, not 1"):
        b[11] = 1


# -- text


def test_a_func_prints():
    source, r = hl.ImageParam(hl.Float(32), 2, "source"), hl.RDom([(0, 8)], "r")
    f = hl.Func("f")
    assert repr(f) == "f (not defined)"
    f[x, y] = hl.max(source[x, y], 0)
    f[x, 0] = f[x, 0] + source[r, x]
    assert repr(f) == (
        "f[x, y] = max(source[x, y], 0.0)\nf[x, 0] add= source[r.x, x]  over r.x in 0..7"
    )


# -- refusals


def redefined():
    f = hl.Func("f")
    f[x, x] = 1


def unbound():
    f = hl.Func("f")
    f[x] = y + 1


def undefined():
    f, g = hl.Func("f"), hl.Func("g")
    f[x] = g[x]


def wrong_rank():
    f = hl.Func("f")
    f[x, y] = x
    f[x] = 1


def truth():
    if x < 3:
        pass


def too_large():
    U8 + 300


def not_an_index():
    hl.Buffer(hl.UInt(8), [4])[F32]


def other_vars():
    f = hl.Func("f")
    f[x, y] = x
    f[x, 0] = f[7 - x, 0]


def two_domains():
    f = hl.Func("f")
    f[x] = 0
    f[x] += hl.RDom([(0, 2)]).x + hl.RDom([(0, 3)]).x


def unbounded():
    f, g, source = hl.Func("f"), hl.Func("g"), image(8, type=hl.Int(32))
    g[x] = x
    f[x] = g[source[x]]
    g.compute_root()
    f.realize([8])


def outside():
    f, source = hl.Func("f"), image(8)
    f[x] = source[x + 1]
    f.realize([8])


def broken_promise():
    f, g = hl.Func("f"), hl.Func("g")
    g[x] = x
    f[x] = g[x + 1]
    g.compute_root().bound(x, 0, 8)
    f.realize([8])


def update_outside():
    f, r = hl.Func("f"), hl.RDom([(0, 20)])
    f[x] = 0
    f[r] += 1
    f.realize([8])


def no_data():
    f, source = hl.Func("f"), hl.ImageParam(hl.UInt(8), 1, "source")
    f[x] = source[x]
    f.realize([8])


def wrong_size():
    f = hl.Func("f")
    f[x, y] = x
    f.realize([8])


def factor_no_reduction():
    f, r = hl.Func("f"), hl.RDom([(1, 4)], "r")
    f[x] = 0
    f[r] = f[r - 1] + 1
    f.update().rfactor(r, y)


def factor_another_var():
    f, r = hl.Func("f"), hl.RDom([(1, 4)], "r")
    f[x] = 0
    f[x] += r
    f.update().rfactor(hl.RDom([(0, 2)], "q"), y)


def negative_size():
    f = hl.Func("f")
    f[x] = x
    f.realize([-3])


def no_whole_size():
    f = hl.Func("f")
    f[x] = x
    f.realize([2.5])


def complex_image():
    hl.Buffer(np.zeros(3, np.complex64))


def wrong_data():
    hl.ImageParam(hl.UInt(8), 1, "source").set(np.zeros((3, 3), np.uint8))


def even_select():
    hl.select(x < 1, 1, 2, 3)


def symbolic_domain():
    hl.RDom([(0, x)])


def no_reduction():
    hl.sum(x)


CASES = {
    redefined: "different Vars",
    unbound: "y is used on the right side, but is not an argument",
    undefined: "g is not defined",
    wrong_rank: "it has 2 dimensions, indexed with 1",
    truth: "no truth value",
    too_large: "300 does not fit uint8",
    not_an_index: "float32, not an integer",
    other_vars: r"reads f\[7 - x, 0\], with other Vars",
    two_domains: "2 reduction domains",
    unbounded: "which has no bounds.*clamp the index",
    outside: r"dimension 0 is read at 1\.\.8, but has 0\.\.7.*BoundaryConditions",
    broken_promise: r"needed over 1\.\.8, which leaves the bound 0\.\.7",
    update_outside: r"needed over \[0\.\.19\], but only \[0\.\.7\] is realized",
    no_data: "it has no data",
    wrong_size: "2 dimensions, and 1 sizes",
    factor_no_reduction: "not a step of an associative and commutative",
    factor_another_var: r"reduces over r\.x",
    negative_size: r"a size of \[-3\]",
    no_whole_size: "constant integer, not 2.5",
    complex_image: "elements are complex64",
    wrong_data: "expected uint8 of 1 dimensions, found uint8 of 2",
    even_select: "odd number",
    symbolic_domain: "constant integer",
    no_reduction: "over no RDom",
}


@pytest.mark.parametrize("make", CASES, ids=lambda f: f.__name__)
def test_refusal(make):
    with pytest.raises(InputError) as caught:
        make()
    assert re.search(CASES[make], str(caught.value)), str(caught.value)


def scatter():
    f, r = hl.Func("f"), hl.RDom([(0, 9)])
    f[x] = 0
    f[r % 3] += 1
    return f


def recurrence():
    f, r = hl.Func("f"), hl.RDom([(1, 7)])
    f[x] = 1
    f[r] = f[r - 1] * 2
    return f


def not_neutral():
    f, r = hl.Func("f"), hl.RDom([(1, 7)])
    f[x] = 1
    f[x] += r
    return f


@pytest.mark.parametrize(
    "make, reason",
    [
        (scatter, "other places"),
        (recurrence, "not a step"),
        (not_neutral, "neutral element"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_what_is_no_computation_says_so_and_runs(make, reason):
    f = make()
    with pytest.raises(UnsupportedError, match=reason):
        f.computations([8])
    assert isinstance(f.realize([8]), hl.Buffer)
