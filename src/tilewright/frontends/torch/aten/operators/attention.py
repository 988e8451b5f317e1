"""Attention, spelled out; the graph's rules turn it back into one operation."""

from __future__ import annotations

import math

import numpy as np

from tilewright.base.dtypes import bool_, int64
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value


@rule("aten.scaled_dot_product_attention")
def _attention(c: AtenCall) -> Value:
    """Any number of axes before queries by features; they are batch and heads."""
    _check(c)
    q, k, v = (c.tensor(n) for n in ("query", "key", "value"))
    if c["enable_gqa"]:
        k = _repeated(c, k, "key")
        v = _repeated(c, v, "value")
    return _attended(c, q, k, v)


@rule("aten._scaled_dot_product_flash_attention_for_cpu")
def _attention_of_cpu(c: AtenCall) -> tuple[Value, Value | None]:
    """The CPU operator that `scaled_dot_product_attention` becomes.

    Its other result, the logarithm of each row's divisor, is for training.
    """
    _check(c)
    q, k, v = (c.tensor(n) for n in ("query", "key", "value"))
    k = _repeated(c, k, "key")
    v = _repeated(c, v, "value")
    total = None
    if c.uses(1):
        scores, _ = _scores(c, q, k)
        axes = c.ints(-1)
        total = c.op("ReduceLogSumExp", scores, axes, keepdims=0)
    return _attended(c, q, k, v), total


def _check(c: AtenCall) -> None:
    if c["dropout_p"]:
        raise c.refuse("it drops elements at random")


def _repeated(c: AtenCall, x: Value, name: str) -> Value:
    """Heads of keys or values, each repeated for consecutive heads of queries."""
    heads = c.of("query").shape[-3]
    mine = c.of(name).shape[-3]
    if heads == mine:
        return x
    if c.rank(name) != 4:
        raise c.refuse(
            f"its grouped heads are in a tensor of {c.rank(name)} axes, not 4"
        )
    axes = c.ints(2)
    wide = c.op("Unsqueeze", x, axes)
    shape = c.ints(1, 1, int(heads) // int(mine), 1, 1)
    wide = c.op("Expand", wide, shape)
    shape = c.ints(0, int(heads), -1, int(c.of(name).shape[-1]))
    return c.op("Reshape", wide, shape)


def _attended(c: AtenCall, q: Value, k: Value, v: Value) -> Value:
    """A row whose keys are all masked yields zeros, as in PyTorch; NaN in scores remains."""
    scores, seen = _scores(c, q, k)
    shares = c.op("Softmax", scores, axis=-1)
    if seen is not None:
        shares = c.op("Where", seen, shares, c.number(0))
    return c.op("MatMul", shares, v)


def _scores(c: AtenCall, q: Value, k: Value) -> tuple[Value, Value | None]:
    """Scaled and masked scores, and the mask of those that remain, if there is a mask."""
    size = c.of("query").shape[-1]
    if c.has("scale"):
        scale = float(c["scale"])
    else:
        scale = 1 / math.sqrt(max(int(size), 1))
    rank = c.rank("key")
    turned = _transposed(c, k, rank)
    scores = c.op("MatMul", q, turned)
    scores = c.op("Mul", scores, c.number(scale))
    low = c.number(-math.inf)
    mask = c["attn_mask"]
    if c["is_causal"]:
        return c.op("Where", _causal(c), scores, low), None
    if mask is None:
        return scores, None
    if mask.dtype is bool_:
        return c.op("Where", mask, scores, low), mask
    mask = c.cast(mask, c.dtype)
    scores = c.op("Add", scores, mask)
    seen = c.op("Greater", mask, low)
    if c.build.trains:  # the gradient of a row whose keys are all masked is zero, too
        scores = c.op("Where", seen, scores, low)
    return scores, seen


def _causal(c: AtenCall) -> Value:
    """Each query sees the keys up to its own position."""
    rows = c.of("query").shape[-2]
    keys = c.of("key").shape[-2]
    if type(rows) is int and type(keys) is int:
        return c.build.constant(np.tri(rows, keys, dtype=bool))
    row, key = (_numbers(c, n) for n in ("query", "key"))
    column = c.unsqueeze(row, 1)
    return c.op("GreaterOrEqual", column, key)


def _numbers(c: AtenCall, name: str) -> Value:
    """0, 1, ... for each row of a tensor."""
    end = c.op("Shape", c.tensor(name), start=-2, end=-1)
    zero = c.value(0, int64)
    one = c.value(1, int64)
    limit = c.squeeze(end, 0)
    return c.op("Range", zero, limit, one)


def _transposed(c: AtenCall, x: Value, rank: int) -> Value:
    order = [*range(rank - 2), rank - 1, rank - 2]
    return c.op("Transpose", x, perm=order)


# -- an encoder's layer


@rule("aten._transformer_encoder_layer_fwd")
def _encoder_layer(c: AtenCall) -> Value:
    """PyTorch's encoder layer, which runs as one operator outside training."""
    if c.has("mask"):
        raise c.refuse("it has a mask")
    x = c.tensor("src")
    eps = float(c["eps"])

    def normalized(x: Value, n: int) -> Value:
        scale = c.tensor(f"norm_weight_{n}")
        bias = c.tensor(f"norm_bias_{n}")
        return c.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=eps)

    for n, part in ((1, _self_attention), (2, _feed_forward)):
        if c["norm_first"]:
            before = normalized(x, n)
        else:
            before = x
        x = c.op("Add", x, part(c, before))
        if not c["norm_first"]:
            x = normalized(x, n)
    return x


def _self_attention(c: AtenCall, x: Value) -> Value:
    """Queries, keys and values from one product."""
    both = _product(c, x, "qkv_weight", "qkv_bias")
    parts = c.build.ops("Split", both, count=3, axis=-1, num_outputs=3)
    q, k, v = (_heads(c, p) for p in parts)
    size = int(c["embed_dim"]) // int(c["num_heads"])
    turned = _transposed(c, k, 4)
    scores = c.op("MatMul", q, turned)
    scores = c.op("Mul", scores, c.number(1 / math.sqrt(size)))
    shares = c.op("Softmax", scores, axis=-1)
    found = c.op("MatMul", shares, v)
    joined = c.op("Transpose", found, perm=[0, 2, 1, 3])
    shape = c.ints(0, 0, int(c["embed_dim"]))
    joined = c.op("Reshape", joined, shape)
    return _product(c, joined, "proj_weight", "proj_bias")


def _heads(c: AtenCall, x: Value) -> Value:
    shape = c.ints(0, 0, int(c["num_heads"]), -1)
    x = c.op("Reshape", x, shape)
    return c.op("Transpose", x, perm=[0, 2, 1, 3])


def _feed_forward(c: AtenCall, x: Value) -> Value:
    inner = _product(c, x, "ffn_weight_1", "ffn_bias_1")
    if c["use_gelu"]:
        active = c.op("Gelu", inner)
    else:
        active = c.op("Relu", inner)
    return _product(c, active, "ffn_weight_2", "ffn_bias_2")


def _product(c: AtenCall, x: Value, weight: str, bias: str) -> Value:
    w = c.op("Transpose", c.tensor(weight), perm=[1, 0])
    product = c.op("MatMul", x, w)
    return c.op("Add", product, c.tensor(bias))
