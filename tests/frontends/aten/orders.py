"""Medians, modes, windows of unequal sizes, bags of rows, smoothed images, branches and loops."""

import torch
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from tests.frontends.aten.tensors import i, w, x

F = torch.nn.functional
T = torch.tensor
W = w(3)
NAN, INF = float("nan"), float("inf")
HOLES = T([[1.0, NAN, 3, 2], [4, 1, 3, 2], [NAN] * 4, [INF, NAN, INF, -INF]])


def bag(**how):
    return lambda rows, *starts: F.embedding_bag(rows, w(6, 3), *starts, **how)


ROWS, STARTS = T([0, 5, 3, 3, 1, 2, 5]), T([0, 3, 3, 4])
ENDS = T([0, 3, 3, 4, 7])


CASES = {
    "medians": (
        lambda a: (a.median(), *a.median(1), *a.median(0, keepdim=True)),
        x(5, 4),
    ),
    "medians of integers": (lambda a: (a.median(), a.median(0).values), i(4, 5)),
    "medians with holes": (
        lambda a: (
            a.median(),
            *a.median(1),
            a.nanmedian(),
            a.nanmedian(1).values,
            a[:2].nanmedian(1).indices,
        ),
        HOLES,
    ),
    "medians of equal elements": (
        lambda a: (a.median(1).values, a.gather(1, a.median(1, True).indices)),
        T([[2.0, 1, 2, 2], [0, 0, 0, 0]]),
    ),
    "medians of numbers and of none": (
        lambda a, b: (a.median(), *a.median(0), *b.median(1)),
        T(1.5),
        torch.zeros(0, 3),
    ),
    "modes": (
        lambda a: (*a.mode(1), a.mode(0, keepdim=True).values, a.float().mode().values),
        T([[3, 1, 3, 1], [2, 2, 0, 1], [5, 4, 3, 2]]),
    ),
    "maxima of unequal windows": (
        lambda a: (
            F.adaptive_max_pool2d(a, (3, 4)),
            *F.adaptive_max_pool2d(a, (5, 2), return_indices=True),
            *F.adaptive_max_pool1d(a[0], 4, return_indices=True),
            *F.adaptive_max_pool1d(a[0], 3, return_indices=True),
            F.adaptive_max_pool3d(a, (2, 3, 2)),
        ),
        x(2, 3, 7, 9),
    ),
    "smoothed": (
        lambda a: (
            F.interpolate(a, (3, 4), mode="bilinear", antialias=True),
            F.interpolate(a, (3, 20), mode="bicubic", antialias=True),
            F.interpolate(a, scale_factor=0.4, mode="bicubic", antialias=True),
            F.interpolate(a, (12, 2), mode="bilinear", antialias=True),
        ),
        x(1, 2, 7, 9),
    ),
    "bags": (
        lambda a, b: (
            bag(mode="sum")(a, b),
            bag(mode="mean")(a, b),
            bag(mode="max")(a, b),
            bag(mode="mean")(a[:6].reshape(2, 3).int()),
        ),
        ROWS,
        STARTS,
    ),
    "bags without some rows": (
        lambda a, b: (
            bag(mode="sum", padding_idx=3)(a, b),
            bag(mode="mean", padding_idx=-3)(a, b),
            bag(mode="max", padding_idx=3)(a, b),
        ),
        ROWS,
        STARTS,
    ),
    "weighted bags and their ends": (
        lambda a, b, c: (
            bag(per_sample_weights=c, mode="sum")(a, b[:-1]),
            bag(mode="mean", include_last_offset=True)(a, b),
            bag(mode="max", include_last_offset=True)(a, b),
        ),
        ROWS,
        ENDS,
        x(7),
    ),
    "distances of pairs": (
        lambda a: (F.pdist(a), F.pdist(a, 1), F.pdist(a, INF), F.pdist(a[:1])),
        x(4, 3),
    ),
    "branches": (
        lambda a, b: (
            torch.cond(a.sum() > 9, lambda p, q: p + q, lambda p, q: q * W, (a, b)),
            torch.cond(a.sum() < 9, lambda p, q: p + q, lambda p, q: q * W, (a, b)),
        ),
        x(3),
        x(3, seed=1),
    ),
    "nested branches": (
        lambda a: torch.cond(
            a.sum() > 9,
            lambda p: p.clone(),
            lambda p: torch.cond(p.sum() > 5, lambda q: q * 2, lambda q: q - 1, (p,)),
            (a,),
        ),
        x(3),
    ),
    "loops": (
        lambda a: (
            while_loop(
                lambda n, p: n < 3, lambda n, p: (n + 1, p * W), (T(0), a)
            ),
            while_loop(lambda p: p.sum() < 20, lambda p: (p * 2,), (a.abs(),)),
            while_loop(lambda p: p.sum() > 1e9, lambda p: (p * 2,), (a,)),
        ),
        x(3),
    ),
    "scans": (
        lambda a, b: (
            scan(lambda p, q: (p + q, p * q), a, b),
            scan(lambda p, q: (p + q, p * q), a, b, reverse=True),
            mapped(lambda p, q: p * 2 + q, b, a),
        ),
        x(4),
        x(3, 4, seed=1),
    ),
}  # fmt: skip
