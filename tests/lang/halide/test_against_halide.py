"""The same lines in the `halide` package and here: equal results, for meaning and for schedules."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import halide as hl

theirs = pytest.importorskip("halide")

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (12, 20)).astype(np.uint8)
SHORTS = RNG.integers(-32768, 32768, (12, 20)).astype(np.int16)
WORDS = RNG.integers(-1000, 1000, (12, 20)).astype(np.int32)
FLOATS = (RNG.standard_normal((12, 20)) * 50).astype(np.float32)


def both(make, sizes=(20, 12), *, rtol=0.0):
    """`make(module, images...)` realized by both modules."""
    results = []
    for m in (hl, theirs):
        images = [
            m.Buffer(np.ascontiguousarray(a)) for a in (BYTES, SHORTS, WORDS, FLOATS)
        ]
        f = make(m, *images)
        found = f.realize(list(sizes))
        found = found if isinstance(found, tuple | list) else (found,)
        results.append([np.asarray(b) for b in found])
    for ours, want in zip(*results, strict=True):
        assert ours.dtype == want.dtype
        np.testing.assert_allclose(ours, want, rtol=rtol, atol=rtol)


def pointwise(expression):
    def make(m, b, s, w, f):
        x, y, g = m.Var("x"), m.Var("y"), m.Func("g")
        g[x, y] = expression(m, b[x, y], s[x, y], w[x, y], f[x, y], x, y)
        return g

    return make


EXPRESSIONS = {
    "u8 wraps": lambda m, b, s, w, f, x, y: b + b * 3,
    "u8 and i16": lambda m, b, s, w, f, x, y: b + s,
    "i16 and i32": lambda m, b, s, w, f, x, y: s * 3 - w,
    "u8 and float": lambda m, b, s, w, f, x, y: b * 0.5 + f,
    "coordinates": lambda m, b, s, w, f, x, y: x * 7 - y + b,
    "division": lambda m, b, s, w, f, x, y: w // 7,
    "division by a negative": lambda m, b, s, w, f, x, y: w // -7,
    "division by a value": lambda m, b, s, w, f, x, y: w // (x - 4),
    "remainder": lambda m, b, s, w, f, x, y: w % 7,
    "remainder of a negative": lambda m, b, s, w, f, x, y: w % -7,
    "remainder by a value": lambda m, b, s, w, f, x, y: w % (x - 4),
    "float division": lambda m, b, s, w, f, x, y: f / 3.0,
    "casts down": lambda m, b, s, w, f, x, y: m.u8(w) + m.u8(s),
    "cast of floats": lambda m, b, s, w, f, x, y: m.i32(f),
    "cast up": lambda m, b, s, w, f, x, y: m.u16(b) * 257,
    "saturating": lambda m, b, s, w, f, x, y: m.saturating_cast(m.UInt(8), w),
    "abs": lambda m, b, s, w, f, x, y: m.abs(w),
    "abs of the least": lambda m, b, s, w, f, x, y: m.abs(m.i8(s)),
    "abs of floats": lambda m, b, s, w, f, x, y: m.abs(f),
    "absd": lambda m, b, s, w, f, x, y: m.absd(b, m.u8(w)),
    "min and max": lambda m, b, s, w, f, x, y: m.max(m.min(w, 50), s),
    "clamp": lambda m, b, s, w, f, x, y: m.clamp(w, -100, 100),
    "select": lambda m, b, s, w, f, x, y: m.select(w > 0, w, -w),
    "many selects": lambda m, b, s, w, f, x, y: m.select(x < 3, 1, y < 5, 2, 3),
    "logic": lambda m, b, s, w, f, x, y: m.select((x < 9) & ~(y == 2) | (w != 3), b, 1),
    "bits": lambda m, b, s, w, f, x, y: (b & 15) ^ (b >> 2) | 64,
    "shifts": lambda m, b, s, w, f, x, y: (w << 3) + (s >> 2),
    "negation": lambda m, b, s, w, f, x, y: -w,
    "rounding": lambda m, b, s, w, f, x, y: (
        m.round(f) + m.floor(f) * 2.0 + m.ceil(f) + m.trunc(f)
    ),
    "widening": lambda m, b, s, w, f, x, y: (
        m.i64(m.widening_mul(b, b))
        + m.widening_sub(b, m.u8(s))
        + m.widening_add(s, m.i16(w))
    ),
    "halving": lambda m, b, s, w, f, x, y: (
        m.halving_add(b, m.u8(w))
        + m.rounding_halving_add(b, m.u8(w))
        + m.halving_sub(b, m.u8(w))
    ),
    "saturating steps": lambda m, b, s, w, f, x, y: (
        m.saturating_add(s, m.i16(w * 30)) ^ m.saturating_sub(s, m.i16(w * 30))
    ),
    "saturating casts": lambda m, b, s, w, f, x, y: m.i32(m.u8_sat(w)) + m.i8_sat(s),
    "shifts that round": lambda m, b, s, w, f, x, y: (
        m.rounding_mul_shift_right(s, m.i16(w), 7) + m.mul_shift_right(s, m.i16(w), 7)
    ),
    "division to zero": lambda m, b, s, w, f, x, y: (
        m.div_round_to_zero(w, 7) * 100 + m.mod_round_to_zero(w, 7)
    ),
    "lerp of bytes": lambda m, b, s, w, f, x, y: m.lerp(b, m.u8(s), m.u8(w)),
    "lerp of shorts": lambda m, b, s, w, f, x, y: m.lerp(s, m.i16(w), m.f32(x) / 20.0),
    "lerp of floats": lambda m, b, s, w, f, x, y: m.lerp(m.abs(f), 3.5, m.u8(s)),
    "mux": lambda m, b, s, w, f, x, y: m.mux(x % 4, [m.i32(b), w, m.i32(s)]),
    "tests of floats": lambda m, b, s, w, f, x, y: m.select(
        m.is_nan(m.sqrt(f)), 1, m.is_inf(f / m.f32(x)), 2, m.is_finite(f), 3, 4
    ),
    "float parts": lambda m, b, s, w, f, x, y: (
        m.fract(f) + m.hypot(f, 3.0) + m.atan2(f, m.f32(w))
    ),
    "bits of floats": lambda m, b, s, w, f, x, y: m.reinterpret(m.Int(32), f) ^ w,
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions(name):
    both(pointwise(EXPRESSIONS[name]), rtol=1e-6 if "float" in name else 0.0)


FUNCTIONS = "sqrt exp log sin cos tan atan tanh sinh cosh asin acos".split()


@pytest.mark.sampled(3)  # a root, a power, a periodic and a hyperbolic function
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    def expression(m, b, s, w, f, x, y):
        return getattr(m, name)(m.f32(b) / 257.0 + 0.0009765625)

    both(pointwise(expression), rtol=1e-5)


CONDITIONS = [
    "repeat_edge",
    "repeat_image",
    "mirror_image",
    "mirror_interior",
    "constant_exterior",
]


@pytest.mark.sampled(2)  # repeated, mirrored, and constant
@pytest.mark.parametrize("name", CONDITIONS)
def test_boundary_conditions(name):
    def make(m, b, s, w, f):
        x, y, g = m.Var("x"), m.Var("y"), m.Func("g")
        more = [7] if name == "constant_exterior" else []
        edge = getattr(m.BoundaryConditions, name)(b, *more)
        g[x, y] = edge[x - 7, y + 5]
        return g

    both(make, (34, 14))


def test_updates():
    def make(m, b, s, w, f):
        x, y, g = m.Var("x"), m.Var("y"), m.Func("g")
        r, q = m.RDom([(1, 19)], "r"), m.RDom([(0, 20), (0, 12)], "q")
        g[x, y] = w[x, y]
        g[r.x, y] = g[r.x - 1, y] // 2 + w[r.x, y]
        g[x, 0] += m.i32(x)
        g[x, 3] = g[x, 4] - 1
        g[m.i32(b[q.x, q.y]) % 20, 5] += 1
        return g

    both(make)


def test_reductions():
    def make(m, b, s, w, f):
        y, g, r = m.Var("y"), m.Func("g"), m.RDom([(0, 20)], "r")
        low, high = m.argmin(r, w[r.x, y]), m.argmax(r, w[r.x, y])
        total = m.sum(w[r.x, y]) + m.maximum(w[r.x, y]) - m.minimum(w[r.x, y])
        g[y] = total + low[0] * 3 + low[1] + high[0] * 5 + high[1]
        return g

    both(make, (12,))


def test_where():
    def make(m, b, s, w, f):
        x, g, r = m.Var("x"), m.Func("g"), m.RDom([(0, 20), (0, 12)], "r")
        r.where(r.x + r.y < 13)
        r.where(b[r.x, r.y] > 40)
        g[x] = 0
        g[x] += w[r.x, r.y] * x
        return g

    both(make, (5,))


def test_tuples():
    def make(m, b, s, w, f):
        x, y, g, h = m.Var("x"), m.Var("y"), m.Func("g"), m.Func("h")
        g[x, y] = (b[x, y], w[x, y] + x)
        h[x, y] = (m.i32(g[x, y][0]) * 2, g[x, y][1] - 1)
        both_values = m.Func("both_values")
        both_values[x, y] = h[x, y]
        return both_values

    both(make)


def test_rfactor():
    """A histogram and a sum by rows in parallel, as in Halide's tutorial."""

    def make(m, b, s, w, f):
        x, v, u = m.Var("x"), m.Var("v"), m.Var("u")
        h, t, out = m.Func("h"), m.Func("t"), m.Func("out")
        r, q = m.RDom([(0, 20), (0, 12)], "r"), m.RDom([(0, 20), (0, 12)], "q")
        q.where(q.x + q.y < 20)
        h[x] = 5
        h[m.i32(b[r.x, r.y]) % 16] += 1
        rows = h.update().rfactor(r.y, v)
        rows.compute_root().update().parallel(v)
        t[x] = 0
        t[x] = m.max(t[x], w[q.x, q.y] * x)
        columns = t.update().rfactor([(q.x, u)])
        columns.compute_root().vectorize(x, 4).update().parallel(u)
        h.compute_root()
        t.compute_root()
        out[x] = h[x] + t[x]
        return out

    both(make, (16,))


