"""The adjoint of Computations against central differences of their results."""

import numpy as np
import pytest

from tilewright.base.dtypes import float16, float32, float64, int32, int64
from tilewright.base.errors import UnsupportedError
from tilewright.compute.adjoint import ScatterAdd, adjoint
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import CC, PS, Computation, Dim, Output
from tilewright.expr.nodes import INDEX, Buffer, Select, Var, call, const


def buffer(name, *shape, dtype=float64):
    return Buffer(name, shape, dtype)


def flowing(steps, arrays, flow):
    """What flows to each input, from `flow` to the last result."""
    y = steps[-1].outputs[0].tensor
    g = Buffer("g", y.shape, y.dtype)
    results = {x: Buffer(f"d{x.name}", x.shape, x.dtype) for x in arrays}
    found = adjoint(steps, {y: g}, results)
    assert not any(isinstance(s, ScatterAdd) for s in found)
    computed = evaluate(found, {**arrays, g: flow})
    return [computed[r] for r in results.values()]


def some_of(shape):
    """At most 12 elements, spread over all."""
    every = list(np.ndindex(shape))
    return every[:: max(len(every) // 12, 1)]


def differences(steps, arrays, flow, step=1e-6):
    y = steps[-1].outputs[0].tensor
    found = []
    for x, a in arrays.items():
        d = np.full(a.shape, np.nan)
        for i in some_of(a.shape):
            ends = []
            for sign in (-1, 1):
                moved = a.copy()
                moved[i] += sign * step
                ends.append((evaluate(steps, {**arrays, x: moved})[y] * flow).sum())
            d[i] = (ends[1] - ends[0]) / (2 * step)
        found.append(d)
    return found


def agrees(steps, *inputs, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {x: rng.uniform(0.5, 1.5, x.shape) for x in inputs}
    flow = rng.uniform(0.5, 1.5, steps[-1].outputs[0].tensor.shape)
    got = flowing(steps, arrays, flow)
    for g, want in zip(got, differences(steps, arrays, flow), strict=True):
        known = ~np.isnan(want)
        np.testing.assert_allclose(g[known], want[known], rtol=1e-6, atol=1e-6)


def test_an_axis_of_one_point_beside_another():
    """x[i + j] with j < 1: i is the place, j is 0 and not the place too."""
    x, y = buffer("x", 4), buffer("y", 4, 1)
    agrees([map_("y", y, lambda i, j: x[i + j])], x)


def test_digits_of_an_index_inside_another_index():
    """x[i + j, 3 * j + k]: i is found by j, which is then found from the second index."""
    x, y = buffer("x", 6, 8), buffer("y", 3, 2, 3)
    agrees([map_("y", y, lambda i, j, k: x[i + j, 3 * j + k])], x)


def test_a_factor_shorter_than_what_it_is_multiplied_with():
    """There is no w[p] for the last elements of x, which are not read."""
    x, w, y = buffer("x", 5), buffer("w", 3), buffer("y", 3)
    agrees([map_("y", y, lambda i: x[i] * w[i])], x, w)


def test_the_greatest_of_values_wider_than_the_result():
    """1.2345 * 3 in float32 differs from the value rounded to float16."""
    x, y = buffer("x", 4, dtype=float16), buffer("y", dtype=float16)
    step = reduce_("y", y, (4,), "max", lambda k: cast(x[k], float32) * 1.2345)
    arrays = {x: np.array([1, 3, 2, 3], np.float16)}
    [dx] = flowing([step], arrays, np.array(1, np.float16))
    np.testing.assert_allclose(dx, [0, 0.6172, 0, 0.6172], rtol=1e-3)


def test_a_magnitude_has_no_slope_at_zero():
    x, y = buffer("x", 4), buffer("y", 4)
    step = map_("y", y, lambda i: call("abs", x[i]))
    [dx] = flowing([step], {x: np.array([0.0, -0.0, 2, -2])}, np.ones(4))
    np.testing.assert_array_equal(dx, [0, 0, 1, -1])


def test_zero_points_give_zeros():
    x, w, y = buffer("x", 0, 2), buffer("w", 2), buffer("y", 2)
    step = reduce_("y", y, (0,), "add", lambda i, k: x[k, i] * w[i])
    agrees([step], x, w)


def _random_steps(rng):
    """A product of accesses, its index random sums of multiples, then a step on its result."""
    rank = int(rng.integers(1, 4))
    extents = [int(n) for n in rng.integers(1, 4, rank)]
    kept = int(rng.integers(0, rank + 1))
    sources = []

    def access(name):
        index, shape = [], []
        for _ in range(int(rng.integers(1, 4))):
            factors = [int(c) for c in rng.choice([0, 0, 1, 1, 2, 3, 4, -1, -2], rank)]
            ends = [c * (n - 1) for c, n in zip(factors, extents, strict=True)]
            start = -sum(min(e, 0) for e in ends) + int(rng.integers(0, 2))
            index.append((start, factors))
            last = start + sum(max(e, 0) for e in ends)
            shape.append(last + 1 + int(rng.choice([0, 0, 2])))
        b = buffer(name, *shape)
        sources.append(b)

        def read(point):
            return b[
                tuple(
                    sum((v * c for v, c in zip(point, f, strict=True) if c), const(s))
                    for s, f in index
                )
            ]

        return read

    x, w = access("x"), access("w")
    form = rng.integers(0, 3)

    def value(*point):
        a, b = x(point), w(point)
        if form == 0:
            return a * b
        if form == 1:
            return Select(point[0] < const(2), a * b, a)
        return a * b * a + b

    out = buffer("s", *extents[:kept])
    if kept == rank:
        first = map_("s", out, value)
    else:
        op = ("add", "max", "mul")[int(rng.integers(0, 3))]
        first = reduce_("s", out, extents[kept:], op, value)
    y = buffer("y", *out.shape)
    return [first, map_("y", y, lambda *i: out[i] * out[i])], sources


@pytest.mark.sampled(5)  # each seed draws of all forms
@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    rng = np.random.default_rng(seed)
    steps, sources = _random_steps(rng)
    agrees(steps, *sources, seed=seed)


@pytest.mark.parametrize(
    ("extent", "count", "window", "stride", "begin"),
    [
        (9, 4, 3, 2, 0),
        (9, 4, 4, 2, 0),  # the window is twice the stride
        (7, 4, 3, 2, 1),  # in the padding at both ends
        (12, 3, 5, 3, -2),  # elements in front of the first window are read by none
        (20, 4, 2, 5, 0),  # windows apart
        (9, 7, 3, 1, 0),
    ],
)
def test_windows_that_overlap(extent, count, window, stride, begin):
    """x[stride * i + k - begin]: an element is read by window/stride points, rounded up."""
    x, w, y = buffer("x", extent), buffer("w", window), buffer("y", count)

    def value(i, k):
        at = i * stride + k - begin
        inside = (at >= 0) & (at < extent)
        return Select(inside, x[at], const(0.0, float64)) * w[k]

    agrees([reduce_("y", y, (window,), "add", value)], x, w)


def test_few_points_are_summed_where_windows_overlap():
    """Of seven taps with a stride of three: three, not seven of which a third counts."""
    x, y, g, dx = (buffer(n, e) for n, e in (("x", 25), ("y", 7), ("g", 7), ("dx", 25)))
    steps = [reduce_("y", y, (7,), "add", lambda i, k: x[i * 3 + k])]
    (found,) = adjoint(steps, {y: g}, {x: dx})
    assert [d.extent for d in found.dims] == [25, 3]


@pytest.mark.parametrize(
    "at",
    [
        lambda i, k: (i * 4 + k * 2, i),  # no variable stands alone
        lambda i, k: (i * 2 + k, i),  # i is found by the other axis
        lambda i, k: (i * 2 - k + 4, k),
        lambda i, k: (i * 3 + k, k),
    ],
)
def test_other_windows(at):
    """Both axes of x are read at the same points."""
    x, y = buffer("x", 24, 8), buffer("y", 5, 4)
    agrees([map_("y", y, lambda i, k: x[at(i, k)] * x[at(i, k)])], x)


def test_a_running_product_has_no_derived_adjoint():
    x, y = buffer("x", 3), buffer("y", 3)
    [first] = x.shape
    step = reduce_(
        "running", y, (first,), "mul", lambda i: x[i], extents=(),
        index=lambda i: (i,), combine=PS,
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="running combines by mul, which has no"):
        adjoint([step], {y: buffer("g", 3)}, {x: buffer("dx", 3)})


def test_the_adjoint_of_a_scatter_gathers():
    """Of y[i] = x[n[i]] w[i] for i below 3: by w of the scatter, and by what flows to y."""
    x, w, y = buffer("x", 5), buffer("w", 4), buffer("y", 4)
    n = Buffer("n", (4,), int64)
    none = const(0, float64)

    def read(i):
        return Select(i < 3, x[n[i]] * w[i], none)

    g, dx, h = buffer("g", 4), buffer("dx", 5), buffer("h", 5)
    (scatter,) = adjoint([map_("read", y, read)], {y: g}, {x: dx})
    assert isinstance(scatter, ScatterAdd)
    dw, dg = buffer("dw", 4), buffer("dg", 4)
    found = adjoint([scatter], {dx: h}, {w: dw, g: dg})
    assert not any(isinstance(s, ScatterAdd) for s in found)
    rng = np.random.default_rng(2)
    arrays = {b: rng.standard_normal(b.shape) for b in (w, g, h)}
    places = np.array([4, 0, 4, 1])
    computed = evaluate(found, {**arrays, n: places})
    counted = np.arange(4) < 3
    ends = np.where(counted, arrays[h][places], 0)
    np.testing.assert_allclose(computed[dg], ends * arrays[w])
    np.testing.assert_allclose(computed[dw], ends * arrays[g])
    assert adjoint([scatter], {}, {g: dg})[0].outputs[0].value is none


def test_a_condition_that_reads_memory_is_asked_where_that_is_inside():
    """Of y[i] = x[i] where i > 0 and the weight before it is positive: w[-1] is not read."""
    x, w, y = buffer("x", 4), buffer("w", 4), buffer("y", 4)
    none = const(0, float64)

    def read(i):
        return Select(1 <= i, Select(none < w[i - 1], x[i], none), none)

    g, dx = buffer("g", 4), buffer("dx", 4)
    found = adjoint([map_("read", y, read)], {y: g}, {x: dx})
    arrays = {w: np.array([1.0, -1.0, 2.0, -1.0]), g: np.arange(1.0, 5.0)}
    np.testing.assert_array_equal(evaluate(found, arrays)[dx], [0, 2, 0, 4])


def test_what_a_scatter_only_compares_has_no_flow():
    x, w, y = buffer("x", 5), buffer("w", 4), buffer("y", 4)
    n = Buffer("n", (4,), int64)
    one, two = const(1, float64), const(2, float64)
    step = map_("read", y, lambda i: x[n[i]] * Select(w[i] < one, one, two))
    g, dx, dw, h = buffer("g", 4), buffer("dx", 5), buffer("dw", 4), buffer("h", 5)
    scatter = adjoint([step], {y: g}, {x: dx})
    found = adjoint(scatter, {dx: h}, {w: dw})
    np.testing.assert_array_equal(evaluate(found, {})[dw], np.zeros(4))


def test_factors_that_are_not_asked_for_need_no_derivative():
    x, w, y = buffer("x", 3), buffer("w", 3), buffer("y", 3)
    step = map_("scaled", y, lambda i: x[i] * call("lgamma", w[i]))
    g, dx, dw = buffer("g", 3), buffer("dx", 3), buffer("dw", 3)
    assert adjoint([step], {y: g}, {x: dx})
    with pytest.raises(UnsupportedError, match="lgamma"):
        adjoint([step], {y: g}, {w: dw})


def test_whole_numbers_pass_nothing_back():
    """y[i] = x[i] * n[i] with a whole n: how it was made needs no derivative."""
    x, y, n = buffer("x", 3), buffer("y", 3), buffer("n", 3, dtype=int32)
    steps = [
        map_("whole", n, lambda i: cast(call("lgamma", x[i]), int32)),
        map_("y", y, lambda i: x[i] * cast(n[i], float64)),
    ]
    arrays = {x: np.array([4.25, 5.5, 6.75])}
    [dx] = flowing(steps, arrays, np.array([1.0, 10.0, 100.0]))
    np.testing.assert_array_equal(dx, [2, 30, 600])


def test_a_scatters_factors_that_are_not_asked_for_need_no_derivative():
    x, w, y = buffer("x", 5), buffer("w", 3), buffer("y", 3)
    n = Buffer("n", (3,), int64)
    step = map_("read", y, lambda i: x[n[i]] * call("lgamma", w[i]))
    g, dw, dg = (buffer(b, 3) for b in ("g", "dw", "dg"))
    dx, h = buffer("dx", 5), buffer("h", 5)
    scatter = adjoint([step], {y: g}, {x: dx})
    assert adjoint(scatter, {dx: h}, {g: dg})
    with pytest.raises(UnsupportedError, match="lgamma"):
        adjoint(scatter, {dx: h}, {w: dw})


@pytest.mark.parametrize("n", range(2))
def test_of_two_results_only_one_may_have_a_flow(n):
    """A step writes 2 x[i] and x[i]^2."""
    x, y, z, g, dx = (buffer(b, 3) for b in ("x", "y", "z", "g", "dx"))
    d = Dim(Var("i", INDEX), 3, CC)
    read = x[d.var]
    outputs = (Output(y, (d.var,), read * 2.0), Output(z, (d.var,), read * read))
    step = Computation("both", (d,), outputs, None)
    found = adjoint([step], {(y, z)[n]: g}, {x: dx})
    arrays = {x: np.array([1.0, 2, 3]), g: np.array([1.0, 10, 100])}
    want = ([2, 20, 200], [2, 40, 600])[n]
    np.testing.assert_array_equal(evaluate(found, arrays)[dx], want)
