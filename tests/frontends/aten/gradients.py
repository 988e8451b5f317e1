"""Operators of backward passes, each with what PyTorch saves for it."""

import torch

from tests.frontends.aten.tensors import b, x

A = torch.ops.aten
T = torch.tensor
Q, K, V = x(1, 2, 5, 4), x(1, 2, 7, 4, seed=1), x(1, 2, 7, 4, seed=2)
MASK = torch.where(b(5, 7), 0.0, -torch.inf).index_fill(1, T([0]), 0.0)
UNSEEN = MASK.index_fill(0, T([2]), -torch.inf)  # a row sees no key


def attention(saved=True, **how):
    """The gradients of queries, keys and values, and what is saved for them, if it is asked for."""

    def function(g, q, k, v):
        out, total = A._scaled_dot_product_flash_attention_for_cpu(q, k, v, **how)
        back = A._scaled_dot_product_flash_attention_for_cpu_backward
        causal = how.get("is_causal", False)
        rest = {n: a for n, a in how.items() if n != "is_causal"}
        found = back(g, q, k, v, out, total, 0.0, causal, **rest)
        return (total, *found) if saved else found

    return function, x(1, 2, 5, 4, seed=5), Q, K, V


def pooled(how):
    return lambda g, a: A.max_pool2d_with_indices_backward(
        g, a, *how, False, A.max_pool2d_with_indices(a, *how)[1]
    )


ALL = [True, True, True]
CASES = {
    "strides and padding": (
        lambda g, a, w: A.convolution_backward(
            g, a, w, [3], [2, 1], [1, 0], [1, 1], False, [0, 0], 1, ALL
        ),
        x(2, 3, 3, 3),
        x(2, 2, 5, 5, seed=1),
        x(3, 2, 3, 3, seed=2),
    ),
    "groups and dilations": (
        lambda g, a, w: A.convolution_backward(
            g, a, w, [4], [1, 1], [2, 2], [2, 2], False, [0, 0], 2, ALL
        ),
        x(1, 4, 5, 4),
        x(1, 4, 5, 4, seed=1),
        x(4, 2, 3, 3, seed=2),
    ),
    "only what is asked for": (
        lambda g, a, w: [
            A.convolution_backward(
                g, a, w, [3], [1], [0], [1], False, [0], 1, [n == m for m in range(3)]
            )[n]
            for n in range(3)
        ],
        x(2, 3, 4),
        x(2, 2, 6, seed=1),
        x(3, 2, 3, seed=2),
    ),
    "transposed": (
        lambda g, a, w: A.convolution_backward(
            g, a, w, [3], [2, 2], [1, 1], [1, 1], True, [1, 0], 1, ALL
        ),
        x(1, 3, 6, 5),
        x(1, 2, 3, 3, seed=1),
        x(2, 3, 3, 3, seed=2),
    ),
    "of volumes": (
        lambda g, a, w: A.convolution_backward(
            g, a, w, [2], [1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1, ALL
        ),
        x(1, 2, 3, 2, 3),
        x(1, 1, 3, 2, 3, seed=1),
        x(2, 1, 3, 3, 3, seed=2),
    ),
    # Equal elements: it flows to the one whose place was saved.
    "maxima of equal elements that overlap": (
        pooled(([3, 3], [1, 1], [1, 1], [1, 1])),
        x(1, 2, 4, 4),
        x(1, 2, 4, 4, seed=1).relu(),
    ),
    "averages": (
        lambda g, a: [
            A.avg_pool2d_backward(g, a, [3, 3], [2, 2], [1, 1], ceil, pads, None)
            for ceil, pads in ((False, True), (False, False), (True, True))
        ],
        x(1, 2, 3, 3),
        x(1, 2, 5, 5, seed=1),
    ),
    "averages to a size": (
        lambda g, a: A._adaptive_avg_pool2d_backward(g, a),
        x(2, 3, 2),
        x(2, 7, 4),
    ),
    "resized": (
        lambda g: (
            A.upsample_bilinear2d_backward(g, [4, 5], [1, 2, 2, 3], False),
            A.upsample_bilinear2d_backward(g, [4, 5], [1, 2, 2, 3], True),
            A.upsample_nearest2d_backward(g, [4, 5], [1, 2, 2, 3]),
            A.upsample_bicubic2d_backward(g, [4, 5], [1, 2, 2, 3], False),
        ),
        x(1, 2, 4, 5),
    ),
    "sampled": (
        lambda g, a, at: (
            *A.grid_sampler_2d_backward(g, a, at, 0, 0, False, [True, True]),
            A.grid_sampler_2d_backward(g, a, at, 0, 1, True, [False, True])[1],
        ),
        x(1, 2, 3, 4),
        x(1, 2, 4, 3, seed=1),
        x(1, 3, 4, 2, seed=2).tanh() * 1.2,
    ),
    "attention": attention(),
    "causal attention": attention(is_causal=True),
    "masked attention": attention(attn_mask=MASK, scale=0.3),
    "attention of rows without keys": attention(False, attn_mask=UNSEEN),
    "groups of channels": (
        lambda g, a: A.native_group_norm_backward(
            g, a, *A.native_group_norm(a, None, None, 2, 4, 3, 2, 1e-5)[1:], None, 2, 4,
            3, 2, [True, False, False],
        )[0],
        x(2, 4, 3),
        x(2, 4, 3, seed=1),
    ),
    "an embedding": (
        lambda g: A.embedding_dense_backward(g, T([[1, 4], [1, 3]]), 5, 3, False),
        x(2, 2, 3),
    ),
    "layers": (
        lambda g, a: A.native_layer_norm_backward(
            g, a, [4], *A.native_layer_norm(a, [4], None, None, 1e-5)[1:], None, None,
            [True, False, False],
        )[0],
        x(3, 4),
        x(3, 4, seed=1),
    ),
}  # fmt: skip
