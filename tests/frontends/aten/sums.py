"""Products, reductions, normalizations, pooling."""

import math

import torch

from tests.frontends.aten.tensors import b, i, w, x

F = torch.nn.functional
T = torch.tensor
Q, K, V = x(2, 3, 5, 4), x(2, 3, 7, 4, seed=1), x(2, 3, 7, 6, seed=2)


CASES = {
    # products
    "matmul": (
        lambda a, b: (
            a @ b,
            torch.bmm(a, b),
            a[0] @ b[0],
            a[0, 0] @ b[0],
            a[0] @ b[0, :, 0],
            torch.dot(a[0, 0], b[0, :, 0]),
            torch.mv(a[0], b[0, :, 0]),
        ),
        x(2, 3, 4),
        x(2, 4, 5),
    ),
    "addmm": (
        lambda a, b, c: (
            torch.addmm(a, b, c),
            torch.addmm(a, b, c, beta=0.5, alpha=2),
            torch.baddbmm(a[None], b[None], c[None], beta=0),
        ),
        x(3, 5),
        x(3, 4),
        x(4, 5),
    ),
    "linear": (
        lambda a: (F.linear(a, w(5, 4)), F.linear(a, w(5, 4), w(5))),
        x(2, 3, 4),
    ),
    "einsum": (
        lambda a, b: (torch.einsum("bij,bjk->bik", a, b), torch.einsum("bij->ji", a)),
        x(2, 3, 4),
        x(2, 4, 5),
    ),
    "outer": (torch.outer, x(3), x(4)),
    "conv1d": (
        lambda a: (
            F.conv1d(a, w(4, 3, 3)),
            F.conv1d(a, w(6, 1, 3), w(6), stride=2, padding=1, groups=3),
        ),
        x(2, 3, 9),
    ),
    "conv2d": (
        lambda a: (
            F.conv2d(a, w(5, 4, 3, 3), w(5), padding=1),
            F.conv2d(a, w(5, 4, 2, 4), padding="same", dilation=2),
            F.conv2d(a, w(5, 4, 3, 3), padding="valid", stride=(2, 1)),
            F.conv2d(a[0], w(5, 4, 1, 1)),
        ),
        x(2, 4, 8, 9),
    ),
    "conv3d": (
        lambda a: F.conv3d(a, w(3, 2, 2, 2, 2), padding=1, stride=2),
        x(1, 2, 5, 6, 4),
    ),
    "conv transpose": (
        lambda a: (
            F.conv_transpose2d(
                a, w(4, 3, 3, 3), w(3), stride=2, padding=1, output_padding=1
            ),
            F.conv_transpose2d(a, w(4, 1, 2, 2), groups=4),
            F.conv_transpose1d(a[:, :, 0], w(4, 2, 3)),
        ),
        x(1, 4, 5, 6),
    ),
    "attention": (
        lambda q, k, v: (
            F.scaled_dot_product_attention(q, k, v),
            F.scaled_dot_product_attention(q, k, v, scale=0.3),
            F.scaled_dot_product_attention(q, q, q, is_causal=True),
            F.scaled_dot_product_attention(q[0], k[0], v[0]),
        ),
        Q,
        K,
        V,
    ),
    "attention with masks": (
        lambda q, k, v, m: (
            F.scaled_dot_product_attention(q, k, v, m),
            F.scaled_dot_product_attention(q, k, v, m.float()),
            F.scaled_dot_product_attention(q, k, v, m[None, None]),
        ),
        Q,
        K,
        V,
        torch.ones(5, 7).bool().tril(2),
    ),
    "masked rows give zeros": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, m),
        x(2, 1, 3, 2),
        T([[True, False, False], [False, False, False], [True, True, False]]),
    ),
    "grouped attention of the CPU": (
        lambda q, k: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, k
        )[0],
        x(3, 4, 1, 4),
        x(3, 2, 6, 4),
    ),
    "grouped attention": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        x(1, 4, 5, 8),
        x(1, 2, 6, 8),
    ),
    # reductions
    "sums": (
        lambda a: (
            a.sum(),
            a.sum(1),
            a.sum((0, 2)),
            a.sum(-1, keepdim=True),
            a.mean(),
            a.mean((1, 2)),
            a.prod(),
            a.prod(1),
        ),
        x(2, 3, 4),
    ),
    "integer sums": (
        lambda a: (
            a.sum(),
            a.prod(1),
            a.bool().sum(),
            a.sum(dtype=torch.float32),
            a.float().mean(),
        ),
        i(3, 4, high=3),
    ),
    "extrema": (
        lambda a: (
            a.max(),
            a.min(),
            a.amax(1),
            a.amin((0, 1)),
            *a.max(1),
            *a.min(0, keepdim=True),
            a.argmax(),
            a.argmin(1),
            a.argmax(1, keepdim=True),
        ),
        x(3, 4),
    ),
    "any and all": (
        lambda a: (a.any(), a.all(), a.any(1), a.all(0, keepdim=True)),
        b(3, 4),
    ),
    "variances": (
        lambda a: (
            a.var(),
            a.std(1),
            a.var(1, unbiased=False),
            *torch.var_mean(a, 1),
            a.std((0, 1), keepdim=True),
            torch.var(a, 1, correction=2),
        ),
        x(3, 4),
    ),
    "variances of many halves": (
        lambda a: (a.var(), a.std(), *torch.var_mean(a, 1)),
        x(2, 70_000).half(),  # the count is no half
    ),
    "norms": (
        lambda a: (
            a.norm(),
            a.norm(dim=1),
            torch.linalg.vector_norm(a, 1, 1),
            torch.linalg.vector_norm(a, 3),
            torch.linalg.vector_norm(a, float("inf"), 0),
            F.normalize(a, dim=1),
        ),
        x(3, 4),
    ),
    "logsumexp": (lambda a: (a.logsumexp(1), a.logsumexp((0, 1))), x(3, 4) * 50),
    "softmaxes": (
        lambda a: (
            a.softmax(1),
            a.log_softmax(-1),
            F.softmin(a, 0),
            a.softmax(0, dtype=torch.float64),
        ),
        x(3, 4),
    ),
    "cumsum": (lambda a: (a.cumsum(1), a.int().cumsum(0)), x(3, 4) * 3),
    "topk": (
        lambda a: (
            *a.topk(2),
            *a.topk(2, 0, largest=False),
            *a.sort(1),
            *a.sort(0, descending=True),
            a.argsort(1),
        ),
        x(4, 5),
    ),
    "rank 0": (
        lambda a: (
            (a * 0).softmax(0),
            a.sum(),
            a.mean(),
            a.softmax(0),
            a.max(),
            a.exp(),
            a.unsqueeze(0),
            a.reshape(1, 1),
            a.cumsum(0),
        ),
        T(1.5),
    ),
    "empty": (
        lambda a: (a.sum(), a.sum(1), a + 1, a.reshape(3, 0), torch.cat([a, a], 1)),
        torch.zeros(3, 0),
    ),
    # normalizations
    "layer norm": (
        lambda a: (
            F.layer_norm(a, (4,)),
            F.layer_norm(a, (3, 4), w(3, 4), w(3, 4)),
            F.layer_norm(a, (4,), w(4)),
        ),
        x(2, 3, 4),
    ),
    "rms norm": (
        lambda a: (F.rms_norm(a, (4,)), F.rms_norm(a, (4,), w(4), 1e-3)),
        x(2, 3, 4),
    ),
    "batch norm": (
        lambda a: (
            F.batch_norm(a, w(3), w(3).abs() + 1),
            F.batch_norm(a, w(3), w(3).abs() + 1, w(3), w(3), eps=1e-2),
        ),
        x(2, 3, 4, 5),
    ),
    "group norm": (
        lambda a: (
            F.group_norm(a, 2),
            F.group_norm(a, 2, w(4), w(4)),
            F.group_norm(a, 4),
        ),
        x(2, 4, 5),
    ),
    "instance norm": (
        lambda a: (F.instance_norm(a), F.instance_norm(a, weight=w(4), bias=w(4))),
        x(2, 4, 5, 3),
    ),
    "local response norm": (lambda a: F.local_response_norm(a, 3), x(2, 4, 5, 3)),
    # pooling and resizing
    "max pool": (
        lambda a: (
            F.max_pool2d(a, 2),
            F.max_pool2d(a, 3, 2, 1, ceil_mode=True),
            F.max_pool2d(a, 2, dilation=2, stride=1),
            F.max_pool1d(a[:, :, 0], 2),
            *F.max_pool2d(a, 2, return_indices=True),
        ),
        x(2, 3, 7, 8),
    ),
    "avg pool": (
        lambda a: (
            F.avg_pool2d(a, 2),
            F.avg_pool2d(a, 3, 2, 1),
            F.avg_pool2d(a, 3, 2, 1, count_include_pad=False),
            F.avg_pool2d(a, 3, 2, ceil_mode=True),
            F.avg_pool1d(a[0], 2),
        ),
        x(2, 3, 7, 8),
    ),
    "adaptive pool": (
        lambda a: (
            F.adaptive_avg_pool2d(a, 1),
            F.adaptive_avg_pool2d(a, (3, 2)),
            F.adaptive_avg_pool2d(a, (4, 5)),
            F.adaptive_max_pool2d(a, 1),
            F.adaptive_max_pool2d(a, 2),
            F.adaptive_avg_pool1d(a[:, :, 0], 3),
        ),
        x(2, 3, 6, 8),
    ),
    "nearest": (
        lambda a: (
            F.interpolate(a, scale_factor=2),
            F.interpolate(a, size=(5, 9)),
            F.interpolate(a, scale_factor=1.7),
            F.interpolate(a, size=(5, 9), mode="nearest-exact"),
        ),
        x(1, 2, 4, 6),
    ),
    "bilinear": (
        lambda a: (
            F.interpolate(a, scale_factor=2, mode="bilinear"),
            F.interpolate(a, size=(7, 5), mode="bilinear", align_corners=True),
            F.interpolate(a, scale_factor=1.5, mode="bilinear"),
            F.interpolate(a, size=(7, 5), mode="bilinear"),
        ),
        x(1, 2, 4, 6),
    ),
    "bicubic": (
        lambda a: (
            F.interpolate(a, size=(7, 9), mode="bicubic"),
            F.interpolate(a, scale_factor=2, mode="bicubic", align_corners=True),
        ),
        x(1, 2, 4, 6),
    ),
    "linear 1d and 3d": (
        lambda a: (
            F.interpolate(a[:, :, 0, 0], scale_factor=2, mode="linear"),
            F.interpolate(a, size=(3, 5, 4), mode="trilinear"),
        ),
        x(1, 2, 4, 3, 5),
    ),
    "grid sample": (
        lambda a, g: (
            F.grid_sample(a, g, align_corners=False),
            F.grid_sample(a, g, "nearest", "border", True),
        ),
        x(1, 2, 4, 5),
        x(1, 3, 3, 2).tanh(),
    ),
    # nothing, and not a number
    "any and all of nothing": (
        lambda a: (a.any(), a.all(), a.any(0), a.all(0), a.all(1)),
        x(0, 4),
    ),
    "any and all of no axes": (
        lambda a: (torch.any(a, dim=[]), torch.all(a, dim=[])),
        x(3, 4) > 0,
    ),
    "safe softmax": (
        lambda a: torch.ops.aten._safe_softmax(a, -1),
        torch.tensor([[-math.inf, -math.inf], [1.0, -math.inf], [math.nan, 0.0]]),
    ),
    "places of the largest": (
        lambda a: [
            F.max_pool2d(a, *how, return_indices=True)
            for how in ((3, 1, 1), (2, 2, 1, 1, True), (2, 1, 0, 2), (3, 3, 1, 1, True))
        ],
        x(2, 3, 7, 6),
    ),
    "places of the largest of volumes": (
        lambda a: F.max_pool3d(a, 3, 2, 1, return_indices=True),
        x(1, 2, 5, 4, 3),
    ),
    "the largest is not a number": (
        lambda a: F.max_pool2d(a, 2, 1, return_indices=True)[0] * 1,
        torch.where(x(1, 2, 5, 5) > 1, math.nan, x(1, 2, 5, 5)),
    ),
    "default epsilon of half": (lambda a: F.rms_norm(a, (5,)), (x(3, 5) / 99).half()),
    "statistics of half": (
        lambda a: torch.native_layer_norm(a, (4,), None, None, 1e-5)[1:],
        torch.tensor([[1.0, 2.0, 3.0, 6.0]]).half(),
    ),
}