# -- one program, many schedules: (verbs on the two Funcs)


def tail(m, name):
    return getattr(m.TailStrategy, name)


SCHEDULES = {
    "root": lambda m, f, g, v: f.compute_root(),
    "inline": lambda m, f, g, v: None,
    "at": lambda m, f, g, v: f.compute_at(g, v["y"]),
    "tile": lambda m, f, g, v: (
        g.tile(v["x"], v["y"], v["xi"], v["yi"], 8, 4),
        f.compute_at(g, v["x"]),
    ),
    "paper": lambda m, f, g, v: (
        g.tile(v["x"], v["y"], v["xi"], v["yi"], 8, 4)
        .vectorize(v["xi"], 4)
        .parallel(v["y"]),
        f.compute_at(g, v["x"]).vectorize(v["x"], 4),
    ),
    "slide": lambda m, f, g, v: f.store_root().compute_at(g, v["y"]),
    "slide both ways": lambda m, f, g, v: f.store_root().compute_at(g, v["x"]),
    "slide in strips": lambda m, f, g, v: (
        g.split(v["y"], v["y"], v["yi"], 4).parallel(v["y"]),
        f.store_at(g, v["y"]).compute_at(g, v["yi"]).vectorize(v["x"], 8),
    ),
    "guard": lambda m, f, g, v: (
        g.split(v["x"], v["x"], v["xi"], 7, tail(m, "GuardWithIf")).unroll(v["xi"]),
        f.compute_root().vectorize(v["x"], 8),
    ),
    "fuse": lambda m, f, g, v: (
        g.fuse(v["x"], v["y"], v["t"]).parallel(v["t"]),
        f.compute_root().reorder(v["y"], v["x"]).parallel(v["x"]),
    ),
    "storage": lambda m, f, g, v: (
        f.compute_root().reorder_storage(v["y"], v["x"]),
        g.reorder(v["y"], v["x"]),
    ),
    "bound": lambda m, f, g, v: f.compute_root().bound(v["x"], 0, 16).unroll(v["x"], 4),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    def make(m, b, s, w, image):
        x, y = m.Var("x"), m.Var("y")
        v = {n: m.Var(n) for n in ("x", "y", "xi", "yi", "t")}
        f, g = m.Func("f"), m.Func("g")
        f[x, y] = m.u16(b[x, y]) + m.u16(b[x + 1, y]) * 2
        g[x, y] = (f[x, y] + f[x, y + 1] * 3 + f[x, y + 2]) // 4
        SCHEDULES[name](m, f, g, v)
        return g

    both(make, (16, 10))


def test_fused_loops_need_not_be_neighbors():
    """The fused loop stands where the inner one did, wherever the outer one was."""

    def make(m, b, s, w, image):
        x, y, t, xi, yi = (m.Var(n) for n in ("x", "y", "t", "xi", "yi"))
        g = m.Func("g")
        g[x, y] = b[x, y] * 2
        g.tile(x, y, xi, yi, 4, 2).fuse(y, x, t).parallel(t)
        return g

    both(make)
