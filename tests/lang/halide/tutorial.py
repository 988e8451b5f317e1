"""Programs in the manner of Halide's tutorial, as a CPU's user writes: the lessons in `LESSONS`.

Each takes the module (`halide` or ours), and returns what it realizes: a Buffer or several.
"""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(0)
GRAY = RNG.integers(0, 256, (36, 48)).astype(np.uint8)
COLOR = RNG.integers(0, 256, (3, 20, 32)).astype(np.uint8)

PROGRAMS = {}
# Those on algorithms, schedules and running. Not here: debugging (3, 4), compiling ahead of time
# (10, 11, 16), GPUs (12), generators (15), autoschedulers (21), serialization (23), async (24).
LESSONS = (1, 2, 5, 6, 7, 8, 9, 13, 14, 17, 18, 19, 20, 22)


def program(f):
    """Add to the table."""
    PROGRAMS[f.__name__] = f
    return f


def variables(m, names):
    return [m.Var(name) for name in names.split()]


# -- 1, 2: Funcs, Vars, an image


@program
def lesson_1_gradient(m):
    x, y = variables(m, "x y")
    gradient, e = m.Func("gradient"), m.Var("x") + m.Var("y")
    gradient[x, y] = e
    return gradient.realize([80, 60])


@program
def lesson_2_brighter(m):
    x, y, c = variables(m, "x y c")
    image, brighter = m.Buffer(COLOR), m.Func("brighter")
    value = image[x, y, c]
    value = m.cast(m.Float(32), value)
    value = value * 1.5
    value = m.min(value, 255.0)
    value = m.cast(m.UInt(8), value)
    brighter[x, y, c] = value
    return brighter.realize([image.width(), image.height(), image.channels()])


# -- 5: loops of one Func


def gradient_with(schedule, width=16, height=8):
    def make(m):
        v = {n: m.Var(n) for n in "x y xo yo xi yi t xio yio xv yp".split()}
        gradient = m.Func("gradient")
        gradient[v["x"], v["y"]] = v["x"] + v["y"] * 100
        schedule(gradient, *v.values())
        return gradient.realize([width, height])

    return make


def fast(g, x, y, xo, yo, xi, yi, t, xio, yio, xv, yp):
    g.tile(x, y, xo, yo, xi, yi, 64, 64).fuse(xo, yo, t).parallel(t)
    g.tile(xi, yi, xio, yio, xv, yp, 4, 2).vectorize(xv).unroll(yp)


PROGRAMS |= {
    "lesson_5_columns": gradient_with(lambda g, x, y, *_: g.reorder(y, x)),
    "lesson_5_split": gradient_with(lambda g, x, y, xo, yo, xi, *_: g.split(x, xo, xi, 2)),
    "lesson_5_fuse": gradient_with(lambda g, x, y, xo, yo, xi, yi, t, *_: g.fuse(x, y, t)),
    "lesson_5_tiles": gradient_with(
        lambda g, x, y, xo, yo, xi, yi, *_: (
            g.split(x, xo, xi, 4).split(y, yo, yi, 4).reorder(xi, yi, xo, yo)
        )
    ),
    "lesson_5_tile": gradient_with(
        lambda g, x, y, xo, yo, xi, yi, *_: g.tile(x, y, xo, yo, xi, yi, 4, 4)
    ),
    "lesson_5_vectors": gradient_with(
        lambda g, x, y, xo, yo, xi, *_: g.split(x, xo, xi, 4).vectorize(xi)
    ),
    "lesson_5_vectors_at_once": gradient_with(lambda g, x, *_: g.vectorize(x, 8)),
    "lesson_5_unroll": gradient_with(
        lambda g, x, y, xo, yo, xi, *_: g.split(x, xo, xi, 2).unroll(xi)
    ),
    "lesson_5_unroll_at_once": gradient_with(lambda g, x, *_: g.unroll(x, 2)),
    "lesson_5_a_factor_that_does_not_divide": gradient_with(
        lambda g, x, y, xo, yo, xi, *_: g.split(x, xo, xi, 3), 7, 2
    ),
    "lesson_5_parallel_tiles": gradient_with(
        lambda g, x, y, xo, yo, xi, yi, t, *_: (
            g.tile(x, y, xo, yo, xi, yi, 4, 4).fuse(xo, yo, t).parallel(t)
        )
    ),
    "lesson_5_all_together": gradient_with(fast, 150, 140),
}


# -- 6: regions that start elsewhere


@program
def lesson_6_shifted(m):
    x, y = variables(m, "x y")
    gradient = m.Func("gradient")
    gradient[x, y] = x + y
    shifted = m.Buffer(m.Int(32), [5, 7])
    shifted.set_min([100, 50])
    gradient.realize(shifted)
    assert shifted[104, 56] == 160
    return gradient.realize([8, 8]), shifted


# -- 7: several stages


