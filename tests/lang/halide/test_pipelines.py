"""Whole pipelines against NumPy, with the schedules that Halide's users write for them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import InputError
from tilewright.loops.verify import verify

x, y, c, k = (hl.Var(name) for name in "xyck")
xi, yi, xo, yo = (hl.Var(name) for name in ("xi", "yi", "xo", "yo"))


def checked(f, sizes, want, rtol=0.0, target="cpu"):
    """`f` realized is `want`; its kernel is well formed."""
    verify(f.kernel(sizes))
    got = np.asarray(f.realize(sizes, target=target, threads=2))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
    assert got.dtype == want.dtype


# -- blur_3x3

WIDTH, HEIGHT = 130, 37


def blur_3x3():
    """Halide's first example, as in its paper."""
    image = hl.ImageParam(hl.UInt(16), 2, "input")
    blur_x, blur_y = hl.Func("blur_x"), hl.Func("blur_y")
    blur_x[x, y] = (image[x - 1, y] + image[x, y] + image[x + 1, y]) / 3
    blur_y[x, y] = (blur_x[x, y - 1] + blur_x[x, y] + blur_x[x, y + 1]) / 3
    rng = np.random.default_rng(0)
    source = hl.Buffer(
        rng.integers(0, 20000, (HEIGHT + 2, WIDTH + 2)).astype(np.uint16)
    )
    source.set_min([-1, -1])
    image.set(source)
    return blur_x, blur_y, np.asarray(source)


def blurred(source):
    across = (source[:, :-2] + source[:, 1:-1] + source[:, 2:]) // 3
    return (across[:-2] + across[1:-1] + across[2:]) // 3


def root(blur_x, blur_y):
    blur_x.compute_root()


def inline(blur_x, blur_y):
    blur_x.compute_inline()


def tiled(blur_x, blur_y):
    blur_y.tile(x, y, xo, yo, xi, yi, 64, 8)
    blur_x.compute_at(blur_y, xo)


def paper(blur_x, blur_y):
    blur_y.tile(x, y, xi, yi, 64, 8).vectorize(xi, 8).parallel(y)
    blur_x.compute_at(blur_y, x).vectorize(x, 8)


def sliding(blur_x, blur_y):
    blur_x.store_root().compute_at(blur_y, y).vectorize(x, 16)
    blur_y.vectorize(x, 16)


def sliding_strips(blur_x, blur_y):
    blur_y.split(y, y, yi, 8).parallel(y).vectorize(x, 16)
    blur_x.store_at(blur_y, y).compute_at(blur_y, yi).vectorize(x, 16)


def sliding_both_ways(blur_x, blur_y):
    blur_x.store_root().compute_at(blur_y, x)


def sliding_split(blur_x, blur_y):
    blur_y.split(y, yo, yi, 4, hl.TailStrategy.GuardWithIf)
    blur_x.store_root().compute_at(blur_y, yo)


def guarded(blur_x, blur_y):
    blur_y.tile(x, y, xi, yi, 48, 7, tail=hl.TailStrategy.GuardWithIf).vectorize(xi, 16)
    blur_x.compute_at(blur_y, x).vectorize(x, 16, hl.TailStrategy.GuardWithIf)


def fused(blur_x, blur_y):
    blur_y.tile(x, y, xo, yo, xi, yi, 65, 37).fuse(xo, yo, k).parallel(k).unroll(xi, 5)
    blur_x.compute_at(blur_y, k).unroll(y, 3)


SCHEDULES = [
    root,
    inline,
    tiled,
    paper,
    sliding,
    sliding_strips,
    sliding_both_ways,
    sliding_split,
    guarded,
    fused,
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda f: f.__name__)
def test_blur(schedule):
    blur_x, blur_y, source = blur_3x3()
    schedule(blur_x, blur_y)
    checked(blur_y, [WIDTH, HEIGHT], blurred(source))


def test_blur_in_the_interpreter():
    blur_x, blur_y, source = blur_3x3()
    sliding_strips(blur_x, blur_y)
    checked(blur_y, [WIDTH, HEIGHT], blurred(source), target="interp")


# -- reductions, scatters, recurrences


def test_matmul():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((48, 40), (40, 64)))
    left, right = hl.Buffer(a), hl.Buffer(b)
    product, out = hl.Func("product"), hl.Func("out")
    r = hl.RDom([(0, 40)], "r")
    product[x, y] += left[r, y] * right[x, r]
    out[x, y] = product[x, y]
    out.tile(x, y, xi, yi, 16, 4).vectorize(xi, 8).unroll(xi).unroll(yi).parallel(y)
    product.compute_at(out, x).store_in(hl.MemoryType.Register).vectorize(x, 8).unroll(
        x
    ).unroll(y)
    product.update().reorder(x, y, r).vectorize(x, 8).unroll(x).unroll(y)
    checked(out, [64, 48], a @ b, rtol=1e-4)


