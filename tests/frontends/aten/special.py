"""Special functions, bits, scans, elements chosen by masks, and parts that are no slices."""

import torch

from tests.frontends.aten.tensors import i, x

F = torch.nn.functional
T = torch.tensor
NAN, INF = float("nan"), float("inf")
LINE = torch.cat(
    [torch.linspace(-30, 30, 241), T([-1e9, 1e9, -INF, INF, NAN, 0.0, -0.0])]
)
POSITIVE = torch.cat([torch.logspace(-20, 4, 49), T([INF, NAN])])
COUNTS = T([0, 1, 3, 7, 8, 63, 64, -1])
TIES = T([[1.0, 3.0, 3.0, 2.0, 4.0], [2.0, NAN, 1.0, NAN, 5.0]])
MASK = x(3, 4, seed=7) > 0


def shifts(dtype):
    def function(a):
        counts = COUNTS.clamp(-1 if dtype.is_signed else 0).to(dtype)
        return a[:, None] << counts, a[:, None] >> counts

    return function, T(
        [0, 1, 5, 100, 127, *([-1, -128, -77] if dtype.is_signed else [200])],
        dtype=dtype,
    )


def at(places, value):
    """A change in place, without the original."""

    def function(a, *values):
        a = a.clone()
        a[places] = values[0] if values else value
        return a

    return function