@program
def lesson_7_blur(m):
    x, y, c = variables(m, "x y c")
    image = m.Buffer(COLOR)
    wide, blur_x, blur_y, out = (m.Func(n) for n in ("wide", "blur_x", "blur_y", "out"))
    wide[x, y, c] = m.cast(m.UInt(16), image[x, y, c])
    blur_x[x, y, c] = (wide[x - 1, y, c] + 2 * wide[x, y, c] + wide[x + 1, y, c]) / 4
    blur_y[x, y, c] = (blur_x[x, y - 1, c] + 2 * blur_x[x, y, c] + blur_x[x, y + 1, c]) / 4
    out[x, y, c] = m.cast(m.UInt(8), blur_y[x, y, c])
    result = m.Buffer(m.UInt(8), [image.width() - 2, image.height() - 2, 3])
    result.set_min([1, 1])
    out.realize(result)
    return result


@program
def lesson_7_blur_with_clamped_edges(m):
    x, y, c = variables(m, "x y c")
    image = m.Buffer(COLOR)
    clamped, wide, blur_x, blur_y = (m.Func(n) for n in ("clamped", "wide", "blur_x", "blur_y"))
    clamped_x = m.clamp(x, 0, image.width() - 1)
    clamped_y = m.clamp(y, 0, image.height() - 1)
    clamped[x, y, c] = image[clamped_x, clamped_y, c]
    wide[x, y, c] = m.cast(m.UInt(16), clamped[x, y, c])
    blur_x[x, y, c] = (wide[x - 1, y, c] + 2 * wide[x, y, c] + wide[x + 1, y, c]) / 4
    blur_y[x, y, c] = (blur_x[x, y - 1, c] + 2 * blur_x[x, y, c] + blur_x[x, y + 1, c]) / 4
    return blur_y.realize([image.width(), image.height(), 3])


# -- 8: where a producer is computed


def two_stages(schedule, width=24, height=20):
    def make(m):
        v = {n: m.Var(n) for n in "x y xo yo xi yi".split()}
        x, y = v["x"], v["y"]
        producer, consumer = m.Func("producer"), m.Func("consumer")
        producer[x, y] = m.sin(x * y)
        consumer[x, y] = (
            producer[x, y] + producer[x, y + 1] + producer[x + 1, y] + producer[x + 1, y + 1]
        ) / 4
        schedule(producer, consumer, *v.values())
        return consumer.realize([width, height])

    return make


def mixed(p, c, x, y, xo, yo, xi, yi):
    c.split(y, yo, yi, 16).parallel(yo).vectorize(x, 4)
    p.store_at(c, yo).compute_at(c, yi).vectorize(x, 4)


PROGRAMS |= {
    "lesson_8_inline": two_stages(lambda p, c, *_: None),
    "lesson_8_root": two_stages(lambda p, c, *_: p.compute_root()),
    "lesson_8_at_y": two_stages(lambda p, c, x, y, *_: p.compute_at(c, y)),
    "lesson_8_slide": two_stages(lambda p, c, x, y, *_: p.store_root().compute_at(c, y)),
    "lesson_8_slide_both_ways": two_stages(lambda p, c, x, *_: p.store_root().compute_at(c, x)),
    "lesson_8_tiles": two_stages(
        lambda p, c, x, y, xo, yo, xi, yi: (
            c.tile(x, y, xo, yo, xi, yi, 4, 4),
            p.compute_at(c, xo),
        )
    ),
    "lesson_8_mixed": two_stages(mixed, 40, 50),
}


# -- 9: updates


@program
def lesson_9_updates(m):
    x, y = variables(m, "x y")
    f = m.Func("f")
    f[x, y] = x + y
    f[3, 7] = 42
    f[x, 5] = x * 2 + f[x, 6]
    f[4, y] = y - 1
    f[x, 11] = f[x, 5] * 3
    return f.realize([20, 20])


@program
def lesson_9_update_over_a_domain(m):
    x, y = variables(m, "x y")
    f, r = m.Func("f"), m.RDom([(0, 20)])
    f[x, y] = (x + y) % 10
    f[x, r] = f[x, r] * f[x, r]
    return f.realize([20, 20])


@program
def lesson_9_update_at_mirrored_places(m):
    x, y = variables(m, "x y")
    f, r = m.Func("f"), m.RDom([(0, 16)])
    f[x, y] = (x * y + 3) % 7
    f[r, 15 - r] = f[r, 15 - r] + 1
    f[x, r] = f[x, 0] + r
    return f.realize([16, 16])


@program
def lesson_9_histogram(m):
    (x,) = variables(m, "x")
    image = m.Buffer(GRAY)
    histogram = m.Func("histogram")
    r = m.RDom([(0, image.width()), (0, image.height())])
    histogram[x] = 0
    histogram[image[r.x, r.y]] += 1
    return histogram.realize([256])


@program
def lesson_9_each_definition_has_a_schedule(m):
    x, y, yo, yi = variables(m, "x y yo yi")
    f = m.Func("f")
    f[x, y] = x * y
    f[x, 0] = f[x, 8]
    f[0, y] = f[8, y] + 2
    f.vectorize(x, 4).parallel(y)
    f.update(0).vectorize(x, 4)
    f.update(1).split(y, yo, yi, 4).parallel(yo)
    return f.realize([16, 16])


