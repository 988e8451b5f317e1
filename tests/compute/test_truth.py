"""The truth of Computations: near the interpreter, exact on integers, and small where it is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes
from tilewright.base.errors import ExecutionError
from tilewright.compute import interp
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.truth import ReferenceTensors
from tilewright.expr.nodes import Buffer, Cast, Const, call
from tilewright.expr.rounding import format_of
from tilewright.testing import computations as random

RNG = np.random.default_rng(1)


def everything(truth: ReferenceTensors, b: Buffer):
    found = truth.at(b, np.arange(b.size))
    return found.value.reshape(b.shape), np.broadcast_to(found.error, b.size).reshape(
        b.shape
    )


@given(random.computations(), st.integers(0, 2**32 - 1))
@settings(max_examples=150)
def test_the_interpreter_is_within_the_bound(c: Computation, seed: int):
    arrays = random.arrays_for(c.inputs, seed)
    truth = ReferenceTensors([c], arrays)
    for b, got in interp.evaluate(c, arrays).items():
        value, error = everything(truth, b)
        written = truth.written(b).reshape(b.shape)
        wide = got.astype(np.float64)
        same = (wide == value) | (np.isnan(wide) & np.isnan(value.astype(np.float64)))
        near = np.abs(wide - value.astype(np.float64)) <= error
        assert (same | near | ~written).all()
        assert (np.isfinite(error) | ~written).all()


def product(n: int, k: int):
    x, w = Buffer("x", (n, k), dtypes.float32), Buffer("w", (k, n), dtypes.float32)
    y = Buffer("y", (n, n), dtypes.float32)
    return x, w, y, reduce_("dot", y, (k,), "add", lambda i, j, r: x[i, r] * w[r, j])


def test_products_of_integers_are_exact():
    x, w, y, c = product(4, 300)
    arrays = {b: RNG.integers(-3, 4, b.shape).astype(np.float32) for b in (x, w)}
    value, error = everything(ReferenceTensors([c], arrays), y)
    assert not error.any()
    np.testing.assert_array_equal(
        value, arrays[x].astype(float) @ arrays[w].astype(float)
    )


def test_one_missing_term_of_a_long_sum_is_outside_of_the_bound():
    x, w, y, c = product(3, 2000)
    arrays = {b: RNG.standard_normal(b.shape).astype(np.float32) for b in (x, w)}
    value, error = everything(ReferenceTensors([c], arrays), y)
    single = arrays[x] @ arrays[w]
    assert (np.abs(single - value) < error).all()
    short = arrays[x][:, :-1].astype(float) @ arrays[w][:-1].astype(float)
    assert (np.abs(short - value) > error).all()


def one_by_one(terms: np.ndarray) -> np.ndarray:
    """Each row's sum in float32, in order."""
    return np.cumsum(terms, 1, np.float32)[:, -1]


@pytest.mark.parametrize("different", [1, 9])
def test_equal_terms_are_rounded_alike(different: int):
    x, y = Buffer("x", (20, 768), dtypes.float32), Buffer("y", (20,), dtypes.float32)
    c = reduce_("sum", y, (768,), "add", lambda i, r: x[i, r])
    # From 1024 on, sums in float32 lose 0.45 of a unit of theirs, 2**-13, with each term.
    terms = 2.5 + np.arange(different) / 64 + 0.45 * 2**-13
    drawn = RNG.choice(terms.astype(np.float32), (20, 768))
    value, error = everything(ReferenceTensors([c], {x: drawn}), y)
    off = np.abs(one_by_one(drawn) - value)
    independent = np.sqrt(768) * format_of(dtypes.float32).unit * value
    assert (2 * independent < off).all() and (off < error).all()
    drawn[:, 5] = 0
    assert (np.abs(one_by_one(drawn) - value) > error).all()


def test_sums_of_zeros_round_nothing():
    x, y = Buffer("x", (1, 768), dtypes.float32), Buffer("y", (1,), dtypes.float32)
    c = reduce_("sum", y, (768,), "add", lambda i, r: x[i, r])
    sparse = np.zeros((1, 768), np.float32)
    sparse[:, ::8] = np.repeat(RNG.random(48) + 1, 2)
    value, error = everything(ReferenceTensors([c], {x: sparse}), y)
    unit = format_of(dtypes.float32).unit
    assert error <= 1.01 * np.sqrt(768) * unit * value


def test_a_sum_of_one_term_rounds_nothing():
    x, y = Buffer("x", (4, 1), dtypes.float32), Buffer("y", (4,), dtypes.float32)
    c = reduce_("sum", y, (1,), "add", lambda i, r: x[i, r])
    single = RNG.random((4, 1)).astype(np.float32)
    value, error = everything(ReferenceTensors([c], {x: single}), y)
    assert not error.any() and (value == single[:, 0]).all()


def test_few_points_of_a_chain_cost_little():
    x, w, y, c = product(200, 100)
    z = Buffer("z", (200, 200), dtypes.float32)
    then = map_("then", z, lambda i, j: y[j, i] * y[j, i] + 1.0)
    arrays = {b: RNG.standard_normal(b.shape).astype(np.float32) for b in (x, w)}
    truth = ReferenceTensors([c, then], arrays)
    places = np.array([0, 7, 39_999])
    found = truth.at(z, places)
    want = ((arrays[x].astype(float) @ arrays[w].astype(float)).T ** 2 + 1).reshape(-1)[
        places
    ]
    assert (np.abs(found.value - want) <= found.error).all()
    assert truth.work < truth.total / 1000


