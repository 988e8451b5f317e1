"""Lessons 13 to 22 of Halide's tutorial."""

from __future__ import annotations

import numpy as np

from tests.lang.halide.tutorial.common import GRAY, program, variables

# -- 13: several values


@program
def lesson_13_tuples(m):
    x, y = variables(m, "x y")
    several = m.Func("several")
    several[x, y] = (x + y, m.sin(m.cast(m.Float(32), x * y) / 100.0))
    consumer = m.Func("consumer")
    consumer[x, y] = several[x, y][1] * m.cast(m.Float(32), several[x, y][0])
    one, two = several.realize([30, 20])
    return one, two, consumer.realize([30, 20])


@program
def lesson_13_into_buffers(m):
    x, y = variables(m, "x y")
    several = m.Func("several")
    several[x, y] = (x + y, x * y + 7)
    one, two = (m.Buffer(m.Int(32), [6, 4]) for _ in range(2))
    several.realize([one, two])
    return one, two


@program
def lesson_13_argmax_by_hand(m):
    data = m.Buffer((np.arange(100) * 37 % 101).astype(np.float32))
    arg_max, r = m.Func("arg_max"), m.RDom([(1, 99)])
    arg_max[()] = (0, data[0])
    old_index, old_max = arg_max[()][0], arg_max[()][1]
    new_index = m.select(old_max < data[r], r, old_index)
    new_max = m.max(data[r], old_max)
    arg_max[()] = (new_index, new_max)
    return arg_max.realize()


class Complex:
    """A user's type on top of Tuples, as in the lesson."""

    def __init__(self, m, value):
        self.m, self.real, self.imag = m, value[0], value[1]

    def __add__(self, other):
        return Complex(self.m, (self.real + other.real, self.imag + other.imag))

    def __mul__(self, other):
        real = self.real * other.real - self.imag * other.imag
        return Complex(self.m, (real, self.real * other.imag + self.imag * other.real))

    def magnitude(self):
        return self.real * self.real + self.imag * self.imag

    def pair(self):
        return (self.real, self.imag)


@program
def lesson_13_mandelbrot(m):
    x, y, t = variables(m, "x y t")
    mandelbrot, escape = m.Func("mandelbrot"), m.Func("escape")
    initial = Complex(m, (m.f32(x) / 15.0 - 2.5, m.f32(y) / 6.0 - 2.0))
    mandelbrot[x, y, t] = (m.f32(0.0), m.f32(0.0))
    r = m.RDom([(1, 12)])
    current = Complex(m, mandelbrot[x, y, r - 1])
    mandelbrot[x, y, r] = (current * current + initial).pair()
    escaped = Complex(m, mandelbrot[x, y, r]).magnitude() < 16.0
    escape[x, y] = m.argmin(escaped)[0]
    return escape.realize([61, 25])


# -- 14: types


@program
def lesson_14_types(m):
    x, y = variables(m, "x y")

    def average(a, b):
        if a.type().is_float():
            return (a + b) / 2
        wide = a.type().with_bits(a.type().bits() * 2)
        return m.cast(a.type(), (m.cast(wide, a) + m.cast(wide, b)) / 2)

    assert m.UInt(8).is_uint() and not m.UInt(8).is_int() and m.Int(16).bits() == 16
    f, g, h = m.Func("f"), m.Func("g"), m.Func("h")
    f[x, y] = average(m.cast(m.UInt(8), x), m.cast(m.UInt(8), 255))
    g[x, y] = average(m.cast(m.Float(32), x), 3.0 * m.cast(m.Float(32), y))
    h[x, y] = average(m.cast(m.Int(16), x) * 999, m.cast(m.Int(16), y))
    return f.realize([20, 4]), g.realize([20, 4]), h.realize([20, 4])


# -- 17: reductions over parts of a box


@program
def lesson_17_circle(m):
    x, y = variables(m, "x y")
    circle, r = m.Func("circle"), m.RDom([(0, 7), (0, 7)])
    circle[x, y] = x + y
    r.where((r.x - 3) * (r.x - 3) + (r.y - 3) * (r.y - 3) <= 10)
    circle[r.x, r.y] *= 2
    return circle.realize([7, 7])


