"""Which attention becomes products of bfloat16, and what stays in float32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from tilewright.frontends.onnx.load import load
from tilewright.graph import interp
from tilewright.graph.nodes import Graph
from tilewright.graph.rules.attention import ATTENTION_RULE
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.lower_attention import ATTENTION_OF_BFLOAT16
from tilewright.graph.verify import verify

RNG = np.random.default_rng(11)
SOFTMAX = "s = MatMul(q, k) p = Softmax<axis=-1>(s) y = MatMul(p, v)"


def graph(
    queries: int = 17,
    keys: int = 16,
    depth: int = 2,
    columns: int = 16,
    body: str = SOFTMAX,
    dtype: str = "float",
) -> Graph:
    """Attention of two heads, recognized."""
    ends = (
        f"({dtype}[2,{queries},{depth}] q, {dtype}[2,{depth},{keys}] k, "
        f"{dtype}[2,{keys},{columns}] v) => ({dtype}[2,{queries},{columns}] y)"
    )
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> f {ends} {{ {body} }}'
    )
    found = rewrite(load(model), [ATTENTION_RULE])
    assert [op.op_type for op in found.operations if op.op_type == "Attention"]
    return found


def lowered(g: Graph) -> Graph:
    found = rewrite(g, [ATTENTION_OF_BFLOAT16])
    verify(found)
    return found


def feeds_of(g: Graph) -> dict[str, Any]:
    return {v.name: RNG.standard_normal(v.extents).astype("f") for v in g.inputs}


def result(g: Graph, feeds: dict[str, Any]) -> Any:
    (found,) = interp.evaluate(g, feeds).values()
    return found


def test_operands_and_probabilities_are_rounded_and_scores_are_not() -> None:
    found = lowered(graph())
    *casts, attention = found.operations
    assert [op.op_type for op in casts] == ["Cast"] * 3
    body = attention.attributes["body"]
    kinds = [(op.op_type, str(op.writes[0].dtype)) for op in body.operations]
    assert kinds == [
        ("MixedMatMul", "float32"),
        ("Softmax", "float32"),
        ("Cast", "bfloat16"),
        ("MixedMatMul", "float32"),
    ]


@pytest.mark.parametrize("names", ["qkv", "qqv", "qkq", "qqq"])
def test_each_number_is_rounded_once(names: str) -> None:
    """As if every operand and every probability were rounded by hand."""

    def rounded(a: Any) -> Any:
        return a.astype(ml_dtypes.bfloat16).astype(np.float32)

    square = {"queries": 18, "columns": 18} if names != "qkv" else {"keys": 37}
    first, second, third = names
    body = SOFTMAX.replace("(q, k)", f"({first}, {second})").replace("v)", f"{third})")
    g = graph(**{"keys": 18, "depth": 18} | square, body=body)
    feeds = feeds_of(g)
    found = result(lowered(g), feeds)
    q, k, v = (rounded(feeds[name]) for name in names)
    scores = q @ k
    e = np.exp(scores - scores.max(-1, keepdims=True))
    want = rounded(e / e.sum(-1, keepdims=True)) @ v
    # A probability between two numbers of bfloat16 may round to either.
    assert np.abs(found - want).max() < 2.0**-8 * np.abs(want).max()
    whole = result(g, feeds)
    assert 0 < np.abs(found - whole).max() < 2.0**-6 * np.abs(whole).max()


def test_masks_stay_in_float32() -> None:
    body = (
        "s = MatMul(q, k) low = Constant<value_float=-3.4028234663852886e38>() "
        "t = Add(s, low) p = Softmax<axis=-1>(t) y = MatMul(p, v)"
    )
    g = graph(body=body)
    (attention,) = (op for op in lowered(g).operations if op.op_type == "Attention")
    inner = [
        op for op in attention.attributes["body"].operations if op.op_type == "Add"
    ]
    assert inner and all(str(v.dtype) == "float32" for v in inner[0].reads)


SQUARE = {"depth": 16, "keys": 16}
ALSO_READ = "s = MatMul(q, k) t = Add(s, q) p = Softmax<axis=-1>(t) y = MatMul(p, v)"
KEPT: dict[str, Graph] = {
    "few queries": graph(queries=16),
    "few keys": graph(keys=15),
    "few columns": graph(columns=15),
    "half a pair": graph(depth=3),
    "of float64": graph(dtype="double"),
    "of bfloat16": graph(dtype="bfloat16"),
    "queries that are a mask, too": graph(body=ALSO_READ, **SQUARE),
}


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name: str) -> None:
    assert lowered(KEPT[name]) is KEPT[name]


def test_what_just_fulfills_the_conditions_does_not_stay() -> None:
    for g in (graph(), graph(**SQUARE), graph(body=ALSO_READ.replace("q)", "s)"))):
        assert lowered(g) is not g
