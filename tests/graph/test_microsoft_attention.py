"""Attention of com.microsoft against ONNX Runtime, which defines it: masks, caches, biases."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.graph.test_microsoft import check, floats
from tilewright.base.errors import TilewrightError

RNG = np.random.default_rng(1)
B, S, N, H = 2, 5, 2, 4  # batch, queries, heads, elements of a head
X, W, BIAS = floats(B, S, N * H), floats(N * H, 3 * N * H), floats(3 * N * H)
Q, K, V = floats(B, 4, 8), floats(B, 6, 8), floats(B, 6, 8)


def compiled(model, feeds, want):
    """Native code, too, gives what ONNX Runtime gave."""
    found = tw.compile(model, threads=1, cache=False)(*feeds.values())
    found = [found] if len(want) == 1 else found
    for a, b in zip(found, want.values(), strict=True):
        np.testing.assert_allclose(a, b, 2e-4, 2e-5)


def ints(*rows):
    return np.array(rows, np.int32)


def each_sees(rows, columns):
    """(batch, rows, columns) of 0 and 1, some of which hide everything from a query."""
    mask = RNG.integers(0, 2, (B, rows, columns)).astype(np.int32)
    mask[0, 1] = 0
    return mask


MASKS = {
    "none": None,
    "ends": ints(3, 5),
    "ends beyond": ints(9, 0),
    "ends and starts": ints(4, 5, 1, 0),
    "nothing between": ints(2, 5, 3, 7),
    "right padding": ints([1, 1, 1, 0, 0], [1] * S),
    "left padding": ints([0, 0, 1, 1, 1], [0, 1, 1, 1, 1]),
    "all or none": ints([0], [1]),
    "one for all": ints([0]),
    "each query its own": each_sees(S, S),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, unidirectional):
    operands = [X, W, BIAS, MASKS[name]]
    made = check("Attention", operands, num_heads=N, unidirectional=unidirectional)
    if unidirectional:
        compiled(*made)


def test_a_mask_of_the_longest_sequence():
    """(batch, 1, most, most): ONNX Runtime has it on GPUs; here, as the part that is used."""
    past = floats(2, B, N, 3, H)
    whole = RNG.integers(0, 2, (B, 1, 11, 11)).astype(np.int32)
    used = np.ascontiguousarray(whole[:, 0, 3 : 3 + S, : 3 + S])
    outputs = ("y", "present")
    model, feeds, want = check(
        "Attention", [X, W, BIAS, used, past], outputs=outputs, num_heads=N
    )
    del model.graph.input[3].type.tensor_type.shape.dim[:]
    for n in whole.shape:
        model.graph.input[3].type.tensor_type.shape.dim.add().dim_value = n
    compiled(model, feeds | {"x3": whole}, want)


@pytest.mark.parametrize("low", [-1.0, -1e9, float(np.finfo(np.float32).min)])
def test_what_a_mask_adds(low):
    operands = [X, W, BIAS, MASKS["left padding"]]
    options = {"num_heads": N, "unidirectional": 1, "mask_filter_value": low}
    check("Attention", operands, **options)


@pytest.mark.parametrize("length", [0, 1, 6])
@pytest.mark.parametrize("queries", [1, S])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_a_cache(length, queries, unidirectional):
    """As GPT-2 is exported: keys and values of before, and a mask over all of them."""
    past = floats(2, B, N, length, H)
    mask = np.ones((B, length + queries), np.int32)
    mask[0, : length // 2] = 0
    operands = [X[:, :queries], W, BIAS, mask, past]
    options = {"num_heads": N, "unidirectional": unidirectional}
    made = check("Attention", operands, outputs=("y", "present"), **options)
    if length == 6 and unidirectional:
        compiled(*made)


def test_a_cache_that_begins():
    compiled(*check("Attention", [X, W, BIAS], outputs=("y", "present"), num_heads=N))


@pytest.mark.parametrize("shape", [(B, N), (1, N), (B, 1), (1, 1)])
def test_an_attention_bias(shape):
    operands = [X, W, BIAS, MASKS["right padding"], None, floats(*shape, S, S)]
    made = check("Attention", operands, num_heads=N, unidirectional=1)
    if shape == (1, N):
        compiled(*made)


def test_sizes_and_scales():
    check("Attention", [X, W, BIAS], num_heads=4, scale=0.3)
    operands = [X, floats(8, 28), floats(28)]
    compiled(*check("Attention", operands, num_heads=N, qkv_hidden_sizes=[8, 8, 12]))


REFUSED = {
    "do_rotary": ([X, W, BIAS], {"do_rotary": 1}, "do_rotary: this form of"),
    "lengths of packed sequences": ([X, W, BIAS, ints(*range(8))], {}, "a mask of shape"),
    "a mask of other columns": ([X, W, BIAS, np.ones((B, 3), np.int32)], {}, "a mask of shape"),
    "a mask that is too small": (
        [X, W, BIAS, np.ones((B, 1, 4, 4), np.int32)], {}, "a mask of shape"),
    "a shared cache": (
        [X, W, BIAS, None, floats(2, B, N, 9, H), None, ints(3)],
        {"past_present_share_buffer": 1}, "a cache that past and present share"),
    "a cache of other heads": (
        [X, W, BIAS, None, floats(2, B, 3, 1, H)], {}, "past .* does not fit 2 heads of 4"),
    "heads that do not fit": ([X, W, BIAS], {"num_heads": 3}, "not divisible by 3 heads"),
    "sizes that do not fit": ([X, W, BIAS], {"qkv_hidden_sizes": [8, 8, 12]}, "do not fit the w"),
    "values of another size": (
        [X, floats(8, 28), floats(28), None, floats(2, B, N, 1, H)],
        {"qkv_hidden_sizes": [8, 8, 12]}, "they cannot share a cache"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_forms_are_refused_by_name(name):
    operands, options, words = REFUSED[name]
    refused("Attention", operands, words, **{"num_heads": N} | options)


def refused(op_type, operands, words, **options):
    names = ["" if a is None else f"x{n}" for n, a in enumerate(operands)]
    node = helper.make_node(
        op_type, names, ["y"], "n", domain="com.microsoft", **options
    )
    infos = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
        )
        for n, a in zip(names, operands, strict=True)
        if a is not None
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", infos, [y])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with pytest.raises(TilewrightError, match=words) as raised:
        tw.compile(model, cache=False)
    assert "'n'" in str(raised.value)


# ------------------------------------------------------------------------------ MultiHeadAttention


@pytest.mark.parametrize(
    "mask", [None, ints(3, 6), ints([1, 1, 1, 1, 0, 0], [1] * 6), each_sees(4, 6)]
)
def test_masks_of_several_operands(mask):
    check("MultiHeadAttention", [Q, K, V, floats(24), mask], num_heads=4)


def test_a_bias_of_scores():
    check("MultiHeadAttention", [Q, K, V, None, None, floats(2, 2, 4, 6)], num_heads=2)


def test_multi_head_attention_with_a_cache():
    q, k, v = (floats(2, 3, 8) for _ in range(3))
    past = [floats(2, 2, 5, 4) for _ in range(2)]
    results = ("y", "keys", "values")
    for options in ({}, {"unidirectional": 1}):
        operands = [q, k, v, None, None, None, *past]
        check("MultiHeadAttention", operands, outputs=results, num_heads=2, **options)
    across = [q, floats(2, 2, 6, 4), floats(2, 2, 6, 4)]
    check("MultiHeadAttention", across, num_heads=2)


def test_other_forms_of_several_operands_are_refused_by_name():
    name = "MultiHeadAttention"
    refused(name, [floats(2, 4, 2, 3, 4)], "packed operands", num_heads=2)
    refused(name, [Q, floats(2, 6, 2, 2, 4)], "packed operands", num_heads=2)
    heads = [Q, floats(2, 2, 6, 4), floats(2, 2, 6, 4), floats(24)]
    refused(
        name,
        heads,
        "a bias for operands that are already split into heads",
        num_heads=2,
    )
    past = [floats(2, 2, 9, 4)] * 2
    shared = [Q, K, V, None, None, None, *past, ints(3)]
    refused(name, shared, "a cache that is shared or indirect", num_heads=2)


# --------------------------------------------------------------------------------- RotaryEmbedding


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved):
    angles = floats(10, 4)
    cos, sin = np.cos(angles), np.sin(angles)
    positions = np.array([[0, 1, 2], [4, 2, 7]], np.int64)
    check(
        "RotaryEmbedding",
        [floats(2, 3, 16), positions, cos, sin],
        interleaved=interleaved,
    )
    start = np.array([2], np.int64)
    check(
        "RotaryEmbedding",
        [floats(2, 2, 3, 8), start, cos, sin],
        interleaved=interleaved,
    )