@program
def lesson_17_triangle(m):
    x, y = variables(m, "x y")
    triangle, r = m.Func("triangle"), m.RDom([(0, 8), (0, 10)])
    triangle[x, y] = x + y
    r.where(r.x < r.y)
    r.where(2 * r.x + r.y > 5)
    triangle[r.x, r.y] *= 2
    return triangle.realize([10, 10])


@program
def lesson_17_condition_on_a_func(m):
    x, y = variables(m, "x y")
    g, f, r1 = m.Func("g"), m.Func("f"), m.RDom([(0, 5), (0, 5)])
    g[x, y] = (x * 7 + y * 5) % 3
    f[x, y] = 0
    r1.where(g[r1.x, r1.y] == 2)
    f[r1.x, r1.y] = r1.x + r1.y
    return f.realize([5, 5])


@program
def lesson_17_condition_on_the_func_itself(m):
    x, y = variables(m, "x y")
    f, r = m.Func("f"), m.RDom([(0, 5), (0, 5)])
    f[x, y] = x + y * 10
    r.where(f[r.x, r.y] >= 4)
    r.where(f[r.x, r.y] <= 37)
    f[r.x, r.y] *= 10
    return f.realize([5, 5])


@program
def lesson_17_scheduled(m):
    x, y, xo, xi = variables(m, "x y xo xi")
    f, r = m.Func("f"), m.RDom([(0, 16), (0, 12)])
    f[x, y] = x * y
    r.where(r.x + r.y < 14)
    f[r.x, r.y] += 100
    ro, ri = m.RVar("ro"), m.RVar("ri")
    f.split(x, xo, xi, 4).vectorize(xi)
    f.update(0).split(r.x, ro, ri, 4)
    return f.realize([16, 12])


# -- 18, 19, 20: partial results, wrappers and clones


@program
def lesson_18_parallel_histogram(m):
    i, u = variables(m, "i u")
    image = m.Buffer(GRAY)
    histogram, r = m.Func("histogram"), m.RDom([(0, 48), (0, 36)])
    histogram[i] = 0
    histogram[image[r.x, r.y] / 32] += 1
    intermediate = histogram.update().rfactor([(r.y, u)])
    intermediate.compute_root().vectorize(i, 8)
    intermediate.update().parallel(u)
    histogram.update().vectorize(i, 8)
    return histogram.realize([8])


@program
def lesson_18_tiled_partial_sums(m):
    i, u, v = variables(m, "i u v")
    image = m.Buffer(GRAY)
    histogram, r = m.Func("histogram"), m.RDom([(0, 48), (0, 36)])
    histogram[i] = 0
    histogram[image[r.x, r.y] / 32] += 1
    rx_outer, rx_inner, ry_outer, ry_inner = (
        m.RVar(n) for n in ("rxo", "rxi", "ryo", "ryi")
    )
    histogram.update().tile(r.x, r.y, rx_outer, ry_outer, rx_inner, ry_inner, 16, 12)
    intermediate = histogram.update().rfactor([(rx_outer, u), (ry_outer, v)])
    intermediate.compute_root().update().parallel(u)
    return histogram.realize([8])


@program
def lesson_18_tiles_that_do_not_divide(m):
    i, u, v = variables(m, "i u v")
    image = m.Buffer(GRAY)
    histogram, r = m.Func("histogram"), m.RDom([(0, 48), (0, 36)])
    histogram[i] = 0
    histogram[image[r.x, r.y] / 32] += 1
    rx_outer, rx_inner, ry_outer, ry_inner = (
        m.RVar(n) for n in ("rxo", "rxi", "ryo", "ryi")
    )
    histogram.update().tile(r.x, r.y, rx_outer, ry_outer, rx_inner, ry_inner, 7, 10)
    intermediate = histogram.update().rfactor([(rx_outer, u), (ry_outer, v)])
    intermediate.compute_root().update().parallel(u)
    return histogram.realize([8])


@program
def lesson_19_wrapper(m):
    x, y, xo, yo, xi, yi = variables(m, "x y xo yo xi yi")
    f, g = m.Func("f"), m.Func("g")
    f[x, y] = x * 3 + y
    g[x, y] = f[x, y] + f[y, x]
    f.compute_root()
    f.in_(g).compute_at(g, xo)
    g.tile(x, y, xo, yo, xi, yi, 8, 8)
    return g.realize([16, 16])


