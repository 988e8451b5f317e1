"""A call by name takes the way of one by position: nothing is converted, no list is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
sub (float[3] a, float[3] b) => (float[3] y) { y = Sub(a, b) }
"""
A, B = np.full(3, 5, np.float32), np.arange(3, dtype=np.float32)


@pytest.fixture(scope="module")
def exe() -> Iterator[Any]:
    made = tw.compile(onnx.parser.parse_model(MODEL), threads=1)

    def general(*given: Any) -> None:
        raise AssertionError("the general way")

    made._general = general
    yield made


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((A, B), {}),
        ((A,), {"b": B}),
        ((), {"a": A, "b": B}),
        ((), {"b": B, "a": A}),
        (({"b": B, "a": A},), {}),
    ],
)
def test_every_order_of_names(exe: Any, args: Any, named: Any) -> None:
    out = np.empty(3, np.float32)
    np.testing.assert_array_equal(exe(*args, **named), A - B)
    assert exe(*args, **named, out=out) is out
    np.testing.assert_array_equal(out, A - B)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((A,), {"a": A}),
        ((), {"a": A}),
        ((A, B), {"b": B}),
        (({"a": A},), {}),
        (({"a": A, "c": B},), {}),
        (({},), {}),
        (({"a": A},), {"b": B}),
    ],
)
def test_odd_names_are_for_the_general_way(exe: Any, args: Any, named: Any) -> None:
    with pytest.raises(AssertionError, match="the general way"):
        exe(*args, **named)


def test_a_bound_call_computes_into_its_arrays_again_and_again(exe: Any) -> None:
    a, y = A.copy(), np.zeros(3, np.float32)
    call = exe.bound([a, B, y])
    call()
    assert y.tolist() == [5, 4, 3]
    a += 1
    call()
    assert y.tolist() == [6, 5, 4]


def test_a_model_that_is_not_one_native_call_cannot_be_bound() -> None:
    empty: Any = tw.compile(onnx.parser.parse_model(MODEL.replace("[3]", "[0]")))
    assert empty.bound([np.zeros(0, np.float32)] * 3) is None
