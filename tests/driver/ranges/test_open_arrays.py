"""Arrays that no constant of all sizes contains: what computes them runs in each call."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.driver.ranges.test_ranged import HEAD, SIZED
from tests.driver.ranges.test_ranged import model as sized
from tilewright.driver.options import Options
from tilewright.driver.ranges.open_arrays import with_computed_arrays
from tilewright.driver.sources import import_model
from tilewright.graph.ops.at_run_time import AT_RUN_TIME
from tilewright.graph.passes.simplify import fold_constants
from tilewright.graph.specialize import specialize, typing_at
from tilewright.runtime.ranged import RangedExecutable

ENDS = "(float[b, p] x, float[b, s] z) => (y)"
NUMBERS = (
    " zero = Constant<value_int = 0>() one = Constant<value_int = 1>()"
    " last = Constant<value_ints = [1]>() bs = Shape<start = 0, end = 1>(x)"
    " ps = Shape<start = 1>(x) ss = Shape<start = 1>(z)"
    " b = Squeeze(bs) p = Squeeze(ps) s = Squeeze(ss)"
)
# The result is of the extents of z and of numbers that depend on p.
MODELS = {
    "starts of rows in a flat tensor": " i = Range(zero, b, one) j = Mul(i, s)"
    " k = Unsqueeze(j, last) f = Cast<to = 1>(k) y = Add(f, z)",
    "positions behind a cache": " t = Add(p, s) i = Range(p, t, one) f = Cast<to = 1>(i)"
    " y = Mul(f, z)",
    "a mask behind a cache": " t = Add(p, s) i = Range(zero, t, one) k = Range(zero, s, one)"
    " c = Unsqueeze(k, last) e = Add(c, p) m = LessOrEqual(i, e) f = Cast<to = 1>(m)"
    " a = Concat<axis = 1>(x, z) r = Transpose<perm = [1, 0]>(a) g = MatMul(f, r)"
    " h = Transpose<perm = [1, 0]>(g) y = Add(h, z)",
    "rows of a grid, one behind another": " i = Range(zero, b, one) k = Unsqueeze(i, last)"
    " zs = Concat<axis = 0>(bs, ss) e = Expand(k, zs) q = Mul(bs, ss)"
    " qs = Concat<axis = 0>(q, last) g = Reshape(e, qs) r = Reshape(g, zs)"
    " f = Cast<to = 1>(r) y = Add(f, z)",
    "the angles of the one position behind a cache": " w = Constant<value_floats ="
    " [1.0, 0.1, 0.01]>() k = Unsqueeze(ps, last) f = Cast<to = 1>(k) a = Mul(f, w)"
    " c = Cos(a) g = ReduceSum<keepdims = 0>(c) y = Mul(g, z)",
    "the angles of a few positions": " few = Constant<value_ints = [0, 7, 2]>()"
    " k = Add(few, p) f = Cast<to = 1>(k) c = Sin(f) g = ReduceSum<keepdims = 0>(c) y = Mul(g, z)",
    "a position for each sentence": " k = Unsqueeze(ps, last) bs1 = Concat<axis = 0>(bs, last)"
    " t = Tile(k, bs1) f = Cast<to = 1>(t) y = Add(f, z)",
    "a cube of a size": " q = Mul(p, p) c = Mul(q, p) f = Cast<to = 1>(c) y = Add(f, z)",
    "a size of at least a number": " least = Constant<value_int = 20>() q = Max(p, least)"
    " f = Cast<to = 1>(q) y = Add(f, z)",
    "a size of at most a number": " most = Constant<value_int = 5>() q = Min(p, most)"
    " f = Cast<to = 1>(q) y = Add(f, z)",
    "a tenth of a size": " tenth = Constant<value_float = 0.1>() f = Cast<to = 1>(p)"
    " h = Mul(f, tenth) y = Mul(h, z)",
    "a row of a table": " forty = Constant<value_int = 40>() i = Range(zero, forty, one)"
    " c = Cast<to = 1>(i) t = Sqrt(c) r = Gather(t, ps) y = Add(r, z)",
}
LEADING = {
    "positions": " i = Range(zero, s, one) f = Cast<to = 1>(i) y = Mul(f, z)",
    "a number of one size": " f = Cast<to = 1>(p) y = Mul(f, z)",
    "half of a size": " two = Constant<value_float = 2.0>() f = Cast<to = 1>(p) h = Div(f, two)"
    " y = Mul(h, z)",
    "a whole number behind a division": " two = Constant<value_int = 2>() h = Div(p, two)"
    " f = Cast<to = 1>(h) y = Mul(f, z)",
    "a product of two sizes": " q = Mul(b, p) f = Cast<to = 1>(q) y = Add(f, z)",
    "a root that decides a shape": " f = Cast<to = 1>(p) r = Sqrt(f) h = Cast<to = 7>(r)"
    " m = Min(h, zero) zs = Constant<value_ints = [0]>()"
    " k = Unsqueeze(m, zs) y = Slice(z, k, ss, last)",
}


def model(name: str) -> Any:
    text = f"{HEAD} {ENDS} {{{NUMBERS}{(MODELS | LEADING)[name]} }}"
    return onnx.parser.parse_model(text)


def rewritten(name: str) -> tuple[Any, Any]:
    graph = import_model(model(name), (), Options.of({}))
    allowed = {"b": range(2, 5), "p": range(2, 30), "s": range(2, 30)}
    return graph, with_computed_arrays(graph, allowed, lambda e: typing_at(graph, e))


@pytest.mark.parametrize("name", MODELS)
def test_it_is_computed_from_a_leading_part(name: str) -> None:
    graph, found = rewritten(name)
    kinds = [op.op_type for op in found.operations]
    assert kinds.count(AT_RUN_TIME) == 1
    assert len(found.operations) > len(graph.operations)
    typed = typing_at(found, {"b": 3, "p": 5, "s": 7})
    (y,) = found.outputs
    assert typed.env[y].shape == (3, 7)


def test_the_shape_of_a_result_stays_known() -> None:
    """Its extent is the same at all sizes, and its numbers are not."""
    _, found = rewritten("rows of a grid, one behind another")
    (reshape, _) = (op for op in found.operations if op.op_type == "Reshape")
    data, shape = reshape.reads
    assert data.name == "e.at_run_time" and shape.name == "qs"


@pytest.mark.parametrize("name", LEADING)
def test_leading_parts_and_numbers_of_fixed_extents_stay_constants(name: str) -> None:
    graph, found = rewritten(name)
    assert found is graph


def test_what_runs_in_each_call_is_neither_known_nor_folded() -> None:
    """Although all that it reads is known, at one size too."""
    _, found = rewritten("positions behind a cache")
    sizes = {"b": 3, "p": 5, "s": 7}
    (late,) = (op for op in found.operations if op.op_type == AT_RUN_TIME)
    typed = typing_at(found, sizes)
    assert typed.env[late.reads[0]] in typed.known
    assert typed.env[late.writes[0]] not in typed.known
    folded = fold_constants(specialize(found, sizes))
    assert AT_RUN_TIME in {op.op_type for op in folded.operations}


def test_a_number_of_sizes_has_one_element() -> None:
    """What has more is computed from it: code adds up single numbers, not arrays."""
    _, found = rewritten("the angles of a few positions")
    (late,) = (op for op in found.operations if op.op_type == AT_RUN_TIME)
    typed = typing_at(found, {"b": 3, "p": 5, "s": 7})
    assert typed.known[typed.env[late.reads[0]]].tolist() == 0


def test_sizes_of_what_is_computed_stay_known() -> None:
    """A second layer counts as many positions as the first one has."""
    one = MODELS["positions behind a cache"]
    two = one.replace("(z)", "(y)").replace("y = ", "v = ").replace("f, z", "f, y")
    for name in "tifv":
        two = two.replace(f" {name} = ", f" {name}2 = ").replace(
            f"({name},", f"({name}2,"
        )
    two = two.replace("Range(p, t,", "Range(p, t2,").replace("(i)", "(i2)")
    again = two.replace("Add(p, s)", "Add(p, s2)")
    shape = " ss2 = Shape(i) s2 = Squeeze(ss2)"
    ends = ENDS.replace("(y)", "(v2)")
    source = onnx.parser.parse_model(f"{HEAD} {ends} {{{NUMBERS}{one}{shape}{again} }}")
    graph = import_model(source, (), Options.of({}))
    allowed = {"b": range(2, 5), "p": range(2, 30), "s": range(2, 30)}
    found = with_computed_arrays(graph, allowed, lambda e: typing_at(graph, e))
    assert [op.op_type for op in found.operations].count(AT_RUN_TIME) == 2


@pytest.mark.representatives("a mask behind a cache")
@pytest.mark.parametrize("name", MODELS)
def test_one_code_is_right_at_all_sizes(name: str) -> None:
    source = model(name)
    how: Any = {"jit": False, "threads": 1, "cache": False}
    dims = {"b": (2, 3), "p": (2, 9), "s": (2, 8)}
    exe: Any = tw.compile(source, dims=dims, **how)
    assert isinstance(exe, RangedExecutable)
    assert not exe.model.single
    for b, p, s in ((2, 2, 2), (3, 9, 8), (2, 9, 2), (3, 5, 5), (2, 4, 7)):
        x = np.random.default_rng(p).standard_normal((b, p), np.float32)
        z = np.random.default_rng(s).standard_normal((b, s), np.float32)
        (want,) = ReferenceEvaluator(source).run(None, {"x": x, "z": z})
        np.testing.assert_allclose(exe(x, z), want, rtol=1e-4, atol=1e-5)


def test_positions_from_the_end_are_no_corner_and_are_computed() -> None:
    text = (
        "(float[3, n, 4] x) => (float[3, n, 4] y) {" + SIZED + " a = Squeeze(z)"
        " m = Constant<value_int = -1>() i = Range(c, a, m) p = Gather(t, i)"
        " y = Add(x, p) }"
    )
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(sized(text), dims={"n": (1, 40)}, **how)
    table = np.arange(1280, dtype=np.float32).reshape(320, 4) * 0.25
    for n in (1, 2, 17, 40):
        x = np.random.default_rng(n).standard_normal((3, n, 4), np.float32)
        np.testing.assert_array_equal(exe(x), x + table[n:0:-1])
