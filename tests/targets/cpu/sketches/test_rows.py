"""Rows worked on at once: short ones in a cache are interleaved, whatever their number."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import onnx.parser
import pytest

from tilewright.base.dtypes import float32, uint8
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import cast
from tilewright.compute.nodes import Computation
from tilewright.driver import text
from tilewright.driver.build_kernel import build_kernel
from tilewright.expr.nodes import Expr, Var
from tilewright.graph.ops.softmax import exponentials
from tilewright.loops.lower import lower
from tilewright.loops.verify import verify
from tilewright.operators import Buffer, call, map_, reduce_
from tilewright.runtime.executable import Executable
from tilewright.schedule.space import Sketch
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.cpu.sketches.rules import is_profitable
from tilewright.targets.registry import target


def softmax(rows: int, width: int) -> list[Computation]:
    x, y = (Buffer(name, (rows, width), float32) for name in "xy")
    e = exponentials("e", x, [1], float32)
    return [*e.steps, map_("div", y, lambda i, j: e.terms[i, j] / e.total[i, 0])]


def layer_norm(rows: int, width: int, added: bool = False) -> list[Computation]:
    """With another tensor added first, or not."""
    x, z, y = (Buffer(name, (rows, width), float32) for name in "xzy")
    both = Buffer("both", x.shape, float32)
    total, squares = (Buffer(name, (rows,), float32) for name in ("total", "squares"))
    mean = lambda i: total[i] / float(width)  # noqa: E731
    row = both if added else x
    first = [map_("both", both, lambda i, j: x[i, j] + z[i, j])] if added else []
    off = lambda i, j: row[i, j] - mean(i)  # noqa: E731
    return [
        *first,
        reduce_("total", total, (width,), "add", lambda i, j: row[i, j]),
        reduce_(
            "squares", squares, (width,), "add", lambda i, j: off(i, j) * off(i, j)
        ),
        map_("y", y, lambda i, j: off(i, j) / call("sqrt", squares[i])),
    ]


def root_mean_square(rows: int, width: int) -> list[Computation]:
    x, y = (Buffer(name, (rows, width), float32) for name in "xy")
    squares = Buffer("squares", (rows,), float32)
    return [
        reduce_("squares", squares, (width,), "add", lambda i, j: x[i, j] * x[i, j]),
        map_("y", y, lambda i, j: x[i, j] / call("sqrt", squares[i])),
    ]


def best(steps: list[Computation], at: Context) -> Sketch:
    given, y = steps[0].inputs, steps[-1].outputs[0].tensor
    return sketches(lower("k", steps, params=[*given, y], outputs=[y]), steps, at)[0]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("vectors", [1, 4])
@pytest.mark.parametrize("shape", [(5, 300), (4, 256), (3, 1, 97)], ids=str)
def test_a_sum_runs_with_its_terms_in_the_memory_of_the_result(
    shape: tuple[int, ...], vectors: int, joins: bool, in_place: bool
) -> None:
    x, y = (Buffer(name, shape, float32) for name in "xy")
    e = exponentials("e", x, [len(shape) - 1], float32)
    total = lambda i: e.total[(*i[:-1], 0)]  # noqa: E731
    steps = [*e.steps, map_("div", y, lambda *i: e.terms[i] / total(i))]
    values = {
        "e_sum.joins": joins,
        "e_exp.in_place": in_place,
        "e_sum.vectors": vectors,
    }
    kernel = best(steps, Context(host())).at(values).schedule.kernel
    verify(kernel)
    assert ("alloc e_exp" in str(kernel)) == (not in_place)
    assert ("for e_sum." in str(kernel)) == (not joins)
    given = np.random.default_rng(0).standard_normal(shape, np.float32)
    given[0, ..., 3], given[1, ..., -1], given[2, ..., 0] = -np.inf, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        terms = np.exp(given.astype(np.float64) - given.max(-1, keepdims=True))
        expected = terms / terms.sum(-1, keepdims=True)
    found = Executable(build_kernel(kernel, target("cpu")), threads=2)(given)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("level", "width", "together"),
    [("v2", 7, 4), ("v2", 8, 2), ("v3", 15, 4), ("v3", 16, 2), ("v4", 15, 4)],
)
def test_rows_of_one_partial_result_are_interleaved_by_four(
    level: str, width: int, together: int
) -> None:
    point = best(softmax(512, width), Context(machine(f"x86-64-{level}"))).default()
    assert point.values["div.rows"] == together


@pytest.mark.parametrize(("rows", "in_place"), [(8, False), (256, True), (4096, False)])
def test_a_large_result_holds_the_terms_if_it_does_not_pass_the_caches_by(
    rows: int, in_place: bool
) -> None:
    values = best(softmax(rows, 4096), Context(machine("x86-64-v4"))).default().values
    assert values["e_exp.in_place"] == in_place


def test_what_is_added_before_a_norm_runs_with_its_sum() -> None:
    x, r, y, t = (Buffer(name, (6, 100), float32) for name in "xryt")
    total, square = Buffer("s", (6,), float32), Buffer("q", (6,), float32)
    steps = [
        map_("t", t, lambda i, j: x[i, j] + r[i, j]),
        reduce_("s", total, (100,), "add", lambda i, k: t[i, k]),
        reduce_("q", square, (100,), "add", lambda i, k: t[i, k] * t[i, k]),
        map_(
            "y", y, lambda i, j: (t[i, j] - total[i] / 100.0) / call("sqrt", square[i])
        ),
    ]
    plain = lower("k", steps, params=[x, r, y], outputs=[y])
    schedule = (
        sketches(plain, steps, Context(host()))[0].at({"t.in_place": True}).schedule
    )
    loops = [name.split(".")[0] for name in schedule.loops]
    assert "s" not in loops and "q" not in loops and "alloc t" not in str(schedule)
    schedule.verify()


@pytest.mark.covering(1)
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("shape", [(23, 70), (16, 33), (5, 300)], ids=str)
def test_any_number_of_rows_at_a_time(shape: tuple[int, int], rows: int) -> None:
    if rows > (most := host().registers // (2 * cost_model(host()).in_flight)):
        pytest.skip(f"this processor's registers hold {most} rows")
    kernel = (
        best(softmax(*shape), Context(host())).at({"div.rows": rows}).schedule.kernel
    )
    verify(kernel)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    terms = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    found = Executable(build_kernel(kernel, target("cpu")), threads=2)(x)
    np.testing.assert_allclose(found, terms / terms.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "level", "rows"),
    [
        ((128, 128), "x86-64-v4", 4),
        ((128, 128), "x86-64-v3", 2),  # half the registers
        ((128, 1024), "x86-64-v4", 1),  # long
        ((65536, 128), "x86-64-v4", 1),  # from memory
        ((8, 128), "x86-64-v4", 1),  # few
    ],
    ids=str,
)
def test_short_rows_in_a_cache_are_interleaved(
    shape: tuple[int, int], level: str, rows: int
) -> None:
    sketch = best(softmax(*shape), Context(machine(level)))
    assert sketch.default().values["div.rows"] == rows


@pytest.mark.parametrize(
    ("steps", "level", "rows"),
    [
        (layer_norm(64, 768), "x86-64-v4", 4),
        (layer_norm(64, 768), "x86-64-v3", 2),  # half the registers
        (layer_norm(32, 1024), "x86-64-v4", 1),  # long
        (layer_norm(1024, 768), "x86-64-v4", 1),  # from memory
        (layer_norm(64, 384, added=True), "x86-64-v4", 4),
        (layer_norm(32, 768, added=True), "x86-64-v4", 2),  # rows of four tensors
        (root_mean_square(64, 384), "x86-64-v4", 1),  # no reduction waits
        (softmax(64, 384), "x86-64-v4", 1),  # functions take longer
    ],
)
def test_longer_rows_are_interleaved_where_reductions_wait_for_one_another(
    steps: list[Computation], level: str, rows: int
) -> None:
    values = best(steps, Context(machine(level))).default().values
    assert values[f"{steps[-1].name}.rows"] == rows


def roots(rows: int, width: int, count: int) -> list[Computation]:
    """The greatest of a row's elements, after so many square roots."""
    x, y = Buffer("x", (rows, width), float32), Buffer("y", (rows,), float32)

    def rooted(i: Var, j: Var) -> Expr:
        value: Expr = x[i, j]
        for _ in range(count):
            value = call("sqrt", value)
        return value

    return [reduce_("most", y, (width,), "max", rooted)]


