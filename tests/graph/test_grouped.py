"""GroupQueryAttention against ONNX Runtime, which defines it."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.runtime.model import HostFallbackStep

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(2)
BATCH, HEADS, SHARED, SIZE = 2, 4, 2, 16


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def check(length, total, lengths, *, past=0, packed=False, rotary=False, **attributes):
    widths = (HEADS * SIZE, SHARED * SIZE, SHARED * SIZE)
    parts = [floats(BATCH, length, w) for w in widths]
    if packed:
        parts = [np.concatenate(parts, 2), None, None]
    caches = [floats(BATCH, SHARED, past, SIZE) for _ in range(2)]
    known = [np.array(lengths, np.int32), np.array(total, np.int32)]
    angles = floats(64, SIZE // 2)
    inputs = [
        *parts,
        *caches,
        *known,
        *([np.cos(angles), np.sin(angles)] if rotary else []),
    ]
    names = ["" if a is None else f"x{n}" for n, a in enumerate(inputs)]
    attributes |= {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": int(rotary)}
    outputs = ("y", "keys", "values")
    node = helper.make_node(
        "GroupQueryAttention", names, outputs, domain="com.microsoft", **attributes
    )
    given = {
        n: a for n, a in zip(names, inputs, strict=True) if a is not None and n != "x6"
    }
    infos = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
        )
        for n, a in given.items()
    ]
    results = [helper.make_tensor_value_info(n, 1, None) for n in outputs]
    total_length = [numpy_helper.from_array(inputs[6], "x6")]
    graph = helper.make_graph([node], "g", infos, results, total_length)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want = session.run(None, given)
    exe = tw.compile(model, threads=1, cache=False)
    assert not any(isinstance(s, HostFallbackStep) for s in exe.model.steps)
    y, *kept = exe(**given)
    np.testing.assert_allclose(y, want[0], 1e-4, 1e-5)
    for got, expected in zip(kept, want[1:], strict=True):
        assert got.shape == expected.shape
        for b, last in enumerate(
            lengths
        ):  # what lies behind the valid elements is not said
            np.testing.assert_allclose(
                got[b, :, : last + 1], expected[b, :, : last + 1], 1e-6
            )


@pytest.mark.covering(1)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_prompt(packed, rotary):
    check(5, 5, [4, 4], packed=packed, rotary=rotary)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_one_more_token(interleaved):
    check(1, 7, [6, 6], past=6, rotary=True, rotary_interleaved=interleaved)


def test_a_cache_with_room():
    check(1, 7, [6, 6], past=12, rotary=True)


def test_sequences_of_different_lengths():
    check(1, 7, [6, 3], past=12, rotary=True)


def test_window_and_cap():
    check(6, 6, [5, 5], local_window_size=3)
    check(1, 9, [8, 8], past=8, local_window_size=4)
    check(4, 4, [3, 3], softcap=2.0, scale=0.4)
