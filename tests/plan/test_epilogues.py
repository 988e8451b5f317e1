"""Maps that are computed with the reduction that they read: for each condition an example."""

from __future__ import annotations

import numpy as np
import onnx.parser

import tilewright as tw
from tests.plan.test_passes import COSTS, same, stage
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer
from tilewright.plan.passes.fuse import fuse


def test_an_epilogue_reads_no_other_result_of_its_group() -> None:
    """Sums from the other end are not there yet when a row's maximum is."""
    x = Buffer("x", (4, 8), float32)
    s, m, y = (Buffer(name, (4,), float32) for name in "smy")
    sums = reduce_("sums", s, (8,), "add", lambda i, k: x[i, k])
    most = reduce_("most", m, (8,), "max", lambda i, k: x[i, k])
    for others, count in ((False, 1), (True, 2)):
        last = map_("last", y, lambda i, o=others: m[i] - (s[3 - i] if o else 1.0))
        steps = [stage("both", sums, most), stage("last", last)]
        fused = fuse(steps, frozenset({y}), COSTS.repeated)
        assert len(fused) == count
        same(steps, fused, [x], [y])


def test_a_sum_in_float16_over_all_axes_takes_its_conversions_along() -> None:
    """The sum is in float32: two maps of a single result follow it."""
    text = (
        '<ir_version: 9, opset_import: ["":18]> g (float16[3,2] x) => (float16 y) '
        "{ s = ReduceSum<keepdims=0>(x) y = Neg(s) }"
    )
    model = onnx.parser.parse_model(text)
    found = tw.compile(model, cache=False)(np.arange(6, dtype=np.float16).reshape(3, 2))
    assert found == -15