@program
def lesson_9_producer_with_updates_at_root(m):
    (x,) = variables(m, "x")
    producer, consumer = m.Func("producer"), m.Func("consumer")
    producer[x] = x * 2
    producer[x] += 10
    consumer[x] = 2 * producer[x]
    producer.compute_root()
    return consumer.realize([10])


@program
def lesson_9_producer_with_updates_by_default(m):
    (x,) = variables(m, "x")
    producer, consumer = m.Func("producer"), m.Func("consumer")
    producer[x] = x * 2
    producer[x] += 10
    consumer[x] = 2 * producer[x] + producer[x + 1]
    return consumer.realize([10])


@program
def lesson_9_used_by_the_pure_definition(m):
    (x,) = variables(m, "x")
    producer, consumer = m.Func("producer"), m.Func("consumer")
    producer[x] = x * 17
    producer[x] += 1
    consumer[x] = 2 * producer[x]
    consumer[x] += 50
    producer.compute_at(consumer, x)
    return consumer.realize([10])


@program
def lesson_9_used_by_the_update(m):
    x, y = variables(m, "x y")
    producer, consumer = m.Func("producer"), m.Func("consumer")
    producer[x] = x * 17
    consumer[x, y] = x + y
    consumer[x, 0] = producer[x]
    producer.compute_at(consumer, x)
    return consumer.realize([10, 10])


@program
def lesson_9_used_by_both_at_one_variable(m):
    x, y = variables(m, "x y")
    producer, consumer = m.Func("producer"), m.Func("consumer")
    producer[x] = x * 17
    consumer[x, y] = producer[x] * x
    consumer[x, 0] = producer[x] + producer[x + 1]
    producer.compute_at(consumer, x)
    return consumer.realize([10, 10])


@program
def lesson_9_wrappers_for_two_updates(m):
    x, y = variables(m, "x y")
    producer, consumer = m.Func("producer"), m.Func("consumer")
    one, two = m.Func("one"), m.Func("two")
    producer[x, y] = (x * x + y * y) / 10 + 8
    one[x, y] = producer[x, y]
    two[x, y] = producer[x, y]
    consumer[x, y] = x + y
    consumer[x, 0] += one[x, x]
    consumer[0, y] += two[y, 9 - y]
    one.compute_at(consumer, x)
    two.compute_at(consumer, y)
    return consumer.realize([10, 10])


@program
def lesson_9_inside_a_reduction(m):
    (x,) = variables(m, "x")
    producer, consumer, r = m.Func("producer"), m.Func("consumer"), m.RDom([(0, 5)])
    producer[x] = x % 8
    consumer[x] = x + 10
    consumer[x] += r + producer[x + r]
    producer.compute_at(consumer, r.x)
    return consumer.realize([10])


@program
def lesson_9_blur_by_a_reduction(m):
    x, y = variables(m, "x y")
    image = m.BoundaryConditions.repeat_edge(m.Buffer(GRAY))
    r = m.RDom([(-2, 5), (-2, 5)])
    wide, local_sum, blurry = m.Func("wide"), m.Func("local_sum"), m.Func("blurry")
    wide[x, y] = m.cast(m.Int(32), image[x, y])
    local_sum[x, y] = 0
    local_sum[x, y] += wide[x + r.x, y + r.y]
    blurry[x, y] = m.cast(m.UInt(8), local_sum[x, y] / 25)
    return blurry.realize([48, 36])


@program
def lesson_9_reductions_in_expressions(m):
    x, y = variables(m, "x y")
    clamped = m.BoundaryConditions.repeat_edge(m.Buffer(GRAY))
    r = m.RDom([(-2, 5)])
    sums, means = m.Func("sums"), m.Func("means")
    sums[x, y] = m.sum(r, m.cast(m.Int(32), clamped[x + r, y]), "row")
    means[x, y] = sums[x, y] / 5 + m.maximum(clamped[x, y + r])
    means.vectorize(x, 8)
    return means.realize([48, 36])


@program
def lesson_9_spread(m):
    x, y, yo, yi = variables(m, "x y yo yi")
    image = m.Buffer(GRAY)
    clamped = m.Func("clamped")
    clamped[x, y] = image[m.clamp(x, 0, 47), m.clamp(y, 0, 35)]
    r = m.RDom([(-2, 5), (-2, 5)])
    local_max, local_min, spread = m.Func("local_max"), m.Func("local_min"), m.Func("spread")
    local_max[x, y] = m.maximum(clamped[x + r.x, y + r.y])
    local_min[x, y] = m.minimum(clamped[x + r.x, y + r.y])
    spread[x, y] = local_max[x, y] - local_min[x, y]
    spread.split(y, yo, yi, 4).parallel(yo)
    spread.vectorize(x, 16)
    clamped.store_at(spread, yo).compute_at(spread, yi)
    return spread.realize([48, 36])


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
    rx_outer, rx_inner, ry_outer, ry_inner = (m.RVar(n) for n in ("rxo", "rxi", "ryo", "ryi"))
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
    rx_outer, rx_inner, ry_outer, ry_inner = (m.RVar(n) for n in ("rxo", "rxi", "ryo", "ryi"))
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