def test_a_producer_inside_a_reduction():
    """The columns of b, doubled, are made for each block of k."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-5, 5, s).astype(np.int32) for s in ((12, 32), (32, 16)))
    left, right, doubled, product = (
        hl.Buffer(a),
        hl.Buffer(b),
        hl.Func("doubled"),
        hl.Func("product"),
    )
    r, ro, ri = hl.RDom([(0, 32)], "r"), hl.RVar("ro"), hl.RVar("ri")
    doubled[x, y] = right[x, y] * 2
    product[x, y] += left[r, y] * doubled[x, r]
    product.update().split(r, ro, ri, 8).reorder(x, ri, y, ro).vectorize(x, 8)
    doubled.compute_at(product, ro).vectorize(x, 8)
    assert "alloc doubled: int32[8, 16]" in repr(product.kernel([16, 12]))
    checked(product, [16, 12], a @ (b * 2))


def test_histogram():
    image = np.random.default_rng(0).integers(0, 256, (30, 41)).astype(np.uint8)
    source, h = hl.Buffer(image), hl.Func("h")
    r = hl.RDom([(0, 41), (0, 30)], "r")
    h[x] = 0
    h[hl.i32(source[r.x, r.y])] += 1
    checked(h, [256], np.bincount(image.ravel(), minlength=256).astype(np.int32))
    total = hl.Func("total")
    total[x] = h[x]
    h.compute_root().vectorize(x, 8)
    checked(total, [256], np.bincount(image.ravel(), minlength=256).astype(np.int32))


def test_scan():
    data = np.random.default_rng(0).integers(-9, 9, (5, 33)).astype(np.int32)
    source, f = hl.Buffer(data), hl.Func("f")
    r = hl.RDom([(1, 32)], "r")
    f[x, y] = source[x, y]
    f[r, y] = f[r - 1, y] + source[r, y]
    f.update().parallel(y)
    checked(f, [33, 5], np.cumsum(data, axis=1, dtype=np.int32))


def test_argmax():
    data = np.random.default_rng(0).standard_normal((7, 50)).astype(np.float32)
    source, f = hl.Buffer(data), hl.Func("f")
    r = hl.RDom([(0, 50)], "r")
    best = hl.argmax(r, source[r, y])
    f[y] = hl.f32(best[0]) * 100 + best[1]
    want = np.argmax(data, axis=1).astype(np.float32) * 100 + data.max(axis=1)
    checked(f, [7], want, rtol=1e-6)


def test_conditions_of_a_reduction_in_an_expression():
    """They may use Vars, and variables of a reduction around, which the values do not use."""
    f, g, r, q = (
        hl.Func("f"),
        hl.Func("g"),
        hl.RDom([(0, 8)], "r"),
        hl.RDom([(0, 5)], "q"),
    )
    r.where(r <= x)
    f[x] = hl.sum(r, hl.i32(r) + 1)
    np.testing.assert_array_equal(f.realize([6]), [1, 3, 6, 10, 15, 21])
    inner = hl.RDom([(0, 8)], "inner")
    inner.where(inner < q + x)
    g[x] = 0
    g[x] += hl.sum(inner, hl.i32(inner))
    want = [sum(sum(range(min(8, p + n))) for p in range(5)) for n in range(4)]
    np.testing.assert_array_equal(g.realize([4]), want)


def test_inline_reductions():
    data = np.random.default_rng(0).integers(1, 4, (6, 8)).astype(np.int32)
    source, f = hl.Buffer(data), hl.Func("f")
    r = hl.RDom([(0, 8)], "r")
    f[y] = hl.sum(source[r, y]) + hl.product(source[r, y]) * hl.maximum(source[r, y])
    want = data.sum(1) + data.prod(1) * data.max(1)
    checked(f, [6], want.astype(np.int32))


def test_where_leaves_points_out():
    f = hl.Func("f")
    r = hl.RDom([(0, 10), (0, 10)], "r")
    r.where(r.x <= r.y)
    f[x] = 0
    f[x] += hl.select(x == 0, r.x, r.y)
    pairs = [(i, j) for j in range(10) for i in range(10) if i <= j]
    want = np.array([sum(i for i, _ in pairs), sum(j for _, j in pairs)], np.int32)
    checked(f, [2], want)


def test_softmax():
    data = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    source = hl.Buffer(data)
    r = hl.RDom([(0, 40)], "r")
    top, e, total, out = (hl.Func(n) for n in ("top", "e", "total", "out"))
    top[y] = hl.maximum(source[r, y])
    e[x, y] = hl.exp(source[x, y] - top[y])
    total[y] = 0.0
    total[y] += e[r, y]
    out[x, y] = e[x, y] / total[y]
    out.vectorize(x, 8).parallel(y)
    for f in (top, total, e):
        f.compute_at(out, y)
    e.vectorize(x, 8)
    want = np.exp(data - data.max(1, keepdims=True))
    checked(out, [40, 6], want / want.sum(1, keepdims=True), rtol=1e-5)


def test_convolution_layer():
    """Halide's apps/conv_layer, small: bias, a 3x3 window over channels, ReLU."""
    rng = np.random.default_rng(0)
    ci, co, w, h, n = 8, 16, 18, 9, 2
    data = rng.standard_normal((n, h + 2, w + 2, ci)).astype(np.float32)
    weight = rng.standard_normal((ci, 3, 3, co)).astype(np.float32)
    bias = rng.standard_normal(co).astype(np.float32)
    source, filter_, b = hl.Buffer(data), hl.Buffer(weight), hl.Buffer(bias)
    conv, relu, m = hl.Func("conv"), hl.Func("relu"), hl.Var("n")
    r = hl.RDom([(0, ci), (0, 3), (0, 3)], "r")
    conv[c, x, y, m] = b[c]
    conv[c, x, y, m] += filter_[c, r.y, r.z, r.x] * source[r.x, x + r.y, y + r.z, m]
    relu[c, x, y, m] = hl.max(0, conv[c, x, y, m])
    relu.split(c, c, k, 16).split(x, x, xi, 3).reorder(k, xi, c, x, y, m).vectorize(
        k, 8
    )
    relu.unroll(xi).parallel(y)
    conv.compute_at(relu, c).store_in(hl.MemoryType.Register)
    conv.vectorize(c, 8).unroll(c).unroll(x)
    conv.update().reorder(c, x, y, r.x, r.y, r.z, m).vectorize(c, 8).unroll(c).unroll(x)
    want = np.zeros((n, h, w, co), np.float32) + bias
    for dy in range(3):
        for dx in range(3):
            want += data[:, dy : dy + h, dx : dx + w] @ weight[:, dy, dx]
    checked(relu, [co, w, h, n], np.maximum(want, 0), rtol=1e-4)