@program
def lesson_19_wrapper_of_an_image(m):
    x, y = variables(m, "x y")
    image, g = m.ImageParam(m.UInt(8), 2, "image"), m.Func("g")
    g[x, y] = m.u16(image[x, y]) + image[x + 1, y]
    image.set(m.Buffer(GRAY))
    image.in_().compute_at(g, y)
    return g.realize([47, 36])


@program
def lesson_19_wrapper_for_all(m):
    x, y = variables(m, "x y")
    f, g, h, out = (m.Func(n) for n in ("f", "g", "h", "out"))
    f[x, y] = x * y + 1
    g[x, y] = f[x, y] + f[x + 1, y]
    h[x, y] = f[x, y] - f[x, y + 1]
    out[x, y] = g[x, y] * h[x, y]
    f.in_().compute_root().vectorize(x, 4)
    g.compute_root()
    h.compute_at(out, y)
    return out.realize([16, 12])


@program
def lesson_19_wrapper_of_two(m):
    x, y = variables(m, "x y")
    f, g, h, out = (m.Func(n) for n in ("f", "g", "h", "out"))
    f[x, y] = x + 2 * y
    g[x, y] = f[x, y] + f[x + 1, y]
    h[x, y] = f[x, y] - f[x, y + 1]
    out[x, y] = g[x, y] * h[x, y] + f[x, y]
    f.in_([g, h]).compute_root()
    return out.realize([16, 12])


@program
def lesson_19_tiles_through_registers(m):
    x, y, xo, yo, xi, yi = variables(m, "x y xo yo xi yi")
    image, transposed = m.Buffer(GRAY), m.Func("transposed")
    source = m.Func("source")
    source[x, y] = image[x, y]
    transposed[x, y] = source[y, x]
    source.compute_root()
    transposed.tile(x, y, xo, yo, xi, yi, 4, 4).vectorize(xi).unroll(yi)
    source.in_(transposed).compute_at(transposed, xo).vectorize(x).unroll(y)
    return transposed.realize([36, 48])


@program
def lesson_20_clone(m):
    x, y, xo, yo, xi, yi = variables(m, "x y xo yo xi yi")
    f, g, h = m.Func("f"), m.Func("g"), m.Func("h")
    f[x, y] = x + y
    g[x, y] = f[x, y] + 1
    h[x, y] = f[y, x] + g[x, y] * 2
    f.compute_root()
    f_in_g = f.clone_in(g)
    g.compute_root().tile(x, y, xo, yo, xi, yi, 4, 4)
    f_in_g.compute_at(g, xo).vectorize(x, 4)
    return h.realize([16, 16])


@program
def lesson_20_clone_with_another_schedule(m):
    x, y = variables(m, "x y")
    f, g, h, out, r = *(m.Func(n) for n in ("f", "g", "h", "out")), m.RDom([(0, 4)])
    f[x, y] = x * 3
    f[x, y] += r * y
    g[x, y] = f[x, y] + f[x + 1, y]
    h[x, y] = f[x, y] * 2
    out[x, y] = g[x, y] + h[x, y]
    f.compute_root().vectorize(x, 8)
    f.clone_in(h).compute_at(out, y)
    return out.realize([16, 8])


# -- 22: running again


@program
def lesson_22_once_compiled(m):
    x, y = variables(m, "x y")
    image, p, f = m.ImageParam(m.UInt(8), 2), m.Param(m.UInt(8)), m.Func("f")
    f[x, y] = image[x, y] / 2 + p
    f.vectorize(x, 8)
    found, images = [], [(GRAY // n).astype(np.uint8) for n in (1, 2, 3)]
    for n, pixels in enumerate(images):
        image.set(m.Buffer(pixels))
        p.set(n)
        found.append(f.realize([48, 36]))
    return found


@program
def lesson_22_into_one_buffer(m):
    x, y = variables(m, "x y")
    f, p, out = m.Func("f"), m.Param(m.Int(32)), m.Buffer(m.Int(32), [20, 10])
    f[x, y] = x + y * p
    for n in range(4):
        p.set(n)
        f.realize(out)
    return out
