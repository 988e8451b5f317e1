"""Other shapes, parts, indices, created tensors, losses."""

import torch

from tests.frontends.aten.tensors import b, w, x

F = torch.nn.functional
T = torch.tensor

CASES = {
    # shapes
    "views": (
        lambda a: (
            a.view(6, 4),
            a.reshape(-1),
            a.flatten(1),
            a.unflatten(2, (2, 2)),
            a.view(2, 3, -1, 1),
        ),
        x(2, 3, 4),
    ),
    "permutations": (
        lambda a: (
            a.permute(2, 0, 1),
            a.transpose(0, 2),
            a.mT,
            a.movedim(0, -1),
            a.swapaxes(0, 1),
            a[0].t(),
        ),
        x(2, 3, 4),
    ),
    "unsqueeze": (
        lambda a: (
            a.unsqueeze(0),
            a.unsqueeze(-1),
            a[:, None],
            a.squeeze(1),
            a.squeeze(),
            a.squeeze(0),
            a.squeeze((1, 3)),
        ),
        x(2, 1, 3, 1),
    ),
    "expand": (
        lambda a: (
            a.expand(4, 3, 2),
            a.expand(-1, 3, -1),
            a.repeat(2, 2, 1),
            a.repeat(2, 1, 1, 1),
            a.tile(3),
        ),
        x(4, 1, 2),
    ),
    "repeat interleave": (lambda a: a.repeat_interleave(3, dim=1), x(2, 3, 4)),
    "cat": (
        lambda a, b: (
            torch.cat([a, b], 1),
            torch.stack([a, a], -1),
            torch.cat([a, a.int()]),
        ),
        x(2, 3),
        x(2, 2),
    ),
    "cat of nothing": (lambda a: torch.cat([torch.zeros(0), a]), x(2, 3)),
    "splits": (
        lambda a: (
            *a.split(2, 1),
            *a.chunk(2, 0),
            *a.split([1, 4], 1),
            *a.unbind(0),
            *torch.tensor_split(a, 3, 1),
        ),
        x(2, 5),
    ),
    "slices replaced": (
        lambda a, s: [
            a.slice_scatter(s[:, :n], 1, begin, end, step)
            for n, begin, end, step in [
                (2, 1, 3, 1),
                (3, 0, None, 2),
                (2, -4, 99, 3),
                (1, 4, 5, 7),
                (0, 3, 3, 2),
            ]
        ],
        x(3, 5),
        x(3, 4, seed=1),
    ),
    "slices": (
        lambda a: (
            a[1:],
            a[:, -2:],
            a[::2, 1:4:2],
            a[..., 0],
            a[-1],
            a[1:100],
            a[:, :-1],
            a.narrow(1, 1, 2),
        ),
        x(4, 5),
    ),
    "flip and roll": (
        lambda a: (
            a.flip(0),
            a.flip((0, 1)),
            a.roll(1, 0),
            a.roll((1, -2), (0, 1)),
            a.roll(3),
            a.roll(7, 1),
        ),
        x(3, 4),
    ),
    "pixel shuffles": (
        lambda a: (F.pixel_shuffle(a, 2), F.pixel_unshuffle(a, 2)),
        x(1, 8, 4, 6),
    ),
    "channel shuffle": (lambda a: F.channel_shuffle(a, 2), x(1, 8, 2, 2)),
    "pads": (
        lambda a: (
            F.pad(a, (1, 2)),
            F.pad(a, (1, 0, 0, 2), value=3.0),
            F.pad(a, (-1, 0)),
        ),
        x(2, 3, 4),
    ),
    "pads of other modes": (
        lambda a: (
            F.pad(a, (1, 2, 1, 0), mode="reflect"),
            F.pad(a, (1, 2, 1, 0), mode="replicate"),
            F.pad(a, (1, 2, 1, 0), mode="circular"),
        ),
        x(1, 2, 3, 4),
    ),
    "triangles": (lambda a: (a.tril(), a.triu(1), a.tril(-1)), x(3, 4)),
    "diagonal": (lambda a: (a.diagonal(), a.diagonal(1, 0, 1)), x(3, 4)),
    "unfold": (lambda a: a.unfold(1, 3, 2), x(2, 9)),
    "im2col": (lambda a: F.unfold(a, 3, padding=1), x(1, 2, 5, 5)),
    # indices
    "embedding": (lambda n: F.embedding(n, w(9, 4)), T([[0, 8], [3, 3]])),
    "index select": (
        lambda a, n: (a.index_select(1, n), a.index_select(0, T(1))),
        x(3, 4),
        T([2, 0, 2]),
    ),
    "gather": (lambda a, n: a.gather(1, n), x(3, 4), T([[0, 3], [1, 1], [2, 0]])),
    "index": (
        lambda a, n: (
            a[n],
            a[:, n],
            a[n, n],
            a[:, n, n],
            a[n, :, n],
            a[n[:, None], n],
            a[..., n],
            a[-1, n],
        ),
        x(3, 4, 5),
        T([0, 2, -1]),
    ),
    "index put": (
        lambda a, n: (
            a.index_put((n,), T(1.0)),
            a.index_put((n, n), w(3), accumulate=True),
        ),
        x(4, 4),
        T([0, 2, 0]),
    ),
    "mask assigned": (
        lambda a, m: (lambda y: (y.__setitem__(m, 0.0), y)[1])(a.clone()),
        x(3, 4),
        b(3, 4),
    ),
    "scatter reductions": (
        lambda n, *tensors: [
            a.scatter_reduce(1, n, s, how, include_self=include)
            for a, s in zip(tensors[::2], tensors[1::2], strict=True)
            for how in ("sum", "prod", "mean", "amax", "amin")
            for include in (True, False)
        ],
        # Twice, once and never written elements; more values than indices.
        T([[0, 0, 2], [3, 1, 1]]),
        x(3, 4),
        x(2, 5, seed=1),
        T([[7, -9, 5, 2], [-1, 4, 3, 8], [1, 2, 3, 4]]),
        T([[-3, 2, -8, 0], [4, -5, 2, 1]]),
    ),
    "scatter to numbers": (
        lambda a, n, s: [
            a.scatter_add(0, n, s),
            a.scatter(0, n[None], 2.0),
            a.scatter_reduce(0, n, s, "mean"),
            s[None].scatter_reduce(0, n, a, "prod"),
        ],
        T(3.0),
        T(0),
        T(8.0),
    ),
    "scatter": (
        lambda a, n, s: (
            a.scatter(1, n, s),
            a.scatter_add(1, n, s),
            a.scatter(0, n, 2.0),
            a.scatter_reduce(1, n, s, "amax"),
        ),
        x(3, 4),
        T([[0, 1], [2, 2], [1, 0]]),
        x(3, 2),
    ),
    "one hot": (lambda n: F.one_hot(n, 5), T([0, 3, 4])),
    "cosine similarity": (
        lambda a, b: (F.cosine_similarity(a, b), torch.cdist(a, b)),
        x(3, 4),
        x(3, 4, seed=1),
    ),
    # created
    "created": (
        lambda a: (
            torch.arange(5) + a.long(),
            torch.arange(1.0, 2.0, 0.25) * a,
            torch.zeros_like(a),
            torch.ones(3) + a,
            torch.full((2,), 7) + a,
            a.new_zeros(2),
            torch.eye(3) * a,
            torch.linspace(0, 1, 5) + a,
        ),
        T(2.0),
    ),
    "linspace": (
        lambda a: [
            torch.linspace(start, 57, steps, dtype=dtype)
            for start in (0.7, 9.5, a)
            for steps in (1, 2, 15, 50)
            for dtype in (torch.uint8, torch.int64, torch.float32)
        ],
        T(3.6),
    ),
    "linspace rounded once": (
        lambda a: torch.linspace(-35, 63, 43, dtype=torch.int8) + a,
        T(0, dtype=torch.int8),
    ),
    # losses
    "losses": (
        lambda a, t: (
            F.cross_entropy(a, t),
            F.mse_loss(a, a * 2),
            F.l1_loss(a, a * 2),
            F.nll_loss(a.log_softmax(1), t),
            F.smooth_l1_loss(a, a * 3),
            F.binary_cross_entropy_with_logits(a, a.sigmoid()),
            F.kl_div(a.log_softmax(1), a.softmax(1), reduction="batchmean"),
        ),
        x(3, 4),
        T([0, 3, 1]),
    ),
    # what is named or is there may be nothing
    "no axes": (lambda a: (a.squeeze(()), a.flip([])), x(1, 3, 1, 2)),
    "interleave all": (
        lambda a, s: (a.repeat_interleave(3), s.repeat_interleave(2)),
        x(2, 3),
        torch.tensor(2.5),
    ),
    "arange by the numbers given": (
        lambda a: (
            torch.arange(0, 1, 0.1, dtype=torch.float16),
            torch.arange(0, 2.5, dtype=torch.int64),
            torch.arange(0.5, 4, dtype=torch.int32),
            torch.arange(3, 3),
            a + 1,
        ),
        x(2),
    ),
    "gather one": (lambda a, n: a.gather(0, n), x(3), torch.tensor(1)),
    "bilinear to one element": (
        lambda a: F.interpolate(a, size=(1, 1), mode="bilinear"),
        x(1, 2, 5, 4),
    ),
    "corners at a scale": (
        lambda a: [
            F.interpolate(a, scale_factor=1.7, mode=m, align_corners=True)
            for m in ("bilinear", "bicubic")
        ],
        x(1, 2, 5, 4),
    ),
    "by places in memory": (
        lambda a: (
            torch.as_strided(a, (4, 3), (1, 4)),
            torch.as_strided(a * 1, (2, 3, 2), (3, 2, 1), 1),
            torch.as_strided(a.t().clone(), (3, 1, 4), (1, 7, 3)),
            torch.as_strided(a, (3, 2), (0, 5)),
        ),
        x(3, 4),
    ),
}
