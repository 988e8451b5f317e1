"""Data that a kernel must not trust: indices out of range, NaN, infinities, division by zero."""

import numpy as np
import pytest

import tilewright as tw
from tests.robust.models import FLOAT, INT32, INT64, model, node
from tilewright.base.errors import ExecutionError

X = np.arange(16, dtype=np.float32).reshape(4, 4)
TYPES = {np.int64: INT64, np.int32: INT32}


def run(op, operands, constants=None, opset=24, **attributes):
    """`op` on operands that are inputs, then on constants."""
    kinds = {
        np.dtype(np.float32): FLOAT,
        np.dtype(np.int64): INT64,
        np.dtype(np.int32): INT32,
    }
    inputs = {name: (kinds[a.dtype], a.shape) for name, a in operands.items()}
    names = [*inputs, *(constants or {})]
    source = model(
        [node(op, names, ["y"], "n", **attributes)], inputs, ["y"], constants, opset
    )
    return tw.compile(source, cache=False, threads=1)(operands)


@pytest.mark.covering(2)
@pytest.mark.parametrize("bad", [4, -5, np.iinfo(np.int32).max, np.iinfo(np.int32).min])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize(
    ("op", "shape", "updates", "attributes"),
    [
        ("Gather", (1,), None, {}),
        ("GatherElements", (1, 4), None, {}),
        ("GatherND", (1, 1), None, {}),
        ("ScatterElements", (1, 4), (1, 4), {"reduction": "add"}),
        ("ScatterND", (1, 1), (1, 4), {}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_an_index_out_of_range_is_an_error(op, shape, updates, attributes, dtype, bad):
    if op.endswith("ND") and dtype is np.int32:
        pytest.skip("its indices are int64")
    operands = {"x": X, "i": np.full(shape, bad, dtype)}
    if updates is not None:
        operands["u"] = np.ones(updates, np.float32)
    with pytest.raises(ExecutionError, match=r"'n'.*out of range"):
        run(op, operands, **attributes)


@pytest.mark.parametrize("bad", [np.iinfo(np.int64).max, np.iinfo(np.int64).min])
def test_the_ends_of_int64_are_out_of_range_too(bad):
    with pytest.raises(ExecutionError, match="out of range"):
        run("Gather", {"x": X, "i": np.array([bad])})
    with pytest.raises(ExecutionError, match="out of range"):
        run(
            "ScatterND",
            {"x": X, "i": np.array([[bad]]), "u": np.ones((1, 4), np.float32)},
        )


@pytest.mark.parametrize("bad", [4, -5, np.iinfo(np.int64).max, np.iinfo(np.int64).min])
def test_one_hot_of_an_index_out_of_range_is_all_off(bad):
    constants = {"d": np.array(4), "v": np.array([0, 1], np.float32)}
    assert run("OneHot", {"i": np.array([bad])}, constants).tolist() == [[0] * 4]


@pytest.mark.covering(1)
@pytest.mark.parametrize("k", [2**63 - 1, -(2**63), 7, -7, 2, 0, -1])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("known", [False, True])
def test_a_diagonal_anywhere(k, upper, known):
    """The sum of a row and the largest integer is not a column."""
    where = {"k": np.array(k)}
    got = run(
        "Trilu",
        {"x": X, **({} if known else where)},
        where if known else {},
        upper=upper,
    )
    clipped = int(np.clip(k, -10, 10))
    np.testing.assert_array_equal(got, (np.triu if upper else np.tril)(X, clipped))


def test_windows_that_lie_in_the_padding_have_no_mean():
    """0 / 0 on both sides: counts were negative there, and their quotients -0."""
    x = np.ones((1, 1, 8), np.float32)
    got = run("AveragePool", {"x": x}, kernel_shape=[2], pads=[5, 5]).ravel()
    assert (
        np.isnan(got[:4]).all() and np.isnan(got[-4:]).all() and (got[4:-4] == 1).all()
    )


def test_integers_divided_by_zero_end_in_a_number():
    """No trap: neither of x / 0 nor of the least integer by -1."""
    a, b = np.array([1, -(2**63)]), np.array([0, -1])
    assert run("Div", {"a": a, "b": b}).shape == (2,)
    assert run("Mod", {"a": a, "b": b}).shape == (2,)
    assert run("Div", {"a": a}, {"b": b}).shape == (2,)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30], ids=str)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_positions_that_are_no_numbers_stay_inside(mode, padding, value):
    operands = {
        "x": X.reshape(1, 1, 4, 4),
        "g": np.full((1, 2, 2, 2), value, np.float32),
    }
    assert run("GridSample", operands, mode=mode, padding_mode=padding).shape == (
        1,
        1,
        2,
        2,
    )


def test_not_a_number_and_infinities_pass_through_products_and_sums():
    x = np.array([[np.nan, 1], [np.inf, 0], [-np.inf, 1], [0, 0]], np.float32)
    got = run("MatMul", {"x": x}, {"w": np.array([[1], [1]], np.float32)}).ravel()
    np.testing.assert_array_equal(got, [np.nan, np.inf, -np.inf, 0])
    found = run("Softmax", {"x": x}, axis=1)
    assert (
        np.isnan(found[:2]).all() and found[2].tolist() == [0, 1] and found[3, 0] == 0.5
    )
