"""Lessons 1 to 9 of Halide's tutorial."""

from __future__ import annotations

from tests.lang.halide.tutorial.common import COLOR, GRAY, PROGRAMS, program, variables

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
    "lesson_5_split": gradient_with(
        lambda g, x, y, xo, yo, xi, *_: g.split(x, xo, xi, 2)
    ),
    "lesson_5_fuse": gradient_with(
        lambda g, x, y, xo, yo, xi, yi, t, *_: g.fuse(x, y, t)
    ),
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
    blur_y[x, y, c] = (
        blur_x[x, y - 1, c] + 2 * blur_x[x, y, c] + blur_x[x, y + 1, c]
    ) / 4
    out[x, y, c] = m.cast(m.UInt(8), blur_y[x, y, c])
    result = m.Buffer(m.UInt(8), [image.width() - 2, image.height() - 2, 3])
    result.set_min([1, 1])
    out.realize(result)
    return result


@program
def lesson_7_blur_with_clamped_edges(m):
    x, y, c = variables(m, "x y c")
    image = m.Buffer(COLOR)
    clamped, wide, blur_x, blur_y = (
        m.Func(n) for n in ("clamped", "wide", "blur_x", "blur_y")
    )
    clamped_x = m.clamp(x, 0, image.width() - 1)
    clamped_y = m.clamp(y, 0, image.height() - 1)
    clamped[x, y, c] = image[clamped_x, clamped_y, c]
    wide[x, y, c] = m.cast(m.UInt(16), clamped[x, y, c])
    blur_x[x, y, c] = (wide[x - 1, y, c] + 2 * wide[x, y, c] + wide[x + 1, y, c]) / 4
    blur_y[x, y, c] = (
        blur_x[x, y - 1, c] + 2 * blur_x[x, y, c] + blur_x[x, y + 1, c]
    ) / 4
    return blur_y.realize([image.width(), image.height(), 3])


# -- 8: where a producer is computed


def two_stages(schedule, width=24, height=20):
    def make(m):
        v = {n: m.Var(n) for n in "x y xo yo xi yi".split()}
        x, y = v["x"], v["y"]
        producer, consumer = m.Func("producer"), m.Func("consumer")
        producer[x, y] = m.sin(x * y)
        consumer[x, y] = (
            producer[x, y]
            + producer[x, y + 1]
            + producer[x + 1, y]
            + producer[x + 1, y + 1]
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
    "lesson_8_slide": two_stages(
        lambda p, c, x, y, *_: p.store_root().compute_at(c, y)
    ),
    "lesson_8_slide_both_ways": two_stages(
        lambda p, c, x, *_: p.store_root().compute_at(c, x)
    ),
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
    local_max, local_min, spread = (
        m.Func("local_max"),
        m.Func("local_min"),
        m.Func("spread"),
    )
    local_max[x, y] = m.maximum(clamped[x + r.x, y + r.y])
    local_min[x, y] = m.minimum(clamped[x + r.x, y + r.y])
    spread[x, y] = local_max[x, y] - local_min[x, y]
    spread.split(y, yo, yi, 4).parallel(yo)
    spread.vectorize(x, 16)
    clamped.store_at(spread, yo).compute_at(spread, yi)
    return spread.realize([48, 36])