def test_what_is_not_written_is_as_it_was():
    x, y = Buffer("x", (3,), dtypes.float32), Buffer("y", (5,), dtypes.float32)
    from tilewright.compute.nodes import Dim, Output
    from tilewright.expr.nodes import Var

    i = Var("i", dtypes.int64)
    c = Computation("part", (Dim(i, 3),), (Output(y, (i + 1,), x[i] + 1.0),))
    arrays = {x: np.arange(3, dtype=np.float32), y: np.full(5, 9, np.float32)}
    truth = ReferenceTensors([c], arrays)
    assert truth.written(y).tolist() == [False, True, True, True, False]
    assert truth.at(y, np.arange(5)).value.tolist() == [9, 1, 2, 3, 9]
    unknown = ReferenceTensors([c], {x: arrays[x]}).at(y, np.arange(5))
    assert np.isinf(unknown.error).tolist() == [True, False, False, False, True]


def test_a_tensor_written_twice_is_evaluated_in_order():
    x, y = Buffer("x", (4,), dtypes.int32), Buffer("y", (4,), dtypes.int32)
    z = Buffer("z", (4,), dtypes.int32)
    group = [
        map_("first", y, lambda i: x[i] + 1),
        map_("middle", z, lambda i: y[i] * 10),
        map_("last", y, lambda i: x[i] + 2),
    ]
    truth = ReferenceTensors(group, {x: np.arange(4, dtype=np.int32)})
    assert truth.at(z, np.arange(4)).value.tolist() == [10, 20, 30, 40]
    assert truth.at(y, np.arange(4)).value.tolist() == [2, 3, 4, 5]


def test_a_rounding_that_decides_is_within_the_bound():
    x, y = Buffer("x", (2,), dtypes.float32), Buffer("y", (2,), dtypes.int8)
    from tilewright.expr.nodes import Call

    c = map_("steps", y, lambda i: Cast(Call("round_even", (x[i] * 0.1,)), dtypes.int8))
    truth = ReferenceTensors([c], {x: np.array([24.999999, 10], np.float32)})
    value, error = everything(truth, y)
    assert value[1] == 1 and error[1] == 0
    assert error[0] == 1  # 2.5 within a rounding: 2 and 3 are both right


MOST = float(np.finfo(np.float32).max)


def test_masks_of_the_least_number_keep_their_bounds():
    """Masked scores less their greatest do not overflow, so that their exponentials are known."""
    s, p = (Buffer(n, (3,), dtypes.float32) for n in "sp")
    m, t = (Buffer(n, (), dtypes.float32) for n in "mt")
    group = [
        reduce_("max", m, (3,), "max_number", lambda k: s[k]),
        map_("exp", p, lambda i: call("exp", s[i] - m[()] * 1.1)),
        reduce_("sum", t, (3,), "add", lambda k: p[k] * p[k]),
    ]
    for masked in (-MOST, -np.inf):
        scores = np.array([masked, 0.3, 0.7], np.float32)
        value, error = everything(ReferenceTensors(group, {s: scores}), t)
        assert np.isfinite(value) and 0 < error < 1e-5


@pytest.mark.parametrize(
    ("change", "known"),
    [
        (lambda x: x - Const(2.0**102, dtypes.float32), True),  # a quarter of a unit
        (lambda x: x - Const(2.0**103, dtypes.float32), False),
        (lambda x: x / 3.0 * 3.0, False),  # the quotient may be a unit more
    ],
)
def test_half_a_unit_beyond_the_greatest_number_may_be_infinite(change, known: bool):
    x, y = (Buffer(n, (1,), dtypes.float32) for n in "xy")
    c = map_("map", y, lambda i: change(x[i]))
    value, error = everything(
        ReferenceTensors([c], {x: np.array([-MOST], np.float32)}), y
    )
    assert np.isfinite(error) == known
    assert abs(-MOST - value) <= error


def test_an_order_of_products_may_carry_over_the_greatest_number():
    x, y = Buffer("x", (2,), dtypes.float32), Buffer("y", (), dtypes.float32)
    c = reduce_("product", y, (2,), "mul", lambda k: x[k])
    value, error = everything(
        ReferenceTensors([c], {x: np.array([MOST, 1.0], np.float32)}), y
    )
    assert value == MOST and np.isinf(error)


def test_what_is_unknown_stays_unknown_in_products_with_exact_numbers():
    x, y = (Buffer(n, (1,), dtypes.float32) for n in "xy")
    for factor in (0.0, 0.5):
        c = map_("map", y, lambda i, f=factor: (x[i] - 2.0**103) * f)
        value, error = everything(
            ReferenceTensors([c], {x: np.array([-MOST], np.float32)}), y
        )
        assert np.isfinite(value) and np.isposinf(error)


def test_an_index_out_of_range_is_an_error():
    x, at = Buffer("x", (3,), dtypes.float32), Buffer("at", (2,), dtypes.int64)
    y = Buffer("y", (2,), dtypes.float32)
    c = map_("gather", y, lambda i: x[at[i]])
    truth = ReferenceTensors([c], {x: np.zeros(3, np.float32), at: np.array([1, 3])})
    with pytest.raises(
        ExecutionError, match=r"index 3 of dimension 0 of x is outside 0\.\.2"
    ):
        truth.at(y, np.arange(2))


def test_formats():
    assert format_of(dtypes.float32).unit == 2.0**-23
    assert format_of(dtypes.bfloat16).whole == 2.0**8