# -- boundary conditions

MODES = {
    "repeat_edge": "edge",
    "repeat_image": "wrap",
    "mirror_image": "symmetric",
    "mirror_interior": "reflect",
}


@pytest.mark.parametrize("name", MODES)
def test_boundary_conditions(name):
    data = np.random.default_rng(0).integers(0, 99, (6, 7)).astype(np.int16)
    f = getattr(hl.BoundaryConditions, name)(hl.Buffer(data))
    out = hl.Func("out")
    out[x, y] = f[x - 4, y - 3]
    checked(out, [15, 12], np.pad(data, ((3, 3), (4, 4)), MODES[name]))
    f.compute_root()
    checked(out, [15, 12], np.pad(data, ((3, 3), (4, 4)), MODES[name]))


def test_constant_exterior():
    data = np.random.default_rng(0).integers(0, 99, (6, 7)).astype(np.int16)
    f = hl.BoundaryConditions.constant_exterior(hl.Buffer(data), 5)
    out = hl.Func("out")
    out[x, y] = f[x - 4, y - 3]
    out.vectorize(x, 8)
    checked(out, [16, 12], np.pad(data, ((3, 3), (4, 5)), constant_values=5))


# -- parameters, types, sizes


def test_params_and_several_values():
    gain, offset = hl.Param(hl.Float(32), "gain", 2.0), hl.Param(hl.Int(32), "offset")
    f = hl.Func("f")
    f[x] = hl.Tuple(hl.f32(x) * gain, x + offset)
    offset.set(-3)
    a, b = f.realize([5])
    np.testing.assert_array_equal(np.asarray(a), np.arange(5, dtype=np.float32) * 2)
    np.testing.assert_array_equal(np.asarray(b), np.arange(5, dtype=np.int32) - 3)
    gain.set(3.0)
    np.testing.assert_array_equal(np.asarray(f.realize([5])[0]), np.arange(5) * 3)


def test_a_value_without_dimensions():
    f = hl.Func("f")
    r = hl.RDom([(1, 10)])
    f[()] += r.x
    assert int(np.asarray(f.realize([]))) == 55


