"""Derivatives of scatters where several updates meet at one place."""

import numpy as np

from tests.graph.test_operator_gradients import gradient_at


def test_factors_of_a_scatter_that_are_zero():
    text = (
        "i = Constant<value=int64[4] {0, 0, 1, 2}>()\n"
        'o = ScatterElements<reduction="mul">(x, i, w)'
    )
    x, w = np.array([2.0, 0.0, 5.0]), np.array([0.0, 3.0, 4.0, 0.0])
    dx, dw = gradient_at(text, {"x": x, "w": w}, (3,))
    np.testing.assert_array_equal(dx, [0, 4, 0])
    np.testing.assert_array_equal(dw, [6, 0, 0, 5])


def test_equal_elements_of_a_scatter_share_what_flows():
    text = (
        "i = Constant<value=int64[3] {0, 0, 1}>()\n"
        'o = ScatterElements<reduction="max">(x, i, w)'
    )
    x, w = np.array([2.0, 1.0, 5.0]), np.array([2.0, 1.0, 1.0])
    dx, dw = gradient_at(text, {"x": x, "w": w}, (3,))
    np.testing.assert_array_equal(dx, [0.5, 0.5, 1])
    np.testing.assert_array_equal(dw, [0.5, 0, 0.5])
