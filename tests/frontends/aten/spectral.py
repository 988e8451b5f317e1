"""Complex tensors, Fourier transforms, groups of rows, and writes by indices of some axes."""

import torch

from tests.frontends.aten.tensors import i, x

T = torch.tensor
FFT = torch.fft
# PyTorch multiplies groups in bfloat16 alone while it traces.
GROUPS = x(3, 8, 8, seed=3).round().bfloat16()


def _gradients(a, w, ends, g):
    """The gradients of a grouped product, one matrix at a time."""
    of_rows, of_weights = torch.zeros_like(a), torch.zeros_like(w)
    start = 0
    for n, end in enumerate(ends.tolist()):
        of_rows[start:end] = g[start:end] @ w[n].T
        of_weights[n] = a[start:end].T @ g[start:end]
        start = end
    return of_rows, of_weights


# transformers has this operator; the same schema stands in for it where it is not installed.
BACK = "transformers::grouped_mm_fallback_backward"
torch.library.custom_op(
    BACK,
    _gradients,
    mutates_args=(),
    schema="(Tensor input, Tensor weight, Tensor offs, Tensor grad_output) -> (Tensor, Tensor)",
).register_fake(lambda a, w, ends, g: (torch.empty_like(a), torch.empty_like(w)))


def gradients(a, w, g, *ends):
    offs = T(ends, dtype=torch.int32)
    return torch.ops.transformers.grouped_mm_fallback_backward(a, w, offs, g)


def pairs(z):
    return torch.view_as_real(z)


CASES = {
    "a transform of two axes": (
        lambda a: FFT.fft(FFT.fft(a, dim=-1), dim=-2).real,
        x(2, 3, 4),
    ),
    "transforms of real numbers": (
        lambda a: [
            pairs(FFT.rfft2(a, norm=norm)) for norm in (None, "ortho", "forward")
        ],
        x(2, 4, 5),
    ),
    "the whole of a transform": (
        lambda a: (pairs(FFT.fftn(a, norm="ortho")), FFT.fftn(a, dim=(0, 2)).imag),
        x(2, 3, 4),
    ),
    "transforms back": (
        lambda a: (
            FFT.irfft(FFT.rfft(a)),
            FFT.irfft2(FFT.rfft2(a) * torch.complex(a[..., :3], a[..., 2:]), s=(3, 5)),
            pairs(FFT.ifft(torch.complex(a, a * 2), norm="ortho")),
            FFT.irfft(FFT.rfft(a, n=1), n=1),
        ),
        x(2, 3, 5),
    ),
    "rotations": (
        lambda a, f: pairs(
            torch.view_as_complex(a.reshape(2, 5, 4, 2))
            * torch.polar(torch.ones_like(f), f)
        ).flatten(2),
        x(2, 5, 8),
        x(5, 4),
    ),
    "moved and conjugated": (
        lambda a: (
            pairs(torch.view_as_complex(a).conj()[1:].t() - 2),
            pairs(-torch.view_as_complex(a).unsqueeze(0).expand(2, 3, 4) + a[..., 0]),
        ),
        x(3, 4, 2),
    ),
    "sizes of complex numbers": (
        lambda a: torch.view_as_complex(a).abs(),
        T([[3e30, 4e30], [0.0, 0.0], [-1.0, float("inf")], [float("nan"), 1.0],
           [float("inf"), float("nan")], [float("nan"), -float("inf")]]),
    ),
    "complex numbers and wider real ones": (
        lambda a, b: (
            pairs(torch.complex(a, a) * b),
            pairs(b - torch.complex(a, a)),
            pairs(torch.complex(a, a) + 2),
        ),
        x(4),
        1 + x(4).double() / 3e9,
    ),
    "histogram": (lambda a: torch.histc(a, 5, -1, 1), torch.cat([x(40), T([1.0, -1])])),
    "histogram of numbers of groups": (
        lambda a: torch.histc(a.float(), 4, 0, 3),
        i(30, high=4).abs(),
    ),
    "groups of rows": (
        lambda a: torch._grouped_mm(a, GROUPS, offs=T([2, 2, 6], dtype=torch.int32)),
        x(6, 8).round().bfloat16(),
    ),
    "fewer rows than groups": (
        lambda a: torch._grouped_mm(a, GROUPS, offs=T([0, 1, 2], dtype=torch.int32)),
        x(2, 8).round().bfloat16(),
    ),
    **{
        f"tiles of groups: {name}": (
            lambda a, ends=ends: torch._grouped_mm(
                a, GROUPS, offs=T(ends, dtype=torch.int32)
            ),
            x(40, 8).round().bfloat16(),
        )
        for name, ends in {
            "uneven": [9, 16, 40],
            "all rows of the first": [40, 40, 40],
            "all rows of the last": [0, 0, 40],
            "one row of each but one": [1, 39, 40],
        }.items()
    },
    "groups of the axis summed over": (
        lambda a, g: torch._grouped_mm(a, g, offs=T([2, 2, 6], dtype=torch.int32)),
        x(8, 8).round().bfloat16(),
        x(8, 8, seed=1).round().bfloat16(),
    ),
    "gradients of uneven groups": (
        lambda a, w, g: (gradients(a, w, g, 0, 3, 3, 6), gradients(a, w, g, 1, 1, 4, 5)),
        x(6, 3),
        x(4, 3, 5, seed=1),
        x(6, 5, seed=2),
    ),
    "gradients of tiles, and of rows past the last end": (
        lambda a, w, g: (gradients(a, w, g, 2, 3, 19), gradients(a, w, g, 0, 0, 0)),
        x(40, 3),
        x(3, 3, 5, seed=1),
        x(40, 5, seed=2),
    ),
    "gradients of fewer rows than groups": (
        lambda a, w, g: gradients(a, w, g, 0, 1, 2),
        x(2, 3),
        x(3, 3, 5, seed=1),
        x(2, 5, seed=2),
    ),
    "gradients beside another group's infinity": (
        lambda a, w, g: gradients(a, w, g, 2, 4),
        x(6, 3).index_fill(0, T([1, 5]), torch.inf),
        x(2, 3, 5, seed=1),
        x(6, 5, seed=2).index_fill(0, T([0, 4]), torch.inf),
    ),
    "writes at indices of inner axes": (
        lambda a, v, w: (
            torch.ops.aten.index_put(a, [None, T([0, 2]), T([[1], [2]])], v),
            torch.ops.aten.index_put(a, [None, None, T([1, 1])], w, True),
            torch.ops.aten.index_put(a, [None, T([2, 0])], T(3.0)),
        ),
        x(2, 3, 4, 5),
        x(2, 2, 5),
        x(2, 1, 2, 5),
    ),
    "writes at indices of axes apart": (
        lambda a, v: torch.ops.aten.index_put(
            a, [T([0, 1]), None, T([[1], [2]])], v, True
        ),
        x(2, 3, 4, 5),
        x(2, 2, 3, 5),
    ),
    "a maximum joined along axis 1": (
        lambda a: torch.cat((torch.max_pool2d(a, 2), a[..., ::2, ::2]), 1),
        x(1, 2, 4, 4),
    ),
    "normalized by the batch": (
        lambda a: torch.batch_norm(a, T([1.0, 2]), T([0.0, 1]), None, None, True, 0.1,
                                   1e-5, False),
        x(2, 2, 3),
    ),
}  # fmt: skip
