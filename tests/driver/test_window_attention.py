"""What transformers over windows of an image need: slices as operands, rows in another order."""

from __future__ import annotations

import re

import numpy as np
import onnx.parser
import onnx.reference
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.driver import text

HEAD = '<ir_version: 9, opset_import: ["" : 18]>'
MACHINES = ["x86-64-v2", "x86-64-v3", "x86-64-v4"]
# One tensor of queries, keys and values, as a product to all three leaves it.
ATTENTION = f"""{HEAD} g (float[3,4,49,32] x) => (float[4,49,32] y)
<int64 q = {{0}}, int64 k = {{1}}, int64 v = {{2}}, float by = {{0.1767767}}> {{
    queries = Gather<axis = 0>(x, q)
    keys = Gather<axis = 0>(x, k)
    values = Gather<axis = 0>(x, v)
    columns = Transpose<perm = [0, 2, 1]>(keys)
    products = MatMul(queries, columns)
    scores = Mul(products, by)
    shares = Softmax(scores)
    y = MatMul(shares, values)
}}"""
# Rows of 8 x 8 positions, normalized, added, and put side by side in fours.
MERGING = f"""{HEAD} g (float[64,40] x, float[64,40] r) => (float[4,4,160] y)
<float[40] a = {{{", ".join(str(n % 7 - 2) for n in range(40))}}},
 float[40] b = {{{", ".join(str(n % 5 - 1) for n in range(40))}}},
 int64[5] split = {{4, 2, 4, 2, 40}}, int64[3] whole = {{4, 4, 160}}> {{
    n = LayerNormalization(x, a, b)
    sum = Add(r, n)
    parts = Reshape(sum, split)
    moved = Transpose<perm = [0, 2, 3, 1, 4]>(parts)
    y = Reshape(moved, whole)
}}"""
TWICE = f"""{HEAD} g (float[36,40] x) => (float[36,40] y, float[36,40] z)
<float[40] a = {{{", ".join(str(n % 7 - 2) for n in range(40))}}},
 float[40] b = {{{", ".join(str(n % 5 - 1) for n in range(40))}}}> {{
    y = LayerNormalization(x, a, b)
    z = LayerNormalization(y, b, a)
}}"""


def right(source: str, mcpu: str) -> list[events.Event]:
    """What compiling reports, of a model whose results are those of the reference."""
    model = onnx.parser.parse_model(source)
    rng = np.random.default_rng(0)
    given = {
        t.name: rng.standard_normal(
            [d.dim_value for d in t.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for t in model.graph.input
    }
    with events.record() as said:
        exe = tw.compile(model, mcpu=mcpu, threads=1, cache=False)
    want = onnx.reference.ReferenceEvaluator(model).run(None, given)
    for got, expected in zip(exe.run(given), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
    return said


@pytest.mark.representatives("x86-64-v3")
@pytest.mark.parametrize("mcpu", MACHINES)
def test_keys_are_packed_although_queries_and_values_are_of_the_same_tensor(
    mcpu: str,
) -> None:
    right(ATTENTION, mcpu)
    model = onnx.parser.parse_model(ATTENTION)
    kernel = text(model, "kernel", mcpu=mcpu)
    assert re.search(r"\bx\[0, .* \* x\.pack\[", kernel)
    assert re.search(r" \* x\[2, ", kernel)


@pytest.mark.representatives("x86-64-v2")
@pytest.mark.parametrize("mcpu", MACHINES)
def test_rows_that_are_put_elsewhere_are_normalized_once(mcpu: str) -> None:
    said = right(MERGING, mcpu)
    assert not [e for e in said if e.kind in ("sketch-refused", "kept-plain")]
    program = text(onnx.parser.parse_model(MERGING), "computation", mcpu=mcpu)
    reads = re.findall(r"= layernormalization_square\w*\[([^]]*)\]", program)
    assert reads
    assert all(re.fullmatch(r"[a-z_0-9]+", index) for index in reads)


@pytest.mark.representatives("x86-64-v4")
@pytest.mark.parametrize("mcpu", MACHINES)
def test_two_normalizations_of_a_kernel_have_separate_tensors(mcpu: str) -> None:
    said = right(TWICE, mcpu)
    assert not [e for e in said if e.kind in ("sketch-refused", "kept-plain")]
    program = text(onnx.parser.parse_model(TWICE), "computation", mcpu=mcpu)
    assert program.count("# ") == 1  # one kernel of both
