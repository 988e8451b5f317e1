"""Attention with `nonpad_kv_seqlen`: as ONNX defines it, without reading the padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.reference
import pytest
from onnx import ModelProto, TensorProto, helper

import tilewright as tw
from tilewright.base import events
from tilewright.frontends.onnx import load

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
FLOAT = TensorProto.FLOAT


def model(
    q: Shape,
    k: Shape,
    v: Shape,
    inputs: str = "Q K V - - - n",
    outputs: str = "Y",
    dtype: int = FLOAT,
    **attributes: Any,
) -> ModelProto:
    """inputs, outputs: names in order, - for one that is left out."""
    info = helper.make_tensor_value_info
    keys = k[-2] if len(k) == 4 else k[1]
    shapes = {"Q": q, "K": k, "V": v, "n": q[:1], "mask": (q[-2], keys)}
    names = ["" if n == "-" else n for n in inputs.split()]
    node = helper.make_node("Attention", names, outputs.split(), **attributes)
    given = [
        info(n, TensorProto.INT64 if n == "n" else dtype, shapes[n])
        for n in filter(None, names)
    ]
    made = [info(n, dtype, None) for n in outputs.split() if n]
    graph = helper.make_graph([node], "g", given, made)
    opset = [helper.make_opsetid("", 24)]
    return helper.make_model(graph, opset_imports=opset, ir_version=11)


def arrays(m: ModelProto, valid: list[int]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for i in m.graph.input:
        shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
        found[i.name] = rng.standard_normal(shape).astype(np.float32)
    return found | {"n": np.array(valid)}


def is_body_of_onnx(m: ModelProto, **options: Any) -> bool:
    """Whether it was imported as ONNX defines it: by a mask, of whose rows the maximum is asked."""
    return "ReduceMax" in {op.op_type for op in load(m, **options).operations}


CASES: dict[str, tuple[ModelProto, list[int]]] = {
    "a query of each head": (model((2, 4, 1, 8), (2, 4, 24, 8), (2, 4, 24, 8)), [24, 5]),
    "shared keys, wider values": (
        model((2, 4, 3, 8), (2, 2, 24, 8), (2, 2, 24, 6)), [1, 23],
    ),
    "causal": (
        model((2, 2, 4, 8), (2, 2, 16, 8), (2, 2, 16, 8), is_causal=1), [16, 6],
    ),
    "causal, and queries before all keys": (
        model((2, 2, 4, 8), (2, 1, 16, 8), (2, 1, 16, 8), is_causal=1), [2, 1],
    ),
    "nothing valid": (model((2, 2, 3, 8), (2, 2, 16, 8), (2, 2, 16, 8)), [0, 3]),
    "heads side by side, scaled, capped": (
        model(
            (2, 3, 32), (2, 16, 16), (2, 16, 16),
            q_num_heads=4, kv_num_heads=2, scale=0.2, softcap=1.5,
        ), [16, 7],
    ),
}  # fmt: skip


@pytest.mark.representatives(
    "shared keys, wider values",
    "causal, and queries before all keys",
    "nothing valid",
    "heads side by side, scaled, capped",
)
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_onnx(name: str) -> None:
    m, valid = CASES[name]
    assert not is_body_of_onnx(m)
    given = arrays(m, valid)
    (want,) = onnx.reference.ReferenceEvaluator(m).run(None, given)
    exe = tw.compile(m, threads=1, cache=False, fallback="error")
    np.testing.assert_allclose(exe(given), want, rtol=2e-5, atol=2e-6)
    for b, n in enumerate(valid):  # padding is not read
        axis = 2 if given["K"].ndim == 4 else 1
        for x in "KV":
            np.moveaxis(given[x][b], axis - 1, 0)[n:] = np.nan
    np.testing.assert_allclose(exe(given), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "mcpu", [pytest.param("x86-64-v2", marks=pytest.mark.slow), "x86-64-v3"]
)
def test_blocks_of_padding_alone_are_left_out(mcpu: str) -> None:
    m = model((2, 4, 1, 16), (2, 2, 512, 16), (2, 2, 512, 16))
    with events.record() as log:
        exe = tw.compile(m, threads=1, cache=False, mcpu=mcpu)
    assert [e.fields["keys"] for e in log if e.kind == "streamed-attention"] == [128]
    assert len(exe.model.kernels) == 1
    shown = tw.driver.text(m, "schedule", threads=1, cache=False, mcpu=mcpu)
    assert shown.count("s.skip(") == 1
    for valid in ([1, 128], [129, 512], [300, 0]):
        given = arrays(m, valid)
        (want,) = onnx.reference.ReferenceEvaluator(m).run(None, given)
        np.testing.assert_allclose(exe(given), want, rtol=2e-5, atol=2e-6)


SHAPES = (2, 2, 3, 8), (2, 2, 16, 8), (2, 2, 16, 8)


@pytest.mark.parametrize(
    ("m", "options"),
    [
        (model(*SHAPES, inputs="Q K V mask - - n"), {}),
        (model(*SHAPES, outputs="Y present_key present_value scores"), {}),
        (model(*SHAPES, dtype=TensorProto.FLOAT16), {}),
        (model(*SHAPES, softmax_precision=TensorProto.DOUBLE), {}),
        (model(*SHAPES), {"standard": True}),
    ],
    ids=["a mask", "scores", "float16", "precision", "kept as written"],
)
def test_other_uses_are_what_onnx_defines_them_by(m: ModelProto, options: Any) -> None:
    assert is_body_of_onnx(m, **options)


def test_heads_that_do_not_fit_are_refused() -> None:
    m = model((2, 3, 3, 8), (2, 2, 16, 8), (2, 2, 16, 8))
    with pytest.raises(tw.TilewrightError, match="3 heads of queries do not share 2"):
        load(m)