@pytest.mark.parametrize(
    ("steps", "shared"),
    [
        (softmax(100, 92), False),  # 2.4 us on one core of a Zen 5, 4.5 on two
        (softmax(400, 92), True),
        (roots(100, 92, 0), False),
        (roots(400, 256, 0), True),  # little arithmetic on data of both cores
        (roots(100, 92, 20), True),  # much on little data
    ],
)
def test_threads_share_rows_that_take_one_core_long(
    steps: list[Computation], shared: bool
) -> None:
    at = Context(replace(machine("znver5"), cores=2))
    values = best(steps, at).default().values
    assert values[f"{steps[-1].name}.parallel"] == shared


def test_rows_of_weights_are_shared_only_if_they_are_more() -> None:
    """Which core reads them is not decided by which core made them."""
    steps = roots(250, 256, 0)
    (x,) = steps[0].inputs
    for constants in ([], [x]):
        at = Context(
            replace(machine("znver5"), cores=2), constants=frozenset(constants)
        )
        assert best(steps, at).default().values["most.parallel"] == (not constants)


def test_long_rows_are_not_offered_together() -> None:
    with pytest.raises(ScheduleError, match=r"div\.rows|no parameter|not possible"):
        best(softmax(64, 4096), Context(host())).at({"div.rows": 4})


