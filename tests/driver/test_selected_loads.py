"""Choices between what is read through an index and a constant, by a condition on what is read."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw

SELECTED = {
    "thresholded": "a = ThresholdedRelu <alpha = 0.25> (t) y = Gather <axis = 0> (a, i)",
    "where": "a = Gather <axis = 0> (t, i) c = Greater (a, limit) y = Where (c, a, zero)",
    "where not zero": "a = Gather <axis = 0> (t, i) c = Greater (a, limit) y = Where (c, a, one)",
    "where not": "a = Gather <axis = 0> (t, i) c = Greater (a, limit) y = Where (c, zero, a)",
    "read before": "a = Gather <axis = 0> (t, i) s = Exp (a) c = Greater (s, limit) "
    "w = Where (c, a, zero) y = Mul (w, s)",
    "twice": "a = Gather <axis = 0> (t, i) c = Greater (a, limit) d = Less (a, one) "
    "b = Where (d, a, zero) y = Where (c, b, zero)",
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", SELECTED)
@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v3", "native"])
def test_a_value_that_its_own_condition_reads_is_still_selected(
    name: str, mcpu: str
) -> None:
    """A load under a condition gives the other value by itself, unless it was done before."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[5, 7] t, int64[9] i) => (float[9, 7] y)
        <float limit = {{0.25}}, float zero = {{0.0}}, float one = {{1.0}}>
        {{ {SELECTED[name]} }}"""
    )
    t = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    i = np.array([0, -1, 3, 2, 2, -5, 4, 1, 0])
    (want,) = ReferenceEvaluator(model).run(None, {"t": t, "i": i})
    assert len(np.unique(want)) > 2  # both values are chosen somewhere
    found = tw.compile(model, threads=1, mcpu=mcpu, cache=False)(t, i)
    np.testing.assert_allclose(found, want, rtol=1e-6)