CASES = {
    "erfc": (lambda a: (torch.erfc(a), torch.special.erfcx(a.clamp(-5))), LINE),
    "erfc in float64": (
        lambda a: (a.erfc() * 1e6, torch.special.erfcx(a)),
        LINE.double().clamp(-5, 8),
    ),
    "log of the normal distribution": (torch.special.log_ndtr, LINE),
    "log of the normal distribution, integers": (
        torch.special.log_ndtr,
        i(20, high=30),
    ),
    "quantiles": (
        lambda a: (torch.erfinv(a), torch.special.ndtri((a + 1) / 2)),
        torch.cat([torch.linspace(-1, 1, 99), T([1.5, -2.0, NAN, 1e-30])]),
    ),
    "lgamma": (torch.lgamma, torch.cat([LINE + 0.3, POSITIVE, T([0.0, -1.0, -2.0])])),
    "digamma": (
        torch.digamma,
        torch.cat([LINE[:100] + 0.3, POSITIVE, T([0.0, -0.0, -2.0])]),
    ),
    "modified Bessel functions": (
        lambda a: (
            torch.special.i0(a),
            torch.special.i1(a),
            torch.special.i0e(a),
            torch.special.i1e(a),
            torch.special.modified_bessel_i1(a),
        ),
        torch.cat([LINE, T([-80.0, 88.0, 8.0, -8.0])]),
    ),
    "modified Bessel functions of integers": (torch.i0, i(9)),
    "Bessel functions": (
        lambda a: (
            torch.special.bessel_j0(a),
            torch.special.bessel_j1(a),
            torch.special.spherical_bessel_j0(a),
        ),
        torch.cat([LINE[:241], T([INF, -INF, NAN, 0.0])]),
    ),
    "Bessel functions of the second kind": (
        lambda a: (
            torch.special.bessel_y0(a),
            torch.special.bessel_y1(a),
            torch.special.modified_bessel_k0(a),
            torch.special.modified_bessel_k1(a),
            torch.special.scaled_modified_bessel_k0(a),
            torch.special.scaled_modified_bessel_k1(a),
        ),
        torch.cat([LINE[:241], T([-INF, NAN, 0.0, -0.0, 1e-30, 100.0])]),
    ),
    "counts": (
        lambda a, b: (
            torch.bincount(a),
            torch.bincount(a, minlength=9),
            torch.bincount(a[:0], minlength=2),
            torch.bincount(a.int(), b),
        ),
        T([1, 2, 2, 5]),
        T([0.5, 1.0, 2.0, 3.0]),
    ),
    "distinct elements": (
        lambda a, b: (
            *torch.unique(a, return_inverse=True, return_counts=True),
            *torch.unique(b, return_inverse=True, return_counts=True),
            torch.unique(a > 2),
            torch.unique(b[:0]),
        ),
        T([[3, 1, 2], [2, 2, 9]]),
        T([3.0, NAN, 1.0, -INF, NAN, 0.0, -0.0, 3.0]),
    ),
    "distinct slices": (
        lambda a, b: (
            *torch.unique(a, dim=1, return_inverse=True, return_counts=True),
            *torch.unique(b, dim=0, return_inverse=True, return_counts=True),
        ),
        T([[3, 1, 3, 1], [2, 2, 2, 3]]),
        T([[3.0, -INF], [1.0, 2.0], [3.0, -INF], [1.0, 1.0]]),
    ),
    "runs of equal elements": (
        lambda a: (
            *torch.unique_consecutive(a, return_inverse=True, return_counts=True),
            *torch.unique_consecutive(a, True, True, dim=0),
            *torch.unique_consecutive(a, True, True, dim=1),
        ),
        T([[3.0, 3.0, NAN], [NAN, 2.0, 2.0], [1.0, 1.0, 4.0], [1.0, 1.0, 4.0]]),
    ),
    "logarithms of running sums": (
        lambda a, b: (
            torch.logcumsumexp(a, 0),
            torch.logcumsumexp(a, -1),
            torch.logcumsumexp(b, 0),
            torch.logcumsumexp(b[0], 0),
        ),
        x(3, 4, 2) * 40,
        T([-INF, -INF, -1000.0, 0.0, 1e-9, 2.0, INF, 3.0, NAN, 1.0]),
    ),
    "left and right shifts of int64": shifts(torch.int64),
    "shifts of int8": shifts(torch.int8),
    "shifts of uint8": shifts(torch.uint8),
    "angle": (torch.angle, LINE),
    "angle of integers": (lambda a: (torch.angle(a), torch.angle(a > 0)), i(9)),
    "signs": (
        lambda a, b: (
            torch.signbit(a),
            torch.copysign(a, b),
            torch.signbit(b.sign().int() - 1),
        ),
        T([1.0, -2.0, 0.0, -0.0, INF]),
        T([-0.0, 0.0, -1.0, 3.0, -INF]),
    ),
    "numbers of two": (
        lambda a, b: (torch.fmax(a, b), torch.fmin(a, b)),
        T([1.0, NAN, 2.0, NAN]),
        T([3.0, 1.0, NAN, NAN]),
    ),
    "running extrema": (lambda a: (*a.cummax(1), *a.cummin(0), *a.cummin(1)), TIES),
    "running extrema of booleans": (
        lambda a: (*(a > 2).cummax(1), *(a > 2).cummin(1)),
        TIES,
    ),
    "running product": (lambda a: a.cumprod(1), x(3, 4)),
    "kth value": (lambda a: (*a.kthvalue(2, 0), *a.kthvalue(3, 1, True)), x(4, 5)),
    "search": (
        lambda a, b: (
            torch.searchsorted(a.sort().values, b),
            torch.searchsorted(a.sort().values, b, right=True, out_int32=True),
            torch.bucketize(b, a[0].sort().values, right=True),
        ),
        x(2, 7),
        torch.cat([x(2, 7)[:, :3], T([[NAN], [9.0]])], 1),
    ),
    "nonzero": (torch.nonzero, x(3, 4).relu()),
    "chosen by a mask": (
        lambda a: (a[a > 0], a[a[:, 0] > 0], a.masked_select(MASK)),
        x(3, 4),
    ),
    "chosen by a mask and an index": (
        lambda a: a[:, a[0, :, 0] > 0, T([0])],
        x(2, 4, 3),
    ),
    "added by bytes": (
        lambda a: a.index_put((a[:, 0].to(torch.uint8),), a[0, 0], accumulate=True),
        x(3, 3).abs() * 2,
    ),
    "put at places": (
        lambda a, b: (
            a.put(T([[5, 0]]), b),
            a.put(T([-1, 3, 3]), b[0, :1].expand(3), True),
        ),
        x(3, 4),
        x(1, 2),
    ),
    "put by a mask": (
        lambda a, b: (at(MASK, 0)(a, b), at(MASK, 7.0)(a)),
        x(3, 4),
        x(int(MASK.sum())),
    ),
    "added by a mask": (
        lambda a: a.index_put((MASK,), T(2.0), accumulate=True),
        x(3, 4),
    ),
    "scattered by a mask": (lambda a, b: a.masked_scatter(MASK, b), x(4), x(12)),
    "every second": (at((slice(None), slice(1, None, 2)), 0), x(3, 5), x(3, 2)),
    "a diagonal replaced": (
        lambda a, b: (a.diagonal_scatter(b, 1), a.diagonal_scatter(b, -1, 1, 0)),
        x(3, 4),
        x(3),
    ),
    "memory replaced": (
        lambda a, b: (
            a.as_strided_scatter(b, (2, 2), (1, 3), 1),
            a.T.as_strided_scatter(b, (2, 2), (5, 2)),
        ),
        x(3, 4),
        x(2, 2),
    ),
    "bits as another type": (
        lambda a: (a.view(torch.int32), a.view(torch.int32).view(torch.float32)),
        x(3),
    ),
    "padded and cropped": (
        lambda a: [F.pad(a, (-4, 5, 1, -1), mode=m) for m in ("replicate", "constant")],
        x(2, 3, 4),
    ),
    "means by another number": (
        lambda a: F.avg_pool2d(a, 3, 2, 1, count_include_pad=False, divisor_override=5),
        x(1, 2, 7, 7),
    ),
    "means by another number of windows that are rounded up": (
        lambda a: (
            F.avg_pool2d(a, 3, 2, 1, True, divisor_override=5),
            F.avg_pool2d(a, 2, 3, 0, True, divisor_override=7),
            F.avg_pool2d(a, (3, 2), (3, 5), (1, 0), True, False, divisor_override=-2),
            F.avg_pool3d(a, 2, 2, 1, True, divisor_override=3),
        ),
        x(1, 2, 7, 6),
    ),
    "a batch of products": (
        lambda a, b, c: torch.addbmm(a, b, c, beta=2, alpha=3),
        x(2, 4),
        x(3, 2, 5),
        x(3, 5, 4),
    ),
    "transposed, with padding beyond the kernel": (
        lambda a, b: F.conv_transpose2d(a, b, stride=2, padding=2),
        x(1, 3, 4, 4),
        x(3, 3, 3, 3),
    ),
}