@pytest.mark.parametrize(
    ("width", "vectors"), [(768, 4), (1024, 4), (128, 1), (770, 1), (4096, 1)], ids=str
)
def test_cheap_maps_of_rows_in_the_first_cache_have_more_on_the_way(
    width: int, vectors: int
) -> None:
    values = best(softmax(64, width), Context(machine("x86-64-v4"))).default().values
    assert values["div.vectors"] == vectors
    assert values["e_sum.vectors"] == 1  # its loop computes the exponentials too


@pytest.mark.parametrize("shape", [(6, 100), (5, 7, 64), (3, 1)], ids=str)
def test_what_reads_a_kept_row_is_made_with_it(shape: tuple[int, ...]) -> None:
    """Its sums are made once a row, and not for each element of what comes last."""
    x, y = (Buffer(name, shape, float32) for name in "xy")
    u = Buffer("u", shape, uint8)
    total = Buffer("s", shape[:-1], float32)
    steps = [
        reduce_("s", total, shape[-1:], "add", lambda *i: x[i]),
        map_("y", y, lambda *i: x[i] - total[i[:-1]]),
        map_("u", u, lambda *i: cast(call("round_even", y[i] / 0.25) + 128.0, uint8)),
    ]
    at = Context(replace(host(), cores=2))
    kernel = lower("k", steps, params=[x, y, u], outputs=[y, u])
    given = np.random.default_rng(0).standard_normal(shape, np.float32)
    made = sketches(kernel, steps, at)[0].default().schedule.kernel
    verify(made)
    around, _ = str(made).split("alloc s:")
    points = math.prod(int(n) for n in re.findall(r" in (\d+)", around))
    assert points <= math.prod(shape[:-1])
    expected = given - given.sum(-1, keepdims=True)
    y_found, u_found = Executable(build_kernel(made, target("cpu")), threads=2)(given)
    np.testing.assert_allclose(y_found, expected, rtol=1e-5, atol=1e-5)
    rounded = np.clip(np.round(y_found / 0.25) + 128, 0, 255)
    np.testing.assert_array_equal(u_found, rounded)


def by_sums(places: str, rows: int = 9, width: int = 9) -> list[Computation]:
    """Each element by the sums of some rows: its own, "i", that of its column, "j", or by the sum
    of everything, "t"."""
    x, y = (Buffer(name, (rows, width), float32) for name in "xy")
    sums = Buffer("sums", (1,) if places == "t" else (rows,), float32)
    if places == "t":
        total = reduce_("sums", sums, (rows, width), "add", lambda o, i, j: x[i, j])
    else:
        total = reduce_("sums", sums, (width,), "add", lambda i, j: x[i, j])

    def value(i, j):
        result = x[i, j]
        for place in places:
            result = result / sums[{"i": i, "j": j, "t": 0}[place]]
        return result

    return [total, map_("y", y, value)]


@pytest.mark.parametrize(
    ("computations", "good"),
    [
        (by_sums("i"), True),
        (by_sums("ii"), True),
        (by_sums("t"), True),
        (by_sums("t")[:1], True),
        (by_sums("i")[:1], True),
        (by_sums("j"), False),
        (by_sums("ij"), False),
        (softmax(9, 9), True),
        (layer_norm(9, 9, added=True), True),
    ],
)
def test_rows_that_use_results_of_others_are_no_kernel(
    computations: list[Computation], good: bool
) -> None:
    """One of all rows one after another would have a single thread."""
    at = Context(machine("x86-64-v4"))
    assert classify(computations).name == "rows" or computations[1:] == []
    assert is_profitable(computations, at) == good


def test_a_symmetric_normalization_is_two_kernels() -> None:
    """That of a graph's edges by the degrees of both ends."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[40, 40] a) => (float[40, 40] y) <int64[1] last = {1}, float half = {-0.5}> {
        sums = ReduceSum(a, last) roots = Pow(sums, half) column = Transpose(roots)
        scaled = Mul(roots, a) y = Mul(scaled, column)
      }""")
    assert text(model, "plan").count("  group ") == 2