def test_negative_coordinates_and_division():
    """Integer division and remainder are Euclidean: they never look at the sign of the result."""
    f = hl.Func("f")
    f[x] = ((x - 7) / 3) * 1000 + (x - 7) % 3 + ((x - 7) // -3) * 0
    n = np.arange(15, dtype=np.int32) - 7
    checked(f, [15], (n // 3 * 1000 + n % 3).astype(np.int32))


def test_bound_computes_what_it_says():
    f, out = hl.Func("f"), hl.Func("out")
    f[x] = x * 2
    out[x] = f[x] + f[x + 1]
    f.compute_root().bound(x, -2, 16)
    checked(out, [8], np.arange(8, dtype=np.int32) * 4 + 2)
    assert "f: int32[16]" in repr(out.kernel([8]))


def test_specialize_runs_one_of_two_loops():
    mode, f = hl.Param(hl.Int(32), "mode", 0), hl.Func("f")
    f[x, y] = x * y + mode
    f.split(x, xo, xi, 8)
    f.specialize((mode > 0) & (mode < 3)).vectorize(xi).parallel(y)
    f.unroll(xi)
    text = repr(f.kernel([32, 4]))
    assert (
        text.count(" vector:")
        == text.count(" unroll:")
        == text.count(" parallel:")
        == 1
    )
    columns, rows = np.meshgrid(np.arange(32), np.arange(4))
    for value in (0, 2, 3):
        mode.set(value)
        checked(f, [32, 4], (columns * rows + value).astype(np.int32))


def test_specialize_with_a_producer_inside():
    mode = hl.Param(hl.Int(32), "mode", 0)
    blur_x, blur_y, source = blur_3x3()
    out = hl.Func("out")
    out[x, y] = hl.u16(blur_y[x, y] + mode)
    out.split(y, yo, yi, 8)
    blur_x.compute_at(out, yo).vectorize(x, 16)
    out.specialize(mode == 0).parallel(yo).vectorize(x, 8)
    for value in (0, 1):
        mode.set(value)
        checked(out, [WIDTH, HEIGHT], blurred(source) + np.uint16(value))


def test_storage_in_another_order():
    blur_x, blur_y, source = blur_3x3()
    blur_x.compute_root().reorder_storage(y, x)
    assert f"alloc blur_x: uint16[{WIDTH}, {HEIGHT + 2}]" in repr(
        blur_y.kernel([WIDTH, HEIGHT])
    )
    checked(blur_y, [WIDTH, HEIGHT], blurred(source))


def test_several_outputs_share_what_they_need():
    f, g, h = hl.Func("f"), hl.Func("g"), hl.Func("h")
    f[x, y] = x + y * 10
    g[x, y] = f[x, y] * 2
    h[x, y] = f[x, y] - g[x, y]
    f.compute_root()
    both = hl.Pipeline([g, h])
    columns, rows = np.meshgrid(np.arange(6), np.arange(4))
    first, second = both.realize([6, 4])
    np.testing.assert_array_equal(first, (columns + rows * 10) * 2)
    np.testing.assert_array_equal(second, -(columns + rows * 10))
    assert repr(both.kernel([6, 4])).startswith(
        "kernel g_h() -> g: int32[4, 6], h: int32[4, 6]:"
    )
    h2 = hl.Func("h2")
    h2[x, y] = g[x + 1, y]
    with pytest.raises(
        InputError, match=r"g: it is needed over \[0\.\.6, 0\.\.3\], but only"
    ):
        hl.Pipeline([g, h2]).realize([6, 4])


def test_a_mandelbrot_of_unrolled_steps():
    """Each step uses the one before several times: as a tree, it has more than 5**24 parts."""
    real = hl.cast(hl.Float(32), x) * (3.0 / 16) - 2.0
    imaginary = hl.cast(hl.Float(32), y) * (2.0 / 12) - 1.0
    zr = zi = hl.cast(hl.Float(32), 0)
    count = hl.cast(hl.Int(32), 0)
    for _ in range(24):
        inside = zr * zr + zi * zi < 4.0
        step = (zr * zr - zi * zi + real, zr * zi * 2.0 + imaginary)
        zr, zi = hl.select(inside, step[0], zr), hl.select(inside, step[1], zi)
        count = count + hl.select(inside, 1, 0)
    f = hl.Func("mandelbrot")
    f[x, y] = count
    f.vectorize(x, 8).parallel(y)

    across, down = np.meshgrid(np.arange(16), np.arange(12))
    point = across * (3.0 / 16) - 2.0 + 1j * (down * (2.0 / 12) - 1.0)
    z, want = np.zeros_like(point), np.zeros(point.shape, np.int32)
    for _ in range(24):
        with np.errstate(all="ignore"):
            inside = abs(z) < 2
            z = np.where(inside, z * z + point, z)
            want += inside
    checked(f, [16, 12], want)
